#include "vmm/virtio/vsock.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_vsock.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loop.h"
#include "base/macro.h"
#include "vmm/mem.h"
#include "vmm/state.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"
#include "vmm/vm.h"

enum {
	RX,
	TX,
	EVENT,
	PACKET_MAX = 64 << 10,
	ALL = VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND
};

/*
 *  ASKED ──RESPONSE──> OPEN ──both directions ended, or RST──> gone
 *    └──RST: asked again while the agent does not listen yet, else gone
 * want says which packets the guest is to get, as soon as it has room for them.
 */
enum {
	WANT_REQUEST = 1 << 0,
	WANT_CREDIT = 1 << 1,
	WANT_SHUTDOWN = 1 << 2, /* nothing more comes from the host's side */
	WANT_END = 1 << 3,      /* both directions; the stream is gone then */
};

struct vsock_stream {
	struct vsock_stream *next;
	struct vsock *s;
	struct loop_io io;
	int fd;
	uint32_t host_port;
	bool open;
	unsigned want;
	bool readable;                       /* the socket has something, or its end */
	bool ended;                          /* the socket's side says no more */
	unsigned guest_shut;                 /* VIRTIO_VSOCK_SHUTDOWN_* of the guest */
	uint32_t guest_buf, guest_fwd, sent; /* what it may get: credit */
	uint32_t fwd, fwd_told;              /* what we passed on, and what it knows of that */
	char *buf;                           /* what the socket did not take yet */
	size_t at, len;
};

static void pump(struct vsock *s);

static void close_stream(struct vsock_stream *t)
{
	struct vsock_stream **at = &t->s->streams;

	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	t->s->nr_streams--;
	loop_io_del(t->s->loop, &t->io);
	close(t->fd);
	free(t->buf);
	free(t);
}

static void watch(struct vsock_stream *t)
{
	uint32_t events = 0;

	if (!t->io.added)
		return; /* its other side is gone: what is left is read when there is room */
	if (t->open && !t->readable && !t->ended)
		events |= EPOLLIN | EPOLLRDHUP;
	if (t->len)
		events |= EPOLLOUT;
	loop_io_set(t->s->loop, &t->io, events);
}

/* --- from the guest to the socket */

static void passed_on(struct vsock_stream *t, size_t n)
{
	t->fwd += (uint32_t)n;
	if (t->fwd - t->fwd_told >= VSOCK_BUF / 2)
		t->want |= WANT_CREDIT;
}

static void finish_sending(struct vsock_stream *t)
{
	if (t->len == 0 && t->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND)
		shutdown(t->fd, SHUT_WR);
	if (t->len == 0 &&
	    (t->guest_shut == ALL || (t->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND && t->ended)))
		t->want = WANT_END;
}

static int flush_stream(struct vsock_stream *t)
{
	while (t->len) {
		ssize_t n = send(t->fd, t->buf + t->at, t->len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		t->at += (size_t)n;
		t->len -= (size_t)n;
		passed_on(t, (size_t)n);
	}
	t->at = 0;
	finish_sending(t);
	return 0;
}

/* Keeps what the socket does not take. -ENOBUFS: the guest sends more than it may. */
static int keep(struct vsock_stream *t, const struct iovec *iov, unsigned niov, size_t off,
                size_t n)
{
	if (t->len + n > VSOCK_BUF)
		return -ENOBUFS;
	if (!t->buf)
		t->buf = malloc(VSOCK_BUF);
	if (!t->buf)
		return -ENOMEM;
	if (t->at + t->len + n > VSOCK_BUF) {
		memmove(t->buf, t->buf + t->at, t->len);
		t->at = 0;
	}
	iov_copy_out(iov, niov, off, t->buf + t->at + t->len, n);
	t->len += n;
	return 0;
}

static int take_data(struct vsock_stream *t, struct chain *c, size_t n)
{
	struct iovec iov[CHAIN_MAX];
	size_t head = sizeof(struct virtio_vsock_hdr), done = 0;

	if (n == 0 || n > PACKET_MAX || t->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND)
		return -EPROTO;
	if (t->len == 0) {
		int k = iov_slice(c->iov, c->nout, head, n, iov, CHAIN_MAX);
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = k < 0 ? 0 : (size_t)k};
		ssize_t r;

		if (k < 0)
			return k;
		do
			r = sendmsg(t->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
		while (r < 0 && errno == EINTR);
		if (r < 0 && errno != EAGAIN)
			return -errno;
		if (r > 0) {
			passed_on(t, (size_t)r);
			done = (size_t)r;
		}
	}
	return done == n ? 0 : keep(t, c->iov, c->nout, head + done, n - done);
}

static void refuse(struct vsock *s, const struct virtio_vsock_hdr *h)
{
	if (h->op == VIRTIO_VSOCK_OP_RST || s->nr_refuse == ARRAY_LEN(s->refuse))
		return;
	s->refuse[s->nr_refuse].host_port = h->dst_port;
	s->refuse[s->nr_refuse].guest_port = h->src_port;
	s->nr_refuse++;
}

/*
 * Each question interrupts the guest while it boots. So the pause is a sixteenth of how long it has
 * taken already: short where a boot is, and never a burden where it is not.
 */
static void asked_in_vain(struct vsock *s)
{
	uint64_t now = loop_now_ms(s->loop), waited = now - s->since_ms;

	loop_timer_set(s->loop, &s->retry, now + MAX(waited / 16, (uint64_t)VSOCK_RETRY_MS));
}

/* The guest says no, or nonsense. */
static void refused(struct vsock_stream *t)
{
	struct vsock *s = t->s;

	if (!t->open && !s->answered) {
		asked_in_vain(s);
		return;
	}
	close_stream(t);
}

static void opened(struct vsock_stream *t)
{
	t->open = true;
	t->s->answered = true;
	watch(t);
}

static int stream_packet(struct vsock_stream *t, const struct virtio_vsock_hdr *h, struct chain *c)
{
	t->guest_buf = h->buf_alloc;
	t->guest_fwd = h->fwd_cnt;
	switch (h->op) {
	case VIRTIO_VSOCK_OP_RESPONSE:
		if (t->open)
			return -EPROTO;
		opened(t);
		return 0;
	case VIRTIO_VSOCK_OP_RW:
		return t->open ? take_data(t, c, h->len) : -EPROTO;
	case VIRTIO_VSOCK_OP_SHUTDOWN:
		t->guest_shut |= h->flags & ALL;
		finish_sending(t);
		return 0;
	case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
		t->want |= WANT_CREDIT;
		return 0;
	case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
		return 0;
	default:
		return -EPROTO;
	}
}

static void guest_packet(struct vsock *s, struct chain *c)
{
	struct virtio_vsock_hdr h;
	struct vsock_stream *t;

	if (iov_copy_out(c->iov, c->nout, 0, &h, sizeof(h)) < sizeof(h))
		return;
	if (h.src_cid != VSOCK_GUEST_CID || h.dst_cid != VSOCK_HOST_CID ||
	    h.type != VIRTIO_VSOCK_TYPE_STREAM || h.len > c->out_len - sizeof(h))
		return;
	for (t = s->streams; t; t = t->next)
		if (t->host_port == h.dst_port && h.src_port == VSOCK_AGENT_PORT)
			break;
	if (!t) {
		refuse(s, &h);
		return;
	}
	if (h.op == VIRTIO_VSOCK_OP_RST) {
		refused(t);
		return;
	}
	if (stream_packet(t, &h, c) < 0) {
		refuse(s, &h);
		close_stream(t);
		return;
	}
	watch(t);
}

/* --- from the host to the guest */

static void fill(struct virtio_vsock_hdr *h, uint32_t host_port, uint32_t guest_port, uint16_t op)
{
	*h = (struct virtio_vsock_hdr){.src_cid = VSOCK_HOST_CID,
	                               .dst_cid = VSOCK_GUEST_CID,
	                               .src_port = host_port,
	                               .dst_port = guest_port,
	                               .type = VIRTIO_VSOCK_TYPE_STREAM,
	                               .op = op};
}

static void hand_over(struct vsock *s, struct chain *c, const struct virtio_vsock_hdr *h)
{
	iov_copy_in(chain_in(c), c->nin, 0, h, sizeof(*h));
	queue_push(&s->vdev.queue[RX], c->head, (uint32_t)sizeof(*h) + h->len);
}

static void fill_stream(struct vsock_stream *t, struct virtio_vsock_hdr *h, uint16_t op)
{
	fill(h, t->host_port, VSOCK_AGENT_PORT, op);
	h->buf_alloc = VSOCK_BUF;
	h->fwd_cnt = t->fwd;
	t->fwd_told = t->fwd;
	t->want &= ~(unsigned)WANT_CREDIT;
}

static uint32_t credit(const struct vsock_stream *t)
{
	uint32_t out = t->sent - t->guest_fwd;

	return t->guest_buf > out ? t->guest_buf - out : 0;
}

/* One packet of the stream into c: true. Nothing to say: false, and c is unused. */
static bool stream_says(struct vsock_stream *t, struct chain *c, bool *ret_gone)
{
	struct iovec iov[CHAIN_MAX];
	struct virtio_vsock_hdr h;
	size_t head = sizeof(h), room = MIN(c->in_len - head, (size_t)PACKET_MAX);
	ssize_t n;
	int k;

	*ret_gone = false;
	if (t->want & WANT_END) {
		fill_stream(t, &h, VIRTIO_VSOCK_OP_SHUTDOWN);
		h.flags = ALL;
		*ret_gone = true;
	} else if (t->want & WANT_REQUEST) {
		fill_stream(t, &h, VIRTIO_VSOCK_OP_REQUEST);
		t->want &= ~(unsigned)WANT_REQUEST;
	} else if (t->open && t->readable && !t->ended && credit(t) && room) {
		if (t->guest_shut & VIRTIO_VSOCK_SHUTDOWN_RCV) {
			t->readable = false; /* no process will read it */
			t->ended = true;
			return false;
		}
		k = iov_slice(chain_in(c), c->nin, head, MIN(room, (size_t)credit(t)), iov,
		              CHAIN_MAX);
		n = k < 0 ? -1 : readv(t->fd, iov, k);
		if (n < 0) {
			bool again = k >= 0 && (errno == EAGAIN || errno == EINTR);

			t->readable = false;
			if (!again)
				t->want = WANT_END;
			return !again && stream_says(t, c, ret_gone);
		}
		if (n == 0) {
			t->readable = false;
			t->ended = true;
			t->want |= t->io.added ? WANT_SHUTDOWN : WANT_END;
			finish_sending(t);
			return stream_says(t, c, ret_gone);
		}
		t->sent += (uint32_t)n;
		fill_stream(t, &h, VIRTIO_VSOCK_OP_RW);
		h.len = (uint32_t)n;
	} else if (t->want & WANT_SHUTDOWN) {
		fill_stream(t, &h, VIRTIO_VSOCK_OP_SHUTDOWN);
		h.flags = VIRTIO_VSOCK_SHUTDOWN_SEND;
		t->want &= ~(unsigned)WANT_SHUTDOWN;
	} else if (t->want & WANT_CREDIT) {
		fill_stream(t, &h, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
	} else {
		return false;
	}
	hand_over(t->s, c, &h);
	return true;
}

static bool has_something(const struct vsock_stream *t)
{
	return t->want || (t->open && t->readable && !t->ended && credit(t));
}

static bool pop_room(struct vsock *s, struct chain *c)
{
	if (!vdev_pop(&s->vdev, RX, c))
		return false;
	if (c->nout || c->in_len < sizeof(struct virtio_vsock_hdr)) {
		vdev_break(&s->vdev);
		return false;
	}
	return true;
}

/* Has the guest given back the buffer of the transport reset? Then it has acted on it. */
static bool guest_knows(struct vsock *s)
{
	const struct queue *q = &s->vdev.queue[EVENT];
	const uint16_t *avail;

	if (!s->reset_sent)
		return true;
	avail = q->ready ? mem_at(q->mem, q->avail, 4) : NULL;
	if (avail && mem_load16(&avail[1]) == s->reset_avail)
		return false;
	s->reset_sent = false;
	return true;
}

/*
 * The driver looks at all queues when there is an interrupt: that a packet of its own has been
 * taken can wait for the next one, unless it would run out of room.
 */
static void signal_guest(struct vsock *s, unsigned queue)
{
	if (vdev_signal(&s->vdev, queue))
		s->unsaid = 0;
}

static void pump(struct vsock *s)
{
	struct vsock_stream *t, *next;
	bool any = false, gone;
	struct chain c;

	while (s->nr_refuse && pop_room(s, &c)) {
		struct virtio_vsock_hdr h;

		s->nr_refuse--;
		fill(&h, s->refuse[s->nr_refuse].host_port, s->refuse[s->nr_refuse].guest_port,
		     VIRTIO_VSOCK_OP_RST);
		hand_over(s, &c, &h);
		any = true;
	}
	for (t = guest_knows(s) ? s->streams : NULL; t; t = next) {
		next = t->next;
		while (has_something(t)) {
			if (!pop_room(s, &c))
				goto out;
			if (!stream_says(t, &c, &gone)) {
				queue_unpop(&s->vdev.queue[RX]);
				break;
			}
			any = true;
			if (gone) {
				close_stream(t);
				t = NULL;
				break;
			}
		}
		if (t)
			watch(t);
	}
out:
	if (any)
		signal_guest(s, RX);
}

/* A driver that begins anew knows of no streams. Those that wait for an answer go on waiting. */
static void forget_streams(struct vsock *s)
{
	struct vsock_stream *t, *next;

	for (t = s->streams; t; t = next) {
		next = t->next;
		if (t->open)
			close_stream(t);
		else
			t->want |= WANT_REQUEST;
	}
	s->nr_refuse = 0;
	s->forget = false;
}

static void vsock_work(struct vdev *v)
{
	struct vsock *s = (struct vsock *)v;
	struct chain c;

	if (s->forget)
		forget_streams(s);
	while (s->nr_refuse < ARRAY_LEN(s->refuse) && vdev_pop(v, TX, &c)) {
		guest_packet(s, &c);
		queue_push(&v->queue[TX], c.head, 0);
		s->unsaid++;
	}
	pump(s);
	if (s->unsaid && s->unsaid >= v->queue[TX].size / 2)
		signal_guest(s, TX);
}

static void vsock_reset(struct vdev *v)
{
	struct vsock *s = (struct vsock *)v;

	s->forget = true;
	s->answered = s->reset_sent = false;
}

/* What was sent is for the guest, also if the sender has gone before it answered. */
static bool has_unread(const struct vsock_stream *t)
{
	char c;
	struct iovec iov = {&c, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	return recvmsg(t->fd, &m, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void stream_ready(void *arg, uint32_t events)
{
	struct vsock_stream *t = arg;
	struct vsock *s = t->s;
	bool gone = events & (EPOLLHUP | EPOLLERR);

	pthread_mutex_lock(s->lock);
	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		t->readable = true;
	if (gone)
		loop_io_del(s->loop, &t->io); /* it would be reported again and again */
	if (flush_stream(t) < 0 || (gone && !t->open && !has_unread(t)))
		close_stream(t); /* the guest is told when it sends something */
	else
		watch(t);
	pump(s);
	pthread_mutex_unlock(s->lock);
}

static void ask_again(void *arg)
{
	struct vsock *s = arg;

	pthread_mutex_lock(s->lock);
	for (struct vsock_stream *t = s->streams; t; t = t->next)
		if (!t->open)
			t->want |= WANT_REQUEST;
	pump(s);
	pthread_mutex_unlock(s->lock);
}

static void accept_stream(void *arg, uint32_t events)
{
	struct vsock *s = arg;
	struct vsock_stream *t = NULL;
	int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	fd = vm_high_fd(fd);
	if (fd < 0)
		return;
	pthread_mutex_lock(s->lock);
	if (s->nr_streams < VSOCK_STREAMS_MAX)
		t = calloc(1, sizeof(*t));
	if (!t) {
		close(fd);
		goto out;
	}
	*t = (struct vsock_stream){.next = s->streams,
	                           .s = s,
	                           .fd = fd,
	                           .host_port = s->next_port,
	                           .want = WANT_REQUEST,
	                           .io = {.fn = stream_ready, .arg = t}};
	s->next_port = s->next_port == UINT32_MAX ? 1024 : s->next_port + 1;
	s->streams = t;
	s->nr_streams++;
	if (loop_io_add(s->loop, &t->io, fd, 0) < 0)
		close_stream(t);
	pump(s);
out:
	pthread_mutex_unlock(s->lock);
}

static void vsock_config(struct vdev *v, size_t off, void *buf, size_t len)
{
	struct virtio_vsock_config config = {.guest_cid = VSOCK_GUEST_CID};

	memcpy(buf, (char *)&config + off, len);
}

static const struct vdev_ops vsock_ops = {
    .id = VIRTIO_ID_VSOCK,
    .queues = 3,
    .queue_max = 128,
    .work = vsock_work,
    .reset = vsock_reset,
    .config_len = sizeof(struct virtio_vsock_config),
    .config_read = vsock_config,
};

int vsock_init(struct vsock *s, struct loop *loop, pthread_mutex_t *lock, int listener,
               uint32_t random, const struct mem *mem)
{
	*s = (struct vsock){.loop = loop,
	                    .lock = lock,
	                    .listener = listener,
	                    .next_port = 1024 + random % (1u << 30),
	                    .accept_io = {.fn = accept_stream, .arg = s},
	                    .retry = {.fn = ask_again, .arg = s},
	                    .since_ms = loop_now_ms(loop)};
	vdev_init(&s->vdev, &vsock_ops, mem);
	return listener < 0 ? 0 : loop_io_add(loop, &s->accept_io, listener, EPOLLIN);
}

void vsock_fini(struct vsock *s)
{
	while (s->streams)
		close_stream(s->streams);
	loop_timer_clear(s->loop, &s->retry);
	loop_io_del(s->loop, &s->accept_io);
}

void vsock_reborn(struct vsock *s)
{
	const struct virtio_vsock_event event = {.id = VIRTIO_VSOCK_EVENT_TRANSPORT_RESET};
	struct queue *q = &s->vdev.queue[EVENT];
	struct chain c;

	if (!vdev_pop(&s->vdev, EVENT, &c))
		return;
	s->reset_avail = mem_load16((uint16_t *)mem_at(q->mem, q->avail, 4) + 1);
	s->reset_sent = true;
	queue_push(q, c.head, (uint32_t)iov_copy_in(chain_in(&c), c.nin, 0, &event, sizeof(event)));
	vdev_signal(&s->vdev, EVENT);
}

struct saved_vsock {
	uint32_t answered, reserved;
};

void vsock_save(const struct vsock *s, struct state_out *o)
{
	struct saved_vsock k = {.answered = s->answered};

	vdev_save(&s->vdev, o);
	state_put(o, STATE_VIRTIO, &k, sizeof(k));
}

int vsock_load(struct vsock *s, struct state_in *i)
{
	struct saved_vsock k;
	int r = vdev_load(&s->vdev, i);

	if (r == 0)
		r = state_get(i, STATE_VIRTIO, &k, sizeof(k));
	if (r == 0)
		s->answered = k.answered;
	return r;
}
