/*
 * panda me - whose key this is, and what it may use
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static int run(struct cli *c)
{
	autojson json_t *me = NULL;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/me"), &me))
		return CLI_PANDA;
	if (c->json)
		cli_json(me);
	else
		cli_fields(me);
	return CLI_OK;
}

const struct cli_command command_me = {
    .name = "me",
    .args = "",
    .what = "show the tenant of the key, its quota and what it uses",
    .examples = "  panda me\n  panda me --json | jq .usage\n",
    .run = run,
};
