/*
 * panda url - a link to a port that works without a key
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {KEY_TTL, "ttl", "TIME", "how long it works (1h, at most 7d)", WORD_NONE},
    {0},
};

static int run(struct cli *c)
{
	autojson json_t *reply = NULL, *body = NULL;
	long ttl = 3600, port;
	char id[CLI_ID], *end;
	const char *url;

	if (cli_seconds(c, KEY_TTL, &ttl) || cli_args(c, 2, 2))
		return CLI_PANDA;
	port = strtol(c->argv[1], &end, 10);
	if (*end || end == c->argv[1] || port < 1 || port > 65535)
		return cli_bad(c, "'%.40s' is not a port", c->argv[1]);
	if (cli_first_id(c, id))
		return CLI_PANDA;
	body = json_pack("{s:I, s:I}", "port", (json_int_t)port, "ttl_seconds", (json_int_t)ttl);
	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/preview-token", id), take_ptr(body),
	             &reply))
		return CLI_PANDA;
	url = js(reply, "url");
	if (c->json)
		cli_json(reply);
	else
		printf("%s%s\n", *url == '/' ? panda_url(c->panda) : "", url);
	return CLI_OK;
}

const struct cli_command command_url = {
    .name = "url",
    .args = "[OPTION]... ID PORT",
    .what = "print a link to a port of a sandbox, for browsers",
    .about =
	"Prints a signed link to a port of a sandbox. A browser that opens it needs no key until\n"
	"the time of the link is over.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda url 3f2a 8000\n  curl $(panda url --ttl 10m 3f2a 8000)\n",
    .run = run,
};
