/*
 * machine/guest_wait.c - the blocking half of guest.h: how one waits for a call, and for a command
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/macro.h"
#include "machine/guest.h"
#include "machine/guest_internal.h"
#include "wire/guest.h"

void wait_give_up(struct wait *w, int err)
{
	if (!w->failed) {
		w->failed = err;
		guest_cancel(w->call);
	}
}

static void wait_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct wait *w = arg;
	const uint8_t *at = p;
	size_t left = n;

	w->pos[chan - WIRE_OUT] += n;
	if (w->output && !w->failed)
		w->output(w->arg, chan, p, n);
	while (w->row && left && !w->failed) {
		int r = w->row(w, at, left);

		if (r >= 0 && ++w->rows > GUEST_ROWS_MAX)
			r = -EOVERFLOW;
		if (r < 0) {
			wait_give_up(w, r);
			break;
		}
		at += r;
		left -= (size_t)r;
	}
	guest_credit(c, chan, n);
}

static void wait_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct wait *w = arg;

	switch (type) {
	case WIRE_EXITED:
		w->exited = *(const struct wire_exited *)msg;
		break;
	case WIRE_STARTED:
		w->started = *(const struct wire_started *)msg;
		break;
	case WIRE_ATTACHED:
		if (w->attach) {
			const struct wire_attached *m = msg;

			w->attach->out_offset = w->pos[0] = m->out_offset;
			w->attach->err_offset = w->pos[1] = m->err_offset;
		}
		break;
	case WIRE_GAP:
		if (w->attach) {
			uint64_t *pos = &w->pos[chan - WIRE_OUT];

			w->attach->lost += ((const struct wire_gap *)msg)->offset - *pos;
			*pos = ((const struct wire_gap *)msg)->offset;
		}
		break;
	case WIRE_FILE:
		w->file = *(const struct wire_file *)msg;
		w->file.name = w->file.target = wire_str("");
		break;
	case WIRE_PATH:
		w->path = strdup(((const struct wire_path *)msg)->path.p);
		break;
	case WIRE_STATS_REPLY:
		w->stats = *(const struct wire_stats *)msg;
		break;
	}
}

static void wait_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct wait *w = arg;

	w->done = true;
	w->err = end->err;
	w->call = NULL;
	snprintf(w->text, sizeof(w->text), "%s", end->text);
}

static const struct guest_ops wait_ops = {.data = wait_data, .reply = wait_reply, .end = wait_end};

void guest_set_deadline(struct guest *g, uint64_t ms)
{
	g->deadline_ms = ms ? mono_ms() + ms : 0;
}

void guest_set_stop(struct guest *g, int fd, uint64_t until_ms)
{
	g->stops = fd >= 0;
	g->stop_fd = fd;
	g->until_ms = until_ms;
}

/* When it is late; 0: never. */
static uint64_t give_up_ms(const struct guest *g)
{
	if (!g->deadline_ms || !g->until_ms)
		return MAX(g->deadline_ms, g->until_ms);
	return MIN(g->deadline_ms, g->until_ms);
}

void guest_set_meanwhile(struct guest *g, void (*fn)(void *arg), void *arg)
{
	g->meanwhile = fn;
	g->meanwhile_arg = arg;
}

/* What the guest may have now of our input. */
static void feed(struct wait *w)
{
	char buf[32 * 1024];
	ssize_t r;

	r = read(w->in_fd, buf, MIN(sizeof(buf), guest_sendable(w->call)));
	if (r > 0) {
		guest_send(w->call, buf, (size_t)r); /* fits: we asked first */
	} else if (r == 0) {
		if (guest_send_eof(w->call) == 0)
			w->feeding = false;
	} else if (errno != EAGAIN && errno != EINTR) {
		wait_give_up(w, -errno);
	}
}

int wait_turn(struct guest *g, struct wait *w)
{
	bool feeding = w->feeding && guest_sendable(w->call) > 0;
	struct pollfd p[4] = {
	    {.fd = g->fd, .events = (short)(POLLIN | (g->out_len ? POLLOUT : 0))},
	    {.fd = feeding ? w->in_fd : -1, .events = POLLIN},
	    {.fd = w->wake ? w->wake_fd : -1, .events = POLLIN},
	    {.fd = g->stops ? g->stop_fd : -1, .events = POLLIN},
	};
	uint64_t late = give_up_ms(g), now = late ? mono_ms() : 0;
	int timeout = -1;

	if (late && now >= late)
		return guest_fail(g, ETIMEDOUT, "the guest does not answer");
	if (late)
		timeout = (int)MIN(late - now, (uint64_t)INT32_MAX);
	if (poll(p, ARRAY_LEN(p), timeout) < 0)
		return errno == EINTR ? 0 : guest_fail(g, errno, "cannot wait for the guest");
	if (p[3].revents)
		return guest_fail(g, ECANCELED, "it was to stop");
	if (p[1].revents)
		feed(w);
	if (p[2].revents)
		w->wake(w->arg, w->call);
	/* poll and epoll have the same bits for in, out, error and hang-up */
	return guest_dispatch(g, (uint32_t)p[0].revents);
}

int wait_begin(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
               struct err *e)
{
	int r = guest_start(g, type, msg, &wait_ops, w, &w->call);

	if (r < 0)
		return err_set(e, -r, r == -EMSGSIZE ? "too_large" : "guest_unreachable", "%s: %s",
		               what,
		               r == -EMSGSIZE ? "the request is larger than a frame"
		                              : strerror(-r));
	return 0;
}

int wait_finish(struct guest *g, struct wait *w, const char *what, struct err *e)
{
	void (*meanwhile)(void *arg) = g->meanwhile;

	guest_flush(g);
	g->meanwhile = NULL;
	if (meanwhile)
		meanwhile(g->meanwhile_arg);
	while (!w->done)
		wait_turn(g, w); /* a dead connection ends every call */
	if (w->failed)
		return err_set(e, -w->failed, "guest_io", "%s: %s", what, strerror(-w->failed));
	if (g->dead)
		return err_set(e, g->dead, "guest_unreachable", "%s: %s", what, w->text);
	if (w->err)
		return err_set(e, w->err, "guest_refused", "%s: %s%s%s", what, w->text,
		               *w->text ? ": " : "", strerror(w->err));
	return 0;
}

int wait_run(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
             struct err *e)
{
	int r = wait_begin(g, type, msg, w, what, e);

	return r < 0 ? r : wait_finish(g, w, what, e);
}

int guest_ask(struct guest *g, uint8_t type, const void *msg, const char *what, struct err *e)
{
	return wait_run(g, type, msg, &(struct wait){0}, what, e);
}

/* ---- exec ---- */

static int fill_exec(const struct guest_exec *x, uint8_t *lists, size_t n, struct wire_exec *ret,
                     struct err *e)
{
	char *const shell[] = {(char *)x->script, NULL};
	uint32_t flags = (x->script ? WIRE_EXEC_SHELL : 0) | (x->pty ? WIRE_EXEC_PTY : 0) |
	                 (x->feed_stdin ? WIRE_EXEC_STDIN : 0) |
	                 (x->wait_output ? WIRE_EXEC_WAIT_OUTPUT : 0);

	*ret = (struct wire_exec){
	    .flags = flags,
	    .window = GUEST_WINDOW,
	    .timeout_ms = x->timeout_ms,
	    .rows = x->rows,
	    .cols = x->cols,
	    .cwd = wire_str(x->cwd ? x->cwd : ""),
	    .user = wire_str(x->user ? x->user : ""),
	};
	if (wire_list_build(x->script ? shell : x->argv, lists, n, &ret->argv) < 0 ||
	    wire_list_build(x->env, lists + ret->argv.len, n - ret->argv.len, &ret->env) < 0)
		return err_set(e, E2BIG, "too_large", "the command does not fit into a frame");
	return 0;
}

static void connect_exec(struct wait *w, const struct guest_exec *x)
{
	w->output = x->output;
	w->arg = x->arg;
	w->feeding = x->feed_stdin;
	w->in_fd = x->stdin_fd;
	w->wake = x->wakeable ? x->wake : NULL;
	w->wake_fd = x->wake_fd;
}

static void take_exit(const struct wait *w, struct guest_exit *ret)
{
	*ret = (struct guest_exit){
	    .id = w->exited.id,
	    .signaled = w->exited.how == WIRE_HOW_SIGNAL,
	    .timed_out = w->exited.flags & WIRE_EXITED_TIMEOUT,
	    .code = (int)(w->exited.code & 0xff),
	    .out_bytes = w->exited.out_bytes,
	    .err_bytes = w->exited.err_bytes,
	    .cpu_us = w->exited.cpu_us,
	    .max_rss_kib = w->exited.max_rss_kib,
	};
}

static int run_exec(struct guest *g, const struct guest_exec *x, uint32_t flags, struct wait *w,
                    const char *what, struct err *e)
{
	autofree uint8_t *lists = malloc(WIRE_PAYLOAD_MAX);
	struct wire_exec m;
	int r;

	if (!lists)
		return err_nomem(e);
	r = fill_exec(x, lists, WIRE_PAYLOAD_MAX, &m, e);
	m.flags |= flags;
	return r < 0 ? r : wait_run(g, WIRE_EXEC, &m, w, what, e);
}

int guest_exec_wait(struct guest *g, const struct guest_exec *x, struct guest_exit *ret,
                    struct err *e)
{
	struct wait w = {0};
	int r;

	connect_exec(&w, x);
	r = run_exec(g, x, 0, &w, "cannot run the command", e);
	if (r == 0)
		take_exit(&w, ret);
	return r;
}

int guest_exec_start(struct guest *g, const struct guest_exec *x, uint64_t *ret_id, struct err *e)
{
	struct wait w = {0};
	int r = run_exec(g, x, WIRE_EXEC_DETACH, &w, "cannot start the command", e);

	if (r == 0)
		*ret_id = w.started.id;
	return r;
}

int guest_exec_attach(struct guest *g, struct guest_attach *at, const struct guest_exec *x,
                      struct guest_exit *ret, struct err *e)
{
	struct wait w = {.attach = at};
	struct wire_attach m = {.id = at->id,
	                        .out_offset = at->out_offset,
	                        .err_offset = at->err_offset,
	                        .window = GUEST_WINDOW,
	                        .flags = x->feed_stdin ? WIRE_ATTACH_STDIN : 0};
	int r;

	at->lost = 0;
	connect_exec(&w, x);
	r = wait_run(g, WIRE_ATTACH, &m, &w, "cannot attach to the command", e);
	if (r == 0)
		take_exit(&w, ret);
	return r;
}

int guest_exec_signal(struct guest *g, uint64_t id, int signo, uint32_t flags, struct err *e)
{
	struct wire_signal m = {.id = id, .signo = (uint32_t)signo, .flags = flags};

	return guest_ask(g, WIRE_SIGNAL, &m, "cannot signal the command", e);
}
