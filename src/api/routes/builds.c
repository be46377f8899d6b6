/*
 * api/routes/builds.c - builds of templates: the form that orders one, its state, its log
 * A thread of the pool takes the form apart and writes its files, piece by piece, and owns the
 * upload meanwhile. The loop asks for the next piece when the last one has been dealt with.
 */
#include "host/disk_use.h"
#include "template/build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/pool.h"
#include "host/host.h"
#include "http/multipart.h"
#include "http/server.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/oci.h"
#include "template/template.h"

enum {
	TEXT_MAX = DOCKERFILE_MAX,
	SIZE_MB_MAX = 16384,
	CPU_MAX = 64,
	MEMORY_MB_MIN = 128,
	MEMORY_MB_MAX = 65536,
	LOG_PIECE = 32 << 10,
	LOG_LINE_MAX = 4096,
	LOG_POLL_MS = 100,
};

static struct builds *builds_of(struct call *c)
{
	return templates_builds(c->host->depot.templates);
}

static json_t *show(const struct build_info *b)
{
	json_t *j =
	    json_pack("{s:s, s:s, s:s, s:o, s:i, s:i, s:i, s:s}", "id", b->id, "name", b->name,
	              "status", build_status_name(b->status), "started_at",
	              json_time(b->started_ms), "size_mb", (int)b->size_mb, "cpu", (int)b->cpu,
	              "memory_mb", (int)b->memory_mb, "owner_workspace", b->tenant);

	if (j && b->error[0])
		json_object_set_new(j, "error", json_sentence(b->error));
	if (j && b->ended_ms)
		json_object_set_new(j, "ended_at", json_time(b->ended_ms));
	if (j && b->bytes)
		json_object_set_new(j, "bytes", json_integer((json_int_t)b->bytes));
	return j;
}

/* --- the form --------------------------------------------------------------------------------- */

struct build_upload {
	struct call *c;
	struct host *host;
	struct build_order *order;
	struct multipart m;
	const char *p; /* what is left of the piece at hand */
	size_t n;
	enum { PART_NONE, PART_TEXT, PART_FILE } part;
	char field[32];
	char *text; /* of the field at hand */
	size_t text_len;
	bool at_work, gone, complete;
	int r;
	struct err err;
	char piece[HTTP_CHUNK]; /* a copy: the request may end while it is being eaten */
};

static void upload_free(struct build_upload *u)
{
	build_order_free(u->order);
	free(u->text);
	call_leave(u->c);
	free(u);
}

static int number(struct build_upload *u, unsigned min, unsigned max, unsigned *ret)
{
	char *end;
	unsigned long v = strtoul(u->text, &end, 10);

	if (!u->text_len || *end || v < min || v > max)
		return err_set(&u->err, EINVAL, "bad_request",
		               "field '%s' must be a number from %u to %u", u->field, min, max);
	*ret = (unsigned)v;
	return 0;
}

static int take_args(struct build_upload *u)
{
	const char *k;
	json_t *v;

	json_decref(u->order->args);
	u->order->args = json_loadb(u->text, u->text_len, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_object(u->order->args))
		return err_set(&u->err, EINVAL, "bad_request",
		               "field 'build_args' must be a JSON object of strings");
	json_object_foreach(u->order->args, k, v)
		if (!json_is_string(v))
			return err_set(&u->err, EINVAL, "bad_request",
			               "build_args: '%.60s' is not a string", k);
	return 0;
}

/* A text field is complete. */
static int take_field(struct build_upload *u)
{
	struct build_order *o = u->order;

	u->text[u->text_len] = 0;
	if (!strcmp(u->field, "name")) {
		if (u->text_len > TEMPLATE_NAME_MAX || strlen(u->text) != u->text_len)
			return err_set(&u->err, EINVAL, "bad_request",
			               "field 'name' must have 1 to %d letters, digits, '.', '_' "
			               "or '-'",
			               TEMPLATE_NAME_MAX);
		memcpy(o->info.name, u->text, u->text_len + 1);
		return 0;
	}
	if (!strcmp(u->field, "dockerfile")) {
		free(o->dockerfile);
		o->dockerfile = take_ptr(u->text);
		o->dockerfile_len = u->text_len;
		return 0;
	}
	if (!strcmp(u->field, "size_mb"))
		return number(u, 1, SIZE_MB_MAX, &o->info.size_mb);
	if (!strcmp(u->field, "cpu"))
		return number(u, 1, CPU_MAX, &o->info.cpu);
	if (!strcmp(u->field, "memory_mb"))
		return number(u, MEMORY_MB_MIN, MEMORY_MB_MAX, &o->info.memory_mb);
	if (!strcmp(u->field, "replace")) {
		o->replace = !strcmp(u->text, "true") || !strcmp(u->text, "1");
		return 0;
	}
	if (!strcmp(u->field, "build_args"))
		return take_args(u);
	if (!strcmp(u->field, "image_ref")) {
		char plain[OCI_REF_MAX + 1];

		if (strlen(u->text) != u->text_len || u->text_len > OCI_REF_MAX ||
		    !oci_ref(u->text, plain))
			return err_set(&u->err, EINVAL, "bad_request",
			               "field 'image_ref' must name an image, such as alpine:3.20");
		snprintf(o->image_ref, sizeof(o->image_ref), "%s", u->text);
		return 0;
	}
	if (!strcmp(u->field, "kernel"))
		return 0; /* there is one kernel */
	return err_set(&u->err, EINVAL, "bad_request",
	               "there is no field '%s': files of the context need a filename", u->field);
}

static int begin_part(struct build_upload *u)
{
	if (u->m.filename && (u->order->dockerfile || strcmp(u->m.name, "rootfs") != 0) &&
	    strcmp(u->m.name, "dockerfile") != 0) {
		u->part = PART_FILE;
		return build_order_file(u->order, u->m.name, &u->err);
	}
	if (u->m.filename && !strcmp(u->m.name, "rootfs")) {
		u->part = PART_FILE;
		return build_order_archive(u->order, &u->err);
	}
	u->part = PART_TEXT;
	snprintf(u->field, sizeof(u->field), "%.31s", u->m.name);
	free(u->text);
	u->text_len = 0;
	u->text = malloc(TEXT_MAX + 1);
	return u->text ? 0 : err_nomem(&u->err);
}

static int data(struct build_upload *u, const char *p, size_t n)
{
	if (u->part == PART_FILE)
		return build_order_data(u->order, p, n, &u->err);
	if (u->text_len + n > TEXT_MAX)
		return err_set(&u->err, EFBIG, "too_large", "field '%s' is longer than %d KiB",
		               u->field, TEXT_MAX >> 10);
	memcpy(u->text + u->text_len, p, n);
	u->text_len += n;
	return 0;
}

static int end_part(struct build_upload *u)
{
	int r = u->part == PART_FILE ? build_order_file_end(u->order, &u->err) : take_field(u);

	u->part = PART_NONE;
	return r;
}

/* One piece, on the pool. */
static void eat(void *arg)
{
	struct build_upload *u = arg;

	while (u->r == 0 && u->n && !u->complete) {
		enum multipart_event ev;
		const char *p;
		size_t len;
		ssize_t n = multipart_eat(&u->m, u->p, u->n, &ev, &p, &len);

		if (n < 0) {
			u->r =
			    err_set(&u->err, EINVAL, n == -EMSGSIZE ? "too_large" : "bad_request",
			            n == -EMSGSIZE ? "the form has too many parts"
			                           : "this is not multipart/form-data");
			break;
		}
		u->p += n;
		u->n -= (size_t)n;
		if (ev == MULTIPART_PART)
			u->r = begin_part(u);
		else if (ev == MULTIPART_DATA)
			u->r = data(u, p, len);
		else if (ev == MULTIPART_PART_END)
			u->r = end_part(u);
		else if (ev == MULTIPART_END)
			u->complete = true;
	}
}

static void eaten(void *arg)
{
	struct build_upload *u = arg;

	u->at_work = false;
	if (u->gone) {
		upload_free(u);
	} else if (u->r < 0) {
		struct call *c = call_hold(u->c);
		struct err e = u->err;

		upload_free(u);
		call_error(c, &e);
		call_drop(c);
	} else {
		http_body_more(u->c->req);
	}
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	struct build_upload *u = arg;

	(void)r;
	memcpy(u->piece, p, n);
	u->p = u->piece;
	u->n = n;
	u->at_work = true;
	if (pool_submit(u->host->pool, eat, eaten, u) < 0) {
		u->r = err_nomem(&u->err);
		eaten(u);
	}
}

static void on_all(void *arg, struct http_req *r)
{
	struct build_upload *u = arg;
	struct call *c = call_hold(u->c);
	struct build_order *o = u->order;
	struct build_info info;
	struct err e;

	(void)r;
	if (!u->complete) {
		call_fail(c, EINVAL, "bad_request", "the form ends before its last boundary");
	} else if (build_order_complete(o, &e) < 0) {
		call_error(c, &e);
	} else {
		if (!o->info.size_mb)
			o->info.size_mb = 1024;
		u->order = NULL; /* it is taken */
		if (build_submit(o, &info, &e) < 0)
			call_error(c, &e);
		else
			call_json(c, 202, show(&info));
	}
	upload_free(u);
	call_drop(c);
}

static void upload_gone(void *arg)
{
	struct build_upload *u = arg;

	if (u->at_work)
		u->gone = true;
	else
		upload_free(u);
}

void templates_build(struct call *c)
{
	static const struct http_body_ops ops = {.data = on_data, .end = on_all};
	struct build_upload *u = calloc(1, sizeof(*u));
	const char *type = http_header(c->req, "Content-Type");
	struct err e;

	if (!u) {
		call_nomem(c);
		return;
	}
	if (multipart_init(&u->m, type ? type : "") < 0) {
		free(u);
		call_fail(c, EINVAL, "bad_request",
		          "a build is ordered with multipart/form-data: name, and dockerfile with "
		          "the files it needs, or rootfs (an archive), or image_ref");
		return;
	}
	if (disk_use_admit(c->host, c->tenant, &c->quota, &e) < 0 ||
	    build_order_new(&c->host->depot, c->tenant, &u->order, &e) < 0) {
		free(u);
		call_error(c, &e);
		return;
	}
	u->host = c->host;
	u->c = call_hold(c);
	call_on_gone(c, upload_gone, u);
	http_body_stream(c->req, &ops, u);
}

/* --- looking ---------------------------------------------------------------------------------- */

static bool add(void *arg, const struct build_info *b)
{
	return json_array_append_new(arg, show(b)) == 0;
}

void builds_list(struct call *c)
{
	json_t *list = json_array();

	build_each(builds_of(c), c->tenant, add, list);
	call_json(c, 200, list);
}

static bool find(struct call *c, struct build_info *ret)
{
	if (build_get(builds_of(c), c->tenant, c->param[0], ret))
		return true;
	call_fail(c, ENOENT, "build_not_found", "build not found: %.64s", c->param[0]);
	return false;
}

void builds_get(struct call *c)
{
	struct build_info b;

	if (find(c, &b))
		call_json(c, 200, show(&b));
}

void builds_delete(struct call *c)
{
	if (build_cancel(builds_of(c), c->tenant, c->param[0]))
		call_empty(c, 204);
	else
		call_fail(c, ENOENT, "build_not_found", "build not found: %.64s", c->param[0]);
}

/* --- the log ---------------------------------------------------------------------------------- */

struct follow {
	struct call *c;
	char id[BUILD_ID + 1];
	bool stay;
	off_t at;
	char part[LOG_LINE_MAX];
	size_t npart;
	struct loop_timer timer;
};

static void line_event(struct follow *f)
{
	if (f->npart && f->part[f->npart - 1] == '\r')
		f->npart--;
	call_event(f->c, "log", json_pack("{s:o}", "line", json_text(f->part, f->npart)));
	f->npart = 0;
}

static void follow_free(void *arg)
{
	struct follow *f = arg;

	loop_timer_clear(f->c->host->loop, &f->timer);
	call_leave(f->c);
	free(f);
}

/* Sends what there is; true when that was all of it for now. */
static bool send_lines(struct follow *f)
{
	autoclose int fd = build_log(builds_of(f->c), f->id);
	autofree char *buf = malloc(LOG_PIECE);
	ssize_t n;

	while (fd >= 0 && buf && call_room(f->c)) {
		n = pread(fd, buf, LOG_PIECE, f->at);
		if (n <= 0)
			return true;
		f->at += n;
		for (ssize_t i = 0; i < n; i++) {
			if (buf[i] == '\n' || f->npart == sizeof(f->part))
				line_event(f);
			if (buf[i] != '\n')
				f->part[f->npart++] = buf[i];
		}
	}
	return fd < 0 || !buf;
}

static void follow_more(void *arg)
{
	struct follow *f = arg;
	struct call *c = call_hold(f->c);
	struct build_info b;
	bool there = build_get(builds_of(c), c->tenant, f->id, &b);
	bool over = !there || !f->stay || b.status == BUILD_DONE || b.status == BUILD_FAILED;

	if (send_lines(f) && over) { /* it was over before we looked for the last line */
		if (f->npart)
			line_event(f);
		follow_free(f);
		call_event(c, "done",
		           json_pack("{s:s}", "status",
		                     there ? build_status_name(b.status) : "failed"));
		call_sse_end(c);
	} else {
		(void)loop_timer_set(c->host->loop, &f->timer,
		                     loop_now_ms(c->host->loop) + LOG_POLL_MS);
	}
	call_drop(c);
}

void builds_logs(struct call *c)
{
	struct build_info b;
	struct follow *f;

	if (!find(c, &b))
		return;
	f = calloc(1, sizeof(*f));
	if (!f) {
		call_nomem(c);
		return;
	}
	memcpy(f->id, b.id, sizeof(f->id));
	f->stay = call_query_flag(c, "follow");
	f->timer.fn = follow_more;
	f->timer.arg = f;
	f->c = call_hold(c);
	call_on_gone(c, follow_free, f);
	call_sse_begin(c);
	call_endless(c);
	follow_more(f);
}
