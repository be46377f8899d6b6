/*
 * panda exec - a command in a sandbox
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/execio.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'i', "stdin", NULL, "pass stdin on even if it is a terminal", WORD_NONE},
    {'n', "no-stdin", NULL, "leave stdin alone", WORD_NONE},
    {'t', "tty", NULL, "give it a terminal of its own, as `panda shell` does", WORD_NONE},
    {'d', "detach", NULL, "leave it running; prints the number of the exec", WORD_NONE},
    {KEY_ATTACH, "attach", "EXEC", "print the output of a detached one, from its start", WORD_NONE},
    {KEY_SIGNAL, "signal", "SIG:EXEC", "send TERM, INT, KILL, ... to a detached one", WORD_NONE},
    {'e', "env", "NAME=VALUE", "set a variable (repeat)", WORD_NONE},
    {KEY_ENV_FILE, "env-file", "FILE", "set the variables of its lines NAME=VALUE (repeat)",
     WORD_FILE},
    {'C', "cwd", "DIR", "directory it starts in", WORD_NONE},
    {'u', "user", "USER", "user it runs as (root)", WORD_NONE},
    {KEY_TIMEOUT, "timeout", "TIME", "kill it after that time; the exit code is 124", WORD_NONE},
    {0},
};

/* Takes the body. */
static int detach(struct cli *c, const char *id, json_t *body)
{
	autojson json_t *reply = NULL;

	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/execs", id), body, &reply))
		return CLI_PANDA;
	return cli_made(c, reply, "id");
}

static int send_signal(struct cli *c, const char *id)
{
	const char *arg = cli_str(c, KEY_SIGNAL, ""), *colon = strchr(arg, ':');
	autojson json_t *body = NULL;

	if (!colon || colon == arg || !colon[1])
		return cli_bad(c, "--signal wants SIG:EXEC, like TERM:3, not '%.40s'", arg);
	body = json_pack("{s:s%, s:b}", "signal", arg, (size_t)(colon - arg), "tree", 1);
	return cli_send(c, "POST", panda_path("/v1/sandboxes/%s/execs/%s/signal", id, colon + 1),
	                take_ptr(body), NULL);
}

static int on_terminal(struct cli *c, const char *id)
{
	autofree char *line = NULL;
	char **argv = c->argv;
	int argc = c->argc;

	if (cli_has(c, 'd') || c->json)
		return cli_bad(c, "--tty goes with neither --detach nor --json");
	if (cli_has(c, 'e') || cli_has(c, KEY_ENV_FILE) || cli_has(c, 'C') || cli_has(c, 'u') ||
	    cli_has(c, KEY_TIMEOUT))
		return cli_bad(c, "--tty goes with none of --env, --cwd, --user and --timeout: say "
		                  "it in the command");
	if (argc && !strcmp(argv[0], "--")) {
		argc--;
		argv++;
	}
	if (argc > 1 && !(line = execio_quote(argc, argv)))
		return cli_die("out of memory");
	return execio_terminal(c, id, line ? line : argc ? argv[0] : NULL);
}

static int run(struct cli *c)
{
	bool detached = cli_has(c, 'd'), attach = cli_has(c, KEY_ATTACH);
	autojson json_t *body = NULL;
	char id[CLI_ID];

	if (cli_first_id(c, id))
		return CLI_PANDA;
	if ((attach || cli_has(c, KEY_SIGNAL)) && c->argc)
		return cli_bad(c, "--attach and --signal are for a command that runs already");
	if (cli_has(c, KEY_SIGNAL))
		return send_signal(c, id);
	if (attach)
		return execio_attach(c, id, cli_str(c, KEY_ATTACH, ""), cli_has(c, 'i'));
	if (cli_has(c, 't'))
		return on_terminal(c, id);
	if (execio_body(c, c->argc, c->argv, &body))
		return CLI_PANDA;
	if (detached)
		return detach(c, id, take_ptr(body));
	return execio_run(c, id, body,
	                  (cli_has(c, 'i') ? EXECIO_STDIN : 0) |
	                      (cli_has(c, 'n') ? EXECIO_NONE : 0));
}

const struct cli_command command_exec = {
    .name = "exec",
    .args = "[OPTION]... ID [--] COMMAND...",
    .what = "run a command in a sandbox; its exit code is ours",
    .about =
	"Runs a command with our stdout and stderr, and with our stdin unless that is a terminal.\n"
	"One word is a line for the shell; several are a program and its arguments. It ends when\n"
	"we do, but with --detach, which survives everything, a fork and a hibernation, too.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .guest = true,
    .examples = "  panda exec 3f2a 'ls /etc | wc -l'\n"
		"  n=$(panda exec -d 3f2a -- sleep 60) && panda exec --attach $n 3f2a\n",
    .run = run,
};
