#include "guest/init/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "guest/init/sink.h"
#include "wire/guest.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

enum {
	KNOWN_FLAGS = WIRE_EXEC_SHELL | WIRE_EXEC_STDIN | WIRE_EXEC_PTY | WIRE_EXEC_DETACH |
	              WIRE_EXEC_STARTED | WIRE_EXEC_WAIT_OUTPUT | WIRE_EXEC_HANGUP | WIRE_EXEC_HOLD,
};

static uint8_t scratch[4096]; /* for output no client wants */

/* ---- rings ---- */

static void ring_grow(struct agent *a, struct ring *r)
{
	uint32_t cap = r->cap ? r->cap * 2 : RING_MIN;
	uint8_t *p;

	if (cap > RING_MAX || (r->cap && a->rings_total + cap > RINGS_TOTAL))
		return;
	p = malloc(cap);
	if (!p)
		return;
	for (uint64_t off = r->from; off < r->to;) {
		/* cap is the double of r->cap: what is in one piece there is so here */
		uint64_t n = MIN(r->to - off, r->cap - off % r->cap);

		memcpy(p + off % cap, r->p + off % r->cap, n);
		off += n;
	}
	free(r->p);
	a->rings_total += cap - r->cap;
	r->p = p;
	r->cap = cap;
}

static void ring_free(struct agent *a, struct ring *r)
{
	a->rings_total -= r->cap;
	free(r->p);
	r->p = NULL;
	r->cap = 0;
}

/* ---- life ---- */

static void nothing(struct source *s, uint32_t events)
{
}

/* The fd itself is closed in exec_bury(): a client may be waiting for the answer. */
void out_end(struct out_chan *c)
{
	c->eof = true;
	c->readable = false;
}

/* Out of sight at once, out of memory after this turn's answers are written. */
static void exec_free(struct exec *x)
{
	x->in.src.ready = nothing;
	for (int k = 0; k < 2; k++) {
		out_end(&x->out[k]);
		x->out[k].src.ready = nothing;
	}
	list_del(&x->work.node);
	list_del(&x->node);
	list_add(&x->a->graves, &x->node);
}

void exec_bury(struct agent *a)
{
	list_for_each(n, &a->graves) {
		struct exec *x = container_of(n, struct exec, node);

		sink_close(&x->in.sink);
		for (int k = 0; k < 2; k++) {
			if (x->out[k].fd >= 0)
				source_close(a, x->out[k].fd);
			ring_free(a, &x->out[k].ring);
		}
		list_del(&x->node);
		free(x);
	}
}

void exec_end_deadline(struct exec *x)
{
	if (x->deadline_ns)
		x->a->n_timed--;
	x->deadline_ns = 0;
}

/* Its pipes are closed and its leader reaped: forget it, or remember its result. */
void exec_gone(struct exec *x)
{
	struct agent *a = x->a;

	a->n_execs--;
	if (!x->detached) {
		exec_free(x);
		return;
	}
	list_del(&x->node);
	list_add(&a->finished, &x->node);
	x->kept = true;
	if (++a->n_finished <= FINISHED_MAX)
		return;
	list_for_each(n, &a->finished) {
		struct exec *old = container_of(n, struct exec, node);

		if (list_empty(&old->readers)) {
			a->n_finished--;
			exec_free(old);
			return;
		}
	}
}

/* Something changed: let the reader that moves its output have a look. */
static void exec_progress(struct exec *x)
{
	if (x->owner)
		stream_queue(&x->owner->s);
	else
		agent_queue(x->a, &x->work);
}

static bool exec_drained(const struct exec *x)
{
	if (!x->exited)
		return false;
	for (int k = 0; k < 2; k++) {
		const struct out_chan *c = &x->out[k];

		if (!c->eof && ((x->flags & WIRE_EXEC_WAIT_OUTPUT) || !c->drained))
			return false;
	}
	return true;
}

void exec_check_finished(struct exec *x)
{
	if (x->finished || !exec_drained(x))
		return;
	x->finished = true;
	exec_end_deadline(x);
}

/*
 * One read of a channel's output into p. Returns its length, or 0 when there is nothing (now or
 * ever). A pipe gives all it has, so a short read is as good as EAGAIN; a terminal does not.
 */
size_t out_read(struct out_chan *c, uint8_t *p, size_t n)
{
	bool pty = c->x->flags & WIRE_EXEC_PTY;
	ssize_t r;

	do
		r = read(c->fd, p, n);
	while (r < 0 && errno == EINTR);
	if (r == 0 || (r < 0 && errno != EAGAIN)) { /* a terminal without users says EIO */
		out_end(c);
		return 0;
	}
	if (r < 0 || ((size_t)r < n && !pty)) {
		c->readable = false;
		c->drained = c->x->exited;
		if (c->hung_up && !pty)
			out_end(c);
	}
	if (r < 0)
		return 0;
	return (size_t)r;
}

static void out_ready(struct source *s, uint32_t events)
{
	struct out_chan *c = container_of(s, struct out_chan, src);

	if (c->eof)
		return;
	if (events & (EPOLLHUP | EPOLLERR)) {
		c->hung_up = true;
		if (!(events & EPOLLIN) && !c->readable && !(c->x->flags & WIRE_EXEC_PTY))
			out_end(c); /* no writer and nothing left: no need to read that */
	}
	if (!c->eof)
		c->readable = true;
	exec_progress(c->x);
}

/* How much may go into it before a reader who has seen so much loses any. */
static uint64_t ring_behind(const struct ring *r, uint64_t seen)
{
	return r->cap - (r->to - MAX(seen, r->from));
}

/* How much may go into the ring before a reader that is not to lose anything would. */
static uint64_t ring_room(const struct out_chan *c)
{
	const struct ring *r = &c->ring;
	const struct exec *x = c->x;
	int k = c == &x->out[1];
	uint64_t room = r->cap, behind;
	bool held = false;

	list_for_each(n, &x->readers) {
		const struct exec_stream *es = container_of(n, struct exec_stream, node);

		if (!es->hold)
			continue;
		held = true;
		behind = ring_behind(r, es->pos[k]);
		room = MIN(room, behind);
	}
	/* One that has ended and lost its reader must not stay for ever. */
	if (!held && (x->flags & WIRE_EXEC_HOLD) && !(x->exited && x->was_read))
		room = ring_behind(r, x->seen[k]);
	return room;
}

/* Returns false when a reader has to read first: it queues us again. */
static bool drain_to_ring(struct out_chan *c)
{
	struct ring *r = &c->ring;

	for (size_t done = 0; c->readable && done < CHUNK;) {
		uint64_t at, room;
		size_t n;

		if (r->to - r->from == r->cap)
			ring_grow(c->x->a, r);
		if (!r->cap) { /* no memory for even the smallest ring */
			n = out_read(c, scratch, sizeof(scratch));
			r->to += n;
			r->from = r->to;
			done += MAX(n, (size_t)1);
			continue;
		}
		room = ring_room(c);
		if (!room)
			return false;
		at = r->to % r->cap;
		room = MIN(room, r->cap - at);
		n = out_read(c, r->p + at, MIN(room, (uint64_t)CHUNK));
		r->to += n;
		if (r->to - r->from > r->cap)
			r->from = r->to - r->cap;
		done += MAX(n, (size_t)1);
	}
	return true;
}

/* Runs for execs without an owner. */
static void exec_work(struct work *w)
{
	struct exec *x = container_of(w, struct exec, work);
	bool again = false;

	for (int k = 0; k < 2; k++) {
		struct out_chan *c = &x->out[k];
		bool held = false;

		if (x->detached)
			held = !drain_to_ring(c);
		else if (c->readable)
			out_read(c, scratch, sizeof(scratch));
		again |= c->readable && !held;
	}
	exec_check_finished(x);
	list_for_each(n, &x->readers)
		stream_queue(&container_of(n, struct exec_stream, node)->s);
	if (x->finished && !x->kept && x->out[0].eof && x->out[1].eof)
		exec_gone(x);
	else if (again)
		agent_queue(x->a, &x->work);
}

static struct exec *exec_new(struct agent *a)
{
	struct exec *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->a = a;
	x->work.run = exec_work;
	x->in.sink.a = a;
	x->in.sink.fd = -1;
	x->in.x = x;
	x->in.src.ready = nothing;
	for (int k = 0; k < 2; k++) {
		x->out[k].fd = -1;
		x->out[k].x = x;
		x->out[k].src.ready = out_ready;
	}
	list_init(&x->node);
	list_init(&x->work.node);
	list_init(&x->readers);
	return x;
}

/*
 * The pipes of the next exec are made while no client waits, and their write ends are our own fds 1
 * and 2: the child inherits them in place, so the way from request to execve() has no pipe2(), no
 * epoll_ctl() and no dup2() in it.
 */
void exec_prepare_spare(struct agent *a)
{
	struct exec *x;

	if (a->spare)
		return;
	x = exec_new(a);
	for (int k = 0; x && k < 2; k++) {
		int p[2];

		if (pipe2(p, O_CLOEXEC) < 0)
			goto fail;
		x->out[k].fd = p[0];
		if (fcntl(p[0], F_SETFL, O_NONBLOCK) < 0 || dup2(p[1], 1 + k) < 0 ||
		    source_add(a, &x->out[k].src, p[0], EPOLLIN | EPOLLET) < 0) {
			close(p[1]);
			goto fail;
		}
		close(p[1]);
	}
	a->spare = x;
	return;
fail:
	dup2(0, 1);
	dup2(0, 2);
	exec_free(x);
}

static int open_pty(struct exec *x, const struct wire_exec *m, int *tty)
{
	struct winsize size = {.ws_row = (unsigned short)(m->rows ? m->rows : 24),
	                       .ws_col = (unsigned short)(m->cols ? m->cols : 80)};
	int zero = 0;

	x->out[0].fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	if (x->out[0].fd < 0 || ioctl(x->out[0].fd, TIOCSPTLCK, &zero) < 0 ||
	    ioctl(x->out[0].fd, TIOCSWINSZ, &size) < 0)
		return -errno;
	*tty = ioctl(x->out[0].fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*tty < 0)
		return -errno;
	x->in.sink.fd =
	    fcntl(x->out[0].fd, F_DUPFD_CLOEXEC, 3); /* epoll knows it as another file */
	if (x->in.sink.fd < 0)
		return -errno;
	x->out[1].eof = true;
	return source_add(x->a, &x->out[0].src, x->out[0].fd, EPOLLIN | EPOLLET);
}

static int open_stdin(struct exec *x, int *child_end)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	*child_end = p[0];
	x->in.sink.fd = p[1];
	return fcntl(p[1], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static void remember_command(struct exec *x, const struct wire_exec *m)
{
	const char *arg;
	uint32_t pos = 0;
	size_t n = 0;

	while (n < sizeof(x->command) - 1 && (arg = wire_list_next(&m->argv, &pos)))
		n += (size_t)snprintf(x->command + n, sizeof(x->command) - n, "%s%s", n ? " " : "",
		                      arg);
}

/* Returns 0 with x->pid set, or -errno and in *s what failed. */
static int exec_start(struct exec *x, const struct wire_exec *m, struct spawn *s)
{
	autoclose int tty = -1, in = -1;
	pid_t pid;
	int r = 0;

	*s = (struct spawn){.m = m, .id = x->id, .what = "cannot make pipes"};
	if (m->flags & WIRE_EXEC_PTY)
		r = open_pty(x, m, &tty);
	else if (m->flags & WIRE_EXEC_STDIN)
		r = open_stdin(x, &in);
	if (r < 0)
		return r;
	s->in = in;
	s->tty = tty;
	pid = spawn_exec(x->a, s);
	if (pid < 0)
		return pid;
	x->pid = pid;
	return 0;
}

void exec_request(struct conn *c, uint32_t id, const struct wire_exec *m)
{
	struct agent *a = c->a;
	struct exec_stream *es;
	struct exec *x;
	struct spawn s;
	bool pty = m->flags & WIRE_EXEC_PTY;
	int r;

	if ((m->flags & ~(uint32_t)KNOWN_FLAGS) || !m->argv.count ||
	    ((m->flags & WIRE_EXEC_SHELL) && m->argv.count != 1)) {
		reply_end(c, id, EINVAL, "malformed exec request");
		return;
	}
	if (a->n_execs >= EXECS_MAX) {
		reply_end(c, id, EAGAIN, "too many execs");
		return;
	}
	es = stream_new(c, id, &exec_stream_ops, sizeof(*es), m->window);
	if (!es)
		return;
	if (!pty)
		exec_prepare_spare(a);
	x = pty ? exec_new(a) : a->spare;
	if (!x) {
		stream_end(&es->s, ENOMEM, "cannot make pipes");
		return;
	}
	x->id = a->next_id++;
	x->flags = m->flags;
	r = exec_start(x, m, &s);
	if (r < 0) {
		a->reap_rest = true;
		sink_close(&x->in.sink);
		if (pty)
			exec_free(x);
		stream_end_why(&es->s, -r, s.reason, s.what);
		return;
	}
	if (!pty) {
		a->spare = NULL;
		dup2(0, 1); /* ours of the write ends: the pipe must end when the program does */
		dup2(0, 2);
	}
	remember_command(x, m);
	list_add(&a->execs, &x->node);
	a->n_execs++;
	if (m->timeout_ms) {
		/* Beyond a century it is the same as never, and the sum stays in range. */
		x->deadline_ns = agent_now(a) + MIN(m->timeout_ms, (uint64_t)1 << 41) * 1000000u;
		a->n_timed++;
	}
	es->x = x;
	list_init(&es->node);
	if (m->flags & (WIRE_EXEC_STARTED | WIRE_EXEC_DETACH))
		stream_send(&es->s, WIRE_STARTED, 0,
		            &(struct wire_started){.id = x->id, .pid = (uint32_t)x->pid});
	if (m->flags & WIRE_EXEC_DETACH) {
		x->detached = true;
		stream_end(&es->s, 0, NULL);
		return;
	}
	x->owner = es;
	x->feeder = es;
}

bool exec_reap(struct agent *a)
{
	struct rusage usage;
	int status;
	pid_t pid = wait4(-1, &status, WNOHANG, &usage);

	if (pid <= 0)
		return false;
	list_for_each(n, &a->execs) {
		struct exec *x = container_of(n, struct exec, node);

		if (x->pid != pid || x->exited)
			continue;
		x->exited = true;
		x->oom = oom_ended(a, pid, status);
		x->status = status;
		x->usage = usage;
		sink_close(&x->in.sink);
		for (int k = 0; k < 2; k++) /* look once more, to see it empty after the exit */
			x->out[k].readable = !x->out[k].eof;
		exec_progress(x);
		a->spare_wanted = true;
		break;
	}
	return true;
}

int exec_timeout_ms(struct agent *a)
{
	uint64_t next = UINT64_MAX, now;

	if (!a->n_timed)
		return -1;
	list_for_each(n, &a->execs) {
		const struct exec *x = container_of(n, struct exec, node);

		if (x->deadline_ns)
			next = MIN(next, x->deadline_ns);
	}
	now = agent_now(a);
	if (next <= now)
		return 0;
	return (int)MIN((next - now + 999999) / 1000000, (uint64_t)INT32_MAX);
}

void exec_check_timeouts(struct agent *a)
{
	list_for_each(n, &a->execs) {
		struct exec *x = container_of(n, struct exec, node);

		if (!x->deadline_ns || x->deadline_ns > agent_now(a))
			continue;
		exec_end_deadline(x);
		x->timed_out = true;
		x->flags &= ~(uint32_t)WIRE_EXEC_WAIT_OUTPUT; /* a survivor is not waited for */
		kill_tree(x, SIGKILL);
		exec_progress(x);
	}
}

void exec_kill_all(struct agent *a)
{
	list_for_each(n, &a->execs)
		kill_tree(container_of(n, struct exec, node), SIGKILL);
}

struct exec *exec_find(struct agent *a, uint64_t id)
{
	struct list *lists[] = {&a->execs, &a->finished};

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		list_for_each(n, lists[i]) {
			struct exec *x = container_of(n, struct exec, node);

			if (x->id == id && !x->abandoned)
				return x;
		}
	}
	return NULL;
}
