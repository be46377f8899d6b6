/*
 * api/repl.c - code: fresh interpreters, and sessions that keep their variables
 */
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "api/cell.h"
#include "api/exec.h"
#include "api/execs.h"
#include "api/job.h"
#include "api/sse.h"
#include "base/cleanup.h"
#include "base/clock.h"

enum {
	TIMEOUT_MAX_MS = 24 * 3600 * 1000,
	FIRST_CELL_MS = 30000, /* until a new interpreter answers */
};

struct language {
	const char *names[5]; /* the first is what we call it */
	const char *fresh[3]; /* reads code from stdin */
	const char *stays[2]; /* a session; NULL: there are none */
};

static const struct language languages[] = {
    {{"python", "py", "python3"}, {"python3", "-"}, {"python3", "/usr/lib/panda/repl.py"}},
    {{"javascript", "node", "js", "nodejs"}, {"node", "-"}, {"/usr/lib/panda/repl-node"}},
    {{"bash"}, {"bash", "-s"}, {NULL}},
    {{"sh", "shell"}, {"sh", "-s"}, {NULL}},
    {{"ruby", "rb"}, {"ruby", "-"}, {NULL}},
};

static const struct language *language_of(struct call *c, bool stays)
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

static json_t *words(const char *const *list, size_t max)
{
	json_t *j = json_array();

	for (size_t i = 0; i < max && list[i]; i++)
		json_array_append_new(j, json_string(list[i]));
	return j;
}

/* ---- a fresh one ---- */

struct once {
	struct call *c;
	struct exec_collect *x;
	const char *language;
};

static void once_done(void *arg, const struct err *e, const struct exec_result *r)
{
	struct once *o = arg;

	o->c->gone = NULL;
	if (e) {
		call_error(o->c, e);
	} else {
		json_t *j = exec_result_json(r);

		json_object_set_new(j, "language", json_string(o->language));
		call_json(o->c, 200, j);
	}
	call_drop(o->c);
	free(o);
}

static void once_gone(void *arg)
{
	struct once *o = arg;

	exec_collect_abandon(o->x);
	call_drop(o->c);
	free(o);
}

void repl_once(struct call *c)
{
	const struct language *l = language_of(c, false);
	struct exec_spec s = {.timeout_ms = EXEC_TIMEOUT_MS};
	int64_t timeout;
	struct once *o;
	struct err e;
	json_t *argv;

	if (!l || !code_of(c, &s.in, &s.in_len) ||
	    !call_int(c, "timeout_seconds", EXEC_TIMEOUT_MS / 1000, 0, TIMEOUT_MAX_MS / 1000,
	              &timeout))
		return;
	o = calloc(1, sizeof(*o));
	if (!o) {
		call_fail(c, ENOMEM, "no_memory", "no memory");
		return;
	}
	argv = words(l->fresh, ARRAY_LEN(l->fresh));
	s.argv = argv;
	s.timeout_ms = (uint64_t)timeout * 1000;
	o->language = l->names[0];
	o->x = exec_collect(c->host, c->sb, &s, once_done, o, &e);
	json_decref(argv);
	if (!o->x) {
		call_error(c, &e);
		free(o);
		return;
	}
	o->c = call_hold(c);
	c->gone = once_gone;
	c->gone_arg = o;
}

/* ---- finding sessions ---- */

struct finding {
	struct call *c;
	const char *sid; /* NULL: all */
	void (*found)(struct call *c, struct sandbox *sb, struct session *list, size_t n);
	struct session list[SESSIONS_MAX * 2];
	size_t n;
};

static void finding_seen(void *arg, const struct wire_exec_info *m)
{
	struct finding *f = arg;
	struct session s;

	if (f->n < ARRAY_LEN(f->list) && session_of(m, &s) &&
	    (!f->sid || strcmp(f->sid, s.id) == 0))
		f->list[f->n++] = s;
}

static void finding_done(void *arg, const struct err *e)
{
	struct finding *f = arg;
	struct call *c = f->c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);

	if (e)
		call_error(c, e);
	else if (!sb)
		call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found");
	else if (f->sid && !f->n)
		call_fail(c, ESRCH, "session_not_found",
		          "session not found: make one with POST .../repl/sessions");
	else if (c->req)
		f->found(c, sb, f->list, f->n);
	call_drop(c);
	free(f);
}

/* Then found(), with the one of that id or all of them; or it was answered. */
static void find(struct call *c, const char *sid,
                 void (*found)(struct call *c, struct sandbox *sb, struct session *list, size_t n))
{
	struct finding *f = calloc(1, sizeof(*f));
	struct err e;

	if (!f) {
		call_fail(c, ENOMEM, "no_memory", "no memory");
		return;
	}
	f->c = call_hold(c);
	f->sid = sid;
	f->found = found;
	if (execs_lookup(c->host, c->sb, finding_seen, finding_done, f, &e) < 0)
		finding_done(f, &e);
}

static json_t *show_session(const struct sandbox *sb, const struct session *s)
{
	json_t *j = json_object();

	json_object_set_new(j, "id", json_string(s->id));
	json_object_set_new(j, "session_id", json_string(s->id));
	json_object_set_new(j, "sandbox_id", json_string(sb->id));
	json_object_set_new(j, "language", json_string(s->language));
	json_object_set_new(j, "created_at",
	                    show_time(s->created_ms ? s->created_ms : sb->created_ms));
	return j;
}

static void list_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(rows, show_session(sb, &list[i]));
	call_json(c, 200, rows);
}

void repl_list(struct call *c)
{
	find(c, NULL, list_found);
}

/* ---- a new session ---- */

struct creating {
	struct call *c;
	struct session s;
	struct cell *cell;
	char words[160]; /* of an interpreter that does not come up */
};

static void creating_free(struct creating *n)
{
	n->c->gone = NULL;
	call_drop(n->c);
	free(n);
}

static void first_output(void *arg, bool err, const char *text, size_t len)
{
	struct creating *n = arg;

	size_t keep = utf8_valid(text, MIN(len, sizeof(n->words) - 1));

	while (keep && text[keep - 1] == '\n')
		keep--;
	if (!*n->words)
		snprintf(n->words, sizeof(n->words), "%.*s", (int)keep, text);
}

static void first_result(void *arg, json_t *bundle)
{
}

static void first_end(void *arg, const struct err *e, int exit, bool timed_out, uint64_t ms)
{
	struct creating *n = arg;
	struct call *c = n->c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);

	if (e)
		call_error(c, e);
	else if (exit || !sb)
		call_fail(c, EIO, "internal",
		          "the interpreter of this template does not start: %s; look whether it "
		          "has %s",
		          n->words, n->s.language);
	else
		call_json(c, 201, show_session(sb, &n->s));
	creating_free(n);
}

static void creating_gone(void *arg)
{
	struct creating *n = arg;

	cell_abandon(n->cell);
	creating_free(n);
}

/* It runs. When it has answered an empty cell, it is there. */
static void creating_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	static const struct cell_ops ops = {.output = first_output,
	                                    .result = first_result,
	                                    .error = first_result,
	                                    .end = first_end};
	struct creating *n = arg;
	struct call *c = n->c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);
	struct err failed;

	if (e) {
		call_error(c, e);
	} else if (!n->s.exec || !sb) {
		call_fail(c, ENOENT, "unsupported_language",
		          "this template has no interpreter for %s: choose one that has",
		          n->s.language);
	} else {
		n->cell = cell_run(c->host, sb, &n->s, "", 0, FIRST_CELL_MS, &ops, n, &failed);
		if (n->cell) {
			c->gone = creating_gone;
			c->gone_arg = n;
			return;
		}
		call_error(c, &failed);
	}
	creating_free(n);
}

static void creating_started(void *arg, uint64_t id, unsigned pid)
{
	((struct creating *)arg)->s.exec = id;
}

static void creating_data(void *arg, bool err, const void *p, size_t n)
{
}

static void create_found(struct call *c, struct sandbox *sb, struct session *list, size_t have)
{
	static const struct exec_ops ops = {
	    .started = creating_started, .data = creating_data, .end = creating_end};
	const struct language *l = language_of(c, true);
	struct exec_spec s = {.detach = true, .keep_open = true};
	struct creating *n;
	uint64_t random = 0;
	struct err e;
	json_t *argv;
	bool began;

	if (!l)
		return;
	if (have >= SESSIONS_MAX) {
		call_fail(c, EAGAIN, "too_many",
		          "a sandbox may have %d sessions: delete one that is not needed",
		          SESSIONS_MAX);
		return;
	}
	n = calloc(1, sizeof(*n));
	if (!n) {
		call_fail(c, ENOMEM, "no_memory", "no memory");
		return;
	}
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = mono_ns();
	snprintf(n->s.id, sizeof(n->s.id), "%016" PRIx64, random);
	n->s.language = l->names[0];
	n->s.created_ms = clock_ns(CLOCK_REALTIME) / 1000000u;
	argv = words(l->stays, ARRAY_LEN(l->stays));
	json_array_append_new(argv, json_string("--session"));
	json_array_append_new(argv, json_string(n->s.id));
	json_array_append_new(argv, json_sprintf("%" PRIu64, n->s.created_ms));
	s.argv = argv;
	began = exec_begin(c->host, sb, &s, &ops, n, &e);
	json_decref(argv);
	if (!began) {
		call_error(c, &e);
		free(n);
		return;
	}
	n->c = call_hold(c);
}

void repl_create(struct call *c)
{
	if (language_of(c, true))
		find(c, NULL, create_found);
}

/* ---- cells ---- */

struct pile {
	char *p;
	size_t len, cap;
	bool truncated;
};

struct running {
	struct call *c;
	struct cell *cell;
	struct pile out[2];
	json_t *results, *error;
	size_t result_bytes;
	uint64_t timeout_ms;
	bool stream, begun;
};

static void running_free(struct running *r)
{
	call_on_room(r->c, NULL, NULL);
	r->c->gone = NULL;
	call_drop(r->c);
	free(r->out[0].p);
	free(r->out[1].p);
	json_decref(r->results);
	json_decref(r->error);
	free(r);
}

static void begin_events(struct running *r)
{
	if (!r->begun)
		call_sse_begin(r->c);
	r->begun = true;
}

static void add_text(struct pile *o, const char *p, size_t n)
{
	if (n > EXEC_OUTPUT_MAX - o->len) { /* not in the middle of a character */
		n = utf8_valid(p, EXEC_OUTPUT_MAX - o->len);
		o->truncated = true;
	}
	if (o->len + n > o->cap) {
		size_t cap = MAX(2 * o->cap, o->len + n + 4096);
		char *bigger = realloc(o->p, cap);

		if (!bigger) {
			o->truncated = true;
			return;
		}
		o->p = bigger;
		o->cap = cap;
	}
	if (n)
		memcpy(o->p + o->len, p, n);
	o->len += n;
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

	if (r->stream) {
		begin_events(r);
		call_event(r->c, "result", json_incref(bundle));
		return;
	}
	json_object_foreach(bundle, mime, v) r->result_bytes += json_string_length(v);
	if (r->result_bytes > CELL_RESULTS_MAX)
		r->out[0].truncated = true;
	else
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
	json_array_foreach(lines, i, line)
	{
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
			           json_pack("{s:s, s:s}", "error", e->text, "code", e->kind));
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
		call_fail(c, ENOMEM, "no_memory", "no memory");
		return;
	}
	r->c = call_hold(c);
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
	c->gone = run_gone;
	c->gone_arg = r;
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
		find(c, c->param[1], run_found);
}

void repl_run_stream(struct call *c)
{
	const char *code;
	size_t n;

	if (code_of(c, &code, &n))
		find(c, c->param[1], stream_found);
}

/* ---- signals ---- */

static void signalled(void *arg, struct job *j, const struct job_end *end)
{
	struct call *c = arg;

	if (!end->e && (!end->guest || end->guest == ESRCH))
		call_empty(c, 204);
	else
		job_fail(c, end, "cannot reach the interpreter");
	call_drop(c);
}

static void send_signal(struct call *c, struct sandbox *sb, uint64_t exec, int signo, bool tree)
{
	static const struct job_ops ops = {.end = signalled};
	struct err e;

	if (job_start(c->host, sb, WIRE_SIGNAL,
	              &(struct wire_signal){.id = exec,
	                                    .signo = (uint32_t)signo,
	                                    .flags = tree ? WIRE_SIGNAL_TREE : 0},
	              &ops, c, &e))
		call_hold(c);
	else
		call_error(c, &e);
}

static void interrupt_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	send_signal(c, sb, list[0].exec, SIGINT, false);
}

static void delete_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	send_signal(c, sb, list[0].exec, SIGKILL, true);
}

void repl_interrupt(struct call *c)
{
	find(c, c->param[1], interrupt_found);
}

void repl_delete(struct call *c)
{
	find(c, c->param[1], delete_found);
}
