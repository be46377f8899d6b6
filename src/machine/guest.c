#include "machine/guest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "machine/guest_internal.h"
#include "wire/answers.h"
#include "wire/guest.h"

int guest_new(int fd, struct guest **ret)
{
	struct guest *g = calloc(1, sizeof(*g));
	int flags = fcntl(fd, F_GETFL), room = WIRE_WINDOW_MAX;

	if (g) {
		g->in = malloc(WIRE_FRAME_MAX);
		g->out = malloc(GUEST_OUT_MAX);
	}
	if (!g || !g->in || !g->out || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
		int r = g && g->in && g->out ? -errno : -ENOMEM;

		if (g) {
			free(g->in);
			free(g->out);
		}
		free(g);
		return r;
	}
	/* All that the guest will take for a file: it should find something to do when it looks.
	 * Who may not have so much (or has no socket) gets along with less. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	g->fd = fd;
	*ret = g;
	return 0;
}

/* ---- callers that wait for room ---- */

static size_t out_room(const struct guest *g)
{
	return GUEST_OUT_MAX - g->out_len;
}

/* One frame's worth stays free for credit: it must never be refused, or streams stall. */
static bool out_is_full(const struct guest *g)
{
	return out_room(g) < 2 * WIRE_FRAME_MAX;
}

static void room_link(struct guest_room **head, struct guest_room *w)
{
	while (*head) /* the first one to wait is the first one to be called */
		head = &(*head)->next;
	w->next = NULL;
	w->prevp = head;
	*head = w;
}

void guest_room_cancel(struct guest_room *w)
{
	if (!w->prevp)
		return;
	*w->prevp = w->next;
	if (w->next)
		w->next->prevp = w->prevp;
	w->prevp = NULL;
}

bool guest_room_wait(struct guest *g, struct guest_room *w)
{
	bool no_call = g->n_calls == GUEST_CALLS_MAX, no_out = out_is_full(g);

	if (g->dead || (!no_call && !no_out))
		return false;
	g->wants_call |= no_call;
	g->wants_out |= no_out;
	if (!w->prevp)
		room_link(&g->rooms, w);
	return true;
}

static void tell_rooms(struct guest *g)
{
	struct guest_room *told = take_ptr(g->rooms), *w;

	g->wants_call = g->wants_out = false;
	if (told)
		told->prevp = &told;
	while ((w = told)) {
		guest_room_cancel(w);
		w->fn(w->arg); /* may wait again: then it is on the list of g */
	}
}

static void look_for_room(struct guest *g)
{
	if ((g->wants_call && g->n_calls < GUEST_CALLS_MAX) || (g->wants_out && !out_is_full(g)))
		tell_rooms(g);
}

static void end_call(struct guest_call *c, const struct guest_end *end)
{
	struct guest *g = c->g;

	g->calls[c->id - 1] = NULL;
	g->n_calls--;
	g->n_over -= c->over;
	g->first_free = MIN(g->first_free, c->id - 1);
	if (!c->over && c->ops->end)
		c->ops->end(c->arg, c, end);
	free(c);
}

int guest_fail(struct guest *g, int err, const char *text)
{
	const struct guest_end end = {.err = err, .text = text};

	if (!g->dead)
		g->dead = err;
	for (unsigned i = 0; i < GUEST_CALLS_MAX; i++)
		if (g->calls[i])
			end_call(g->calls[i], &end);
	tell_rooms(g);
	return -err;
}

void guest_free(struct guest *g)
{
	if (!g)
		return;
	guest_fail(g, ECANCELED, "the connection was closed");
	close(g->fd);
	free(g->in);
	free(g->out);
	free(g);
}

int guest_fd(const struct guest *g)
{
	return g->fd;
}

bool guest_idle(const struct guest *g)
{
	return g->n_calls == g->n_over && g->out_len == 0;
}

int guest_dead(const struct guest *g)
{
	return g->dead;
}

uint32_t guest_events(const struct guest *g)
{
	return EPOLLIN | (g->out_len ? EPOLLOUT : 0);
}

/* ---- output ---- */

/* Where a frame of any size fits, if there is room at all. */
static uint8_t *out_tail(struct guest *g)
{
	if (GUEST_OUT_MAX - g->out_head - g->out_len < WIRE_FRAME_MAX) {
		memmove(g->out, g->out + g->out_head, g->out_len);
		g->out_head = 0;
	}
	return g->out + g->out_head + g->out_len;
}

static int send_frame(struct guest *g, const struct wire_header *h, const void *msg)
{
	ssize_t n;

	if (g->dead)
		return -g->dead;
	n = wire_frame(h, wire_desc_of(h->type), msg, out_tail(g),
	               MIN(out_room(g), (size_t)WIRE_FRAME_MAX));
	if (n == -EMSGSIZE && out_room(g) < WIRE_FRAME_MAX)
		return -EAGAIN;
	if (n < 0)
		return (int)n;
	g->out_len += (size_t)n;
	return 0;
}

static int send_on(struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	return send_frame(c->g, &(struct wire_header){.type = type, .chan = chan, .stream = c->id},
	                  msg);
}

int guest_flush(struct guest *g)
{
	while (g->out_len && !g->dead) {
		ssize_t r = send(g->fd, g->out + g->out_head, g->out_len, MSG_NOSIGNAL);

		if (r < 0 && errno == ENOTSOCK)
			r = write(g->fd, g->out + g->out_head, g->out_len);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0 && errno == EAGAIN)
			break;
		if (r < 0)
			return guest_fail(g, errno, "the guest is gone");
		g->out_head += (size_t)r;
		g->out_len -= (size_t)r;
	}
	if (!g->out_len)
		g->out_head = 0;
	look_for_room(g);
	return -g->dead;
}

/* The credit that a request gives: how much the guest may send before it is given more. */
static uint32_t window_of(uint8_t type, const void *msg)
{
	switch (type) {
	case WIRE_EXEC:
		return ((const struct wire_exec *)msg)->window;
	case WIRE_ATTACH:
		return ((const struct wire_attach *)msg)->window;
	case WIRE_LIST:
		return ((const struct wire_window *)msg)->window;
	case WIRE_READ:
		return ((const struct wire_read *)msg)->window;
	case WIRE_DIR:
		return ((const struct wire_path_flags *)msg)->flags;
	case WIRE_WATCH:
		return ((const struct wire_watch *)msg)->window;
	case WIRE_CONNECT:
		return ((const struct wire_connect *)msg)->window;
	}
	return 0;
}

/* A call that has an id and is not open yet. -EAGAIN, -ENOMEM. */
static int call_new(struct guest *g, uint8_t type, const void *msg, const struct guest_ops *ops,
                    void *arg, struct guest_call **ret)
{
	const struct wire_answers *may = wire_answers_of(type, msg);
	uint32_t window = window_of(type, msg);
	unsigned slot = g->first_free;
	struct guest_call *c;

	assert(may);
	while (slot < GUEST_CALLS_MAX && g->calls[slot])
		slot++;
	if (slot == GUEST_CALLS_MAX || out_is_full(g))
		return -EAGAIN;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	*c = (struct guest_call){.g = g, .id = slot + 1, .ops = ops, .arg = arg, .window = window};
	c->answered.may = may;
	c->take_left[0] = c->take_left[1] = window;
	c->send_left = WIRE_WINDOW;
	*ret = c;
	return 0;
}

/* Its request is queued, or (r < 0) was not. */
static int call_open(struct guest_call *c, int r, struct guest_call **ret)
{
	struct guest *g = c->g;

	if (r < 0) {
		free(c);
		return r;
	}
	g->calls[c->id - 1] = c;
	g->n_calls++;
	g->first_free = c->id;
	if (ret)
		*ret = c;
	return 0;
}

int guest_start(struct guest *g, uint8_t type, const void *msg, const struct guest_ops *ops,
                void *arg, struct guest_call **ret)
{
	struct guest_call *c;
	int r = call_new(g, type, msg, ops, arg, &c);

	return r < 0 ? r : call_open(c, send_on(c, type, 0, msg), ret);
}

/* A frame with these bytes as its payload; call_new() has looked at the room. */
static int send_payload(struct guest_call *c, uint8_t type, const void *p, size_t n)
{
	struct wire_header h = {.type = type, .stream = c->id, .length = (uint32_t)n};
	struct guest *g = c->g;
	uint8_t *at;

	if (g->dead)
		return -g->dead;
	at = out_tail(g);
	wire_header_encode(&h, at);
	if (n)
		memcpy(at + WIRE_HEADER, p, n);
	g->out_len += WIRE_HEADER + n;
	return 0;
}

int guest_start_encoded(struct guest *g, const struct guest_request *rq,
                        const struct guest_ops *ops, void *arg, struct guest_call **ret)
{
	const struct wire_desc *d = wire_desc_of(rq->type);
	union wire_request m;
	struct guest_call *c;
	int r = 0;

	if (rq->n > WIRE_PAYLOAD_MAX)
		return -EMSGSIZE;
	if (d)
		r = wire_decode(d, rq->p, rq->n, &m);
	if (r == 0)
		r = call_new(g, rq->type, &m, ops, arg, &c);
	return r < 0 ? r : call_open(c, send_payload(c, rq->type, rq->p, rq->n), ret);
}

size_t guest_sendable(const struct guest_call *c)
{
	size_t room = out_room(c->g);

	if (c->answered.fed || c->g->dead || room <= WIRE_FRAME_MAX + WIRE_HEADER)
		return 0;
	return MIN((size_t)c->send_left, room - WIRE_FRAME_MAX - WIRE_HEADER);
}

size_t guest_send(struct guest_call *c, const void *p, size_t n)
{
	struct wire_header h = {.type = WIRE_DATA, .chan = WIRE_IN, .stream = c->id};
	uint8_t *at = out_tail(c->g);

	n = MIN(n, guest_sendable(c));
	n = MIN(n, (size_t)WIRE_PAYLOAD_MAX);
	if (!n)
		return 0;
	h.length = (uint32_t)n;
	wire_header_encode(&h, at);
	memcpy(at + WIRE_HEADER, p, n);
	c->g->out_len += WIRE_HEADER + n;
	c->send_left -= (uint32_t)n;
	return n;
}

int guest_send_eof(struct guest_call *c)
{
	int r = c->answered.fed ? 0 : send_on(c, WIRE_EOF, WIRE_IN, NULL);

	if (r == 0)
		c->answered.fed = true;
	return r;
}

int guest_resize(struct guest_call *c, unsigned rows, unsigned cols)
{
	return send_on(c, WIRE_RESIZE, 0, &(struct wire_size){.rows = rows, .cols = cols});
}

int guest_send_signal(struct guest_call *c, int signo, uint32_t flags)
{
	return send_on(c, WIRE_STREAM_SIGNAL, 0,
	               &(struct wire_signal){.signo = (uint32_t)signo, .flags = flags});
}

int guest_cancel(struct guest_call *c)
{
	return send_on(c, WIRE_CANCEL, 0, NULL);
}

void guest_credit(struct guest_call *c, uint8_t chan, size_t n)
{
	uint32_t *taken = &c->taken[chan - WIRE_OUT];

	*taken += (uint32_t)n;
	if (*taken < c->window / 2)
		return;
	if (send_on(c, WIRE_CREDIT, chan, &(struct wire_window){.window = *taken}) == 0) {
		c->take_left[chan - WIRE_OUT] += *taken;
		*taken = 0;
	}
}

/* ---- input ---- */

static bool from_guest(uint8_t type)
{
	return (type >= WIRE_DATA && type <= WIRE_CREDIT) ||
	       (type >= WIRE_END && type <= WIRE_STATS_REPLY);
}

/*
 * Agents of 0.1.0 gave no reason, and machines that were saved then (snapshots, hibernated
 * sandboxes, templates) wake up with them. They are known by their sentences, which is why the
 * sentences stand here, and here alone.
 */
static enum wire_reason reason_of(const struct wire_end *m)
{
	if (m->reason || !m->err)
		return (enum wire_reason)m->reason;
	if (strcmp(m->text.p, "cannot enter directory") == 0)
		return WIRE_REASON_DIRECTORY;
	if (strcmp(m->text.p, "cannot start program") == 0)
		return WIRE_REASON_PROGRAM;
	return WIRE_REASON_NONE;
}

static void on_end(struct guest_call *c, const struct wire_end *m)
{
	struct guest_end end = {.reason = reason_of(m), .text = m->text.p};

	end.err = (int)MIN(m->err, 4095u);
	end_call(c, &end);
}

/* The call is over for its owner. Until the guest agrees its id belongs to no other call. */
static int call_over(struct guest_call *c, const struct guest_end *end)
{
	const struct guest_ops *ops = c->ops;

	if (guest_cancel(c) < 0)
		return -EPROTO;
	c->over = true;
	c->g->n_over++;
	if (ops->end)
		ops->end(c->arg, c, end);
	return 0;
}

/* The guest has sent what it may not send now. ended: that was the stream's END. */
static int on_violation(struct guest_call *c, bool ended)
{
	char text[80];
	struct guest_end end = {.err = EPROTO, .text = text};

	if (c->g->warned)
		return -EPROTO;
	c->g->warned = true;
	snprintf(text, sizeof(text), "the agent's answer to %s makes no sense",
	         c->answered.may->name);
	if (!ended)
		return call_over(c, &end);
	end_call(c, &end);
	return 0;
}

/* What came costs credit, or is the last: a GAP before it can be told. */
static void tell_gap(struct guest_call *c, uint8_t chan, uint64_t offset)
{
	unsigned k = chan - (unsigned)WIRE_OUT;

	if (c->gap[k] && c->ops->reply)
		c->ops->reply(c->arg, c, WIRE_GAP, chan, &(struct wire_gap){.offset = offset});
	c->gap[k] = false;
}

static int on_data(struct guest_call *c, uint8_t chan, const uint8_t *p, size_t n)
{
	unsigned k = chan - (unsigned)WIRE_OUT;

	if (n > c->take_left[k])
		return -EPROTO;
	c->take_left[k] -= (uint32_t)n;
	if (c->over)
		return 0;
	tell_gap(c, chan, c->answered.at[k] - n);
	if (c->ops->data)
		c->ops->data(c->arg, c, chan, p, n);
	else
		guest_credit(c, chan, n);
	return 0;
}

static int on_credit(struct guest_call *c, uint32_t n)
{
	if (n > WIRE_WINDOW_MAX - c->send_left)
		return -EPROTO;
	c->send_left += n;
	if (!c->over && c->ops->writable)
		c->ops->writable(c->arg, c);
	return 0;
}

static int on_frame(struct guest *g, const struct wire_header *h, const uint8_t *p)
{
	union {
		struct wire_window window;
		struct wire_end end;
		struct wire_started started;
		struct wire_exited exited;
		struct wire_attached attached;
		struct wire_gap gap;
		struct wire_file file;
		struct wire_path path;
		struct wire_stats stats;
	} m;
	const struct wire_desc *d = wire_desc_of(h->type);
	struct guest_call *c;

	if (!h->stream || h->stream > GUEST_CALLS_MAX || !g->calls[h->stream - 1] ||
	    !from_guest(h->type))
		return -EPROTO;
	c = g->calls[h->stream - 1];
	if (d ? wire_decode(d, p, h->length, &m) < 0 : h->type != WIRE_DATA && h->length)
		return -EPROTO;
	if (!wire_answer(&c->answered, h, &m) && !(c->over && h->type == WIRE_END))
		return on_violation(c, h->type == WIRE_END);
	switch (h->type) {
	case WIRE_DATA:
		return on_data(c, h->chan, p, h->length);
	case WIRE_CREDIT:
		return on_credit(c, m.window.window);
	case WIRE_END:
		on_end(c, &m.end);
		return 0;
	}
	if (c->over)
		return 0;
	switch (h->type) {
	case WIRE_EOF:
		if (c->ops->eof)
			c->ops->eof(c->arg, c, h->chan);
		return 0;
	case WIRE_GAP:
		c->gap[h->chan - WIRE_OUT] = true;
		return 0;
	case WIRE_EXITED:
		tell_gap(c, WIRE_OUT, c->answered.at[0]);
		tell_gap(c, WIRE_ERR, c->answered.at[1]);
		break;
	}
	if (c->ops->reply)
		c->ops->reply(c->arg, c, h->type, h->chan, d ? &m : NULL);
	return 0;
}

static int on_bytes(struct guest *g)
{
	size_t used = 0;

	while (g->in_len - used >= WIRE_HEADER && !g->dead) {
		struct wire_header h;

		if (wire_header_decode(g->in + used, &h) < 0)
			return -EPROTO;
		if (g->in_len - used < WIRE_HEADER + h.length)
			break;
		if (on_frame(g, &h, g->in + used + WIRE_HEADER) < 0)
			return -EPROTO;
		used += WIRE_HEADER + h.length;
	}
	g->in_len -= used;
	memmove(g->in, g->in + used, g->in_len);
	return 0;
}

int guest_dispatch(struct guest *g, uint32_t events)
{
	ssize_t r;

	if (g->dead)
		return -g->dead;
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		do
			r = read(g->fd, g->in + g->in_len, WIRE_FRAME_MAX - g->in_len);
		while (r < 0 && errno == EINTR);
		if (r == 0)
			return guest_fail(g, ECONNRESET, "the guest closed the connection");
		if (r < 0 && errno != EAGAIN)
			return guest_fail(g, errno, "the guest is gone");
		g->in_len += (size_t)MAX(r, (ssize_t)0);
		if (on_bytes(g) < 0)
			return guest_fail(g, EPROTO, "the guest broke the protocol");
	}
	return guest_flush(g);
}
