#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/bucket.h"

static unsigned take_often(struct bucket *b, uint64_t now_ms, uint64_t per_s, uint64_t burst)
{
	unsigned got = 0;

	for (int i = 0; i < 100; i++)
		got += bucket_take(b, now_ms, per_s, burst, 1);
	return got;
}

static void a_burst_passes_and_then_the_rate_counts(void **state)
{
	struct bucket b = {0};
	uint64_t now = 1000000;
	unsigned got = 0;

	assert_int_equal(take_often(&b, now, 25, 50), 50);

	/* 40 ms are one of 25 per second, and not one moment earlier */
	assert_false(bucket_take(&b, now + 39, 25, 50, 1));
	assert_true(bucket_take(&b, now + 40, 25, 50, 1));
	assert_false(bucket_take(&b, now + 40, 25, 50, 1));

	/* ten seconds of every ms: 25 a second, whatever the steps */
	for (uint64_t t = 41; t <= 10040; t++)
		got += bucket_take(&b, now + t, 25, 50, 1);
	assert_int_equal(got, 250);

	/* an hour, and a month, save no more than one burst */
	assert_int_equal(take_often(&b, now + 3600000, 25, 50), 50);
	assert_int_equal(take_often(&b, now + 3600000 + (1ull << 31), 25, 50), 50);
}

static void many_are_taken_at_once_or_not_at_all(void **state)
{
	struct bucket b = {0};

	assert_false(bucket_take(&b, 5000, 10, 30, 31)); /* more than it can ever hold */
	assert_true(bucket_take(&b, 5000, 10, 30, 20));
	assert_false(bucket_take(&b, 5000, 10, 30, 11));
	assert_true(bucket_take(&b, 5000, 10, 30, 10));
}

static void a_clock_that_stands_still_or_goes_back_gives_nothing(void **state)
{
	struct bucket b = {0};

	assert_true(bucket_take(&b, 1000, 2, 1, 1));
	assert_false(bucket_take(&b, 1000, 2, 1, 1));
	assert_false(bucket_take(&b, 600, 2, 1, 1));
	assert_false(bucket_take(&b, 1200, 2, 1, 1)); /* not 600 ms since the last look: 200 */
	assert_true(bucket_take(&b, 1500, 2, 1, 1));
}

static void it_says_when_there_is_more(void **state)
{
	struct bucket b = {0};
	uint64_t wait;

	assert_true(bucket_take(&b, 7, 3, 4, 4));
	assert_false(bucket_take(&b, 7, 3, 4, 1));
	wait = bucket_wait_ms(&b, 3, 4, 1);
	assert_int_equal(wait, 334);
	assert_false(bucket_take(&b, 7 + wait - 1, 3, 4, 1));
	assert_true(bucket_take(&b, 7 + wait, 3, 4, 1));
	assert_int_equal(bucket_wait_ms(&(struct bucket){0}, 3, 4, 4), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_burst_passes_and_then_the_rate_counts),
	    cmocka_unit_test(many_are_taken_at_once_or_not_at_all),
	    cmocka_unit_test(a_clock_that_stands_still_or_goes_back_gives_nothing),
	    cmocka_unit_test(it_says_when_there_is_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
