/*
 * api/routes/code.c - code: in fresh interpreters, and cells of sessions (api/streams/session.c)
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "api/streams/cell.h"
#include "api/streams/exec.h"
#include "api/streams/output.h"
#include "api/streams/session.h"
#include "api/streams/sse.h"
#include "base/account.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/utf8.h"

enum {
	TIMEOUT_MAX_MS = 24 * 3600 * 1000,
};

static const struct language languages[] = {
    {{"python", "py", "python3"}, {"python3", "-"}, {"python3", "/usr/lib/panda/repl.py"}},
    {{"javascript", "node", "js", "nodejs"}, {"node", "-"}, {"/usr/lib/panda/repl-node"}},
    {{"bash"}, {"bash", "-s"}, {NULL}},
    {{"sh", "shell"}, {"sh", "-s"}, {NULL}},
    {{"ruby", "rb"}, {"ruby", "-"}, {NULL}},
};

const struct language *language_of(struct call *c, bool stays)
{
	const char *name;

	if (!call_str(c, "language", "python", &name))
		return NULL;
	for (size_t i = 0; i < ARRAY_LEN(languages); i++)
		for (size_t k = 0; k < ARRAY_LEN(languages[i].names) && languages[i].names[k]; k++)
			if (strcasecmp(name, languages[i].names[k]) == 0 &&
			    (!stays || languages[i].stays[0]))
				return &languages[i];
	call_fail(
	    c, EINVAL, "unsupported_language",
	    stays ? "unsupported language '%.40s': sessions speak python and javascript"
		  : "unsupported language '%.40s': there are python, javascript, bash, sh, ruby",
	    name);
	return NULL;
}

void repl_languages(struct call *c)
{
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_LEN(languages); i++)
		for (size_t k = 0; k < ARRAY_LEN(languages[i].names) && languages[i].names[k]; k++)
			json_array_append_new(list, json_string(languages[i].names[k]));
	call_json(c, 200, list);
}

static bool code_of(struct call *c, const char **code, size_t *n)
{
	const json_t *v = json_object_get(c->body, "code");

	if (!json_is_string(v)) {
		call_fail(c, EINVAL, "bad_request", "code required: a string");
		return false;
	}
	*code = json_string_value(v);
	*n = json_string_length(v);
	return true;
}

json_t *language_words(const char *const *list, size_t max)
{
	json_t *j = json_array();

	for (size_t i = 0; i < max && list[i]; i++)
		json_array_append_new(j, json_string(list[i]));
	return j;
}

/* ---- a fresh one ---- */

void repl_once(struct call *c)
{
	const struct language *l = language_of(c, false);
	struct exec_spec s = {.timeout_ms = EXEC_TIMEOUT_MS};
	int64_t timeout;
	json_t *argv;
	struct err e;

	if (!l || !code_of(c, &s.in, &s.in_len) ||
	    !call_int(c, "timeout_seconds", EXEC_TIMEOUT_MS / 1000, 0, TIMEOUT_MAX_MS / 1000,
	              &timeout))
		return;
	if (exec_output_parse(c->body, &s.output_max, &e) < 0) {
		call_error(c, &e);
		return;
	}
	argv = language_words(l->fresh, ARRAY_LEN(l->fresh));
	s.argv = argv;
	s.timeout_ms = (uint64_t)timeout * 1000;
	exec_answer(c, &s, json_pack("{s:s}", "language", l->names[0]));
	json_decref(argv);
}

/* ---- cells ---- */

struct running {
	struct call *c;
	struct cell *cell;
	struct output out[2];
	json_t *results, *error;
	size_t result_bytes;
	uint64_t timeout_ms;
	bool stream, begun;
};

static void running_free(struct running *r)
{
	output_free(&r->out[0]);
	output_free(&r->out[1]);
	account_give(r->c->account, r->result_bytes);
	json_decref(r->results);
	json_decref(r->error);
	call_leave(r->c);
	free(r);
}

static void begin_events(struct running *r)
{
	if (!r->begun)
		call_sse_begin(r->c);
	r->begun = true;
}

static void add_text(struct output *o, const char *p, size_t n)
{
	if (n > EXEC_OUTPUT_MAX - o->len) { /* not in the middle of a character */
		n = utf8_valid(p, EXEC_OUTPUT_MAX - o->len);
		o->truncated = true;
	}
	output_add(o, EXEC_OUTPUT_MAX, p, n);
}

static void run_output(void *arg, bool err, const char *p, size_t n)
{
	struct running *r = arg;

	if (r->stream) {
		json_t *j = json_object();

		begin_events(r);
		json_object_set_new(j, "chunk", json_stringn(p, n));
		call_event(r->c, err ? "stderr" : "stdout", j);
	} else {
		add_text(&r->out[err], p, n);
	}
}

static void run_result(void *arg, json_t *bundle)
{
	struct running *r = arg;
	const json_t *v;
	const char *mime;
	size_t n = 0;

	if (r->stream) {
		begin_events(r);
		call_event(r->c, "result", json_incref(bundle));
		return;
	}
	json_object_foreach(bundle, mime, v)
		n += json_string_length(v);
	if (n > CELL_RESULTS_MAX - r->result_bytes || !account_take(r->c->account, n)) {
		r->out[0].truncated = true; /* a smaller one may fit all the same */
		return;
	}
	r->result_bytes += n;
	json_array_append(r->results, bundle);
}

static void run_error(void *arg, json_t *error)
{
	struct running *r = arg;
	const json_t *lines = json_object_get(error, "traceback"), *line;
	size_t i;

	json_decref(r->error);
	r->error = json_incref(error);
	if (r->stream) {
		begin_events(r);
		call_event(r->c, "error",
		           json_pack("{s:O?, s:O?, s:O?}", "name", json_object_get(error, "name"),
		                     "value", json_object_get(error, "value"), "traceback", lines));
		return;
	}
	json_array_foreach(lines, i, line) {
		const char *text = json_string_value(line);
		size_t n = json_string_length(line);

		if (text)
			add_text(&r->out[1], text, n);
		if (text && (!n || text[n - 1] != '\n'))
			add_text(&r->out[1], "\n", 1);
	}
}

static bool run_room(void *arg)
{
	struct running *r = arg;

	return !r->stream || call_room(r->c);
}

static void run_go(void *arg)
{
	struct running *r = arg;

	if (r->cell)
		cell_go(r->cell);
}

static json_t *answer(struct running *r, int exit, uint64_t ms)
{
	json_t *j = json_object();
	const char *name = json_string_value(json_object_get(r->error, "name"));
	const char *value = json_string_value(json_object_get(r->error, "value"));

	json_object_set_new(j, "stdout",
	                    json_stringn(r->out[0].p ? r->out[0].p : "", r->out[0].len));
	json_object_set_new(j, "stderr",
	                    json_stringn(r->out[1].p ? r->out[1].p : "", r->out[1].len));
	json_object_set_new(j, "exit", json_integer(exit));
	json_object_set_new(j, "duration_ms", json_integer((json_int_t)ms));
	json_object_set(j, "results", r->results);
	if (r->error) {
		json_object_set_new(j, "error",
		                    json_sprintf("%s%s%s", name ? name : "Error",
		                                 value && *value ? ": " : "", value ? value : ""));
		json_object_set(j, "traceback", json_object_get(r->error, "traceback"));
	}
	if (r->out[0].truncated || r->out[1].truncated)
		json_object_set_new(j, "truncated", json_true());
	return j;
}

static void run_end(void *arg, const struct err *e, int exit, bool timed_out, uint64_t ms)
{
	struct running *r = arg;

	r->cell = NULL;
	if (r->stream && !(e && !r->begun)) {
		begin_events(r);
		if (e)
			call_event(r->c, "error",
			           json_pack("{s:o, s:s}", "error", json_sentence(e->text), "code",
			                     e->kind));
		else
			call_event(r->c, "exit",
			           json_pack("{s:i, s:I, s:b}", "exit", exit, "duration_ms",
			                     (json_int_t)ms, "timed_out", timed_out));
		call_sse_end(r->c);
	} else if (e) {
		call_error(r->c, e);
	} else if (timed_out) {
		/* Clients look for "timeout" in a 5xx; the session and its variables live on. */
		call_fail(r->c, ETIMEDOUT, "cell_timeout", "cell timeout after %" PRIu64 "ms",
		          r->timeout_ms);
	} else {
		call_json(r->c, 200, answer(r, exit, ms));
	}
	running_free(r);
}

static void run_gone(void *arg)
{
	struct running *r = arg;

	cell_abandon(r->cell);
	running_free(r);
}

static void run_in(struct call *c, struct sandbox *sb, const struct session *s, bool stream)
{
	static const struct cell_ops ops = {.output = run_output,
	                                    .result = run_result,
	                                    .error = run_error,
	                                    .room = run_room,
	                                    .end = run_end};
	const char *code;
	int64_t timeout;
	struct running *r;
	struct err e;
	size_t n;

	if (!code_of(c, &code, &n) ||
	    !call_int(c, "timeout_ms", CELL_TIMEOUT_MS, 0, TIMEOUT_MAX_MS, &timeout))
		return;
	r = calloc(1, sizeof(*r));
	if (!r) {
		call_nomem(c);
		return;
	}
	r->c = call_hold(c);
	r->out[0].account = r->out[1].account = c->account;
	r->stream = stream;
	r->results = json_array();
	r->timeout_ms = (uint64_t)timeout;
	r->cell = cell_run(c->host, sb, s, code, n, (uint64_t)timeout, &ops, r, &e);
	if (!r->cell) {
		call_error(c, &e);
		running_free(r);
		return;
	}
	call_on_room(c, run_go, r);
	call_on_gone(c, run_gone, r);
}

static void run_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	run_in(c, sb, &list[0], false);
}

static void stream_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	run_in(c, sb, &list[0], true);
}

void repl_run(struct call *c)
{
	const char *code;
	size_t n;

	if (code_of(c, &code, &n))
		session_find(c, c->param[1], true, run_found);
}

void repl_run_stream(struct call *c)
{
	const char *code;
	size_t n;

	if (code_of(c, &code, &n))
		session_find(c, c->param[1], true, stream_found);
}
