/*
 * panda template build, save, builds, logs - templates of one's own
 * A directory becomes a form: each file is a part, whose field name is its path in the directory.
 */
#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/commands.h"
#include "cli/show.h"

enum {
	CONTEXT_MAX = 50 << 20, /* the server takes no more */
};

#define BOUNDARY "panda-8f1d0c6e5b7a49"

/* A quote in a path would end it early; nobody means that. */
static bool plain(const char *path)
{
	for (; *path; path++)
		if (*path == '"' || *path == '\\' || (unsigned char)*path < ' ')
			return false;
	return true;
}

static int put_file(FILE *to, const char *field, const char *path, bool file)
{
	autofclose FILE *f = fopen(path, "re");
	char buf[65536];
	size_t n;

	if (!f)
		return cli_die("cannot open %s: %s", path, strerror(errno));
	fprintf(to, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n",
	        field, file ? "; filename=\"file\"" : "");
	while ((n = fread(buf, 1, sizeof(buf), f)))
		fwrite(buf, 1, n, to);
	fputs("\r\n", to);
	return ferror(f) ? cli_die("cannot read %s: %s", path, strerror(errno)) : CLI_OK;
}

static void put_field(FILE *to, const char *field, const char *value)
{
	fprintf(to, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n",
	        field, value);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int put_directory(FILE *to, char *dir)
{
	char *roots[] = {dir, NULL};
	FTS *t = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	size_t skip = strlen(dir) + (dir[strlen(dir) - 1] != '/');
	int code = t ? CLI_OK : cli_die("cannot read %s: %s", dir, strerror(errno));
	off_t all = 0;
	FTSENT *f;

	while (!code && t && (f = fts_read(t))) {
		if (f->fts_info == FTS_D && !strcmp(f->fts_name, ".git")) {
			fts_set(t, f, FTS_SKIP);
		} else if (f->fts_info == FTS_SL || f->fts_info == FTS_SLNONE ||
		           f->fts_info == FTS_DEFAULT) {
			fprintf(stderr, "panda: left out, not a plain file: %s\n", f->fts_path);
		} else if (f->fts_info == FTS_DNR || f->fts_info == FTS_ERR ||
		           f->fts_info == FTS_NS) {
			code = cli_die("cannot read %s: %s", f->fts_path, strerror(f->fts_errno));
		} else if (f->fts_info == FTS_F) {
			all += f->fts_statp->st_size;
			if (all > CONTEXT_MAX)
				code = cli_die("%s has more than %d MB of files: leave out what "
				               "the build does not need",
				               dir, CONTEXT_MAX >> 20);
			else if (!plain(f->fts_path + skip))
				code = cli_die("'%s' cannot be sent: rename it", f->fts_path);
			else
				code = put_file(to, f->fts_path + skip, f->fts_path, true);
		}
	}
	if (t)
		fts_close(t);
	return code;
}

static ssize_t from_file(void *arg, void *buf, size_t n)
{
	size_t k = fread(buf, 1, n, arg);

	return ferror((FILE *)arg) ? -EIO : (ssize_t)k;
}

/* With --json the log goes where it does not disturb. */
static int print_line(void *arg, const struct panda_event *ev)
{
	const struct cli *c = arg;
	FILE *to = c->json ? stderr : stdout;
	autojson json_t *j = json_loadb(ev->data, ev->len, 0, NULL);

	if (!strcmp(ev->name, "done"))
		return 1;
	fprintf(to, "%s\n", js(j, "line"));
	return fflush(to) == 0 ? 0 : -errno;
}

static int follow(struct cli *c, const char *id, bool stay)
{
	autofree char *path = panda_path("/v1/templates/builds/%s/logs?follow=%d", id, (int)stay);
	struct panda_error e;
	int r;

	if (!path)
		return cli_die("out of memory");
	r = panda_events(c->panda, "GET", path, NULL, print_line, c, &e);
	return r < 0 ? cli_say(c, &e) : CLI_OK;
}

/* To its end, with its log. */
static int watch(struct cli *c, const char *id)
{
	autojson json_t *b = NULL;

	if (follow(c, id, true) ||
	    cli_call(c, "GET", panda_path("/v1/templates/builds/%s", id), NULL, &b))
		return CLI_PANDA;
	if (c->json)
		cli_json(b);
	if (!strcmp(js(b, "status"), "failed"))
		return cli_die("%s", js(b, "error"));
	return CLI_OK;
}

int cmd_template_build(struct cli *c)
{
	autojson json_t *args = json_object(), *b = NULL;
	autofree char *text = NULL, *file = NULL;
	autofclose FILE *form = NULL;
	struct panda_error e;
	char *dir;

	if (cli_args(c, 1, 2) || cli_pairs(c, KEY_ARG, args) || cli_open(c))
		return CLI_PANDA;
	dir = c->argc > 1 ? c->argv[1] : NULL;
	if (cli_str(c, 'f', NULL))
		file = strdup(cli_str(c, 'f', NULL));
	else if (asprintf(&file, "%s/Dockerfile", dir ? dir : ".") < 0)
		file = NULL;
	form = tmpfile();
	text = json_dumps(args, JSON_COMPACT);
	if (!file || !form || !text)
		return cli_die("out of memory");
	put_field(form, "name", c->argv[0]);
	if (cli_has(c, KEY_REPLACE))
		put_field(form, "replace", "true");
	if (json_object_size(args))
		put_field(form, "build_args", text);
	if (put_file(form, "dockerfile", file, false) || (dir && *dir && put_directory(form, dir)))
		return CLI_PANDA;
	fputs("--" BOUNDARY "--\r\n", form);
	if (fflush(form) != 0)
		return cli_die("cannot keep what is to be sent: %s", strerror(errno));
	{
		long n = ftell(form);

		rewind(form);
		if (panda_upload_as(c->panda, "POST", "/v1/templates/build",
		                    "multipart/form-data; boundary=" BOUNDARY, n, from_file, form,
		                    &b, &e) < 0)
			return cli_say(c, &e);
	}
	if (cli_has(c, 'd')) {
		if (c->json)
			cli_json(b);
		else
			printf("%s\n", js(b, "id"));
		return CLI_OK;
	}
	fprintf(stderr, "panda: build %s\n", js(b, "id"));
	return watch(c, js(b, "id"));
}

int cmd_template_save(struct cli *c)
{
	autojson json_t *body = NULL, *v = NULL;
	char id[CLI_ID];

	if (cli_args(c, 2, 2) || cli_open(c) || cli_id(c, c->argv[0], id))
		return CLI_PANDA;
	body = json_pack("{s:s, s:b}", "name", c->argv[1], "replace", cli_has(c, KEY_REPLACE));
	if (!body)
		return cli_bad(c, "the name is not UTF-8");
	if (cli_call(c, "POST", panda_path("/v1/sandboxes/%s/save-as-template", id), body, &v))
		return CLI_PANDA;
	if (c->json)
		cli_json(v);
	else
		printf("%s\n", js(v, "name"));
	return CLI_OK;
}

int cmd_template_builds(struct cli *c)
{
	autojson json_t *reply = NULL;
	struct table t;
	char age[16];
	json_t *v;
	size_t i;

	if (cli_args(c, 0, 0) ||
	    cli_call(c, "GET", panda_path("/v1/templates/builds"), NULL, &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(cli_list(reply, "items"));
		return CLI_OK;
	}
	table_init(&t, "BUILD TEMPLATE STATUS AGE ERROR");
	json_array_foreach((json_t *)cli_list(reply, "items"), i, v)
	{
		show_age(js(v, "started_at"), time(NULL), age, sizeof(age));
		table_add(&t, "%s", js(v, "id"));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%s", js(v, "status"));
		table_add(&t, "%s", age);
		table_add(&t, "%.80s", js(v, "error"));
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

int cmd_template_logs(struct cli *c)
{
	if (cli_args(c, 1, 1) || cli_open(c))
		return CLI_PANDA;
	return follow(c, c->argv[0], true);
}
