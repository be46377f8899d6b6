/*
 * api/auth.c: tokens and how often they may be used; the clock is the test's
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"

static void the_scheme_word_may_be_written_any_way(void **state)
{
	assert_string_equal(auth_bearer("Bearer abc"), "abc");
	assert_string_equal(auth_bearer("bearer abc"), "abc");
	assert_string_equal(auth_bearer("BEARER \t abc"), "abc");
	assert_null(auth_bearer(NULL));
	assert_null(auth_bearer(""));
	assert_null(auth_bearer("Bearer"));
	assert_null(auth_bearer("Bearer "));
	assert_null(auth_bearer("Bearerabc"));
	assert_null(auth_bearer("Basic abc"));
}

static void only_our_own_form_is_looked_up(void **state)
{
	assert_true(token_well_formed("pds_0123456789abcdef0123456789abcdef"));
	assert_false(token_well_formed("pds_0123456789abcdef0123456789abcde"));
	assert_false(token_well_formed("pds_0123456789abcdef0123456789abcdef0"));
	assert_false(token_well_formed("pds_0123456789ABCDEF0123456789abcdef"));
	assert_false(token_well_formed("psk_0123456789abcdef0123456789abcdef"));
	assert_false(token_well_formed("pds_0123456789abcdef0123456789abcde "));
	assert_false(token_well_formed(""));
}

static void what_is_on_record_is_the_sha256(void **state)
{
	char hash[TOKEN_HASH + 1];

	assert_int_equal(token_hash("abc", hash), 0);
	assert_string_equal(hash,
	                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void new_tokens_are_well_formed_and_differ(void **state)
{
	char a[TOKEN_TEXT + 1], b[TOKEN_TEXT + 1];

	assert_int_equal(token_text(a), 0);
	assert_int_equal(token_text(b), 0);
	assert_true(token_well_formed(a));
	assert_true(token_well_formed(b));
	assert_string_not_equal(a, b);
}

static void tenant_names_are_plain(void **state)
{
	char name[TENANT_MAX + 2];

	assert_true(tenant_name_valid("local"));
	assert_true(tenant_name_valid("a.b_c-d@e"));
	assert_false(tenant_name_valid(""));
	assert_false(tenant_name_valid("-a"));
	assert_false(tenant_name_valid("a b"));
	assert_false(tenant_name_valid("a/b"));
	memset(name, 'a', sizeof(name));
	name[TENANT_MAX + 1] = 0;
	assert_false(tenant_name_valid(name));
	name[TENANT_MAX] = 0;
	assert_true(tenant_name_valid(name));
}

static void a_burst_passes_and_then_the_rate_counts(void **state)
{
	struct bucket b = {0};
	uint64_t now = 1000000;
	unsigned retry = 0, passed = 0;

	for (int i = 0; i < 100; i++)
		passed += bucket_take(&b, 25, 50, now, &retry);
	assert_int_equal(passed, 50);
	assert_int_equal(retry, 1);

	/* 40 ms are one of 25 per second, and not one moment earlier */
	assert_false(bucket_take(&b, 25, 50, now + 39, &retry));
	assert_true(bucket_take(&b, 25, 50, now + 40, &retry));
	assert_false(bucket_take(&b, 25, 50, now + 40, &retry));

	/* ten seconds of every ms: 25 a second, whatever the steps */
	passed = 0;
	for (uint64_t t = 41; t <= 10040; t++)
		passed += bucket_take(&b, 25, 50, now + t, &retry);
	assert_int_equal(passed, 250);

	/* an hour saves no more than one burst */
	passed = 0;
	for (int i = 0; i < 100; i++)
		passed += bucket_take(&b, 25, 50, now + 3600000, &retry);
	assert_int_equal(passed, 50);
}

static void no_rate_is_no_limit_and_no_burst_is_one(void **state)
{
	struct bucket b = {0};

	for (int i = 0; i < 1000; i++)
		assert_true(bucket_take(&b, 0, 0, 5, NULL));
	memset(&b, 0, sizeof(b));
	assert_true(bucket_take(&b, 1, 0, 5, NULL));
	assert_false(bucket_take(&b, 1, 0, 5, NULL));
}

static void a_clock_that_stands_still_gives_nothing(void **state)
{
	struct bucket b = {0};
	unsigned retry = 0;

	assert_true(bucket_take(&b, 2, 1, 1000, &retry));
	assert_false(bucket_take(&b, 2, 1, 1000, &retry));
	assert_false(bucket_take(&b, 2, 1, 900, &retry));
	assert_true(bucket_take(&b, 2, 1, 1500, &retry));
}

static void tools_have_a_minute(void **state)
{
	struct bucket b = {0};
	unsigned passed = 0;

	for (int i = 0; i < 100; i++)
		passed += bucket_take_per_min(&b, 60, 1000);
	assert_int_equal(passed, 60);
	assert_false(bucket_take_per_min(&b, 60, 1999));
	assert_true(bucket_take_per_min(&b, 60, 2000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_scheme_word_may_be_written_any_way),
	    cmocka_unit_test(only_our_own_form_is_looked_up),
	    cmocka_unit_test(what_is_on_record_is_the_sha256),
	    cmocka_unit_test(new_tokens_are_well_formed_and_differ),
	    cmocka_unit_test(tenant_names_are_plain),
	    cmocka_unit_test(a_burst_passes_and_then_the_rate_counts),
	    cmocka_unit_test(no_rate_is_no_limit_and_no_burst_is_one),
	    cmocka_unit_test(a_clock_that_stands_still_gives_nothing),
	    cmocka_unit_test(tools_have_a_minute),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
