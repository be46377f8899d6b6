/*
 * panda ps - the commands of a sandbox
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static int run(struct cli *c)
{
	autojson json_t *reply = NULL;
	const json_t *list;
	struct table t;
	char id[CLI_ID], size[16], command[101];
	json_t *x;
	size_t i;

	if (cli_args(c, 1, 1) || cli_first_id(c, id) ||
	    cli_call(c, "GET", panda_path("/v1/sandboxes/%s/execs", id), &reply))
		return CLI_PANDA;
	list = cli_list(reply, "items");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	table_init(&t, "EXEC PID STATE OUTPUT COMMAND");
	json_array_foreach((json_t *)list, i, x) {
		show_size(ji(x, "stdout_to") + ji(x, "stderr_to"), size, sizeof(size));
		table_add(&t, "%s", js(x, "id"));
		table_add(&t, "%lld", ji(x, "pid"));
		if (json_is_true(json_object_get(x, "running")))
			table_add(&t, "running");
		else if (json_is_true(json_object_get(x, "timed_out")))
			table_add(&t, "timed out");
		else if (json_is_integer(json_object_get(x, "signal")))
			table_add(&t, "signal %lld", ji(x, "signal"));
		else
			table_add(&t, "exit %lld", ji(x, "exit_code"));
		table_add(&t, "%s", size);
		show_clean(js(x, "command"), command, sizeof(command)); /* cut between characters */
		table_add(&t, "%s", command);
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

const struct cli_command command_ps = {
    .name = "ps",
    .args = "ID",
    .what = "list the commands of a sandbox, detached ones too",
    .word = WORD_SANDBOX,
    .examples = "  panda ps 3f2a\n  panda exec --attach 3 3f2a\n",
    .run = run,
};
