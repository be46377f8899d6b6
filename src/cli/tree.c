/*
 * panda tree - who was forked from whom
 */
#include <langinfo.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static int run(struct cli *c)
{
	autojson json_t *reply = NULL;
	autofree char *text = NULL;
	struct panda_error e;

	if (cli_args(c, 0, 0) || cli_open(c))
		return CLI_PANDA;
	if (panda_list(c->panda, &reply, &e) < 0)
		return cli_say(c, &e);
	if (c->json) {
		json_t *sb, *out = json_array();
		size_t i;

		json_array_foreach((json_t *)cli_list(reply, "items"), i, sb)
			json_array_append_new(out,
			                      json_pack("{s:O, s:O*, s:O*, s:O*}", "id",
			                                json_object_get(sb, "id"), "parent_id",
			                                json_object_get(sb, "parent_id"), "status",
			                                json_object_get(sb, "status"), "template",
			                                json_object_get(sb, "template")));
		cli_json(out);
		json_decref(out);
		return CLI_OK;
	}
	text =
	    tree_draw(cli_list(reply, "items"), !strcmp(nl_langinfo(CODESET), "UTF-8"), time(NULL));
	if (!text)
		return cli_die("out of memory");
	fputs(text, stdout);
	return CLI_OK;
}

const struct cli_command command_tree = {
    .name = "tree",
    .args = "",
    .what = "draw which sandbox was forked from which",
    .examples = "  panda tree\n  LC_ALL=C panda tree\n",
    .run = run,
};
