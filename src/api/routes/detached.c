/*
 * api/routes/detached.c - detached commands
 * They belong to the guest's agent: it has their numbers, their output and their results. So they
 * go on when a client, the network or pandad goes away, and in forks and after a hibernation.
 */
#include <signal.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/detached.h"
#include "api/routes/routes.h"
#include "api/streams/body.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/utf8.h"
#include "host/host.h"
#include "wire/guest.h"

enum {
	STDIN_WAIT_MS = 10000, /* for another client that feeds it right now */
};

#define NO_SUCH_COMMAND "no such command in this sandbox: GET .../execs lists them"

/* ---- what there is ---- */

struct lookup {
	struct job *j;
	execs_seen *seen;
	execs_listed *done;
	void *arg;
	size_t rows;
};

static void lookup_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct lookup *l = arg;
	struct err e;

	for (size_t at = 0; at < n;) {
		struct wire_exec_info m;
		ssize_t r = wire_exec_info_take((const uint8_t *)p + at, n - at, &m);

		if (r < 0 || l->rows++ == EXECS_SHOWN_MAX) {
			err_set(&e, EPROTO, "guest_gone",
			        "the sandbox's list of commands makes no sense");
			job_abandon(l->j);
			l->done(l->arg, &e);
			free(l);
			return;
		}
		l->seen(l->arg, &m);
		at += (size_t)r;
	}
	job_credit(j, chan, n);
}

static void lookup_end(void *arg, struct job *j, const struct job_end *end)
{
	struct lookup *l = arg;
	struct err e = {0};

	if (end->e || end->guest)
		job_error(end, "cannot list commands", &e);
	l->done(l->arg, e.code ? &e : NULL);
	free(l);
}

int execs_lookup(struct host *h, struct sandbox *sb, execs_seen *seen, execs_listed *done,
                 void *arg, struct err *e)
{
	static const struct job_ops ops = {.data = lookup_data, .end = lookup_end};
	struct lookup *l = calloc(1, sizeof(*l));

	if (!l)
		return err_nomem(e);
	*l = (struct lookup){.seen = seen, .done = done, .arg = arg};
	l->j =
	    job_start(h, sb, WIRE_LIST, &(struct wire_window){.window = EXEC_WINDOW}, &ops, l, e);
	if (!l->j) {
		free(l);
		return -e->code;
	}
	return 0;
}

static json_t *show_exec(const struct wire_exec_info *m)
{
	char id[24];
	json_t *j = json_object();
	bool running = m->flags & WIRE_INFO_RUNNING, timed_out = m->flags & WIRE_INFO_TIMEOUT;
	bool killed = !running && m->how == WIRE_HOW_SIGNAL;
	json_int_t code = killed ? 128 + (json_int_t)m->code : (json_int_t)m->code;

	snprintf(id, sizeof(id), "%llu", (unsigned long long)m->id);
	json_object_set_new(j, "id", json_string(id));
	json_object_set_new(j, "pid", json_integer(m->pid));
	json_object_set_new(j, "command", json_text(m->command.p, m->command.len));
	json_object_set_new(j, "running", json_boolean(running));
	json_object_set_new(j, "detached", json_boolean(m->flags & WIRE_INFO_DETACHED));
	json_object_set_new(j, "pty", json_boolean(m->flags & WIRE_INFO_PTY));
	json_object_set_new(j, "exit_code",
	                    running ? json_null()
	                            : json_integer(timed_out ? EXEC_TIMED_OUT : code));
	json_object_set_new(j, "signal",
	                    killed && !timed_out ? json_integer(m->code) : json_null());
	json_object_set_new(j, "timed_out", json_boolean(timed_out));
	if (m->flags & WIRE_INFO_OOM)
		json_object_set_new(j, "oom_killed", json_true());
	json_object_set_new(j, "stdout_from", json_integer((json_int_t)m->out_from));
	json_object_set_new(j, "stdout_to", json_integer((json_int_t)m->out_to));
	json_object_set_new(j, "stderr_from", json_integer((json_int_t)m->err_from));
	json_object_set_new(j, "stderr_to", json_integer((json_int_t)m->err_to));
	return j;
}

struct listing {
	struct call *c;
	json_t *rows;
	size_t n;
	uint64_t only; /* 0: all */
};

static void listing_seen(void *arg, const struct wire_exec_info *m)
{
	struct listing *l = arg;

	if (!l->only || m->id == l->only) {
		json_array_append_new(l->rows, show_exec(m));
		l->n++;
	}
}

static void listing_done(void *arg, const struct err *e)
{
	struct listing *l = arg;

	if (e)
		call_error(l->c, e);
	else if (!l->only)
		call_json(l->c, 200, json_incref(l->rows));
	else if (!l->n)
		call_fail(l->c, ESRCH, "exec_not_found", NO_SUCH_COMMAND);
	else
		call_json(l->c, 200, json_incref(json_array_get(l->rows, 0)));
	json_decref(l->rows);
	call_drop(l->c);
	free(l);
}

static void list(struct call *c, uint64_t only)
{
	struct listing *l = calloc(1, sizeof(*l));
	struct err e;

	if (!l) {
		call_nomem(c);
		return;
	}
	*l = (struct listing){.c = call_hold(c), .rows = json_array(), .only = only};
	if (execs_lookup(c->host, c->sb, listing_seen, listing_done, l, &e) < 0)
		listing_done(l, &e);
}

static bool exec_id(struct call *c, uint64_t *ret)
{
	const char *text = c->param[1];
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (*text >= '1' && *text <= '9' && !*end && !errno)
		return true;
	call_fail(c, ESRCH, "exec_not_found", NO_SUCH_COMMAND);
	return false;
}

void execs_list(struct call *c)
{
	list(c, 0);
}

void execs_get(struct call *c)
{
	uint64_t id;

	if (exec_id(c, &id))
		list(c, id);
}

/* ---- start ---- */

struct starting {
	struct call *c; /* NULL: the client is gone; the command starts all the same */
	uint64_t id;
	unsigned pid;
};

static void start_started(void *arg, uint64_t id, unsigned pid)
{
	struct starting *s = arg;

	s->id = id;
	s->pid = pid;
}

static void start_data(void *arg, bool err, const void *p, size_t n)
{
}

static void start_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct starting *s = arg;
	char id[24];

	snprintf(id, sizeof(id), "%llu", (unsigned long long)s->id);
	if (e)
		call_error(s->c, e);
	else if (!s->id)
		call_fail(s->c, ENOENT, "bad_request",
		          "cannot start the program: there is none "
		          "of that name that can be run");
	else
		call_json(s->c, 201, json_pack("{s:s, s:i}", "id", id, "pid", (int)s->pid));
	call_drop(s->c);
	free(s);
}

void execs_start(struct call *c)
{
	static const struct exec_ops ops = {.started = start_started,
	                                    .data = start_data,
	                                    .end = start_end};
	const json_t *in = json_object_get(c->body, "stdin");
	bool fed = json_is_true(in);
	struct exec_spec s;
	struct starting *st;
	int64_t rows, cols;
	struct err e;

	if (in && !json_is_null(in) && !json_is_boolean(in)) {
		call_fail(c, EINVAL, "bad_request",
		          "stdin must be true or false; send the text to .../execs/{id}/stdin");
		return;
	}
	json_object_del(c->body, "stdin"); /* elsewhere it is a text */
	if (exec_spec_parse(c->body, &s, &e) < 0) {
		call_error(c, &e);
		return;
	}
	if (!call_bool(c, "pty", false, &s.pty) || !call_bool(c, "hold", false, &s.hold) ||
	    !call_int(c, "rows", 24, 1, 4096, &rows) || !call_int(c, "cols", 80, 1, 4096, &cols))
		return;
	s.rows = (unsigned)rows;
	s.cols = (unsigned)cols;
	s.detach = true;
	s.keep_open = fed;
	if (!json_object_get(c->body, "timeout_seconds"))
		s.timeout_ms = 0;
	st = calloc(1, sizeof(*st));
	if (!st) {
		call_nomem(c);
		return;
	}
	if (!exec_begin(c->host, c->sb, &s, &ops, st, &e)) {
		call_error(c, &e);
		free(st);
		return;
	}
	st->c = call_hold(c);
}

/* ---- output ---- */

struct following {
	struct sse s;
	struct job *j;
	uint64_t id;
	uint64_t pos[2];
	uint64_t until[2]; /* without follow: where it ends */
	bool follow, attached, found, listing;
};

static void following_free(struct following *o)
{
	sse_fini(&o->s);
	free(o);
}

/* All there was is told. A character that is not whole is left for the next client that asks. */
static bool following_enough(struct following *o)
{
	uint64_t next[2];

	if (o->follow || !o->attached || o->pos[0] < o->until[0] || o->pos[1] < o->until[1])
		return false;
	sse_catch_up(&o->s);
	for (int k = 0; k < 2; k++) {
		next[k] = o->pos[k] - o->s.text[k].n;
		o->s.text[k].n = 0;
	}
	job_abandon(o->j);
	o->j = NULL;
	sse_finish(&o->s, "end",
	           json_pack("{s:I, s:I}", "stdout_offset", (json_int_t)next[0], "stderr_offset",
	                     (json_int_t)next[1]));
	following_free(o);
	return true;
}

static void following_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct following *o = arg;
	int k = chan == WIRE_ERR;
	uint64_t at = o->pos[k];

	o->pos[k] += n;
	sse_output(&o->s, k, p, n, &at);
	following_enough(o);
}

static void following_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct following *o = arg;

	if (type == WIRE_ATTACHED) {
		const struct wire_attached *m = msg;

		o->attached = true;
		o->pos[0] = m->out_offset;
		o->pos[1] = m->err_offset;
		sse_begin(&o->s);
		sse_event(&o->s, "start",
		          json_pack("{s:I, s:I}", "stdout_offset", (json_int_t)o->pos[0],
		                    "stderr_offset", (json_int_t)o->pos[1]));
		following_enough(o);
	} else if (type == WIRE_GAP) {
		int k = chan == WIRE_ERR;

		o->pos[k] = ((const struct wire_gap *)msg)->offset;
		sse_event(&o->s, "gap",
		          json_pack("{s:s, s:I}", "stream", k ? "stderr" : "stdout", "offset",
		                    (json_int_t)o->pos[k]));
		following_enough(o);
	} else if (type == WIRE_EXITED) {
		struct exec_exit x;

		exec_exit_of(msg, &x);
		job_abandon(o->j);
		o->j = NULL;
		sse_finish(&o->s, "exit", exec_exit_json(&x));
		following_free(o);
	}
}

static void following_end(void *arg, struct job *j, const struct job_end *end)
{
	struct following *o = arg;
	struct err e = {0};

	o->j = NULL;
	if (!end->e && end->guest == ESRCH)
		err_set(&e, ESRCH, "exec_not_found", NO_SUCH_COMMAND);
	else if (!end->e && end->guest == EBUSY)
		err_set(&e, EBUSY, "conflict",
		        "the command is not detached: the client that started it reads its output");
	else
		job_error(end, "cannot read the output", &e);
	sse_fail(&o->s, &e);
	following_free(o);
}

static void following_gone(void *arg)
{
	struct following *o = arg;

	if (o->listing)
		return; /* following_listed() cleans up */
	job_abandon(o->j);
	following_free(o);
}

static void following_attach(struct following *o, struct sandbox *sb)
{
	static const struct job_ops ops = {.data = following_data,
	                                   .reply = following_reply,
	                                   .end = following_end};
	struct err e;

	o->j = job_start(o->s.c->host, sb, WIRE_ATTACH,
	                 &(struct wire_attach){.id = o->id,
	                                       .out_offset = o->pos[0],
	                                       .err_offset = o->pos[1],
	                                       .window = EXEC_WINDOW},
	                 &ops, o, &e);
	if (!o->j) {
		sse_fail(&o->s, &e);
		following_free(o);
	}
}

static void following_seen(void *arg, const struct wire_exec_info *m)
{
	struct following *o = arg;

	if (m->id != o->id)
		return;
	o->found = true;
	o->until[0] = m->out_to;
	o->until[1] = m->err_to;
	if (!(m->flags & WIRE_INFO_RUNNING))
		o->follow = true; /* up to its exit, which has come */
}

static void following_listed(void *arg, const struct err *e)
{
	struct following *o = arg;
	struct call *c = o->s.c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);
	struct err missing;

	o->listing = false;
	if (!e && (!o->found || !sb)) {
		err_set(&missing, ESRCH, "exec_not_found", NO_SUCH_COMMAND);
		e = &missing;
	}
	if (e || !c->req) {
		if (e)
			sse_fail(&o->s, e);
		following_free(o);
		return;
	}
	following_attach(o, sb);
}

void execs_output(struct call *c)
{
	autofree char *encoding = call_query(c, "encoding");
	int64_t from[2];
	struct following *o;
	struct err e;
	uint64_t id;
	bool base64;

	if (!exec_id(c, &id) || !call_query_int(c, "stdout_offset", 0, 0, INT64_MAX, &from[0]) ||
	    !call_query_int(c, "stderr_offset", 0, 0, INT64_MAX, &from[1]))
		return;
	if (sse_encoding(encoding, &base64, &e) < 0) {
		call_error(c, &e);
		return;
	}
	o = calloc(1, sizeof(*o));
	if (!o) {
		call_nomem(c);
		return;
	}
	o->id = id;
	o->pos[0] = (uint64_t)from[0];
	o->pos[1] = (uint64_t)from[1];
	o->follow = call_query_flag(c, "follow");
	sse_init(&o->s, c, base64, credit_to_job, &o->j);
	call_on_gone(c, following_gone, o);
	if (o->follow) {
		following_attach(o, c->sb);
		return;
	}
	o->listing = true;
	if (execs_lookup(c->host, c->sb, following_seen, following_listed, o, &e) < 0)
		following_listed(o, &e);
}

/* ---- stdin ---- */

struct feeding {
	struct call *c;
	struct job *j;
	struct body_feed body;
	struct loop_timer patience; /* until it is its turn */
	bool eof, all, feeds;
};

static void feeding_free(struct feeding *f)
{
	loop_timer_clear(f->c->host->loop, &f->patience);
	call_leave(f->c);
	free(f);
}

static void feeding_busy(struct feeding *f)
{
	call_fail(f->c, EBUSY, "sandbox_busy",
	          "another request feeds this command, or it does not read what it got");
}

static void feeding_all(void *arg)
{
	struct feeding *f = arg;

	f->all = true;
	if (f->eof)
		job_send_eof(f->j);
	job_cancel(f->j); /* let go of its stdin: what was sent is in its pipe, or on the way */
}

static void feeding_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct feeding *f = arg;

	if (type != WIRE_ATTACHED)
		return;
	f->feeds = true;
	loop_timer_clear(f->c->host->loop, &f->patience);
	body_feed_begin(&f->body, f->c, j, feeding_all, f);
}

static void feeding_writable(void *arg, struct job *j)
{
	struct feeding *f = arg;

	if (f->feeds)
		body_feed_more(&f->body);
}

static void feeding_end(void *arg, struct job *j, const struct job_end *end)
{
	struct feeding *f = arg;

	f->j = NULL;
	if (f->feeds)
		body_feed_stop(&f->body);
	if (f->all && !end->e)
		call_empty(f->c, 204);
	else if (!end->e && end->guest == ESRCH)
		call_fail(f->c, ESRCH, "exec_not_found", NO_SUCH_COMMAND);
	else if (!end->e && end->guest == EBUSY)
		feeding_busy(f);
	else if (!end->e && !end->guest)
		call_fail(f->c, EPIPE, "conflict", "the command has ended");
	else
		job_fail(f->c, end, "cannot feed the command");
	feeding_free(f);
}

static void feeding_gone(void *arg)
{
	struct feeding *f = arg;

	job_abandon(f->j);
	feeding_free(f);
}

static void feeding_late(void *arg)
{
	struct feeding *f = arg;

	job_abandon(f->j);
	feeding_busy(f);
	feeding_free(f);
}

void execs_stdin(struct call *c)
{
	/* No window: its output belongs to another client. */
	static const struct job_ops ops = {.reply = feeding_reply,
	                                   .writable = feeding_writable,
	                                   .end = feeding_end};
	struct loop *l = c->host->loop;
	struct wire_attach m = {.out_offset = UINT64_MAX,
	                        .err_offset = UINT64_MAX,
	                        .flags = WIRE_ATTACH_STDIN | WIRE_ATTACH_WAIT};
	struct feeding *f;
	struct err e;

	if (!exec_id(c, &m.id))
		return;
	f = calloc(1, sizeof(*f));
	if (!f) {
		call_nomem(c);
		return;
	}
	f->c = call_hold(c);
	f->eof = call_query_flag(c, "eof");
	f->patience.fn = feeding_late;
	f->patience.arg = f;
	call_on_gone(c, feeding_gone, f);
	if (loop_timer_set(l, &f->patience, loop_now_ms(l) + STDIN_WAIT_MS) < 0)
		err_nomem(&e);
	else
		f->j = job_start(c->host, c->sb, WIRE_ATTACH, &m, &ops, f, &e);
	if (!f->j) {
		call_error(c, &e);
		feeding_free(f);
	}
}

/* ---- signal ---- */

/* "TERM", "SIGTERM" or 15; 0: no such signal. */
static int signal_number(const json_t *v)
{
	const char *name = json_string_value(v);

	if (json_is_integer(v))
		return json_integer_value(v) > 0 && json_integer_value(v) < NSIG
		           ? (int)json_integer_value(v)
		           : 0;
	if (!name)
		return 0;
	if (strncasecmp(name, "SIG", 3) == 0)
		name += 3;
	for (int i = 1; i < NSIG; i++)
		if (sigabbrev_np(i) && strcasecmp(sigabbrev_np(i), name) == 0)
			return i;
	return 0;
}

static void signal_end(void *arg, struct job *j, const struct job_end *end)
{
	struct call *c = arg;

	if (!end->e && !end->guest)
		call_empty(c, 204);
	else if (!end->e && end->guest == ESRCH)
		call_fail(c, ESRCH, "exec_not_found", "no such command is running");
	else
		job_fail(c, end, "cannot send the signal");
	call_drop(c);
}

void execs_signal(struct call *c)
{
	static const struct job_ops ops = {.end = signal_end};
	const json_t *v = json_object_get(c->body, "signal");
	struct wire_signal m = {.signo = SIGTERM};
	struct err e;
	bool tree;

	if (!exec_id(c, &m.id) || !call_bool(c, "tree", false, &tree))
		return;
	if (v && !(m.signo = (uint32_t)signal_number(v))) {
		call_fail(c, EINVAL, "bad_request",
		          "signal must be a name like \"TERM\" or a number from 1 to %d", NSIG - 1);
		return;
	}
	m.flags = tree ? WIRE_SIGNAL_TREE : 0;
	if (!job_start(c->host, c->sb, WIRE_SIGNAL, &m, &ops, c, &e)) {
		call_error(c, &e);
		return;
	}
	call_hold(c);
}
