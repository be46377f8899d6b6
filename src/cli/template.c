/*
 * panda template - what sandboxes start from
 */
#include "base/cleanup.h"
#include "cli/commands.h"
#include "cli/show.h"

static int ls(struct cli *c)
{
	autojson json_t *reply = NULL;
	struct table t;
	char size[16];
	json_t *v;
	size_t i;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/templates"), NULL, &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(cli_list(reply, "items"));
		return CLI_OK;
	}
	table_init(&t, "NAME CPU MEMORY DISK RUNNER BAKED WHAT");
	json_array_foreach((json_t *)cli_list(reply, "items"), i, v)
	{
		const char *what = js(v, "description");

		show_size(ji(v, "size_bytes"), size, sizeof(size));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%lld", ji(v, "cpu"));
		table_add(&t, "%lldM", ji(v, "memory_mb"));
		table_add(&t, "%s", size);
		table_add(&t, "%s", js(v, "runner"));
		table_add(&t, "%s", json_is_true(json_object_get(v, "baked")) ? "yes" : "no");
		table_add(&t, "%.60s", *what ? what : js(v, "label"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int get(struct cli *c)
{
	autojson json_t *v = NULL;

	if (cli_args(c, 1, 1) ||
	    cli_call(c, "GET", panda_path("/v1/templates/%s", c->argv[0]), NULL, &v))
		return CLI_PANDA;
	cli_json(v);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	int code = CLI_OK;

	if (cli_args(c, 1, -1))
		return CLI_PANDA;
	for (int i = 0; i < c->argc; i++)
		if (cli_call(c, "DELETE", panda_path("/v1/templates/%s", c->argv[i]), NULL, NULL))
			code = CLI_PANDA;
	return code;
}

static const struct cli_verb verbs[] = {
    {"ls", "", "list templates", ls, WORD_NONE},
    {"get", "NAME", "show one", get, WORD_TEMPLATE},
    {"rm", "NAME...", "remove templates of your own", rm, WORD_TEMPLATE},
    {0},
};

const struct cli_command command_template = {
    .name = "template",
    .args = "[ARG]...",
    .what = "what sandboxes start from: ls, get, rm",
    .verbs = verbs,
    .examples = "  panda template ls\n  panda create --template python-data\n",
};
