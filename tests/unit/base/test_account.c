/*
 * base/account.h: bytes that are held, with limits in two places
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/account.h"

static void what_is_taken_below_is_taken_above(void **state)
{
	struct account host = {.max = 100}, a = {.above = &host, .max = 60}, b = a;

	assert_true(account_take(&a, 60));
	assert_int_equal(host.held, 60);
	assert_false(account_take(&a, 1));
	assert_int_equal(a.refused, 1);
	assert_int_equal(host.refused, 0);
	assert_true(account_take(&b, 40));
	assert_false(account_take(&b, 1)); /* it may, the host may not */
	assert_int_equal(b.refused, 0);
	assert_int_equal(host.refused, 1);
	assert_int_equal(b.held, 40);
	account_give(&a, 60);
	account_give(&b, 40);
	assert_int_equal(host.held, 0);
	assert_int_equal(host.most, 100);
}

static void what_cannot_be_refused_is_counted_all_the_same(void **state)
{
	struct account a = {.max = 10};

	account_add(&a, 25);
	assert_int_equal(a.held, 25);
	assert_ptr_equal(account_full(&a, 0), &a);
	assert_false(account_take(&a, UINT64_MAX));
	assert_true(account_take(&a, 0));
	account_give(&a, 25);
	assert_null(account_full(&a, 10));
	assert_ptr_equal(account_full(&a, UINT64_MAX), &a);
}

static void above_the_half_it_is_tight(void **state)
{
	struct account host = {.max = 100}, a = {.above = &host};

	assert_false(account_tight(NULL));
	account_add(&a, 50);
	assert_false(account_tight(&a));
	account_add(&a, 1);
	assert_true(account_tight(&a));
}

static void no_limit_is_never_reached(void **state)
{
	struct account a = {0};

	assert_true(account_take(&a, UINT64_MAX / 2));
	assert_true(account_take(NULL, 7));
	account_give(NULL, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_taken_below_is_taken_above),
	    cmocka_unit_test(what_cannot_be_refused_is_counted_all_the_same),
	    cmocka_unit_test(above_the_half_it_is_tight),
	    cmocka_unit_test(no_limit_is_never_reached),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
