/*
 * base/shares.h: who has to give rows, and how many
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/shares.h"

static void add(struct shares *s, const char *name, uint64_t n)
{
	struct share *of = shares_of(s, name);

	assert_non_null(of);
	assert_string_equal(of->name, name);
	shares_add(s, of, n);
}

static uint64_t gives(struct shares *s, const char *name)
{
	struct share *of;
	uint64_t n = 7;

	of = shares_over(s, &n);
	if (!name) {
		assert_null(of);
		return 0;
	}
	assert_non_null(of);
	assert_string_equal(of->name, name);
	return n;
}

static void one_that_has_more_than_its_share_gives_what_is_above(void **state)
{
	struct shares s = {.each = 80, .all = 1000};

	assert_int_equal(gives(&s, NULL), 0);
	add(&s, "a", 80);
	add(&s, "b", 90);
	assert_int_equal(gives(&s, NULL), 0); /* an eighth above is in order */
	add(&s, "b", 1);
	assert_int_equal(gives(&s, "b"), 11);
	shares_gone(&s, shares_of(&s, "b"), 11);
	assert_int_equal(gives(&s, NULL), 0);
	assert_int_equal(s.n, 160);
	shares_free(&s);
}

static void above_the_limit_of_all_the_one_with_most_gives(void **state)
{
	struct shares s = {.each = 1000, .all = 80};

	add(&s, "quiet", 10);
	add(&s, "loud", 80);
	assert_int_equal(gives(&s, NULL), 0);
	add(&s, "quiet", 1);
	assert_int_equal(gives(&s, "loud"), 11);
	shares_free(&s);
}

static void much_is_given_in_batches(void **state)
{
	struct shares s = {.each = 10, .all = 10};

	add(&s, "a", 1000000);
	assert_int_equal(gives(&s, "a"), SHARES_BATCH);
	shares_free(&s);
}

static void no_limit_is_never_reached(void **state)
{
	struct shares s = {0};

	add(&s, "a", 1000000);
	assert_int_equal(gives(&s, NULL), 0);
	shares_gone(&s, shares_of(&s, "a"), 2000000); /* more than there are */
	assert_int_equal(s.n, 0);
	shares_free(&s);
}

static void many_names_are_told_apart(void **state)
{
	struct shares s = {.each = 1000};
	char name[16];

	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		add(&s, name, (uint64_t)i);
	}
	assert_int_equal(shares_of(&s, "t700")->n, 700);
	assert_int_equal(gives(&s, NULL), 0);
	add(&s, "t700", 500);
	assert_int_equal(gives(&s, "t700"), 200);
	shares_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_that_has_more_than_its_share_gives_what_is_above),
	    cmocka_unit_test(above_the_limit_of_all_the_one_with_most_gives),
	    cmocka_unit_test(much_is_given_in_batches),
	    cmocka_unit_test(no_limit_is_never_reached),
	    cmocka_unit_test(many_names_are_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
