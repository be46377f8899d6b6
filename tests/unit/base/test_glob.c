#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/glob.h"
#include "base/macro.h"

static void stars_stay_in_their_part(void **state)
{
	static const char *const yes[][2] = {
	    {"a", "a"},         {"*", "abc"},          {"a*c", "abc"},     {"*.py", "x.py"},
	    {"a/*/c", "a/b/c"}, {"?b[c-e]", "abd"},    {"[^a]b", "xb"},    {"\\*", "*"},
	    {"[", "["},         {"**", "a/b/c"},       {"**/c", "a/b/c"},  {"**/c", "c"},
	    {"a/**", "a"},      {"a/**/d", "a/b/c/d"}, {"*a*b*", "xaxbx"}, {"", ""},
	    {"[]]", "]"},       {"a**b", "axxb"},
	};
	static const char *const no[][2] = {
	    {"a", "b"},     {"*", "a/b"}, {"a*", "ba"},    {"a/*", "a"},   {"a/*", "a/b/c"},
	    {"[a-c]", "d"}, {"\\*", "x"}, {"**/c", "a/b"}, {"a?c", "a/c"}, {"[!a]", "a"},
	    {"a[", "a"},    {"", "a"},    {"a", ""},
	};

	for (size_t i = 0; i < ARRAY_LEN(yes); i++)
		if (!glob_match(yes[i][0], yes[i][1]))
			fail_msg("'%s' should match '%s'", yes[i][0], yes[i][1]);
	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		if (glob_match(no[i][0], no[i][1]))
			fail_msg("'%s' should not match '%s'", no[i][0], no[i][1]);
}

static void many_stars_take_no_time(void **state)
{
	char pattern[1001], path[1001];

	for (size_t i = 0; i < 500; i++)
		memcpy(pattern + 2 * i, "a*", 2);
	pattern[999] = 'b';
	pattern[1000] = 0;
	memset(path, 'a', 1000);
	path[1000] = 0;
	assert_false(glob_match(pattern, path));
	for (size_t i = 0; i + 3 < 1000; i += 3)
		memcpy(pattern + i, "**/", 3);
	for (size_t i = 1; i < 1000; i += 2)
		path[i] = '/';
	pattern[999] = 'b';
	assert_false(glob_match(pattern, path));
}

/* Wherever fnmatch(3) means the same, the answer is the same. */
static void as_fnmatch_says(void **state)
{
	static const char letters[] = "ab*?/[]^-";
	unsigned seed = 42;

	for (int n = 0; n < 200000; n++) {
		char p[8] = "", s[8] = "";
		size_t k = (size_t)rand_r(&seed) % 7, m = (size_t)rand_r(&seed) % 7;

		for (size_t i = 0; i < k; i++)
			p[i] = letters[(size_t)rand_r(&seed) % 5];
		for (size_t i = 0; i < m; i++)
			s[i] = "ab/"[(size_t)rand_r(&seed) % 3];
		if (strstr(p, "**"))
			continue;
		if (glob_match(p, s) != (fnmatch(p, s, FNM_PATHNAME) == 0))
			fail_msg("'%s' and '%s'", p, s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(stars_stay_in_their_part),
	    cmocka_unit_test(many_stars_take_no_time),
	    cmocka_unit_test(as_fnmatch_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
