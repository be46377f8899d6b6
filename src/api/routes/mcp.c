/*
 * api/routes/mcp.c - the Model Context Protocol: JSON-RPC over POST, one message at a time
 */
#include "api/routes/mcp.h"
#include "api/routes/routes.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/json_in.h"
#include "api/streams/sse.h"
#include "base/bucket.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "http/server.h"
#include "wire/rpc.h"

#define PROTOCOL_SANDBOX   "2024-11-05"
#define PROTOCOL_WORKSPACE "2025-03-26"

static void rpc_error(struct call *c, int status, json_t *id, int code, const char *text)
{
	call_json(c, status,
	          json_pack("{s:s, s:o, s:{s:i, s:s}}", "jsonrpc", "2.0", "id",
	                    id ? json_incref(id) : json_null(), "error", "code", code, "message",
	                    text));
}

static void rpc_result(struct call *c, json_t *id, json_t *result)
{
	call_json(c, 200,
	          json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id",
	                    id ? json_incref(id) : json_null(), "result", result));
}

static void mcp_free(struct mcp *m)
{
	json_decref(m->id);
	json_decref(m->args);
	call_drop(m->call);
	free(m);
}

void mcp_result(struct mcp *m, json_t *text, bool is_error)
{
	call_on_gone(m->call, NULL, NULL);
	rpc_result(m->call, m->id,
	           json_pack("{s:[{s:s, s:o}], s:b}", "content", "type", "text", "text",
	                     text ? text : json_string("no memory"), "isError", is_error || !text));
	mcp_free(m);
}

void mcp_failed(struct mcp *m, const struct err *e)
{
	json_t *j = json_pack("{s:o, s:s, s:s}", "error", json_sentence(e->text), "code",
	                      e->kind ? e->kind : "internal", "request_id", m->call->request_id);
	autofree char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;

	json_decref(j);
	mcp_result(m, text ? json_string(text) : NULL, true);
}

static json_t *initialized(const json_t *params, bool workspace)
{
	const char *wanted = json_string_value(json_object_get(params, "protocolVersion"));
	const char *version = workspace ? PROTOCOL_WORKSPACE : PROTOCOL_SANDBOX;

	if (workspace && wanted && strlen(wanted) < 32)
		version = wanted;
	return json_pack("{s:s, s:{s:{s:b}}, s:{s:s, s:s}}", "protocolVersion", version,
	                 "capabilities", "tools", "listChanged", 0, "serverInfo", "name",
	                 workspace ? "pandastack" : "pandastack-sandbox", "version", "1");
}

static void tools_call(struct call *c, json_t *id, const json_t *params, bool workspace)
{
	const char *name = json_string_value(json_object_get(params, "name"));
	json_t *args = json_object_get(params, "arguments");
	struct tenant *tenant = tenant_of(c->api, c->tenant);
	struct mcp *m;

	if (!name || (args && !json_is_null(args) && !json_is_object(args))) {
		rpc_error(c, 200, id, RPC_BAD_PARAMS,
		          "tools/call needs a name, and arguments that are an object");
		return;
	}
	if (workspace && tenant &&
	    !bucket_take(&tenant->mcp, mono_ms(), MCP_CALLS_PER_S, MCP_CALLS_BURST, 1)) {
		rpc_error(c, 200, id, RPC_LIMIT,
		          "more than 60 tool calls per minute: wait a moment");
		return;
	}
	m = calloc(1, sizeof(*m));
	if (!m) {
		call_nomem(c);
		return;
	}
	m->call = call_hold(c);
	m->id = json_incref(id);
	m->args = json_is_object(args) ? json_incref(args) : json_object();
	m->workspace = workspace;
	if (!mcp_tool_run(m, name)) {
		rpc_error(c, 200, id, RPC_BAD_PARAMS, "there is no such tool: ask tools/list");
		mcp_free(m);
	}
}

static void message(struct call *c, const json_t *j, bool workspace)
{
	json_t *id = json_object_get(j, "id"), *params = json_object_get(j, "params");
	const char *method = json_string_value(json_object_get(j, "method"));

	if (json_is_array(j))
		rpc_error(c, 400, NULL, RPC_INVALID,
		          "batches are not taken: send one message at a time");
	else if (!method && (json_object_get(j, "result") || json_object_get(j, "error")))
		call_empty(c, workspace ? 202 : 204); /* an answer, though we never ask */
	else if (!method)
		rpc_error(c, 400, id, RPC_INVALID, "a JSON-RPC request has a method");
	else if (id && !json_is_string(id) && !json_is_number(id))
		rpc_error(c, 400, NULL, RPC_INVALID, "an id is a string or a number");
	else if (!id || strncmp(method, "notifications/", 14) == 0)
		call_empty(c, workspace ? 202 : 204); /* the client waits for no answer */
	else if (strcmp(method, "initialize") == 0)
		rpc_result(c, id, initialized(params, workspace));
	else if (strcmp(method, "ping") == 0)
		rpc_result(c, id, json_object());
	else if (strcmp(method, "tools/list") == 0)
		rpc_result(c, id, json_pack("{s:o}", "tools", mcp_tools(workspace)));
	else if (strcmp(method, "tools/call") == 0)
		tools_call(c, id, params, workspace);
	else
		rpc_error(c, 200, id, RPC_NO_METHOD, "method not found");
}

static void have_body(void *arg, struct http_req *r, char *p, size_t n)
{
	struct call *c = arg;
	json_error_t why;
	json_t *j = json_in(p, n, &why);

	(void)r;
	call_hold(c);
	if (j)
		message(c, j, !c->route->sandbox);
	else
		rpc_error(c, 400, NULL, RPC_PARSE, "the body is not valid JSON");
	json_decref(j);
	call_drop(c);
}

void mcp_sandbox(struct call *c)
{
	http_body_collect(c->req, MCP_MESSAGE_MAX, have_body, c);
}

void mcp_all(struct call *c)
{
	http_body_collect(c->req, MCP_MESSAGE_MAX, have_body, c);
}
