/*
 * api/logins.h: failed logins per address; the clock is the test's
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/logins.h"

static const uint8_t one[ADDRESS] = {1}, two[ADDRESS] = {2};
static struct logins *l;
static unsigned retry;

static int setup(void **state)
{
	l = calloc(1, sizeof(*l));
	l->per_minute = 6;
	retry = 0;
	return 0;
}

static int teardown(void **state)
{
	free(l);
	return 0;
}

static void spend(const uint8_t *key, uint64_t now)
{
	for (int i = 0; i < 6; i++) {
		assert_true(login_begins(l, key, now, &retry));
		assert_true(login_failed(l, key, now, &retry));
	}
}

static void an_address_that_fails_too_often_is_not_heard_until_it_waited(void **state)
{
	spend(one, 1000);
	assert_false(login_begins(l, one, 1000, &retry));
	assert_int_equal(retry, 10); /* six in a minute: the next one in ten seconds */
	assert_false(login_begins(l, one, 10999, &retry));
	assert_int_equal(retry, 1);
	assert_true(login_begins(l, one, 11000, &retry));
	assert_true(login_failed(l, one, 11000, &retry));
	assert_false(login_begins(l, one, 11000, &retry));
	assert_int_equal(l->failures, 7);
	assert_int_equal(l->refusals, 3);
}

static void others_are_not_concerned(void **state)
{
	spend(one, 1000);
	assert_false(login_begins(l, one, 1000, &retry));
	spend(two, 1000);
}

static void a_valid_token_of_an_address_keeps_it_open_for_all_behind_it(void **state)
{
	login_worked(l, one, 1000);
	spend(one, 1000);
	/* Tokens are looked at, and who fails is told to wait. */
	assert_true(login_begins(l, one, 1000, &retry));
	assert_false(login_failed(l, one, 1000, &retry));
	assert_int_equal(retry, 10);
	assert_true(login_begins(l, one, 1000, &retry));
	login_worked(l, one, 2000);
	assert_true(login_begins(l, one, 1999 + LOGIN_VALID_MS, &retry));
	/* Nobody used one for long: it is an address like any other. */
	spend(one, 2000 + LOGIN_VALID_MS);
	assert_false(login_begins(l, one, 2000 + LOGIN_VALID_MS, &retry));
}

static void no_limit_and_no_address_are_never_refused(void **state)
{
	for (int i = 0; i < 100; i++)
		assert_true(login_failed(l, NULL, 5, &retry));
	assert_true(login_begins(l, NULL, 5, &retry));
	l->per_minute = 0;
	for (int i = 0; i < 100; i++)
		assert_true(login_failed(l, one, 5, &retry));
	assert_true(login_begins(l, one, 5, &retry));
}

static void many_addresses_push_out_those_that_were_heard_longest_ago(void **state)
{
	uint8_t key[ADDRESS] = {9};

	for (uint32_t i = 0; i < LOGIN_SETS * LOGIN_WAYS * 4; i++) {
		memcpy(key + 4, &i, sizeof(i));
		spend(key, 1000 + i);
	}
	assert_false(login_begins(l, key, 1000 + LOGIN_SETS * LOGIN_WAYS * 4, &retry));
	memset(key + 4, 0, 4); /* the first of them is forgotten */
	assert_true(login_begins(l, key, 1001, &retry));
}

#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    test(an_address_that_fails_too_often_is_not_heard_until_it_waited),
	    test(others_are_not_concerned),
	    test(a_valid_token_of_an_address_keeps_it_open_for_all_behind_it),
	    test(no_limit_and_no_address_are_never_refused),
	    test(many_addresses_push_out_those_that_were_heard_longest_ago),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
