/*
 * api/routes/directories.c - directories of a sandbox: what is in them, and what changes there
 * A listing of usual size is sorted; a huge one is passed on as it comes, so that no directory can
 * fill our memory.
 */
#include <string.h>

#include "api/api.h"
#include "api/routes/files.h"
#include "api/routes/routes.h"
#include "api/streams/credit.h"
#include "api/streams/job.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "http/server.h"
#include "wire/guest.h"

enum {
	SORTED_MAX = 4096,
	SORTED_BYTES = 2 << 20, /* of what is told of them: a path may be long */
	DIR_WINDOW = 128 * 1024,
	WATCH_WINDOW = 128 * 1024, /* an event with the longest path must fit */
};

struct row {
	char *name, *text;
};

struct listing {
	struct call *c;
	struct job *j;
	char *path;
	struct row *rows;
	size_t n, bytes;
	struct credit credit;
	struct credit_rows rows_in;
	bool streaming, first, failed;
	bool all; /* the guest has sent all, and rows wait for room */
};

static void rows_free(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		free(l->rows[i].name);
		free(l->rows[i].text);
	}
	free(take_ptr(l->rows));
	l->n = 0;
}

static void listing_free(struct listing *l)
{
	call_leave(l->c);
	rows_free(l);
	free(l->rows_in.held);
	free(l->path);
	free(l);
}

static void put_text(struct listing *l, const char *text)
{
	if (l->c->req)
		http_send(l->c->req, text, strlen(text));
}

static void put_row(struct listing *l, const char *text)
{
	if (!l->first)
		put_text(l, ",");
	l->first = false;
	put_text(l, text);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

/* The head of the answer, and the rows that are there. */
static void begin(struct listing *l)
{
	json_t *path = json_string(l->path);
	autofree char *text = path ? json_dumps(path, JSON_ENCODE_ANY) : NULL;

	json_decref(path);
	if (!l->c->req || http_begun(l->c->req))
		return;
	http_begin(l->c->req, 200, "application/json", -1);
	put_text(l, "{\"path\":");
	put_text(l, text ? text : "\"\"");
	put_text(l, ",\"entries\":[");
	l->first = true;
	for (size_t i = 0; i < l->n; i++)
		put_row(l, l->rows[i].text);
}

static bool add(struct listing *l, const struct wire_file *m)
{
	size_t dir = strlen(l->path);
	autofree char *full = NULL, *text = NULL;
	json_t *j;

	while (dir && l->path[dir - 1] == '/')
		dir--;
	if (asprintf(&full, "%.*s/%s", (int)dir, l->path, m->name.p) < 0) {
		full = NULL;
		return false;
	}
	j = show_file(m, m->name.p, m->name.len, full);
	text = json_dumps(j, JSON_COMPACT);
	json_decref(j);
	if (!text)
		return false;
	if (l->streaming) {
		put_row(l, text);
		return true;
	}
	if (!l->rows && !(l->rows = calloc(SORTED_MAX, sizeof(*l->rows))))
		return false;
	l->rows[l->n].name = strdup(m->name.p);
	if (!l->rows[l->n].name)
		return false;
	l->bytes += strlen(text);
	l->rows[l->n++].text = take_ptr(text);
	if (l->n == SORTED_MAX || l->bytes >= SORTED_BYTES) {
		begin(l);
		rows_free(l);
		l->streaming = true;
	}
	return true;
}

static ssize_t listing_row(void *arg, const uint8_t *p, size_t n)
{
	struct wire_file m;
	ssize_t r = wire_file_take(p, n, &m);

	return r < 0 || !wire_is_name(&m.name) || !add(arg, &m) ? -EPROTO : r;
}

/* Those that are sorted wait for the last one anyhow. */
static bool listing_room(void *arg)
{
	struct listing *l = arg;

	return !l->streaming || call_room(l->c);
}

static void listing_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct listing *l = arg;

	if (l->failed || credit_rows_add(&l->rows_in, p, n) == 0)
		return;
	l->failed = true;
	job_cancel(j);
}

static void listing_finish(struct listing *l)
{
	if (!l->streaming && l->n)
		qsort(l->rows, l->n, sizeof(*l->rows), by_name);
	begin(l);
	put_text(l, "]}");
	if (l->c->req)
		http_finish(l->c->req);
	listing_free(l);
}

static void listing_fail(struct listing *l, const struct job_end *end)
{
	char what[160];

	snprintf(what, sizeof(what), "cannot list '%.110s'", l->path);
	if (l->streaming && l->c->req)
		http_cut(l->c->req);
	else if (l->failed)
		call_fail(l->c, EPROTO, "guest_gone", "%s: the answer makes no sense", what);
	else
		job_fail(l->c, end, what);
	listing_free(l);
}

static void listing_end(void *arg, struct job *j, const struct job_end *end)
{
	struct listing *l = arg;

	l->j = NULL;
	if (l->failed || end->e || end->guest)
		listing_fail(l, end);
	else if (l->rows_in.n_held)
		l->all = true; /* listing_more() goes on */
	else
		listing_finish(l);
}

static void listing_more(void *arg)
{
	struct listing *l = arg;
	bool bad = !l->failed && credit_rows_more(&l->rows_in) < 0;

	l->failed |= bad;
	credit_pay(&l->credit);
	if (bad && l->j)
		job_cancel(l->j);
	else if (l->all && l->failed)
		listing_fail(l, NULL);
	else if (l->all && !l->rows_in.n_held)
		listing_finish(l);
}

static void listing_gone(void *arg)
{
	struct listing *l = arg;

	job_abandon(l->j);
	listing_free(l);
}

void files_dir(struct call *c)
{
	static const struct job_ops ops = {.data = listing_data, .end = listing_end};
	char *path = file_query_path(c, "/");
	struct listing *l;
	struct err e;

	if (!path)
		return;
	l = calloc(1, sizeof(*l));
	if (!l) {
		free(path);
		call_nomem(c);
		return;
	}
	l->c = call_hold(c);
	l->path = path;
	l->credit = (struct credit){.give = credit_to_job, .arg = &l->j};
	l->rows_in = (struct credit_rows){.credit = &l->credit,
	                                  .row = listing_row,
	                                  .room = listing_room,
	                                  .arg = l};
	l->j = job_start(c->host, c->sb, WIRE_DIR,
	                 &(struct wire_path_flags){.path = wire_str(path), .flags = DIR_WINDOW},
	                 &ops, l, &e);
	if (!l->j) {
		call_error(c, &e);
		listing_free(l);
		return;
	}
	call_on_room(c, listing_more, l);
	call_on_gone(c, listing_gone, l);
}

/* ---- watch ---- */

struct watching {
	struct sse s;
	struct job *j;
	char *path;
	struct credit_rows rows;
};

static void watching_free(struct watching *w)
{
	sse_fini(&w->s);
	free(w->rows.held);
	free(w->path);
	free(w);
}

static const char *event_name(uint32_t what)
{
	static const struct {
		uint32_t bit;
		const char *name;
	} names[] = {
	    {WIRE_EV_OVERFLOW, "overflow"},     {WIRE_EV_GONE, "gone"},
	    {WIRE_EV_CREATE, "created"},        {WIRE_EV_DELETE, "deleted"},
	    {WIRE_EV_MOVED_FROM, "moved_from"}, {WIRE_EV_MOVED_TO, "moved_to"},
	    {WIRE_EV_WRITTEN, "written"},       {WIRE_EV_MODIFY, "modified"},
	    {WIRE_EV_ATTRIB, "attrib"},
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (what & names[i].bit)
			return names[i].name;
	return "modified";
}

static void tell_change(struct watching *w, const struct wire_event *m)
{
	size_t n = strlen(w->path);
	autofree char *full = NULL;
	json_t *j;

	while (n > 1 && w->path[n - 1] == '/')
		n--;
	if (asprintf(&full, "%.*s%s%s", (int)n, w->path,
	             m->path.len && w->path[n - 1] != '/' ? "/" : "", m->path.p) < 0) {
		full = NULL;
		return;
	}
	j = json_pack("{s:s, s:b, s:I}", "type", event_name(m->what), "is_dir",
	              (int)!!(m->what & WIRE_EV_DIR), "cookie", (json_int_t)m->cookie);
	json_object_set_new(j, "path", json_text(full, strlen(full)));
	sse_event(&w->s, "change", j);
}

static ssize_t watching_row(void *arg, const uint8_t *p, size_t n)
{
	struct wire_event m;
	ssize_t r = wire_event_take(p, n, &m);

	if (r > 0)
		tell_change(arg, &m);
	return r;
}

static bool watching_room(void *arg)
{
	return call_room(((struct watching *)arg)->s.c);
}

static void watching_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct watching *w = arg;

	if (credit_rows_add(&w->rows, p, n) < 0)
		job_cancel(j);
}

static void watching_more(void *arg)
{
	struct watching *w = arg;

	if (credit_rows_more(&w->rows) < 0 && w->j)
		job_cancel(w->j);
	credit_pay(&w->s.credit);
}

static void watching_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct watching *w = arg;

	if (type != WIRE_READY)
		return;
	sse_begin(&w->s);
	sse_event(&w->s, "ready", json_object());
}

static void watching_end(void *arg, struct job *j, const struct job_end *end)
{
	struct watching *w = arg;
	char what[160];
	struct err e;

	w->j = NULL;
	snprintf(what, sizeof(what), "cannot watch '%.110s'", w->path);
	job_error(end, what, &e);
	sse_fail(&w->s, &e);
	watching_free(w);
}

static void watching_gone(void *arg)
{
	struct watching *w = arg;

	job_abandon(w->j);
	watching_free(w);
}

void file_watch(struct call *c)
{
	static const struct job_ops ops = {.data = watching_data,
	                                   .reply = watching_reply,
	                                   .end = watching_end};
	char *path = file_query_path(c, NULL);
	struct watching *w;
	struct err e;

	if (!path)
		return;
	w = calloc(1, sizeof(*w));
	if (!w) {
		free(path);
		call_nomem(c);
		return;
	}
	w->path = path;
	sse_init(&w->s, c, false, credit_to_job, &w->j);
	w->rows = (struct credit_rows){.credit = &w->s.credit,
	                               .row = watching_row,
	                               .room = watching_room,
	                               .arg = w};
	call_on_room(c, watching_more, w);
	call_on_gone(c, watching_gone, w);
	call_endless(c);
	w->j = job_start(c->host, c->sb, WIRE_WATCH,
	                 &(struct wire_watch){.path = wire_str(path),
	                                      .flags = call_query_flag(c, "recursive")
	                                                   ? WIRE_WATCH_RECURSIVE
	                                                   : 0,
	                                      .window = WATCH_WINDOW},
	                 &ops, w, &e);
	if (!w->j) {
		call_error(c, &e);
		watching_free(w);
	}
}
