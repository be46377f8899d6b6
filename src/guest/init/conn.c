/*
 * guest/init/conn.c - connections: frames in, streams, frames out
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "wire/guest.h"

/* ---- output ---- */

/*
 * A connection has a buffer while it has something to say. Mostly one at a time does, so all get
 * along with the same one: its first page is touched already, which in a machine that was just
 * restored saves the faults of another.
 */
static uint8_t nowhere[OUT_CAP]; /* for those that are lost, or will be, for want of memory */

static void take_buffer(struct conn *c)
{
	if (!c->lost)
		c->out = c->a->out_cache ? take_ptr(c->a->out_cache) : malloc(OUT_CAP);
	if (!c->out)
		c->out = nowhere;
	c->out_head = 0;
}

static void leave_buffer(struct conn *c)
{
	if (c->out && c->out != nowhere) {
		if (c->a->out_cache)
			free(c->out);
		else
			c->a->out_cache = c->out;
	}
	c->out = NULL;
}

size_t conn_room(const struct conn *c)
{
	size_t used = c->out_len + REPLY_ROOM;

	return used < OUT_CAP ? OUT_CAP - used : 0;
}

uint8_t *conn_space(struct conn *c, size_t n)
{
	assert(c->out_len + n <= OUT_CAP);
	if (!c->out)
		take_buffer(c);
	if (c->out_head + c->out_len + n > OUT_CAP) {
		memmove(c->out, c->out + c->out_head, c->out_len);
		c->out_head = 0;
	}
	return c->out + c->out_head + c->out_len;
}

void conn_commit(struct conn *c, size_t n)
{
	c->out_len += n;
	if (!c->lost && list_empty(&c->dirty))
		list_add(&c->a->dirty, &c->dirty);
}

static void set_events(struct conn *c)
{
	uint32_t ev = (c->paused ? 0 : EPOLLIN) | (c->wants_out ? EPOLLOUT : 0);

	if (ev != c->events && !c->lost) {
		c->events = ev;
		source_mod(c->a, &c->src, c->fd, ev);
	}
}

/*
 * A connection has a buffer of its own only while a part of a frame is in it. The others share one:
 * it is touched already, and reads of a page touch one page of it.
 */
static bool take_input(struct conn *c)
{
	if (!c->in)
		c->in = c->a->in_cache ? take_ptr(c->a->in_cache) : malloc(IN_CAP);
	return c->in;
}

static void leave_input(struct conn *c)
{
	if (!c->a->in_cache)
		c->a->in_cache = c->in;
	else
		free(c->in);
	c->in = NULL;
}

static void stream_free(struct stream *s, bool reborn)
{
	struct conn *c = s->c;

	if (c->gathers == s) {
		c->gathers = NULL;
		c->n_iov = 0;
	}
	if (s->ops->release)
		s->ops->release(s, reborn);
	list_del(&s->work.node);
	list_del(&s->node);
	c->n_streams--;
	source_retire(c->a, &s->src, s);
}

static void conn_lost(struct conn *c, bool reborn)
{
	if (c->lost)
		return;
	c->lost = true;
	while (!list_empty(&c->streams))
		stream_free(container_of(c->streams.next, struct stream, node), reborn);
	list_del(&c->dirty);
	list_del(&c->node);
	source_close(c->a, c->fd);
	c->a->n_conns--;
	leave_input(c);
	leave_buffer(c);
	source_retire(c->a, &c->src, c);
}

static bool is_reborn(const struct conn *c, int err)
{
	return err == ECONNRESET && c->a->listener.reset_means_reborn;
}

/* A write failed; which kind of end it was only a read tells. */
static bool write_failed_reborn(const struct conn *c, int err)
{
	char byte;

	return is_reborn(c, err) || (read(c->fd, &byte, 1) < 0 && is_reborn(c, errno));
}

static void conn_input(struct conn *c);

void conn_flush(struct conn *c)
{
	if (c->out == nowhere) {
		conn_lost(c, false);
		return;
	}
	while (c->out_len) {
		ssize_t r = write(c->fd, c->out + c->out_head, c->out_len);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0 && errno == EAGAIN)
			break;
		if (r < 0) {
			conn_lost(c, write_failed_reborn(c, errno));
			return;
		}
		c->out_head += (size_t)r;
		c->out_len -= (size_t)r;
	}
	if (!c->out_len) {
		c->out_head = 0;
		if (!c->a->out_cache)
			leave_buffer(c);
	}
	c->wants_out = c->out_len > 0;
	set_events(c);
	if (c->starved && conn_room(c) >= CHUNK) {
		c->starved = false;
		list_for_each(n, &c->streams)
			stream_queue(container_of(n, struct stream, node));
	}
	if (c->paused && conn_room(c) > 0) {
		c->paused = false;
		set_events(c);
		conn_input(c);
	}
}

void conn_push(struct conn *c)
{
	ssize_t r = 0;

	while (c->out_len && c->out != nowhere && r >= 0) {
		r = write(c->fd, c->out + c->out_head, c->out_len);
		c->out_head += r < 0 ? 0 : (size_t)r;
		c->out_len -= r < 0 ? 0 : (size_t)r;
	}
}

static void send_frame(struct conn *c, const struct wire_header *h, const void *msg)
{
	ssize_t n = wire_frame(h, wire_desc_of(h->type), msg, conn_space(c, 0),
	                       OUT_CAP - c->out_head - c->out_len);

	if (n == -EMSGSIZE && c->out_head) {
		memmove(c->out, c->out + c->out_head, c->out_len);
		c->out_head = 0;
		n = wire_frame(h, wire_desc_of(h->type), msg, c->out + c->out_len,
		               OUT_CAP - c->out_len);
	}
	assert(n > 0); /* the caller has looked at the room */
	conn_commit(c, (size_t)n);
}

void reply(struct conn *c, uint32_t id, uint8_t type, const void *msg)
{
	send_frame(c, &(struct wire_header){.type = type, .stream = id}, msg);
}

void reply_end(struct conn *c, uint32_t id, int err, const char *text)
{
	reply(c, id, WIRE_END,
	      &(struct wire_end){.err = (uint32_t)err, .text = wire_str(text ? text : "")});
}

void stream_send(struct stream *s, uint8_t type, uint8_t chan, const void *msg)
{
	send_frame(s->c, &(struct wire_header){.type = type, .chan = chan, .stream = s->id}, msg);
}

size_t stream_space(struct stream *s, uint8_t chan)
{
	size_t room = conn_room(s->c);

	if (room < CHUNK) { /* small writes into a nearly full buffer gain nothing */
		s->c->starved = true;
		return 0;
	}
	room = MIN(room - WIRE_HEADER, (size_t)CHUNK);
	return MIN(room, (size_t)s->credit[chan - WIRE_OUT]);
}

void stream_commit_data(struct stream *s, uint8_t chan, size_t n)
{
	struct wire_header h = {.length = (uint32_t)n,
	                        .type = WIRE_DATA,
	                        .chan = chan,
	                        .stream = s->id};

	wire_header_encode(&h, conn_space(s->c, WIRE_HEADER + n));
	s->credit[chan - WIRE_OUT] -= (uint32_t)n;
	conn_commit(s->c, WIRE_HEADER + n);
}

/* ---- streams ---- */

void stream_queue(struct stream *s)
{
	agent_queue(s->c->a, &s->work);
}

static void stream_run(struct work *w)
{
	struct stream *s = container_of(w, struct stream, work);

	if (conn_room(s->c) < END_ROOM) {
		s->c->starved = true;
		return;
	}
	if (s->in_taken >= (s->ops->datav ? WIRE_WINDOW_MAX / 4 : WIRE_WINDOW / 2)) {
		stream_send(s, WIRE_CREDIT, WIRE_IN, &(struct wire_window){.window = s->in_taken});
		s->in_left += s->in_taken;
		s->in_taken = 0;
	}
	if (s->ops->pump)
		s->ops->pump(s);
}

void *stream_new(struct conn *c, uint32_t id, const struct stream_ops *ops, size_t size,
                 uint32_t window)
{
	struct stream *s = c->n_streams < STREAMS_MAX ? calloc(1, size) : NULL;

	if (!s) {
		reply_end(c, id, c->n_streams < STREAMS_MAX ? ENOMEM : EMFILE, "too many streams");
		return NULL;
	}
	s->c = c;
	s->id = id;
	s->ops = ops;
	s->work.run = stream_run;
	s->credit[0] = s->credit[1] = window;
	s->in_left = WIRE_WINDOW;
	list_init(&s->work.node);
	list_add(&c->streams, &s->node);
	c->n_streams++;
	return s;
}

void stream_end_why(struct stream *s, int err, enum wire_reason reason, const char *text)
{
	reply(s->c, s->id, WIRE_END,
	      &(struct wire_end){.err = (uint32_t)err,
	                         .text = wire_str(text ? text : ""),
	                         .reason = reason});
	stream_free(s, false);
}

void stream_end(struct stream *s, int err, const char *text)
{
	stream_end_why(s, err, WIRE_REASON_NONE, text);
}

static struct stream *stream_find(struct conn *c, uint32_t id)
{
	list_for_each(n, &c->streams) {
		struct stream *s = container_of(n, struct stream, node);

		if (s->id == id)
			return s;
	}
	return NULL;
}

/* ---- input ---- */

/* What was gathered lies in the buffer of the connection, so this comes before all that follows. */
static void gather_end(struct conn *c)
{
	struct stream *s = c->gathers;
	int n = c->n_iov;

	c->gathers = NULL;
	c->n_iov = 0;
	if (s)
		s->ops->datav(s, c->iov, n);
}

static void gather(struct stream *s, const uint8_t *p, size_t n)
{
	struct conn *c = s->c;

	c->gathers = s;
	c->iov[c->n_iov++] = (struct iovec){.iov_base = (void *)p, .iov_len = n};
	if (c->n_iov == GATHER_MAX)
		gather_end(c);
}

static int on_stream(struct stream *s, const struct wire_header *h, const uint8_t *p)
{
	struct wire_window m;

	switch (h->type) {
	case WIRE_DATA:
		if (h->chan != WIRE_IN || h->length > s->in_left ||
		    !(s->ops->data || s->ops->datav))
			return -EPROTO;
		s->in_left -= h->length;
		if (s->ops->datav)
			gather(s, p, h->length);
		else
			s->ops->data(s, p, h->length);
		return 0;
	case WIRE_EOF:
		if (h->chan != WIRE_IN || h->length || !s->ops->eof)
			return -EPROTO;
		s->in_left = 0;
		s->ops->eof(s);
		return 0;
	case WIRE_CREDIT:
		if (h->chan != WIRE_OUT && h->chan != WIRE_ERR)
			return -EPROTO;
		if (wire_window_decode(p, h->length, &m) < 0 ||
		    __builtin_add_overflow(s->credit[h->chan - WIRE_OUT], m.window,
		                           &s->credit[h->chan - WIRE_OUT]))
			return -EPROTO;
		stream_queue(s);
		return 0;
	case WIRE_CANCEL:
		if (h->length)
			return -EPROTO;
		stream_end(s, ECANCELED, NULL);
		return 0;
	case WIRE_RESIZE:
	case WIRE_STREAM_SIGNAL:
		if (!s->ops->control)
			return -EPROTO;
		s->ops->control(s, h->type, p, h->length);
		return 0;
	}
	return -EPROTO; /* a request on a stream that is still open */
}

static int on_request(struct conn *c, const struct wire_header *h, const uint8_t *p)
{
	uint32_t id = h->stream;
	union wire_request m;
	const struct wire_desc *d = wire_desc_of(h->type);

	if (!id || h->chan || h->type < WIRE_EXEC || !wire_type_known(h->type))
		return -EPROTO;
	if (d ? wire_decode(d, p, h->length, &m) < 0 : h->length > 0)
		return -EPROTO;
	switch (h->type) {
	case WIRE_EXEC:
		exec_request(c, id, &m.exec);
		break;
	case WIRE_ATTACH:
		exec_attach(c, id, &m.attach);
		break;
	case WIRE_LIST:
		exec_list(c, id, m.window.window);
		break;
	case WIRE_SIGNAL:
		exec_signal(c, id, &m.signal);
		break;
	case WIRE_READ:
		file_read(c, id, &m.read);
		break;
	case WIRE_WRITE:
		file_write(c, id, &m.write);
		break;
	case WIRE_DIR:
		file_dir(c, id, &m.path_flags);
		break;
	case WIRE_STAT:
		file_stat(c, id, &m.path_flags);
		break;
	case WIRE_MKDIR:
		file_mkdir(c, id, &m.mkdir);
		break;
	case WIRE_REMOVE:
		file_remove(c, id, &m.path_flags);
		break;
	case WIRE_RENAME:
		file_rename(c, id, &m.two_paths);
		break;
	case WIRE_CHMOD:
		file_chmod(c, id, &m.path_flags);
		break;
	case WIRE_SYMLINK:
		file_symlink(c, id, &m.two_paths);
		break;
	case WIRE_READLINK:
		file_readlink(c, id, &m.path);
		break;
	case WIRE_WATCH:
		watch_request(c, id, &m.watch);
		break;
	case WIRE_CONNECT:
		port_connect(c, id, &m.connect);
		break;
	case WIRE_STATS:
		sys_stats(c, id);
		break;
	case WIRE_SYNC:
		sync();
		reply_end(c, id, 0, NULL);
		break;
	case WIRE_REBORN:
		sys_reborn(c, id, &m.reborn);
		break;
	case WIRE_SHUTDOWN:
		c->a->stopping = true; /* after this turn, so the answer still goes out */
		c->a->grace_ms = m.shutdown.grace_ms;
		reply_end(c, id, 0, NULL);
		break;
	case WIRE_MOUNT:
		mount_volume(c, id, &m.mount);
		break;
	case WIRE_UMOUNT:
		mount_undo(c, id, &m.path_flags);
		break;
	case WIRE_GROW:
		mount_grow(c, id, &m.mount);
		break;
	case WIRE_FREEZE:
		mount_freeze(c, id, &m.mount);
		break;
	case WIRE_THAW:
		reply_end(c, id, c->thaw_err, c->thaw_err ? "nothing was frozen so long" : NULL);
		c->thaw_err = EINVAL;
		break;
	default:
		return -EPROTO;
	}
	return 0;
}

static int on_frame(struct conn *c, const struct wire_header *h, const uint8_t *p)
{
	struct stream *s = c->gathers;

	if (s && (s->id != h->stream || h->type != WIRE_DATA))
		gather_end(c);
	s = stream_find(c, h->stream);
	if (s)
		return on_stream(s, h, p);
	if (h->type < WIRE_END)
		return 0; /* it crossed our END on the way */
	return on_request(c, h, p);
}

/* Returns how many bytes of whole frames were used, or -EPROTO. */
static ssize_t on_frames(struct conn *c, const uint8_t *p, size_t n)
{
	size_t used = 0;

	while (n - used >= WIRE_HEADER) {
		struct wire_header h;
		int r = wire_header_decode(p + used, &h);

		if (r < 0)
			return r;
		if (n - used < WIRE_HEADER + h.length)
			break;
		if (!conn_room(c)) {
			c->paused = true; /* until our answers are fetched, no more questions */
			break;
		}
		r = on_frame(c, &h, p + used + WIRE_HEADER);
		if (r < 0)
			return r;
		used += WIRE_HEADER + h.length;
	}
	return (ssize_t)used;
}

/* How much was read, 0: nothing for now. -1: the connection is gone. */
static ssize_t read_more(struct conn *c)
{
	ssize_t r;

	if (c->in_len == IN_CAP)
		return 0;
	do
		r = read(c->fd, c->in + c->in_len, IN_CAP - c->in_len);
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno == EAGAIN)
		return 0;
	if (r <= 0) {
		conn_lost(c, r < 0 && is_reborn(c, errno));
		return -1;
	}
	c->in_len += (size_t)r;
	return r;
}

/* Reads and serves. True: there is most likely more. */
static bool conn_turn(struct conn *c)
{
	ssize_t got, used;

	if (!take_input(c)) {
		conn_lost(c, false);
		return false;
	}
	got = read_more(c);
	if (got < 0)
		return false;
	used = on_frames(c, c->in, c->in_len);
	if (used < 0) {
		conn_lost(c, false); /* nonsense: only this connection pays */
		return false;
	}
	gather_end(c);
	c->in_len -= (size_t)used;
	if (!c->in_len)
		leave_input(c);
	else if (used)
		memmove(c->in, c->in + used, c->in_len);
	if (c->paused || !got)
		return false;
	/* A short read has emptied the stream, if it did not end within a frame. */
	return got >= WIRE_PAYLOAD_MAX || (!used && c->in_len >= WIRE_HEADER);
}

static void conn_input(struct conn *c)
{
	for (unsigned i = 0; i < IN_TURNS && conn_turn(c); i++)
		;
	if (!c->lost)
		set_events(c);
}

static void conn_ready(struct source *src, uint32_t events)
{
	struct conn *c = container_of(src, struct conn, src);

	if (events & EPOLLOUT)
		conn_flush(c);
	if (!c->lost && !c->paused && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		conn_input(c);
	else if (!c->lost && c->paused && (events & (EPOLLHUP | EPOLLERR)))
		conn_lost(c, (events & EPOLLERR) && is_reborn(c, ECONNRESET));
}

void conn_accepted(struct agent *a, int fd)
{
	struct conn *c = a->n_conns < CONNS_MAX ? calloc(1, sizeof(*c)) : NULL;

	if (!c)
		goto refuse;
	c->src.ready = conn_ready;
	c->a = a;
	c->fd = fd;
	c->thaw_err = EINVAL;
	c->events = EPOLLIN;
	list_init(&c->dirty);
	list_init(&c->streams);
	if (source_add(a, &c->src, fd, c->events) < 0)
		goto refuse;
	list_add(&a->conns, &c->node);
	a->n_conns++;
	conn_input(c); /* the first request is most often here already */
	return;
refuse:
	free(c);
	close(fd);
}
