/*
 * panda set - how long a sandbox that lives may live
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {KEY_TTL, "ttl", "TIME", "end it so long after its creation (15m, 2h, 1d); 0: no end", 0},
    {KEY_PERSISTENT, "persistent", "yes|no", "yes: do not end it when it is idle", WORD_NONE},
    {KEY_CHECKPOINTS, "checkpoints", "auto|off", "auto: take a checkpoint before every command",
     WORD_NONE},
    {0},
};

static int run(struct cli *c)
{
	const char *persistent = cli_str(c, KEY_PERSISTENT, NULL),
		   *checkpoints = cli_str(c, KEY_CHECKPOINTS, NULL);
	autojson json_t *body = json_object(), *now = NULL;
	char id[CLI_ID];
	long ttl = -1;

	if (cli_args(c, 1, 1) || cli_seconds(c, KEY_TTL, &ttl))
		return CLI_PANDA;
	if (ttl < 0 && !persistent && !checkpoints)
		return cli_bad(c, "say what to change: --ttl, --persistent or --checkpoints");
	if (persistent && strcmp(persistent, "yes") != 0 && strcmp(persistent, "no") != 0)
		return cli_bad(c, "--persistent is yes or no, not '%.40s'", persistent);
	if (cli_first_id(c, id))
		return CLI_PANDA;
	if (ttl >= 0)
		json_object_set_new(body, "ttl_seconds", json_integer(ttl));
	if (persistent)
		json_object_set_new(body, "persistent", json_boolean(!strcmp(persistent, "yes")));
	if (checkpoints && json_object_set_new(body, "checkpoints", json_string(checkpoints)) < 0)
		return cli_bad(c, "--checkpoints is auto or off");
	if (cli_send(c, "PATCH", panda_path("/v1/sandboxes/%s/lifecycle", id), take_ptr(body),
	             &now))
		return CLI_PANDA;
	if (c->json)
		cli_json(now);
	else
		cli_fields(now);
	return CLI_OK;
}

const struct cli_command command_set = {
    .name = "set",
    .args = "[OPTION]... ID",
    .what = "change when a sandbox ends",
    .about = "Changes what is named, leaves the rest, and prints what holds now.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda set 3f2a --ttl 8h\n  panda set 3f2a --ttl 0 --persistent yes\n",
    .run = run,
};
