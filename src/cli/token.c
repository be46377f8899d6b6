/*
 * panda token - keys to the server
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {KEY_LABEL, "label", "TEXT", "say what the token is for (create)", WORD_NONE},
    {KEY_SCOPE, "scope", "SCOPE", "what it may do: read, exec, sandbox or admin (create; as yours)",
     WORD_NONE},
    {KEY_SANDBOX, "sandbox", "ID", "make it a token of one sandbox (create)", WORD_SANDBOX},
    {KEY_TTL, "ttl", "TIME", "how long it works (create; always)", WORD_NONE},
    {KEY_TENANT, "tenant", "NAME", "tenant that the token is for (create; admins only)", WORD_NONE},
    {KEY_KEEP, "keep", NULL, "leave those that were made with it (rm)", WORD_NONE},
    {0},
};

static int show_secret(struct cli *c, const json_t *t)
{
	if (c->json) {
		cli_json(t);
		return CLI_OK;
	}
	printf("%s\n", js(t, "token"));
	fprintf(stderr, "This is the only time it is shown.\n");
	return CLI_OK;
}

/* Of --scope and --sandbox: a list, or NULL when neither is given. */
static int scopes(struct cli *c, json_t **ret)
{
	static const char *const words[] = {"read", "exec", "sandbox", "admin", NULL};
	const char *scope = cli_str(c, KEY_SCOPE, NULL), *box = cli_str(c, KEY_SANDBOX, NULL);
	const char *const *w = words;
	char id[CLI_ID];

	while (scope && *w && strcmp(scope, *w) != 0)
		w++;
	if (!*w)
		return cli_bad(c, "--scope is read, exec, sandbox or admin, not '%.40s'", scope);
	if (box && cli_id(c, box, id))
		return CLI_PANDA;
	if (!scope && !box)
		return 0;
	*ret = json_array();
	if (scope && !(box && strcmp(scope, "sandbox") == 0))
		json_array_append_new(*ret, json_string(scope));
	if (box)
		json_array_append_new(*ret, json_sprintf("sandbox:%s", id));
	return 0;
}

static int create(struct cli *c)
{
	const char *label = cli_str(c, KEY_LABEL, NULL);
	const char *tenant = cli_str(c, KEY_TENANT, NULL);
	autojson json_t *body = json_object(), *t = NULL, *list = NULL;
	long ttl = 0;

	if (cli_args(c, 0, 0) || cli_seconds(c, KEY_TTL, &ttl) || scopes(c, &list))
		return CLI_PANDA;
	if ((label && json_object_set_new(body, "label", json_string(label)) < 0) ||
	    (tenant && json_object_set_new(body, "tenant", json_string(tenant)) < 0) ||
	    (list && json_object_set(body, "scopes", list) < 0) ||
	    (ttl && json_object_set_new(body, "ttl_seconds", json_integer(ttl)) < 0))
		return cli_bad(c, "names must be UTF-8");
	if (cli_send(c, "POST", panda_path("/v1/me/tokens"), take_ptr(body), &t))
		return CLI_PANDA;
	return show_secret(c, t);
}

static int rotate(struct cli *c)
{
	autojson json_t *t = NULL;

	if (cli_args(c, 1, 1) ||
	    cli_call(c, "POST", panda_path("/v1/me/tokens/%s/rotate", c->argv[0]), &t))
		return CLI_PANDA;
	return show_secret(c, t);
}

/* "read,sandbox:4f0c..."; an admin's says no more than that. */
static void words_of(const json_t *scopes, char *ret, size_t cap)
{
	size_t n = 0, i;
	json_t *v;

	snprintf(ret, cap, "-");
	json_array_foreach((json_t *)scopes, i, v) {
		const char *s = json_string_value(v);

		if (s && n < cap)
			n += (size_t)snprintf(ret + n, cap - n, "%s%s", n ? "," : "", s);
		if (s && strcmp(s, "admin") == 0)
			break;
	}
}

static int ls(struct cli *c)
{
	autojson json_t *reply = NULL;
	time_t now = time(NULL);
	const json_t *list;
	struct table t;
	char age[16];
	json_t *v;
	size_t i;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/me/tokens"), &reply))
		return CLI_PANDA;
	list = cli_list(reply, "items");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	table_init(&t, "PREFIX AGE SCOPES TENANT LABEL");
	json_array_foreach((json_t *)list, i, v) {
		char words[128];

		words_of(json_object_get(v, "scopes"), words, sizeof(words));
		show_age(js(v, "created_at"), now, age, sizeof(age));
		table_add(&t, "%s", js(v, "prefix"));
		table_add(&t, "%s", age);
		table_add(&t, "%s", words);
		table_add(&t, "%s", js(v, "tenant"));
		table_add(&t, "%s", js(v, "label"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	return cli_delete_each(c, cli_has(c, KEY_KEEP) ? "/v1/me/tokens/%s?cascade=0"
	                                               : "/v1/me/tokens/%s");
}

static const struct cli_verb verbs[] = {
    {"create", "", "make a token; it is shown once", create, WORD_NONE},
    {"ls", "", "list tokens by their beginning", ls, WORD_NONE},
    {"rm", "PREFIX...", "revoke tokens, and those that were made with them", rm, WORD_TOKEN},
    {"rotate", "PREFIX", "give a token another secret; the old one ends", rotate, WORD_TOKEN},
    {0},
};

const struct cli_command command_token = {
    .name = "token",
    .args = "[OPTION]... [ARG]...",
    .what = "manage keys to the server: create, ls, rm, rotate",
    .opts = opts,
    .verbs = verbs,
    .examples = "  export PANDASTACK_API_KEY=$(panda token create --label ci)\n"
		"  panda token create --sandbox 3f2a --scope exec --ttl 8h\n",
};
