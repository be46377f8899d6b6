/*
 * api/routes/logs.c - consoles, events, the audit log
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/loop.h"
#include "base/macro.h"
#include "db/audit.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/machine.h"

enum {
	LOG_SHOWN_MAX = 1 << 20, /* bytes of a console in one answer */
	LOG_REPLAY = 4096,       /* what a follower sees of the past, without tail */
	LOG_POLL_MS = 250,
	LOG_PIECE = 32 * 1024, /* read at a time by a follower */
	TAIL_MAX = 10000,
	EVENTS_TAIL_MAX = 1000,
	EVENTS_QUEUE = 64, /* of a follower who does not read; more are dropped, and it is told */
};

/* ---- console ---- */

static int open_console(struct host *h, const char *id, struct stat *st)
{
	const struct sandbox *sb = host_find(h, NULL, id);
	char path[SANDBOX_ID + 32];
	int fd;

	if (!sb)
		return -1;
	snprintf(path, sizeof(path), "%s/console.log", sb->machine);
	fd = openat(h->machines.dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && fstat(fd, st) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Where the last n lines begin. */
static size_t last_lines(const char *p, size_t len, int64_t n)
{
	size_t at = len;

	if (at && p[at - 1] == '\n')
		at--;
	while (at > 0)
		if (p[at - 1] == '\n' && --n == 0)
			break;
		else
			at--;
	return at;
}

/* The newest part of a console, at most max bytes, cut to whole lines. *ret_end is where the next
 * byte will be. NULL: there is none. */
static char *console_tail(int fd, const struct stat *st, size_t max, int64_t lines, size_t *ret_n,
                          off_t *ret_end)
{
	off_t from = st->st_size > (off_t)max ? st->st_size - (off_t)max : 0;
	size_t n = (size_t)(st->st_size - from), at = 0;
	autofree char *buf = malloc(n + 1);
	char *nl;

	if (!buf || io_pread_full(fd, buf, n, from) < 0)
		return NULL;
	buf[n] = 0;
	if (from > 0 && (nl = memchr(buf, '\n', n)))
		at = (size_t)(nl - buf) + 1;
	if (lines >= 0)
		at = MAX(at, lines == 0 ? n : last_lines(buf, n, lines));
	memmove(buf, buf + at, n - at + 1);
	*ret_n = n - at;
	*ret_end = st->st_size;
	return take_ptr(buf);
}

struct follow {
	struct call *call;
	char id[SANDBOX_ID + 1];
	off_t at;
	ino_t ino;
	char part[LOG_REPLAY]; /* a line that has not ended */
	size_t npart;
	struct loop_timer timer;
};

static void line_event(struct follow *f, const char *p, size_t n)
{
	call_event(f->call, "line", json_pack("{s:o}", "line", json_text(p, n)));
}

/* Whole lines become events; a line longer than our patience comes in pieces. */
static void lines(struct follow *f, const char *p, size_t n)
{
	while (n) {
		const char *nl = memchr(p, '\n', n);
		size_t k = MIN(nl ? (size_t)(nl - p) + 1 : n, sizeof(f->part) - f->npart);

		memcpy(f->part + f->npart, p, k);
		f->npart += k;
		p += k;
		n -= k;
		if (f->part[f->npart - 1] == '\n' || f->npart == sizeof(f->part)) {
			line_event(f, f->part, f->npart);
			f->npart = 0;
		}
	}
}

static void follow_end(void *arg)
{
	struct follow *f = arg;

	loop_timer_clear(f->call->host->loop, &f->timer);
	call_leave(f->call);
	free(f);
}

static void follow_more(struct follow *f)
{
	struct stat st;
	autoclose int fd = open_console(f->call->host, f->id, &st);
	autofree char *buf = NULL;
	size_t n;

	if (fd < 0)
		return; /* asleep: the next life has a new console */
	if (st.st_ino != f->ino || st.st_size < f->at) {
		f->ino = st.st_ino;
		f->at = 0;
	}
	while (f->at < st.st_size && call_room(f->call)) {
		n = (size_t)MIN(st.st_size - f->at, (off_t)LOG_PIECE);
		if (!buf)
			buf = malloc(LOG_PIECE);
		if (!buf || io_pread_full(fd, buf, n, f->at) < 0)
			return;
		f->at += (off_t)n;
		lines(f, buf, n);
	}
}

static void follow_due(void *arg)
{
	struct follow *f = arg;
	struct call *c = f->call;

	call_hold(c);
	if (host_find(c->host, c->tenant, f->id)) {
		follow_more(f);
		(void)loop_timer_set(c->host->loop, &f->timer,
		                     loop_now_ms(c->host->loop) + LOG_POLL_MS);
	} else {
		if (f->npart)
			line_event(f, f->part, f->npart);
		follow_end(f);
		call_sse_end(c);
	}
	call_drop(c);
}

static void follow_begin(struct call *c, int64_t tail)
{
	struct follow *f = calloc(1, sizeof(*f));
	struct stat st;
	autoclose int fd = -1;
	autofree char *past = NULL;
	size_t n = 0;

	if (!f) {
		call_nomem(c);
		return;
	}
	f->call = call_hold(c);
	memcpy(f->id, c->sb->id, sizeof(f->id));
	f->timer.fn = follow_due;
	f->timer.arg = f;
	call_on_gone(c, follow_end, f);
	call_sse_begin(c);
	call_endless(c);
	fd = open_console(c->host, f->id, &st);
	if (fd >= 0) {
		past = console_tail(fd, &st, tail >= 0 ? LOG_SHOWN_MAX / 4 : LOG_REPLAY, tail, &n,
		                    &f->at);
		f->ino = st.st_ino;
	}
	if (past)
		lines(f, past, n);
	(void)loop_timer_set(c->host->loop, &f->timer, loop_now_ms(c->host->loop) + LOG_POLL_MS);
}

void logs_get(struct call *c)
{
	struct stat st;
	autoclose int fd = -1;
	autofree char *text = NULL;
	int64_t tail;
	size_t n = 0;
	off_t end;

	if (!call_query_int(c, "tail", -1, 0, TAIL_MAX, &tail))
		return;
	if (call_query_flag(c, "follow")) {
		follow_begin(c, tail);
		return;
	}
	fd = open_console(c->host, c->sb->id, &st);
	if (fd >= 0)
		text = console_tail(fd, &st, LOG_SHOWN_MAX, tail, &n, &end);
	call_text(c, 200, "text/plain; charset=utf-8", text ? text : "", n);
}

/* ---- events ---- */

static json_t *show_event(const struct event *ev)
{
	return json_pack("{s:I, s:o, s:s, s:s, s:O*}", "seq", (json_int_t)ev->seq, "time",
	                 json_time(ev->at_ms), "sandbox_id", ev->sandbox_id, "type", ev->type,
	                 "payload", ev->payload);
}

struct log_listener {
	struct event_listener in;
	struct call *call;
	char id[SANDBOX_ID + 1]; /* "": of all */
	json_t *queue;
	uint64_t dropped;
};

static void listener_end(void *arg)
{
	struct log_listener *l = arg;

	events_unlisten(&l->in);
	call_leave(l->call);
	json_decref(l->queue);
	free(l);
}

static void listener_room(void *arg)
{
	struct log_listener *l = arg;

	while (json_array_size(l->queue) && call_room(l->call)) {
		call_event(l->call, "event", json_incref(json_array_get(l->queue, 0)));
		json_array_remove(l->queue, 0);
	}
	if (l->dropped && call_room(l->call)) {
		call_event(l->call, "dropped", json_pack("{s:I}", "count", (json_int_t)l->dropped));
		l->dropped = 0;
	}
}

static void heard(void *arg, const struct event *ev)
{
	struct log_listener *l = arg;
	struct call *c = l->call;

	if (strcmp(ev->tenant, c->tenant) != 0 || (l->id[0] && strcmp(ev->sandbox_id, l->id) != 0))
		return;
	call_hold(c);
	if (json_array_size(l->queue) >= EVENTS_QUEUE)
		l->dropped++;
	else
		json_array_append_new(l->queue, show_event(ev));
	listener_room(l);
	/* Nothing comes after this one. */
	if (l->id[0] && strcmp(ev->type, "sandbox.deleted") == 0) {
		listener_end(l);
		call_sse_end(c);
	}
	call_drop(c);
}

static void append(void *arg, const struct event *ev)
{
	json_array_append_new(arg, show_event(ev));
}

static void events_of(struct call *c, const char *id)
{
	json_t *past = json_array(), *v;
	struct log_listener *l;
	int64_t tail;
	struct err e;
	size_t i;

	if (!call_query_int(c, "tail", 50, 0, EVENTS_TAIL_MAX, &tail))
		goto out;
	if (tail > 0 && events_tail(&c->host->events, c->tenant, id, tail, append, past, &e) < 0) {
		call_error(c, &e);
		goto out;
	}
	if (!call_query_flag(c, "follow")) {
		call_json(c, 200, json_pack("{s:O}", "events", past));
		goto out;
	}
	l = calloc(1, sizeof(*l));
	if (!l) {
		call_nomem(c);
		goto out;
	}
	l->call = call_hold(c);
	l->queue = json_array();
	snprintf(l->id, sizeof(l->id), "%s", id ? id : "");
	l->in.fn = heard;
	l->in.arg = l;
	call_on_gone(c, listener_end, l);
	call_sse_begin(c);
	call_endless(c);
	call_on_room(c, listener_room, l);
	json_array_foreach(past, i, v)
		call_event(c, "event", json_incref(v));
	events_listen(&c->host->events, &l->in);
out:
	json_decref(past);
}

void events_sandbox(struct call *c)
{
	events_of(c, c->sb->id);
}

void events_all(struct call *c)
{
	events_of(c, NULL);
}

/* ---- audit ---- */

static bool audit_row(void *arg, const struct db_audit *row)
{
	json_t *j = json_pack("{s:I, s:s, s:s, s:s, s:o, s:o, s:i, s:o, s:s, s:I}", "id",
	                      (json_int_t)row->seq, "workspace", row->tenant, "actor", row->actor,
	                      "request_id", row->request_id, "method",
	                      json_text(row->method, strlen(row->method)), "path",
	                      json_text(row->path, strlen(row->path)), "status", row->status, "ts",
	                      json_time(row->at_ms), "address", row->address, "count",
	                      (json_int_t)row->count);

	return json_array_append_new(arg, j) == 0;
}

bool parse_since(const char *text, uint64_t *ret_ms)
{
	struct tm tm = {0};
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	char *rest;
	long long n;

	if (end) {
		if (*end == '.')
			end += 1 + strspn(end + 1, "0123456789");
		if (strcmp(end, "Z") != 0 && strcmp(end, "+00:00") != 0)
			return false;
		n = timegm(&tm);
	} else {
		errno = 0;
		n = strtoll(text, &rest, 10);
		if (errno || *rest || rest == text)
			return false;
	}
	if (n < 0 || n > 253402300799) /* the end of the year 9999 */
		return false;
	*ret_ms = (uint64_t)n * 1000;
	return true;
}

void audit_list(struct call *c)
{
	autofree char *since = call_query(c, "since");
	uint64_t from = wall_ms() - 86400000;
	json_t *list = json_array();
	int64_t limit;
	struct err e;
	int r;

	if (since && !parse_since(since, &from)) {
		call_fail(
		    c, EINVAL, "bad_request",
		    "query parameter 'since' must be like 2026-01-31T12:00:00Z, or Unix seconds");
		goto out;
	}
	if (!call_query_int(c, "limit", 200, 1, 1000, &limit))
		goto out;
	audit_flush(c->api);
	r = db_audit_each(c->host->db, c->admin ? NULL : c->tenant, from, limit, audit_row, list,
	                  &e);
	if (r < 0)
		call_error(c, &e);
	else
		call_json(c, 200,
		          json_pack("{s:O, s:o}", "entries", list, "since", json_time(from)));
out:
	json_decref(list);
}
