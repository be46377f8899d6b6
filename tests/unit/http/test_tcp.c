/*
 * The server over TCP, in a thread and on the real clock: what unix sockets do not show.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "http/server.h"

enum { CAP = 4, PLACES = 7, BIG = 50000000 };

static struct loop *loop;
static struct http_server *server;
static pthread_t thread;
static in_port_t port; /* as it is in addresses */

/* ---- the server's thread ---- */

static void push(void *arg, struct http_req *r)
{
	static const char data[HTTP_CHUNK];
	size_t *left = http_data(r);

	while (*left && http_room(r)) {
		size_t n = MIN(*left, sizeof(data));

		http_send(r, data, n);
		*left -= n;
	}
	if (!*left)
		http_finish(r);
}

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	free(http_data(r));
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	*(size_t *)http_data(r) += n;
	http_body_more(r);
}

static void on_data_end(void *arg, struct http_req *r)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%zu", *(size_t *)http_data(r));

	http_reply(r, 200, "text/plain", text, (size_t)n);
}

static void handle(void *arg, struct http_req *r)
{
	static const struct http_body_ops ops = {.data = on_data, .end = on_data_end};
	size_t *n = calloc(1, sizeof(*n));

	http_set_data(r, n);
	http_on_end(r, on_end, NULL);
	if (strcmp(http_path(r), "/peer") == 0) {
		http_reply(r, 200, "text/plain", http_peer(r), strlen(http_peer(r)));
	} else if (strcmp(http_path(r), "/cut") == 0) {
		http_begin(r, 200, NULL, -1);
		http_send(r, "half", 4);
		http_cut(r);
	} else if (strcmp(http_path(r), "/big") == 0) {
		*n = BIG;
		http_on_writable(r, push, NULL);
		http_begin(r, 200, NULL, BIG);
		push(NULL, r);
	} else {
		http_body_stream(r, &ops, NULL);
	}
}

static void *run(void *arg)
{
	if (loop_run(loop) < 0)
		abort();
	return NULL;
}

static void drained(void *arg)
{
	loop_stop(loop);
}

static void drain(void *arg)
{
	http_server_drain(server, drained, NULL);
}

/* ---- the clients ---- */

static int setup(void **state)
{
	struct http_config c = {.handler = handle,
	                        .conns_max = PLACES,
	                        .conns_per_addr_max = CAP,
	                        .proxies = "127.0.0.9"};
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
	socklen_t n = sizeof(sa);
	struct err e;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 64) < 0)
		return -1; /* no IPv6 here: then this test cannot be made */
	getsockname(fd, (struct sockaddr *)&sa, &n);
	port = sa.sin6_port;
	if (loop_new(&loop) < 0 || http_server_new(loop, &c, &server, &e) < 0 ||
	    http_server_listen(server, fd) < 0 || pthread_create(&thread, NULL, run, NULL) != 0)
		return -1;
	return 0;
}

static int teardown(void **state)
{
	loop_post(loop, drain, NULL);
	pthread_join(thread, NULL);
	http_server_free(server);
	loop_free(loop);
	return 0;
}

static int dial(const char *from)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port},
			   mine = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	inet_pton(AF_INET, from, &mine.sin_addr);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	assert_int_equal(bind(fd, (struct sockaddr *)&mine, sizeof(mine)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 10},
	           sizeof(struct timeval));
	return fd;
}

static void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Until this text is there, or the end. */
static ssize_t hear(int fd, char *buf, size_t size, const char *until)
{
	size_t n = 0;

	buf[0] = 0;
	while (n < size - 1) {
		ssize_t r = recv(fd, buf + n, size - 1 - n, 0);

		if (r <= 0)
			return r < 0 ? -errno : 0;
		n += (size_t)r;
		buf[n] = 0;
		if (strstr(buf, until))
			break;
	}
	return (ssize_t)n;
}

static void peers_have_names_and_a_cap_each(void **state)
{
	char buf[2048];
	int fd[CAP], extra, other;

	for (int i = 0; i < CAP; i++) {
		fd[i] = dial("127.0.0.1");
		say(fd[i], "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
		assert_true(hear(fd[i], buf, sizeof(buf), "127.0.0.1") > 0);
	}
	extra = dial("127.0.0.1");
	assert_true(hear(extra, buf, sizeof(buf), "\"code\"") > 0);
	assert_non_null(strstr(buf, "HTTP/1.1 503 "));
	other = dial("127.0.0.2");
	say(other, "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_true(hear(other, buf, sizeof(buf), "127.0.0.2") > 0);
	close(extra);
	close(other);
	for (int i = 0; i < CAP; i++)
		close(fd[i]);
}

static void a_proxy_has_no_cap(void **state)
{
	char buf[2048];
	int fd[CAP + 1];

	for (int i = 0; i < CAP + 1; i++) {
		fd[i] = dial("127.0.0.9");
		say(fd[i], "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
		assert_true(hear(fd[i], buf, sizeof(buf), "127.0.0.9") > 0);
	}
	for (int i = 0; i < CAP + 1; i++)
		close(fd[i]);
}

/* A flood from one address has all places, and idles. */
static void a_newcomer_gets_the_place_of_the_address_that_has_most(void **state)
{
	int flood[PLACES - 1], first, next;
	char buf[2048];

	first = dial("127.0.0.1"); /* idle for longest, but alone */
	say(first, "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_true(hear(first, buf, sizeof(buf), "127.0.0.1") > 0);
	for (int i = 0; i < PLACES - 1; i++) {
		flood[i] = dial(i < CAP ? "127.0.0.2" : "127.0.0.3");
		say(flood[i], "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
		assert_true(hear(flood[i], buf, sizeof(buf), "127.0.0.") > 0);
	}
	next = dial("127.0.0.4");
	say(next, "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_true(hear(next, buf, sizeof(buf), "127.0.0.4") > 0);
	assert_int_equal(recv(flood[0], buf, sizeof(buf), 0), 0);
	say(first, "GET /peer HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_true(hear(first, buf, sizeof(buf), "127.0.0.1") > 0);
	for (int i = 0; i < PLACES - 1; i++)
		close(flood[i]);
	close(first);
	close(next);
}

static void a_cut_reply_is_an_error_for_its_client(void **state)
{
	char buf[2048];
	int fd = dial("127.0.0.3");
	ssize_t r;

	say(fd, "GET /cut HTTP/1.1\r\nHost: a\r\n\r\n");
	do
		r = hear(fd, buf, sizeof(buf), "0\r\n\r\n");
	while (r > 0);
	assert_int_equal(r, -ECONNRESET);
	close(fd);
}

static void much_goes_both_ways(void **state)
{
	static char data[1 << 18];
	char buf[2048];
	size_t n = 0;
	int fd = dial("127.0.0.4");
	ssize_t r;

	say(fd, "GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
	while (n < BIG) {
		r = recv(fd, data, sizeof(data), 0);
		assert_true(r > 0);
		n += (size_t)r;
	}
	assert_true(n > BIG && n < BIG + 300);

	say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
	for (n = 0; n < BIG; n += (size_t)r) {
		r = send(fd, data, MIN(sizeof(data), BIG - n), MSG_NOSIGNAL);
		assert_true(r > 0);
	}
	assert_true(hear(fd, buf, sizeof(buf), "50000000") > 0);
	close(fd);
}

/* A client that goes on sending after it was refused still gets to read why. */
static void the_reason_of_a_refusal_is_not_lost_in_a_reset(void **state)
{
	static char data[1 << 16];
	char buf[2048];
	int fd = dial("127.0.0.5");

	say(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n");
	for (int i = 0; i < 50; i++)
		if (send(fd, data, sizeof(data), MSG_NOSIGNAL) < 0)
			break;
	assert_true(hear(fd, buf, sizeof(buf), "bad_request") > 0);
	close(fd);
}

/* The same for what comes behind the last request, while it is answered. */
static void the_end_of_a_last_reply_is_not_lost_in_a_reset(void **state)
{
	static char data[1 << 18];
	int fd = dial("127.0.0.6");
	size_t n = 1;
	ssize_t r;

	say(fd, "GET /big HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
	assert_int_equal(recv(fd, data, 1, 0), 1); /* it is being answered */
	say(fd, "and something behind it");
	while ((r = recv(fd, data, sizeof(data), 0)) > 0)
		n += (size_t)r;
	assert_int_equal(r, 0); /* an end, not an error */
	assert_true(n > BIG);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(peers_have_names_and_a_cap_each),
	    cmocka_unit_test(a_proxy_has_no_cap),
	    cmocka_unit_test(a_newcomer_gets_the_place_of_the_address_that_has_most),
	    cmocka_unit_test(a_cut_reply_is_an_error_for_its_client),
	    cmocka_unit_test(much_goes_both_ways),
	    cmocka_unit_test(the_reason_of_a_refusal_is_not_lost_in_a_reset),
	    cmocka_unit_test(the_end_of_a_last_reply_is_not_lost_in_a_reset),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
