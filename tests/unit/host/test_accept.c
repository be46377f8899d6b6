/*
 * Which end of a command counts as success.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "host/accept.h"

static bool passes(const char *accept, int64_t exit_code, const char *out)
{
	struct outcome o = {.exit_code = exit_code,
	                    .duration_ms = 1500,
	                    .out = out,
	                    .out_len = strlen(out),
	                    .err = "",
	                    .err_len = 0};
	struct accept a;

	assert_int_equal(accept_parse(accept, &a, NULL), 0);
	return accept_holds(&a, &o);
}

static void numbers_are_compared(void **state)
{
	assert_true(passes("exit_code == 0", 0, ""));
	assert_false(passes("exit_code == 0", 1, ""));
	assert_true(passes(" exit_code!=0 ", 1, ""));
	assert_true(passes("exit_code >= 2", 2, ""));
	assert_false(passes("exit_code > 2", 2, ""));
	assert_true(passes("exit_code <= 2", 2, ""));
	assert_false(passes("exit_code < 2", 2, ""));
	assert_true(passes("exit_code == -1", -1, ""));
	assert_true(passes("duration_ms < 2000 && duration_ms > 1000", 0, ""));
	assert_true(passes("stdout_bytes == 3 && stderr_bytes == 0", 0, "abc"));
}

static void texts_are_looked_for(void **state)
{
	assert_true(passes("stdout contains \"ok\"", 0, "it is ok\n"));
	assert_false(passes("stdout contains \"ok\"", 0, "it is not"));
	assert_false(passes("stdout lacks \"ok\"", 0, "it is ok\n"));
	assert_true(passes("stderr lacks \"warning\"", 0, "warning"));
	assert_true(passes("stdout contains \"a \\\"b\\\" \\\\\"", 0, "a \"b\" \\"));
	assert_true(passes("exit_code == 0 && stdout contains \"&&\"", 0, "x && y"));
}

static void nonsense_is_refused(void **state)
{
	static const char *const bad[] = {"",
	                                  "true",
	                                  "exit_code",
	                                  "exit_code ==",
	                                  "exit_code == x",
	                                  "exit_code = 0",
	                                  "exit_code == 0 &&",
	                                  "exit_code == 0 || exit_code == 1",
	                                  "exit_code == 0 exit_code == 0",
	                                  "stdout contains ok",
	                                  "stdout contains \"ok",
	                                  "stdout contains \"\"",
	                                  "stdout == 3",
	                                  "exit_code contains \"1\"",
	                                  "exit_code == 99999999999999999999"};
	struct accept a;
	struct err e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		assert_int_equal(accept_parse(bad[i], &a, &e), -EINVAL);
		assert_string_equal(e.kind, "bad_request");
	}
}

static void so_many_terms_and_no_more(void **state)
{
	static const char term[] = "exit_code == 0 && ";
	char text[400] = "";
	size_t n = 0;
	struct accept a;

	for (int i = 0; i < ACCEPT_TERMS_MAX; i++, n += sizeof(term) - 1)
		memcpy(text + n, term, sizeof(term));
	text[n - 4] = 0;
	assert_int_equal(accept_parse(text, &a, NULL), 0);
	assert_int_equal(a.n, ACCEPT_TERMS_MAX);
	text[n - 4] = ' ';
	memcpy(text + n, term, sizeof(term) - 4);
	assert_int_equal(accept_parse(text, &a, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(numbers_are_compared),
	    cmocka_unit_test(texts_are_looked_for),
	    cmocka_unit_test(nonsense_is_refused),
	    cmocka_unit_test(so_many_terms_and_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
