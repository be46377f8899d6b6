/*
 * base/loop.h: fds, times and posts, also when they are removed from inside callbacks.
 */
#include <errno.h>
#include <pthread.h>
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

#include "base/loop.h"

static struct loop *loop;

static int setup(void **state)
{
	return loop_new(&loop);
}

static int teardown(void **state)
{
	loop_free(loop);
	return 0;
}

static void stop(void *arg)
{
	loop_stop(loop);
}

/* ---- fds ---- */

struct end {
	struct loop_io io;
	int fd, peer;
	unsigned calls;
	struct end *other; /* is removed when this one is called */
};

static void on_io(void *arg, uint32_t events)
{
	struct end *e = arg;

	assert_true(events & EPOLLIN);
	e->calls++;
	if (e->other) {
		loop_io_del(loop, &e->other->io);
		loop_io_del(loop, &e->io);
		loop_stop(loop);
	}
}

static void end_init(struct end *e)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	*e = (struct end){.fd = fd[0], .peer = fd[1], .io = {.fn = on_io, .arg = e}};
	assert_int_equal(loop_io_add(loop, &e->io, e->fd, EPOLLIN), 0);
}

static void end_fini(struct end *e)
{
	loop_io_del(loop, &e->io);
	close(e->fd);
	close(e->peer);
}

/* Both are ready in the same round; whoever is first removes both. */
static void a_removed_fd_is_not_called_even_in_the_same_round(void **state)
{
	struct end a, b;

	end_init(&a);
	end_init(&b);
	a.other = &b;
	b.other = &a;
	assert_int_equal(write(a.peer, "x", 1), 1);
	assert_int_equal(write(b.peer, "x", 1), 1);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls + b.calls, 1);
	end_fini(&a);
	end_fini(&b);
}

static void events_can_be_masked_and_come_back(void **state)
{
	struct end a;

	end_init(&a);
	assert_int_equal(write(a.peer, "x", 1), 1);
	assert_int_equal(loop_io_set(loop, &a.io, 0), 0);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls, 0);
	assert_int_equal(loop_io_set(loop, &a.io, EPOLLIN), 0);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls, 1);
	end_fini(&a);
}

/* ---- times ---- */

enum { TIMERS = 500 };

struct alarm {
	struct loop_timer t;
	uint64_t want_ms;
};

static struct alarm alarms[TIMERS];
static unsigned rung;
static uint64_t last_ms;

static void on_alarm(void *arg)
{
	struct alarm *a = arg;

	assert_true(loop_now_ms(loop) >= a->want_ms);
	assert_true(a->want_ms >= last_ms); /* in order */
	assert_int_equal(a->t.slot, 0);
	last_ms = a->want_ms;
	rung++;
}

static void timers_ring_in_order_and_only_when_set(void **state)
{
	struct loop_timer end = {.fn = stop};
	uint64_t now = loop_now_ms(loop);
	unsigned set = 0, seed = 1;

	rung = 0;
	last_ms = 0;
	memset(alarms, 0, sizeof(alarms));
	for (int i = 0; i < TIMERS; i++)
		alarms[i].t = (struct loop_timer){.fn = on_alarm, .arg = &alarms[i]};
	/* Set, move and clear at random. */
	for (int i = 0; i < 10 * TIMERS; i++) {
		struct alarm *a = &alarms[(seed = seed * 1103515245 + 12345) / 65536 % TIMERS];

		if (seed / 131072 % 4 == 0) {
			loop_timer_clear(loop, &a->t);
			assert_int_equal(a->t.slot, 0);
			continue;
		}
		a->want_ms = now + seed / 65536 % 20;
		assert_int_equal(loop_timer_set(loop, &a->t, a->want_ms), 0);
	}
	for (int i = 0; i < TIMERS; i++)
		set += alarms[i].t.slot != 0;
	assert_int_equal(loop_timer_set(loop, &end, now + 25), 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(rung, set);
	assert_true(set > TIMERS / 2);
}

static struct loop_timer pair[2];

static void clear_the_other(void *arg)
{
	rung++;
	loop_timer_clear(loop, arg);
	loop_post(loop, stop, NULL);
}

static void a_cleared_timer_does_not_ring_even_when_due(void **state)
{
	rung = 0;
	for (int i = 0; i < 2; i++) {
		pair[i] = (struct loop_timer){.fn = clear_the_other, .arg = &pair[1 - i]};
		assert_int_equal(loop_timer_set(loop, &pair[i], 1), 0); /* long ago */
	}
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(rung, 1);
}

static struct loop_timer eager;

static void again(void *arg)
{
	rung++;
	loop_timer_set(loop, &eager, 0);
}

static void a_timer_that_sets_itself_for_the_past_does_not_starve_others(void **state)
{
	struct end a;

	end_init(&a);
	a.other = &a;
	eager = (struct loop_timer){.fn = again};
	rung = 0;
	loop_timer_set(loop, &eager, 0);
	assert_int_equal(write(a.peer, "x", 1), 1);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(a.calls, 1);
	loop_timer_clear(loop, &eager);
	end_fini(&a);
}

/* ---- the end of a round ---- */

static char order[64];

static void note(void *arg)
{
	size_t n = strlen(order);

	order[n] = *(const char *)arg;
	order[n + 1] = 0;
}

static struct loop_defer first, second;

static void note_and_defer(void *arg)
{
	note(arg);
	loop_defer(loop, &first);
	loop_defer(loop, &second);
	loop_defer(loop, &first); /* once is enough */
}

static void deferred_calls_come_last_and_once(void **state)
{
	first = (struct loop_defer){.fn = note, .arg = "1"};
	second = (struct loop_defer){.fn = note, .arg = "2"};
	order[0] = 0;
	loop_post(loop, note_and_defer, "a");
	loop_post(loop, note, "b");
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_string_equal(order, "ab12");
	loop_defer(loop, &first);
	loop_defer(loop, &second);
	loop_defer_cancel(loop, &first);
	loop_defer_cancel(loop, &first);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_string_equal(order, "ab122");
}

/* ---- posts ---- */

enum { POSTS = 20000, THREADS = 3 };

static unsigned seen[THREADS];

static void on_post(void *arg)
{
	unsigned v = (unsigned)(uintptr_t)arg, thread = v / POSTS;

	assert_int_equal(v % POSTS, seen[thread]); /* in each thread's order */
	if (++seen[thread] == POSTS && seen[0] + seen[1] + seen[2] == THREADS * POSTS)
		loop_stop(loop);
}

static void *poster(void *arg)
{
	for (uintptr_t i = 0; i < POSTS; i++)
		if (loop_post(loop, on_post, (void *)((uintptr_t)arg * POSTS + i)) < 0)
			abort();
	return NULL;
}

static void posts_from_threads_all_arrive_in_order(void **state)
{
	pthread_t t[THREADS];

	memset(seen, 0, sizeof(seen));
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, poster, (void *)i), 0);
	assert_int_equal(loop_run(loop), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(seen[i], POSTS);
	}
}

static void a_stop_before_the_run_counts(void **state)
{
	loop_stop(loop);
	assert_int_equal(loop_run(loop), 0);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	loop_post(loop, note, "never"); /* freed with the loop */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_removed_fd_is_not_called_even_in_the_same_round,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(events_can_be_masked_and_come_back, setup, teardown),
	    cmocka_unit_test_setup_teardown(timers_ring_in_order_and_only_when_set, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_cleared_timer_does_not_ring_even_when_due, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(
		a_timer_that_sets_itself_for_the_past_does_not_starve_others, setup, teardown),
	    cmocka_unit_test_setup_teardown(deferred_calls_come_last_and_once, setup, teardown),
	    cmocka_unit_test_setup_teardown(posts_from_threads_all_arrive_in_order, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_stop_before_the_run_counts, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
