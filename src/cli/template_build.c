/*
 * panda template build, import, save, builds, logs - templates of one's own
 * A directory becomes a form: each file is a part, whose field name is its path in the directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dockerignore.h"
#include "base/io.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

enum {
	CONTEXT_MAX = 50 << 20, /* the server takes no more */
};

#define BOUNDARY "panda-8f1d0c6e5b7a49"

/* A quote in a path would end it early; no user means that. */
static bool plain(const char *path)
{
	for (; *path; path++)
		if (*path == '"' || *path == '\\' || (unsigned char)*path < ' ')
			return false;
	return true;
}

static void put_head(FILE *to, const char *field, bool file)
{
	fprintf(to, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n",
	        field, file ? "; filename=\"file\"" : "");
}

static int put_file(FILE *to, const char *field, const char *path, bool file)
{
	autofclose FILE *f = fopen(path, "re");
	char buf[65536];
	size_t n;

	if (!f)
		return cli_die("cannot open %s: %s", path, strerror(errno));
	put_head(to, field, file);
	while ((n = fread(buf, 1, sizeof(buf), f)))
		fwrite(buf, 1, n, to);
	fputs("\r\n", to);
	return ferror(f) ? cli_die("cannot read %s: %s", path, strerror(errno)) : CLI_OK;
}

static void put_field(FILE *to, const char *field, const char *value)
{
	put_head(to, field, false);
	fprintf(to, "%s\r\n", value);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Caller frees *ret; NULL: there is none. */
static int read_ignore(const char *dir, char **ret)
{
	autofree char *path = NULL;
	int r = asprintf(&path, "%s/" IGNORE_FILE, dir) < 0 ? -ENOMEM : 0;

	if (r == 0)
		r = io_read_file(AT_FDCWD, path, IGNORE_MAX, ret, NULL);
	return r == 0 || r == -ENOENT ? CLI_OK : cli_die("cannot read %s: %s", path, strerror(-r));
}

static int put_directory(FILE *to, char *dir)
{
	char *roots[] = {dir, NULL};
	FTS *t = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	size_t skip = strlen(dir) + (dir[strlen(dir) - 1] != '/');
	int code = t ? CLI_OK : cli_die("cannot read %s: %s", dir, strerror(errno));
	autofree char *ignore = NULL;
	off_t all = 0;
	FTSENT *f;

	if (!code)
		code = read_ignore(dir, &ignore);
	while (!code && t && (f = fts_read(t))) {
		bool out = f->fts_level > 0 && ignore_leaves_out(ignore, f->fts_path + skip);

		if (f->fts_info == FTS_D &&
		    (!strcmp(f->fts_name, ".git") || (out && !ignore_has_exceptions(ignore)))) {
			fts_set(t, f, FTS_SKIP);
		} else if (out) {
			continue;
		} else if (f->fts_info == FTS_SL || f->fts_info == FTS_SLNONE ||
		           f->fts_info == FTS_DEFAULT) {
			fprintf(stderr, "panda: left out, not a plain file: %s\n", f->fts_path);
		} else if (f->fts_info == FTS_DNR || f->fts_info == FTS_ERR ||
		           f->fts_info == FTS_NS) {
			code = cli_die("cannot read %s: %s", f->fts_path, strerror(f->fts_errno));
		} else if (f->fts_info == FTS_F) {
			all += f->fts_statp->st_size;
			if (all > CONTEXT_MAX)
				code = cli_die("%s has more than %d MB of files: name what the "
				               "build does not need in " IGNORE_FILE,
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

/* What is sent: a form, then maybe a file that is too large to be copied into it, then its end. */
struct context_upload {
	FILE *part[3];
	size_t at;
};

static ssize_t read_upload(void *arg, void *buf, size_t n)
{
	struct context_upload *u = arg;

	for (; u->at < ARRAY_LEN(u->part); u->at++) {
		FILE *f = u->part[u->at];
		size_t k = f ? fread(buf, 1, n, f) : 0;

		if (f && ferror(f))
			return -EIO;
		if (k)
			return (ssize_t)k;
	}
	return 0;
}

/* With --json the log goes where it does not disturb. */
static int print_line(void *arg, const struct panda_event *ev)
{
	const struct cli *c = arg;
	FILE *to = c->json ? stderr : stdout;
	autojson json_t *j = json_loadb(ev->data, ev->len, 0, NULL);

	if (!strcmp(ev->name, "done"))
		return 1;
	show_said(js(j, "line"), to); /* its commands wrote it */
	fputc('\n', to);
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
	if (r < 0)
		return !strcmp(e.code, "stopped") ? cli_unwritten(-r) : cli_say(c, &e);
	return CLI_OK;
}

/* To its end, with its log. */
static int watch(struct cli *c, const char *id)
{
	autojson json_t *b = NULL;
	char why[1024];

	if (follow(c, id, true) ||
	    cli_call(c, "GET", panda_path("/v1/templates/builds/%s", id), &b))
		return CLI_PANDA;
	if (c->json)
		cli_json(b);
	if (!strcmp(js(b, "status"), "failed")) {
		show_clean(js(b, "error"), why, sizeof(why)); /* its commands had a say in it */
		return cli_die("%s", why);
	}
	if (strcmp(js(b, "status"), "done") != 0) /* pandad left, perhaps */
		return cli_die("the log ended before the build did: `panda template logs %s` goes "
		               "on",
		               id);
	return CLI_OK;
}

/* The form is complete, but for a file (or NULL): sends it, and sees what comes of it. */
static int order(struct cli *c, FILE *form, FILE *file)
{
	autofclose FILE *end = tmpfile();
	struct context_upload u = {.part = {form, file, end}};
	autojson json_t *b = NULL;
	struct panda_error e;
	off_t n = 0;

	if (!end || fprintf(end, "%s--" BOUNDARY "--\r\n", file ? "\r\n" : "") < 0)
		return cli_die("cannot keep what is to be sent: %s", strerror(errno));
	for (size_t i = 0; i < ARRAY_LEN(u.part); i++) {
		FILE *f = u.part[i];

		if (f && (fflush(f) != 0 || ferror(f) || fseeko(f, 0, SEEK_END) != 0))
			return cli_die("cannot keep what is to be sent: %s", strerror(errno));
		n += f ? ftello(f) : 0;
		if (f)
			rewind(f);
	}
	if (panda_upload_as(c->panda, "POST", "/v1/templates/build",
	                    "multipart/form-data; boundary=" BOUNDARY, n, read_upload, &u, &b,
	                    &e) < 0)
		return cli_say(c, &e);
	if (cli_has(c, 'd'))
		return cli_made(c, b, "id");
	fprintf(stderr, "panda: build %s\n", js(b, "id"));
	return watch(c, js(b, "id"));
}

int cmd_template_import(struct cli *c)
{
	const char *name = cli_str(c, KEY_NAME, NULL), *image = cli_str(c, KEY_IMAGE, NULL);
	autofclose FILE *form = NULL, *file = NULL;
	struct stat st;

	if (cli_args(c, 1, 1) || cli_open(c))
		return CLI_PANDA;
	if (!name)
		return cli_bad(c, "say what the template is to be called: --name NAME");
	file = fopen(c->argv[0], "re");
	if (!file || fstat(fileno(file), &st) < 0)
		return cli_die("cannot open %s: %s", c->argv[0], strerror(errno));
	if (!S_ISREG(st.st_mode))
		return cli_die("%s is no archive: say 'docker save IMAGE -o FILE', or pack the "
		               "directory of an OCI layout with tar",
		               c->argv[0]);
	form = tmpfile();
	if (!form)
		return cli_die("no place for what is to be sent: %s", strerror(errno));
	put_field(form, "name", name);
	if (image)
		put_field(form, "image_ref", image);
	if (cli_has(c, KEY_REPLACE))
		put_field(form, "replace", "true");
	put_head(form, "rootfs", true);
	return order(c, form, file);
}

int cmd_template_build(struct cli *c)
{
	autojson json_t *args = json_object();
	autofree char *text = NULL, *file = NULL;
	autofclose FILE *form = NULL;
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
	return order(c, form, NULL);
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
	if (cli_send(c, "POST", panda_path("/v1/sandboxes/%s/save-as-template", id), take_ptr(body),
	             &v))
		return CLI_PANDA;
	return cli_made(c, v, "name");
}

int cmd_template_builds(struct cli *c)
{
	autojson json_t *reply = NULL;
	struct table t;
	char age[16], why[81];
	json_t *v;
	size_t i;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/templates/builds"), &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(cli_list(reply, "items"));
		return CLI_OK;
	}
	table_init(&t, "BUILD TEMPLATE STATUS AGE ERROR");
	json_array_foreach((json_t *)cli_list(reply, "items"), i, v) {
		show_age(js(v, "started_at"), time(NULL), age, sizeof(age));
		table_add(&t, "%s", js(v, "id"));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%s", js(v, "status"));
		table_add(&t, "%s", age);
		show_clean(js(v, "error"), why, sizeof(why));
		table_add(&t, "%s", why);
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
