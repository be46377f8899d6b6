/*
 * template/build_copy.c - COPY and ADD
 * Files of the context and of other stages reach a machine through its agent only. Paths in the
 * context are compared, never opened: on the host its files are called c0, c1, ...
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dockerignore.h"
#include "base/err.h"
#include "base/glob.h"
#include "base/io.h"
#include "base/macro.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "wire/guest.h"

extern const unsigned char panda_tool[];
extern const size_t panda_tool_len;

#define TOOL BUILD_TOOL
/* Those a file is not itself without; tar would take only the users' own. */
#define XATTRS "--xattrs", "--xattrs-include=user.*", "--xattrs-include=security.capability"

enum {
	MATCHES_MAX = 256 << 10, /* bytes of what a pattern of COPY --from stands for */
};

struct build_copy {
	struct stage *st;
	const struct docker_step *step;
	char dest[PATH_MAX];
	bool into;    /* dest is a directory */
	mode_t mode;  /* 0: as the file is */
	char *owner;  /* or NULL */
	int listed;   /* what was made, for chown: paths, each with a NUL; -1: none asked for */
	size_t files; /* written */
	char known[PATH_MAX]; /* a directory that is there */
	char last[PATH_MAX];  /* the file written last */
};

int build_spool(struct stage *st)
{
	int fd = openat(st->b->order->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd < 0 && errno == EOPNOTSUPP) { /* not every file system has those */
		fd = openat(st->b->order->dir, "spool", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
		            0600);
		unlinkat(st->b->order->dir, "spool", 0);
	}
	return fd < 0 ? err_set(st->e, errno, "disk_full", "no room to copy: %s", strerror(errno))
	              : fd;
}

/* Where to: absolute, without a slash at its end. */
static int destination(struct build_copy *c, const char *word, bool many)
{
	struct stage *st = c->st;
	struct wire_file f;
	size_t n = strlen(word);
	bool dir = many || c->step->parents || !n || word[n - 1] == '/' || !strcmp(word, ".") ||
	           (n > 1 && !strcmp(word + n - 2, "/."));
	int r = build_path(st, c->step, word, c->dest);

	if (r < 0)
		return r;
	for (n = strlen(c->dest); n > 1 && c->dest[n - 1] == '/'; n--)
		c->dest[n - 1] = 0;
	if (!dir && st->guest) {
		build_short(st->b, st->guest);
		dir = guest_stat(st->guest, c->dest, true, &f, NULL) == 0 && S_ISDIR(f.mode);
	}
	c->into = dir;
	return 0;
}

static int list(struct build_copy *c, const char *path)
{
	if (c->listed < 0 || io_write_full(c->listed, path, strlen(path) + 1) == 0)
		return 0;
	return err_set(c->st->e, EIO, "disk_full", "no room to copy");
}

/* The directory is there, and what is new of it and above it is listed. */
static int make_directory(struct build_copy *c, const char *path)
{
	struct stage *st = c->st;
	char up[PATH_MAX];
	struct wire_file f;
	int r;

	if (c->listed < 0)
		return 0; /* the step that writes into it makes it */
	for (size_t n = *path ? 1 : 0; n && path[n - 1]; n++) {
		if (path[n] && path[n] != '/')
			continue;
		if (!strncmp(c->known, path, n) && (!c->known[n] || c->known[n] == '/'))
			continue;
		snprintf(up, sizeof(up), "%.*s", (int)n, path);
		build_short(st->b, st->guest);
		if (guest_stat(st->guest, up, true, &f, NULL) == 0)
			continue;
		r = guest_mkdir(st->guest, up, 0755, false, st->e);
		if (r == 0)
			r = list(c, up);
		if (r < 0)
			return r;
	}
	snprintf(c->known, sizeof(c->known), "%s", path);
	return 0;
}

/* Writes one file below dest (or as dest, when rel is NULL). */
static int put_file(struct build_copy *c, const char *rel, int fd, mode_t mode)
{
	struct stage *st = c->st;
	char path[PATH_MAX], up[PATH_MAX];
	int n =
	    rel ? snprintf(path, sizeof(path), "%s/%s", strcmp(c->dest, "/") ? c->dest : "", rel)
		: snprintf(path, sizeof(path), "%s", c->dest);
	int r;

	if (n < 0 || (size_t)n >= sizeof(path))
		return build_bad(st, c->step, "a path is too long");
	if (lseek(fd, 0, SEEK_SET) < 0)
		return err_set(st->e, errno, "internal", "cannot read the context");
	snprintf(up, sizeof(up), "%.*s", (int)(strrchr(path, '/') - path), path);
	r = build_stopped(st->b, st->e);
	if (r == 0)
		r = make_directory(c, up);
	build_short(st->b, st->guest);
	if (r == 0)
		r = guest_write_from_fd(st->guest, path, fd, WIRE_WRITE_PARENTS,
		                        c->mode ? c->mode : mode, st->e);
	if (build_why(st->b, r, st->e) < 0)
		return err_prefix(st->e, "Dockerfile:%u", c->step->line);
	c->files++;
	snprintf(c->last, sizeof(c->last), "%s", path);
	return list(c, path);
}

/* Does this file belong to the source? Then what it is called below it. */
const char *build_below(const char *source, const char *path, bool *ret_whole)
{
	char head[BUILD_PATH_MAX + 1];
	size_t parts = 1, n = 0;

	*ret_whole = false;
	if (!*source)
		return path;
	for (const char *p = source; *p; p++)
		parts += *p == '/';
	while (path[n] && (path[n] != '/' || --parts))
		n++;
	snprintf(head, sizeof(head), "%.*s", (int)n, path);
	if (strcmp(source, head) != 0 && !glob_match(source, head))
		return NULL;
	if (path[n])
		return path + n + 1;
	*ret_whole = true;
	return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

/* "./a/" is "a", "." is "": as the paths of the context are. */
int build_source(struct stage *st, const struct docker_step *step, char *s)
{
	char *to = s;

	for (const char *p = s; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 2 && !memcmp(p, "..", 2))
			return build_bad(st, step, "'%.80s' leads out of the context", s);
		if (n && !(n == 1 && *p == '.')) {
			if (to > s)
				*to++ = '/';
			memmove(to, p, n);
			to += n;
		}
		p += n;
		p += *p == '/';
	}
	*to = 0;
	return 0;
}

static char *untar_flag(const char *path)
{
	static const struct {
		const char *end;
		char *flag;
	} known[] = {{".tar", "-xf"},     {".tar.gz", "-xzf"},  {".tgz", "-xzf"},
	             {".tar.xz", "-xJf"}, {".tar.bz2", "-xjf"}, {".tbz2", "-xjf"}};
	size_t n = strlen(path);

	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (n > strlen(known[i].end) &&
		    !strcmp(path + n - strlen(known[i].end), known[i].end))
			return known[i].flag;
	return NULL;
}

int build_hand(struct stage *st, const struct docker_step *step, struct guest *g, char *const *argv,
               int in, int out)
{
	struct wire_file f;
	int r = 0;

	build_short(st->b, g);
	if (guest_stat(g, BUILD_TOOL, false, &f, NULL) < 0 || f.size != panda_tool_len)
		r = guest_write_file(g, BUILD_TOOL, panda_tool, panda_tool_len, WIRE_WRITE_PARENTS,
		                     0700, st->e);
	return r < 0 ? r : build_tool(st, step, g, argv, in, out);
}

static int tool(struct build_copy *c, struct guest *g, char *const *argv, int in, int out)
{
	return build_hand(c->st, c->step, g, argv, in, out);
}

/* What tar -v said it has made, below dest. Of dest itself make_directory() has taken care. */
static int list_unpacked(struct build_copy *c, int names)
{
	autofclose FILE *in = fdopen(dup(names), "r");
	autofclose FILE *out = fdopen(dup(c->listed), "a");
	bool first = true;
	int ch;

	if (!in || !out)
		return -ENOMEM;
	rewind(in);
	if (fgetc(in) != '.' || fgetc(in) != '/' || fgetc(in) != '\n')
		rewind(in);
	for (; (ch = fgetc(in)) != EOF; first = ch == '\n') {
		if (first)
			fprintf(out, "%s/", strcmp(c->dest, "/") ? c->dest : "");
		fputc(ch == '\n' ? 0 : ch, out);
	}
	return ferror(in) || fflush(out) != 0 ? -EIO : 0;
}

/* Existing directories stay as they are: "/" does not become what some directory was. */
static int unpack(struct build_copy *c, int fd, char *flag)
{
	struct stage *st = c->st;
	char *verbose = c->listed < 0 ? NULL : "-v"; /* the last word, if there is none */
	char *argv[] = {TOOL,    "at",
	                c->dest, "tar",
	                XATTRS,  "--no-overwrite-dir",
	                flag,    "-",
	                verbose, "--quoting-style=literal",
	                NULL};
	autoclose int names = -1;
	int r = make_directory(c, c->dest);

	build_short(st->b, st->guest);
	if (r == 0)
		r = guest_mkdir(st->guest, c->dest, 0755, true, st->e);
	if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
		r = err_set(st->e, errno, "internal", "cannot read what is to be copied");
	if (r == 0 && c->listed >= 0) {
		names = build_spool(st);
		r = names < 0 ? names : 0;
	}
	if (r == 0)
		r = tool(c, st->guest, argv, fd, names);
	if (r == 0 && c->listed >= 0 && list_unpacked(c, names) < 0)
		r = err_set(st->e, EIO, "disk_full", "no room to copy");
	c->files++;
	return r;
}

static int several(struct build_copy *c, const char *source)
{
	return build_bad(c->st, c->step,
	                 "'%.60s' are several files: a destination that ends with '/' is a "
	                 "directory for them",
	                 source);
}

static int from_context(struct build_copy *c, char *source)
{
	struct stage *st = c->st;
	struct build_order *o = st->b->order;
	size_t before = c->files;
	int r = build_source(st, c->step, source);

	for (size_t i = 0; r == 0 && i < o->nfiles; i++) {
		bool whole;
		const char *rel = build_below(source, o->files[i].path, &whole);
		char name[32], *flag;
		autoclose int fd = -1;

		if (!rel || o->files[i].left_out)
			continue;
		snprintf(name, sizeof(name), "c%zu", i);
		fd = openat(o->dir, name, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return err_set(st->e, errno, "internal", "the context is gone");
		flag = c->step->op == DOCKER_ADD && whole ? untar_flag(o->files[i].path) : NULL;
		if (c->step->parents)
			rel = o->files[i].path;
		if (whole && !flag && !c->into && c->files > before)
			return several(c, source);
		r = flag ? unpack(c, fd, flag)
		         : put_file(c, whole && !c->into ? NULL : rel, fd,
		                    o->files[i].program ? 0755 : 0644);
	}
	if (r == 0 && c->files == before)
		return build_bad(st, c->step, "'%.80s' is not in the context (%zu files were sent)",
		                 source, o->nfiles);
	return r;
}

static int give_to(struct build_copy *c, char *owner)
{
	char *argv[] = {TOOL, "chown", owner, NULL};

	if (lseek(c->listed, 0, SEEK_SET) < 0)
		return err_set(c->st->e, errno, "internal", "cannot read what was copied");
	return tool(c, c->st->guest, argv, c->listed, -1);
}

/* One file or directory of another stage, or of an image. */
static int from_path(struct build_copy *c, char *path, struct guest *g)
{
	struct stage *st = c->st;
	autoclose int spool = build_spool(st);
	struct wire_file f;
	char owner[32];
	int r;

	if (spool < 0)
		return spool;
	build_short(st->b, g);
	if (guest_stat(g, path, true, &f, NULL) < 0)
		return build_bad(st, c->step, "there is no '%.80s' in there", path);
	if (S_ISDIR(f.mode)) {
		char *pack[] = {TOOL,  "at", path,          "tar", XATTRS, "--one-file-system",
		                "-cf", "-",  "--sort=name", ".",   NULL};

		r = tool(c, g, pack, -1, spool);
		return r < 0 ? r : unpack(c, spool, "-xf");
	}
	r = guest_read_to_fd(g, path, spool, BUILD_SPOOL_MAX, st->e);
	if (r == 0)
		r = put_file(c, c->into ? strrchr(path, '/') + 1 : NULL, spool, f.mode & 07777);
	if (r < 0 || c->owner || !(f.uid || f.gid))
		return r;
	/* it stays whose it was */
	c->listed = build_spool(st);
	snprintf(owner, sizeof(owner), "%u:%u", f.uid, f.gid);
	r = c->listed < 0 ? c->listed : list(c, c->last);
	if (r == 0)
		r = give_to(c, owner);
	closep(&c->listed);
	c->listed = -1;
	return r;
}

/* A path in there, or a pattern. */
static int from_stage(struct build_copy *c, const char *source, struct guest *g)
{
	struct stage *st = c->st;
	char pattern[PATH_MAX], *argv[] = {TOOL, "glob", pattern, NULL};
	autofree char *found = NULL;
	autoclose int names = -1;
	size_t before = c->files;
	ssize_t n;
	int r = 0;

	if (snprintf(pattern, sizeof(pattern), "%s%s", *source == '/' ? "" : "/", source) >=
	    PATH_MAX)
		return build_bad(st, c->step, "a path is too long");
	if (!strpbrk(pattern, "*?["))
		return from_path(c, pattern, g);
	names = build_spool(st);
	found = malloc(MATCHES_MAX + 1);
	if (names < 0 || !found)
		return names < 0 ? names : err_nomem(st->e);
	r = tool(c, g, argv, -1, names);
	if (r < 0)
		return r;
	n = pread(names, found, MATCHES_MAX + 1, 0);
	if (n < 0 || n > MATCHES_MAX)
		return build_bad(st, c->step, "'%.80s' matches too many files", pattern);
	found[n] = 0;
	for (char *p = found; r == 0 && p < found + n; p += strlen(p) + 1) {
		if (strlen(p) >= PATH_MAX || *p != '/')
			return build_bad(st, c->step, "'%.80s' matches nonsense", pattern);
		if (c->files > before && !c->into)
			return several(c, pattern);
		r = from_path(c, p, g);
	}
	if (r == 0 && c->files == before)
		return build_bad(st, c->step, "nothing in there matches '%.80s'", pattern);
	return r;
}

static int from_heredoc(struct build_copy *c, const struct docker_heredoc *h)
{
	struct stage *st = c->st;
	autoclose int fd = memfd_create("heredoc", MFD_CLOEXEC);
	autofree char *text = NULL;
	int r = 0;

	if (h->expand)
		r = dockerfile_expand(h->text, st->b->file->escape, false, c->step->line,
		                      build_variable, st, &text, st->e);
	if (r == 0 &&
	    (fd < 0 || io_write_full(fd, text ? text : h->text, strlen(text ? text : h->text)) < 0))
		r = err_nomem(st->e);
	return r < 0 ? r : put_file(c, c->into ? h->name : NULL, fd, 0644);
}

static int copy_all(struct build_copy *c, char **words, size_t n)
{
	struct stage *st = c->st;
	const struct docker_step *step = c->step;
	struct build_stage *other = step->from >= 0 ? &st->b->stages[step->from] : NULL;
	char machine[ENGINE_ID_MAX + 1] = "";
	struct guest *g = NULL;
	size_t doc = 0;
	int r = other ? build_start(st->b, &other->image, false, NULL, machine, &g, st->e) : 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		if (!strncmp(step->words[i], "<<", 2) && doc < step->nheredocs)
			r = from_heredoc(c, &step->heredocs[doc++]);
		else if (g)
			r = from_stage(c, words[i], g);
		else if (step->op == DOCKER_ADD && strstr(words[i], "://"))
			r = build_bad(st, step,
			              "ADD does not fetch: use RUN curl, where the network rules "
			              "of a sandbox hold");
		else
			r = from_context(c, words[i]);
	}
	guest_free(g);
	if (machine[0])
		machine_remove(st->b->order->depot->machines, machine, NULL);
	return r;
}

int build_copy(struct stage *st, const struct docker_step *step)
{
	struct build_copy c = {.st = st, .step = step, .listed = -1};
	size_t n = step->nwords - 1;
	AUTO(build_free_list) char **words = calloc(step->nwords + 1, sizeof(*words));
	autofree char *chmod_text = NULL;
	int r = words ? 0 : err_nomem(st->e);

	for (size_t i = 0; r == 0 && i < step->nwords; i++)
		r = build_expand(st, step, step->words[i], &words[i]);
	if (r == 0 && step->chown)
		r = build_expand(st, step, step->chown, &c.owner);
	if (r == 0 && step->chmod)
		r = build_expand(st, step, step->chmod, &chmod_text);
	if (r == 0 && chmod_text) {
		char *end;

		c.mode = (mode_t)strtoul(chmod_text, &end, 8);
		if (*end || !*chmod_text || c.mode > 07777 || !c.mode)
			r = build_bad(st, step, "--chmod takes a number such as 755");
	}
	if (r == 0 && c.owner) {
		c.listed = build_spool(st);
		r = c.listed < 0 ? c.listed : 0;
	}
	if (r == 0)
		r = destination(&c, words[n], n > 1);
	if (r == 0)
		r = copy_all(&c, words, n);
	if (r == 0 && c.owner)
		r = give_to(&c, c.owner);
	closep(&c.listed);
	free(c.owner);
	return r;
}

void build_ignore(struct build *b)
{
	struct build_order *o = b->order;
	autofree char *text = NULL;
	char name[32];

	for (size_t i = 0; i < o->nfiles && !text; i++)
		if (!strcmp(o->files[i].path, IGNORE_FILE)) {
			snprintf(name, sizeof(name), "c%zu", i);
			if (io_read_file(o->dir, name, IGNORE_MAX, &text, NULL) < 0) {
				build_say(b,
				          "the " IGNORE_FILE
				          " is not looked at: it is longer than %d KiB",
				          IGNORE_MAX >> 10);
				return;
			}
		}
	for (size_t i = 0; text && i < o->nfiles && build_stopped(b, NULL) == 0; i++)
		o->files[i].left_out = ignore_leaves_out(text, o->files[i].path);
}
