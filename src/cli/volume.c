/*
 * panda volume - disks that outlive sandboxes
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/commands.h"
#include "cli/show.h"

static const struct cli_opt opts[] = {
    {'s', "size", "MIB", "its size (create; 256)", WORD_NONE},
    {0},
};

static void holders(const json_t *v, char *buf, size_t n)
{
	json_t *list = json_object_get(v, "mounted_by"), *id;
	size_t i, at = 0;

	*buf = 0;
	json_array_foreach(list, i, id) if (at < n) at +=
	    (size_t)snprintf(buf + at, n - at, "%s%.8s", i ? "," : "", json_string_value(id));
}

static int create(struct cli *c)
{
	autojson json_t *body = NULL, *v = NULL;
	long mb = 256;

	if (cli_args(c, 1, 1) || cli_num(c, 's', 1, 1 << 20, &mb))
		return CLI_PANDA;
	body = json_pack("{s:s, s:I}", "name", c->argv[0], "size_mb", (json_int_t)mb);
	if (!body)
		return cli_bad(c, "the name is not UTF-8");
	if (cli_call(c, "POST", panda_path("/v1/volumes"), body, &v))
		return CLI_PANDA;
	if (c->json)
		cli_json(v);
	else
		printf("%s\n", js(v, "name"));
	return CLI_OK;
}

static int show(const json_t *list)
{
	char age[16], size[16], used[16], by[128];
	time_t now = time(NULL);
	struct table t;
	json_t *v;
	size_t i;

	table_init(&t, "NAME SIZE USED AGE SANDBOXES");
	json_array_foreach((json_t *)list, i, v)
	{
		show_size(ji(v, "size_mb") << 20, size, sizeof(size));
		show_size(ji(v, "used_bytes"), used, sizeof(used));
		show_age(js(v, "created_at"), now, age, sizeof(age));
		holders(v, by, sizeof(by));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%s", size);
		table_add(&t, "%s", used);
		table_add(&t, "%s", age);
		table_add(&t, "%s", by);
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int ls(struct cli *c)
{
	autojson json_t *reply = NULL;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/volumes"), NULL, &reply))
		return CLI_PANDA;
	if (!c->json)
		return show(cli_list(reply, "items"));
	cli_json(cli_list(reply, "items"));
	return CLI_OK;
}

static int get(struct cli *c)
{
	autojson json_t *v = NULL, *list = NULL;

	if (cli_args(c, 1, 1) ||
	    cli_call(c, "GET", panda_path("/v1/volumes/%s", c->argv[0]), NULL, &v))
		return CLI_PANDA;
	list = json_pack("[O]", v);
	if (!c->json)
		return show(list);
	cli_json(v);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	return cli_delete_each(c, "/v1/volumes/%s");
}

static const struct cli_verb verbs[] = {
    {"create", "NAME", "make a volume", create, WORD_NONE},
    {"ls", "", "list volumes, and who uses them", ls, WORD_NONE},
    {"get", "NAME", "show one", get, WORD_VOLUME},
    {"rm", "NAME...", "remove volumes and what is on them", rm, WORD_VOLUME},
    {0},
};

const struct cli_command command_volume = {
    .name = "volume",
    .args = "[OPTION]... [ARG]...",
    .what = "disks that outlive sandboxes: create, ls, get, rm",
    .opts = opts,
    .verbs = verbs,
    .examples = "  panda volume create data --size 1024\n"
		"  panda create --volume data:/workspace\n",
};
