/*
 * Connections by name. With an allow-list the rules send a guest's TCP connections to the addresses
 * of names here. What the guest says is judged before it goes out (leash.h); then we connect to
 * where it wanted to go, from the slot's own namespace, and carry bytes. Nothing is decrypted. On a
 * port of its own (name:22) the server may be the one that speaks first, so there we connect at
 * once. Other policies never come here.
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
#include "net/leash.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/policy.h"

enum {
	HELLO_MS = 10000, /* for a whole ClientHello, or the head of the first request */
	CONNECT_MS = 30000,
	ACCEPTS_PER_TURN = 16,
	CHUNK = 64 * 1024,
	TURN_BYTES = 4 * CHUNK, /* one direction of one connection, before others get a turn */
};

enum relay_state {
	RELAY_HELLO, /* nothing was said yet that could be judged */
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
	size_t n_first;
	uint8_t first[LEASH_ANSWER]; /* its first bytes */
};

struct relay {
	struct net_slot *slot;
	struct relay *next, **prev;
	enum relay_state state;
	bool told; /* that it began: so its end is told, too */
	uint32_t addr;
	uint16_t port;
	struct leash leash;
	int guest, world;
	struct loop_io guest_io, world_io;
	struct loop_timer late;
	struct relay_stream up, down;
	size_t may_go; /* of up.n, while it is not free */
};

static void tell(struct net_slot *s, const struct sockaddr_in *to, struct net_event ev)
{
	memcpy(ev.addr, &to->sin_addr, sizeof(ev.addr));
	ev.port = ntohs(to->sin_port);
	ev.proto = IPPROTO_TCP;
	if (!ev.name || !ev.name[0])
		ev.name = seen_name(s, ntohl(to->sin_addr.s_addr));
	audit_tell(s, &ev);
}

static struct sockaddr_in relay_to(const struct relay *r)
{
	return (struct sockaddr_in){.sin_family = AF_INET,
	                            .sin_port = htons(r->port),
	                            .sin_addr.s_addr = htonl(r->addr)};
}

static void relay_tell(struct relay *r, enum net_verdict verdict, const char *name, const char *why)
{
	struct sockaddr_in to = relay_to(r);

	tell(r->slot, &to,
	     (struct net_event){.verdict = verdict,
	                        .name = name,
	                        .why = why,
	                        .bytes_up = r->up.bytes,
	                        .bytes_down = r->down.bytes});
}

static void relay_allowed(struct relay *r)
{
	r->told = true;
	relay_tell(r, NET_ALLOWED, r->leash.name, NULL);
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

	if (r->told)
		relay_tell(r, NET_CLOSED, r->leash.name, NULL);
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

static void relay_refuse(struct relay *r, const char *why)
{
	relay_tell(r, NET_REFUSED, r->leash.refused, why);
	relay_end(r, true);
}

static void keep_first(struct relay_stream *st, const uint8_t *p, size_t n)
{
	n = MIN(n, sizeof(st->first) - st->n_first);
	memcpy(st->first + st->n_first, p, n);
	st->n_first += n;
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
		keep_first(st, chunk, (size_t)n);
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

/* More of what the guest says, to be judged. -EAGAIN: there is none now. */
static int hear(struct relay *r)
{
	struct relay_stream *up = &r->up;
	ssize_t n;

	if (!up->buf && !(up->buf = malloc(LEASH_BYTES_MAX)))
		return -EIO;
	memmove(up->buf, up->buf + up->at, up->n);
	up->at = 0;
	if (up->n == LEASH_BYTES_MAX)
		return -EAGAIN; /* an answer is due first */
	n = recv(r->guest, up->buf + up->n, LEASH_BYTES_MAX - up->n, 0);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
	up->n += (size_t)n;
	up->ended = n == 0;
	return 0;
}

/* What may go of what is held. -EAGAIN: the server takes no more. */
static int let_go(struct relay *r)
{
	struct relay_stream *up = &r->up;

	while (r->may_go) {
		ssize_t w = send(r->world, up->buf + up->at, r->may_go, MSG_NOSIGNAL);

		if (w < 0)
			return errno == EAGAIN || errno == EINTR ? -EAGAIN : -EIO;
		up->at += (size_t)w;
		up->n -= (size_t)w;
		up->bytes += (size_t)w;
		r->may_go -= (size_t)w;
	}
	return 0;
}

/* How much of what is held may go. -EPERM: nothing any more. */
static int judge(struct relay *r)
{
	struct relay_stream *up = &r->up;

	while (r->may_go < up->n && !r->leash.free) {
		size_t rest = up->n - r->may_go;
		bool told;
		ssize_t n = leash_judge(&r->leash, r->slot->policy, up->buf + up->at + r->may_go,
		                        &rest, &told);

		if (n < 0)
			return r->may_go ? 0 : -EPERM;
		up->n = r->may_go + rest;
		r->may_go += (size_t)n;
		if (told)
			relay_allowed(r);
		if (n == 0)
			break;
	}
	return 0;
}

/*
 * From the guest to the world, judged. 0 and -EAGAIN: until something happens; -EIO: over; -EPERM:
 * refused. Before we are connected it stops when something may go. It hears once: judging many
 * small requests takes time, and others want a turn.
 */
static int pump_up(struct relay *r)
{
	struct relay_stream *up = &r->up;
	bool heard = false;
	int e = 0;

	while (!r->leash.free && !up->ended) {
		e = r->state == RELAY_OPEN ? let_go(r) : 0;
		if (e == 0)
			e = judge(r);
		if (e < 0)
			return e;
		if (r->may_go && r->state != RELAY_OPEN)
			return 0;
		if (r->may_go)
			continue;
		if (heard)
			break;
		e = hear(r);
		if (e < 0)
			break;
		heard = true;
	}
	if (r->leash.free)
		return r->state == RELAY_OPEN ? pump(up, r->guest, r->world) : 0;
	if (up->ended && r->state != RELAY_OPEN)
		return -EIO; /* left without having said anything */
	if (up->ended && !up->shut) {
		up->n = 0; /* the beginning of something, which nobody has judged */
		shutdown(r->world, SHUT_WR);
		up->shut = true;
	}
	if (!up->n) {
		free(up->buf); /* a connection that is only kept open takes no memory of ours */
		up->buf = NULL;
	}
	return e;
}

static int relay_set(struct relay *r)
{
	struct loop *l = r->slot->net->loop;
	const struct relay_stream *up = &r->up, *down = &r->down;
	bool stuck = r->leash.free ? up->n : r->may_go;
	bool full = stuck || (!r->leash.free && up->n == LEASH_BYTES_MAX);
	int e;

	e = loop_io_set(l, &r->guest_io,
	                (up->ended || full ? 0 : EPOLLIN) | (down->n ? EPOLLOUT : 0));
	if (e == 0)
		e = loop_io_set(l, &r->world_io,
		                (down->ended || down->n ? 0 : EPOLLIN) | (stuck ? EPOLLOUT : 0));
	return e;
}

static void relay_pump(struct relay *r)
{
	struct leash *l = &r->leash;
	int up = pump_up(r), down = 0;

	if (up != -EIO && up != -EPERM)
		down = pump(&r->down, r->world, r->guest);
	if (l->http == LEASH_SWITCHING && r->down.n_first == LEASH_ANSWER && up != -EIO) {
		leash_answer(l, r->down.first);
		up = pump_up(r);
	}
	if (up == -EPERM)
		relay_refuse(r, l->why);
	else if (up == -EIO || down == -EIO)
		relay_end(r, true);
	else if (r->down.shut && (r->up.shut || l->http == LEASH_SWITCHING))
		relay_end(r, false);
	else if (relay_set(r) < 0)
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
	struct sockaddr_in to = relay_to(r);
	struct net *n = r->slot->net;
	int mark = RELAY_MARK, on = 1, e;

	r->state = RELAY_CONNECTING;
	e = make_socket(n->host_ns, r->slot->kit.ns, SOCK_STREAM, &r->world);
	if (e < 0)
		return e;
	setsockopt(r->world, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(r->guest, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (setsockopt(r->world, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) < 0)
		return -errno;
	if (connect(r->world, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)
		return -errno;
	e = loop_io_set(n->loop, &r->guest_io, 0); /* until there is somewhere to put it */
	if (e == 0)
		e = loop_io_add(n->loop, &r->world_io, r->world, EPOLLOUT);
	if (e == 0)
		e = loop_timer_set(n->loop, &r->late, loop_now_ms(n->loop) + CONNECT_MS);
	return e;
}

static void on_guest(void *arg, uint32_t events)
{
	struct relay *r = arg;
	int e;

	if (events & EPOLLERR || (r->state == RELAY_CONNECTING && events & EPOLLHUP)) {
		relay_end(r, true);
		return;
	}
	if (r->state != RELAY_HELLO) {
		if (r->state == RELAY_OPEN)
			relay_pump(r);
		return;
	}
	e = pump_up(r);
	if (e == -EPERM)
		relay_refuse(r, r->leash.why);
	else if (e == -EIO || (r->may_go && connect_out(r) < 0))
		relay_end(r, true);
}

static void on_late(void *arg)
{
	struct relay *r = arg;

	if (r->state == RELAY_HELLO)
		relay_refuse(r, r->port == POLICY_HTTP ? "http" : "sni");
	else
		relay_end(r, true);
}

/*
 * A port of its own: what is no TLS there is judged by address and port. The kernel let it come
 * here for the name that led to the address. We know it, unless it was an earlier process that
 * answered; then the policy is still that one's, or the kernel had forgotten the address.
 */
static int relay_by_address(struct relay *r)
{
	const char *name = seen_allowed(r->slot, r->addr, r->port);

	if (!name && !r->slot->inherited)
		return -ENOENT;
	if (name)
		memcpy(r->leash.name, name, strlen(name) + 1);
	relay_allowed(r);
	return connect_out(r);
}

/* Takes fd, whatever happens. */
static void relay_new(struct net_slot *s, int fd)
{
	struct sockaddr_in to;
	socklen_t sl = sizeof(to);
	struct relay *r = NULL;
	int e;

	/* What was redirected has a place it wanted to go; a connection that came here directly has
	 * none. */
	if (getsockopt(fd, SOL_IP, SO_ORIGINAL_DST, &to, &sl) == 0) {
		if (s->n_relays < RELAYS_MAX)
			r = calloc(1, sizeof(*r));
		else
			tell(s, &to, (struct net_event){.verdict = NET_REFUSED, .why = "rate"});
	}
	if (!r) {
		reset(fd);
		close(fd);
		return;
	}
	r->slot = s;
	r->addr = ntohl(to.sin_addr.s_addr);
	r->port = ntohs(to.sin_port);
	leash_init(&r->leash, r->port);
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
	e = loop_io_add(s->net->loop, &r->guest_io, fd, EPOLLIN);
	if (e == 0 && r->port != POLICY_HTTP && r->port != POLICY_TLS)
		e = relay_by_address(r);
	else if (e == 0)
		e = loop_timer_set(s->net->loop, &r->late, loop_now_ms(s->net->loop) + HELLO_MS);
	if (e == -ENOENT)
		relay_refuse(r, "policy");
	else if (e < 0)
		relay_end(r, true);
}

static void on_accept(void *arg, uint32_t events)
{
	struct net_slot *s = arg;

	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(s->kit.sni, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		relay_new(s, fd);
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
		if (r->state != RELAY_HELLO && !leash_holds(&r->leash, s->policy))
			relay_end(r, true);
	}
}
