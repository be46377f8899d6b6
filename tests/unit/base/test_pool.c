/*
 * base/pool.h: what is submitted is done, on the loop, whatever happens.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

#include <cmocka.h>

#include "base/pool.h"

/*
 * The clock is the test's: where the loop would wait for long it waits a moment, and the clock
 * goes on by what is left. The pool's threads know no time.
 */
int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __real_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout);
int __wrap_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout);

enum { MOMENT_MS = 10 };

static atomic_int ahead_ms;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int r = __real_clock_gettime(id, ts);
	long ns = ts->tv_nsec + atomic_load(&ahead_ms) % 1000 * 1000000L;

	ts->tv_sec += atomic_load(&ahead_ms) / 1000 + ns / 1000000000;
	ts->tv_nsec = ns % 1000000000;
	return r;
}

int __wrap_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout)
{
	int r;

	if (timeout <= MOMENT_MS)
		return __real_epoll_wait(ep, ev, n, timeout);
	r = __real_epoll_wait(ep, ev, n, MOMENT_MS);
	if (r == 0)
		atomic_fetch_add(&ahead_ms, timeout - MOMENT_MS);
	return r;
}

enum { JOBS = 1000 };

static struct loop *loop;
static struct pool *pool;
static pthread_t loop_thread;
static atomic_uint worked;
static unsigned done;

static int setup(void **state)
{
	loop_thread = pthread_self();
	done = 0;
	atomic_store(&worked, 0);
	return loop_new(&loop);
}

static int teardown(void **state)
{
	loop_free(loop);
	return 0;
}

static void work(void *arg)
{
	if (pthread_equal(pthread_self(), loop_thread))
		abort();
	atomic_fetch_add(&worked, 1);
	*(int *)arg += 1;
}

static void on_done(void *arg)
{
	assert_true(pthread_equal(pthread_self(), loop_thread));
	assert_int_equal(*(int *)arg, 1);
	*(int *)arg = 2;
	if (++done == JOBS) {
		assert_int_equal(pool_busy(pool), 0);
		loop_stop(loop);
	}
}

static int jobs[JOBS];

static void submit_all(void)
{
	for (int i = 0; i < JOBS; i++) {
		jobs[i] = 0;
		assert_int_equal(pool_submit(pool, work, on_done, &jobs[i]), 0);
	}
	assert_int_equal(pool_busy(pool), JOBS);
}

static void work_is_done_once_and_told_on_the_loop(void **state)
{
	assert_int_equal(pool_new(loop, 3, &pool), 0);
	submit_all();
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(done, JOBS);
	assert_int_equal(atomic_load(&worked), JOBS);
	pool_free(pool);
}

static void stop(void *arg)
{
	loop_stop(loop);
}

static void on_late(void *arg)
{
	done++;
}

static void what_was_submitted_is_worked_off_before_a_pool_is_freed(void **state)
{
	assert_int_equal(pool_new(loop, 2, &pool), 0);
	for (int i = 0; i < JOBS; i++) {
		jobs[i] = 0;
		assert_int_equal(pool_submit(pool, work, on_late, &jobs[i]), 0);
	}
	pool_free(pool);
	assert_int_equal(atomic_load(&worked), JOBS);
	assert_int_equal(done, 0);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(done, JOBS);
}

/* A sanitizer sees what is lost. */
static void what_is_due_may_be_dropped_with_the_loop(void **state)
{
	assert_int_equal(pool_new(loop, 2, &pool), 0);
	submit_all();
	pool_free(pool);
	assert_int_equal(done, 0);
}

static void do_nothing(void *arg)
{
}

static void on_drop(void *arg)
{
	++*(int *)arg;
}

static void who_wants_to_know_is_told_what_the_loop_drops(void **state)
{
	struct loop *other;
	int dropped = 0;

	assert_int_equal(loop_new(&other), 0);
	assert_int_equal(pool_new(other, 2, &pool), 0);
	pool_on_drop(pool, on_drop);
	for (int i = 0; i < JOBS; i++)
		assert_int_equal(pool_submit(pool, do_nothing, on_late, &dropped), 0);
	pool_free(pool);
	assert_int_equal(dropped, 0);
	loop_free(other);
	assert_int_equal(dropped, JOBS);
	assert_int_equal(done, 0);
}

static void on_idle(void *arg)
{
	assert_int_equal(pool_busy(pool), 0);
	assert_int_equal(done, JOBS); /* the last one was told before */
	++*(unsigned *)arg;
	loop_stop(loop);
}

static void on_one_more(void *arg)
{
	done++;
}

static void who_waits_for_peace_is_told_each_time_when_all_is_done(void **state)
{
	unsigned idle = 0;

	assert_int_equal(pool_new(loop, 3, &pool), 0);
	pool_on_idle(pool, on_idle, &idle);
	for (unsigned round = 1; round <= 2; round++) {
		done = 0;
		for (int i = 0; i < JOBS; i++)
			assert_int_equal(pool_submit(pool, do_nothing, on_one_more, NULL), 0);
		while (idle < round)
			assert_int_equal(loop_run(loop), 0);
	}
	assert_int_equal(idle, 2);
	pool_free(pool);
}

static unsigned in_order[JOBS], next;

static void note_order(void *arg)
{
	in_order[next++] = (unsigned)(uintptr_t)arg;
}

static void one_thread_works_in_order(void **state)
{
	assert_int_equal(pool_new(loop, 1, &pool), 0);
	next = 0;
	for (uintptr_t i = 0; i < JOBS; i++)
		assert_int_equal(pool_submit(pool, note_order, on_late, (void *)i), 0);
	pool_free(pool);
	for (unsigned i = 0; i < JOBS; i++)
		assert_int_equal(in_order[i], i);
}

enum { STUCK = 6 };

static sem_t release;
static atomic_uint inside, most;

static void stuck(void *arg)
{
	unsigned now = atomic_fetch_add(&inside, 1) + 1, seen = atomic_load(&most);

	while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
		;
	while (sem_wait(&release) < 0)
		;
	atomic_fetch_sub(&inside, 1);
}

static void release_all(void)
{
	for (int i = 0; i < STUCK; i++)
		sem_post(&release);
}

static void quick(void *arg)
{
	*(unsigned *)arg = atomic_load(&inside);
}

static void on_quick(void *arg)
{
	release_all();
	loop_stop(loop);
}

static void submit_stuck(unsigned max)
{
	assert_int_equal(sem_init(&release, 0, 0), 0);
	atomic_store(&inside, 0);
	atomic_store(&most, 0);
	assert_int_equal(pool_new(loop, 2, &pool), 0);
	pool_may_grow(pool, max);
	for (int i = 0; i < STUCK; i++)
		assert_int_equal(pool_submit(pool, stuck, on_late, NULL), 0);
}

static void work_that_never_ends_holds_nobody_up(void **state)
{
	unsigned then = 0;

	submit_stuck(16);
	assert_int_equal(pool_submit(pool, quick, on_quick, &then), 0);
	assert_int_equal(loop_run(loop), 0); /* forever, if it waited for one of them */
	assert_int_equal(then, STUCK);
	pool_free(pool);
	assert_int_equal(atomic_load(&inside), 0);
}

static struct loop_timer looking;

/* As many as may be, and for a few more looks of the pool nothing changes. */
static void look(void *arg)
{
	unsigned *looks = arg;

	if (atomic_load(&inside) >= 4 && ++*looks == 4) {
		release_all();
		loop_stop(loop);
		return;
	}
	loop_timer_set(loop, &looking, loop_now_ms(loop) + POOL_PATIENCE_MS);
}

static void it_grows_only_so_far(void **state)
{
	unsigned looks = 0;

	submit_stuck(4);
	looking = (struct loop_timer){.fn = look, .arg = &looks};
	look(&looks);
	assert_int_equal(loop_run(loop), 0);
	pool_free(pool);
	assert_int_equal(atomic_load(&most), 4);
}

static void one_key_leaves_threads_to_the_next(void **state)
{
	unsigned then = 0;

	assert_int_equal(sem_init(&release, 0, 0), 0);
	atomic_store(&inside, 0);
	atomic_store(&most, 0);
	assert_int_equal(pool_new(loop, 4, &pool), 0); /* and there will be no more */
	for (int i = 0; i < STUCK; i++)
		assert_int_equal(pool_submit_for(pool, "mute", stuck, on_late, NULL), 0);
	assert_int_equal(pool_submit_for(pool, "quick", quick, on_quick, &then), 0);
	assert_int_equal(loop_run(loop), 0); /* forever, if it waited for one of them */
	assert_true(then <= 3);
	pool_free(pool);
	assert_int_equal(atomic_load(&inside), 0);
	loop_post(loop, stop, NULL);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(done, STUCK);
}

static void also_when_the_pool_has_grown(void **state)
{
	unsigned looks = 0;

	assert_int_equal(sem_init(&release, 0, 0), 0);
	atomic_store(&inside, 0);
	atomic_store(&most, 0);
	assert_int_equal(pool_new(loop, 2, &pool), 0);
	pool_may_grow(pool, 6);
	for (int i = 0; i < STUCK; i++)
		assert_int_equal(pool_submit_for(pool, "mute", stuck, on_late, NULL), 0);
	looking = (struct loop_timer){.fn = look, .arg = &looks};
	look(&looks);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(atomic_load(&most), 4); /* of 6 */
	pool_free(pool);
}

static void keys_take_turns(void **state)
{
	static const char *const keys[] = {"a", "a", "a", "b", "b", NULL};
	static const unsigned want[] = {0, 3, 5, 1, 4, 2};

	assert_int_equal(sem_init(&release, 0, 0), 0);
	assert_int_equal(pool_new(loop, 1, &pool), 0);
	next = 0;
	assert_int_equal(pool_submit(pool, stuck, on_late, NULL), 0);
	for (uintptr_t i = 0; i < 6; i++)
		assert_int_equal(pool_submit_for(pool, keys[i], note_order, on_late, (void *)i), 0);
	release_all();
	pool_free(pool);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(in_order[i], want[i]);
}

static void a_pool_without_threads_is_refused(void **state)
{
	assert_int_equal(pool_new(loop, 0, &pool), -EINVAL);
	pool_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(work_is_done_once_and_told_on_the_loop, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(what_was_submitted_is_worked_off_before_a_pool_is_freed,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(what_is_due_may_be_dropped_with_the_loop, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(who_wants_to_know_is_told_what_the_loop_drops, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(who_waits_for_peace_is_told_each_time_when_all_is_done,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(one_thread_works_in_order, setup, teardown),
	    cmocka_unit_test_setup_teardown(work_that_never_ends_holds_nobody_up, setup, teardown),
	    cmocka_unit_test_setup_teardown(it_grows_only_so_far, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_key_leaves_threads_to_the_next, setup, teardown),
	    cmocka_unit_test_setup_teardown(also_when_the_pool_has_grown, setup, teardown),
	    cmocka_unit_test_setup_teardown(keys_take_turns, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_pool_without_threads_is_refused, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
