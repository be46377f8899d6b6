/*
 * panda run - a sandbox for one command
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/execio.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'t', "template", "NAME", "template it starts from (base)", WORD_TEMPLATE},
    {KEY_FROM, "from", "SNAPSHOT", "start from a snapshot instead", WORD_SNAPSHOT},
    {KEY_KEEP, "keep", NULL, "do not kill the sandbox; its id goes to stderr", WORD_NONE},
    {'i', "stdin", NULL, "pass stdin on even if it is a terminal", WORD_NONE},
    {'n', "no-stdin", NULL, "leave stdin alone", WORD_NONE},
    {KEY_TTL, "ttl", "TIME", "end it after that time, whatever happens (90, 15m, 2h)", WORD_NONE},
    {KEY_TIMEOUT, "timeout", "TIME", "kill the command after that time; exit code 124", WORD_NONE},
    {'e', "env", "NAME=VALUE", "set a variable (repeat)", WORD_NONE},
    {'C', "cwd", "DIR", "directory the command starts in", WORD_NONE},
    {'u', "user", "USER", "user it runs as (root)", WORD_NONE},
    {'m', "meta", "KEY=VALUE", "metadata (repeat)", WORD_NONE},
    {'v', "volume", "NAME:PATH[:ro]", "attach a volume (repeat)", WORD_VOLUME},
    {KEY_EGRESS, "egress", "off|open|HOST,...", "what it may reach", WORD_NONE},
    {0},
};

static int run(struct cli *c)
{
	autojson json_t *create = NULL, *body = NULL, *sb = NULL;
	autoclose int sigfd = -1;
	struct panda_error e;
	int code;

	if (execio_body(c, c->argc, c->argv, &body) || cli_create_body(c, &create) || cli_open(c))
		return CLI_PANDA;
	/* From here on no signal ends us before the sandbox is killed. */
	sigfd = execio_signals();
	if (panda_create(c->panda, NULL, create, &sb, &e) < 0)
		return cli_say(c, &e);
	code =
	    execio_run(c, js(sb, "id"), body,
	               (cli_has(c, 'i') ? EXECIO_STDIN : 0) | (cli_has(c, 'n') ? EXECIO_NONE : 0));
	if (cli_has(c, KEY_KEEP)) {
		fprintf(stderr, "%s\n", js(sb, "id"));
		return code;
	}
	if (panda_kill(c->panda, js(sb, "id"), &e) < 0 && e.status != 404) {
		cli_say(c, &e);
		cli_die("sandbox %s is still there: panda kill %.8s", js(sb, "id"), js(sb, "id"));
		return code ? code : CLI_PANDA;
	}
	return code;
}

const struct cli_command command_run = {
    .name = "run",
    .args = "[OPTION]... [--] COMMAND...",
    .what = "run one command in a sandbox of its own",
    .about =
	"Starts a sandbox, runs one command in it with our stdin (unless that is a terminal),\n"
	"stdout and stderr, and kills the sandbox. One word is a line for the shell.",
    .opts = opts,
    .guest = true,
    .examples = "  panda run -- python3 -c 'print(6 * 7)'\n"
		"  panda run --egress off --timeout 30 -- sh -s <script.sh\n",
    .run = run,
};
