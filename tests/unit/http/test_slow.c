/*
 * Slow and silent peers: every wait for them has an end, and no wait of ours is held against them.
 */
#include "bed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct http_req *req;
static unsigned ends, aborts;
static size_t body;
static bool wanted = true;

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	req = NULL;
	ends++;
	aborts += aborted;
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	body += n;
	if (wanted)
		http_body_more(r);
}

static void on_body_end(void *arg, struct http_req *r)
{
	http_reply(r, 200, NULL, "", 0);
}

static void handle(void *arg, struct http_req *r)
{
	static const struct http_body_ops ops = {.data = on_data, .end = on_body_end};

	req = r;
	http_on_end(r, on_end, NULL);
	if (strcmp(http_path(r), "/later") != 0)
		http_body_stream(r, &ops, NULL);
}

static int start(struct bed *b)
{
	ends = aborts = 0;
	body = 0;
	req = NULL;
	wanted = true;
	bed_start(b, &(struct http_config){.handler = handle});
	return bed_connect(b);
}

static void stop(struct bed *b, int fd)
{
	close(fd);
	bed_run(b);
	assert_int_equal(http_server_conns(b->server), 0);
	bed_stop(b);
}

/* Bytes of text, one per interval, until the server has had enough. How long it took. */
static uint64_t drip(struct bed *b, int fd, const char *text, uint64_t each_ms)
{
	uint64_t from = bed_now_ms();

	for (; *text; text++) {
		if (send(fd, text, 1, MSG_NOSIGNAL) < 0)
			break;
		bed_pass(b, each_ms);
		if (recv(fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
			break; /* an answer, or the end */
	}
	return bed_now_ms() - from;
}

static void a_silent_connection_is_closed_after_the_head_deadline(void **state)
{
	struct bed b;
	int fd = start(&b);

	bed_pass(&b, 9900);
	assert_false(bed_closed(&b, fd));
	bed_pass(&b, 200);
	assert_int_equal(bed_status(&b, fd), -1); /* it said nothing, it gets nothing */
	stop(&b, fd);
}

static void a_dripped_head_has_an_absolute_deadline(void **state)
{
	struct bed b;
	int fd = start(&b);
	uint64_t took = drip(&b, fd, "GET / HTTP/1.1\r\nHost: abcdefghijklmnopqrstuvwxyz\r\n", 500);

	assert_in_range(took, 9500, 10500);
	assert_int_equal(bed_status(&b, fd), 408);
	assert_true(bed_closed(&b, fd));
	stop(&b, fd);
}

static void an_idle_connection_is_kept_and_then_closed(void **state)
{
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(bed_status(&b, fd), 200);
	bed_pass(&b, 74000);
	bed_text(&b, fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(bed_status(&b, fd), 200);
	bed_pass(&b, 74900);
	assert_false(bed_closed(&b, fd));
	bed_pass(&b, 200);
	assert_true(bed_closed(&b, fd));
	stop(&b, fd);
}

static void the_second_head_has_a_deadline_from_its_first_byte_on(void **state)
{
	struct bed b;
	int fd = start(&b);
	uint64_t took;

	bed_text(&b, fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(bed_status(&b, fd), 200);
	bed_pass(&b, 60000);
	took = drip(&b, fd, "GET / HTTP/1.1\r\nHost: abcdefghijklmnopqrstuvwxyz\r\n", 1000);
	assert_in_range(took, 10000, 11000);
	assert_int_equal(bed_status(&b, fd), 408);
	stop(&b, fd);
}

#define POST "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"

static void a_dripped_body_is_given_up(void **state)
{
	static char text[200];
	struct bed b;
	int fd = start(&b);
	uint64_t took;

	memset(text, 'x', sizeof(text) - 1);
	bed_text(&b, fd, POST);
	took = drip(&b, fd, text, 500);
	assert_in_range(took, 9500, 10500);
	assert_int_equal(bed_status(&b, fd), 408);
	assert_true(bed_closed(&b, fd));
	assert_int_equal(aborts, 1);
	stop(&b, fd);
}

static void a_body_that_stops_in_the_middle_is_given_up(void **state)
{
	static char text[100000];
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, POST);
	bed_send(&b, fd, text, sizeof(text));
	bed_pass(&b, 9000);
	assert_int_equal(ends, 0);
	bed_pass(&b, 12000); /* the window that had bytes, and one without */
	assert_int_equal(bed_status(&b, fd), 408);
	assert_int_equal(aborts, 1);
	stop(&b, fd);
}

static void a_slow_but_honest_body_is_taken(void **state)
{
	static char text[300];
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n");
	for (int i = 0; i < 100; i++) {
		bed_send(&b, fd, text, sizeof(text));
		bed_pass(&b, 1000);
	}
	assert_int_equal(body, 30000);
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);
}

/* A handler that needs a moment for each piece does not set the clock of the client back. */
static void a_dripped_body_is_given_up_by_a_busy_handler_too(void **state)
{
	struct bed b;
	int fd = start(&b);
	uint64_t from;

	wanted = false;
	bed_text(&b, fd, POST);
	from = bed_now_ms();
	for (int i = 0; i < 100 && !ends; i++) {
		bed_send(&b, fd, "x", 1);
		bed_pass(&b, 100); /* the handler's */
		if (req)
			http_body_more(req);
		bed_pass(&b, 400); /* the client's */
	}
	assert_in_range(bed_now_ms() - from, 10000, 13000);
	assert_int_equal(aborts, 1);
	assert_int_equal(bed_status(&b, fd), 408);
	stop(&b, fd);
}

/* While the handler does not want the body, the client cannot send it. */
static void our_own_slowness_is_not_held_against_the_client(void **state)
{
	static char text[1000];
	struct bed b;
	int fd = start(&b);

	wanted = false;
	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n");
	for (int i = 0; i < 10; i++) {
		bed_send(&b, fd, text, sizeof(text));
		bed_pass(&b, 60000);
		assert_int_equal(ends, 0);
		http_body_more(req);
		bed_run(&b);
	}
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);
}

/* ---- readers ---- */

static void fill_up(struct http_req *r)
{
	static char data[HTTP_CHUNK];

	http_begin(r, 200, NULL, -1);
	while (http_room(r))
		http_send(r, data, sizeof(data));
}

static void a_reader_that_takes_nothing_is_cut(void **state)
{
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	fill_up(req);
	bed_pass(&b, 29000);
	assert_int_equal(ends, 0);
	bed_pass(&b, 2000);
	assert_int_equal(ends, 1);
	assert_int_equal(aborts, 1);
	stop(&b, fd);
}

static void a_reader_that_takes_a_little_now_and_then_is_not(void **state)
{
	static char buf[200000];
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "GET /later HTTP/1.1\r\nHost: a\r\n\r\n");
	fill_up(req);
	for (int i = 0; i < 2; i++) {
		bed_pass(&b, 25000);
		/* Unix sockets wake their writer when most of the buffer is free. */
		assert_true(recv(fd, buf, sizeof(buf), 0) > 0);
		bed_run(&b);
	}
	assert_int_equal(ends, 0);
	stop(&b, fd);
	assert_int_equal(ends, 1);
}

/* The client was told that it is over, and does not go: it has two seconds. */
static void a_refused_client_does_not_stay(void **state)
{
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "NONSENSE\r\n\r\n");
	assert_int_equal(bed_status(&b, fd), 400);
	assert_int_equal(http_server_conns(b.server), 1);
	for (int i = 0; i < 10; i++) {
		bed_text(&b, fd, "and so on");
		bed_pass(&b, 300);
	}
	assert_int_equal(http_server_conns(b.server), 0);
	stop(&b, fd);
}

/* An unread rest of a body is drained for a while, not for ever. */
static void a_body_nobody_read_is_not_waited_for(void **state)
{
	struct bed b;
	int fd = start(&b);

	bed_text(&b, fd, "POST /later HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
	http_reply(req, 200, NULL, "", 0);
	assert_int_equal(bed_status(&b, fd), 200);
	bed_pass(&b, 4900);
	assert_int_equal(http_server_conns(b.server), 1);
	bed_pass(&b, 200);
	assert_int_equal(http_server_conns(b.server), 0);
	stop(&b, fd);
}

static void an_endless_body_nobody_reads_is_not_drained_for_ever(void **state)
{
	static char chunk[1 + 3 + 2 + 0x1000 + 2];
	struct bed b;
	int fd = start(&b), n = snprintf(chunk, 10, "1000\r\n");

	memcpy(chunk + n + 0x1000, "\r\n", 2);
	bed_text(&b, fd, "POST /later HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
	http_reply(req, 200, NULL, "", 0);
	assert_int_equal(bed_status(&b, fd), 200);
	for (int i = 0; i < 60; i++)
		bed_send(&b, fd, chunk, (size_t)n + 0x1000 + 2);
	assert_false(bed_closed(&b, fd));
	for (int i = 0; i < 10; i++)
		bed_send(&b, fd, chunk, (size_t)n + 0x1000 + 2);
	assert_true(bed_closed(&b, fd));
	stop(&b, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_silent_connection_is_closed_after_the_head_deadline),
	    cmocka_unit_test(a_dripped_head_has_an_absolute_deadline),
	    cmocka_unit_test(an_idle_connection_is_kept_and_then_closed),
	    cmocka_unit_test(the_second_head_has_a_deadline_from_its_first_byte_on),
	    cmocka_unit_test(a_dripped_body_is_given_up),
	    cmocka_unit_test(a_body_that_stops_in_the_middle_is_given_up),
	    cmocka_unit_test(a_slow_but_honest_body_is_taken),
	    cmocka_unit_test(a_dripped_body_is_given_up_by_a_busy_handler_too),
	    cmocka_unit_test(our_own_slowness_is_not_held_against_the_client),
	    cmocka_unit_test(a_reader_that_takes_nothing_is_cut),
	    cmocka_unit_test(a_reader_that_takes_a_little_now_and_then_is_not),
	    cmocka_unit_test(a_refused_client_does_not_stay),
	    cmocka_unit_test(a_body_nobody_read_is_not_waited_for),
	    cmocka_unit_test(an_endless_body_nobody_reads_is_not_drained_for_ever),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
