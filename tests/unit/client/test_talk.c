/*
 * Requests and replies against a server with a script: bytes on the wire, kept connections, and
 * what a server that talks nonsense or goes away does to us.
 */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "client/client_internal.h"
#include "fake.h"

#define OK(n, body) "HTTP/1.1 200 OK\r\nContent-Length: " #n "\r\n\r\n" body

static struct fake f;
static struct panda *p;
static struct panda_error e;

static void start(const struct fake_step *steps, size_t n)
{
	fake_start(&f, steps, n);
	p = fake_client(&f);
}

static void end(void)
{
	panda_free(p);
	fake_join(&f);
}

static void a_request_says_host_key_and_length(void **state)
{
	json_t *body = json_pack("{s:i}", "a", 1), *j = NULL;

	start((struct fake_step[]){{.reply = OK(7, "{\"b\":2}"), .pieces = true}}, 1);
	assert_int_equal(panda_call(p, "POST", "/v1/x", body, &j, &e), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "b")), 2);
	json_decref(j);
	json_decref(body);
	end();
	assert_memory_equal(f.request[0], "POST /v1/x HTTP/1.1\r\n", 21);
	assert_non_null(strstr(f.request[0], "\r\nAuthorization: Bearer k\r\n"));
	assert_non_null(strstr(f.request[0], "\r\nHost: 127.0.0.1:"));
	assert_non_null(strstr(f.request[0], "\r\nContent-Length: 7\r\n"));
	assert_non_null(strstr(f.request[0], "\r\n\r\n{\"a\":1}"));
	fake_fini(&f);
}

static void a_connection_serves_many_calls(void **state)
{
	json_t *j = NULL;

	start(
	    (struct fake_step[]){
		{.reply = OK(2, "{}")},
		{.reply = "HTTP/1.1 204 No Content\r\n\r\n"},
		{.reply = "HTTP/1.1 404 x\r\nContent-Length: 13\r\n\r\n{\"error\":\"x\"}"},
		{.reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	                  "1\r\n[\r\n1\r\n]\r\n0\r\n\r\n",
	         .pieces = true}},
	    4);
	assert_int_equal(panda_call(p, "GET", "/a", NULL, NULL, &e), 0);
	assert_int_equal(panda_call(p, "POST", "/b", NULL, &j, &e), 0);
	assert_true(json_is_null(j));
	assert_int_equal(panda_call(p, "GET", "/c", NULL, NULL, &e), -ENOENT);
	assert_int_equal(panda_call(p, "GET", "/d", NULL, &j, &e), 0);
	assert_true(json_is_array(j));
	json_decref(j);
	end();
	assert_int_equal(f.conns, 1);
	/* A POST without a body says so. */
	assert_non_null(strstr(f.request[1], "\r\nContent-Length: 0\r\n"));
	assert_null(strstr(f.request[0], "Content-Length"));
	fake_fini(&f);
}

static void a_connection_that_was_closed_is_replaced(void **state)
{
	start((struct fake_step[]){{.reply = OK(2, "{}"), .close = true}, {.reply = OK(2, "{}")}},
	      2);
	assert_int_equal(panda_call(p, "GET", "/a", NULL, NULL, &e), 0);
	while (!f.closed) /* a POST that meets the end half way is not sent twice */
		sched_yield();
	assert_int_equal(panda_call(p, "POST", "/b", NULL, NULL, &e), 0);
	end();
	assert_int_equal(f.conns, 2);
	fake_fini(&f);
}

static void connection_close_is_obeyed(void **state)
{
	start((struct fake_step[]){{.reply =
	                                "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"a\":1}",
	                            .close = true},
	                           {.reply = OK(2, "{}")}},
	      2);
	json_t *j = NULL;

	assert_int_equal(panda_call(p, "GET", "/a", NULL, &j, &e), 0);
	assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
	json_decref(j);
	assert_int_equal(panda_call(p, "GET", "/b", NULL, NULL, &e), 0);
	end();
	assert_int_equal(f.conns, 2);
	fake_fini(&f);
}

static void interim_replies_are_passed_over(void **state)
{
	start(
	    (struct fake_step[]){
		{.reply = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 P\r\nA: b\r\n\r\n" OK(2, "{}"),
	         .pieces = true}},
	    1);
	assert_int_equal(panda_call(p, "GET", "/a", NULL, NULL, &e), 0);
	end();
	fake_fini(&f);
}

static void nonsense_is_a_protocol_error(void **state)
{
	static const char *const bad[] = {
	    "SSH-2.0-OpenSSH\r\n\r\n",
	    "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
	    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
	    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
	    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		json_t *j = NULL;

		start((struct fake_step[]){{.reply = bad[i], .close = true}}, 1);
		assert_int_equal(panda_call(p, "GET", "/a", NULL, &j, &e), -EPROTO);
		assert_string_equal(e.code, "protocol");
		assert_null(j);
		end();
		fake_fini(&f);
	}
}

static void a_reply_that_breaks_off_is_no_reply(void **state)
{
	static const char *const cut[] = {
	    "",
	    "HTTP/1.1 200 OK\r\nContent-",
	    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
	    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(cut); i++) {
		start((struct fake_step[]){{.reply = cut[i], .close = true}}, 1);
		assert_int_equal(panda_call(p, "POST", "/a", NULL, NULL, &e), -ECONNRESET);
		assert_string_equal(e.code, "connect");
		assert_int_equal(e.status, 0);
		end();
		fake_fini(&f);
	}
}

static void a_path_cannot_smuggle_a_second_request(void **state)
{
	start((struct fake_step[]){{.reply = OK(2, "{}")}}, 1);
	assert_int_equal(panda_call(p, "GET", "/a HTTP/1.1\r\nX: y", NULL, NULL, &e), -EINVAL);
	assert_int_equal(panda_call(p, "GET", "a", NULL, NULL, &e), -EINVAL);
	assert_int_equal(panda_call(p, "GET", "/ok", NULL, NULL, &e), 0);
	end();
	fake_fini(&f);
}

static void a_server_that_is_not_there_is_told(void **state)
{
	start((struct fake_step[]){{.reply = OK(2, "{}")}}, 1);
	assert_int_equal(panda_call(p, "GET", "/", NULL, NULL, &e), 0);
	end();
	fake_fini(&f);
	p = fake_client(&f); /* nobody listens there any more */
	assert_int_equal(panda_list(p, NULL, &e), -ECONNREFUSED);
	assert_string_equal(e.code, "connect");
	panda_free(p);
}

static void a_server_that_says_nothing_is_left(void **state)
{
	static struct fake silent;

	fake_start(&silent,
	           (struct fake_step[]){{.reply = "HTTP/1.1 200 OK\r\n", .then_read = 1 << 20}}, 1);
	p = fake_client(&silent);
	panda_set_timeout(p, 50);
	assert_int_equal(panda_list(p, NULL, &e), -ETIMEDOUT);
	assert_string_equal(e.code, "timeout");
	panda_free(p);
	fake_join(&silent);
	fake_fini(&silent);
}

/* ---- bodies ---- */

static ssize_t count_down(void *arg, void *buf, size_t n)
{
	size_t *left = arg;

	n = MIN(n, *left);
	memset(buf, 'u', n);
	*left -= n;
	return (ssize_t)n;
}

static void uploads_are_sent_with_a_length_or_chunked(void **state)
{
	size_t left = 100000;
	json_t *j = NULL;

	start((struct fake_step[]){{.reply = OK(2, "{}")}, {.reply = OK(2, "{}")}}, 2);
	assert_int_equal(panda_upload(p, "PUT", "/f", 100000, count_down, &left, &j, &e), 0);
	json_decref(j);
	left = 100000;
	assert_int_equal(panda_upload(p, "PUT", "/f", -1, count_down, &left, NULL, &e), 0);
	end();
	assert_non_null(strstr(f.request[0], "Content-Length: 100000\r\n"));
	assert_int_equal(f.request_len[0],
	                 strstr(f.request[0], "\r\n\r\n") + 4 - f.request[0] + 100000);
	assert_non_null(strstr(f.request[1], "Transfer-Encoding: chunked\r\n"));
	assert_non_null(strstr(f.request[1], "\r\n\r\n10000\r\nuuu"));
	assert_memory_equal(f.request[1] + f.request_len[1] - 7, "\r\n0\r\n\r\n", 7);
	fake_fini(&f);
}

static void a_source_that_ends_early_ends_the_upload(void **state)
{
	size_t left = 10;

	/* Whether it answers before the source has ended or not: it is not believed. */
	start((struct fake_step[]){{.reply = OK(2, "{}"),
	                            .early = true,
	                            .then_read = 200000,
	                            .close = true},
	                           {.reply = OK(2, "{}")}},
	      2);
	assert_int_equal(panda_upload(p, "PUT", "/f", 100, count_down, &left, NULL, &e), -EIO);
	assert_int_equal(panda_call(p, "GET", "/", NULL, NULL, &e), 0);
	end();
	fake_fini(&f);
}

static void an_answer_before_the_end_of_an_upload_is_heard(void **state)
{
	size_t left = 1 << 30;

	start((struct fake_step[]){{.reply = "HTTP/1.1 413 x\r\nContent-Length: 25\r\n\r\n"
	                                     "{\"error\":\"a\",\"code\":\"big\"}",
	                            .early = true,
	                            .then_read = 200000,
	                            .close = true}},
	      1);
	assert_int_equal(panda_upload(p, "PUT", "/f", 1 << 30, count_down, &left, NULL, &e),
	                 -EFBIG);
	assert_int_equal(e.status, 413);
	assert_true(left > 0);
	end();
	fake_fini(&f);
}

static int add_up(void *arg, const void *data, size_t n)
{
	size_t *sum = arg;

	*sum += n;
	return *sum > 5 ? -ENOSPC : 0;
}

static void downloads_come_in_pieces_and_can_be_stopped(void **state)
{
	size_t sum = 0;

	start((struct fake_step[]){{.reply = OK(5, "12345"), .pieces = true},
	                           {.reply = OK(9, "123456789"), .pieces = true},
	                           {.reply = "HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"}},
	      3);
	assert_int_equal(panda_download(p, "/f", add_up, &sum, &e), 0);
	assert_int_equal(sum, 5);
	sum = 0;
	assert_int_equal(panda_download(p, "/f", add_up, &sum, &e), -ENOSPC);
	assert_string_equal(e.code, "stopped");
	assert_int_equal(panda_download(p, "/f", add_up, &sum, &e), -ENOENT);
	end();
	fake_fini(&f);
}

static void files_are_read_up_to_a_limit(void **state)
{
	char *text = NULL;
	size_t n;

	start((struct fake_step[]){{.reply = OK(5, "12345")},
	                           {.reply = OK(5, "12345")},
	                           {.reply = OK(0, "")}},
	      3);
	assert_int_equal(panda_file_read(p, "id", "/f", 5, &text, &n, &e), 0);
	assert_string_equal(text, "12345");
	free(text);
	text = NULL;
	assert_int_equal(panda_file_read(p, "id", "/f", 4, &text, &n, &e), -EFBIG);
	assert_string_equal(e.code, "too_large");
	assert_null(text);
	assert_int_equal(panda_file_read(p, "id", "/f", 4, &text, &n, &e), 0);
	assert_int_equal(n, 0);
	assert_string_equal(text, "");
	free(text);
	end();
	fake_fini(&f);
}

static void files_are_written_with_their_mode_or_without(void **state)
{
	start((struct fake_step[]){{.reply = OK(2, "{}")}, {.reply = OK(2, "{}")}}, 2);
	assert_int_equal(panda_file_write(p, "id", "/a b", "hello", 5, 0640, &e), 0);
	assert_int_equal(panda_file_write(p, "id", "/c", "", 0, 0, &e), 0);
	end();
	assert_non_null(strstr(f.request[0], "PUT /v1/sandboxes/id/fs?path=%2Fa%20b&mode=0640 "));
	assert_string_equal(f.request[0] + f.request_len[0] - 9, "\r\n\r\nhello");
	assert_non_null(strstr(f.request[1], "PUT /v1/sandboxes/id/fs?path=%2Fc "));
	assert_non_null(strstr(f.request[1], "Content-Length: 0\r\n"));
	fake_fini(&f);
}

/* ---- streams ---- */

static int concat(void *arg, const struct panda_event *ev)
{
	strncat(arg, ev->data, 100);
	return !strcmp(ev->name, "stop") ? 7 : 0;
}

static void events_are_read_from_a_chunked_stream(void **state)
{
	static const char stream[] =
	    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
	    "Transfer-Encoding: chunked\r\n\r\n"
	    "8\r\ndata: a\n\r\nb\r\n\n: x\n\ndata:\r\n4\r\n b\n\n\r\n0\r\n\r\n";
	char got[64] = "";

	start((struct fake_step[]){{.reply = stream, .pieces = true, .close = true}}, 1);
	assert_int_equal(panda_events(p, "GET", "/s", NULL, concat, got, &e), 0);
	assert_string_equal(got, "ab");
	end();
	fake_fini(&f);
}

static void a_callback_can_end_a_stream(void **state)
{
	static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
				     "event: stop\ndata: a\n\ndata: b\n\n";
	char got[64] = "";

	start((struct fake_step[]){{.reply = stream, .close = true}}, 1);
	assert_int_equal(panda_events(p, "GET", "/s", NULL, concat, got, &e), 7);
	assert_string_equal(got, "a");
	end();
	fake_fini(&f);
}

static void a_stream_that_breaks_is_an_error_and_not_an_end(void **state)
{
	static const char stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
				     "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n";
	char got[64] = "";

	start((struct fake_step[]){{.reply = stream, .close = true}}, 1);
	assert_int_equal(panda_events(p, "GET", "/s", NULL, concat, got, &e), -ECONNRESET);
	assert_string_equal(got, "a");
	end();
	fake_fini(&f);
}

static void a_reply_that_is_no_stream_is_refused(void **state)
{
	struct panda_stream *s = NULL;

	start((struct fake_step[]){{.reply = OK(2, "{}"), .close = true},
	                           {.reply = "HTTP/1.1 409 x\r\nContent-Length: 37\r\n\r\n"
	                                     "{\"error\":\"p\",\"code\":\"sandbox_paused\"}",
	                            .close = true}},
	      2);
	assert_int_equal(panda_stream_open(p, "GET", "/s", NULL, &s, &e), -EPROTO);
	assert_int_equal(panda_stream_open(p, "GET", "/s", NULL, &s, &e), -EEXIST);
	assert_string_equal(e.code, "sandbox_paused");
	assert_null(s);
	end();
	fake_fini(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_request_says_host_key_and_length),
	    cmocka_unit_test(a_connection_serves_many_calls),
	    cmocka_unit_test(a_connection_that_was_closed_is_replaced),
	    cmocka_unit_test(connection_close_is_obeyed),
	    cmocka_unit_test(interim_replies_are_passed_over),
	    cmocka_unit_test(nonsense_is_a_protocol_error),
	    cmocka_unit_test(a_reply_that_breaks_off_is_no_reply),
	    cmocka_unit_test(a_path_cannot_smuggle_a_second_request),
	    cmocka_unit_test(a_server_that_is_not_there_is_told),
	    cmocka_unit_test(a_server_that_says_nothing_is_left),
	    cmocka_unit_test(uploads_are_sent_with_a_length_or_chunked),
	    cmocka_unit_test(a_source_that_ends_early_ends_the_upload),
	    cmocka_unit_test(an_answer_before_the_end_of_an_upload_is_heard),
	    cmocka_unit_test(downloads_come_in_pieces_and_can_be_stopped),
	    cmocka_unit_test(files_are_read_up_to_a_limit),
	    cmocka_unit_test(files_are_written_with_their_mode_or_without),
	    cmocka_unit_test(events_are_read_from_a_chunked_stream),
	    cmocka_unit_test(a_callback_can_end_a_stream),
	    cmocka_unit_test(a_stream_that_breaks_is_an_error_and_not_an_end),
	    cmocka_unit_test(a_reply_that_is_no_stream_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
