/*
 * wire/rpc.h - what pandad and `panda mcp` say in the same numbers: JSON-RPC with a limit
 */
#pragma once

enum {
	MCP_MESSAGE_MAX = 1 << 20, /* bytes */

	/* codes of JSON-RPC errors */
	RPC_PARSE = -32700,
	RPC_INVALID = -32600,
	RPC_NO_METHOD = -32601,
	RPC_BAD_PARAMS = -32602,
	RPC_INTERNAL = -32603,
	RPC_LIMIT = -32000, /* our own: try again later */
};
