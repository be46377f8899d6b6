/*
 * panda ls - the sandboxes there are
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {'q', "quiet", NULL, "print only ids, in full", WORD_NONE},
    {KEY_STATUS, "status", "STATUS", "list only those: running, paused, hibernated, failed", 0},
    {'t', "template", "NAME", "list only those of a template", WORD_TEMPLATE},
    {'m', "meta", "KEY=VALUE", "list only those with this metadata (repeat)", WORD_NONE},
    {0},
};

static char *path_of(struct cli *c)
{
	autofree char *path = strdup("/v1/sandboxes");
	char sep = '?';

	for (size_t i = 0; i < c->ngiven && path; i++) {
		const char *arg = c->given[i].arg, *eq = arg ? strchr(arg, '=') : NULL;
		autofree char *part = NULL, *key = NULL;
		char *longer = NULL;

		if (c->given[i].key == KEY_STATUS)
			part = panda_path("status=%s", arg);
		else if (c->given[i].key == 't')
			part = panda_path("template=%s", arg);
		else if (c->given[i].key == 'm' && eq && (key = strndup(arg, (size_t)(eq - arg))))
			part = panda_path("metadata.%s=%s", key, eq + 1);
		else
			continue;
		if (!part || asprintf(&longer, "%s%c%s", path, sep, part) < 0)
			return NULL;
		free(path);
		path = longer;
		sep = '&';
	}
	return take_ptr(path);
}

static void expires(const json_t *sb, time_t now, char *buf, size_t n)
{
	time_t at = show_time(js(sb, "expires_at"));
	long long left = (long long)(at - now);

	if (at < 0)
		snprintf(buf, n,
		         json_is_true(json_object_get(sb, "persistent")) ? "never" : "idle");
	else if (left < 120)
		snprintf(buf, n, "%llds", left > 0 ? left : 0);
	else
		snprintf(buf, n, left < 7200 ? "%lldm" : "%lldh",
		         left < 7200 ? left / 60 : left / 3600);
}

static int run(struct cli *c)
{
	autojson json_t *reply = NULL;
	time_t now = time(NULL);
	const json_t *list;
	struct table t;
	json_t *sb;
	size_t i;
	int len;

	if (cli_args(c, 0, 0))
		return CLI_PANDA;
	for (i = 0; i < c->ngiven; i++)
		if (c->given[i].key == 'm' && !strchr(c->given[i].arg, '='))
			return cli_bad(c, "--meta wants KEY=VALUE, not '%.60s'", c->given[i].arg);
	if (cli_call(c, "GET", path_of(c), &reply))
		return CLI_PANDA;
	list = cli_list(reply, "items");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	if (cli_has(c, 'q')) {
		json_array_foreach((json_t *)list, i, sb)
			printf("%s\n", js(sb, "id"));
		return CLI_OK;
	}
	len = show_short(list);
	table_init(&t, "ID STATUS TEMPLATE MEMORY AGE ENDS NAME");
	json_array_foreach((json_t *)list, i, sb) {
		const char *name = js(sb, "name");
		char age[16], ends[24];

		show_age(js(sb, "created_at"), now, age, sizeof(age));
		expires(sb, now, ends, sizeof(ends));
		table_add(&t, "%.*s", len, js(sb, "id"));
		table_add(&t, "%s", js(sb, "status"));
		table_add(&t, "%s", js(sb, "template"));
		table_add(&t, "%lldM", ji(sb, "memory_mb"));
		table_add(&t, "%s", age);
		table_add(&t, "%s", ends);
		table_add(&t, "%s", *name ? name : js(json_object_get(sb, "metadata"), "name"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

const struct cli_command command_ls = {
    .name = "ls",
    .args = "[OPTION]...",
    .what = "list sandboxes",
    .opts = opts,
    .examples = "  panda ls --status running\n"
		"  panda ls -q --meta team=blue | xargs panda kill\n",
    .run = run,
};
