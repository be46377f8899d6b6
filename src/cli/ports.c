/*
 * panda ports - what listens in a sandbox
 */
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'a', "add", "PORT", "declare a port", WORD_NONE},
    {'d', "rm", "PORT", "take back the declaration of a port", WORD_NONE},
    {KEY_LABEL, "label", "TEXT", "say what the port is for (with --add)", WORD_NONE},
    {KEY_ROTATE, "rotate", NULL, "change its preview name; links made before end", WORD_NONE},
    {0},
};

static int run(struct cli *c)
{
	autojson json_t *reply = NULL, *body = NULL;
	long add = 0, rm = 0;
	struct table t;
	char id[CLI_ID];
	json_t *v;
	size_t i;

	if (cli_num(c, 'a', 1, 65535, &add) || cli_num(c, 'd', 1, 65535, &rm) ||
	    cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	if (rm && cli_call(c, "DELETE", panda_path("/v1/sandboxes/%s/ports/%d", id, (int)rm), NULL))
		return CLI_PANDA;
	if (add) {
		body = json_pack("{s:I, s:s}", "port", (json_int_t)add, "label",
		                 cli_str(c, KEY_LABEL, "service"));
		if (!body)
			return cli_bad(c, "the label is not UTF-8");
		if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/ports", id), take_ptr(body),
		             NULL))
			return CLI_PANDA;
	}
	if (cli_has(c, KEY_ROTATE) &&
	    cli_call(c, "POST", panda_path("/v1/sandboxes/%s/preview/rotate", id), NULL))
		return CLI_PANDA;
	if (cli_call(c, "GET", panda_path("/v1/sandboxes/%s/ports", id), &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(cli_list(reply, "ports"));
		return CLI_OK;
	}
	table_init(&t, "PORT LISTENS SOURCE LABEL PREVIEW PROXY");
	json_array_foreach((json_t *)cli_list(reply, "ports"), i, v) {
		table_add(&t, "%lld", ji(v, "port"));
		table_add(&t, "%s", json_is_true(json_object_get(v, "listening")) ? "yes" : "no");
		table_add(&t, "%s", js(v, "source"));
		table_add(&t, "%s", js(v, "label"));
		table_add(&t, "%s", *js(v, "preview_url") ? js(v, "preview_url") : "-");
		table_add(&t, "%s%s", panda_url(c->panda), js(v, "proxy_url"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

const struct cli_command command_ports = {
    .name = "ports",
    .args = "[OPTION]... ID",
    .what = "list what listens in a sandbox, and where to reach it",
    .about =
	"The address under PROXY needs a key. That under PREVIEW needs none: visitors who have\n"
	"it reach the port, if it was declared.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda ports 3f2a\n  panda ports 3f2a --add 8000 --label app\n",
    .run = run,
};
