/*
 * panda kill - ends sandboxes, nothing of them is left
 */
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {KEY_ALL, "all", NULL, "end all that `panda ls` shows", WORD_NONE},
    {'y', "yes", NULL, "do not ask before", WORD_NONE},
    {0},
};

static int kill_one(struct cli *c, const char *id, bool gone_is_fine, json_t *done)
{
	struct panda_error e;

	if (panda_kill(c->panda, id, &e) < 0 && !(gone_is_fine && e.status == 404))
		return cli_say(c, &e);
	json_array_append_new(done, json_string(id));
	if (!c->json)
		printf("%s\n", id);
	return 0;
}

static int kill_all(struct cli *c, json_t *done)
{
	autojson json_t *reply = NULL;
	struct panda_error e;
	const json_t *list;
	json_t *sb;
	size_t i;
	int code = CLI_OK;

	if (panda_list(c->panda, &reply, &e) < 0)
		return cli_say(c, &e);
	list = cli_list(reply, "items");
	if (!json_array_size(list))
		return CLI_OK;
	/* A script that kills all says so. */
	if (!cli_has(c, 'y') && !isatty(0))
		return cli_bad(c, "stdin is no terminal to ask on: --all wants --yes here");
	if (!cli_sure(c, "Kill %zu sandbox%s?", json_array_size(list),
	              json_array_size(list) == 1 ? "" : "es"))
		return CLI_PANDA;
	json_array_foreach((json_t *)list, i, sb)
		if (kill_one(c, js(sb, "id"), true, done))
			code = CLI_PANDA;
	return code;
}

static int run(struct cli *c)
{
	autojson json_t *done = json_array();
	char id[CLI_ID];
	int code = CLI_OK;

	if (cli_has(c, KEY_ALL) ? cli_args(c, 0, 0) : cli_args(c, 1, -1))
		return CLI_PANDA;
	if (cli_open(c))
		return CLI_PANDA;
	if (cli_has(c, KEY_ALL))
		code = kill_all(c, done);
	for (int i = 0; i < c->argc; i++)
		if (cli_id(c, c->argv[i], id) || kill_one(c, id, false, done))
			code = CLI_PANDA;
	if (c->json)
		cli_json(done);
	return code;
}

const struct cli_command command_kill = {
    .name = "kill",
    .args = "ID... | --all",
    .what = "end sandboxes; nothing of them is left",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda kill 3f2a 91c0\n  panda kill --all --yes\n",
    .run = run,
};
