/*
 * panda snapshot - moments of a sandbox, kept
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static const struct cli_opt opts[] = {
    {KEY_NAME, "name", "NAME", "a name for it (create)", WORD_NONE},
    {KEY_SANDBOX, "sandbox", "ID", "list only those of a sandbox (ls)", WORD_SANDBOX},
    {'f', "force", NULL, "replace FILE (export)", WORD_NONE},
    {'y', "yes", NULL, "do not ask before (rm)", WORD_NONE},
    {0},
};

int cli_snapshot_id(struct cli *c, const char *text, char id[CLI_ID])
{
	autojson json_t *reply = NULL;

	if (cli_call(c, "GET", panda_path("/v1/snapshots"), &reply))
		return CLI_PANDA;
	return cli_pick(c, cli_list(reply, "snapshots"), "snapshot", text, id);
}

static int create(struct cli *c)
{
	autojson json_t *snap = NULL;
	struct panda_error e;
	char id[CLI_ID];

	if (cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	panda_set_timeout(c->panda, 10 * 60 * 1000); /* gigabytes take their time */
	if (panda_snapshot(c->panda, id, cli_str(c, KEY_NAME, NULL), &snap, &e) < 0)
		return cli_say(c, &e);
	return cli_made(c, snap, "id");
}

static int ls(struct cli *c)
{
	const char *of = cli_str(c, KEY_SANDBOX, NULL);
	autojson json_t *reply = NULL;
	char id[CLI_ID], age[16], size[16];
	time_t now = time(NULL);
	const json_t *list;
	struct table t;
	json_t *s;
	size_t i;
	int len;

	if (cli_args(c, 0, 0) || (of && cli_id(c, of, id)) ||
	    cli_call(c, "GET",
	             of ? panda_path("/v1/snapshots?sandbox_id=%s", id)
	                : panda_path("/v1/snapshots"),
	             &reply))
		return CLI_PANDA;
	list = cli_list(reply, "snapshots");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	len = show_short(list);
	table_init(&t, "ID TEMPLATE SIZE AGE SANDBOX NAME");
	json_array_foreach((json_t *)list, i, s) {
		show_age(js(s, "created_at"), now, age, sizeof(age));
		show_size(ji(s, "size_bytes"), size, sizeof(size));
		table_add(&t, "%.*s", len, js(s, "id"));
		table_add(&t, "%s", js(s, "template"));
		table_add(&t, "%s", size);
		table_add(&t, "%s", age);
		table_add(&t, "%.8s", js(s, "sandbox_id"));
		table_add(&t, "%s", js(s, "name"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int get(struct cli *c)
{
	autojson json_t *snap = NULL;
	char id[CLI_ID];

	if (cli_args(c, 1, 1) || cli_snapshot_id(c, c->argv[0], id) ||
	    cli_call(c, "GET", panda_path("/v1/snapshots/%s", id), &snap))
		return CLI_PANDA;
	if (c->json)
		cli_json(snap);
	else
		cli_fields(snap);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	char id[CLI_ID];
	int code = CLI_OK;

	if (cli_args(c, 1, -1) ||
	    !cli_sure(c, "Remove %d snapshot%s?", c->argc, c->argc == 1 ? "" : "s"))
		return CLI_PANDA;
	for (int i = 0; i < c->argc; i++)
		if (cli_snapshot_id(c, c->argv[i], id) ||
		    cli_call(c, "DELETE", panda_path("/v1/snapshots/%s", id), NULL))
			code = CLI_PANDA;
	return code;
}

/* ---- one file ---- */

static int to_file(void *arg, const void *data, size_t n)
{
	return fwrite(data, 1, n, arg) == n ? 0 : -EIO;
}

/* CLI_OK when all of it is written; our disk's failures are not the server's. */
static int download(struct cli *c, const char *path, FILE *to, const char *name)
{
	struct panda_error e;

	if (panda_download(c->panda, path, to_file, to, &e) < 0 && strcmp(e.code, "stopped") != 0)
		return cli_say(c, &e);
	return ferror(to) || fflush(to) != 0 ? cli_die("cannot write %s", name) : CLI_OK;
}

/*
 * A file that is there is whole: until then it has another name, which the next try writes anew.
 * 0, or CLI_PANDA after saying why.
 */
static int export_file(struct cli *c, const char *path, const char *file)
{
	bool replace = cli_has(c, 'f');
	autofree char *part = NULL;
	int code;
	FILE *f;

	if (!replace && access(file, F_OK) == 0)
		return cli_die("%s is there already: --force replaces it", file);
	if (asprintf(&part, "%s.part", file) < 0)
		return cli_die("out of memory");
	f = fopen(part, "wbe");
	if (!f)
		return cli_die("cannot make %s: %s", part, strerror(errno));
	code = download(c, path, f, file);
	if (fclose(f) != 0 && code == CLI_OK)
		code = cli_die("cannot write %s: %s", file, strerror(errno));
	if (code == CLI_OK &&
	    renameat2(AT_FDCWD, part, AT_FDCWD, file, replace ? 0 : RENAME_NOREPLACE) < 0)
		code = cli_die("cannot make %s: %s", file, strerror(errno));
	if (code != CLI_OK)
		remove(part);
	return code;
}

static int export_to(struct cli *c)
{
	const char *file = c->argc > 1 ? c->argv[1] : "-";
	autofree char *path = NULL;
	char id[CLI_ID];

	if (cli_args(c, 1, 2) || cli_snapshot_id(c, c->argv[0], id))
		return CLI_PANDA;
	if (!strcmp(file, "-") && isatty(STDOUT_FILENO))
		return cli_bad(c, "a snapshot is no text: name a FILE");
	path = panda_path("/v1/snapshots/%s/export", id);
	if (!path)
		return cli_die("out of memory");
	panda_set_timeout(c->panda, 60 * 60 * 1000);
	if (strcmp(file, "-") != 0)
		return export_file(c, path, file);
	return download(c, path, stdout, file);
}

static ssize_t from_file(void *arg, void *buf, size_t n)
{
	size_t k = fread(buf, 1, n, arg);

	return k == 0 && ferror((FILE *)arg) ? -EIO : (ssize_t)k;
}

static int import_from(struct cli *c)
{
	autojson json_t *snap = NULL;
	struct panda_error e;
	FILE *f;
	int r;

	if (cli_args(c, 1, 1) || cli_open(c))
		return CLI_PANDA;
	f = strcmp(c->argv[0], "-") ? fopen(c->argv[0], "rb") : stdin;
	if (!f)
		return cli_die("cannot open %s: %s", c->argv[0], strerror(errno));
	panda_set_timeout(c->panda, 60 * 60 * 1000);
	r = panda_upload(c->panda, "POST", "/v1/snapshots/import", -1, from_file, f, &snap, &e);
	if (f != stdin)
		fclose(f);
	if (r < 0)
		return cli_say(c, &e);
	return cli_made(c, snap, "id");
}

/* ---- tree ---- */

enum {
	TREE_DEPTH = 64,
};

static void draw(const json_t *snaps, const json_t *boxes, const json_t *s, int depth)
{
	char name[300];
	json_t *sb, *t;
	size_t i, k;

	show_clean(js(s, "name"), name, sizeof(name));
	printf("%*s%.8s %s\n", 2 * depth, "", js(s, "id"), name);
	json_array_foreach((json_t *)boxes, i, sb) {
		if (depth >= TREE_DEPTH || strcmp(js(sb, "from_snapshot"), js(s, "id")) != 0)
			continue;
		printf("%*ssandbox %.8s %s\n", 2 * depth + 2, "", js(sb, "id"), js(sb, "status"));
		json_array_foreach((json_t *)snaps, k, t) {
			if (!strcmp(js(t, "sandbox_id"), js(sb, "id")))
				draw(snaps, boxes, t, depth + 2);
		}
	}
}

/* Is it of a sandbox that was itself made from a snapshot there is? */
static bool has_root(const json_t *snaps, const json_t *boxes, const json_t *s)
{
	json_t *sb, *t;
	size_t i, k;

	json_array_foreach((json_t *)boxes, i, sb) {
		if (strcmp(js(sb, "id"), js(s, "sandbox_id")) != 0)
			continue;
		json_array_foreach((json_t *)snaps, k, t) {
			if (!strcmp(js(t, "id"), js(sb, "from_snapshot")))
				return true;
		}
	}
	return false;
}

static int tree(struct cli *c)
{
	autojson json_t *snaps = NULL, *boxes = NULL;
	const json_t *list;
	json_t *s;
	size_t i;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/snapshots"), &snaps) ||
	    cli_call(c, "GET", panda_path("/v1/sandboxes"), &boxes))
		return CLI_PANDA;
	list = cli_list(snaps, "snapshots");
	if (c->json) {
		cli_json(list);
		return CLI_OK;
	}
	json_array_foreach((json_t *)list, i, s) {
		if (has_root(list, cli_list(boxes, "items"), s))
			continue;
		printf("of %.8s\n", *js(s, "sandbox_id") ? js(s, "sandbox_id") : "none");
		draw(list, cli_list(boxes, "items"), s, 1);
	}
	return CLI_OK;
}

static const struct cli_verb verbs[] = {
    {"create", "ID", "save a sandbox, which goes on; prints the id", create, WORD_SANDBOX},
    {"ls", "", "list snapshots", ls, WORD_NONE},
    {"get", "SNAPSHOT", "show everything about a snapshot", get, WORD_SNAPSHOT},
    {"rm", "SNAPSHOT...", "remove snapshots", rm, WORD_SNAPSHOT},
    {"tree", "", "draw which sandboxes came from which snapshots", tree, WORD_NONE},
    {"export", "SNAPSHOT [FILE]", "write a snapshot to one file, or to stdout", export_to,
     WORD_SNAPSHOT},
    {"import", "FILE", "import an exported snapshot; prints its id here", import_from, WORD_FILE},
    {0},
};

const struct cli_command command_snapshot = {
    .name = "snapshot",
    .args = "[OPTION]... [ARG]...",
    .what = "save moments of a sandbox: create, ls, get, rm, tree, export, import",
    .about =
	"Saves memory and disks of a sandbox. Any number of sandboxes can be started from that.",
    .opts = opts,
    .verbs = verbs,
    .examples = "  panda snapshot create 3f2a --name ready\n"
		"  panda create --from ready\n",
};
