/*
 * panda mcp - the Model Context Protocol over stdin and stdout
 * For agents that start their servers as programs: a line is a message, and pandad answers it. One
 * at a time, because that is how pandad's own endpoint takes them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"
#include "wire/rpc.h"

enum {
	CALL_MS = 330 * 1000, /* its tools may run for 300 s */
};

static int answer(const json_t *j)
{
	if (json_dumpf(j, stdout, JSON_COMPACT) < 0 || putchar('\n') < 0 || fflush(stdout) != 0)
		return cli_die("cannot write an answer: %s", strerror(errno));
	return 0;
}

static int refuse(json_t *id, int code, const char *text)
{
	autojson json_t *j =
	    json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id ? id : json_null(),
	              "error", "code", code, "message", text);

	return j ? answer(j) : cli_die("out of memory");
}

static int message(struct cli *c, const char *path, const char *line, size_t n)
{
	autojson json_t *j = n > MCP_MESSAGE_MAX ? NULL : json_loadb(line, n, 0, NULL);
	autojson json_t *reply = NULL;
	json_t *id = json_object_get(j, "id");
	struct panda_error e;

	if (n > MCP_MESSAGE_MAX)
		return refuse(NULL, RPC_INVALID, "a message may have 1 MiB");
	if (!j)
		return refuse(NULL, RPC_PARSE, "the line is not valid JSON");
	if (!json_is_object(j))
		return refuse(NULL, RPC_INVALID, "send one message at a time, an object in a line");
	if (panda_call(c->panda, "POST", path, j, &reply, &e) < 0) {
		/* The agent may not show it, so it goes to our stderr, too. */
		cli_say(c, &e);
		return id ? refuse(id, RPC_INTERNAL, e.text) : 0;
	}
	return json_is_object(reply) ? answer(reply) : 0;
}

static int run(struct cli *c)
{
	autofree char *line = NULL, *path = NULL;
	bool one = c->argc > 0;
	char id[CLI_ID];
	size_t cap = 0;
	ssize_t n;
	int r = 0;

	if (cli_args(c, 0, 1) || cli_open(c) || (one && cli_first_id(c, id)))
		return CLI_PANDA;
	path = one ? panda_path("/v1/sandboxes/%s/mcp", id) : strdup("/v1/mcp");
	if (!path)
		return cli_die("out of memory");
	panda_set_timeout(c->panda, CALL_MS);
	while (r == 0 && (n = getline(&line, &cap, stdin)) >= 0) {
		while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			n--;
		if (n)
			r = message(c, path, line, (size_t)n);
	}
	return r;
}

const struct cli_command command_mcp = {
    .name = "mcp",
    .args = "[OPTION]... [ID]",
    .what = "serve MCP on stdin and stdout, for agents that start it",
    .about = "Tools to create sandboxes, run commands and read and write files, for agents that\n"
	     "speak the Model Context Protocol. With ID, only tools of that sandbox. Agents that\n"
	     "speak it over HTTP need no program: the server's URL with /mcp behind it.",
    .word = WORD_SANDBOX,
    .examples = "  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}' | panda mcp\n"
		"  panda mcp 3f2a\n",
    .run = run,
};
