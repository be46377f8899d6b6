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

static void no_rate_is_no_limit_and_no_burst_is_one(void **state)
{
	struct tenant t = {0};
	unsigned retry = 0;

	for (int i = 0; i < 1000; i++)
		assert_true(tenant_may_ask(&t, 0, 0, 5, NULL));
	assert_true(tenant_may_ask(&t, 1, 0, 5, NULL));
	assert_false(tenant_may_ask(&t, 1, 0, 5, &retry));
	assert_int_equal(retry, 1);
}

static void a_refusal_says_in_how_many_full_seconds(void **state)
{
	struct tenant t = {0};
	unsigned retry = 0;

	for (int i = 0; i < 50; i++)
		assert_true(tenant_may_ask(&t, 25, 50, 1000000, &retry));
	assert_false(tenant_may_ask(&t, 25, 50, 1000000, &retry));
	assert_int_equal(retry, 1);
	assert_false(tenant_may_ask(&t, 25, 50, 1000039, &retry));
	assert_true(tenant_may_ask(&t, 25, 50, 1000040, &retry));
}

static void names_of_this_server_are_loopback_and_the_public_one(void **state)
{
	static const char *const ours[] = {"localhost",    "LocalHost:8080", "127.0.0.1:8080",
	                                   "127.1.2.3",    "[::1]:8080",     "panda.example:443",
	                                   "PANDA.example"};
	static const char *const foreign[] = {"",
	                                      "evil.example",
	                                      "localhost.evil.example",
	                                      "8000-x.localhost",
	                                      "127.0.0.1.evil.example",
	                                      "127.evil",
	                                      "panda.example.evil",
	                                      "[::2]",
	                                      "10.0.0.1"};

	for (size_t i = 0; i < ARRAY_LEN(ours); i++)
		assert_true(host_is_ours(ours[i], "https://panda.example:8443/"));
	for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
		assert_false(host_is_ours(foreign[i], "https://panda.example"));
	assert_false(host_is_ours(NULL, NULL));
	assert_false(host_is_ours("panda.example", NULL));
	assert_false(host_is_ours("", ""));
}

static void pages_of_other_origins_are_not_ours(void **state)
{
	static const char url[] = "https://panda.example/";
	static const char list[] = "https://app.example  http://localhost:6274";

	assert_true(origin_is_ours(NULL, "x", NULL, NULL));
	assert_true(origin_is_ours("http://localhost:8080", "localhost:8080", NULL, NULL));
	assert_true(origin_is_ours("https://panda.example", "localhost", url, NULL));
	assert_true(origin_is_ours("https://APP.example", "localhost", url, list));
	assert_true(origin_is_ours("http://localhost:6274", "localhost:8080", NULL, list));
	assert_false(origin_is_ours("null", "null", NULL, NULL));
	assert_false(origin_is_ours("", "", NULL, ""));
	assert_false(origin_is_ours("http://localhost:8081", "localhost:8080", NULL, list));
	assert_false(origin_is_ours("http://panda.example", "localhost", url, list));
	assert_false(origin_is_ours("https://panda.example.evil", "localhost", url, list));
	assert_false(origin_is_ours("https://app.exam", "localhost", url, list));
	assert_false(origin_is_ours("http://8000-x.localhost:8080", "localhost:8080", NULL, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_scheme_word_may_be_written_any_way),
	    cmocka_unit_test(only_our_own_form_is_looked_up),
	    cmocka_unit_test(what_is_on_record_is_the_sha256),
	    cmocka_unit_test(new_tokens_are_well_formed_and_differ),
	    cmocka_unit_test(tenant_names_are_plain),
	    cmocka_unit_test(no_rate_is_no_limit_and_no_burst_is_one),
	    cmocka_unit_test(a_refusal_says_in_how_many_full_seconds),
	    cmocka_unit_test(names_of_this_server_are_loopback_and_the_public_one),
	    cmocka_unit_test(pages_of_other_origins_are_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
