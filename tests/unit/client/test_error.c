/*
 * client/error.c: what a status and a body mean.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "client/client_internal.h"

static struct panda_error e;

static int map(int status, const char *body)
{
	return perr_reply(&e, status, body, body ? strlen(body) : 0);
}

static void our_servers_errors_keep_code_text_and_id(void **state)
{
	assert_int_equal(map(404, "{\"error\":\"no such sandbox\",\"code\":\"sandbox_not_found\","
	                          "\"request_id\":\"r1\"}"),
	                 -ENOENT);
	assert_int_equal(e.status, 404);
	assert_string_equal(e.code, "sandbox_not_found");
	assert_string_equal(e.text, "no such sandbox");
	assert_string_equal(e.request_id, "r1");
}

static void no_memory_is_an_error_of_its_own(void **state)
{
	assert_int_equal(perr_nomem(&e), -ENOMEM);
	assert_string_equal(e.code, "no_memory");
	assert_string_equal(e.text, "out of memory");
}

static void statuses_become_errnos(void **state)
{
	static const int pairs[][2] = {{400, EINVAL}, {401, EACCES}, {403, EACCES}, {404, ENOENT},
	                               {405, EINVAL}, {409, EEXIST}, {413, EFBIG},  {422, EINVAL},
	                               {429, EAGAIN}, {500, EIO},    {502, EIO},    {503, EAGAIN},
	                               {507, ENOSPC}};

	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		assert_int_equal(map(pairs[i][0], "{\"error\":\"x\"}"), -pairs[i][1]);
		assert_int_equal(perr_reply(NULL, pairs[i][0], NULL, 0), -pairs[i][1]);
	}
}

static void other_spellings_of_the_text_are_understood(void **state)
{
	map(400, "{\"message\":\"m\"}");
	assert_string_equal(e.text, "m");
	map(400, "{\"error\":\"\",\"detail\":\"d\"}");
	assert_string_equal(e.text, "d");
}

static void a_body_that_is_not_json_is_one_harmless_line(void **state)
{
	map(502, "<html>\n\033[31mBad\r\n\tGateway</html>");
	assert_string_equal(e.text, "<html> [31mBad Gateway</html>");
	map(502, "");
	assert_non_null(strstr(e.text, "502"));
	map(502, NULL);
	assert_non_null(strstr(e.text, "502"));
	map(400, "{\"error\":{\"nested\":1}}");
	assert_string_equal(e.text, "{\"error\":{\"nested\":1}}");
}

static void long_texts_are_cut(void **state)
{
	char body[4096];

	memset(body, 'x', sizeof(body));
	assert_int_equal(perr_reply(&e, 500, body, sizeof(body)), -EIO);
	assert_true(strlen(e.text) < sizeof(e.text));
}

static void a_finding_of_our_own_has_no_status(void **state)
{
	map(404, "{\"error\":\"x\",\"request_id\":\"r\"}");
	assert_int_equal(perr_set(&e, ECONNREFUSED, "connect", "no %s", "luck"), -ECONNREFUSED);
	assert_int_equal(e.status, 0);
	assert_string_equal(e.text, "no luck");
	assert_string_equal(e.request_id, "");
	assert_int_equal(perr_set(NULL, EIO, "x", "y"), -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(our_servers_errors_keep_code_text_and_id),
	    cmocka_unit_test(no_memory_is_an_error_of_its_own),
	    cmocka_unit_test(statuses_become_errnos),
	    cmocka_unit_test(other_spellings_of_the_text_are_understood),
	    cmocka_unit_test(a_body_that_is_not_json_is_one_harmless_line),
	    cmocka_unit_test(long_texts_are_cut),
	    cmocka_unit_test(a_finding_of_our_own_has_no_status),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
