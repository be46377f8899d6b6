/*
 * client/sse.c: events come out the same, wherever the bytes are cut.
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
#include "client/client_internal.h"

/* All events of text as "name=data|", fed in pieces of that size. */
static char *events_of(const char *text, size_t n, size_t piece)
{
	struct sse_reader s = {0};
	char *out = NULL;
	size_t len;
	FILE *f = open_memstream(&out, &len);

	for (size_t at = 0; at < n; at += piece) {
		size_t m = MIN(piece, n - at), done = 0, used;
		struct panda_event ev;

		while (sse_reader_feed(&s, text + at + done, m - done, &used, &ev) > 0) {
			assert_int_equal(strlen(ev.data), ev.len);
			fprintf(f, "%s=%s|", ev.name, ev.data);
			done += used;
		}
	}
	sse_reader_fini(&s);
	fclose(f);
	return out;
}

static void check(const char *text, const char *want)
{
	size_t n = strlen(text);

	for (size_t piece = 1; piece <= n; piece++) {
		autofree char *got = events_of(text, n, piece);

		assert_string_equal(got, want);
	}
}

static void events_come_out_whole_across_any_border(void **state)
{
	check("event: stdout\ndata: {\"chunk\":\"a\"}\n\nevent: exit\ndata: {}\n\n",
	      "stdout={\"chunk\":\"a\"}|exit={}|");
}

static void lines_of_data_are_joined(void **state)
{
	check("data: a\ndata: b\ndata:\ndata:  c\n\n", "message=a\nb\n\n c|");
}

static void comments_and_empty_events_are_nothing(void **state)
{
	check(": ping\n\n\nevent: x\n\ndata: y\n\n:\n\n", "message=y|");
}

static void crlf_is_a_line_end(void **state)
{
	check("event: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", "a=b|message=c|");
}

static void unknown_fields_are_left_out(void **state)
{
	check("id: 7\nretry: 1\ndatum: x\ndata: y\ndata\n\n", "message=y\n|");
}

static void a_tail_without_its_empty_line_is_no_event(void **state)
{
	check("data: a\n\ndata: b\n", "message=a|");
}

static void an_endless_line_is_refused(void **state)
{
	struct panda_event ev;
	struct sse_reader s = {0};
	char block[4096];
	size_t used;
	int r = 0, fed = 0;

	memset(block, 'x', sizeof(block));
	while (r == 0 && fed < 2 * PANDA_EVENT_MAX) {
		r = sse_reader_feed(&s, block, sizeof(block), &used, &ev);
		fed += (int)sizeof(block);
	}
	assert_int_equal(r, -EMSGSIZE);
	assert_true(fed <= PANDA_EVENT_MAX + (int)sizeof(block));
	sse_reader_fini(&s);
}

static void endless_lines_of_data_are_refused(void **state)
{
	struct panda_event ev;
	struct sse_reader s = {0};
	size_t used;
	int r = 0;

	for (int i = 0; r == 0 && i < PANDA_EVENT_MAX; i++)
		r = sse_reader_feed(&s, "data: 0123456789\n", 17, &used, &ev);
	assert_int_equal(r, -EMSGSIZE);
	sse_reader_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(events_come_out_whole_across_any_border),
	    cmocka_unit_test(lines_of_data_are_joined),
	    cmocka_unit_test(comments_and_empty_events_are_nothing),
	    cmocka_unit_test(crlf_is_a_line_end),
	    cmocka_unit_test(unknown_fields_are_left_out),
	    cmocka_unit_test(a_tail_without_its_empty_line_is_no_event),
	    cmocka_unit_test(an_endless_line_is_refused),
	    cmocka_unit_test(endless_lines_of_data_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
