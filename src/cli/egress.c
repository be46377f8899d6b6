/*
 * panda egress - what a sandbox may reach, and what it tried
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

int cli_egress(struct cli *c, int argc, char **argv, json_t *body)
{
	json_t *list;

	if (argc == 1 && (!strcmp(argv[0], "off") || !strcmp(argv[0], "open"))) {
		json_object_set_new(body, "egress", json_string(argv[0]));
		return 0;
	}
	json_object_set_new(body, "egress_allowlist", list = json_array());
	for (int i = 0; i < argc; i++) {
		const char *s = argv[i];

		for (size_t n; *s; s += n + (s[n] == ',')) {
			n = strcspn(s, ",");
			if (n && json_array_append_new(list, json_stringn(s, n)) < 0)
				return cli_bad(c, "'%.60s' is not UTF-8", argv[i]);
		}
	}
	return 0;
}

static void show(const json_t *now)
{
	const json_t *list = json_object_get(now, "egress_allowlist");
	json_t *entry;
	size_t i;

	printf("mode  %s\n", js(now, "mode"));
	json_array_foreach((json_t *)list, i, entry)
		printf("      %s\n", json_is_string(entry) ? json_string_value(entry) : "?");
	printf("sent %lld bytes, received %lld bytes\n"
	       "refused %lld packets and %lld names\n",
	       ji(now, "up_bytes"), ji(now, "down_bytes"), ji(now, "refused"),
	       ji(now, "names_refused"));
}

static int run(struct cli *c)
{
	autojson json_t *body = json_object(), *now = NULL;
	char id[CLI_ID];

	if (cli_args(c, 1, -1) || cli_first_id(c, id))
		return CLI_PANDA;
	if (c->argc && cli_egress(c, c->argc, c->argv, body))
		return CLI_PANDA;
	if (c->argc ? cli_send(c, "PATCH", panda_path("/v1/sandboxes/%s/egress", id),
	                       take_ptr(body), &now)
	            : cli_call(c, "GET", panda_path("/v1/sandboxes/%s/egress", id), &now))
		return CLI_PANDA;
	if (c->json)
		cli_json(now);
	else
		show(now);
	return CLI_OK;
}

const struct cli_command command_egress = {
    .name = "egress",
    .args = "ID [off | open | HOST...]",
    .what = "show or change what a sandbox may reach",
    .about =
	"Shows what a sandbox may reach, and how much was refused; `panda events` names it. With\n"
	"words behind ID, that is what it may reach from now on: nothing, the internet, or these\n"
	"names, *.names, addresses and networks. A name is HTTPS and HTTP to that name; name:22\n"
	"is another port of it, and name:53123/udp UDP.",
    .word = WORD_SANDBOX,
    .examples = "  panda egress 3f2a\n  panda egress 3f2a pypi.org '*.debian.org' github.com:22\n",
    .run = run,
};
