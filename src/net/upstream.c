#include "net/upstream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/dict.h"
#include "base/loop.h"
#include "base/macro.h"
#include "net/dns.h"

enum {
	KEY_MAX = DNS_NAME_MAX + 8,
	QUERY_BYTES = DNS_HEADER + DNS_WIRE_NAME_MAX + 4 + 11,
	BAD_MAX = 16, /* messages that do not fit the question, per try: an attacker guesses */
};

/* An answer we keep: the struct without the room it does not use would be smaller, but it is
 * simple. */
struct upstream_entry {
	char key[KEY_MAX];
	uint64_t until_ms;
	struct dns_answer answer;
	struct upstream_entry *newer, *older;
};

struct query {
	struct upstream *up;
	char key[KEY_MAX];
	char asking[DNS_NAME_MAX + 1]; /* the name on the wire now: a CNAME's target, maybe */
	uint16_t type, id;
	struct dns_answer found; /* what the earlier steps of a chain said */
	struct upstream_lookup *waiters;
	unsigned tries, bad;
	bool tcp;
	int fd;
	struct loop_io io;
	struct loop_timer timer;
	uint8_t *in; /* over TCP: length and message, as far as it came */
	size_t n_in;
	struct query *next, **prev;
};

struct upstream {
	struct loop *loop;
	size_t n_servers;
	struct upstream_server servers[8];
	struct dict *cache, *pending;
	struct upstream_entry *newest, *oldest;
	unsigned queries;
	struct query *all;
	uint8_t buf[DNS_MESSAGE_MAX];
};

static void query_try(struct query *q);

int upstream_new(struct loop *l, const struct upstream_server *servers, size_t n,
                 struct upstream **ret)
{
	struct upstream *u = calloc(1, sizeof(*u));
	int r;

	if (!u)
		return -ENOMEM;
	u->loop = l;
	u->n_servers = MIN(n, ARRAY_LEN(u->servers));
	for (size_t i = 0; i < u->n_servers; i++)
		u->servers[i] = servers[i];
	r = dict_new(&u->cache);
	if (r == 0)
		r = dict_new(&u->pending);
	if (r < 0) {
		upstream_free(u);
		return r;
	}
	*ret = u;
	return 0;
}

static void entry_unlink(struct upstream *u, struct upstream_entry *e)
{
	*(e->newer ? &e->newer->older : &u->newest) = e->older;
	*(e->older ? &e->older->newer : &u->oldest) = e->newer;
}

static void entry_first(struct upstream *u, struct upstream_entry *e)
{
	e->newer = NULL;
	e->older = u->newest;
	*(u->newest ? &u->newest->newer : &u->oldest) = e;
	u->newest = e;
}

static void entry_free(struct upstream *u, struct upstream_entry *e)
{
	dict_del(u->cache, e->key);
	entry_unlink(u, e);
	free(e);
}

static void query_hang_up(struct query *q)
{
	loop_io_del(q->up->loop, &q->io);
	if (q->fd >= 0)
		close(q->fd);
	q->fd = -1;
	free(q->in);
	q->in = NULL;
	q->n_in = 0;
}

static void query_free(struct query *q)
{
	while (q->waiters)
		upstream_cancel(q->waiters);
	query_hang_up(q);
	loop_timer_clear(q->up->loop, &q->timer);
	dict_del(q->up->pending, q->key);
	q->up->queries--;
	if (q->next)
		q->next->prev = q->prev;
	*q->prev = q->next;
	free(q);
}

void upstream_free(struct upstream *u)
{
	if (!u)
		return;
	while (u->all)
		query_free(u->all);
	while (u->newest)
		entry_free(u, u->newest);
	dict_free(u->cache);
	dict_free(u->pending);
	free(u);
}

static void make_key(const char *name, uint16_t type, char ret[KEY_MAX])
{
	snprintf(ret, KEY_MAX, "%u %s", type, name);
}

int upstream_cached(struct upstream *u, const char *name, uint16_t type, struct upstream_found *ret)
{
	uint64_t now = loop_now_ms(u->loop);
	char key[KEY_MAX];
	struct upstream_entry *e;

	make_key(name, type, key);
	e = dict_get(u->cache, key);
	if (!e)
		return 0;
	if (e->until_ms <= now) {
		entry_free(u, e);
		return 0;
	}
	entry_unlink(u, e);
	entry_first(u, e);
	*ret = (struct upstream_found){.answer = &e->answer,
	                               .ttl_s = (uint32_t)((e->until_ms - now + 999) / 1000)};
	return 1;
}

/* Not kept when there is no memory: then it is asked again. */
static void keep(struct upstream *u, const char *key, const struct dns_answer *a, uint32_t ttl_s)
{
	struct upstream_entry *e = dict_get(u->cache, key);

	if (e)
		entry_free(u, e);
	while (dict_count(u->cache) >= UPSTREAM_CACHE_MAX)
		entry_free(u, u->oldest);
	e = malloc(sizeof(*e));
	if (!e)
		return;
	memcpy(e->key, key, sizeof(e->key));
	e->answer = *a;
	e->until_ms = loop_now_ms(u->loop) + ttl_s * 1000ull;
	if (dict_put(u->cache, e->key, e) < 0) {
		free(e);
		return;
	}
	entry_first(u, e);
}

/* Tells all callers that wait, and ends. */
static void query_done(struct query *q, const struct upstream_found *f)
{
	query_hang_up(q);
	/* A caller that asks again from within its callback gets a new question. */
	dict_del(q->up->pending, q->key);
	q->key[0] = '\0';
	while (q->waiters) {
		struct upstream_lookup *l = q->waiters;

		upstream_cancel(l);
		l->fn(l->arg, f);
	}
	query_free(q);
}

static void query_failed(struct query *q)
{
	query_done(q, &(struct upstream_found){0});
}

/* Puts what this step found behind the earlier ones. True: another step is needed. */
static bool query_more(struct query *q, const struct dns_answer *a)
{
	struct dns_answer *f = &q->found;

	if (f->n_chain + a->n_chain > DNS_CHAIN_MAX) {
		f->rcode = DNS_SERVFAIL;
		f->n_chain = 0;
		return false;
	}
	memcpy(f->chain[f->n_chain], a->chain[0], a->n_chain * sizeof(a->chain[0]));
	f->n_chain += a->n_chain;
	f->ttl_s = MIN(f->ttl_s, a->ttl_s);
	f->rcode = a->rcode;
	f->n_addrs = a->n_addrs;
	memcpy(f->addrs, a->addrs, sizeof(a->addrs));
	if (a->n_addrs || a->rcode != DNS_NOERROR || a->n_chain == 0)
		return false;
	/* It stops at a name without addresses; that may be all there is, or all that server cares
	 * to say. */
	memcpy(q->asking, f->chain[f->n_chain - 1], sizeof(q->asking));
	return true;
}

static void query_answered(struct query *q, const struct dns_answer *a, const uint8_t *raw)
{
	struct upstream_found found = {.answer = a, .raw = raw};

	if (a->rcode != DNS_NOERROR && a->rcode != DNS_NXDOMAIN) {
		query_try(q); /* perhaps another server knows */
		return;
	}
	if (q->type == DNS_A) {
		if (query_more(q, a)) {
			q->tries = 0;
			q->tcp = false;
			query_try(q);
			return;
		}
		found.answer = &q->found;
		found.ttl_s = q->found.n_addrs ? MIN(q->found.ttl_s, (uint32_t)UPSTREAM_TTL_MAX_S)
		                               : UPSTREAM_TTL_NONE_S;
		if (found.ttl_s && q->found.rcode != DNS_SERVFAIL)
			keep(q->up, q->key, &q->found, found.ttl_s);
	}
	query_done(q, &found);
}

/* One whole message. False: not for us, wait on. */
static bool query_message(struct query *q, const uint8_t *buf, size_t n)
{
	struct dns_answer a;
	int r = dns_parse_answer(buf, n, q->id, q->asking, q->type, &a);

	if (r == -EBADMSG)
		return false;
	if (r < 0) {
		query_try(q);
	} else if (a.truncated && !q->tcp) {
		q->tcp = true;
		q->tries--; /* the same server again */
		query_try(q);
	} else {
		query_answered(q, &a, buf);
	}
	return true;
}

static void query_udp(struct query *q)
{
	struct upstream *u = q->up;
	ssize_t n;

	for (;;) {
		n = recv(q->fd, u->buf, sizeof(u->buf), MSG_TRUNC);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			query_try(q); /* no server is there */
			return;
		}
		if ((size_t)n <= sizeof(u->buf) && query_message(q, u->buf, (size_t)n))
			return;
		if (++q->bad > BAD_MAX) {
			query_try(q);
			return;
		}
	}
}

static void query_tcp(struct query *q, uint32_t events)
{
	uint8_t out[2 + QUERY_BYTES];
	size_t len, want;
	ssize_t n;

	if (!q->in) {
		int error = 0;
		socklen_t sl = sizeof(error);

		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		q->in = malloc(2 + DNS_MESSAGE_MAX);
		len = dns_build_query(q->id, q->asking, q->type, out + 2);
		out[0] = (uint8_t)(len >> 8);
		out[1] = (uint8_t)len;
		if (!q->in || getsockopt(q->fd, SOL_SOCKET, SO_ERROR, &error, &sl) < 0 || error ||
		    send(q->fd, out, len + 2, MSG_NOSIGNAL) != (ssize_t)len + 2 ||
		    loop_io_set(q->up->loop, &q->io, EPOLLIN) < 0)
			query_try(q);
		return;
	}
	want = q->n_in < 2 ? 2 : 2 + ((size_t)q->in[0] << 8 | q->in[1]);
	if (want > 2 + DNS_MESSAGE_MAX) {
		query_try(q);
		return;
	}
	n = recv(q->fd, q->in + q->n_in, want - q->n_in, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		query_try(q);
		return;
	}
	q->n_in += (size_t)n;
	if (q->n_in < 2 + DNS_HEADER || q->n_in < 2 + ((size_t)q->in[0] << 8 | q->in[1]))
		return;
	/* The buffer goes with the connection, so the message moves out of it. */
	len = q->n_in - 2;
	memcpy(q->up->buf, q->in + 2, len);
	if (!query_message(q, q->up->buf, len))
		query_try(q);
}

static void on_io(void *arg, uint32_t events)
{
	struct query *q = arg;

	if (q->tcp)
		query_tcp(q, events);
	else
		query_udp(q);
}

static void on_late(void *arg)
{
	query_try(arg);
}

static int query_send(struct query *q, const struct upstream_server *s)
{
	struct sockaddr_in sin = {.sin_family = AF_INET,
	                          .sin_port = htons(s->port),
	                          .sin_addr.s_addr = htonl(s->addr)};
	uint8_t out[QUERY_BYTES];
	size_t n;
	int r;

	if (getrandom(&q->id, sizeof(q->id), 0) != sizeof(q->id))
		return -EIO;
	q->fd =
	    socket(AF_INET, (q->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (q->fd < 0)
		return -errno;
	if (connect(q->fd, (struct sockaddr *)&sin, sizeof(sin)) < 0 && errno != EINPROGRESS)
		return -errno;
	if (!q->tcp) {
		n = dns_build_query(q->id, q->asking, q->type, out);
		if (send(q->fd, out, n, 0) < 0)
			return -errno;
	}
	r = loop_io_add(q->up->loop, &q->io, q->fd, q->tcp ? EPOLLOUT : EPOLLIN);
	if (r < 0)
		return r;
	return loop_timer_set(q->up->loop, &q->timer, loop_now_ms(q->up->loop) + UPSTREAM_TRY_MS);
}

/* The next server, or the end. */
static void query_try(struct query *q)
{
	struct upstream *u = q->up;

	while (u->n_servers && q->tries < UPSTREAM_TRIES) {
		query_hang_up(q);
		q->bad = 0;
		if (query_send(q, &u->servers[q->tries++ % u->n_servers]) == 0)
			return;
	}
	query_failed(q);
}

/* The first try is made from the loop, so that a failure is never told from within
 * upstream_ask(). */
static void on_begin(void *arg)
{
	struct query *q = arg;

	q->timer.fn = on_late;
	query_try(q);
}

static struct query *query_new(struct upstream *u, const char *name, uint16_t type, const char *key)
{
	struct query *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->up = u;
	q->fd = -1;
	q->type = type;
	q->found.ttl_s = UINT32_MAX;
	q->io = (struct loop_io){.fn = on_io, .arg = q};
	q->timer = (struct loop_timer){.fn = on_begin, .arg = q};
	snprintf(q->key, sizeof(q->key), "%s", key);
	snprintf(q->asking, sizeof(q->asking), "%s", name);
	if (dict_put(u->pending, q->key, q) < 0) {
		free(q);
		return NULL;
	}
	u->queries++;
	q->next = u->all;
	q->prev = &u->all;
	if (q->next)
		q->next->prev = &q->next;
	u->all = q;
	/* Sent at once when that can be; only what fails at once has to wait for the next round. */
	if (u->n_servers && query_send(q, &u->servers[0]) == 0) {
		q->tries = 1;
		q->timer.fn = on_late;
	} else if (loop_timer_set(u->loop, &q->timer, loop_now_ms(u->loop)) < 0) {
		query_free(q);
		return NULL;
	}
	return q;
}

int upstream_ask(struct upstream *u, const char *name, uint16_t type, struct upstream_lookup *l)
{
	char key[KEY_MAX];
	struct query *q;

	make_key(name, type, key);
	q = dict_get(u->pending, key);
	if (!q) {
		if (u->queries >= UPSTREAM_QUERIES_MAX)
			return -EAGAIN;
		q = query_new(u, name, type, key);
		if (!q)
			return -ENOMEM;
	}
	l->next = q->waiters;
	l->prev = &q->waiters;
	if (l->next)
		l->next->prev = &l->next;
	q->waiters = l;
	return 0;
}

void upstream_cancel(struct upstream_lookup *l)
{
	if (!l->prev)
		return;
	if (l->next)
		l->next->prev = l->prev;
	*l->prev = l->next;
	l->next = NULL;
	l->prev = NULL;
}

unsigned upstream_left(const struct upstream *u)
{
	return UPSTREAM_QUERIES_MAX - u->queries;
}

unsigned upstream_entries(const struct upstream *u)
{
	return (unsigned)dict_count(u->cache);
}
