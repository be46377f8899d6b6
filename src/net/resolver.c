/*
 * The resolver as a guest sees it, at the gateway's port 53. A question is judged by the policy
 * before the guest hears of it; an answer is cleaned of closed addresses, the rest is opened in the
 * slot's sets, and only then told.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bucket.h"
#include "base/loop.h"
#include "base/macro.h"
#include "net/dns.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/policy.h"
#include "net/upstream.h"

enum {
	PER_TURN = 32,       /* questions read before others get a turn */
	QUESTION_MAX = 1024, /* no honest one is longer */
	REPLY_MAX = 4096,
	TCP_IDLE_MS = 10000,
};

/* A connection that asks over TCP: one question at a time, each with its length in front. */
struct dns_conn {
	struct net_slot *slot;
	struct dns_conn *next, **prev;
	int fd;
	struct loop_io io;
	struct loop_timer idle;
	struct ask *ask;
	size_t n;
	uint8_t buf[2 + QUESTION_MAX];
};

/* A question under way. */
struct ask {
	struct net_slot *slot;
	struct ask *next, **prev;
	struct dns_conn *conn; /* NULL: UDP, from port */
	uint16_t port;
	struct dns_question q;
	struct upstream_lookup lookup;
};

static void conn_free(struct dns_conn *c);
static void conn_listen(struct dns_conn *c);

/* Where a reply goes. */
struct asker {
	struct net_slot *slot;
	struct dns_conn *conn;
	uint16_t port;
};

static void ask_free(struct ask *a)
{
	upstream_cancel(&a->lookup);
	if (a->conn)
		a->conn->ask = NULL;
	if (a->next)
		a->next->prev = a->prev;
	*a->prev = a->next;
	a->slot->n_asks--;
	free(a);
}

/* May end the connection; the caller must not touch it after. */
static void send_reply(const struct asker *to, uint8_t *buf, size_t n)
{
	if (to->conn) {
		uint8_t head[2] = {(uint8_t)(n >> 8), (uint8_t)n};
		struct iovec iov[2] = {{head, 2}, {buf, n}};
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

		/* A guest that reads has never that much unread; one that does not, is not waited
		 * for. */
		if (sendmsg(to->conn->fd, &m, MSG_NOSIGNAL) != (ssize_t)n + 2)
			conn_free(to->conn);
		else
			conn_listen(to->conn);
	} else {
		struct sockaddr_in sin = {.sin_family = AF_INET,
		                          .sin_port = htons(to->port),
		                          .sin_addr.s_addr = htonl((uint32_t)GUEST_ADDR)};

		/* A reply that cannot be sent is asked for again. */
		(void)sendto(to->slot->kit.dns_udp, buf, n, 0, (struct sockaddr *)&sin,
		             sizeof(sin));
	}
}

static size_t room(const struct asker *to, const struct dns_question *q)
{
	return to->conn ? (size_t)REPLY_MAX : q->udp_max;
}

static void reply_rcode(const struct asker *to, const struct dns_question *q, unsigned rcode)
{
	uint8_t buf[REPLY_MAX];

	send_reply(to, buf, dns_build_rcode(q, rcode, buf, room(to, q)));
}

static void refuse(const struct asker *to, const struct dns_question *q, const char *why)
{
	to->slot->count_names_refused++;
	audit_refused_name(to->slot, q->name, why, 0);
	reply_rcode(to, q, DNS_REFUSED);
}

/* Addresses found: without the closed ones, opened, told. */
static void reply_addrs(const struct asker *to, const struct dns_question *q,
                        const struct upstream_found *f)
{
	struct dns_answer a = *f->answer;
	uint8_t buf[REPLY_MAX];
	uint32_t closed = 0;
	size_t n = 0;

	for (size_t i = 0; i < a.n_addrs; i++) {
		if (net_closed(to->slot->net, a.addrs[i]))
			closed = a.addrs[i];
		else
			a.addrs[n++] = a.addrs[i];
	}
	a.n_addrs = n;
	if (closed && n == 0) {
		to->slot->count_names_refused++;
		audit_refused_name(to->slot, q->name, "rebind", closed);
		reply_rcode(to, q, DNS_REFUSED);
		return;
	}
	if (n && seen_add(to->slot, q->name, a.addrs, n, f->ttl_s) < 0) {
		reply_rcode(to, q, DNS_SERVFAIL);
		return;
	}
	n = dns_build_reply(q, &a, MIN(f->ttl_s, (uint32_t)TTL_TOLD_MAX_S), buf, room(to, q));
	send_reply(to, buf, n);
}

/* Something else than addresses: its answer section and nothing of the others. */
static void reply_other(const struct asker *to, const struct dns_question *q,
                        const struct upstream_found *f)
{
	uint8_t buf[REPLY_MAX];
	int n;

	if (f->answer->has_other_addrs) {
		refuse(to, q, "rebind");
		return;
	}
	n = dns_copy_answers(q, f->answer, f->raw, buf, room(to, q));
	if (n >= 0) {
		send_reply(to, buf, (size_t)n);
		return;
	}
	n = (int)dns_build_rcode(q, f->answer->rcode, buf, room(to, q));
	buf[2] |= 0x02; /* truncated: ask over TCP */
	send_reply(to, buf, (size_t)n);
}

static void reply_found(const struct asker *to, const struct dns_question *q,
                        const struct upstream_found *f)
{
	if (!f->answer)
		reply_rcode(to, q, DNS_SERVFAIL);
	else if (!policy_resolves(to->slot->policy, q->name))
		refuse(to, q, "name"); /* the policy changed meanwhile */
	else if (q->type == DNS_A)
		reply_addrs(to, q, f);
	else
		reply_other(to, q, f);
}

static void on_found(void *arg, const struct upstream_found *f)
{
	struct ask *a = arg;
	struct asker to = {.slot = a->slot, .conn = a->conn, .port = a->port};
	struct dns_question q = a->q;

	ask_free(a);
	reply_found(&to, &q, f);
}

static bool ends_with(const char *name, const char *tail)
{
	size_t n = strlen(name), t = strlen(tail);

	return n >= t && strcmp(name + n - t, tail) == 0;
}

/* Names that mean something only on a local network are not carried out of it, or in. */
static bool is_local(const char *name)
{
	static const char *const tails[] = {".local",     ".internal",    ".localhost", ".lan",
	                                    ".home.arpa", ".localdomain", ".onion"};

	if (!strchr(name, '.'))
		return true;
	for (size_t i = 0; i < ARRAY_LEN(tails); i++)
		if (ends_with(name, tails[i]))
			return true;
	return false;
}

/* 4.3.2.1.in-addr.arpa of a closed address: whose name that is, is no guest's business. */
static bool is_closed_ptr(const struct net *net, const char *name)
{
	unsigned a, b, c, d;
	int end = 0;

	if (ends_with(name, ".ip6.arpa"))
		return true;
	if (!ends_with(name, ".in-addr.arpa"))
		return false;
	if (sscanf(name, "%3u.%3u.%3u.%3u.in-addr.arpa%n", &d, &c, &b, &a, &end) != 4 ||
	    end != (int)strlen(name) || (a | b | c | d) > 255)
		return true;
	return net_closed(net, a << 24 | b << 16 | c << 8 | d);
}

/* Bits a question carries outside; what is asked often costs nothing, it is in the cache. */
static bool may_leave(struct net_slot *s, const struct dns_question *q)
{
	unsigned bits = dns_weight(q->name) + NAME_BITS_MORE;

	return bucket_take(&s->bits, loop_now_ms(s->net->loop), NAME_BITS_PER_S, NAME_BITS_BURST,
	                   bits);
}

/* Some of what is left, so that one guest's questions to servers that never answer cannot take it
 * all: with n such slots each has 1/(n + 4) of it, and so has the next one. */
static bool may_wait(const struct net_slot *s)
{
	return s->n_asks < ASKS_MAX && s->n_asks * 4 < upstream_left(s->net->up);
}

static void look_up(const struct asker *to, const struct dns_question *q)
{
	struct net_slot *s = to->slot;
	struct upstream_found f;
	struct ask *a;

	if (q->type == DNS_A && upstream_cached(s->net->up, q->name, q->type, &f)) {
		reply_found(to, q, &f);
		return;
	}
	if (!may_leave(s, q)) {
		s->count_names_limited++;
		refuse(to, q, "tunnel");
		return;
	}
	a = may_wait(s) ? calloc(1, sizeof(*a)) : NULL;
	if (!a) {
		reply_rcode(to, q, DNS_SERVFAIL);
		return;
	}
	*a = (struct ask){.slot = s, .conn = to->conn, .port = to->port, .q = *q};
	a->lookup = (struct upstream_lookup){.fn = on_found, .arg = a};
	a->next = s->asks;
	a->prev = &s->asks;
	if (a->next)
		a->next->prev = &a->next;
	s->asks = a;
	s->n_asks++;
	if (a->conn)
		a->conn->ask = a;
	if (upstream_ask(s->net->up, q->name, q->type, &a->lookup) < 0) {
		ask_free(a);
		reply_rcode(to, q, DNS_SERVFAIL);
	}
}

static void judge(const struct asker *to, const struct dns_question *q)
{
	struct net_slot *s = to->slot;
	unsigned per_s = s->net->config.names_per_s;

	s->count_names++;
	if (!bucket_take(&s->names, loop_now_ms(s->net->loop), per_s, 5ull * per_s, 1)) {
		s->count_names_limited++;
		refuse(to, q, "rate");
		return;
	}
	if (q->class != 1 || !policy_resolves(s->policy, q->name)) {
		refuse(to, q, "name");
		return;
	}
	if (is_local(q->name) || is_closed_ptr(s->net, q->name)) {
		reply_rcode(to, q, DNS_NXDOMAIN);
		return;
	}
	switch (q->type) {
	case DNS_AAAA: /* there is no way to reach one */
	case DNS_SVCB: /* and no keys to hide a server name with */
	case DNS_HTTPS:
		reply_rcode(to, q, DNS_NOERROR);
		return;
	case DNS_A:
	case DNS_NS:
	case DNS_CNAME:
	case DNS_SOA:
	case DNS_PTR:
	case DNS_MX:
	case DNS_TXT:
	case DNS_SRV:
	case DNS_CAA:
		look_up(to, q);
		return;
	default:
		reply_rcode(to, q, DNS_NOTIMP);
	}
}

/* One message; n bytes. */
static void on_question(const struct asker *to, const uint8_t *buf, size_t n)
{
	struct dns_question q;
	uint8_t out[DNS_HEADER];
	int r = dns_parse_query(buf, n, &q);

	if (r == -EBADMSG) {
		if (to->conn)
			conn_free(to->conn);
	} else if (r < 0) {
		send_reply(to, out, dns_build_error(buf, n, (unsigned)-r, out));
	} else {
		judge(to, &q);
	}
}

static void on_udp(void *arg, uint32_t events)
{
	struct net_slot *s = arg;

	for (int i = 0; i < PER_TURN; i++) {
		struct asker to = {.slot = s};
		uint8_t buf[QUESTION_MAX];
		struct sockaddr_in from;
		socklen_t sl = sizeof(from);
		ssize_t n = recvfrom(s->kit.dns_udp, buf, sizeof(buf), MSG_TRUNC,
		                     (struct sockaddr *)&from, &sl);

		if (n < 0 && errno == EAGAIN)
			return;
		/* Errors here are of earlier replies (no guest socket listened); too long ones are
		 * not questions. */
		if (n < 0 || (size_t)n > sizeof(buf))
			continue;
		to.port = ntohs(from.sin_port);
		on_question(&to, buf, (size_t)n);
	}
}

static void conn_free(struct dns_conn *c)
{
	struct net_slot *s = c->slot;

	if (c->ask)
		ask_free(c->ask);
	loop_io_del(s->net->loop, &c->io);
	loop_timer_clear(s->net->loop, &c->idle);
	close(c->fd);
	if (c->next)
		c->next->prev = c->prev;
	*c->prev = c->next;
	s->n_dns_conns--;
	free(c);
}

static void conn_listen(struct dns_conn *c)
{
	struct loop *l = c->slot->net->loop;

	c->n = 0;
	if (loop_io_set(l, &c->io, EPOLLIN) < 0 ||
	    loop_timer_set(l, &c->idle, loop_now_ms(l) + TCP_IDLE_MS) < 0)
		conn_free(c);
}

static void on_conn(void *arg, uint32_t events)
{
	struct dns_conn *c = arg;
	struct asker to = {.slot = c->slot, .conn = c};
	uint8_t buf[QUESTION_MAX];
	size_t want = c->n < 2 ? 2 : 2 + ((size_t)c->buf[0] << 8 | c->buf[1]);
	ssize_t n;

	if (c->ask || want > sizeof(c->buf)) {
		conn_free(c); /* went away while it waited, or says too much */
		return;
	}
	n = recv(c->fd, c->buf + c->n, want - c->n, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		conn_free(c);
		return;
	}
	c->n += (size_t)n;
	if (c->n < 2 || c->n < 2 + ((size_t)c->buf[0] << 8 | c->buf[1]))
		return;
	if (c->n == 2) {
		conn_free(c); /* a question of no bytes */
		return;
	}
	/* The next one waits until this one is answered. */
	if (loop_io_set(c->slot->net->loop, &c->io, 0) < 0) {
		conn_free(c);
		return;
	}
	want = c->n - 2;
	memcpy(buf, c->buf + 2, want);
	on_question(&to, buf, want);
}

static void on_idle(void *arg)
{
	conn_free(arg);
}

static void on_tcp(void *arg, uint32_t events)
{
	struct net_slot *s = arg;
	struct loop *l = s->net->loop;
	int fd = accept4(s->kit.dns_tcp, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct dns_conn *c;

	if (fd < 0)
		return;
	c = s->n_dns_conns < DNS_CONNS_MAX ? calloc(1, sizeof(*c)) : NULL;
	if (!c) {
		close(fd);
		return;
	}
	c->slot = s;
	c->fd = fd;
	c->io = (struct loop_io){.fn = on_conn, .arg = c};
	c->idle = (struct loop_timer){.fn = on_idle, .arg = c};
	c->next = s->dns_conns;
	c->prev = &s->dns_conns;
	if (c->next)
		c->next->prev = &c->next;
	s->dns_conns = c;
	s->n_dns_conns++;
	if (loop_io_add(l, &c->io, fd, EPOLLIN) < 0 ||
	    loop_timer_set(l, &c->idle, loop_now_ms(l) + TCP_IDLE_MS) < 0)
		conn_free(c);
}

int names_listen(struct net_slot *s)
{
	int r;

	s->udp_io = (struct loop_io){.fn = on_udp, .arg = s};
	s->tcp_io = (struct loop_io){.fn = on_tcp, .arg = s};
	r = loop_io_add(s->net->loop, &s->udp_io, s->kit.dns_udp, EPOLLIN);
	if (r == 0)
		r = loop_io_add(s->net->loop, &s->tcp_io, s->kit.dns_tcp, EPOLLIN);
	return r;
}

void names_stop(struct net_slot *s)
{
	loop_io_del(s->net->loop, &s->udp_io);
	loop_io_del(s->net->loop, &s->tcp_io);
	while (s->dns_conns)
		conn_free(s->dns_conns);
	while (s->asks)
		ask_free(s->asks);
}
