#include "http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/account.h"
#include "base/err.h"
#include "base/loop.h"
#include "http/address.h"
#include "http/server_internal.h"

enum {
	ACCEPT_BATCH = 64,
	RETRY_MS = 100, /* no connection is accepted so long when the system has nothing left */
};

/* ---- addresses ---- */

static struct addr **addr_bucket(struct http_server *s, const uint8_t key[ADDRESS])
{
	uint32_t h = 2166136261u;

	for (int i = 0; i < ADDRESS; i++)
		h = (h ^ key[i]) * 16777619u;
	return &s->addrs[h % ADDR_BUCKETS];
}

/* Whose it is. -EBUSY: they have as many as they may. */
static int addr_take(struct http_server *s, const struct sockaddr_storage *sa, struct addr **ret)
{
	uint8_t key[ADDRESS] = {0};
	bool has = address_of(sa, key), counted = has && !address_in(key, s->proxies, s->nproxies);
	struct addr **bucket, *a;

	if (has)
		address_group(key);
	bucket = addr_bucket(s, key);
	for (a = *bucket; a && (memcmp(a->key, key, ADDRESS) != 0 || a->counted != counted);)
		a = a->next;
	if (!a) {
		a = calloc(1, sizeof(*a));
		if (!a)
			return -ENOMEM;
		memcpy(a->key, key, ADDRESS);
		a->counted = counted;
		a->idle_tail = &a->idle;
		a->next = *bucket;
		*bucket = a;
	}
	a->refs++;
	*ret = a;
	if (counted && s->conf.conns_per_addr_max && a->conns == s->conf.conns_per_addr_max)
		return -EBUSY;
	return 0;
}

static void addr_put(struct http_server *s, struct addr *a)
{
	struct addr **p;

	if (--a->refs)
		return;
	for (p = addr_bucket(s, a->key); *p != a; p = &(*p)->next)
		;
	*p = a->next;
	free(a);
}

static void peer_name(const struct sockaddr_storage *sa, char *ret, size_t n)
{
	const struct in6_addr *a = &((const struct sockaddr_in6 *)sa)->sin6_addr;
	const void *v4 = &((const struct sockaddr_in *)sa)->sin_addr;

	if (sa->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(a))
		v4 = a->s6_addr + 12;
	else if (sa->ss_family == AF_INET6 && inet_ntop(AF_INET6, a, ret, (socklen_t)n))
		return;
	else if (sa->ss_family != AF_INET) {
		snprintf(ret, n, "unix");
		return;
	}
	inet_ntop(AF_INET, v4, ret, (socklen_t)n);
}

/* ---- turns ---- */

void server_wait_turn(struct http_conn *c)
{
	struct http_server *s = c->s;

	if (c->turn_prev)
		return;
	s->stats.waited++;
	c->turn_next = NULL;
	c->turn_prev = s->turns_tail;
	*s->turns_tail = c;
	s->turns_tail = &c->turn_next;
	loop_defer(s->loop, &s->turn);
}

void server_leave_turns(struct http_conn *c)
{
	if (!c->turn_prev)
		return;
	*c->turn_prev = c->turn_next;
	if (c->turn_next)
		c->turn_next->turn_prev = c->turn_prev;
	else
		c->s->turns_tail = c->turn_prev;
	c->turn_prev = NULL;
}

static void on_turn(void *arg)
{
	struct http_server *s = arg;

	for (int i = 0; i < SERVER_TURN && s->turns; i++) {
		struct http_conn *c = s->turns;

		server_leave_turns(c);
		conn_run(c); /* it may wait again, behind all others */
	}
	if (s->turns)
		loop_defer(s->loop, &s->turn);
}

/* ---- accepting ---- */

void server_idle(struct http_conn *c)
{
	struct addr *a = c->addr;

	if (c->idle_prev)
		return;
	c->idle_next = NULL;
	c->idle_prev = a->idle_tail;
	*a->idle_tail = c;
	a->idle_tail = &c->idle_next;
}

bool server_cut_largest(struct http_server *s, size_t than)
{
	struct http_conn *most = NULL;

	for (struct http_conn *c = s->conns; c; c = c->next)
		if (!c->dead && c->charged > than) {
			most = c;
			than = c->charged;
		}
	if (!most)
		return false;
	s->stats.cut++;
	account_give(most->account, most->charged); /* it is freed at the end of the round */
	most->charged = 0;
	most->dead = most->reset = true;
	conn_kick(most);
	return true;
}

void server_busy(struct http_conn *c)
{
	if (!c->idle_prev)
		return;
	*c->idle_prev = c->idle_next;
	if (c->idle_next)
		c->idle_next->idle_prev = c->idle_prev;
	else
		c->addr->idle_tail = c->idle_prev;
	c->idle_prev = NULL;
}

/* All places are taken: whoever has most of them gives one that it does not use. */
static bool make_place(struct http_server *s)
{
	struct addr *most = NULL;

	for (size_t i = 0; i < ADDR_BUCKETS; i++)
		for (struct addr *a = s->addrs[i]; a; a = a->next)
			if (a->idle && (!most || a->conns > most->conns))
				most = a;
	if (!most)
		return false;
	s->stats.closed_idle++;
	conn_kill(most->idle);
	return true;
}

static void refuse(struct http_conn *c, bool full)
{
	c->refused = true;
	c->s->refused++;
	server_busy(c);
	conn_refuse(c, 503, "too_many_connections",
	            full ? "this server has as many connections as it takes; try again later"
	                 : "too many connections from your address; close some");
	conn_run(c);
}

static void take_conn(struct http_server *s, int fd, const struct sockaddr_storage *sa)
{
	char peer[INET6_ADDRSTRLEN];
	struct http_conn *c;
	struct addr *a = NULL;
	int r = addr_take(s, sa, &a);
	bool full = r == 0 && s->n - s->refused >= s->conf.conns_max && !make_place(s);
	bool no = r == -EBUSY || full;

	if (r == -ENOMEM) {
		close(fd);
		return;
	}
	s->stats.refused += no;
	if (sa->ss_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	peer_name(sa, peer, sizeof(peer));
	if ((no && s->refused >= REFUSED_MAX) || conn_new(s, fd, peer, a, &c) < 0) {
		addr_put(s, a);
		close(fd);
		return;
	}
	if (no)
		refuse(c, full);
	else
		a->conns++;
}

static void listeners_watch(struct http_server *s, uint32_t events)
{
	for (struct listener *l = s->listeners; l; l = l->next)
		loop_io_set(s->loop, &l->io, events);
}

static void on_retry(void *arg)
{
	listeners_watch(arg, EPOLLIN);
}

/*
 * No fds left: a client that waits in the backlog would wake us for ever. With the spare one they
 * are taken and closed, so that they know.
 */
static void out_of_fds(struct http_server *s, int listener)
{
	int fd;

	if (s->spare_fd >= 0) {
		close(s->spare_fd);
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			close(fd);
		s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	if (s->spare_fd >= 0)
		return;
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	listeners_watch(s, 0);
	loop_timer_set(s->loop, &s->retry, loop_now_ms(s->loop) + RETRY_MS);
}

static void on_accept(void *arg, uint32_t events)
{
	struct listener *l = arg;
	struct http_server *s = l->s;

	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage sa = {.ss_family = AF_UNIX};
		socklen_t n = sizeof(sa);
		int fd =
		    accept4(l->io.fd, (struct sockaddr *)&sa, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			take_conn(s, fd, &sa);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE) {
			out_of_fds(s, l->io.fd);
		} else if (errno == ENOMEM || errno == ENOBUFS) {
			listeners_watch(s, 0);
			loop_timer_set(s->loop, &s->retry, loop_now_ms(s->loop) + RETRY_MS);
		} else if (errno == EINTR || errno == ECONNABORTED) {
			continue;
		}
		return;
	}
}

/* ---- life ---- */

int http_server_new(struct loop *l, const struct http_config *c, struct http_server **ret,
                    struct err *e)
{
	struct http_server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return err_set(e, ENOMEM, "no_memory", "no memory for the HTTP server");
	s->loop = l;
	s->conf = *c;
	s->conf.conns_max = c->conns_max ? c->conns_max : 4096;
	s->conf.head_ms = c->head_ms ? c->head_ms : 10000;
	s->conf.idle_ms = c->idle_ms ? c->idle_ms : 75000;
	s->conf.body_min_rate = c->body_min_rate ? c->body_min_rate : 256;
	s->conf.stall_ms = c->stall_ms ? c->stall_ms : 30000;
	s->turns_tail = &s->turns;
	s->turn = (struct loop_defer){.fn = on_turn, .arg = s};
	s->retry = (struct loop_timer){.fn = on_retry, .arg = s};
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	r = transport_config(s, e);
	s->conf.tls_cert = s->conf.tls_key = NULL; /* the caller's; they are read */
	if (r == 0 && c->proxies)
		r = address_ranges_parse(c->proxies, s->proxies, &s->nproxies, e);
	s->conf.proxies = NULL;
	s->addrs = calloc(ADDR_BUCKETS, sizeof(struct addr *));
	if (r == 0 && !s->addrs)
		r = err_set(e, ENOMEM, "no_memory", "no memory for the HTTP server");
	if (r < 0) {
		http_server_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

int http_server_listen(struct http_server *s, int fd)
{
	struct listener *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->s = s;
	l->io = (struct loop_io){.fn = on_accept, .arg = l};
	r = loop_io_add(s->loop, &l->io, fd, EPOLLIN);
	if (r < 0) {
		free(l);
		return r;
	}
	l->next = s->listeners;
	s->listeners = l;
	return 0;
}

static void close_listeners(struct http_server *s)
{
	loop_timer_clear(s->loop, &s->retry);
	while (s->listeners) {
		struct listener *l = s->listeners;

		s->listeners = l->next;
		loop_io_del(s->loop, &l->io);
		close(l->io.fd);
		free(l);
	}
}

static void on_drained(void *arg)
{
	struct http_server *s = arg;

	s->drained(s->drained_arg);
}

void server_conn_gone(struct http_server *s, struct addr *a, bool refused)
{
	a->conns -= !refused;
	addr_put(s, a);
	s->refused -= refused;
	if (s->draining && !s->n && s->drained)
		loop_defer(s->loop, &s->drained_call);
}

void http_server_drain(struct http_server *s, void (*done)(void *arg), void *arg)
{
	struct http_conn *next;

	s->draining = true;
	s->drained = done;
	s->drained_arg = arg;
	s->drained_call = (struct loop_defer){.fn = on_drained, .arg = s};
	close_listeners(s);
	for (struct http_conn *c = s->conns; c; c = next) {
		next = c->next;
		if (c->state != CONN_HEAD)
			continue;
		if (c->running)
			c->dead = true;
		else
			conn_kill(c);
	}
	if (!s->n)
		loop_defer(s->loop, &s->drained_call);
}

void http_server_free(struct http_server *s)
{
	if (!s)
		return;
	s->drained = NULL;
	close_listeners(s);
	while (s->conns)
		conn_kill(s->conns);
	loop_defer_cancel(s->loop, &s->drained_call);
	loop_defer_cancel(s->loop, &s->turn);
	SSL_CTX_free(s->tls);
	if (s->spare_fd >= 0)
		close(s->spare_fd);
	free(s->addrs);
	free(s->spare);
	free(s);
}

unsigned http_server_conns(const struct http_server *s)
{
	return s->n;
}

void server_refusal(struct http_server *s, const struct http_req *r, const char *code,
                    const char *text, char body[HTTP_REFUSAL_MAX], char lines[HTTP_REFUSAL_MAX])
{
	*lines = 0;
	if (s->conf.refusal)
		s->conf.refusal(s->conf.arg, r, code, text, body, lines);
	else
		snprintf(body, HTTP_REFUSAL_MAX, "{\"error\":\"%s\",\"code\":\"%s\"}\n", text,
		         code);
}

const char *server_date(struct http_server *s)
{
	time_t now = time(NULL);
	struct tm tm;

	if (now != s->date_s && gmtime_r(&now, &tm)) {
		/* Not strftime: the names of days and months must not depend on a locale. */
		static const char days[] = "SunMonTueWedThuFriSat";
		static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

		snprintf(s->date, sizeof(s->date), "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT",
		         days + 3 * tm.tm_wday, (unsigned)tm.tm_mday % 100, months + 3 * tm.tm_mon,
		         (unsigned)(tm.tm_year + 1900) % 10000, (unsigned)tm.tm_hour % 100,
		         (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
		s->date_s = now;
	}
	return s->date;
}
