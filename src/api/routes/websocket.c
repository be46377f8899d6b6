#include "api/routes/websocket.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "http/server.h"
#include "http/ws.h"

void ws_json(struct ws *w, json_t *j)
{
	autofree char *text = json_dumps(j, JSON_COMPACT);

	if (text)
		ws_send(w, true, text, strlen(text));
	json_decref(j);
}

bool is_websocket(struct call *c)
{
	if (http_wants_upgrade(c->req, "websocket"))
		return true;
	call_fail(c, EPROTO, "bad_request", "this is a WebSocket: connect with an upgrade");
	return false;
}
