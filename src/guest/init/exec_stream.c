/*
 * guest/init/exec_stream.c - streams that show an exec: output, stdin, attaching, the list
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/exec.h"
#include "guest/init/list.h"
#include "guest/init/sink.h"
#include "wire/guest.h"

static int send_signal(struct exec *x, const struct wire_signal *m)
{
	pid_t whom = m->flags & WIRE_SIGNAL_LEADER ? x->pid : -x->pid;

	if (m->signo < 1 || m->signo >= NSIG)
		return EINVAL;
	if (m->flags & WIRE_SIGNAL_TREE) {
		kill_tree(x, (int)m->signo);
		return 0;
	}
	if (x->exited)
		return ESRCH;
	return kill(whom, (int)m->signo) < 0 ? errno : 0;
}

void exec_signal(struct conn *c, uint32_t id, const struct wire_signal *m)
{
	struct exec *x = exec_find(c->a, m->id);

	reply_end(c, id, x ? send_signal(x, m) : ESRCH, NULL);
}

/* ---- stdin ---- */

static void in_took(struct exec *x, size_t n)
{
	if (x->feeder && n) {
		x->feeder->s.in_taken += (uint32_t)n;
		stream_queue(&x->feeder->s);
	}
}

static void in_check_eof(struct exec *x)
{
	struct sink *k = &x->in.sink;

	if (!k->eof || k->len || k->fd < 0)
		return;
	if (x->flags & WIRE_EXEC_PTY) {
		k->eof = false; /* a terminal has no end, only the character that means it */
		(void)!write(k->fd, "\x04", 1);
	} else {
		sink_close(k);
	}
}

static void in_ready(struct source *s, uint32_t events)
{
	struct exec *x = container_of(s, struct in_chan, src)->x;

	in_took(x, sink_flush(&x->in.sink));
	in_check_eof(x);
	if (!x->feeder && !x->in.sink.len)
		agent_queue(x->a, &x->work); /* a stream may wait for its turn */
}

static void exec_stream_data(struct stream *s, const uint8_t *p, size_t n)
{
	struct exec_stream *es = container_of(s, struct exec_stream, s);
	struct in_chan *in = &es->x->in;
	size_t done = n;

	if (es->x->feeder == es)
		done = sink_push(&in->sink, p, n);
	if (in->sink.len && !in->polled) {
		in->polled = true;
		in->src.ready = in_ready;
		source_add(es->x->a, &in->src, in->sink.fd, EPOLLOUT | EPOLLET);
	}
	s->in_taken += (uint32_t)done;
	stream_queue(s);
}

static void exec_stream_eof(struct stream *s)
{
	struct exec_stream *es = container_of(s, struct exec_stream, s);

	if (es->x->feeder != es)
		return;
	es->x->in.sink.eof = true;
	in_check_eof(es->x);
}

/* ---- output ---- */

/* From the pipe straight into the connection's buffer. */
static void pass_on(struct exec_stream *es, int k)
{
	struct out_chan *c = &es->x->out[k];
	uint8_t chan = (uint8_t)(WIRE_OUT + k);
	size_t n;

	if (!c->readable)
		return;
	n = stream_space(&es->s, chan);
	if (!n) {
		/* Without credit a pipe with nothing in it must still be seen as drained. */
		int left = 1;

		if (c->x->exited && ioctl(c->fd, FIONREAD, &left) == 0 && !left) {
			c->readable = false;
			c->drained = true;
			if (c->hung_up)
				out_end(c);
		}
		return;
	}
	n = out_read(c, conn_space(es->s.c, WIRE_HEADER + n) + WIRE_HEADER, n);
	if (n) {
		c->ring.from = c->ring.to += n;
		stream_commit_data(&es->s, chan, n);
	}
	if (c->readable && es->s.credit[k])
		stream_queue(&es->s);
}

static void replay(struct exec_stream *es, int k)
{
	const struct ring *r = &es->x->out[k].ring;
	uint8_t chan = (uint8_t)(WIRE_OUT + k);
	size_t n;

	if (es->pos[k] < r->from) {
		es->pos[k] = r->from;
		stream_send(&es->s, WIRE_GAP, chan, &(struct wire_gap){.offset = r->from});
	}
	if (es->pos[k] == r->to)
		return;
	n = stream_space(&es->s, chan);
	n = MIN(n, r->to - es->pos[k]);
	if (!n)
		return;
	n = MIN(n, r->cap - es->pos[k] % r->cap);
	memcpy(conn_space(es->s.c, WIRE_HEADER + n) + WIRE_HEADER, r->p + es->pos[k] % r->cap, n);
	stream_commit_data(&es->s, chan, n);
	es->pos[k] += n;
	if (es->hold && es->x->out[k].readable) /* there may be room now */
		agent_queue(es->x->a, &es->x->work);
	if (es->pos[k] < r->to && es->s.credit[k])
		stream_queue(&es->s);
}

static void status_of(const struct exec *x, uint32_t *how, uint32_t *code)
{
	bool killed = WIFSIGNALED(x->status);

	*how = killed ? WIRE_HOW_SIGNAL : WIRE_HOW_EXIT;
	*code = (uint32_t)(killed ? WTERMSIG(x->status) : WEXITSTATUS(x->status));
}

static uint64_t tv_us(struct timeval tv)
{
	return (uint64_t)tv.tv_sec * 1000000u + (uint64_t)tv.tv_usec;
}

static uint64_t start_of(const struct ring *r, uint64_t asked)
{
	asked = MAX(asked, r->from);
	return MIN(asked, r->to);
}

static void exec_stream_attach(struct exec_stream *es)
{
	const struct wire_attach *m = &es->asked;
	struct exec *x = es->x;

	es->pos[0] = start_of(&x->out[0].ring, m->out_offset);
	es->pos[1] = start_of(&x->out[1].ring, m->err_offset);
	es->hold = (m->flags & WIRE_ATTACH_HOLD) || ((x->flags & WIRE_EXEC_HOLD) && m->window);
	x->was_read |= es->hold;
	if (m->flags & WIRE_ATTACH_STDIN)
		x->feeder = es;
	stream_send(&es->s, WIRE_ATTACHED, 0,
	            &(struct wire_attached){.id = x->id,
	                                    .pid = (uint32_t)x->pid,
	                                    .out_offset = es->pos[0],
	                                    .err_offset = es->pos[1]});
}

/* False: another stream feeds the command, or what one fed is still to be read. */
static bool stdin_is_free(const struct exec *x)
{
	return x->finished || (!x->feeder && !x->in.sink.len);
}

static void exec_stream_pump(struct stream *s)
{
	struct exec_stream *es = container_of(s, struct exec_stream, s);
	struct exec *x = es->x;
	bool owner = x->owner == es;
	struct wire_exited m;

	if (es->waits) {
		if (!stdin_is_free(x))
			return;
		if (conn_room(s->c) < END_ROOM) {
			s->c->starved = true;
			return;
		}
		es->waits = false;
		exec_stream_attach(es);
	}
	for (int k = 0; k < 2; k++) {
		if (owner)
			pass_on(es, k);
		else
			replay(es, k);
	}
	if (owner)
		exec_check_finished(x);
	if (!x->finished)
		return;
	if (!owner && (es->pos[0] < x->out[0].ring.to || es->pos[1] < x->out[1].ring.to))
		return;
	if (conn_room(s->c) < END_ROOM) {
		s->c->starved = true;
		return;
	}
	m = (struct wire_exited){
	    .id = x->id,
	    .flags = (x->timed_out ? WIRE_EXITED_TIMEOUT : 0) | (x->oom ? WIRE_EXITED_OOM : 0),
	    .out_bytes = x->out[0].ring.to,
	    .err_bytes = x->out[1].ring.to,
	    .cpu_us = tv_us(x->usage.ru_utime) + tv_us(x->usage.ru_stime),
	    .max_rss_kib = (uint64_t)x->usage.ru_maxrss,
	};
	status_of(x, &m.how, &m.code);
	stream_send(s, WIRE_EXITED, 0, &m);
	stream_end(s, 0, NULL);
}

static void exec_stream_control(struct stream *s, uint8_t type, const void *p, size_t n)
{
	struct exec *x = container_of(s, struct exec_stream, s)->x;
	struct wire_signal sig;
	struct wire_size size;

	if (type == WIRE_RESIZE && wire_size_decode(p, n, &size) == 0 &&
	    (x->flags & WIRE_EXEC_PTY)) {
		struct winsize ws = {.ws_row = (unsigned short)size.rows,
		                     .ws_col = (unsigned short)size.cols};

		ioctl(x->out[0].fd, TIOCSWINSZ, &ws);
	} else if (type == WIRE_STREAM_SIGNAL && wire_signal_decode(p, n, &sig) == 0) {
		send_signal(x, &sig);
	}
}

static void exec_stream_release(struct stream *s, bool reborn)
{
	struct exec_stream *es = container_of(s, struct exec_stream, s);
	struct exec *x = es->x;

	if (!x)
		return; /* it never started */
	list_del(&es->node);
	if (x->feeder == es) {
		x->feeder = NULL;
		agent_queue(x->a, &x->work); /* a stream may wait for its turn */
	}
	for (int k = 0; es->hold && k < 2; k++)
		x->seen[k] = MAX(x->seen[k], es->pos[k]);
	if (es->hold && (x->out[0].readable || x->out[1].readable))
		agent_queue(x->a, &x->work); /* it waits for this reader no more */
	if (x->owner != es)
		return;
	x->owner = NULL;
	if (reborn && !x->finished && !(x->flags & WIRE_EXEC_HANGUP)) {
		x->detached = true;
	} else {
		x->abandoned = true;
		x->flags &= ~(uint32_t)WIRE_EXEC_WAIT_OUTPUT;
		exec_end_deadline(x);
		if (x->flags & WIRE_EXEC_HANGUP)
			sink_close(&x->in.sink);
		else if (!x->finished) /* the host went away or called it off */
			kill_tree(x, SIGKILL);
	}
	if (x->finished && x->out[0].eof && x->out[1].eof)
		exec_gone(x);
	else
		agent_queue(x->a, &x->work);
}

const struct stream_ops exec_stream_ops = {
    .pump = exec_stream_pump,
    .data = exec_stream_data,
    .eof = exec_stream_eof,
    .control = exec_stream_control,
    .release = exec_stream_release,
};

void exec_attach(struct conn *c, uint32_t id, const struct wire_attach *m)
{
	struct exec *x = exec_find(c->a, m->id);
	struct exec_stream *es;
	bool waits = false;

	if (!x || !x->detached) {
		reply_end(c, id, x ? EBUSY : ESRCH,
		          x ? "the exec is attached elsewhere" : "no such exec");
		return;
	}
	if (m->flags & WIRE_ATTACH_STDIN)
		waits = !stdin_is_free(x);
	if (waits && !(m->flags & WIRE_ATTACH_WAIT)) {
		reply_end(c, id, EBUSY, "stdin is fed by another stream");
		return;
	}
	es = stream_new(c, id, &exec_stream_ops, sizeof(*es), m->window);
	if (!es)
		return;
	es->x = x;
	es->asked = *m;
	es->waits = waits;
	list_add(&x->readers, &es->node);
	if (!waits)
		exec_stream_attach(es);
	stream_queue(&es->s);
}

/* ---- list ---- */

struct list_stream {
	struct stream s;
	uint64_t after; /* ids grow: the next one to tell is the smallest above this */
};

static struct exec *exec_after(struct agent *a, uint64_t id)
{
	struct list *lists[] = {&a->execs, &a->finished};
	struct exec *best = NULL;

	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		list_for_each(n, lists[i]) {
			struct exec *x = container_of(n, struct exec, node);

			if (x->id > id && !x->abandoned && (!best || x->id < best->id))
				best = x;
		}
	}
	return best;
}

static void list_pump(struct stream *s)
{
	struct list_stream *ls = container_of(s, struct list_stream, s);
	size_t space = stream_space(s, WIRE_OUT), used = 0;
	uint8_t *p = space ? conn_space(s->c, WIRE_HEADER + space) + WIRE_HEADER : NULL;
	struct exec *x;

	while ((x = exec_after(s->c->a, ls->after))) {
		struct wire_exec_info m = {
		    .id = x->id,
		    .pid = (uint32_t)x->pid,
		    .flags = (x->exited ? 0 : WIRE_INFO_RUNNING) |
		             (x->detached ? WIRE_INFO_DETACHED : 0) |
		             (x->flags & WIRE_EXEC_PTY ? WIRE_INFO_PTY : 0) |
		             (x->timed_out ? WIRE_INFO_TIMEOUT : 0) | (x->oom ? WIRE_INFO_OOM : 0),
		    .out_from = x->out[0].ring.from,
		    .out_to = x->out[0].ring.to,
		    .err_from = x->out[1].ring.from,
		    .err_to = x->out[1].ring.to,
		    .command = wire_str(x->command),
		};
		ssize_t n;

		if (x->exited)
			status_of(x, &m.how, &m.code);
		n = wire_exec_info_encode(&m, p + used, space - used);
		if (n < 0)
			break;
		used += (size_t)n;
		ls->after = x->id;
	}
	if (used)
		stream_commit_data(s, WIRE_OUT, used);
	if (!x)
		stream_end(s, 0, NULL);
	else if (used)
		stream_queue(s);
}

static const struct stream_ops list_ops = {.pump = list_pump};

void exec_list(struct conn *c, uint32_t id, uint32_t window)
{
	struct list_stream *ls = stream_new(c, id, &list_ops, sizeof(*ls), window);

	if (ls)
		stream_queue(&ls->s);
}
