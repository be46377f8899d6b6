/*
 * api/routes/websocket.h - what routes that become WebSockets share
 */
#pragma once
#include "api/api.h"
#include "http/ws.h"

enum { WS_OK = 1000, WS_FAILED = 1011 }; /* why we close one */

/* False: the request is none, and was answered. */
bool is_websocket(struct call *c);
void ws_json(struct ws *w, json_t *j); /* takes the reference */
