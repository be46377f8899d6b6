/*
 * api/routes/preview_cookie.c: what a browser keeps for a guest's service, and what it sends back
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/routes/preview_cookie.h"
#include "base/cleanup.h"
#include "base/macro.h"

static void a_cookie_stays_with_its_service(void **state)
{
	static const struct {
		const char *set, *prefix, *want;
	} t[] = {
	    {"a=1", NULL, "a=1"},
	    {"a=1; Domain=localhost", NULL, "a=1"},
	    {"a=1;DOMAIN = .example ;HttpOnly;domain", NULL, "a=1; HttpOnly"},
	    {"a=1; Path=/x; Secure", NULL, "a=1; Path=/x; Secure"},
	    {"a=1", "/p", "a=1; Path=/p/"},
	    {"a=1; path=/x; Max-Age=5", "/p", "a=1; Max-Age=5; Path=/p/x"},
	    {"a=1; Path=/x; Path=/", "/p", "a=1; Path=/p/"},
	    {"a=1; Path=x", "/p", "a=1; Path=/p/"},
	    {"a=1; Path=", "/p", "a=1; Path=/p/"},
	    {"a=1; Path", "/p", "a=1; Path=/p/"},
	    /* The first is the cookie, whatever it is called. */
	    {"Path=/; Domain=x", "/p", "Path=/; Path=/p/"},
	    {"domain=evil", NULL, "domain=evil"},
	    {"a=\"1;Path=/\"", "/p", "a=\"1; Path=/p/\""},
	    {";;a", "/p", "; a; Path=/p/"},
	    {"", "/p", "; Path=/p/"},
	};

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		autofree char *got = cookie_narrow(t[i].set, t[i].prefix);

		assert_string_equal(got, t[i].want);
	}
}

static void a_cookie_of_ours_goes_no_further(void **state)
{
	static const struct {
		const char *cookies, *want;
	} t[] = {
	    {"", ""},
	    {"p=1", ""},
	    {"a=1; p=2; b=3", "a=1; b=3"},
	    {"a=1;p=2;;p=3 ; b", "a=1; b"},
	    {"P=1; pp=2; p", "P=1; pp=2; p"},
	};
	char value[4];

	for (size_t i = 0; i < ARRAY_LEN(t); i++) {
		autofree char *got = cookie_without(t[i].cookies, "p");

		assert_string_equal(got, t[i].want);
	}
	assert_true(cookie_get("a=1; p=xyz", "p", value, sizeof(value)));
	assert_string_equal(value, "xyz");
	assert_false(cookie_get("p=long", "p", value, sizeof(value)));
	assert_false(cookie_get("P=1; pp=1; p", "p", value, sizeof(value)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_cookie_stays_with_its_service),
	    cmocka_unit_test(a_cookie_of_ours_goes_no_further),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
