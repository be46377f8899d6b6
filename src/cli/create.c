/*
 * panda create - a sandbox that stays
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'t', "template", "NAME", "template it starts from (base)", WORD_TEMPLATE},
    {KEY_FROM, "from", "SNAPSHOT", "start from a snapshot instead", WORD_SNAPSHOT},
    {KEY_NAME, "name", "NAME", "a name to call it by", WORD_NONE},
    {KEY_TTL, "ttl", "TIME", "end it after that time, whatever happens (90, 15m, 2h, 1d)", 0},
    {KEY_IDLE, "idle", "TIME", "end it after that time without use (15m)", WORD_NONE},
    {KEY_AUTO_HIBERNATE, "auto-hibernate", "TIME", "hibernate it after that time without use", 0},
    {KEY_PERSISTENT, "persistent", NULL, "do not end it when it is idle", WORD_NONE},
    {KEY_CHECKPOINTS, "checkpoints", NULL, "take a checkpoint before every command", WORD_NONE},
    {'e', "env", "NAME=VALUE", "set a variable of every command in it (repeat)", WORD_NONE},
    {KEY_ENV_FILE, "env-file", "FILE", "set the variables of its lines NAME=VALUE (repeat)",
     WORD_FILE},
    {'m', "meta", "KEY=VALUE", "metadata (repeat)", WORD_NONE},
    {'v', "volume", "NAME:PATH[:ro]", "attach a volume (repeat)", WORD_VOLUME},
    {KEY_EGRESS, "egress", "off|open|HOST,...", "what it may reach", WORD_NONE},
    {0},
};

static int add_volumes(struct cli *c, json_t *body)
{
	json_t *list = NULL;

	for (size_t i = 0; i < c->ngiven; i++) {
		json_t *v;

		if (c->given[i].key != 'v')
			continue;
		v = cli_volume(c, c->given[i].arg);
		if (!v)
			return CLI_PANDA;
		if (!list)
			json_object_set_new(body, "volumes", list = json_array());
		json_array_append_new(list, v);
	}
	return 0;
}

static int add_egress(struct cli *c, json_t *body)
{
	char *given = (char *)cli_str(c, KEY_EGRESS, NULL);

	return given ? cli_egress(c, 1, &given, body) : 0;
}

static int add_seconds(struct cli *c, int key, const char *field, json_t *body)
{
	long s = -1;

	if (cli_seconds(c, key, &s))
		return CLI_PANDA;
	if (s >= 0)
		json_object_set_new(body, field, json_integer(s));
	return 0;
}

static int add_metadata(struct cli *c, json_t *body)
{
	json_t *map;

	if (!cli_has(c, 'm'))
		return 0;
	json_object_set_new(body, "metadata", map = json_object());
	return cli_pairs(c, 'm', map);
}

static int add_env(struct cli *c, json_t *body)
{
	json_t *map;

	if (!cli_has(c, 'e') && !cli_has(c, KEY_ENV_FILE))
		return 0;
	json_object_set_new(body, "env", map = json_object());
	return cli_env(c, map);
}

int cli_create_body(struct cli *c, json_t **ret)
{
	autojson json_t *body = json_object();
	const char *from = cli_str(c, KEY_FROM, NULL), *name = cli_str(c, KEY_NAME, NULL);
	char snapshot[CLI_ID];

	if (!body)
		return cli_die("out of memory");
	if (from && cli_has(c, 't'))
		return cli_bad(c,
		               "--from and --template exclude each other: a snapshot has its own");
	if (from && cli_snapshot_id(c, from, snapshot))
		return CLI_PANDA;
	if (json_object_set_new(body, from ? "from_snapshot" : "template",
	                        json_string(from ? snapshot : cli_str(c, 't', "base"))) < 0 ||
	    (name && json_object_set_new(body, "name", json_string(name)) < 0))
		return cli_bad(c, "names must be UTF-8");
	if (add_seconds(c, KEY_TTL, "ttl_seconds", body) ||
	    add_seconds(c, KEY_IDLE, "idle_seconds", body) ||
	    add_seconds(c, KEY_AUTO_HIBERNATE, "auto_hibernate_seconds", body) ||
	    add_env(c, body) || add_metadata(c, body) || add_volumes(c, body) ||
	    add_egress(c, body))
		return CLI_PANDA;
	if (cli_has(c, KEY_CHECKPOINTS))
		json_object_set_new(body, "checkpoints", json_string("auto"));
	if (cli_has(c, KEY_PERSISTENT))
		json_object_set_new(body, "persistent", json_true());
	*ret = take_ptr(body);
	return 0;
}

static int run(struct cli *c)
{
	autojson json_t *body = NULL, *sb = NULL;
	struct panda_error e;

	if (c->argc)
		return cli_bad(c, "unexpected argument '%.60s'; --template names a template",
		               c->argv[0]);
	if (cli_create_body(c, &body) || cli_open(c))
		return CLI_PANDA;
	if (panda_create(c->panda, NULL, body, &sb, &e) < 0)
		return cli_say(c, &e);
	return cli_made(c, sb, "id");
}

const struct cli_command command_create = {
    .name = "create",
    .args = "[OPTION]...",
    .what = "start a sandbox that stays; prints its id",
    .about =
	"Starts a sandbox and prints its id once it answers. It stays until it is killed, its\n"
	"ttl is over, or no client has used it for its idle time.",
    .opts = opts,
    .examples = "  panda create --template python-data --ttl 2h --name notebook\n"
		"  id=$(panda create --egress off) && panda exec $id -- uname -a\n",
    .run = run,
};
