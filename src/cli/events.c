/*
 * panda events - what happened, and what happens
 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'f', "follow", NULL, "stay, and print what comes until interrupted", WORD_NONE},
    {'n', "tail", "N", "number of past events (50)", WORD_NONE},
    {0},
};

static void print(const json_t *ev)
{
	autofree char *text =
	    json_dumps(json_object_get(ev, "payload"), JSON_COMPACT | JSON_REAL_PRECISION(6));
	char type[64], payload[400];

	show_clean(js(ev, "type"), type, sizeof(type));
	show_clean(text && strcmp(text, "{}") != 0 ? text : "", payload, sizeof(payload));
	printf("%-24s %-8.8s  %-20s %s\n", js(ev, "time"), js(ev, "sandbox_id"), type, payload);
}

static int on_event(void *arg, const struct panda_event *ev)
{
	const struct cli *c = arg;
	autojson json_t *j = json_loadb(ev->data, ev->len, 0, NULL);

	if (strcmp(ev->name, "event") != 0 && strcmp(ev->name, "ev") != 0)
		return 0;
	if (c->json)
		printf("%s\n", ev->data); /* one on a line: it never ends */
	else
		print(j);
	return fflush(stdout) == 0 ? 0 : -errno;
}

static int run(struct cli *c)
{
	autojson json_t *reply = NULL;
	autofree char *path = NULL;
	struct panda_error e;
	char id[CLI_ID];
	long tail = 50;
	json_t *ev;
	size_t i;
	int r;

	if (cli_num(c, 'n', 0, 100000, &tail) || cli_args(c, 0, 1) || cli_open(c) ||
	    (c->argc && cli_id(c, c->argv[0], id)))
		return CLI_PANDA;
	path = c->argc
	           ? panda_path("/v1/sandboxes/%s/events?tail=%d&follow=%d", id, (int)tail,
	                        (int)cli_has(c, 'f'))
	           : panda_path("/v1/events?tail=%d&follow=%d", (int)tail, (int)cli_has(c, 'f'));
	if (!path)
		return cli_die("out of memory");
	if (cli_has(c, 'f')) {
		r = panda_events(c->panda, "GET", path, NULL, on_event, c, &e);
		if (r < 0)
			return !strcmp(e.code, "stopped") ? cli_unwritten(-r) : cli_say(c, &e);
		return CLI_OK;
	}
	if (panda_call(c->panda, "GET", path, NULL, &reply, &e) < 0)
		return cli_say(c, &e);
	if (c->json)
		cli_json(cli_list(reply, "events"));
	else
		json_array_foreach((json_t *)cli_list(reply, "events"), i, ev)
			print(ev);
	return CLI_OK;
}

const struct cli_command command_events = {
    .name = "events",
    .args = "[OPTION]... [ID]",
    .what = "print what happened to sandboxes, and what happens",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda events -n 20\n  panda events -f --json | jq -r .type\n",
    .run = run,
};
