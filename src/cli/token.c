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
    {KEY_SCOPE, "scope", "sandbox|admin", "what the token may do (create; sandbox)", WORD_NONE},
    {KEY_TENANT, "tenant", "NAME", "tenant that the token is for (create; admins only)", WORD_NONE},
    {0},
};

static int create(struct cli *c)
{
	const char *label = cli_str(c, KEY_LABEL, NULL), *scope = cli_str(c, KEY_SCOPE, NULL);
	const char *tenant = cli_str(c, KEY_TENANT, NULL);
	autojson json_t *body = json_object(), *t = NULL;

	if (cli_args(c, 0, 0))
		return CLI_PANDA;
	if (scope && strcmp(scope, "sandbox") != 0 && strcmp(scope, "admin") != 0)
		return cli_bad(c, "--scope is sandbox or admin, not '%.40s'", scope);
	if ((label && json_object_set_new(body, "label", json_string(label)) < 0) ||
	    (tenant && json_object_set_new(body, "tenant", json_string(tenant)) < 0) ||
	    (scope && json_object_set_new(body, "scopes", json_pack("[s]", scope)) < 0))
		return cli_bad(c, "names must be UTF-8");
	if (cli_send(c, "POST", panda_path("/v1/me/tokens"), take_ptr(body), &t))
		return CLI_PANDA;
	if (c->json) {
		cli_json(t);
		return CLI_OK;
	}
	printf("%s\n", js(t, "token"));
	fprintf(stderr, "This is the only time it is shown.\n");
	return CLI_OK;
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
		const char *scope =
		    json_string_value(json_array_get(json_object_get(v, "scopes"), 0));

		show_age(js(v, "created_at"), now, age, sizeof(age));
		table_add(&t, "%s", js(v, "prefix"));
		table_add(&t, "%s", age);
		table_add(&t, "%s", scope ? scope : "-");
		table_add(&t, "%s", js(v, "tenant"));
		table_add(&t, "%s", js(v, "label"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	return cli_delete_each(c, "/v1/me/tokens/%s");
}

static const struct cli_verb verbs[] = {
    {"create", "", "make a token; it is shown once", create, WORD_NONE},
    {"ls", "", "list tokens by their beginning", ls, WORD_NONE},
    {"rm", "PREFIX...", "revoke tokens", rm, WORD_TOKEN},
    {0},
};

const struct cli_command command_token = {
    .name = "token",
    .args = "[OPTION]... [ARG]...",
    .what = "manage keys to the server: create, ls, rm",
    .opts = opts,
    .verbs = verbs,
    .examples = "  export PANDASTACK_API_KEY=$(panda token create --label ci)\n"
		"  panda token rm pds_3f2a91c0\n",
};
