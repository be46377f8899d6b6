/*
 * Every allocation fails in turn (the linker puts ours in front, see meson.build): nothing is lost,
 * nothing half-made is returned. And the upstream side of the resolver against a name server on
 * loopback that says what the test wants.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "net/policy.h"
#include "net/range.h"
#include "net/upstream.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
char *__wrap_strdup(const char *s);

static int left; /* 0: none fails */
static bool fired;

static bool now(void)
{
	if (left == 0 || --left)
		return false;
	fired = true;
	return true;
}

void *__wrap_malloc(size_t n)
{
	return now() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return now() ? NULL : __real_calloc(n, size);
}

char *__wrap_strdup(const char *s)
{
	return now() ? NULL : __real_strdup(s);
}

static void arm(int nth)
{
	left = nth;
	fired = false;
}

static bool was_fired(void)
{
	left = 0;
	return fired;
}

static void a_policy_without_memory_is_none(void **state)
{
	const char *entries[] = {"a.example", "1.2.3.4", "*.b.example:80", "11.0.0.0/8"};

	for (int nth = 1;; nth++) {
		struct net_policy *p = NULL;
		struct err e = {0};
		int r;

		arm(nth);
		r = net_policy_new(NET_LIST, entries, ARRAY_LEN(entries), &p, &e);
		if (!was_fired()) {
			assert_int_equal(r, 0);
			assert_in_range(nth, 5, 10);
			net_policy_unref(p);
			break;
		}
		assert_int_equal(r, -ENOMEM);
		assert_null(p);
		assert_string_equal(e.kind, "no_memory");
	}
}

static void a_range_without_memory_is_none(void **state)
{
	for (int nth = 1;; nth++) {
		struct range *r = NULL;
		int ret;

		arm(nth);
		ret = range_new("10.0.0.0/24", &r);
		if (!was_fired()) {
			assert_int_equal(ret, 0);
			range_free(r);
			break;
		}
		assert_int_equal(ret, -ENOMEM);
		assert_null(r);
	}
}

/* A name server on loopback, in the same loop. */
struct fake {
	struct loop *loop;
	struct loop_io io;
	int fd;
	uint16_t port;
	unsigned asked;
	bool silent;
	bool forged; /* first with another id */
};

static void fake_answer(struct fake *f, const struct dns_question *q, uint16_t id, uint32_t addr,
                        const struct sockaddr_in *to)
{
	struct dns_question other = *q;
	struct dns_answer a = {.n_addrs = 1, .addrs = {addr}};
	uint8_t out[512];
	size_t n;

	other.id = id;
	other.edns = false;
	n = dns_build_reply(&other, &a, 60, out, sizeof(out));
	assert_int_equal(sendto(f->fd, out, n, 0, (const struct sockaddr *)to, sizeof(*to)), n);
}

static void on_fake(void *arg, uint32_t events)
{
	struct fake *f = arg;
	struct sockaddr_in from;
	socklen_t sl = sizeof(from);
	struct dns_question q;
	uint8_t buf[512];
	ssize_t n = recvfrom(f->fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &sl);

	assert_true(n > 0);
	assert_int_equal(dns_parse_query(buf, (size_t)n, &q), 0);
	f->asked++;
	if (f->silent)
		return;
	if (f->forged)
		fake_answer(f, &q, (uint16_t)(q.id + 1), 0x66666666, &from);
	fake_answer(f, &q, q.id, 0x0b010101, &from);
}

static void fake_open(struct fake *f, struct loop *l)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t sl = sizeof(sin);

	*f = (struct fake){.loop = l, .io = {.fn = on_fake, .arg = f}};
	f->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(f->fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	assert_int_equal(getsockname(f->fd, (struct sockaddr *)&sin, &sl), 0);
	f->port = ntohs(sin.sin_port);
	assert_int_equal(loop_io_add(l, &f->io, f->fd, EPOLLIN), 0);
}

struct waiter {
	struct upstream_lookup l;
	struct loop *loop;
	unsigned *left;
	uint32_t addr;
	bool told;
};

static void on_found(void *arg, const struct upstream_found *f)
{
	struct waiter *w = arg;

	assert_false(w->told);
	w->told = true;
	w->addr = f->answer && f->answer->n_addrs ? f->answer->addrs[0] : 0;
	if (--*w->left == 0)
		loop_stop(w->loop);
}

static void many_who_ask_the_same_are_one_question(void **state)
{
	struct upstream_server servers[2] = {{.addr = INADDR_LOOPBACK}, {.addr = INADDR_LOOPBACK}};
	struct upstream_found found;
	struct waiter w[5] = {0};
	struct upstream *u;
	struct fake f;
	struct loop *l;
	unsigned waiting = 4;

	assert_int_equal(loop_new(&l), 0);
	fake_open(&f, l);
	f.forged = true;
	/* Nobody listens at the first: that costs no time, the second is asked. */
	servers[0].port = 1;
	servers[1].port = f.port;
	assert_int_equal(upstream_new(l, servers, 2, &u), 0);
	assert_int_equal(upstream_cached(u, "a.example", DNS_A, &found), 0);
	for (int i = 0; i < 5; i++) {
		w[i] = (struct waiter){.l = {.fn = on_found, .arg = &w[i]},
		                       .loop = l,
		                       .left = &waiting};
		assert_int_equal(upstream_ask(u, "a.example", DNS_A, &w[i].l), 0);
	}
	upstream_cancel(&w[2].l);
	upstream_cancel(&w[2].l); /* idle is fine */
	assert_int_equal(loop_run(l), 0);
	assert_int_equal(f.asked, 1);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(w[i].told, i != 2);
		assert_int_equal(w[i].addr, i != 2 ? 0x0b010101 : 0); /* not what was forged */
	}
	assert_int_equal(upstream_cached(u, "a.example", DNS_A, &found), 1);
	assert_int_equal(found.answer->addrs[0], 0x0b010101);
	assert_int_equal(found.ttl_s, 60);
	assert_int_equal(upstream_entries(u), 1);
	upstream_free(u);
	loop_io_del(l, &f.io);
	close(f.fd);
	loop_free(l);
}

static void without_servers_everybody_is_told_so_but_not_from_within(void **state)
{
	struct waiter w = {0};
	struct upstream *u;
	struct loop *l;
	unsigned waiting = 1;

	assert_int_equal(loop_new(&l), 0);
	assert_int_equal(upstream_new(l, NULL, 0, &u), 0);
	w = (struct waiter){.l = {.fn = on_found, .arg = &w},
	                    .loop = l,
	                    .left = &waiting,
	                    .addr = 7};
	assert_int_equal(upstream_ask(u, "a.example", DNS_A, &w.l), 0);
	assert_false(w.told);
	assert_int_equal(loop_run(l), 0);
	assert_true(w.told);
	assert_int_equal(w.addr, 0);
	assert_int_equal(upstream_entries(u), 0);
	upstream_free(u);
	loop_free(l);
}

static void questions_under_way_are_bounded_and_end_with_it(void **state)
{
	static struct waiter w[UPSTREAM_QUERIES_MAX + 1];
	struct upstream_server server = {.addr = INADDR_LOOPBACK};
	struct upstream *u;
	struct fake f;
	struct loop *l;
	unsigned waiting = 1;
	char name[32];

	assert_int_equal(loop_new(&l), 0);
	fake_open(&f, l);
	f.silent = true;
	server.port = f.port;
	assert_int_equal(upstream_new(l, &server, 1, &u), 0);
	for (int i = 0; i <= UPSTREAM_QUERIES_MAX; i++) {
		snprintf(name, sizeof(name), "n%d.example", i);
		w[i] = (struct waiter){.l = {.fn = on_found, .arg = &w[i]},
		                       .loop = l,
		                       .left = &waiting};
		assert_int_equal(upstream_ask(u, name, DNS_A, &w[i].l),
		                 i < UPSTREAM_QUERIES_MAX ? 0 : -EAGAIN);
	}
	upstream_free(u); /* with all of them waiting */
	for (int i = 0; i <= UPSTREAM_QUERIES_MAX; i++) {
		assert_false(w[i].told);
		assert_null(w[i].l.prev);
	}
	loop_io_del(l, &f.io);
	close(f.fd);
	loop_free(l);
}

static void the_cache_is_bounded_and_forgets_the_oldest(void **state)
{
	struct upstream_server server = {.addr = INADDR_LOOPBACK};
	struct upstream_found found;
	struct upstream *u;
	struct fake f;
	struct loop *l;
	char name[32];

	assert_int_equal(loop_new(&l), 0);
	fake_open(&f, l);
	server.port = f.port;
	assert_int_equal(upstream_new(l, &server, 1, &u), 0);
	for (int i = 0; i < UPSTREAM_CACHE_MAX + 10; i++) {
		unsigned waiting = 1;
		struct waiter w = {.l = {.fn = on_found, .arg = &w}, .loop = l, .left = &waiting};

		snprintf(name, sizeof(name), "n%d.example", i);
		assert_int_equal(upstream_ask(u, name, DNS_A, &w.l), 0);
		assert_int_equal(loop_run(l), 0);
		/* The first is used all the time: it stays. */
		assert_int_equal(upstream_cached(u, "n0.example", DNS_A, &found), 1);
	}
	assert_int_equal(upstream_entries(u), UPSTREAM_CACHE_MAX);
	assert_int_equal(upstream_cached(u, "n1.example", DNS_A, &found), 0);
	assert_int_equal(upstream_cached(u, name, DNS_A, &found), 1);
	upstream_free(u);
	loop_io_del(l, &f.io);
	close(f.fd);
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_policy_without_memory_is_none),
	    cmocka_unit_test(a_range_without_memory_is_none),
	    cmocka_unit_test(many_who_ask_the_same_are_one_question),
	    cmocka_unit_test(without_servers_everybody_is_told_so_but_not_from_within),
	    cmocka_unit_test(questions_under_way_are_bounded_and_end_with_it),
	    cmocka_unit_test(the_cache_is_bounded_and_forgets_the_oldest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
