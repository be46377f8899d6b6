/*
 * api/routes/terminals.c - shells over WebSockets
 * A terminal is one exec on a pseudo-terminal, both ways at the pace of the slower side: input is
 * not read while the guest does not take it, output gets credit when the socket has room.
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/json_in.h"
#include "api/routes/routes.h"
#include "api/routes/websocket.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "http/ws.h"

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
