/*
 * panda logs - what a sandbox's kernel wrote to its console
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'f', "follow", NULL, "stay, and print what comes until interrupted", WORD_NONE},
    {'n', "tail", "N", "print only the last N lines", WORD_NONE},
    {0},
};

struct printer {
	bool clean;
	struct show_text text;
};

/* A guest wrote it: on a terminal, nothing but text and line ends gets through. */
static int print(void *arg, const void *data, size_t n)
{
	struct printer *p = arg;

	if (p->clean)
		show_text(&p->text, data, n, stdout);
	else
		fwrite(data, 1, n, stdout);
	return fflush(stdout) == 0 ? 0 : -errno;
}

static int print_event(void *arg, const struct panda_event *ev)
{
	autojson json_t *j = json_loadb(ev->data, ev->len, JSON_ALLOW_NUL, NULL);
	const json_t *line = json_object_get(j, "line");
	size_t n = json_string_length(line);
	int r;

	if (!json_is_string(line))
		return 0; /* "open" */
	r = print(arg, json_string_value(line), n);
	if (!r && (!n || json_string_value(line)[n - 1] != '\n'))
		r = print(arg, "\n", 1);
	return r;
}

static int print_json(void *arg, const struct panda_event *ev)
{
	printf("%s\n", ev->data);
	return fflush(stdout) == 0 ? 0 : -errno;
}

static int run(struct cli *c)
{
	struct printer printer = {.clean = isatty(1)};
	bool follow = cli_has(c, 'f');
	autofree char *path = NULL;
	struct panda_error e;
	char id[CLI_ID];
	long tail = 0;
	int r;

	if (cli_num(c, 'n', 1, 1000000, &tail) || cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	path =
	    tail ? panda_path("/v1/sandboxes/%s/logs?follow=%d&tail=%d", id, (int)follow, (int)tail)
		 : panda_path("/v1/sandboxes/%s/logs?follow=%d", id, (int)follow);
	if (!path)
		return cli_die("out of memory");
	if (follow)
		r = panda_events(c->panda, "GET", path, NULL, c->json ? print_json : print_event,
		                 &printer, &e);
	else
		r = panda_download(c->panda, path, print, &printer, &e);
	if (r < 0)
		return !strcmp(e.code, "stopped") ? cli_unwritten(-r) : cli_say(c, &e);
	return CLI_OK;
}

const struct cli_command command_logs = {
    .name = "logs",
    .args = "[OPTION]... ID",
    .what = "print the console of a sandbox's kernel",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda logs -n 20 3f2a\n  panda logs -f 3f2a\n",
    .run = run,
};
