/*
 * http/ws.h - WebSocket (RFC 6455, version 13) on a request, frames by wslay
 * No extensions. Protocol errors close the socket as the RFC says. Pings every 20 s; a peer that
 * answers none within 60 s is gone. Loop thread only.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct http_req;

enum {
	WS_MESSAGE_MAX = 1 << 20,
};

struct ws;

struct ws_ops {
	/* A whole message. May call ws_pause(). */
	void (*message)(void *arg, struct ws *w, bool text, const void *p, size_t n);
	void (*writable)(void *arg,
	                 struct ws *w);          /* room again after there was none; may be NULL */
	void (*closed)(void *arg, struct ws *w); /* the last call; w is gone afterwards */
};

/* Answers the upgrade, and takes the request's end and writable callbacks for itself. subprotocol
 * NULL: none is selected. On failure the request has been answered (400, 426) and a negative errno
 * comes back. */
int ws_accept(struct http_req *r, const char *subprotocol, const struct ws_ops *ops, void *arg,
              struct ws **ret);
int ws_send(struct ws *w, bool text, const void *p, size_t n); /* -ENOMEM, -EPIPE once closing */
size_t ws_room(const struct ws *w);
void ws_pause(struct ws *w); /* read no more until ws_resume() */
void ws_resume(struct ws *w);
void ws_close(struct ws *w, uint16_t code, const char *reason); /* closed() follows */
