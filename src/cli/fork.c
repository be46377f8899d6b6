/*
 * panda fork - running copies of a running sandbox
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'n', "count", "N", "how many copies, 1 to 16 (1)", WORD_NONE},
    {0},
};

static int run(struct cli *c)
{
	autojson json_t *kids = NULL;
	struct panda_error e;
	char id[CLI_ID];
	long n = 1;
	json_t *sb;
	size_t i;

	if (cli_args(c, 1, 1) || cli_num(c, 'n', 1, 16, &n) || cli_first_id(c, id))
		return CLI_PANDA;
	if (panda_fork(c->panda, id, (int)n, &kids, &e) < 0)
		return cli_say(c, &e);
	if (c->json)
		cli_json(kids);
	else
		json_array_foreach(kids, i, sb)
			printf("%s\n", js(sb, "id"));
	return CLI_OK;
}

const struct cli_command command_fork = {
    .name = "fork",
    .args = "ID",
    .what = "make running copies, with memory, disks and processes",
    .about =
	"Makes running copies of a sandbox and prints their ids. Memory, disks, processes and\n"
	"open files go on in all of them; the parent stands still for about a millisecond.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda fork 3f2a\n  for id in $(panda fork -n 4 3f2a); do panda exec $id -- "
		"hostname; done\n",
    .run = run,
};
