/*
 * api/routes/command_socket.c - many commands over one WebSocket
 * Each has an id of the client's. Their output gets credit when the socket has room.
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
#include "base/err.h"
#include "base/utf8.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "http/ws.h"

enum {
	MUX_MAX = 64, /* commands in flight on one socket */
	MUX_ID_MAX = 128,
};

struct mux_exec {
	struct mux *m;
	struct exec_job *x;
	char id[MUX_ID_MAX + 1];
	struct utf8 text[2];
	struct credit credit;
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
	credit_owe(&x->credit, err, n, ws_room(x->m->w));
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
		x->credit = (struct credit){.give = credit_to_exec, .arg = &x->x};
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
		credit_pay(&x->credit);
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
