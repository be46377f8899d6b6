/*
 * panda checkpoints, rewind, diff, merge, race, promote - going back, comparing, trying several
 * ways at once
 */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

/* ---- checkpoints ---- */

static const struct cli_opt checkpoint_opts[] = {
    {KEY_NAME, "name", "NAME", "take one by hand, with this name", WORD_NONE},
    {0},
};

static int take(struct cli *c, const char *id, const char *name)
{
	autojson json_t *point = NULL;

	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/checkpoints", id),
	             json_pack("{s:s}", "name", name), &point))
		return CLI_PANDA;
	return cli_made(c, point, "id");
}

static int checkpoints(struct cli *c)
{
	const char *name = cli_str(c, KEY_NAME, NULL);
	autojson json_t *reply = NULL;
	char id[CLI_ID], age[16], size[16];
	time_t now = time(NULL);
	struct table t;
	json_t *p;
	size_t i;

	if (cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	if (name)
		return take(c, id, name);
	if (cli_call(c, "GET", panda_path("/v1/sandboxes/%s/checkpoints", id), &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(reply);
		return CLI_OK;
	}
	table_init(&t, "STEPS ID AGE SIZE NAME");
	json_array_foreach((json_t *)cli_list(reply, "checkpoints"), i, p) {
		show_age(js(p, "created_at"), now, age, sizeof(age));
		show_size(ji(p, "size_bytes"), size, sizeof(size));
		table_add(&t, "%zu", i + 1);
		table_add(&t, "%s", js(p, "id"));
		table_add(&t, "%s", age);
		table_add(&t, "%s", size);
		table_add(&t, "%s", js(p, "name"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	if (*js(reply, "dropped_when"))
		fprintf(stderr, "panda: earlier ones were dropped when %s\n",
		        js(reply, "dropped_when"));
	return CLI_OK;
}

const struct cli_command command_checkpoints = {
    .name = "checkpoints",
    .args = "ID",
    .what = "list the moments a sandbox can be put back to, or take one",
    .about = "Sandboxes of 'panda create --checkpoints' take a checkpoint before every command.",
    .opts = checkpoint_opts,
    .word = WORD_SANDBOX,
    .examples = "  panda checkpoints 3f2a\n  panda checkpoints 3f2a --name good\n",
    .run = checkpoints,
};

/* ---- rewind ---- */

static int rewind_run(struct cli *c)
{
	autojson json_t *reply = NULL;
	const char *to;
	char id[CLI_ID];
	json_t *body;

	if (cli_args(c, 1, 2) || cli_first_id(c, id))
		return CLI_PANDA;
	to = c->argc ? c->argv[0] : "1";
	body = *to && strlen(to) < 4 && strspn(to, "0123456789") == strlen(to)
	           ? json_pack("{s:i}", "steps", atoi(to))
	           : json_pack("{s:s}", "to", to);
	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/rewind", id), body, &reply))
		return CLI_PANDA;
	if (c->json)
		cli_json(reply);
	return CLI_OK;
}

const struct cli_command command_rewind = {
    .name = "rewind",
    .args = "ID [STEPS | CHECKPOINT]",
    .what = "put a sandbox back to a checkpoint: memory, processes and disk",
    .about =
	"It stays the same sandbox, with its id, links and lifetime. One step when nothing is\n"
	"said; right after a rewind, one more.",
    .word = WORD_SANDBOX,
    .examples = "  panda rewind 3f2a\n  panda rewind 3f2a good\n",
    .run = rewind_run,
};

/* ---- diff ---- */

static const struct cli_opt diff_opts[] = {
    {'u', "unified", NULL, "print the lines that changed, too", WORD_NONE},
    {0},
};

/* Guests named these files, and filled them. */
static void print_path(char sign, const char *path, const char *behind)
{
	char shown[PATH_MAX];

	show_clean(path, shown, sizeof(shown));
	printf("%c %s%s\n", sign, shown, behind);
}

static void print_changes(const json_t *reply, const char *key, char sign)
{
	json_t *f;
	size_t i;

	json_array_foreach(json_object_get(reply, key), i, f) {
		print_path(sign, js(f, "path"), !strcmp(js(f, "type"), "directory") ? "/" : "");
		show_said(js(f, "unified"), stdout);
	}
}

static int diff_run(struct cli *c)
{
	autojson json_t *reply = NULL;
	char id[CLI_ID], other[CLI_ID] = "";
	const char *u = cli_has(c, 'u') ? "1" : "0";

	if (cli_args(c, 1, 2) || cli_first_id(c, id))
		return CLI_PANDA;
	if (c->argc && cli_id(c, c->argv[0], other))
		return CLI_PANDA;
	if (cli_call(c, "GET",
	             other[0] ? panda_path("/v1/sandboxes/%s/diff?to=%s&unified=%s", id, other, u)
	                      : panda_path("/v1/sandboxes/%s/diff?unified=%s", id, u),
	             &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(reply);
		return CLI_OK;
	}
	print_changes(reply, "removed", '-');
	print_changes(reply, "changed", '~');
	print_changes(reply, "added", '+');
	if (json_is_true(json_object_get(reply, "truncated")))
		fprintf(stderr, "panda: there are more than are shown\n");
	return CLI_OK;
}

const struct cli_command command_diff = {
    .name = "diff",
    .args = "ID [OTHER]",
    .what = "list files that differ from another sandbox's, or the template's",
    .about =
	"Goes from the first to the other one, which may also be the whole id of a snapshot, or "
	"of\n"
	"a checkpoint of the first. Without it: what the sandbox has written over its template.",
    .opts = diff_opts,
    .word = WORD_SANDBOX,
    .examples = "  panda diff 3f2a\n  panda diff -u 3f2a 77bc\n",
    .run = diff_run,
};

/* ---- merge ---- */

static const struct cli_opt merge_opts[] = {
    {KEY_THEIRS, "theirs", NULL, "take the child's version of what both have written", WORD_NONE},
    {KEY_DRY_RUN, "dry-run", NULL, "only say what would be done", WORD_NONE},
    {0},
};

static void print_paths(const json_t *reply, const char *key, char sign)
{
	json_t *path;
	size_t i;

	json_array_foreach(json_object_get(reply, key), i, path)
		print_path(sign, json_string_value(path), "");
}

static int merge_run(struct cli *c)
{
	autojson json_t *reply = NULL;
	char id[CLI_ID], child[CLI_ID];
	bool dry = cli_has(c, KEY_DRY_RUN);

	if (cli_args(c, 2, 2) || cli_first_id(c, id) || cli_id(c, c->argv[0], child) ||
	    cli_send(c, "POST", panda_path("/v1/sandboxes/%s/merge", id),
	             json_pack("{s:s, s:s, s:b}", "child", child, "conflicts",
	                       cli_has(c, KEY_THEIRS) ? "theirs" : "stop", "dry_run", dry),
	             &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(reply);
	} else {
		print_paths(reply, "removed", '-');
		print_paths(reply, "changed", '~');
		print_paths(reply, "added", '+');
		print_paths(reply, "conflicts", '!');
	}
	if (dry || json_is_true(json_object_get(reply, "applied")))
		return CLI_OK;
	if (!c->json)
		fprintf(stderr, "panda: both have written what is marked '!', so nothing was done: "
		                "--theirs takes the child's\n");
	return 1;
}

const struct cli_command command_merge = {
    .name = "merge",
    .args = "ID CHILD",
    .what = "merge what a fork did to its files into its parent",
    .about =
	"Files that both have written since the fork are conflicts: then nothing is done and the\n"
	"exit code is 1, unless --theirs.",
    .opts = merge_opts,
    .word = WORD_SANDBOX,
    .examples = "  panda merge --dry-run 3f2a 77bc\n  panda merge 3f2a 77bc\n",
    .run = merge_run,
};

/* ---- race ---- */

static const struct cli_opt race_opts[] = {
    {KEY_ACCEPT, "accept", "CONDITION", "condition that a command must meet (exit_code == 0)",
     WORD_NONE},
    {KEY_TIMEOUT, "timeout", "TIME", "kill all commands after that time (60s)", WORD_NONE},
    {0},
};

static int race_run(struct cli *c)
{
	autojson json_t *reply = NULL;
	json_t *commands = json_array(), *o;
	char id[CLI_ID];
	long seconds = 60;
	size_t i;

	if (cli_args(c, 2, 17) || cli_seconds(c, KEY_TIMEOUT, &seconds) || cli_first_id(c, id)) {
		json_decref(commands);
		return CLI_PANDA;
	}
	for (int k = 0; k < c->argc; k++)
		if (json_array_append_new(commands, json_string(c->argv[k])) < 0) {
			json_decref(commands);
			return cli_bad(c, "command %d is not UTF-8", k + 1);
		}
	/* What no int can count takes weeks: then for ever. */
	panda_set_timeout(c->panda,
	                  seconds < INT_MAX / 1000 - 60 ? (int)(seconds + 60) * 1000 : -1);
	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/race", id),
	             json_pack("{s:o, s:s, s:I}", "commands", commands, "accept",
	                       cli_str(c, KEY_ACCEPT, "exit_code == 0"), "timeout_seconds",
	                       (json_int_t)seconds),
	             &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(reply);
	} else {
		json_array_foreach(json_object_get(reply, "outcomes"), i, o)
			fprintf(stderr, "%-6s %s\n", js(o, "state"), c->argv[i]);
		show_said(js(json_object_get(reply, "result"), "stdout"), stderr);
		if (*js(json_object_get(reply, "winner"), "id"))
			printf("%s\n", js(json_object_get(reply, "winner"), "id"));
	}
	return json_is_object(json_object_get(reply, "winner")) ? CLI_OK : 1;
}

const struct cli_command command_race = {
    .name = "race",
    .args = "ID COMMAND...",
    .what = "try commands in forks at once, keep the first that passes",
    .about = "Forks the sandbox for each shell command (up to 16). The first child whose command\n"
	     "passes is kept and its id printed, the others are killed. Exit code 1: none passed.",
    .opts = race_opts,
    .word = WORD_SANDBOX,
    .examples = "  panda race 3f2a 'make test' 'git checkout old && make test'\n"
		"  panda race --accept 'stdout contains \"ok\"' 3f2a ./a.sh ./b.sh\n",
    .run = race_run,
};

/* ---- promote ---- */

static const struct cli_opt promote_opts[] = {
    {KEY_KILL_OTHERS, "kill-others", NULL, "kill the other children of the same fork", WORD_NONE},
    {0},
};

static void print_failures(const json_t *failures)
{
	char shown[300];
	const char *id;
	json_t *why;

	json_object_foreach((json_t *)failures, id, why) {
		show_clean(json_is_string(why) ? json_string_value(why) : "?", shown,
		           sizeof(shown));
		cli_die("cannot kill %s: %s", id, shown);
	}
}

static int promote_run(struct cli *c)
{
	autojson json_t *reply = NULL;
	char id[CLI_ID];
	json_t *gone;
	size_t i;

	if (cli_args(c, 1, 1) || cli_first_id(c, id) ||
	    cli_send(c, "POST", panda_path("/v1/sandboxes/%s/promote", id),
	             json_pack("{s:b}", "cleanup_siblings", cli_has(c, KEY_KILL_OTHERS)), &reply))
		return CLI_PANDA;
	if (c->json)
		cli_json(reply);
	else
		json_array_foreach(json_object_get(reply, "deleted"), i, gone)
			printf("%s\n", json_string_value(gone));
	if (!c->json)
		print_failures(json_object_get(reply, "failures"));
	return json_object_size(json_object_get(reply, "failures")) ? 1 : CLI_OK;
}

const struct cli_command command_promote = {
    .name = "promote",
    .args = "ID",
    .what = "choose this one of the children of a fork",
    .about = "Prints the ids of those that were killed for it.",
    .opts = promote_opts,
    .word = WORD_SANDBOX,
    .examples = "  panda promote 77bc\n  panda promote --kill-others 77bc\n",
    .run = promote_run,
};
