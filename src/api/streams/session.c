#include "api/streams/session.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>

#include "api/api.h"
#include "api/routes/detached.h"
#include "api/streams/cell.h"
#include "api/streams/exec.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/utf8.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "template/depot.h"
#include "template/template.h"

enum {
	FIRST_CELL_MS = 60000, /* until a new interpreter answers */
	SPARE_SAID_MAX = 64,   /* bytes: that its prelude is done. Any cell makes it more. */
};

/* It is as the bake has left it. */
static bool session_untouched(const struct session *s)
{
	return s->out_to <= SPARE_SAID_MAX;
}

bool session_spare(const struct session *s)
{
	return strcmp(s->id, TEMPLATE_SPARE_SESSION) == 0 && session_untouched(s);
}

/* ---- finding sessions ---- */

struct finding {
	struct call *c;
	const char *sid; /* NULL: all */
	session_found *found;
	bool make;
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

static void session_make_default(struct call *c, struct sandbox *sb, session_found *then);

/* The default session of a python template was there before the sandbox, and its variables were
 * not. */
static bool lacks_variables(const struct finding *f, const struct sandbox *sb)
{
	return f->make && f->n == 1 && session_untouched(&f->list[0]) &&
	       json_object_size(sb->spec.env) > 0;
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
	else if (!c->req)
		; /* no client waits any more */
	else if (lacks_variables(f, sb) && session_take(c, sb, &f->list[0], f->found))
		; /* and goes on when it has them */
	else if (!f->sid || f->n)
		f->found(c, sb, f->list, f->n);
	else if (f->make && sb->runner && strcmp(sb->runner, "python") == 0)
		session_make_default(c, sb, f->found);
	else
		call_fail(c, ESRCH, "session_not_found",
		          "session not found: make one with POST .../repl/sessions");
	call_drop(c);
	free(f);
}

void session_find(struct call *c, const char *sid, bool make, session_found *found)
{
	struct finding *f = calloc(1, sizeof(*f));
	struct err e;

	if (!f) {
		call_nomem(c);
		return;
	}
	f->c = call_hold(c);
	f->sid = sid;
	f->found = found;
	f->make = make && sid && strcmp(sid, "default") == 0;
	if (execs_lookup(c->host, c->sb, finding_seen, finding_done, f, &e) < 0)
		finding_done(f, &e);
}

json_t *session_json(const struct sandbox *sb, const struct session *s)
{
	json_t *j = json_object();

	json_object_set_new(j, "id", json_string(s->id));
	json_object_set_new(j, "session_id", json_string(s->id));
	json_object_set_new(j, "sandbox_id", json_string(sb->id));
	json_object_set_new(j, "language", json_string(s->language));
	json_object_set_new(j, "created_at",
	                    json_time(s->created_ms ? s->created_ms : sb->created_ms));
	return j;
}

/* ---- a new session ---- */

struct creating {
	struct call *c;
	struct session s;
	struct cell *cell;
	session_found *then; /* NULL: 201 is the answer */
	char words[160];     /* of an interpreter that does not come up */
};

static void creating_free(struct creating *n)
{
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

	call_on_gone(c, NULL, NULL);
	if (e)
		call_error(c, e);
	else if (sb && n->then && c->req)
		n->then(c, sb, &n->s, 1); /* also after a prelude that failed: it says so itself */
	else if (exit || !sb)
		call_fail(c, EIO, "internal",
		          "the interpreter of this template does not start: %s; look whether it "
		          "has %s",
		          n->words, n->s.language);
	else
		call_json(c, 201, session_json(sb, &n->s));
	creating_free(n);
}

static void creating_gone(void *arg)
{
	struct creating *n = arg;

	cell_abandon(n->cell);
	creating_free(n);
}

static const char *prelude_of(struct call *c, const struct sandbox *sb)
{
	struct template *t =
	    template_find(c->host->depot.templates, sb->tenant, sb->spec.template, NULL);
	const char *text = t ? json_string_value(json_object_get(t->doc, "prelude")) : NULL;

	return text ? text : "";
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
		const char *first = n->then ? prelude_of(c, sb) : "";

		n->cell = cell_run(c->host, sb, &n->s, first, strlen(first), FIRST_CELL_MS, &ops, n,
		                   &failed);
		if (n->cell) {
			call_on_gone(c, creating_gone, n);
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

static void creating_begin(struct call *c, struct sandbox *sb, const struct creating *wish,
                           const char *const *program)
{
	static const struct exec_ops ops = {.started = creating_started,
	                                    .data = creating_data,
	                                    .end = creating_end};
	struct exec_spec s = {.detach = true, .keep_open = true};
	struct creating *n = malloc(sizeof(*n));
	struct err e;
	json_t *argv;
	bool began;

	if (!n) {
		call_nomem(c);
		return;
	}
	*n = *wish;
	n->s.created_ms = wall_ms();
	argv = language_words(program, 2);
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

static void session_make_default(struct call *c, struct sandbox *sb, session_found *then)
{
	static const char *const program[2] = {"python3", "/usr/lib/panda/repl.py"};
	struct creating wish = {.s = {.id = "default", .language = "python"}, .then = then};

	creating_begin(c, sb, &wish, program);
}

void session_make(struct call *c, struct sandbox *sb, const struct language *l)
{
	struct creating wish = {0};
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = mono_ns();
	snprintf(wish.s.id, sizeof(wish.s.id), "%016" PRIx64, random);
	wish.s.language = l->names[0];
	creating_begin(c, sb, &wish, l->stays);
}

/* ---- the spare one ---- */

/*
 * As code: __panda_take__() of repl.py gives the interpreter this environment and directory. It
 * works once, so of two clients that want the spare at the same time one gets an error.
 */
static char *session_take_code(struct call *c, const struct sandbox *sb)
{
	struct template *t =
	    template_find(c->host->depot.templates, sb->tenant, sb->spec.template, NULL);
	const json_t *theirs = t ? json_object_get(t->doc, "env") : NULL;
	const char *dir = t ? json_string_value(json_object_get(t->doc, "workdir")) : NULL;
	json_t *env = json_object(), *name = json_string(dir ? dir : "/");
	autofree char *text = NULL, *place = NULL;
	char *code = NULL;

	/* Commands of this template are a user's, and the spare is root's. */
	if (t && !json_object_get(t->doc, "user") && env && name &&
	    (!theirs || json_object_update(env, (json_t *)theirs) == 0) &&
	    (!sb->spec.env || json_object_update(env, sb->spec.env) == 0)) {
		text = json_dumps(env, JSON_COMPACT); /* JSON of strings is Python */
		place = json_dumps(name, JSON_ENCODE_ANY);
	}
	if (text && place && asprintf(&code, "__panda_take__(%s, %s)", text, place) < 0)
		code = NULL;
	json_decref(env);
	json_decref(name);
	return code;
}

static void session_taken(void *arg, const struct err *e, int exit, bool timed_out, uint64_t ms)
{
	struct creating *n = arg;
	struct call *c = n->c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);

	call_on_gone(c, NULL, NULL);
	if (!sb)
		call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found");
	else if (!e && !exit)
		call_json(c, 201, session_json(sb, &n->s));
	else if (c->req)
		session_make(c, sb, language_of(c, true));
	creating_free(n);
}

bool session_take(struct call *c, struct sandbox *sb, const struct session *s, session_found *then)
{
	static const struct cell_ops ops = {.output = first_output,
	                                    .result = first_result,
	                                    .error = first_result,
	                                    .end = session_taken};
	static const struct cell_ops on = {.output = first_output,
	                                   .result = first_result,
	                                   .error = first_result,
	                                   .end = first_end};
	autofree char *code = session_take_code(c, sb);
	struct creating *n = code ? calloc(1, sizeof(*n)) : NULL;
	struct err e;

	if (!n)
		return false;
	n->s = *s;
	n->then = then;
	n->cell =
	    cell_run(c->host, sb, s, code, strlen(code), FIRST_CELL_MS, then ? &on : &ops, n, &e);
	if (!n->cell) {
		free(n);
		return false;
	}
	n->c = call_hold(c);
	call_on_gone(c, creating_gone, n);
	return true;
}
