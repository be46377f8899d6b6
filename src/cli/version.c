/*
 * panda version - ours, and the server's when one answers
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static int run(struct cli *c)
{
	autojson json_t *server = NULL, *all = NULL;
	struct panda_error e;

	if (cli_args(c, 0, 0) || cli_open(c))
		return CLI_PANDA;
	panda_set_timeout(c->panda, 3000);
	if (panda_call(c->panda, "GET", "/version", NULL, &server, &e) < 0)
		server = NULL;
	if (c->json) {
		all =
		    json_pack("{s:s, s:s, s:o}", "panda", PANDA_VERSION, "url", panda_url(c->panda),
		              "server", server ? json_incref(server) : json_null());
		cli_json(all);
		return CLI_OK;
	}
	printf("panda %s\n", PANDA_VERSION);
	if (server)
		printf("%s %s at %s, engine %s\n", js(server, "service"), js(server, "semver"),
		       panda_url(c->panda), js(server, "engine"));
	else
		printf("no server at %s\n", panda_url(c->panda));
	return CLI_OK;
}

const struct cli_command command_version = {
    .name = "version",
    .args = "",
    .what = "print the versions of this program and of the server",
    .examples = "  panda version\n  panda version --json | jq -r .server.semver\n",
    .run = run,
};
