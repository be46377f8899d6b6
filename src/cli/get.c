/*
 * panda get - everything about one sandbox
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

/* One value on one line, whatever it is. */
static void print_value(const char *key, const json_t *v)
{
	autofree char *text = NULL;
	char shown[1024];

	if (json_is_null(v) || (json_is_string(v) && !*json_string_value(v)))
		return;
	text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
	show_clean(json_is_string(v) ? json_string_value(v)
	           : text            ? text
	                             : "?",
	           shown, sizeof(shown));
	printf("%-18s %s\n", key, shown);
}

void cli_fields(json_t *j)
{
	const char *key;
	json_t *v;

	json_object_foreach(j, key, v)
		print_value(key, v);
}

static int run(struct cli *c)
{
	autojson json_t *sb = NULL;
	struct panda_error e;
	char id[CLI_ID];

	if (cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	if (panda_get(c->panda, id, &sb, &e) < 0)
		return cli_say(c, &e);
	if (c->json)
		cli_json(sb);
	else
		cli_fields(sb);
	return CLI_OK;
}

const struct cli_command command_get = {
    .name = "get",
    .args = "ID",
    .what = "show everything about one sandbox",
    .word = WORD_SANDBOX,
    .examples = "  panda get 3f2a\n"
		"  panda get --json 3f2a | jq -r .status\n",
    .run = run,
};
