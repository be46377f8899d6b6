/*
 * panda snapshot - moments of a sandbox, kept
 */
#include "base/cleanup.h"
#include "cli/commands.h"
#include "cli/show.h"

static const struct cli_opt opts[] = {
    {KEY_NAME, "name", "NAME", "a name for it (create)", WORD_NONE},
    {KEY_SANDBOX, "sandbox", "ID", "only those of a sandbox (ls)", WORD_SANDBOX},
    {0},
};

int cli_snapshot_id(struct cli *c, const char *text, char id[CLI_ID])
{
	autojson json_t *reply = NULL;

	if (cli_call(c, "GET", panda_path("/v1/snapshots"), NULL, &reply))
		return CLI_PANDA;
	return cli_pick(c, cli_list(reply, "snapshots"), "snapshot", text, id);
}

static int create(struct cli *c)
{
	autojson json_t *snap = NULL;
	struct panda_error e;
	char id[CLI_ID];

	if (cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	panda_set_timeout(c->panda, 10 * 60 * 1000); /* gigabytes take their time */
	if (panda_snapshot(c->panda, id, cli_str(c, KEY_NAME, NULL), &snap, &e) < 0)
		return cli_say(c, &e);
	if (c->json)
		cli_json(snap);
	else
		printf("%s\n", js(snap, "id"));
	return CLI_OK;
}

static int ls(struct cli *c)
{
	const char *of = cli_str(c, KEY_SANDBOX, NULL);
	autojson json_t *reply = NULL;
	char id[CLI_ID], age[16], size[16];
	time_t now = time(NULL);
	const json_t *list;
	struct table t;
	json_t *s;
	size_t i;
	int len;

	if (cli_args(c, 0, 0) || (of && cli_id(c, of, id)) ||
	    cli_call(c, "GET",
	             of ? panda_path("/v1/snapshots?sandbox_id=%s", id)
	                : panda_path("/v1/snapshots"),
	             NULL, &reply))
		return CLI_PANDA;
	list = cli_list(reply, "snapshots");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	len = show_short(list);
	table_init(&t, "ID TEMPLATE SIZE AGE SANDBOX NAME");
	json_array_foreach((json_t *)list, i, s)
	{
		show_age(js(s, "created_at"), now, age, sizeof(age));
		show_size(ji(s, "size_bytes"), size, sizeof(size));
		table_add(&t, "%.*s", len, js(s, "id"));
		table_add(&t, "%s", js(s, "template"));
		table_add(&t, "%s", size);
		table_add(&t, "%s", age);
		table_add(&t, "%.8s", js(s, "sandbox_id"));
		table_add(&t, "%s", js(s, "name"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	char id[CLI_ID];
	int code = CLI_OK;

	if (cli_args(c, 1, -1))
		return CLI_PANDA;
	for (int i = 0; i < c->argc; i++)
		if (cli_snapshot_id(c, c->argv[i], id) ||
		    cli_call(c, "DELETE", panda_path("/v1/snapshots/%s", id), NULL, NULL))
			code = CLI_PANDA;
	return code;
}

static const struct cli_verb verbs[] = {
    {"create", "ID", "save a sandbox, which goes on; prints the id", create, WORD_SANDBOX},
    {"ls", "", "list snapshots", ls, WORD_NONE},
    {"rm", "SNAPSHOT...", "remove snapshots", rm, WORD_SNAPSHOT},
    {0},
};

const struct cli_command command_snapshot = {
    .name = "snapshot",
    .args = "[OPTION]... [ARG]...",
    .what = "save moments of a sandbox: create, ls, rm",
    .about =
	"Saves memory and disks of a sandbox. Any number of sandboxes can be started from that.",
    .opts = opts,
    .verbs = verbs,
    .examples = "  panda snapshot create 3f2a --name ready\n"
		"  panda create --from ready\n",
};
