#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dockerignore.h"
#include "base/macro.h"

static void the_last_line_that_speaks_of_a_file_counts(void **state)
{
	static const char text[] = "# what is made\r\n"
				   "node_modules/\n"
				   "  **/*.log  \n"
				   "!keep.log\n"
				   "/docs\n"
				   "!docs/index.md\n"
				   "docs/index.md.old\n"
				   "./tmp\n"
				   "\n!\n/\n"
				   "*.md";
	static const char *const out[] = {"node_modules", "node_modules/a/b", "x.log",
	                                  "a/b/x.log",    "docs/a",           "tmp/x",
	                                  "README.md",    "docs/index.md.old"};
	static const char *const in[] = {"keep.log",      "src/node_modules/x",
	                                 "docs/index.md", "a/README.md",
	                                 "tmpx",          "# what is made"};

	for (size_t i = 0; i < ARRAY_LEN(out); i++)
		if (!ignore_leaves_out(text, out[i]))
			fail_msg("'%s' should be left out", out[i]);
	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		if (ignore_leaves_out(text, in[i]))
			fail_msg("'%s' should stay", in[i]);
}

static void all_and_nothing(void **state)
{
	assert_false(ignore_leaves_out(NULL, "a"));
	assert_false(ignore_leaves_out("", "a"));
	assert_true(ignore_leaves_out("*", "a/b"));
	assert_true(ignore_leaves_out("**", "a/b"));
	assert_true(ignore_leaves_out(".", "a/b"));
	assert_false(ignore_leaves_out("*\n!a/b\n", "a/b"));
	assert_true(ignore_leaves_out("*\n!a/b\n", "a/c"));
	assert_true(ignore_has_exceptions("*\n !a\n"));
	assert_false(ignore_has_exceptions("*\n#!a\na!b"));
	assert_false(ignore_has_exceptions(NULL));
}

static void lines_that_are_too_long_say_nothing(void **state)
{
	char *text = malloc(IGNORE_MAX + 1);

	assert_non_null(text);
	memset(text, '*', IGNORE_MAX);
	text[IGNORE_MAX] = 0;
	assert_false(ignore_leaves_out(text, "a"));
	memcpy(text + IGNORE_MAX - 3, "\na", 3);
	assert_true(ignore_leaves_out(text, "a"));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_last_line_that_speaks_of_a_file_counts),
	    cmocka_unit_test(all_and_nothing),
	    cmocka_unit_test(lines_that_are_too_long_say_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
