/*
 * http/server.h: requests and replies, bodies, flow, clients that go, upgrades, drain and caps.
 */
#include "base/account.h"
#include "base/cleanup.h"
#include "base/macro.h"
#include "bed.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* What the handler of a test saw, and what it should do. */
struct seen {
	struct http_req *req; /* NULL once it has ended */
	unsigned calls, ends, aborts, logs;
	int status;
	uint64_t logged_bytes;
	char body[4096];
	size_t body_len, pieces, body_ends;
	const char *piece; /* not given back yet */
	size_t piece_len;
	uint64_t to_send, sent;
	unsigned writable;
};

static struct seen seen;

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	assert_ptr_equal(r, seen.req);
	assert_string_equal(http_method(r)[0] ? "readable" : "", "readable");
	seen.req = NULL;
	seen.ends++;
	seen.aborts += aborted;
}

static void on_logged(void *arg, const struct http_req *r, int status, uint64_t bytes_out,
                      uint64_t took_us, bool aborted)
{
	seen.logs++;
	seen.status = status;
	seen.logged_bytes = bytes_out;
}

static void note(struct http_req *r)
{
	seen.req = r;
	seen.calls++;
	http_on_end(r, on_end, NULL);
}

static int start(struct bed *b, void (*handler)(void *, struct http_req *))
{
	struct http_config c = {.handler = handler, .logged = on_logged};

	memset(&seen, 0, sizeof(seen));
	bed_start(b, &c);
	return bed_connect(b);
}

static void stop(struct bed *b, int fd)
{
	if (fd >= 0)
		close(fd);
	bed_run(b);
	assert_int_equal(http_server_conns(b->server), 0);
	assert_int_equal(seen.ends, seen.calls);
	assert_int_equal(seen.logs, seen.calls);
	assert_null(seen.req);
	bed_stop(b);
}

#define GET "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

/* ---- plain requests ---- */

static void show(void *arg, struct http_req *r)
{
	char text[512];
	const char *name, *value;
	int n = snprintf(text, sizeof(text), "%s|%s|%s|%s|%lld", http_method(r), http_path(r),
	                 http_query(r), http_peer(r), (long long)http_body_length(r));

	for (size_t i = 0; http_header_at(r, i, &name, &value); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "|%s=%s", name, value);
	assert_string_equal(http_header(r, "hOST"), "a");
	assert_null(http_header(r, "nothing"));
	note(r);
	http_add_header(r, "X-Test", "a\r\nInjected: b");
	http_add_header(r, "Bad Name", "x");
	http_add_header(r, "content-length", "0");
	http_add_header(r, "Transfer-Encoding", "chunked");
	http_reply(r, 200, "text/plain", text, (size_t)n);
	assert_true(http_begun(r));      /* still there */
	http_reply(r, 500, NULL, "", 0); /* the second one is nobody's */
}

static void a_request_reaches_the_handler_as_it_was_sent(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, show);

	bed_text(&b, fd, "PUT /a%20b?x=1&y=? HTTP/1.1\r\nHost: a\r\nX:  y z \r\nx: 2\r\n\r\n");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_non_null(strstr(buf, "HTTP/1.1 200 OK\r\n"));
	assert_non_null(strstr(buf, "\r\nContent-Type: text/plain\r\n"));
	assert_non_null(strstr(buf, "\r\n\r\nPUT|/a%20b|x=1&y=?|unix|0|Host=a|X=y z|x=2"));
	assert_non_null(strstr(buf, "\r\nX-Test: a??Injected: b\r\n"));
	assert_null(strstr(buf, "Bad Name"));
	assert_null(strstr(buf, "content-length"));
	assert_null(strstr(buf, "Transfer-Encoding"));
	assert_null(strstr(buf, "Connection:"));
	assert_int_equal(seen.status, 200);
	stop(&b, fd);
}

static void ok(void *arg, struct http_req *r)
{
	note(r);
	http_reply(r, 200, "text/plain", "hello", 5);
}

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)); text++)
		n++;
	return n;
}

static void pipelined_requests_are_answered_in_order_one_by_one(void **state)
{
	struct bed b;
	char buf[4096];
	int fd = start(&b, show);

	bed_text(&b, fd,
	         "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\nGET /3 "
	         "HTTP/1.1\r\nHo");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_int_equal(count(buf, "200 OK"), 2);
	assert_true(strstr(buf, "GET|/1|") < strstr(buf, "GET|/2|"));
	bed_text(&b, fd, "st: a\r\n\r\n");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_non_null(strstr(buf, "GET|/3|"));
	assert_int_equal(seen.calls, 3);
	stop(&b, fd);
}

/* Writes down which connection each request came on: by the first letter of its path. */
static char turns[256];

static void in_turn(void *arg, struct http_req *r)
{
	size_t n = strlen(turns);

	assert_true(n + 1 < sizeof(turns));
	turns[n] = http_path(r)[1];
	note(r);
	http_reply(r, 200, NULL, NULL, 0);
}

/* Into the socket; the server has not looked yet. */
static void send_many(int fd, char name, unsigned n)
{
	char text[64];
	int len = snprintf(text, sizeof(text), "GET /%c HTTP/1.1\r\nHost: a\r\n\r\n", name);

	while (n--)
		assert_int_equal(send(fd, text, (size_t)len, 0), len);
}

static void connections_that_pipeline_take_turns(void **state)
{
	struct bed b;
	int a = start(&b, in_turn), c = bed_connect(&b);

	memset(turns, 0, sizeof(turns));
	send_many(a, 'a', 20);
	send_many(c, 'c', 20);
	bed_run(&b);
	assert_int_equal(strlen(turns), 40);
	for (size_t i = 0; i < 40; i += 2)
		assert_int_not_equal(turns[i], turns[i + 1]);
	close(c);
	stop(&b, a);
}

/* Asks once and waits for the answer; says how many requests of others were served before it. */
static size_t served_before(struct bed *b, int fd)
{
	size_t n = strlen(turns);

	bed_text(b, fd, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
	return (size_t)(strchr(turns, 'x') - turns) - n;
}

static void one_that_asks_once_does_not_wait_behind_those_that_pipeline(void **state)
{
	enum { MANY = 12, EACH = 15 };
	struct bed b;
	int quiet = start(&b, in_turn), many[MANY];
	size_t before;

	memset(turns, 0, sizeof(turns));
	for (int i = 0; i < MANY; i++) {
		many[i] = bed_connect(&b);
		send_many(many[i], 'm', EACH);
	}
	before = served_before(&b, quiet);
	print_message("%zu of %d came first\n", before, MANY * EACH);
	assert_true(before <= MANY + 8);
	assert_int_equal(strlen(turns), MANY * EACH + 1);
	for (int i = 0; i < MANY; i++)
		close(many[i]);
	stop(&b, quiet);
}

static void a_client_that_goes_while_it_waits_for_its_turn_is_forgotten(void **state)
{
	struct bed b;
	int a = start(&b, in_turn), c = bed_connect(&b);

	memset(turns, 0, sizeof(turns));
	send_many(a, 'a', 100);
	send_many(c, 'c', 100);
	close(c); /* the server sees it when it has served one */
	bed_run(&b);
	assert_int_equal(count(turns, "a"), 100);
	assert_true(count(turns, "c") <= 1);
	send_many(a, 'a', 40);
	http_server_free(b.server); /* with connections that wait */
	loop_free(b.loop);
	close(a);
}

static void heads_have_no_body_and_its_length(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, ok);

	bed_text(&b, fd, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" GET);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_int_equal(count(buf, "Content-Length: 5"), 2);
	assert_int_equal(count(buf, "hello"), 1);
	stop(&b, fd);
}

static void none(void *arg, struct http_req *r)
{
	note(r);
	http_reply(r, 204, NULL, "ignored", 7);
}

static void a_204_has_neither_body_nor_length(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, none);

	bed_text(&b, fd, GET);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_null(strstr(buf, "Content-Length"));
	assert_null(strstr(buf, "Transfer-Encoding"));
	assert_null(strstr(buf, "ignored"));
	stop(&b, fd);
}

static void connections_end_when_the_client_wants_it(void **state)
{
	static const struct {
		const char *text;
		bool closed;
	} all[] = {
	    {GET, false},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: x\r\nConnection: y, Close\r\n\r\n", true},
	    {"GET / HTTP/1.0\r\n\r\n", true},
	    {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct bed b;
		char buf[2048];
		int fd = start(&b, ok);

		bed_text(&b, fd, all[i].text);
		assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)) < 0, all[i].closed);
		assert_non_null(strstr(buf, "hello"));
		assert_int_equal(strstr(buf, "Connection: close") != NULL, all[i].closed);
		stop(&b, fd);
	}
}

/* ---- bodies ---- */

static void collected(void *arg, struct http_req *r, char *p, size_t n)
{
	assert_true(n < sizeof(seen.body));
	assert_int_equal(p[n], 0);
	memcpy(seen.body, p, n + 1);
	seen.body_len = n;
	seen.body_ends++;
	http_reply(r, 200, NULL, p, n);
}

static void collect(void *arg, struct http_req *r)
{
	note(r);
	http_body_collect(r, 10, collected, NULL);
}

static void bodies_are_collected(void **state)
{
	static const struct {
		const char *text, *body;
		int status;
	} all[] = {
	    {GET, "", 200},
	    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "abc", 200},
	    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789", "0123456789",
	     200},
	    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", NULL, 413},
	    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	     "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n",
	     "0123456789", 200},
	    {"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	     "5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n",
	     NULL, 413},
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct bed b;
		int fd = start(&b, collect);

		bed_text(&b, fd, all[i].text);
		assert_int_equal(bed_status(&b, fd), all[i].status);
		if (all[i].body)
			assert_string_equal(seen.body, all[i].body);
		assert_int_equal(seen.body_ends, all[i].body != NULL);
		assert_int_equal(seen.aborts, all[i].body == NULL);
		assert_int_equal(seen.status, all[i].status);
		stop(&b, fd);
	}
}

static void take_piece(void *arg, struct http_req *r, const void *p, size_t n)
{
	assert_null(seen.piece);
	assert_true(n > 0 && n <= HTTP_CHUNK);
	seen.piece = p;
	seen.piece_len = n;
	seen.pieces++;
	seen.body_len += n;
}

static void body_done(void *arg, struct http_req *r)
{
	assert_null(seen.piece);
	seen.body_ends++;
	http_reply(r, 200, NULL, "done", 4);
}

static const struct http_body_ops pieces = {.data = take_piece, .end = body_done};

static void stream(void *arg, struct http_req *r)
{
	note(r);
	http_body_stream(r, &pieces, NULL);
}

static void more(void)
{
	seen.piece = NULL;
	http_body_more(seen.req);
}

static void a_body_waits_until_the_handler_wants_more(void **state)
{
	static char data[4 << 20], noise[30000];
	struct bed b;
	int fd = start(&b, stream);
	size_t sent = 0, before;
	ssize_t r;
	int other;

	memset(data, 'x', sizeof(data));
	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n");
	while ((r = send(fd, data, sizeof(data) - sent, MSG_NOSIGNAL)) > 0) {
		sent += (size_t)r;
		bed_run(&b);
	}
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(seen.pieces, 1);
	before = sent;
	assert_true(before < sizeof(data) / 2); /* only the socket's buffer and one piece */
	/* The piece stays as it is, whatever others send meanwhile. */
	other = bed_connect(&b);
	memset(noise, 'y', sizeof(noise));
	bed_send(&b, other, noise, sizeof(noise));
	assert_int_equal(seen.piece_len, HTTP_CHUNK);
	for (size_t i = 0; i < seen.piece_len; i++)
		assert_int_equal(seen.piece[i], 'x');
	close(other);
	bed_pass(&b, 600000); /* and the client is not to blame */
	assert_int_equal(seen.ends, 0);
	while (seen.req && !seen.body_ends) {
		if (seen.piece)
			more();
		bed_run(&b);
		r = send(fd, data, sizeof(data) - sent, MSG_NOSIGNAL);
		sent += r > 0 ? (size_t)r : 0;
	}
	assert_int_equal(seen.body_len, sizeof(data));
	assert_int_equal(seen.body_ends, 1);
	assert_int_equal(bed_status(&b, fd), 200);
	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
	assert_int_equal(seen.body_ends, 2);
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);
}

static void the_end_of_a_body_comes_after_its_last_piece_is_dealt_with(void **state)
{
	struct bed b;
	int fd = start(&b, stream);

	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
	assert_int_equal(seen.pieces, 1);
	assert_int_equal(seen.body_ends, 0);
	more();
	bed_run(&b);
	assert_int_equal(seen.body_ends, 1);
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);
}

/* However a body is cut into packets, the handler gets the same bytes. */
static void chunked_bodies_survive_any_cut(void **state)
{
	static const char text[] =
	    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	    "3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n" GET;

	for (size_t cut = 1; cut < sizeof(text) - 1; cut++) {
		struct bed b;
		char buf[2048];
		int fd = start(&b, collect);

		bed_send(&b, fd, text, cut);
		bed_send(&b, fd, text + cut, sizeof(text) - 1 - cut);
		bed_read(&b, fd, buf, sizeof(buf));
		assert_non_null(strstr(buf, "\r\n\r\nabcdefghHTTP/1.1 200"));
		assert_int_equal(seen.calls, 2);
		stop(&b, fd);
	}
}

static void a_body_is_asked_for_when_somebody_wants_it(void **state)
{
	static const char head[] =
	    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
	struct bed b;
	char buf[2048];
	int fd = start(&b, collect);

	bed_text(&b, fd, head);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_string_equal(buf, "HTTP/1.1 100 Continue\r\n\r\n");
	bed_text(&b, fd, "abc");
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);

	/* Nobody wants it: no 100, and the connection ends, as nobody knows what will come. */
	fd = start(&b, ok);
	bed_text(&b, fd, head);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_null(strstr(buf, "100 Continue"));
	assert_non_null(strstr(buf, "Connection: close"));
	stop(&b, fd);

	/* It came unasked: then no 100 either. */
	fd = start(&b, collect);
	snprintf(buf, sizeof(buf), "%sabc", head);
	bed_text(&b, fd, buf);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_null(strstr(buf, "100 Continue"));
	stop(&b, fd);
}

static void an_unread_body_does_not_become_the_next_request(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, ok);

	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 27\r\n\r\n" GET);
	bed_text(&b, fd, GET);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_int_equal(count(buf, "200 OK"), 2);
	assert_int_equal(seen.calls, 2);
	stop(&b, fd);

	/* A long one is not waited for; but the reply arrives. */
	fd = start(&b, ok);
	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" GET);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_int_equal(count(buf, "200 OK"), 1);
	assert_non_null(strstr(buf, "Connection: close"));
	assert_int_equal(seen.calls, 1);
	stop(&b, fd);
}

/* ---- long replies ---- */

static void push(void *arg, struct http_req *r)
{
	static const char data[HTTP_CHUNK];

	seen.writable++;
	while (seen.sent < seen.to_send && http_room(r)) {
		size_t n = MIN(sizeof(data), seen.to_send - seen.sent);

		http_send(r, data, n);
		seen.sent += n;
	}
	if (seen.sent == seen.to_send)
		http_finish(r);
}

static void big(void *arg, struct http_req *r)
{
	note(r);
	seen.to_send = strtoull(http_query(r), NULL, 10);
	http_on_writable(r, push, NULL);
	http_begin(r, 200, NULL, strcmp(http_path(r), "/length") == 0 ? (int64_t)seen.to_send : -1);
	push(NULL, r);
}

static void a_reader_that_does_not_read_costs_one_queue(void **state)
{
	struct bed b;
	char buf[65536];
	size_t got = 0;
	int fd = start(&b, big), buffered, r;
	socklen_t n = sizeof(buffered);

	bed_text(&b, fd, "GET /length?100000000 HTTP/1.1\r\nHost: a\r\n\r\n");
	getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffered, &n);
	assert_true(seen.sent <= (size_t)HTTP_OUT_HIGH + HTTP_CHUNK + (size_t)buffered * 2);
	assert_true(seen.sent >= HTTP_OUT_HIGH);
	do {
		r = bed_read(&b, fd, buf, sizeof(buf));
		got += r > 0 ? (size_t)r : 0;
	} while (r > 0);
	assert_int_equal(seen.sent, 100000000);
	assert_true(got > 100000000 && got < 100000300);
	assert_int_equal(seen.logged_bytes, 100000000);
	assert_true(seen.writable > 100);
	stop(&b, fd);
}

static void a_reply_without_a_length_is_chunked_or_ends_with_the_connection(void **state)
{
	struct bed b;
	char buf[4096];
	int fd = start(&b, big);

	bed_text(&b, fd, "GET /chunks?5 HTTP/1.1\r\nHost: a\r\n\r\n");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_non_null(strstr(buf, "Transfer-Encoding: chunked\r\n"));
	assert_memory_equal(strstr(buf, "\r\n\r\n"), "\r\n\r\n5\r\n\0\0\0\0\0\r\n0\r\n\r\n", 19);
	stop(&b, fd);

	fd = start(&b, big);
	bed_text(&b, fd, "GET /chunks?5 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_null(strstr(buf, "chunked"));
	assert_memory_equal(strstr(buf, "\r\n\r\n"), "\r\n\r\n\0\0\0\0\0", 9);
	stop(&b, fd);

	fd = start(&b, big);
	bed_text(&b, fd, "HEAD /chunks?5 HTTP/1.1\r\nHost: a\r\n\r\n");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_string_equal(strstr(buf, "\r\n\r\n"), "\r\n\r\n");
	stop(&b, fd);
}

static void too_little(void *arg, struct http_req *r)
{
	note(r);
	http_begin(r, 200, NULL, 10);
	http_send(r, "abc", 3);
	http_finish(r);
}

static void too_much(void *arg, struct http_req *r)
{
	note(r);
	http_begin(r, 200, NULL, 2);
	http_send(r, "abc", 3);
	http_finish(r);
}

static void in_the_middle(void *arg, struct http_req *r)
{
	note(r);
	http_begin(r, 200, NULL, -1);
	http_send(r, "abc", 3);
	http_cut(r);
	assert_int_equal(http_room(r), 0);
	http_send(r, "def", 3);
	http_finish(r);
}

static void a_reply_that_breaks_its_promise_is_cut(void **state)
{
	void (*const handlers[])(void *, struct http_req *) = {too_little, too_much, in_the_middle};

	for (size_t i = 0; i < ARRAY_LEN(handlers); i++) {
		struct bed b;
		char buf[2048];
		int fd = start(&b, handlers[i]);

		bed_text(&b, fd, GET);
		assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
		assert_int_equal(seen.aborts, 1);
		assert_null(strstr(buf, "0\r\n\r\n"));
		stop(&b, fd);
	}
}

/* ---- later, or never ---- */

static void later(void *arg, struct http_req *r)
{
	note(r);
}

static void a_reply_may_come_later(void **state)
{
	struct bed b;
	int fd = start(&b, later);

	bed_text(&b, fd, GET GET);
	bed_pass(&b, 3600000);
	assert_int_equal(bed_status(&b, fd), 0);
	assert_int_equal(seen.calls, 1);
	http_reply(seen.req, 200, NULL, "x", 1);
	assert_int_equal(seen.ends, 0); /* not under our feet */
	assert_int_equal(bed_status(&b, fd), 200);
	assert_int_equal(seen.calls, 2);
	http_reply(seen.req, 200, NULL, "x", 1);
	assert_int_equal(bed_status(&b, fd), 200);
	stop(&b, fd);
}

static void a_client_that_goes_is_noticed_while_the_handler_works(void **state)
{
	for (int half = 0; half < 2; half++) {
		struct bed b;
		int fd = start(&b, later);

		bed_text(&b, fd, GET);
		assert_int_equal(seen.ends, 0);
		if (half)
			shutdown(fd, SHUT_WR);
		else
			close(fd);
		bed_run(&b);
		assert_int_equal(seen.ends, 1);
		assert_int_equal(seen.aborts, 1);
		stop(&b, half ? fd : -1);
	}
}

static void a_client_that_goes_in_its_body_or_in_our_reply_is_noticed(void **state)
{
	struct bed b;
	int fd = start(&b, stream);

	bed_text(&b, fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
	more();
	close(fd);
	bed_run(&b);
	assert_int_equal(seen.aborts, 1);
	assert_int_equal(seen.body_ends, 0);
	stop(&b, -1);

	fd = start(&b, big);
	bed_text(&b, fd, "GET /length?100000000 HTTP/1.1\r\nHost: a\r\n\r\n");
	close(fd);
	bed_run(&b);
	assert_int_equal(seen.aborts, 1);
	stop(&b, -1);
}

static void a_server_that_is_freed_ends_its_requests(void **state)
{
	struct bed b;
	int fd = start(&b, later);

	bed_text(&b, fd, GET);
	bed_stop(&b);
	assert_int_equal(seen.ends, 1);
	assert_int_equal(seen.aborts, 1);
	close(fd);
}

/* ---- pipes ---- */

static void pipe_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	memcpy(seen.body + seen.body_len, p, n);
	seen.body_len += n;
	seen.body[seen.body_len] = 0;
	seen.pieces++;
}

static void pipe_end(void *arg, struct http_req *r)
{
	seen.body_ends++;
}

static void upgrade(void *arg, struct http_req *r)
{
	static const struct http_body_ops ops = {.data = pipe_data, .end = pipe_end};

	note(r);
	assert_true(http_wants_upgrade(r, "tube"));
	assert_false(http_wants_upgrade(r, "tub"));
	assert_int_equal(http_upgrade(r, "X-Extra: 1\r\n", &ops, NULL), 0);
	assert_int_equal(http_upgrade(r, "", &ops, NULL), -EINVAL);
}

#define UPGRADE "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: tube\r\n\r\n"

static void an_upgraded_connection_is_a_pipe(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, upgrade);

	bed_text(&b, fd, UPGRADE "early");
	bed_read(&b, fd, buf, sizeof(buf));
	assert_string_equal(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
	                         "Upgrade: tube\r\nX-Extra: 1\r\n\r\n");
	assert_string_equal(seen.body, "early");
	bed_text(&b, fd, "more");
	assert_string_equal(seen.body, "early"); /* not asked for */
	http_pipe_more(seen.req);
	bed_run(&b);
	assert_string_equal(seen.body, "earlymore");
	http_send(seen.req, "back", 4);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_string_equal(buf, "back");
	bed_pass(&b, 3600000); /* silence is not a crime */
	assert_int_equal(seen.ends, 0);
	/* The last words before the end are delivered, and ours still go out. */
	http_pipe_more(seen.req);
	bed_text(&b, fd, "!");
	shutdown(fd, SHUT_WR);
	bed_run(&b);
	assert_string_equal(seen.body, "earlymore!");
	assert_int_equal(seen.body_ends, 0);
	http_pipe_more(seen.req);
	bed_run(&b);
	assert_int_equal(seen.body_ends, 1);
	http_send(seen.req, "bye", 3);
	http_finish(seen.req);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_string_equal(buf, "bye");
	assert_int_equal(seen.aborts, 0);
	stop(&b, fd);
}

static void a_pipe_whose_peer_does_not_end_is_closed_in_time(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, upgrade);

	bed_text(&b, fd, UPGRADE);
	http_finish(seen.req);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	bed_pass(&b, 29000);
	assert_int_equal(seen.ends, 0);
	bed_pass(&b, 2000);
	assert_int_equal(seen.ends, 1);
	stop(&b, fd);
}

static void a_paused_pipe_whose_peer_is_gone_does_not_spin(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, upgrade);

	bed_text(&b, fd, UPGRADE "x");
	bed_read(&b, fd, buf, sizeof(buf)); /* what is not read would make the end a reset */
	assert_int_equal(seen.pieces, 1);
	bed_text(&b, fd, "last");
	close(fd);
	bed_run(&b); /* returns: that is the test */
	assert_int_equal(seen.ends, 0);
	http_pipe_more(seen.req);
	bed_run(&b);
	assert_string_equal(seen.body, "xlast");
	http_pipe_more(seen.req);
	bed_run(&b);
	assert_int_equal(seen.body_ends, 1);
	http_finish(seen.req);
	stop(&b, -1);
}

/* ---- drain and caps ---- */

static void drained(void *arg)
{
	(*(int *)arg)++;
}

static void a_drained_server_ends_what_it_began_and_takes_nothing_new(void **state)
{
	struct bed b;
	char buf[2048];
	int fd = start(&b, later), idle = bed_connect(&b), dones = 0;

	bed_text(&b, fd, GET GET);
	http_server_drain(b.server, drained, &dones);
	bed_run(&b);
	assert_true(bed_closed(&b, idle));
	assert_int_equal(dones, 0);
	http_reply(seen.req, 200, NULL, "x", 1);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_non_null(strstr(buf, "Connection: close"));
	assert_int_equal(seen.calls, 1);
	assert_int_equal(dones,
	                 0); /* the second request lies there unread: a reset would eat the reply */
	bed_pass(&b, 2100);
	assert_int_equal(dones, 1);
	close(idle);
	stop(&b, fd);
}

static void never(void *arg, struct http_req *r)
{
	seen.calls++;
}

static void one_connection_too_many_is_told_so(void **state)
{
	struct http_config c = {.handler = never, .conns_max = 3};
	struct bed b;
	char buf[2048];
	int fd[3], extra;

	memset(&seen, 0, sizeof(seen));
	bed_start(&b, &c);
	for (int i = 0; i < 3; i++) {
		fd[i] = bed_connect(&b);
		bed_text(&b, fd[i], GET);
	}
	assert_int_equal(seen.calls, 3);
	extra = bed_connect(&b);
	bed_text(&b, extra, GET);
	assert_int_equal(bed_read(&b, extra, buf, sizeof(buf)), -1);
	assert_non_null(strstr(buf, "HTTP/1.1 503 "));
	assert_int_equal(seen.calls, 3);
	close(extra);
	close(fd[0]);
	fd[0] = bed_connect(&b);
	bed_text(&b, fd[0], GET);
	assert_int_equal(seen.calls, 4);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	bed_run(&b);
	assert_int_equal(http_server_conns(b.server), 0);
	bed_stop(&b);
}

static void a_full_server_closes_what_was_idle_for_longest(void **state)
{
	struct http_config c = {.handler = ok, .logged = on_logged, .conns_max = 3};
	struct bed b;
	int fd[3], extra;

	memset(&seen, 0, sizeof(seen));
	bed_start(&b, &c);
	for (int i = 0; i < 3; i++)
		fd[i] = bed_connect(&b);
	bed_text(&b, fd[0], GET); /* so fd[1] is idle for longest */
	assert_int_equal(bed_status(&b, fd[0]), 200);
	extra = bed_connect(&b);
	assert_true(bed_closed(&b, fd[1]));
	bed_text(&b, extra, GET);
	assert_int_equal(bed_status(&b, extra), 200);
	bed_text(&b, fd[2], "GET / HTTP/1.1\r\n"); /* half a head is not idle */
	close(fd[1]);
	fd[1] = bed_connect(&b);
	assert_true(bed_closed(&b, fd[0]));
	assert_int_equal(http_server_conns(b.server), 3);
	bed_text(&b, fd[2], "Host: a\r\n\r\n");
	assert_int_equal(bed_status(&b, fd[2]), 200);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	close(extra);
	bed_run(&b);
	bed_stop(&b);
}

static void without_fds_the_server_neither_spins_nor_forgets(void **state)
{
	struct bed b;
	struct rlimit before, low;
	int fd = start(&b, ok), waiting, next;

	waiting = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	next = dup(waiting);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
	close(next);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	{
		struct sockaddr_storage sa;
		socklen_t n = sizeof(sa);

		getsockname(b.listener, (struct sockaddr *)&sa, &n);
		assert_int_equal(connect(waiting, (struct sockaddr *)&sa, n), 0);
	}
	bed_run(&b); /* returns */
	assert_true(bed_closed(&b, waiting));
	close(waiting);
	bed_text(&b, fd, GET); /* others are served as before */
	assert_int_equal(bed_status(&b, fd), 200);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	waiting = bed_connect(&b);
	bed_text(&b, waiting, GET);
	assert_int_equal(bed_status(&b, waiting), 200);
	close(waiting);
	stop(&b, fd);
}

enum { MANY = 2000 };

static void idle_connections_cost_less_than_a_kilobyte(void **state)
{
	static int fd[MANY];
	struct rlimit lim;
	struct bed b;
	size_t before, after;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
	lim.rlim_cur = lim.rlim_max;
	if (lim.rlim_max < 2 * MANY + 100 || setrlimit(RLIMIT_NOFILE, &lim) < 0)
		skip();
	memset(&seen, 0, sizeof(seen));
	bed_start(&b, &(struct http_config){.handler = ok});
	fd[0] = bed_connect(&b);
	bed_text(&b, fd[0], GET);
	assert_int_equal(bed_status(&b, fd[0]), 200);
	before = mallinfo2().uordblks + mallinfo2().hblkhd;
	for (int i = 1; i < MANY; i++) {
		fd[i] = bed_connect(&b);
		bed_text(&b, fd[i], GET);
		assert_int_equal(bed_status(&b, fd[i]), 200);
	}
	after = mallinfo2().uordblks + mallinfo2().hblkhd;
	assert_int_equal(http_server_conns(b.server), MANY);
	print_message("an idle connection costs %zu bytes\n", (after - before) / (MANY - 1));
	assert_true((after - before) / (MANY - 1) <= 1024);
	bed_pass(&b, 80000);
	assert_int_equal(http_server_conns(b.server), 0);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	bed_stop(&b);
}

/* ---- what is held for clients ---- */

static struct account all, part;

static void body_came(void *arg, struct http_req *r, char *p, size_t n)
{
	http_reply(r, 200, NULL, NULL, 0);
}

static void collects(void *arg, struct http_req *r)
{
	seen.calls++;
	if (strcmp(http_path(r), "/part") == 0)
		http_set_account(r, &part);
	http_body_collect(r, 4 << 20, body_came, NULL);
}

/* A request whose body is announced with 4 MiB, and so much of it. */
static int half_a_body(struct bed *b, const char *path, size_t n)
{
	autofree char *zeros = calloc(1, n);
	char head[200];
	int fd = bed_connect(b);

	snprintf(head, sizeof(head),
	         "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 4194304\r\n\r\n", path);
	bed_text(b, fd, head);
	bed_send(b, fd, zeros, n);
	return fd;
}

static void start_with(struct bed *b, void (*handler)(void *, struct http_req *))
{
	struct http_config c = {.handler = handler, .account = &all};

	memset(&seen, 0, sizeof(seen));
	all = (struct account){.max = 8 << 20};
	part = (struct account){.above = &all, .max = 2 << 20};
	bed_start(b, &c);
}

static void bodies_are_counted_and_refused_above_the_limit(void **state)
{
	struct bed b;
	char buf[2048];
	int first, second;

	start_with(&b, collects);
	first = half_a_body(&b, "/part", 1 << 20);
	assert_in_range(part.held, (1 << 20) - HTTP_HELD_FREE, 2 << 20);
	assert_int_equal(all.held, part.held);
	second = half_a_body(&b, "/part", 3 << 20);
	bed_read(&b, second, buf, sizeof(buf));
	assert_non_null(strstr(buf, "HTTP/1.1 429 "));
	assert_non_null(strstr(buf, "Retry-After: 1\r\n"));
	assert_int_equal(part.refused, 1);
	assert_int_equal(bed_status(&b, first), 0); /* it goes on */
	close(first);
	close(second);
	bed_run(&b);
	assert_int_equal(http_server_conns(b.server), 0);
	assert_int_equal(all.held, 0);
	assert_int_equal(part.held, 0);
	bed_stop(&b);
}

static void a_small_body_finds_room_when_all_is_taken(void **state)
{
	struct bed b;
	int fd;

	start_with(&b, collects);
	account_add(&part, 100 << 20);
	fd = bed_connect(&b);
	bed_text(&b, fd, "POST /part HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
	assert_int_equal(bed_status(&b, fd), 200);
	close(fd);
	bed_run(&b);
	bed_stop(&b);
}

static void a_full_server_cuts_the_connection_that_holds_most(void **state)
{
	struct bed b;
	int large[2], next;

	start_with(&b, collects);
	large[0] = half_a_body(&b, "/", 3500 << 10);
	large[1] = half_a_body(&b, "/", 3000 << 10);
	assert_int_equal(all.refused, 0);
	next = half_a_body(&b, "/", 2000 << 10);
	assert_int_equal(bed_status(&b, next), 0);
	assert_true(bed_closed(&b, large[0]) != bed_closed(&b, large[1]));
	assert_true(all.held <= all.max);
	close(large[0]);
	close(large[1]);
	close(next);
	bed_run(&b);
	assert_int_equal(all.held, 0);
	bed_stop(&b);
}

static void when_it_is_tight_each_queue_is_shorter(void **state)
{
	struct bed b;
	struct http_config c = {.handler = big, .logged = on_logged, .account = &all};
	char buf[65536];
	size_t got = 0;
	int fd, r;

	memset(&seen, 0, sizeof(seen));
	all = (struct account){.max = 8 << 20};
	bed_start(&b, &c);
	account_add(&all, 100 << 20); /* full, even */
	fd = bed_connect(&b);
	bed_text(&b, fd, "GET /length?30000000 HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(all.held, 100 << 20); /* what it has is free */
	do {
		r = bed_read(&b, fd, buf, sizeof(buf));
		got += r > 0 ? (size_t)r : 0;
	} while (r > 0);
	assert_true(got > 30000000);
	close(fd);
	bed_run(&b);
	assert_int_equal(all.held, 100 << 20);
	bed_stop(&b);
}

static void floods(void *arg, struct http_req *r)
{
	static char piece[1 << 20];

	note(r);
	http_begin(r, 200, NULL, -1);
	for (int i = 0; i < 16; i++) {
		if (strcmp(http_path(r), "/asks") == 0)
			(void)http_room(r);
		http_send(r, piece, sizeof(piece));
	}
	http_finish(r);
}

static void who_sends_without_looking_at_the_room_is_cut(void **state)
{
	struct bed b;
	int fd = start(&b, floods);

	bed_text(&b, fd, "GET /asks HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_non_null(seen.req); /* 16 MiB wait for a reader */
	close(fd);
	bed_run(&b);
	fd = bed_connect(&b);
	bed_text(&b, fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_null(seen.req);
	assert_int_equal(seen.aborts, 2);
	stop(&b, fd);
}

static void large(void *arg, struct http_req *r)
{
	autofree char *zeros = calloc(1, 16 << 20);

	note(r);
	http_reply(r, 200, NULL, zeros, 16 << 20);
}

static void a_reply_in_one_piece_may_be_large(void **state)
{
	struct bed b;
	char buf[65536];
	size_t got = 0;
	int fd = start(&b, large), r;

	bed_text(&b, fd, GET);
	do {
		r = bed_read(&b, fd, buf, sizeof(buf));
		got += r > 0 ? (size_t)r : 0;
	} while (r > 0);
	assert_true(got > 16 << 20);
	stop(&b, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_request_reaches_the_handler_as_it_was_sent),
	    cmocka_unit_test(pipelined_requests_are_answered_in_order_one_by_one),
	    cmocka_unit_test(connections_that_pipeline_take_turns),
	    cmocka_unit_test(one_that_asks_once_does_not_wait_behind_those_that_pipeline),
	    cmocka_unit_test(a_client_that_goes_while_it_waits_for_its_turn_is_forgotten),
	    cmocka_unit_test(heads_have_no_body_and_its_length),
	    cmocka_unit_test(a_204_has_neither_body_nor_length),
	    cmocka_unit_test(connections_end_when_the_client_wants_it),
	    cmocka_unit_test(bodies_are_collected),
	    cmocka_unit_test(a_body_waits_until_the_handler_wants_more),
	    cmocka_unit_test(the_end_of_a_body_comes_after_its_last_piece_is_dealt_with),
	    cmocka_unit_test(chunked_bodies_survive_any_cut),
	    cmocka_unit_test(a_body_is_asked_for_when_somebody_wants_it),
	    cmocka_unit_test(an_unread_body_does_not_become_the_next_request),
	    cmocka_unit_test(a_reader_that_does_not_read_costs_one_queue),
	    cmocka_unit_test(a_reply_without_a_length_is_chunked_or_ends_with_the_connection),
	    cmocka_unit_test(a_reply_that_breaks_its_promise_is_cut),
	    cmocka_unit_test(a_reply_may_come_later),
	    cmocka_unit_test(a_client_that_goes_is_noticed_while_the_handler_works),
	    cmocka_unit_test(a_client_that_goes_in_its_body_or_in_our_reply_is_noticed),
	    cmocka_unit_test(a_server_that_is_freed_ends_its_requests),
	    cmocka_unit_test(an_upgraded_connection_is_a_pipe),
	    cmocka_unit_test(a_pipe_whose_peer_does_not_end_is_closed_in_time),
	    cmocka_unit_test(a_paused_pipe_whose_peer_is_gone_does_not_spin),
	    cmocka_unit_test(a_drained_server_ends_what_it_began_and_takes_nothing_new),
	    cmocka_unit_test(one_connection_too_many_is_told_so),
	    cmocka_unit_test(a_full_server_closes_what_was_idle_for_longest),
	    cmocka_unit_test(without_fds_the_server_neither_spins_nor_forgets),
	    cmocka_unit_test(bodies_are_counted_and_refused_above_the_limit),
	    cmocka_unit_test(a_small_body_finds_room_when_all_is_taken),
	    cmocka_unit_test(a_full_server_cuts_the_connection_that_holds_most),
	    cmocka_unit_test(when_it_is_tight_each_queue_is_shorter),
	    cmocka_unit_test(who_sends_without_looking_at_the_room_is_cut),
	    cmocka_unit_test(a_reply_in_one_piece_may_be_large),
	    cmocka_unit_test(idle_connections_cost_less_than_a_kilobyte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
