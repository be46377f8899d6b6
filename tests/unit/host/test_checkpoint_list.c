/*
 * Which checkpoints are kept, and how they are found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "host/checkpoint.h"

/* A history of n steps, thinned after each as the daemon does. Returns how many are left. */
static size_t live(uint64_t n, uint64_t kept[512])
{
	size_t have = 0;

	for (uint64_t s = 1; s <= n; s++) {
		size_t k = 0;

		kept[have++] = s;
		for (size_t i = 0; i < have; i++)
			if (!checkpoint_thinned(s, kept[i]))
				kept[k++] = kept[i];
		have = k;
	}
	return have;
}

static void the_last_ten_are_all_kept(void **state)
{
	uint64_t kept[512];

	for (uint64_t n = 1; n < 200; n++) {
		size_t have = live(n, kept);

		for (uint64_t back = 0; back < CHECKPOINTS_RECENT && back < n; back++)
			assert_int_equal(kept[have - 1 - back], n - back);
	}
}

static void older_ones_get_rarer_but_never_end(void **state)
{
	uint64_t kept[512];
	size_t have = live(100, kept);

	/* From 10 to 20 steps back every 2nd, to 40 every 4th, to 80 every 8th, then every 16th. */
	for (size_t i = 0; i + 1 < have; i++) {
		uint64_t age = 100 - kept[i], gap = kept[i + 1] - kept[i];

		assert_true(gap <= (age < 10   ? 1
		                    : age < 21 ? 2
		                    : age < 42 ? 4
		                    : age < 84 ? 8
		                               : 16));
	}
	assert_true(have >= 20 && have <= CHECKPOINTS_MAX);
}

static void ten_thousand_steps_cost_a_handful(void **state)
{
	uint64_t kept[512];
	size_t have = live(10000, kept);

	assert_true(have <= 10 + 6 * 14);
	assert_true(kept[0] <= 10000 / 2); /* and reach far back */
}

static void what_is_gone_stays_gone(void **state)
{
	/* Once thinned, always thinned: else the list would depend on when somebody looked. */
	for (uint64_t s = 1; s < 300; s++)
		for (uint64_t now = s, was = 0; now < 600; now++) {
			bool thinned = checkpoint_thinned(now, s);

			assert_true(!was || thinned);
			was = thinned;
		}
}

static struct checkpoint list[3] = {
    {.id = "c3", .serial = 3, .older = &list[1]},
    {.id = "c2", .serial = 2, .name = "good", .older = &list[2]},
    {.id = "c1", .serial = 1, .name = "good"},
};

static void found_by_steps_id_and_name(void **state)
{
	struct history y = {.newest = list, .n = 3};
	struct sandbox sb = {.id = "x", .history = &y};
	struct err e;

	assert_ptr_equal(checkpoint_find(&sb, NULL, 1, &e), &list[0]);
	assert_ptr_equal(checkpoint_find(&sb, NULL, 3, &e), &list[2]);
	assert_null(checkpoint_find(&sb, NULL, 4, &e));
	assert_string_equal(e.kind, "checkpoint_not_found");
	assert_ptr_equal(checkpoint_find(&sb, "c1", 0, &e), &list[2]);
	assert_ptr_equal(checkpoint_find(&sb, "good", 0, &e),
	                 &list[1]); /* the newest of that name */
	assert_null(checkpoint_find(&sb, "bad", 0, &e));
}

static void right_after_a_rewind_a_step_is_one_further(void **state)
{
	struct history y = {.newest = list, .n = 3, .untouched = true};
	struct sandbox sb = {.id = "x", .history = &y};
	struct err e;

	assert_ptr_equal(checkpoint_find(&sb, NULL, 1, &e), &list[1]);
	assert_null(checkpoint_find(&sb, NULL, 3, &e));
	history_touch(&sb);
	assert_ptr_equal(checkpoint_find(&sb, NULL, 1, &e), &list[0]);
}

static void who_lost_them_hears_why(void **state)
{
	struct sandbox sb = {.id = "x", .history_lost = "it was hibernated"};
	struct err e;

	assert_null(checkpoint_find(&sb, NULL, 1, &e));
	assert_non_null(strstr(e.text, "it was hibernated"));
	sb.history_lost = NULL;
	assert_null(checkpoint_find(&sb, NULL, 1, &e));
	assert_non_null(strstr(e.text, "auto"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_last_ten_are_all_kept),
	    cmocka_unit_test(older_ones_get_rarer_but_never_end),
	    cmocka_unit_test(ten_thousand_steps_cost_a_handful),
	    cmocka_unit_test(what_is_gone_stays_gone),
	    cmocka_unit_test(found_by_steps_id_and_name),
	    cmocka_unit_test(right_after_a_rewind_a_step_is_one_further),
	    cmocka_unit_test(who_lost_them_hears_why),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
