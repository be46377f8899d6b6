/*
 * api/routes/archives.c - snapshots as one file, out and in
 * What reads and writes files happens on the pool, one piece at a time. When the client
 * or the disk is slow, the other side waits: one piece is all that is in memory.
 */
#include "host/archive.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "http/server.h"

enum {
	PIECE = 128 * 1024, /* half of what an answer may have waiting */
};

/* ---- out ---- */

struct sending {
	struct call *call; /* its req is NULL once the client is gone */
	struct host_snapshot snap;
	struct parcel_out *out;
	ssize_t n;
	struct err err;
	int r;
	bool working;
	char piece[PIECE];
};

static void sending_next(struct sending *s);

static void close_work(void *arg)
{
	struct sending *s = arg;

	parcel_close(s->out);
}

static void close_done(void *arg)
{
	struct sending *s = arg;

	call_drop(s->call);
	free(s);
}

static void sending_end(struct sending *s)
{
	if (pool_submit_for(s->call->host->pool, s->snap.tenant, close_work, close_done, s) < 0) {
		close_work(s);
		close_done(s);
	}
}

static void read_work(void *arg)
{
	struct sending *s = arg;

	s->n = parcel_read(s->out, s->piece, PIECE);
}

static void read_done(void *arg)
{
	struct sending *s = arg;
	struct http_req *q = s->call->req;

	s->working = false;
	if (!q) {
		sending_end(s);
		return;
	}
	if (s->n > 0) {
		http_send(q, s->piece, (size_t)s->n);
		sending_next(s);
		return;
	}
	if (s->n < 0)
		http_cut(q); /* the length was said: the client sees that it is not whole */
	else
		http_finish(q);
	call_on_gone(s->call, NULL, NULL);
	call_on_room(s->call, NULL, NULL);
	sending_end(s);
}

static void sending_next(struct sending *s)
{
	if (s->working || !call_room(s->call))
		return; /* goes on when there is room, or ends when it is gone */
	s->working = true;
	if (pool_submit_for(s->call->host->pool, s->snap.tenant, read_work, read_done, s) < 0) {
		s->n = -ENOMEM;
		read_done(s);
	}
}

static void on_room(void *arg)
{
	sending_next(arg);
}

static void on_gone(void *arg)
{
	struct sending *s = arg;

	if (!s->working)
		sending_end(s);
}

static void open_work(void *arg)
{
	struct sending *s = arg;

	s->r = parcel_open(s->call->host, &s->snap, &s->out, &s->err);
}

static void open_done(void *arg)
{
	struct sending *s = arg;
	struct call *c = s->call;
	char text[SANDBOX_ID + 64];

	s->working = false;
	if (s->r < 0)
		call_error(c, &s->err);
	if (s->r < 0 || !c->req) {
		call_on_gone(c, NULL, NULL);
		sending_end(s);
		return;
	}
	snprintf(text, sizeof(text), "attachment; filename=\"%s.panda.tar\"", s->snap.id);
	http_add_header(c->req, "Content-Disposition", text);
	http_begin(c->req, 200, "application/x-tar", (int64_t)parcel_length(s->out));
	call_on_room(c, on_room, s);
	sending_next(s);
}

void snapshot_export(struct call *c)
{
	struct sending *s = calloc(1, sizeof(*s));
	struct err e;
	int r =
	    s ? host_snapshot_get(c->host, c->tenant, c->param[0], &s->snap, &e) : err_nomem(&e);

	if (r < 0) {
		free(s);
		call_error(c, &e);
		return;
	}
	s->call = call_hold(c);
	s->working = true;
	call_on_gone(c, on_gone, s);
	if (pool_submit_for(c->host->pool, c->tenant, open_work, open_done, s) < 0) {
		s->r = err_nomem(&s->err);
		open_done(s);
	}
}

/* ---- in ---- */

struct archive_taking {
	struct call *call;
	struct host *host;
	char id[SANDBOX_ID + 1];
	struct parcel_in *in;
	size_t n;
	struct host_snapshot snap;
	struct err err;
	int r;
	bool any; /* an admin sends it, who answers for it */
	bool working, gone, all;
	char piece[HTTP_CHUNK]; /* a copy: the request may end while it is being written */
};

static void taking_free(struct archive_taking *t)
{
	call_drop(t->call);
	free(t);
}

/* It came to nothing, or to something. */
static void undo_work(void *arg)
{
	struct archive_taking *t = arg;

	parcel_free(t->in);
	t->in = NULL;
	if (t->r < 0)
		parcel_drop(t->host, t->id);
}

static void undo_done(void *arg)
{
	struct archive_taking *t = arg;

	if (t->r < 0) {
		host_import_undo(t->host, t->id); /* its files are gone already */
		call_error(t->call, &t->err);     /* now, so that it can be tried again at once */
	}
	taking_free(t);
}

static void taking_end(struct archive_taking *t)
{
	struct call *c = t->call;

	call_on_gone(c, NULL, NULL);
	if (t->r == 0)
		t->r = host_import_end(t->host, &t->snap, &t->err);
	if (t->r == 0)
		call_json(c, 201, snapshot_json(&t->snap));
	if (pool_submit_for(t->host->pool, t->snap.tenant, undo_work, undo_done, t) < 0) {
		undo_work(t);
		undo_done(t);
	}
}

static void feed_work(void *arg)
{
	struct archive_taking *t = arg;

	if (!t->in)
		t->r = parcel_begin(t->host, t->id, t->any, &t->in, &t->err);
	if (t->r == 0 && t->all)
		t->r = parcel_end(t->in, &t->snap, &t->err);
	else if (t->r == 0)
		t->r = parcel_feed(t->in, t->piece, t->n, &t->err);
}

static void feed_done(void *arg)
{
	struct archive_taking *t = arg;

	t->working = false;
	if (t->gone && t->r == 0)
		t->r = err_set(&t->err, ECANCELED, "cancelled", "its client went away");
	if (t->r < 0 || t->all)
		taking_end(t);
	else
		http_body_more(t->call->req);
}

static void feed(struct archive_taking *t)
{
	t->working = true;
	if (pool_submit_for(t->host->pool, t->snap.tenant, feed_work, feed_done, t) < 0) {
		t->r = err_nomem(&t->err);
		feed_done(t);
	}
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	struct archive_taking *t = arg;

	memcpy(t->piece, p, n);
	t->n = n;
	feed(t);
}

static void on_end(void *arg, struct http_req *r)
{
	struct archive_taking *t = arg;

	t->all = true;
	feed(t);
}

static void taking_gone(void *arg)
{
	struct archive_taking *t = arg;

	t->gone = true;
	if (t->working)
		return; /* it is seen when the piece is written */
	t->r = err_set(&t->err, ECANCELED, "cancelled", "its client went away");
	taking_end(t);
}

void snapshot_import(struct call *c)
{
	static const struct http_body_ops ops = {.data = on_data, .end = on_end};
	struct archive_taking *t = calloc(1, sizeof(*t));
	struct err e;
	int r = t ? host_import_begin(c->host, c->tenant, &c->quota, t->id, &e) : err_nomem(&e);

	if (r < 0) {
		free(t);
		call_error(c, &e);
		return;
	}
	t->call = call_hold(c);
	t->host = c->host;
	t->any = c->admin;
	memcpy(t->snap.id, t->id, sizeof(t->id));
	snprintf(t->snap.tenant, sizeof(t->snap.tenant), "%s", c->tenant);
	t->snap.created_ms = wall_ms();
	call_on_gone(c, taking_gone, t);
	http_body_stream(c->req, &ops, t);
}
