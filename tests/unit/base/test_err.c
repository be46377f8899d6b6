/*
 * base/err.h: what the person who asked gets to read.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

static void set_fills_everything_and_returns_the_negative_code(void **state)
{
	struct err e = {0};

	assert_int_equal(err_set(&e, ENOENT, "no_such", "there is no %s", "bread"), -ENOENT);
	assert_int_equal(e.code, ENOENT);
	assert_string_equal(e.kind, "no_such");
	assert_string_equal(e.text, "there is no bread");
}

static void nobody_needs_to_listen(void **state)
{
	assert_int_equal(err_set(NULL, EIO, "io", "%s", "x"), -EIO);
	assert_true(err_prefix(NULL, "%s", "x") < 0);
}

static void what_is_no_errno_value_is_an_error_all_the_same(void **state)
{
	struct err e;

	assert_int_equal(err_set(&e, 0, "upstream", "it said that all went well"), -EIO);
	assert_int_equal(e.code, EIO);
	assert_string_equal(e.kind, "upstream");
	assert_int_equal(err_set(&e, -ENOENT, "x", "negative"), -EIO);
	assert_int_equal(err_set(NULL, 0, "x", "y"), -EIO);
}

static void a_text_that_is_too_long_is_cut_and_ended(void **state)
{
	char long_text[1000];
	struct err e;

	memset(long_text, 'a', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = 0;
	err_set(&e, EIO, "io", "%s", long_text);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
}

static void no_memory_is_one_answer(void **state)
{
	struct err e;

	assert_int_equal(err_nomem(&e), -ENOMEM);
	assert_int_equal(e.code, ENOMEM);
	assert_string_equal(e.kind, "no_memory");
	assert_int_equal(err_nomem(NULL), -ENOMEM);
}

static void a_prefix_stands_before_what_was_said(void **state)
{
	struct err e;

	err_set(&e, EPERM, "denied", "the door is shut");
	assert_int_equal(err_prefix(&e, "machine %d", 7), -EPERM);
	assert_string_equal(e.text, "machine 7: the door is shut");
	assert_string_equal(e.kind, "denied");
}

static void a_prefix_may_quote_the_text_and_fill_it_up(void **state)
{
	char long_text[300];
	struct err e;

	memset(long_text, 'b', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = 0;
	err_set(&e, EPERM, "denied", "short");
	err_prefix(&e, "%s", long_text);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
	/* One byte of room left: the separator does not fit, and nothing runs over. */
	long_text[sizeof(e.text) - 2] = 0;
	err_set(&e, EPERM, "denied", "short");
	err_prefix(&e, "%s", long_text);
	assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
	assert_int_equal(e.text[sizeof(e.text) - 2], ':');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(set_fills_everything_and_returns_the_negative_code),
	    cmocka_unit_test(nobody_needs_to_listen),
	    cmocka_unit_test(what_is_no_errno_value_is_an_error_all_the_same),
	    cmocka_unit_test(a_text_that_is_too_long_is_cut_and_ended),
	    cmocka_unit_test(no_memory_is_one_answer),
	    cmocka_unit_test(a_prefix_stands_before_what_was_said),
	    cmocka_unit_test(a_prefix_may_quote_the_text_and_fill_it_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
