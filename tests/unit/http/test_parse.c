/*
 * http/parse.h where the server does not show it: answers, and lists of words.
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
#include "http/parse.h"

#define RAW(s) s, sizeof(s) - 1

static const struct {
	const char *name, *bytes;
	size_t n;
	const char *method;
	int status; /* 0: refused */
	enum http_body_kind body;
	uint64_t length;
	bool keep;
} answers[] = {
    {"length", RAW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), "GET", 200, HTTP_BODY_LENGTH, 5,
     true},
    {"empty", RAW("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), "GET", 200, HTTP_BODY_NONE, 0,
     true},
    {"chunked", RAW("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), "GET", 200,
     HTTP_BODY_CHUNKED, 0, true},
    {"until the end", RAW("HTTP/1.1 200 OK\r\n\r\n"), "GET", 200, HTTP_BODY_EOF, 0, false},
    {"1.0", RAW("HTTP/1.0 404 Not Found\r\nContent-Length: 5\r\n\r\n"), "GET", 404,
     HTTP_BODY_LENGTH, 5, false},
    {"close", RAW("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n"), "GET", 200,
     HTTP_BODY_LENGTH, 5, false},
    {"no reason", RAW("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"), "GET", 200, HTTP_BODY_NONE, 0,
     true},
    {"empty reason", RAW("HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"), "GET", 200, HTTP_BODY_NONE,
     0, true},
    {"to HEAD", RAW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), "HEAD", 200, HTTP_BODY_NONE, 5,
     true},
    {"204", RAW("HTTP/1.1 204 No Content\r\n\r\n"), "GET", 204, HTTP_BODY_NONE, 0, true},
    {"304 with a length", RAW("HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n"), "GET", 304,
     HTTP_BODY_NONE, 5, true},
    {"101", RAW("HTTP/1.1 101 x\r\nConnection: Upgrade\r\n\r\n"), "GET", 101, HTTP_BODY_NONE, 0,
     true},
    {"both", RAW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
     "GET", 0, 0, 0, 0},
    {"two lengths", RAW("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"), "GET",
     0, 0, 0, 0},
    {"gzip", RAW("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"two digits", RAW("HTTP/1.1 20 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"four digits", RAW("HTTP/1.1 2000 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"099", RAW("HTTP/1.1 099 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"letters", RAW("HTTP/1.1 2x0 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"NUL in the reason", RAW("HTTP/1.1 200 \0\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"bare CR in the reason", RAW("HTTP/1.1 200 a\rb\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"HTTP/2.0", RAW("HTTP/2.0 200 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"ICY", RAW("ICY 200 OK\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"short", RAW("HTTP/1.1\r\n\r\n"), "GET", 0, 0, 0, 0},
    {"nothing", RAW("\r\n"), "GET", 0, 0, 0, 0},
    {"folded", RAW("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n"), "GET", 0, 0, 0, 0},
};

static void answers_are_understood_or_refused(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
		autofree char *copy = malloc(answers[i].n);
		struct http_head h;
		const char *why = NULL;
		int r;

		memcpy(copy, answers[i].bytes, answers[i].n);
		r = http_parse_response(copy, answers[i].n, answers[i].method, &h, &why);
		if (r != (answers[i].status ? 0 : -EBADMSG))
			fail_msg("%s: %d", answers[i].name, r);
		if (r < 0) {
			assert_non_null(why);
			continue;
		}
		if (h.status != answers[i].status || h.body != answers[i].body ||
		    h.length != answers[i].length || h.keep_alive != answers[i].keep)
			fail_msg("%s: status %d body %d length %llu keep %d", answers[i].name,
			         h.status, h.body, (unsigned long long)h.length, h.keep_alive);
	}
}

static void an_answer_keeps_its_reason_and_fields(void **state)
{
	char text[] = "HTTP/1.1 418 I'm a teapot\r\nA: b\r\na: c \r\n\r\n";
	struct http_head h;
	const char *why;

	assert_int_equal(http_parse_response(text, sizeof(text) - 1, "GET", &h, &why), 0);
	assert_string_equal(h.reason, "I'm a teapot");
	assert_int_equal(h.n, 2);
	assert_string_equal(http_head_field(&h, "A"), "b");
	assert_string_equal(h.field[1].value, "c");
}

static void words_are_found_in_lists(void **state)
{
	assert_true(http_list_has("upgrade", "Upgrade"));
	assert_true(http_list_has("keep-alive,\t upgrade ", "upgrade"));
	assert_true(http_list_has(",,a , ,b", "b"));
	assert_false(http_list_has("upgrades", "upgrade"));
	assert_false(http_list_has("x upgrade", "upgrade"));
	assert_false(http_list_has("", "upgrade"));
	assert_false(http_list_has(NULL, "upgrade"));
}

/* The search goes on where it was, and finds the same end as one that sees all at once. */
static void the_end_of_a_head_is_found_however_it_comes(void **state)
{
	static const char text[] = "GET / HTTP/1.1\r\nA: b\r\n\r\nrest\r\n\r\n";
	size_t scanned = 0, end = sizeof("GET / HTTP/1.1\r\nA: b\r\n\r\n") - 1;

	for (size_t n = 0; n < end; n++)
		assert_int_equal(http_head_end(text, n, &scanned), 0);
	assert_int_equal(http_head_end(text, end, &scanned), end);
	scanned = 0;
	assert_int_equal(http_head_end(text, sizeof(text) - 1, &scanned), end);
	scanned = 0;
	assert_int_equal(http_head_end("a\nb", 3, &scanned), -EBADMSG);
	scanned = 0;
	assert_int_equal(http_head_end("\n", 1, &scanned), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(answers_are_understood_or_refused),
	    cmocka_unit_test(an_answer_keeps_its_reason_and_fields),
	    cmocka_unit_test(words_are_found_in_lists),
	    cmocka_unit_test(the_end_of_a_head_is_found_however_it_comes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
