/*
 * What guests say they have written, and how two of them are compared.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/unified.h"
#include "host/upper.h"

/* Records with '\n' for each NUL; the one behind the last is added. */
static int parse(const char *text, struct upper *ret)
{
	size_t n = strlen(text);
	char *bytes = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		bytes[i] = text[i] == '\n' ? 0 : text[i];
	return upper_parse(bytes, n, ret);
}

#define FILE_AT(path, size, mtime)   "f 644 0 0 " #size " " #mtime " 9 - 0 0 0 " path "\n\n"
#define FILE_OVER(path, size, mtime) "f 644 0 0 " #size " " #mtime " 9 f 644 5 50 " path "\n\n"
#define GONE(path)                   "w 0 0 0 0 0 9 f 644 5 50 " path "\n\n"
#define DIR_AT(path)                 "d 755 0 0 4096 1 9 - 0 0 0 " path "\n\n"

static char said[1024];

static bool say(void *arg, const char *path, enum upper_change change,
                const struct upper_file *from, const struct upper_file *to)
{
	size_t n = strlen(said);

	snprintf(said + n, sizeof(said) - n, "%c%s ", "ACRT"[change], path);
	return true;
}

static const char *compare(const char *a, const char *b)
{
	struct upper x, y;

	assert_int_equal(parse(a, &x), 0);
	assert_int_equal(parse(b, &y), 0);
	said[0] = 0;
	upper_compare(&x, &y, say, NULL);
	upper_fini(&x);
	upper_fini(&y);
	return said;
}

static void equal_ones_have_nothing_to_say(void **state)
{
	assert_string_equal(compare("", ""), "");
	assert_string_equal(compare(FILE_AT("/a", 1, 2), FILE_AT("/a", 1, 2)), "");
	assert_string_equal(compare(GONE("/a"), GONE("/a")), "");
}

static void files_come_change_and_go(void **state)
{
	assert_string_equal(compare("", FILE_AT("/a", 1, 2)), "A/a ");
	assert_string_equal(compare(FILE_AT("/a", 1, 2), ""), "R/a ");
	assert_string_equal(compare(FILE_AT("/a", 1, 2), FILE_AT("/a", 7, 2)), "C/a ");
	assert_string_equal(compare(FILE_AT("/a", 1, 2), FILE_AT("/a", 1, 3)), "T/a ");
	assert_string_equal(compare(FILE_AT("/b", 1, 2), FILE_AT("/a", 1, 2)), "A/a R/b ");
}

static void the_template_is_below_both(void **state)
{
	assert_string_equal(compare("", GONE("/a")), "R/a ");
	assert_string_equal(compare(GONE("/a"), ""), "A/a ");
	assert_string_equal(compare("", FILE_OVER("/a", 6, 60)), "C/a ");
	assert_string_equal(compare("", FILE_OVER("/a", 5, 60)), "T/a ");
	assert_string_equal(compare("", FILE_OVER("/a", 5, 50)), ""); /* copied up, no more */
}

static void nothing_is_below_what_is_no_directory(void **state)
{
	static const char low[] = "f 644 0 0 8 80 9 f 644 5 50 /d/x\n\n";

	/* One has removed the directory in which the other has changed a file. */
	assert_string_equal(compare("w 0 0 0 0 0 9 d 755 0 1 /d\n\n", low), "A/d A/d/x ");
	assert_string_equal(compare(FILE_AT("/d", 1, 1), DIR_AT("/d") FILE_AT("/d/x", 1, 1)),
	                    "C/d A/d/x ");
}

static void lies_are_refused(void **state)
{
	static const char *const bad[] = {"x",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /a\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 a\n\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /a/../b\n\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /a//b\n\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /\n\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /a/\n\n",
	                                  "f 644 0 0 1 2 9 - 0 0 0 /a/..\n\n",
	                                  "q 644 0 0 1 2 9 - 0 0 0 /a\n\n",
	                                  "\n\n",
	                                  "f\n\n",
	                                  FILE_AT("/a", 1, 2) FILE_AT("/a", 1, 2)};
	struct upper u;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(parse(bad[i], &u), -EBADMSG);
}

static void found_by_path_and_by_the_beginning_of_one(void **state)
{
	struct upper u;

	assert_int_equal(parse(FILE_AT("/ab", 1, 1) DIR_AT("/a") FILE_AT("/a/b", 1, 1), &u), 0);
	assert_string_equal(upper_find(&u, "/a/b", 4)->path, "/a/b");
	assert_string_equal(upper_find(&u, "/a/b", 2)->path, "/a");
	assert_string_equal(upper_find(&u, "/ab", 3)->path, "/ab");
	assert_null(upper_find(&u, "/abc", 4));
	assert_null(upper_find(&u, "/", 1));
	upper_fini(&u);
}

static void a_text_as_a_unified_diff(void **state)
{
	char *t;

	assert_int_equal(unified_diff("a\nb\nc\n", 6, "a\nx\nc\n", 6, &t), 0);
	assert_string_equal(t, "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
	free(t);
	assert_int_equal(unified_diff("", 0, "a", 1, &t), 0);
	assert_string_equal(t, "@@ -0,0 +1,1 @@\n+a\n\\ No newline at end of file\n");
	free(t);
	assert_int_equal(unified_diff("same\n", 5, "same\n", 5, &t), 0);
	assert_string_equal(t, "");
	free(t);
	assert_int_equal(unified_diff("a\0b", 3, "b", 1, &t), -EILSEQ);
}

static void too_different_is_said(void **state)
{
	size_t n = 3 * UNIFIED_EDITS_MAX;
	char *a = malloc(2 * n), *b = malloc(2 * n), *t;

	for (size_t i = 0; i < n; i++) {
		memcpy(a + 2 * i, "a\n", 2);
		memcpy(b + 2 * i, "b\n", 2);
	}
	assert_int_equal(unified_diff(a, 2 * n, b, 2 * n, &t), -E2BIG);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(equal_ones_have_nothing_to_say),
	    cmocka_unit_test(files_come_change_and_go),
	    cmocka_unit_test(the_template_is_below_both),
	    cmocka_unit_test(nothing_is_below_what_is_no_directory),
	    cmocka_unit_test(lies_are_refused),
	    cmocka_unit_test(found_by_path_and_by_the_beginning_of_one),
	    cmocka_unit_test(a_text_as_a_unified_diff),
	    cmocka_unit_test(too_different_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
