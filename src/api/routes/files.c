/*
 * api/routes/files.c - files of a sandbox: read and written as streams of any size
 */
#include "api/routes/files.h"
#include "api/routes/routes.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "api/api.h"
#include "api/streams/body.h"
#include "api/streams/credit.h"
#include "api/streams/job.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/host.h"
#include "http/server.h"
#include "machine/guest.h"
#include "wire/guest.h"

/* A path as the API takes it: absolute, of a length a kernel accepts. False: answered with 400. */
static bool file_path(struct call *c, const char *key, const char *path)
{
	if (path && *path == '/' && strlen(path) < PATH_MAX)
		return true;
	if (!path || !*path)
		call_fail(c, EINVAL, "bad_path", "%s required: the absolute path of a file", key);
	else if (*path != '/')
		call_fail(c, EINVAL, "bad_path", "%s '%.100s' is relative: it must begin with '/'",
		          key, path);
	else
		call_fail(c, EINVAL, "bad_path", "%s is longer than %d bytes", key, PATH_MAX - 1);
	return false;
}

char *file_query_path(struct call *c, const char *otherwise)
{
	char *path = call_query(c, "path");

	if ((!path || !*path) && otherwise) {
		free(path);
		path = strdup(otherwise);
	}
	if (file_path(c, "path", path))
		return path;
	free(path);
	return NULL;
}

/* "0644" or "644". 0 when it is not given; false when answered. */
static bool file_mode(struct call *c, const char *text, uint32_t *ret)
{
	char *end;
	unsigned long v;

	*ret = 0;
	if (!text)
		return true;
	v = strtoul(text, &end, 8);
	if (*text >= '0' && *text <= '7' && !*end && v <= 07777 && v) {
		*ret = (uint32_t)v;
		return true;
	}
	call_fail(c, EINVAL, "bad_request", "mode must be octal, like \"0644\"");
	return false;
}

static char type_letter(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFCHR:
		return 'c';
	case S_IFBLK:
		return 'b';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	}
	return 'f';
}

json_t *show_file(const struct wire_file *m, const char *name, size_t name_len, const char *path)
{
	char letter[2] = {type_letter(m->mode)}, perm[8];
	json_t *j = json_object();

	snprintf(perm, sizeof(perm), "%04o", m->mode & 07777);
	json_object_set_new(j, "name", json_text(name, name_len));
	json_object_set_new(j, "path", json_text(path, strlen(path)));
	json_object_set_new(j, "is_dir", json_boolean(S_ISDIR(m->mode)));
	json_object_set_new(j, "size", json_integer((json_int_t)m->size));
	json_object_set_new(j, "mode", json_string(letter));
	json_object_set_new(j, "perm", json_string(perm));
	json_object_set_new(j, "uid", json_integer(m->uid));
	json_object_set_new(j, "gid", json_integer(m->gid));
	json_object_set_new(j, "mtime", json_integer((json_int_t)(m->mtime_ns / 1000000000u)));
	if (S_ISLNK(m->mode))
		json_object_set_new(j, "target", json_text(m->target.p, m->target.len));
	return j;
}

static void fail_on(struct call *c, const struct job_end *end, const char *verb, const char *path)
{
	char what[160];

	snprintf(what, sizeof(what), "cannot %s '%.110s'", verb, path);
	job_fail(c, end, what);
}

/* ---- read ---- */

struct reading {
	struct call *c;
	struct job *j;
	char *path;
	uint64_t offset, length; /* the range, length UINT64_MAX: to the end */
	uint64_t last;           /* the last so many bytes are wanted; 0: offset says from where */
	bool range, whole;       /* whole: all that was promised has been sent */
	uint64_t left;           /* of what was promised; UINT64_MAX: nothing was */
	struct credit credit;
};

static void reading_free(struct reading *r)
{
	call_leave(r->c);
	free(r->path);
	free(r);
}

static bool digits(const char **p, uint64_t *ret)
{
	char *end;

	if (**p < '0' || **p > '9')
		return false;
	errno = 0;
	*ret = strtoull(*p, &end, 10);
	*p = end;
	return !errno && *ret <= INT64_MAX;
}

/* One range: "bytes=a-", "bytes=a-b" or "bytes=-n". Anything else is as if it were not there. */
static void read_range(struct reading *r, const char *text)
{
	uint64_t from = 0, to = INT64_MAX, last = 0;
	const char *p = text ? text + strlen("bytes=") : NULL;

	if (!text || strncmp(text, "bytes=", strlen("bytes=")) != 0)
		return;
	if (*p == '-') {
		p++;
		if (!digits(&p, &last) || !last)
			return;
	} else if (!digits(&p, &from) || *p++ != '-' || (*p && !digits(&p, &to)) || to < from) {
		return;
	}
	if (*p)
		return;
	r->range = true;
	r->offset = from;
	r->last = last;
	r->length = to - from + 1;
}

static void begin_reply(struct reading *r, int64_t length)
{
	if (r->c->req && !http_begun(r->c->req)) {
		http_add_header(r->c->req, "Accept-Ranges", "bytes");
		http_begin(r->c->req, r->range ? 206 : 200, "application/octet-stream", length);
	}
}

static void reading_file(struct reading *r, const struct wire_file *m)
{
	char text[80];

	if (!S_ISREG(m->mode) || !m->size) { /* /proc says 0, too: we will see */
		r->range = false;
		return;
	}
	if (r->range && r->offset >= m->size) {
		snprintf(text, sizeof(text), "bytes */%" PRIu64, m->size);
		if (r->c->req)
			http_add_header(r->c->req, "Content-Range", text);
		call_fail(r->c, ERANGE, "bad_range", "'%.100s' has %" PRIu64 " bytes", r->path,
		          m->size);
		job_abandon(r->j);
		reading_free(r);
		return;
	}
	r->left = MIN(m->size - r->offset, r->length);
	if (r->range) {
		snprintf(text, sizeof(text), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, r->offset,
		         r->offset + r->left - 1, m->size);
		if (r->c->req)
			http_add_header(r->c->req, "Content-Range", text);
	}
	begin_reply(r, (int64_t)r->left);
}

static void reading_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	if (type == WIRE_FILE)
		reading_file(arg, msg);
}

static void reading_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct reading *r = arg;
	size_t take = (size_t)MIN((uint64_t)n, r->left);

	if (r->whole) { /* it has grown meanwhile: that is not what was promised */
		job_cancel(j);
		return;
	}
	begin_reply(r, -1);
	if (r->c->req)
		http_send(r->c->req, p, take);
	if (r->left != UINT64_MAX)
		r->left -= take;
	if (!r->left) {
		r->whole = true;
		if (r->c->req)
			http_finish(r->c->req);
	}
	credit_owe(&r->credit, 0, n, r->whole || call_room(r->c));
}

static void reading_end(void *arg, struct job *j, const struct job_end *end)
{
	struct reading *r = arg;

	r->j = NULL;
	if (r->whole) {
		reading_free(r);
		return;
	}
	if (!end->e && !end->guest) {
		begin_reply(r, r->left == UINT64_MAX ? 0 : (int64_t)r->left);
		if (r->c->req)
			http_finish(r->c->req); /* cuts when it became shorter than promised */
	} else if (r->c->req && http_begun(r->c->req)) {
		http_cut(r->c->req);
	} else {
		fail_on(r->c, end, "read", r->path);
	}
	reading_free(r);
}

static void reading_gone(void *arg)
{
	struct reading *r = arg;

	job_abandon(r->j);
	reading_free(r);
}

/* HEAD: all of the head, and nothing is read. */
static void looking_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct reading *r = arg;
	const struct wire_file *m = msg;

	if (type != WIRE_FILE)
		return;
	if (S_ISDIR(m->mode))
		call_fail(r->c, EISDIR, "is_a_directory", "'%.100s' is a directory", r->path);
	else
		begin_reply(r, (int64_t)m->size);
}

static bool start_reading(struct reading *r, struct sandbox *sb, struct err *e)
{
	static const struct job_ops ops = {.data = reading_data,
	                                   .reply = reading_reply,
	                                   .end = reading_end};

	r->j = job_start(r->c->host, sb, WIRE_READ,
	                 &(struct wire_read){.path = wire_str(r->path),
	                                     .offset = r->offset,
	                                     .length = r->length,
	                                     .window = GUEST_WINDOW},
	                 &ops, r, e);
	return r->j;
}

/* The last n bytes begin somewhere: how long is it? */
static void measuring_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct reading *r = arg;
	const struct wire_file *m = msg;

	if (type == WIRE_FILE && m->size > r->last)
		r->offset = m->size - r->last;
}

static void measuring_end(void *arg, struct job *j, const struct job_end *end)
{
	struct reading *r = arg;
	struct sandbox *sb;
	struct err e;

	if (end->e || end->guest) {
		reading_end(r, j, end);
		return;
	}
	r->j = NULL;
	sb = host_find(r->c->host, r->c->tenant, r->c->param[0]);
	if (!sb)
		err_set(&e, ENOENT, "sandbox_not_found", "sandbox not found");
	if (!sb || !start_reading(r, sb, &e)) {
		call_error(r->c, &e);
		reading_free(r);
	}
}

void files_read(struct call *c)
{
	static const struct job_ops look_ops = {.reply = looking_reply, .end = reading_end};
	static const struct job_ops measure_ops = {.reply = measuring_reply, .end = measuring_end};
	struct wire_path_flags look;
	char *path = file_query_path(c, NULL);
	bool head = strcmp(http_method(c->req), "HEAD") == 0;
	struct reading *r;
	struct err e;

	if (!path)
		return;
	r = calloc(1, sizeof(*r));
	if (!r) {
		free(path);
		call_nomem(c);
		return;
	}
	*r = (struct reading){.c = call_hold(c),
	                      .path = path,
	                      .length = UINT64_MAX,
	                      .left = UINT64_MAX,
	                      .credit = {.give = credit_to_job, .arg = &r->j}};
	look = (struct wire_path_flags){.path = wire_str(path)};
	if (!head)
		read_range(r, http_header(c->req, "Range"));
	if (head || r->last)
		r->j = job_start(c->host, c->sb, WIRE_STAT, &look, head ? &look_ops : &measure_ops,
		                 r, &e);
	else
		start_reading(r, c->sb, &e);
	if (!r->j) {
		call_error(c, &e);
		reading_free(r);
		return;
	}
	call_on_room(c, credit_pay, &r->credit);
	call_on_gone(c, reading_gone, r);
}

/* ---- write ---- */

struct file_writing {
	struct call *c;
	struct job *j;
	char *path;
	struct body_feed body;
};

static void writing_free(struct file_writing *w)
{
	call_leave(w->c);
	free(w->path);
	free(w);
}

static void writing_all(void *arg)
{
	struct file_writing *w = arg;

	job_send_eof(w->j);
}

static void writing_writable(void *arg, struct job *j)
{
	struct file_writing *w = arg;

	body_feed_more(&w->body);
}

static void writing_end(void *arg, struct job *j, const struct job_end *end)
{
	struct file_writing *w = arg;

	w->j = NULL;
	if (!end->e && !end->guest && w->body.all)
		call_json(w->c, 200,
		          json_pack("{s:s, s:I}", "path", w->path, "bytes",
		                    (json_int_t)w->body.bytes));
	else
		fail_on(w->c, end, "write", w->path);
	body_feed_stop(&w->body);
	writing_free(w);
}

static void writing_gone(void *arg)
{
	struct file_writing *w = arg;

	job_abandon(w->j); /* what was there before stays: the new file never got its name */
	writing_free(w);
}

void files_write(struct call *c)
{
	static const struct job_ops ops = {.writable = writing_writable, .end = writing_end};
	autofree char *mode_text = call_query(c, "mode");
	char *path = file_query_path(c, NULL);
	uint32_t flags = WIRE_WRITE_PARENTS, mode;
	struct file_writing *w;
	struct err e;

	if (!path || !file_mode(c, mode_text, &mode)) {
		free(path);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		free(path);
		call_nomem(c);
		return;
	}
	if (call_query_flag(c, "append"))
		flags |= WIRE_WRITE_APPEND;
	w->c = call_hold(c);
	w->path = path;
	w->j = job_start(c->host, c->sb, WIRE_WRITE,
	                 &(struct wire_write){.path = wire_str(path), .flags = flags, .mode = mode},
	                 &ops, w, &e);
	if (!w->j) {
		call_error(c, &e);
		writing_free(w);
		return;
	}
	call_on_gone(c, writing_gone, w);
	body_feed_begin(&w->body, c, w->j, writing_all, w);
}

/* ---- what is done in one go ---- */

struct doing {
	struct call *c;
	const char *verb;
	char *path; /* of the answer */
	json_t *answer;
	int status; /* 204: no body */
};

static void doing_end(void *arg, struct job *j, const struct job_end *end)
{
	struct doing *d = arg;

	if (end->e || end->guest)
		fail_on(d->c, end, d->verb, d->path);
	else if (d->status == 204)
		call_empty(d->c, 204);
	else
		call_json(d->c, d->status,
		          d->answer ? json_incref(d->answer) : json_pack("{s:s}", "path", d->path));
	json_decref(d->answer);
	call_drop(d->c);
	free(d->path);
	free(d);
}

static void doing_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct doing *d = arg;
	const char *slash = strrchr(d->path, '/');
	const char *name = slash && slash[1] ? slash + 1 : d->path;

	if (type == WIRE_FILE)
		d->answer = show_file(msg, name, strlen(name), d->path);
}

static void start_doing(struct call *c, const char *verb, const char *path, int status,
                        uint8_t type, const void *msg)
{
	static const struct job_ops ops = {.reply = doing_reply, .end = doing_end};
	struct doing *d = calloc(1, sizeof(*d));
	struct err e;

	if (d)
		d->path = strdup(path);
	if (!d || !d->path) {
		free(d);
		call_nomem(c);
		return;
	}
	d->verb = verb;
	d->status = status;
	if (!job_start(c->host, c->sb, type, msg, &ops, d, &e)) {
		call_error(c, &e);
		free(d->path);
		free(d);
		return;
	}
	d->c = call_hold(c);
}

static bool is_root(const char *path)
{
	return path[strspn(path, "/.")] == 0;
}

void file_delete(struct call *c)
{
	autofree char *path = file_query_path(c, NULL);

	if (!path)
		return;
	if (is_root(path)) {
		call_fail(c, EINVAL, "bad_path",
		          "the root directory cannot be deleted: name what is in it");
		return;
	}
	start_doing(c, "delete", path, 204, WIRE_REMOVE,
	            &(struct wire_path_flags){.path = wire_str(path),
	                                      .flags = WIRE_REMOVE_RECURSIVE});
}

void files_stat(struct call *c)
{
	autofree char *path = file_query_path(c, NULL), *follow = call_query(c, "follow");
	bool stay = follow && (strcmp(follow, "0") == 0 || strcmp(follow, "false") == 0);

	if (path)
		start_doing(c, "look at", path, 200, WIRE_STAT,
		            &(struct wire_path_flags){.path = wire_str(path),
		                                      .flags = stay ? WIRE_STAT_NOFOLLOW : 0});
}

void files_mkdir(struct call *c)
{
	const char *path, *mode_text;
	bool parents;
	uint32_t mode;

	if (!call_str(c, "path", NULL, &path) || !file_path(c, "path", path) ||
	    !call_str(c, "mode", NULL, &mode_text) || !file_mode(c, mode_text, &mode) ||
	    !call_bool(c, "parents", true, &parents))
		return;
	start_doing(c, "make", path, 201, WIRE_MKDIR,
	            &(struct wire_mkdir){.path = wire_str(path),
	                                 .flags = parents ? WIRE_MKDIR_PARENTS : 0,
	                                 .mode = mode});
}

void files_rename(struct call *c)
{
	const char *from, *to;
	bool replace;

	if (!call_str(c, "from", NULL, &from) || !file_path(c, "from", from) ||
	    !call_str(c, "to", NULL, &to) || !file_path(c, "to", to) ||
	    !call_bool(c, "replace", true, &replace))
		return;
	start_doing(c, "rename to", to, 200, WIRE_RENAME,
	            &(struct wire_two_paths){.from = wire_str(from),
	                                     .to = wire_str(to),
	                                     .flags = replace ? 0 : WIRE_RENAME_NOREPLACE});
}

void files_chmod(struct call *c)
{
	const char *path, *mode_text;
	uint32_t mode;

	if (!call_str(c, "path", NULL, &path) || !file_path(c, "path", path) ||
	    !call_str(c, "mode", NULL, &mode_text) || !file_mode(c, mode_text, &mode))
		return;
	if (!mode_text) {
		call_fail(c, EINVAL, "bad_request", "mode required: octal, like \"0755\"");
		return;
	}
	start_doing(c, "change the mode of", path, 200, WIRE_CHMOD,
	            &(struct wire_path_flags){.path = wire_str(path), .flags = mode});
}

void files_symlink(struct call *c)
{
	const char *path, *target;

	if (!call_str(c, "path", NULL, &path) || !file_path(c, "path", path) ||
	    !call_str(c, "target", NULL, &target))
		return;
	if (!target || !*target || strlen(target) >= PATH_MAX) {
		call_fail(c, EINVAL, "bad_request", "target required: where the link points to");
		return;
	}
	start_doing(c, "make the link", path, 201, WIRE_SYMLINK,
	            &(struct wire_two_paths){.from = wire_str(target), .to = wire_str(path)});
}
