#include "api/streams/cell.h"

#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>

#include "api/json_in.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/utf8.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "wire/guest.h"

enum {
	CELL_WINDOW = GUEST_WINDOW,
	GRACE_MS = 5000, /* the interpreter stops its cells itself; this is for deaf ones */
};

struct cell {
	struct host *host;
	struct session session;
	struct job *j;
	const struct cell_ops *ops;
	void *arg;
	char id[20];
	uint64_t timeout_ms, began_ns;
	struct loop_timer patience, watchdog;
	char *request;
	size_t request_len, request_at;
	char *line; /* the beginning of one */
	size_t line_len, line_cap;
	bool skipping; /* to the end of a line that is too long or has a hole */
	bool attached, done, timed_out;
	int exit;
	struct credit credit;
};

/* ---- sessions ---- */

bool session_of(const struct wire_exec_info *m, struct session *ret)
{
	static const char flag[] = " --session ";
	const char *at = strstr(m->command.p, flag);
	struct session s = {.exec = m->id, .out_to = m->out_to, .err_to = m->err_to};
	size_t n;

	if (!at || !(m->flags & WIRE_INFO_RUNNING) || !(m->flags & WIRE_INFO_DETACHED))
		return false;
	if (strncmp(m->command.p, "python3 /usr/lib/panda/repl.py ", 31) == 0)
		s.language = "python";
	else if (strncmp(m->command.p, "/usr/lib/panda/repl-node ", 25) == 0)
		s.language = "javascript";
	else
		return false;
	at += sizeof(flag) - 1;
	n = strcspn(at, " ");
	if (!n || n > SESSION_ID_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)at[i]))
			return false;
	memcpy(s.id, at, n);
	s.created_ms = strtoull(at + n, NULL, 10);
	*ret = s;
	return true;
}

/* ---- cells ---- */

static void cell_free(struct cell *x)
{
	loop_timer_clear(x->host->loop, &x->patience);
	loop_timer_clear(x->host->loop, &x->watchdog);
	free(x->request);
	free(x->line);
	free(x);
}

static void cell_finish(struct cell *x, const struct err *e)
{
	uint64_t ms = (mono_ns() - x->began_ns) / 1000000u;

	job_abandon(x->j);
	x->j = NULL;
	x->ops->end(x->arg, e, x->exit, x->timed_out, ms);
	cell_free(x);
}

/* The interpreter alone: it knows what the cell has started, and what earlier ones have. */
static void cell_interrupt(struct cell *x)
{
	job_signal(x->j, SIGINT, WIRE_SIGNAL_LEADER);
}

static void cell_feed(struct cell *x)
{
	if (x->request_at < x->request_len)
		x->request_at +=
		    job_send(x->j, x->request + x->request_at, x->request_len - x->request_at);
}

static void cell_left_out(struct cell *x)
{
	static const char text[] =
	    "\n[panda: an answer of the interpreter was left out, it is "
	    "larger than 24 MiB or has more than 131072 values: show less]\n";

	_Static_assert(CELL_LINE_MAX == 24 << 20 && JSON_VALUES_MAX == 131072, "as the text says");
	x->ops->output(x->arg, true, text, sizeof(text) - 1);
}

/* One answer. False: x is gone. */
static bool on_line(struct cell *x, const char *p, size_t n)
{
	json_t *j = json_in(p, n, NULL), *text = json_object_get(j, "text");
	const char *id = json_string_value(json_object_get(j, "id"));
	const char *type = json_string_value(json_object_get(j, "type"));
	bool done = false;

	if (!j && json_values(p, n) > JSON_VALUES_MAX)
		cell_left_out(x);
	if (!id || !type || strcmp(id, x->id) != 0) {
		json_decref(j); /* of another cell, or of work in the background */
		return true;
	}
	if (strcmp(type, "stdout") == 0 || strcmp(type, "stderr") == 0) {
		if (json_is_string(text))
			x->ops->output(x->arg, type[3] == 'e', json_string_value(text),
			               json_string_length(text));
	} else if (strcmp(type, "result") == 0) {
		if (json_is_object(json_object_get(j, "data")))
			x->ops->result(x->arg, json_object_get(j, "data"));
	} else if (strcmp(type, "error") == 0) {
		x->ops->error(x->arg, j);
	} else if (strcmp(type, "done") == 0) {
		done = true;
		x->exit = (int)json_integer_value(json_object_get(j, "exit"));
		x->timed_out = x->timeout_ms && x->exit == EXEC_TIMED_OUT;
	}
	json_decref(j);
	if (done)
		cell_finish(x, NULL);
	return !done;
}

/* Keeps what is not a whole line yet. */
static void cell_keep(struct cell *x, const char *p, size_t n)
{
	if (x->skipping)
		return;
	if (x->line_len + n > CELL_LINE_MAX) {
		x->skipping = true;
		x->line_len = 0;
		cell_left_out(x);
		return;
	}
	if (x->line_len + n > x->line_cap) {
		size_t cap = MAX(2 * x->line_cap, x->line_len + n);
		char *bigger = realloc(x->line, cap);

		if (!bigger) {
			x->skipping = true;
			x->line_len = 0;
			return;
		}
		x->line = bigger;
		x->line_cap = cap;
	}
	memcpy(x->line + x->line_len, p, n);
	x->line_len += n;
}

static void on_data(void *arg, struct job *j, uint8_t chan, const void *bytes, size_t n)
{
	struct cell *x = arg;
	const char *p = bytes, *end = p + n;

	if (chan == WIRE_ERR) { /* last words of an interpreter that cannot speak as it should */
		static char text[2 * UTF8_ROOM(WIRE_PAYLOAD_MAX)]; /* loop thread only */
		struct utf8 u = {0};
		size_t len = utf8_add(&u, p, n, text);

		x->ops->output(x->arg, true, text, len);
	}
	while (chan == WIRE_OUT && p < end) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		bool alive = true;

		if (!nl) {
			cell_keep(x, p, (size_t)(end - p));
			break;
		}
		if (x->line_len || x->skipping) {
			cell_keep(x, p, (size_t)(nl - p));
			if (!x->skipping)
				alive = on_line(x, x->line, x->line_len);
			if (!alive)
				return;
			x->line_len = 0;
			x->skipping = false;
		} else if (!on_line(x, p, (size_t)(nl - p))) {
			return;
		}
		p = nl + 1;
	}
	credit_owe(&x->credit, chan == WIRE_ERR, n, !x->ops->room || x->ops->room(x->arg));
}

void cell_go(struct cell *x)
{
	credit_pay(&x->credit);
}

static void on_late(void *arg)
{
	struct cell *x = arg;
	struct err e;

	err_set(&e, EBUSY, "sandbox_busy",
	        "another cell of this session is still running: interrupt it, or wait");
	cell_finish(x, &e);
}

static void on_watchdog(void *arg)
{
	struct cell *x = arg;

	if (x->j)
		cell_interrupt(x);
	x->timed_out = true;
	x->exit = EXEC_TIMED_OUT;
	cell_finish(x, NULL);
}

static void on_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	static const char lost[] =
	    "\n[panda: some output was lost: it came faster than it was read]\n";
	struct cell *x = arg;

	if (type == WIRE_ATTACHED) {
		x->attached = true;
		x->began_ns = mono_ns();
		loop_timer_clear(x->host->loop, &x->patience);
		if (x->timeout_ms)
			loop_timer_set(x->host->loop, &x->watchdog,
			               loop_now_ms(x->host->loop) + x->timeout_ms + GRACE_MS);
		cell_feed(x);
	} else if (type == WIRE_GAP && chan == WIRE_OUT) {
		x->line_len = 0;
		x->skipping = true;
		x->ops->output(x->arg, true, lost, sizeof(lost) - 1);
	} else if (type == WIRE_EXITED) {
		const struct wire_exited *m = msg;
		char text[100];

		snprintf(text, sizeof(text), "the interpreter has ended (%s %u)\n",
		         m->how == WIRE_HOW_SIGNAL ? "signal" : "exit code", m->code);
		x->ops->output(x->arg, true, text, strlen(text));
		x->exit = (int)(m->how == WIRE_HOW_SIGNAL ? 128 + m->code : m->code);
		if (!x->exit)
			x->exit = 1; /* the cell has not */
		cell_finish(x, NULL);
	}
}

static void on_writable(void *arg, struct job *j)
{
	cell_feed(arg);
}

static void on_end(void *arg, struct job *j, const struct job_end *end)
{
	struct cell *x = arg;
	struct err e;

	x->j = NULL;
	if (!end->e && end->guest == EBUSY && !x->attached) {
		on_late(x);
		return;
	}
	if (!end->e && end->guest == ESRCH)
		err_set(&e, ESRCH, "session_not_found",
		        "no such session in this sandbox: GET .../repl/sessions lists them");
	else
		job_error(end, "cannot reach the interpreter", &e);
	cell_finish(x, &e);
}

static int write_request(struct cell *x, const char *code, size_t n)
{
	json_t *j = json_object();
	autofree char *text = NULL;
	uint64_t random = 0;
	int len;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = mono_ns();
	snprintf(x->id, sizeof(x->id), "%016" PRIx64, random);
	json_object_set_new(j, "id", json_string(x->id));
	json_object_set_new(j, "code", json_stringn(code, n));
	if (x->timeout_ms)
		json_object_set_new(j, "timeout_ms", json_integer((json_int_t)x->timeout_ms));
	text = json_dumps(j, JSON_COMPACT);
	json_decref(j);
	len = text ? asprintf(&x->request, "%zu\n%s", strlen(text), text) : -1;
	if (len < 0) {
		x->request = NULL;
		return -ENOMEM;
	}
	x->request_len = (size_t)len;
	return 0;
}

struct cell *cell_run(struct host *h, struct sandbox *sb, const struct session *s, const char *code,
                      size_t n, uint64_t timeout_ms, const struct cell_ops *ops, void *arg,
                      struct err *e)
{
	static const struct job_ops job_ops = {.data = on_data,
	                                       .reply = on_reply,
	                                       .writable = on_writable,
	                                       .end = on_end};
	const struct wire_attach m = {.id = s->exec,
	                              .out_offset = s->out_to,
	                              .err_offset = s->err_to,
	                              .window = CELL_WINDOW,
	                              .flags =
	                                  WIRE_ATTACH_STDIN | WIRE_ATTACH_HOLD | WIRE_ATTACH_WAIT};
	struct cell *x = calloc(1, sizeof(*x));

	if (!x) {
		err_nomem(e);
		return NULL;
	}
	x->host = h;
	x->credit = (struct credit){.give = credit_to_job, .arg = &x->j};
	x->session = *s;
	x->ops = ops;
	x->arg = arg;
	x->timeout_ms = timeout_ms;
	x->began_ns = mono_ns();
	x->patience = (struct loop_timer){.fn = on_late, .arg = x};
	x->watchdog = (struct loop_timer){.fn = on_watchdog, .arg = x};
	if (write_request(x, code, n) < 0 ||
	    loop_timer_set(h->loop, &x->patience, loop_now_ms(h->loop) + CELL_WAIT_MS) < 0)
		err_nomem(e);
	else
		x->j = job_start_marked(h, sb, WIRE_ATTACH, &m, &job_ops, x, e);
	if (!x->j) {
		cell_free(x);
		return NULL;
	}
	return x;
}

void cell_abandon(struct cell *x)
{
	if (!x)
		return;
	if (x->j && x->attached)
		cell_interrupt(x);
	job_abandon(x->j);
	cell_free(x);
}
