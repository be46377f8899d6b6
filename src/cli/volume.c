/*
 * panda volume - disks that outlive sandboxes
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'s', "size", "SIZE", "size it is made with (create; 256M) or grows to (resize): 512M, 10G", 0},
    {KEY_FROM, "from", "NAME", "start with the contents of this volume or snapshot (create)",
     WORD_VOLUME},
    {KEY_ALL, "all", NULL, "list snapshots of volumes, too (ls)", WORD_NONE},
    {'f', "force", NULL, "detach it even if processes use it; they get errors (detach)", WORD_NONE},
    {'y', "yes", NULL, "do not ask before (rm)", WORD_NONE},
    {0},
};

json_t *cli_volume(struct cli *c, const char *arg)
{
	autofree char *text = strdup(arg);
	char *path, *mode;
	json_t *v;

	if (!text) {
		cli_die("out of memory");
		return NULL;
	}
	path = strchr(text, ':');
	if (path)
		*path++ = 0;
	mode = path ? strrchr(path, ':') : NULL;
	if (mode && (!strcmp(mode, ":ro") || !strcmp(mode, ":rw")))
		*mode++ = 0;
	else
		mode = NULL;
	if (!*text || (path && *path != '/')) {
		cli_bad(c, "a volume is NAME, NAME:/PATH or NAME:/PATH:ro, not '%.80s'", arg);
		return NULL;
	}
	v = json_pack("{s:s, s:b}", "name", text, "read_only", mode && !strcmp(mode, "ro"));
	if (!v || (path && json_object_set_new(v, "path", json_string(path)) < 0)) {
		json_decref(v);
		cli_bad(c, "'%.80s' is not UTF-8", arg);
		return NULL;
	}
	return v;
}

static void holders(const json_t *v, char *buf, size_t n)
{
	json_t *list = json_object_get(v, "mounted_by"), *id;
	size_t i, at = 0;

	*buf = 0;
	json_array_foreach(list, i, id)
		if (at < n)
			at += (size_t)snprintf(buf + at, n - at, "%s%.8s", i ? "," : "",
			                       json_is_string(id) ? json_string_value(id) : "?");
}

/* What came of it: its name, or all of it. */
static int said(struct cli *c, const json_t *v)
{
	return cli_made(c, v, "name");
}

static int create(struct cli *c)
{
	const char *from = cli_str(c, KEY_FROM, NULL);
	autojson json_t *body = NULL, *v = NULL;
	long mb = from ? 0 : 256;

	if (cli_args(c, 1, 1) || cli_mib(c, 's', 1 << 20, &mb))
		return CLI_PANDA;
	body = json_pack("{s:s, s:s*}", "name", c->argv[0], "from", from);
	if (!body)
		return cli_bad(c, "the name is not UTF-8");
	if (mb)
		json_object_set_new(body, "size_mb", json_integer(mb));
	if (cli_send(c, "POST", panda_path("/v1/volumes"), take_ptr(body), &v))
		return CLI_PANDA;
	return said(c, v);
}

static int resize(struct cli *c)
{
	autojson json_t *v = NULL;
	long mb = 0;

	if (cli_args(c, 1, 1) || cli_mib(c, 's', 1 << 20, &mb))
		return CLI_PANDA;
	if (!mb)
		return cli_bad(c, "how large shall it be? Say so with --size SIZE");
	if (cli_send(c, "PATCH", panda_path("/v1/volumes/%s", c->argv[0]),
	             json_pack("{s:I}", "size_mb", (json_int_t)mb), &v))
		return CLI_PANDA;
	return said(c, v);
}

static int snapshot(struct cli *c)
{
	autojson json_t *v = NULL;

	if (cli_args(c, 1, 2) ||
	    cli_send(c, "POST", panda_path("/v1/volumes/%s/snapshots", c->argv[0]),
	             json_pack("{s:s*}", "name", c->argc > 1 ? c->argv[1] : NULL), &v))
		return CLI_PANDA;
	return said(c, v);
}

static int show(const json_t *list)
{
	char age[16], size[16], used[16], by[128];
	time_t now = time(NULL);
	struct table t;
	json_t *v;
	size_t i;

	table_init(&t, "NAME KIND SIZE USED AGE SANDBOXES");
	json_array_foreach((json_t *)list, i, v) {
		show_size(ji(v, "size_mb") << 20, size, sizeof(size));
		show_size(ji(v, "used_bytes"), used, sizeof(used));
		show_age(js(v, "created_at"), now, age, sizeof(age));
		holders(v, by, sizeof(by));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%s", js(v, "kind"));
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

	if (cli_args(c, 0, 1))
		return CLI_PANDA;
	if (cli_call(c, "GET",
	             c->argc ? panda_path("/v1/volumes/%s/snapshots", c->argv[0])
	                     : panda_path(cli_has(c, KEY_ALL) ? "/v1/volumes?snapshots=1"
	                                                      : "/v1/volumes"),
	             &reply))
		return CLI_PANDA;
	if (!c->json)
		return show(cli_list(reply, "items"));
	cli_json(cli_list(reply, "items"));
	return CLI_OK;
}

static int get(struct cli *c)
{
	autojson json_t *v = NULL, *list = NULL;

	if (cli_args(c, 1, 1) || cli_call(c, "GET", panda_path("/v1/volumes/%s", c->argv[0]), &v))
		return CLI_PANDA;
	list = json_pack("[O]", v);
	if (!c->json)
		return show(list);
	cli_json(v);
	return CLI_OK;
}

static int attach(struct cli *c)
{
	autojson json_t *body = NULL, *list = NULL;
	char id[CLI_ID];

	if (cli_args(c, 2, 2) || cli_first_id(c, id))
		return CLI_PANDA;
	body = cli_volume(c, c->argv[0]);
	if (!body ||
	    cli_send(c, "POST", panda_path("/v1/sandboxes/%s/volumes", id), take_ptr(body), &list))
		return CLI_PANDA;
	if (c->json)
		cli_json(list);
	return CLI_OK;
}

static int detach(struct cli *c)
{
	autojson json_t *reply = NULL;
	char id[CLI_ID];

	if (cli_args(c, 2, 2) || cli_first_id(c, id) ||
	    cli_call(c, "DELETE",
	             panda_path(cli_has(c, 'f') ? "/v1/sandboxes/%s/volumes/%s?force=1"
	                                        : "/v1/sandboxes/%s/volumes/%s",
	                        id, c->argv[0]),
	             &reply))
		return CLI_PANDA;
	return CLI_OK;
}

static int rm(struct cli *c)
{
	if (c->argc && !cli_sure(c, "Remove %d volume%s and what is on %s?", c->argc,
	                         c->argc == 1 ? "" : "s", c->argc == 1 ? "it" : "them"))
		return CLI_PANDA;
	return cli_delete_each(c, "/v1/volumes/%s");
}

static const struct cli_verb verbs[] = {
    {"create", "NAME", "make a volume, empty or with the contents of another one", create,
     WORD_NONE},
    {"ls", "[NAME]", "list volumes and the sandboxes that use them, or snapshots of one", ls,
     WORD_VOLUME},
    {"get", "NAME", "show everything about it", get, WORD_VOLUME},
    {"resize", "NAME", "let a volume grow, also while a sandbox uses it", resize, WORD_VOLUME},
    {"snapshot", "NAME [SNAPSHOT]", "keep what a volume holds now, for many readers and for clones",
     snapshot, WORD_VOLUME},
    {"attach", "ID NAME[:PATH[:ro]]", "mount a volume in a sandbox that runs", attach,
     WORD_SANDBOX},
    {"detach", "ID NAME", "unmount a volume in a sandbox that runs", detach, WORD_SANDBOX},
    {"rm", "NAME...", "remove volumes and snapshots, and what is on them", rm, WORD_VOLUME},
    {0},
};

const struct cli_command command_volume = {
    .name = "volume",
    .args = "[OPTION]... [ARG]...",
    .what = "disks that outlive sandboxes: create, ls, get, resize, snapshot, attach, detach, rm",
    .opts = opts,
    .verbs = verbs,
    .examples = "  panda volume create data --size 10G\n"
		"  panda create --volume data:/workspace\n",
};
