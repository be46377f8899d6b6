/*
 * Each allocation of the server fails in turn: that one connection may end, and nothing else; no
 * byte is lost (a sanitizer sees it), and every request the handler saw ends once. Link with
 * --wrap=malloc, calloc and realloc, too.
 */
#include "bed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/ws.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);

static int fail_at; /* the nth from now on; 0: none */
static bool fired;

static bool fails(void)
{
	if (!fail_at || --fail_at)
		return false;
	fired = true;
	return true;
}

void *__wrap_malloc(size_t n)
{
	return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t k, size_t n)
{
	return fails() ? NULL : __real_calloc(k, n);
}

void *__wrap_realloc(void *p, size_t n)
{
	return fails() ? NULL : __real_realloc(p, n);
}

static unsigned begun, ended, closed, opened;

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	ended++;
}

static void echo(void *arg, struct http_req *r, char *p, size_t n)
{
	http_add_header(r, "X", "y");
	http_reply(r, 200, "text/plain", p, n);
}

static void on_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	ws_send(w, text, p, n);
	ws_pause(w);
	ws_resume(w);
}

static void on_closed(void *arg, struct ws *w)
{
	closed++;
}

static void handle(void *arg, struct http_req *r)
{
	static const struct ws_ops ops = {.message = on_message, .closed = on_closed};
	struct ws *w;

	if (strcmp(http_path(r), "/ws") == 0) {
		opened += ws_accept(r, NULL, &ops, NULL, &w) == 0;
		return;
	}
	begun++;
	http_on_end(r, on_end, NULL);
	http_body_collect(r, 100000, echo, NULL);
}

static const char *const talks[] = {
    "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
    "chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabcGET",
    "NONSENSE\r\n\r\n",
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    "\x01\x82\x01\x01\x01\x01"
    "ab\x80\x82\x01\x01\x01\x01"
    "cd\x89\x81\x01\x01\x01\x01"
    "p\x81\x81\x01\x01\x01\x01"
    "x\x88\x80\x01\x01\x01\x01",
};

static void no_lack_of_memory_breaks_more_than_one_connection(void **state)
{
	for (size_t i = 0; i < sizeof(talks) / sizeof(talks[0]); i++) {
		int nth;

		for (nth = 1;; nth++) {
			size_t half = strlen(talks[i]) / 2;
			struct bed b;
			int fd, other;

			begun = ended = opened = closed = 0;
			bed_start(&b, &(struct http_config){.handler = handle,
			                                    .conns_per_addr_max = 5});
			other = bed_connect(&b);
			fired = false;
			fail_at = nth;
			fd = bed_connect(&b);
			bed_send(&b, fd, talks[i], half);
			bed_text(&b, fd, talks[i] + half);
			fail_at = 0;
			close(fd);
			bed_run(&b);
			assert_int_equal(begun, ended);
			assert_int_equal(opened, closed);
			assert_int_equal(http_server_conns(b.server), 1);
			bed_text(&b, other, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
			assert_int_equal(bed_status(&b, other), 200);
			close(other);
			bed_run(&b);
			bed_stop(&b);
			if (!fired)
				break; /* nothing left to fail */
			assert_true(nth < 1000);
		}
		assert_true(nth > 3);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_lack_of_memory_breaks_more_than_one_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
