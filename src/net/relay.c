/*
 * TLS by name. With an allow-list the rules send a guest's connections to port 443 of resolved
 * addresses here. The first bytes are read until the server name in them is known; when the policy
 * allows it we connect to where the guest wanted to go, from the slot's own namespace, and carry
 * bytes. Nothing is decrypted, nothing is changed. Other policies never come here.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter_ipv4.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/loop.h"
#include "base/macro.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/policy.h"
#include "net/sni.h"

enum {
	HELLO_MS = 10000, /* for a whole ClientHello */
	CONNECT_MS = 30000,
	ACCEPTS_PER_TURN = 16,
	CHUNK = 64 * 1024,
	TURN_BYTES = 4 * CHUNK, /* one direction of one connection, before others get a turn */
};

enum relay_state {
	RELAY_HELLO,
	RELAY_CONNECTING,
	RELAY_OPEN,
};

/* One direction: bytes taken from `from` that `to` did not take yet. */
struct relay_stream {
	uint8_t *buf;
	size_t at, n;
	bool ended; /* from has no more */
	bool shut;  /* and to was told */
	uint64_t bytes;
};

struct relay {
	struct net_slot *slot;
	struct relay *next, **prev;
	enum relay_state state;
	uint32_t addr;
	uint16_t port;
	char name[SNI_NAME_MAX + 1];
	int guest, world;
	struct loop_io guest_io, world_io;
	struct loop_timer late;
	struct relay_stream up, down;
};

static void event(struct relay *r, enum net_verdict verdict, const char *why)
{
	struct net_event ev = {
	    .verdict = verdict,
	    .proto = IPPROTO_TCP,
	    .addr = {(uint8_t)(r->addr >> 24), (uint8_t)(r->addr >> 16), (uint8_t)(r->addr >> 8),
	             (uint8_t)r->addr},
	    .port = r->port,
	    .name = r->name[0] ? r->name : seen_name(r->slot, r->addr),
	    .why = why,
	    .bytes_up = r->up.bytes,
	    .bytes_down = r->down.bytes,
	};

	audit_tell(r->slot, &ev);
}

static void reset(int fd)
{
	struct linger now = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

/* abrupt: both sides read a reset, not an orderly end. */
static void relay_end(struct relay *r, bool abrupt)
{
	struct net_slot *s = r->slot;
	struct loop *l = s->net->loop;

	if (r->state != RELAY_HELLO)
		event(r, NET_CLOSED, NULL);
	loop_io_del(l, &r->guest_io);
	loop_io_del(l, &r->world_io);
	loop_timer_clear(l, &r->late);
	if (abrupt)
		reset(r->guest);
	close(r->guest);
	if (r->world >= 0) {
		if (abrupt)
			reset(r->world);
		close(r->world);
	}
	free(r->up.buf);
	free(r->down.buf);
	if (r->next)
		r->next->prev = r->prev;
	*r->prev = r->next;
	s->n_relays--;
	free(r);
}

/* Writes what is held, then reads and writes on. -EAGAIN: to is full. -EIO: over. 0: from has no
 * more now. */
static int pump(struct relay_stream *st, int from, int to)
{
	static uint8_t chunk[CHUNK]; /* one thread */
	size_t turn = 0;

	while (st->n) {
		ssize_t w = send(to, st->buf + st->at, st->n, MSG_NOSIGNAL);

		if (w < 0)
			return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
		st->at += (size_t)w;
		st->n -= (size_t)w;
		st->bytes += (size_t)w;
	}
	free(st->buf);
	st->buf = NULL;
	while (!st->ended && turn < TURN_BYTES) {
		ssize_t n = recv(from, chunk, sizeof(chunk), 0), w;

		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -EIO;
		if (n == 0) {
			st->ended = true;
			break;
		}
		w = send(to, chunk, (size_t)n, MSG_NOSIGNAL);
		if (w < 0 && errno != EAGAIN && errno != EINTR)
			return -EIO;
		w = MAX(w, (ssize_t)0);
		st->bytes += (size_t)w;
		turn += (size_t)n;
		if (w == n)
			continue;
		st->buf = malloc((size_t)(n - w));
		if (!st->buf)
			return -EIO;
		memcpy(st->buf, chunk + w, (size_t)(n - w));
		st->at = 0;
		st->n = (size_t)(n - w);
		return -EAGAIN;
	}
	if (st->ended && !st->shut) {
		shutdown(to, SHUT_WR);
		st->shut = true;
	}
	return 0;
}

static uint32_t wants(const struct relay_stream *in, const struct relay_stream *out)
{
	return (in->ended || in->n ? 0 : EPOLLIN) | (out->n ? EPOLLOUT : 0);
}

static void relay_pump(struct relay *r)
{
	struct loop *l = r->slot->net->loop;
	int up = pump(&r->up, r->guest, r->world), down = 0;

	if (up != -EIO)
		down = pump(&r->down, r->world, r->guest);
	if (up == -EIO || down == -EIO) {
		relay_end(r, true);
		return;
	}
	if (r->up.shut && r->down.shut) {
		relay_end(r, false);
		return;
	}
	if (loop_io_set(l, &r->guest_io, wants(&r->up, &r->down)) < 0 ||
	    loop_io_set(l, &r->world_io, wants(&r->down, &r->up)) < 0)
		relay_end(r, true);
}

static void on_world(void *arg, uint32_t events)
{
	struct relay *r = arg;
	int error = 0, on = 1;
	socklen_t sl = sizeof(error);

	if (r->state == RELAY_CONNECTING) {
		if (getsockopt(r->world, SOL_SOCKET, SO_ERROR, &error, &sl) < 0 || error) {
			relay_end(r, true);
			return;
		}
		loop_timer_clear(r->slot->net->loop, &r->late);
		r->state = RELAY_OPEN;
		setsockopt(r->world, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
		setsockopt(r->guest, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	} else if (events & EPOLLERR) {
		relay_end(r, true);
		return;
	}
	relay_pump(r);
}

static int connect_out(struct relay *r)
{
	struct sockaddr_in sin = {.sin_family = AF_INET,
	                          .sin_port = htons(r->port),
	                          .sin_addr.s_addr = htonl(r->addr)};
	struct net *n = r->slot->net;
	int mark = RELAY_MARK, on = 1, e;

	e = make_socket(n->host_ns, r->slot->kit.ns, SOCK_STREAM, &r->world);
	if (e < 0)
		return e;
	setsockopt(r->world, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(r->guest, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (setsockopt(r->world, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) < 0)
		return -errno;
	if (connect(r->world, (struct sockaddr *)&sin, sizeof(sin)) < 0 && errno != EINPROGRESS)
		return -errno;
	e = loop_io_set(n->loop, &r->guest_io, 0); /* until there is somewhere to put it */
	if (e == 0)
		e = loop_io_add(n->loop, &r->world_io, r->world, EPOLLOUT);
	if (e == 0)
		e = loop_timer_set(n->loop, &r->late, loop_now_ms(n->loop) + CONNECT_MS);
	return e;
}

static void on_hello(struct relay *r)
{
	char name[SNI_NAME_MAX + 1], clean[POLICY_NAME_MAX + 1];
	int e;

	while (r->up.n < SNI_BYTES_MAX) {
		ssize_t n = recv(r->guest, r->up.buf + r->up.n, SNI_BYTES_MAX - r->up.n, 0);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n <= 0) {
			relay_end(r, true); /* left without having said anything */
			return;
		}
		r->up.n += (size_t)n;
	}
	e = sni_parse(r->up.buf, r->up.n, name);
	if (e == -EAGAIN)
		return;
	if (e == 0 && policy_clean_name(name, clean) > 0) {
		memcpy(r->name, clean, sizeof(r->name));
		if (policy_allows_name(r->slot->policy, clean, r->port)) {
			/* Told before a server answers, as the kernel tells it of the others. */
			r->state = RELAY_CONNECTING;
			event(r, NET_ALLOWED, NULL);
			if (connect_out(r) < 0)
				relay_end(r, true);
			return;
		}
	}
	event(r, NET_REFUSED, "sni");
	relay_end(r, true);
}

static void on_guest(void *arg, uint32_t events)
{
	struct relay *r = arg;

	if (events & EPOLLERR || (r->state == RELAY_CONNECTING && events & EPOLLHUP))
		relay_end(r, true);
	else if (r->state == RELAY_HELLO)
		on_hello(r);
	else if (r->state == RELAY_OPEN)
		relay_pump(r);
}

static void on_late(void *arg)
{
	struct relay *r = arg;

	if (r->state == RELAY_HELLO)
		event(r, NET_REFUSED, "sni");
	relay_end(r, true);
}

static int relay_new(struct net_slot *s, int fd)
{
	struct sockaddr_in to;
	socklen_t sl = sizeof(to);
	struct relay *r;

	if (s->n_relays >= RELAYS_MAX)
		return -EAGAIN;
	/* What was redirected has a place it wanted to go; a connection that came here directly has
	 * none. */
	if (getsockopt(fd, SOL_IP, SO_ORIGINAL_DST, &to, &sl) < 0)
		return -errno;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->up.buf = malloc(SNI_BYTES_MAX);
	if (!r->up.buf) {
		free(r);
		return -ENOMEM;
	}
	r->slot = s;
	r->addr = ntohl(to.sin_addr.s_addr);
	r->port = ntohs(to.sin_port);
	r->guest = fd;
	r->world = -1;
	r->guest_io = (struct loop_io){.fn = on_guest, .arg = r};
	r->world_io = (struct loop_io){.fn = on_world, .arg = r};
	r->late = (struct loop_timer){.fn = on_late, .arg = r};
	r->next = s->relays;
	r->prev = &s->relays;
	if (r->next)
		r->next->prev = &r->next;
	s->relays = r;
	s->n_relays++;
	if (loop_io_add(s->net->loop, &r->guest_io, fd, EPOLLIN) < 0 ||
	    loop_timer_set(s->net->loop, &r->late, loop_now_ms(s->net->loop) + HELLO_MS) < 0)
		relay_end(r, true);
	return 0;
}

static void on_accept(void *arg, uint32_t events)
{
	struct net_slot *s = arg;

	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(s->kit.sni, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		if (relay_new(s, fd) < 0) {
			reset(fd);
			close(fd);
		}
	}
}

int relay_listen(struct net_slot *s)
{
	s->sni_io = (struct loop_io){.fn = on_accept, .arg = s};
	return loop_io_add(s->net->loop, &s->sni_io, s->kit.sni, EPOLLIN);
}

void relay_stop(struct net_slot *s)
{
	loop_io_del(s->net->loop, &s->sni_io);
	while (s->relays)
		relay_end(s->relays, true);
}

void relay_recheck(struct net_slot *s)
{
	struct relay *r, *next;

	for (r = s->relays; r; r = next) {
		next = r->next;
		if (r->state != RELAY_HELLO && !policy_allows_name(s->policy, r->name, r->port))
			relay_end(r, true);
	}
}
