/*
 * api/routes/terminals.c - shells over WebSockets
 * A terminal is one exec on a pseudo-terminal, both ways at the pace of the slower side: input is not
 * read while the guest does not take it, output gets credit when the socket has room.
 */
#include <errno.h>
#include <string.h>

#include "api/json_in.h"
#include "api/routes/routes.h"
#include "api/routes/websocket.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "base/cleanup.h"
#include "base/macro.h"

enum {
	OUT_PIECE = 32 * 1024,
	SIDE_MAX = 4096, /* rows, cols */
};

static const char login_shell[] =
    "cd 2>/dev/null || cd /; [ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l";

struct term {
	struct call *c;
	struct exec_job *x;
	struct ws *w; /* NULL: not accepted yet, or closed */
	struct credit credit;
	char *rest; /* input the guest has not taken */
	size_t rest_at, rest_len;
};

static void term_free(struct term *t)
{
	call_leave(t->c);
	free(t->rest);
	free(t);
}

static void term_input(struct term *t, const void *p, size_t n)
{
	size_t sent;

	if (!t->x || !n)
		return;
	if (t->rest_len) { /* a message that was on its way when we paused */
		char *bigger = realloc(t->rest, t->rest_at + t->rest_len + n);

		if (!bigger) {
			ws_close(t->w, WS_FAILED, "no memory");
			return;
		}
		t->rest = bigger;
		memcpy(bigger + t->rest_at + t->rest_len, p, n);
		t->rest_len += n;
		return;
	}
	sent = exec_send(t->x, p, n);
	if (sent == n)
		return;
	t->rest = malloc(n - sent);
	if (!t->rest) {
		ws_close(t->w, WS_FAILED, "no memory");
		return;
	}
	memcpy(t->rest, (const char *)p + sent, n - sent);
	t->rest_at = 0;
	t->rest_len = n - sent;
	ws_pause(t->w);
}

static void term_writable(void *arg)
{
	struct term *t = arg;
	size_t n;

	if (!t->rest_len || !t->x)
		return;
	n = exec_send(t->x, t->rest + t->rest_at, t->rest_len);
	t->rest_at += n;
	t->rest_len -= n;
	if (t->rest_len)
		return;
	free(t->rest);
	t->rest = NULL;
	if (t->w)
		ws_resume(t->w);
}

static bool side(const json_t *o, const char *key, unsigned *ret)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	if (v < 1 || v > SIDE_MAX)
		return false;
	*ret = (unsigned)v;
	return true;
}

/* {"resize":{"rows":R,"cols":C}}, {"type":"resize","rows":R,"cols":C}, {"stdin":"text"} */
static void term_control(struct term *t, const char *p, size_t n)
{
	json_t *j = json_in(p, n, NULL);
	const json_t *size = json_object_get(j, "resize"), *in = json_object_get(j, "stdin");
	const char *type = json_string_value(json_object_get(j, "type"));
	unsigned rows, cols;

	if (type && strcmp(type, "resize") == 0)
		size = j;
	if (size && t->x && side(size, "rows", &rows) && side(size, "cols", &cols))
		exec_resize(t->x, rows, cols);
	if (json_is_string(in))
		term_input(t, json_string_value(in), json_string_length(in));
	json_decref(j);
}

static void term_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	if (text)
		term_control(arg, p, n);
	else
		term_input(arg, p, n);
}

static void term_room(void *arg, struct ws *w)
{
	credit_pay(&((struct term *)arg)->credit);
}

static void term_closed(void *arg, struct ws *w)
{
	struct term *t = arg;

	exec_abandon(t->x);
	term_free(t);
}

static void term_started(void *arg, uint64_t id, unsigned pid)
{
	static const struct ws_ops ops = {.message = term_message,
	                                  .writable = term_room,
	                                  .closed = term_closed};
	struct term *t = arg;

	if (!t->c->req)
		return;                                       /* term_gone() is on its way */
	if (ws_accept(t->c->req, NULL, &ops, t, &t->w) < 0) { /* and answered */
		exec_abandon(t->x);
		term_free(t);
		return;
	}
	call_on_gone(t->c, NULL, NULL); /* closed() tells, from here on */
}

static void term_data(void *arg, bool err, const void *p, size_t n)
{
	struct term *t = arg;

	if (!t->w)
		return;
	for (size_t at = 0; at < n; at += OUT_PIECE)
		ws_send(t->w, false, (const char *)p + at, MIN(n - at, (size_t)OUT_PIECE));
	credit_owe(&t->credit, 0, n, ws_room(t->w));
}

static void term_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct term *t = arg;

	t->x = NULL;
	if (!t->w) {
		if (e)
			call_error(t->c, e);
		else
			call_fail(t->c, ENOENT, "bad_request", "cannot start the program");
		term_free(t);
		return;
	}
	if (e) {
		ws_json(t->w,
		        json_pack("{s:o, s:s}", "error", json_sentence(e->text), "code", e->kind));
		ws_close(t->w, WS_FAILED, e->kind);
	} else {
		ws_json(t->w, json_pack("{s:i, s:s, s:i}", "exit", x->exit_code, "type", "exit",
		                        "code", x->exit_code));
		ws_close(t->w, WS_OK, "");
	}
}

static void term_gone(void *arg)
{
	struct term *t = arg;

	exec_abandon(t->x);
	term_free(t);
}

static void terminal(struct call *c)
{
	static const struct exec_ops ops = {.started = term_started,
	                                    .data = term_data,
	                                    .writable = term_writable,
	                                    .end = term_end};
	autofree char *cmd = NULL, *cwd = NULL, *user = NULL;
	struct exec_spec s = {.pty = true, .keep_open = true};
	int64_t rows, cols;
	struct term *t;
	struct err e;

	if (!is_websocket(c) || !call_query_int(c, "rows", 24, 0, SIDE_MAX, &rows) ||
	    !call_query_int(c, "cols", 80, 0, SIDE_MAX, &cols))
		return;
	cmd = call_query(c, "cmd");
	cwd = call_query(c, "cwd");
	user = call_query(c, "user");
	if (cwd && *cwd != '/') {
		call_fail(c, EINVAL, "bad_request", "cwd must be an absolute path");
		return;
	}
	s.cmd = cmd && *cmd ? cmd : login_shell;
	s.cwd = cwd;
	s.user = user;
	s.rows = (unsigned)rows;
	s.cols = (unsigned)cols;
	t = calloc(1, sizeof(*t));
	if (!t) {
		call_nomem(c);
		return;
	}
	t->credit = (struct credit){.give = credit_to_exec, .arg = &t->x};
	t->x = exec_begin(c->host, c->sb, &s, &ops, t, &e);
	if (!t->x) {
		call_error(c, &e);
		free(t);
		return;
	}
	t->c = call_hold(c);
	call_on_gone(c, term_gone, t);
}

void terminal_pty(struct call *c)
{
	terminal(c);
}

void terminal_ssh(struct call *c)
{
	terminal(c);
}

/* ---- many commands ---- */

struct mux_exec {
	struct mux *m;
	struct exec_job *x;
	char id[MUX_ID_MAX + 1];
	struct utf8 text[2];
	size_t owed[2];
	uint64_t timeout_ms;
	struct mux_exec *next, **prevp;
};

struct mux {
	struct call *c;
	struct ws *w;
	char sandbox[SANDBOX_ID + 1];
	struct mux_exec *execs;
	unsigned count;
};

static void mux_unlink(struct mux_exec *x)
{
	*x->prevp = x->next;
	if (x->next)
		x->next->prevp = x->prevp;
	x->m->count--;
	free(x);
}

static void mux_pay(struct mux_exec *x)
{
	for (int k = 0; k < 2; k++) {
		size_t n = x->owed[k];

		x->owed[k] = 0;
		if (n && x->x)
			exec_credit(x->x, k, n);
	}
}

static void mux_text(struct mux_exec *x, int k, const char *p, size_t n)
{
	json_t *j = json_pack("{s:s, s:s}", "id", x->id, "stream", k ? "stderr" : "stdout");

	json_object_set_new(j, "data", json_stringn_nocheck(p, n));
	ws_json(x->m->w, j);
}

static void mux_data(void *arg, bool err, const void *p, size_t n)
{
	static char text[UTF8_ROOM(EXEC_WINDOW)]; /* loop thread only */
	struct mux_exec *x = arg;
	size_t len = utf8_add(&x->text[err], p, n, text);

	if (len)
		mux_text(x, err, text, len);
	x->owed[err] += n;
	if (ws_room(x->m->w))
		mux_pay(x);
}

static void mux_error(struct mux *m, const char *id, const char *text)
{
	ws_json(m->w, json_pack("{s:s, s:o}", "id", id, "error", json_sentence(text)));
}

static void mux_end(void *arg, const struct err *e, const struct exec_exit *exit)
{
	struct mux_exec *x = arg;
	struct mux *m = x->m;
	char text[80];

	for (int k = 0; k < 2; k++) {
		size_t n = utf8_end(&x->text[k], text);

		if (n)
			mux_text(x, k, text, n);
	}
	if (e) {
		mux_error(m, x->id, e->text);
	} else if (exit->timed_out) {
		snprintf(text, sizeof(text), "timeout: the command was killed after %llu ms",
		         (unsigned long long)exit->duration_ms);
		mux_error(m, x->id, text);
	} else {
		ws_json(m->w, json_pack("{s:s, s:i}", "id", x->id, "exit", exit->exit_code));
	}
	mux_unlink(x);
}

static struct mux_exec *mux_find(struct mux *m, const char *id)
{
	for (struct mux_exec *x = m->execs; x; x = x->next)
		if (strcmp(x->id, id) == 0)
			return x;
	return NULL;
}

static void mux_start(struct mux *m, const char *id, const json_t *j)
{
	static const struct exec_ops ops = {.data = mux_data, .end = mux_end};
	struct sandbox *sb = host_find(m->c->host, m->c->tenant, m->sandbox);
	struct mux_exec *x;
	struct exec_spec s;
	struct err e;

	if (!sb)
		err_set(&e, ENOENT, "sandbox_not_found", "sandbox not found");
	else if (m->count >= MUX_MAX)
		err_set(&e, EAGAIN, "too_many",
		        "%d commands are running on this socket: "
		        "wait for one to end",
		        MUX_MAX);
	else if (mux_find(m, id))
		err_set(&e, EEXIST, "exists", "a command with this id is running: send another id");
	else
		e.code = 0;
	if (e.code || exec_spec_parse(j, &s, &e) < 0) {
		mux_error(m, id, e.text);
		return;
	}
	s.output_max = 0;
	x = calloc(1, sizeof(*x));
	if (x) {
		x->m = m;
		snprintf(x->id, sizeof(x->id), "%s", id);
		x->x = exec_begin(m->c->host, sb, &s, &ops, x, &e);
	} else {
		err_nomem(&e);
	}
	if (!x || !x->x) {
		mux_error(m, id, e.text);
		free(x);
		return;
	}
	x->prevp = &m->execs;
	x->next = m->execs;
	if (x->next)
		x->next->prevp = &x->next;
	m->execs = x;
	m->count++;
}

static void mux_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	struct mux *m = arg;
	json_error_t why;
	json_t *j = json_in(p, n, &why);
	const char *id = json_string_value(json_object_get(j, "id"));
	struct mux_exec *x;
	char msg[200];

	if (!json_is_object(j)) {
		snprintf(msg, sizeof(msg), "bad json: %.150s", j ? "not an object" : why.text);
		mux_error(m, "", msg);
	} else if (!id || !*id || strlen(id) > MUX_ID_MAX) {
		mux_error(m, "", "id required: a string that names the command on this socket");
	} else if (json_is_true(json_object_get(j, "cancel"))) {
		x = mux_find(m, id);
		if (x)
			exec_cancel(x->x);
		else
			mux_error(m, id, "no command with this id is running");
	} else {
		mux_start(m, id, j);
	}
	json_decref(j);
}

static void mux_room(void *arg, struct ws *w)
{
	struct mux *m = arg;

	for (struct mux_exec *x = m->execs; x; x = x->next)
		mux_pay(x);
}

static void mux_closed(void *arg, struct ws *w)
{
	struct mux *m = arg;

	while (m->execs) {
		exec_abandon(m->execs->x);
		mux_unlink(m->execs);
	}
	host_idle(m->c->host, m->sandbox);
	call_drop(m->c);
	free(m);
}

void terminal_exec_ws(struct call *c)
{
	static const struct ws_ops ops = {.message = mux_message,
	                                  .writable = mux_room,
	                                  .closed = mux_closed};
	struct mux *m;

	if (!is_websocket(c))
		return;
	m = calloc(1, sizeof(*m));
	if (!m) {
		call_nomem(c);
		return;
	}
	m->c = call_hold(c);
	memcpy(m->sandbox, c->sb->id, sizeof(m->sandbox));
	if (ws_accept(c->req, NULL, &ops, m, &m->w) < 0) { /* and answered */
		call_drop(c);
		free(m);
		return;
	}
	host_busy(c->host, c->sb);
}
