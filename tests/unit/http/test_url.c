/*
 * http/url.h
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "http/url.h"

static const struct {
	const char *in;
	int plus;
	const char *out; /* NULL: -EBADMSG */
} decodes[] = {
    {"", 0, ""},
    {"abc", 0, "abc"},
    {"a%20b", 0, "a b"},
    {"a+b", 0, "a+b"},
    {"a+b", 1, "a b"},
    {"%2B+%2b", 1, "+ +"},
    {"%25%32%30", 0, "%20"}, /* once, not twice */
    {"%C3%A4\xc3\xa4", 0, "\xc3\xa4\xc3\xa4"},
    {"%", 0, NULL},
    {"%2", 0, NULL},
    {"a%zz", 0, NULL},
    {"%+1", 0, NULL},
    {"%00", 0, NULL},
    {"a%C3", 0, NULL},
    {"%C0%80", 0, NULL},
    {"%ED%A0%80", 0, NULL},
    {"%F4%90%80%80", 0, NULL},
    {"%F0%9F%90%BC", 0, "\xf0\x9f\x90\xbc"},
    {"\xff", 0, NULL},
};

static void escapes_are_decoded_once_or_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(decodes); i++) {
		autofree char *out = NULL;
		int r = url_decode(decodes[i].in, strlen(decodes[i].in), decodes[i].plus, &out);

		if (r != (decodes[i].out ? 0 : -EBADMSG))
			fail_msg("'%s': %d", decodes[i].in, r);
		if (r < 0)
			assert_null(out);
		else
			assert_string_equal(out, decodes[i].out);
	}
	{
		autofree char *out = NULL;

		assert_int_equal(url_decode("a\0b", 3, 0, &out), -EBADMSG);
		assert_int_equal(url_decode("a%20b", 3, 0, &out),
		                 -EBADMSG); /* ends in the escape */
	}
}

static const struct {
	const char *query, *key, *value;
	int r;
} queries[] = {
    {"a=1&b=2", "b", "2", 0},
    {"a=1&b=2", "c", NULL, -ENOENT},
    {"", "a", NULL, -ENOENT},
    {"a=1&a=2", "a", "1", 0},
    {"aa=1&a=2", "a", "2", 0},
    {"a", "a", "", 0},
    {"a=", "a", "", 0},
    {"&&a=x", "a", "x", 0},
    {"a=b=c", "a", "b=c", 0},
    {"%61=1", "a", "1", 0},
    {"path=%2Ftmp%2Fa+b", "path", "/tmp/a b", 0},
    {"a=%zz", "a", NULL, -EBADMSG},
    {"%zz=1&a=2", "a", "2", 0},
    {"a=1%00", "a", NULL, -EBADMSG},
};

static void values_are_found_by_key(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(queries); i++) {
		autofree char *out = NULL;
		int r = url_query(queries[i].query, queries[i].key, &out);

		if (r != queries[i].r)
			fail_msg("'%s' %s: %d", queries[i].query, queries[i].key, r);
		if (r == 0)
			assert_string_equal(out, queries[i].value);
	}
}

static void what_is_encoded_decodes_to_the_same(void **state)
{
	static const char *const texts[] = {
	    "", "abc", "a b+c&d=e?f#g%h", "/a/b", "\xc3\xa4\n\x7f\"'", "~-._"};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		autofree char *coded = NULL, *back = NULL;

		assert_int_equal(url_encode(texts[i], &coded), 0);
		for (const char *p = coded; *p; p++)
			assert_true(*p > ' ' && *p < 0x7f && !strchr("&=+?#\"'", *p));
		assert_int_equal(url_decode(coded, strlen(coded), 1, &back), 0);
		assert_string_equal(back, texts[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(escapes_are_decoded_once_or_refused),
	    cmocka_unit_test(values_are_found_by_key),
	    cmocka_unit_test(what_is_encoded_decodes_to_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
