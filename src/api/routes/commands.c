/*
 * api/routes/commands.c - commands that a call waits for: all output in one answer, or as events
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "api/streams/output.h"
#include "api/streams/sse.h"
#include "base/err.h"
#include "base/utf8.h"

/* ---- all output in memory ---- */

struct exec_collect {
	struct exec_job *x;
	exec_done *done;
	void *arg;
	size_t max;
	struct output out[2];
};

static void collect_free(struct exec_collect *c)
{
	output_free(&c->out[0]);
	output_free(&c->out[1]);
	free(c);
}

/* Most output is UTF-8 as it is; else it is written anew. false: no memory. */
static bool output_text(struct output *o)
{
	struct utf8 u = {0};
	char *text;
	size_t n;

	if (!o->p && !(o->p = calloc(1, 1)))
		return false;
	n = utf8_valid(o->p, o->len);
	if (n == o->len)
		goto out;
	if (o->truncated && o->len - n < 4) { /* cut inside a character */
		char rest[UTF8_ROOM(4)];

		if (utf8_add(&u, o->p + n, o->len - n, rest) == 0) {
			o->len = n;
			goto out;
		}
		u = (struct utf8){0};
	}
	text = malloc(UTF8_ROOM(o->len) + UTF8_ROOM(0) + 1);
	if (!text)
		return false;
	n = utf8_add(&u, o->p, o->len, text);
	n += utf8_end(&u, text + n);
	free(o->p);
	o->p = text;
	o->len = n;
out:
	o->p[o->len] = 0;
	return true;
}

static void collect_data(void *arg, bool err, const void *p, size_t n)
{
	struct exec_collect *c = arg;

	output_add(&c->out[err], c->max, p, n);
	exec_credit(c->x, err, n);
}

static void collect_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct exec_collect *c = arg;
	struct exec_result r = {0};
	struct err mem;

	c->x = NULL;
	if (!e && (!output_text(&c->out[0]) || !output_text(&c->out[1]))) {
		err_set(&mem, ENOMEM, "no_memory", "no memory for the output of the command");
		e = &mem;
	}
	if (!e)
		r = (struct exec_result){.out = c->out[0].p,
		                         .out_len = c->out[0].len,
		                         .err = c->out[1].p,
		                         .err_len = c->out[1].len,
		                         .exit = *x,
		                         .truncated = c->out[0].truncated || c->out[1].truncated};
	c->done(c->arg, e, e ? NULL : &r);
	collect_free(c);
}

struct exec_collect *exec_collect(struct host *h, struct sandbox *sb, const struct exec_spec *s,
                                  exec_done *done, void *arg, struct err *e)
{
	static const struct exec_ops ops = {.data = collect_data, .end = collect_end};
	struct exec_collect *c = calloc(1, sizeof(*c));
	struct exec_spec spec = *s;

	if (!c) {
		err_nomem(e);
		return NULL;
	}
	if (!spec.output_max)
		spec.output_max = EXEC_OUTPUT;
	c->done = done;
	c->arg = arg;
	c->max = spec.output_max;
	c->out[0].account = c->out[1].account = spec.account;
	c->x = exec_begin(h, sb, &spec, &ops, c, e);
	if (!c->x) {
		collect_free(c);
		return NULL;
	}
	return c;
}

void exec_collect_abandon(struct exec_collect *c)
{
	if (!c)
		return;
	exec_abandon(c->x);
	collect_free(c);
}

json_t *exec_result_json(const struct exec_result *r)
{
	json_t *j = json_object();

	json_object_set_new(j, "stdout", json_stringn_nocheck(r->out, r->out_len));
	json_object_set_new(j, "stderr", json_stringn_nocheck(r->err, r->err_len));
	json_object_update_new(j, exec_exit_json(&r->exit));
	json_object_set_new(j, "duration_ms", json_integer((json_int_t)r->exit.duration_ms));
	if (r->truncated)
		json_object_set_new(j, "truncated", json_true());
	return j;
}

/* ---- POST exec ---- */

struct run {
	struct call *c;
	struct exec_collect *x;
	json_t *extra;
};

static void run_free(struct run *run)
{
	call_leave(run->c);
	json_decref(run->extra);
	free(run);
}

static void run_done(void *arg, const struct err *e, const struct exec_result *r)
{
	struct run *run = arg;

	if (e) {
		call_error(run->c, e);
	} else {
		json_t *j = exec_result_json(r);

		json_object_update(j, run->extra);
		call_json(run->c, 200, j);
	}
	run_free(run);
}

static void run_gone(void *arg)
{
	struct run *run = arg;

	exec_collect_abandon(run->x);
	run_free(run);
}

void exec_answer(struct call *c, const struct exec_spec *s, json_t *extra)
{
	struct run *run = calloc(1, sizeof(*run));
	struct exec_spec spec = *s;
	struct err e;

	if (!run) {
		json_decref(extra);
		call_nomem(c);
		return;
	}
	*run = (struct run){.c = call_hold(c), .extra = extra};
	spec.account = c->account;
	run->x = exec_collect(c->host, c->sb, &spec, run_done, run, &e);
	if (!run->x) {
		call_error(c, &e);
		run_free(run);
		return;
	}
	call_on_gone(c, run_gone, run);
}

void exec_run(struct call *c)
{
	struct exec_spec s;
	struct err e;

	if (exec_spec_parse(c->body, &s, &e) < 0)
		call_error(c, &e);
	else
		exec_answer(c, &s, NULL);
}

/* ---- POST exec/stream ---- */

struct command_stream {
	struct sse s;
	struct exec_job *x;
};

static void stream_started(void *arg, uint64_t id, unsigned pid)
{
	struct command_stream *st = arg;

	sse_begin(&st->s);
}

static void stream_data(void *arg, bool err, const void *p, size_t n)
{
	struct command_stream *st = arg;

	sse_begin(&st->s); /* a program that could not start has output, too */
	sse_output(&st->s, err, p, n, NULL);
}

static void stream_free(struct command_stream *st)
{
	sse_fini(&st->s);
	free(st);
}

static void stream_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct command_stream *st = arg;

	st->x = NULL;
	if (e) {
		sse_fail(&st->s, e);
	} else {
		json_t *j = exec_exit_json(x);

		json_object_set_new(j, "duration_ms", json_integer((json_int_t)x->duration_ms));
		sse_begin(&st->s);
		sse_finish(&st->s, "exit", j);
	}
	stream_free(st);
}

static void stream_gone(void *arg)
{
	struct command_stream *st = arg;

	exec_abandon(st->x);
	stream_free(st);
}

void exec_stream(struct call *c)
{
	static const struct exec_ops ops = {.started = stream_started,
	                                    .data = stream_data,
	                                    .end = stream_end};
	const char *encoding;
	struct exec_spec s;
	struct command_stream *st;
	struct err e;
	bool base64;

	if (!call_str(c, "encoding", NULL, &encoding))
		return;
	if (exec_spec_parse(c->body, &s, &e) < 0 || sse_encoding(encoding, &base64, &e) < 0) {
		call_error(c, &e);
		return;
	}
	s.output_max = 0;
	st = calloc(1, sizeof(*st));
	if (!st) {
		call_nomem(c);
		return;
	}
	st->x = exec_begin(c->host, c->sb, &s, &ops, st, &e);
	if (!st->x) {
		call_error(c, &e);
		free(st);
		return;
	}
	sse_init(&st->s, c, base64, credit_to_exec, &st->x);
	call_on_gone(c, stream_gone, st);
}
