/*
 * panda run - a sandbox for one command
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/execio.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'t', "template", "NAME", "template it starts from (base)", WORD_TEMPLATE},
    {KEY_FROM, "from", "SNAPSHOT", "start from a snapshot instead", WORD_SNAPSHOT},
    {KEY_TTY, "tty", NULL, "give the command a terminal of its own; -it is the same", WORD_NONE},
    {'d', "detach", NULL, "leave the command running in a sandbox that stays; prints its id", 0},
    {KEY_NAME, "name", "NAME", "a name to call the sandbox by", WORD_NONE},
    {KEY_KEEP, "keep", NULL, "do not kill the sandbox; its id goes to stderr", WORD_NONE},
    {KEY_RM, "rm", NULL, "kill the sandbox at the end, as it is done without --keep, too", 0},
    {'p', "port", "PORT", "declare a port; where it is reached goes to stderr (repeat)", 0},
    {'i', "stdin", NULL, "pass stdin on even if it is a terminal", WORD_NONE},
    {'n', "no-stdin", NULL, "leave stdin alone", WORD_NONE},
    {KEY_TTL, "ttl", "TIME", "end it after that time, whatever happens (90, 15m, 2h)", WORD_NONE},
    {KEY_TIMEOUT, "timeout", "TIME", "kill the command after that time; exit code 124", WORD_NONE},
    {'e', "env", "NAME=VALUE", "set a variable (repeat)", WORD_NONE},
    {KEY_ENV_FILE, "env-file", "FILE", "set the variables of its lines NAME=VALUE (repeat)",
     WORD_FILE},
    {'C', "cwd", "DIR", "directory the command starts in", WORD_NONE},
    {'w', "workdir", "DIR", "the same as --cwd", WORD_NONE},
    {'u', "user", "USER", "user it runs as (root)", WORD_NONE},
    {'m', "meta", "KEY=VALUE", "metadata (repeat)", WORD_NONE},
    {'v', "volume", "NAME:PATH[:ro]", "attach a volume (repeat)", WORD_VOLUME},
    {KEY_EGRESS, "egress", "off|open|HOST,...", "what it may reach", WORD_NONE},
    {0},
};

struct run_order {
	const char *template; /* the first word, when it is one; NULL: --template, or base */
	int argc;             /* the command */
	char **argv;
	const char *id; /* of the sandbox, when there is one */
};

/*
 * As docker has it, the first word may be what to start from: when a template has this name and no
 * -- stands before it. One word alone is a line for the shell, unless there is a terminal.
 */
static int split(struct cli *c, struct run_order *r)
{
	bool behind = c->argc && !strcmp(c->argv[-1], "--");
	autojson json_t *reply = NULL;
	json_t *t;
	size_t i;

	r->argc = c->argc;
	r->argv = c->argv;
	if (behind || c->argc < (cli_has(c, KEY_TTY) ? 1 : 2) || cli_has(c, 't') ||
	    cli_has(c, KEY_FROM) || strpbrk(c->argv[0], "/ "))
		return 0;
	if (cli_call(c, "GET", panda_path("/v1/templates"), &reply))
		return CLI_PANDA;
	json_array_foreach((json_t *)cli_list(reply, "items"), i, t)
		if (!strcmp(js(t, "name"), c->argv[0]))
			r->template = c->argv[0];
	if (r->template) {
		r->argc--;
		r->argv++;
	}
	if (r->argc && !strcmp(r->argv[0], "--")) {
		r->argc--;
		r->argv++;
	}
	return 0;
}

/* What does not go together; said. */
static int check(struct cli *c, const struct run_order *r)
{
	if (cli_has(c, KEY_TTY) && (cli_has(c, 'd') || c->json))
		return cli_bad(c, "--tty goes with neither --detach nor --json");
	if (cli_has(c, KEY_TTY) && (cli_has(c, 'u') || cli_has(c, KEY_TIMEOUT)))
		return cli_bad(c, "--tty goes with neither --user nor --timeout: say it in the "
		                  "command");
	if (cli_has(c, KEY_RM) && (cli_has(c, KEY_KEEP) || cli_has(c, 'd')))
		return cli_bad(c, "--rm kills the sandbox at the end, --keep and --detach do not");
	if (!r->argc && !cli_has(c, KEY_TTY))
		return cli_bad(c, "which command? Put it behind --; -it gives a shell");
	return 0;
}

static int declare_ports(struct cli *c, const struct run_order *r)
{
	for (size_t i = 0; i < c->ngiven; i++) {
		autojson json_t *port = NULL;
		char *end;
		long n;

		if (c->given[i].key != 'p')
			continue;
		n = strtol(c->given[i].arg, &end, 10);
		if (*end || n < 1 || n > 65535)
			return cli_bad(c,
			               "--port is a number of the sandbox, not '%.40s'; `panda "
			               "port-forward` leads a port of this host there",
			               c->given[i].arg);
		if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/ports", r->id),
		             json_pack("{s:I}", "port", (json_int_t)n), &port))
			return CLI_PANDA;
		fprintf(stderr, "port %ld: %s%s\n", n, panda_url(c->panda), js(port, "proxy_url"));
	}
	return 0;
}

static int detach(struct cli *c, const struct run_order *r, const json_t *sb, json_t *body)
{
	autojson json_t *exec = NULL, *both = NULL;

	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/execs", r->id), json_incref(body),
	             &exec))
		return CLI_PANDA;
	both = json_pack("{s:O, s:O, s:s}", "sandbox", sb, "exec", exec, "id", r->id);
	return cli_made(c, both, "id");
}

static int on_terminal(struct cli *c, const struct run_order *r)
{
	autofree char *words = r->argc > 1 ? execio_quote(r->argc, r->argv) : NULL, *line = NULL;
	const char *dir = execio_cwd(c), *cmd = words ? words : r->argc ? r->argv[0] : NULL;

	if (dir) {
		autofree char *quoted = execio_quote(1, (char **)&dir);

		if (!quoted || asprintf(&line, "cd %s && %s", quoted,
		                        cmd ? cmd : "exec $(command -v bash || echo sh) -l") < 0)
			return cli_die("out of memory");
	}
	return execio_terminal(c, r->id, line ? line : cmd);
}

static int inside(struct cli *c, const struct run_order *r, const json_t *sb, json_t *body)
{
	if (declare_ports(c, r))
		return CLI_PANDA;
	if (cli_has(c, KEY_TTY))
		return on_terminal(c, r);
	if (cli_has(c, 'd'))
		return detach(c, r, sb, body);
	return execio_run(c, r->id, body,
	                  (cli_has(c, 'i') ? EXECIO_STDIN : 0) |
	                      (cli_has(c, 'n') ? EXECIO_NONE : 0));
}

static int run(struct cli *c)
{
	autojson json_t *create = NULL, *body = NULL, *sb = NULL;
	autoclose int sigfd = -1;
	struct panda_error e;
	struct run_order r = {0};
	int code;

	if (split(c, &r) || check(c, &r) || (r.argc && execio_body(c, r.argc, r.argv, &body)) ||
	    cli_create_body(c, &create) || cli_open(c))
		return CLI_PANDA;
	if (r.template)
		json_object_set_new(create, "template", json_string(r.template));
	/* From here on no signal ends us before the sandbox is killed. */
	sigfd = execio_signals();
	if (panda_create(c->panda, NULL, create, &sb, &e) < 0)
		return cli_say(c, &e);
	r.id = js(sb, "id");
	code = inside(c, &r, sb, body);
	if (cli_has(c, 'd') && code == CLI_OK)
		return code;
	if (cli_has(c, KEY_KEEP)) {
		fprintf(stderr, "%s\n", r.id);
		return code;
	}
	if (panda_kill(c->panda, r.id, &e) < 0 && e.status != 404) {
		cli_say(c, &e);
		cli_die("sandbox %s is still there: panda kill %.8s", r.id, r.id);
		return code ? code : CLI_PANDA;
	}
	return code;
}

const struct cli_command command_run = {
    .name = "run",
    .args = "[OPTION]... [TEMPLATE] [--] [COMMAND...]",
    .what = "run one command in a sandbox of its own",
    .about =
	"Starts a sandbox, runs one command in it with our stdin (unless that is a terminal),\n"
	"stdout and stderr, and kills the sandbox. One word is a line for the shell. The first of\n"
	"several is a template when there is one of that name; behind -- all words are the\n"
	"command. With -it it has a terminal, and without a command that is a login shell.",
    .opts = opts,
    .guest = true,
    .docker = true,
    .examples = "  panda run -it --name try python-data\n"
		"  panda run --egress off --timeout 30 -- sh -s <script.sh\n",
    .run = run,
};
