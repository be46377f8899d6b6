/*
 * api/routes/mcp.h - between the protocol (mcp.c) and the tools behind it (mcp_tools.c)
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>

struct err;

struct mcp {
	struct call *call; /* held while a tool works */
	json_t *id, *args; /* of the JSON-RPC request */
	bool workspace;    /* tools for all sandboxes, else of one */
};

/* The tools as tools/list shows them. */
json_t *mcp_tools(bool workspace);

/* Does it, and answers with one of the two below, maybe later. False: there is no such tool. */
bool mcp_tool_run(struct mcp *m, const char *name);

/* The answer of a tool; m is gone afterwards. text is taken. */
void mcp_result(struct mcp *m, json_t *text, bool is_error);
void mcp_failed(struct mcp *m, const struct err *e);
