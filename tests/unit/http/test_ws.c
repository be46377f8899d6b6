/*
 * http/ws.h: handshakes, messages, and what a peer does that is against the rules.
 */
#include "bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "http/ws.h"

static struct ws *ws;
static unsigned messages, closes, writables;
static bool pausing;
static char last[2 << 20];
static size_t last_len;
static bool last_text;

static void on_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	assert_ptr_equal(w, ws);
	messages++;
	memcpy(last, p, n);
	last_len = n;
	last_text = text;
	if (pausing)
		ws_pause(w);
}

static void on_writable(void *arg, struct ws *w)
{
	writables++;
}

static void on_closed(void *arg, struct ws *w)
{
	assert_ptr_equal(w, ws);
	assert_int_equal(ws_send(w, true, "x", 1), -EPIPE);
	closes++;
	ws = NULL;
}

static void handle(void *arg, struct http_req *r)
{
	static const struct ws_ops ops = {.message = on_message,
	                                  .writable = on_writable,
	                                  .closed = on_closed};

	if (ws_accept(r, http_query(r)[0] ? http_query(r) : NULL, &ops, NULL, &ws) < 0)
		assert_true(http_begun(r));
}

#define HANDSHAKE                                                          \
	"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n" \
	"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"              \
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

static void begin(struct bed *b)
{
	ws = NULL;
	messages = closes = writables = 0;
	pausing = false;
	last_len = 0;
	bed_start(b, &(struct http_config){.handler = handle});
}

static int start(struct bed *b)
{
	char buf[1024];
	int fd;

	begin(b);
	fd = bed_connect(b);
	bed_text(b, fd, HANDSHAKE);
	bed_read(b, fd, buf, sizeof(buf));
	assert_string_equal(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
	                         "Upgrade: websocket\r\n"
	                         "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
	assert_non_null(ws);
	return fd;
}

static void stop(struct bed *b, int fd)
{
	close(fd);
	bed_run(b);
	assert_int_equal(closes, 1);
	assert_int_equal(http_server_conns(b->server), 0);
	bed_stop(b);
}

enum { FIN = 0x80, TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

static const unsigned char mask[4] = {1, 2, 3, 4};

static size_t frame(unsigned char *to, int first, const void *p, size_t n)
{
	size_t k = 2;

	to[0] = (unsigned char)first;
	to[1] = 0x80 | (n < 126 ? (unsigned char)n : n < 65536 ? 126 : 127);
	if (n >= 65536)
		for (int i = 0; i < 8; i++)
			to[k++] = (unsigned char)((uint64_t)n >> (56 - 8 * i));
	else if (n >= 126)
		for (int i = 0; i < 2; i++)
			to[k++] = (unsigned char)(n >> (8 - 8 * i));
	memcpy(to + k, mask, 4);
	k += 4;
	for (size_t i = 0; i < n; i++)
		to[k + i] = ((const unsigned char *)p)[i] ^ mask[i % 4];
	return k + n;
}

static void send_frame(struct bed *b, int fd, int first, const void *p, size_t n)
{
	autofree unsigned char *buf = malloc(n + 20);

	bed_send(b, fd, buf, frame(buf, first, p, n));
}

static void expect(struct bed *b, int fd, const char *bytes, size_t n)
{
	char buf[1024];

	assert_int_equal(bed_read(b, fd, buf, sizeof(buf)), (int)n);
	assert_memory_equal(buf, bytes, n);
}

static void messages_come_whole_and_go_out(void **state)
{
	static char big[300000];
	struct bed b;
	char *got = malloc(sizeof(big) + 100);
	int fd = start(&b);

	send_frame(&b, fd, FIN | TEXT, "hello", 5);
	assert_int_equal(messages, 1);
	assert_true(last_text);
	assert_memory_equal(last, "hello", 5);
	memset(big, 'b', sizeof(big));
	send_frame(&b, fd, FIN | BINARY, big, sizeof(big));
	assert_int_equal(messages, 2);
	assert_false(last_text);
	assert_int_equal(last_len, sizeof(big));
	send_frame(&b, fd, FIN | TEXT, "", 0);
	assert_int_equal(messages, 3);
	assert_int_equal(last_len, 0);

	assert_int_equal(ws_send(ws, true, "abc", 3), 0);
	expect(&b, fd,
	       "\x81\x03"
	       "abc",
	       5);
	assert_int_equal(ws_send(ws, false, big, 200), 0);
	assert_int_equal(bed_read(&b, fd, got, 1000), 204);
	assert_memory_equal(got, "\x82\x7e\x00\xc8", 4);
	assert_int_equal(ws_send(ws, false, big, 70000), 0);
	assert_int_equal(bed_read(&b, fd, got, sizeof(big)), 70010);
	assert_memory_equal(got, "\x82\x7f\0\0\0\0\0\x01\x11\x70", 10);
	free(got);
	stop(&b, fd);
}

static void messages_in_fragments_with_pings_between_are_put_together(void **state)
{
	struct bed b;
	int fd = start(&b);

	send_frame(&b, fd, TEXT, "ab", 2);
	send_frame(&b, fd, FIN | PING, "p", 1);
	send_frame(&b, fd, 0, "\xc3", 1); /* a character in two fragments */
	send_frame(&b, fd, FIN | PONG, "unasked", 7);
	assert_int_equal(messages, 0);
	send_frame(&b, fd, FIN, "\xa4", 1);
	assert_int_equal(messages, 1);
	assert_int_equal(last_len, 4);
	assert_memory_equal(last, "ab\xc3\xa4", 4);
	expect(&b, fd, "\x8a\x01p", 3);
	stop(&b, fd);
}

static void any_cut_gives_the_same_messages(void **state)
{
	unsigned char buf[200];
	size_t n = frame(buf, TEXT, "ab", 2);

	n += frame(buf + n, FIN | PING, "x", 1);
	n += frame(buf + n, FIN, "cd", 2);
	n += frame(buf + n, FIN | BINARY, "0123456789", 10);
	for (size_t cut = 1; cut < n; cut++) {
		struct bed b;
		int fd = start(&b);

		bed_send(&b, fd, buf, cut);
		bed_send(&b, fd, buf + cut, n - cut);
		assert_int_equal(messages, 2);
		assert_memory_equal(last, "0123456789", 10);
		stop(&b, fd);
	}
}

static void closes_are_answered_and_the_end_is_told(void **state)
{
	struct bed b;
	char buf[100];
	int fd = start(&b);

	send_frame(&b, fd, FIN | CLOSE,
	           "\x03\xe8"
	           "bye",
	           5);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_memory_equal(buf,
	                    "\x88\x05\x03\xe8"
	                    "bye",
	                    7);
	stop(&b, fd);

	/* And ours: answered by the peer, which then closes. */
	fd = start(&b);
	ws_close(ws, 1001, "later");
	assert_int_equal(ws_send(ws, true, "x", 1), -EPIPE);
	expect(&b, fd,
	       "\x88\x07\x03\xe9"
	       "later",
	       9);
	send_frame(&b, fd, FIN | TEXT, "ignored", 7);
	assert_int_equal(messages, 0);
	send_frame(&b, fd, FIN | CLOSE, "\x03\xe9", 2);
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	stop(&b, fd);

	/* A peer that does not answer our close has five seconds. */
	fd = start(&b);
	ws_close(ws, 1000, NULL);
	bed_pass(&b, 4900);
	assert_int_equal(closes, 0);
	bed_pass(&b, 200);
	assert_int_equal(closes, 1);
	stop(&b, fd);
}

#define BAD(name, bytes, code)                       \
	{                                            \
		name, bytes, sizeof(bytes) - 1, code \
	}

/* Masked with zeros, so that they can be read here. */
static const struct {
	const char *name, *bytes;
	size_t n;
	int code;
} bad[] = {
    BAD("not masked",
        "\x81\x01"
        "a",
        1002),
    BAD("RSV1", "\xc1\x81\0\0\0\0a", 1002),
    BAD("RSV2", "\xa1\x81\0\0\0\0a", 1002),
    BAD("RSV3", "\x91\x81\0\0\0\0a", 1002),
    BAD("opcode 3", "\x83\x81\0\0\0\0a", 1002),
    BAD("opcode 11", "\x8b\x81\0\0\0\0a", 1002),
    BAD("ping of 126", "\x89\xfe\0\x7e\0\0\0\0", 1002),
    BAD("ping in fragments", "\x09\x81\0\0\0\0a", 1002),
    BAD("continuation of nothing", "\x80\x81\0\0\0\0a", 1002),
    BAD("message within a message", "\x01\x81\0\0\0\0a\x81\x81\0\0\0\0b", 1002),
    BAD("length not minimal, 16 bits", "\x81\xfe\0\x05\0\0\0\0abcde", 1002),
    BAD("length not minimal, 64 bits", "\x81\xff\0\0\0\0\0\0\0\x05\0\0\0\0abcde", 1002),
    BAD("length with the top bit", "\x82\xff\x80\0\0\0\0\0\0\x05\0\0\0\0abcde", 1002),
    BAD("bad UTF-8", "\x81\x82\0\0\0\0\xc3(", 1007),
    BAD("half a character", "\x81\x81\0\0\0\0\xc3", 1007),
    BAD("surrogate", "\x81\x83\0\0\0\0\xed\xa0\x80", 1007),
    BAD("close of one byte", "\x88\x81\0\0\0\0\x03", 1002),
    BAD("close with 1005", "\x88\x82\0\0\0\0\x03\xed", 1002),
    BAD("close with 999", "\x88\x82\0\0\0\0\x03\xe7", 1002),
    BAD("close with bad UTF-8", "\x88\x84\0\0\0\0\x03\xe8\xc3(", 1007),
    BAD("message too big", "\x82\xff\0\0\0\0\0\x10\0\x01\0\0\0\0abcde", 1009),
};

static void peers_against_the_rules_are_closed_with_the_right_code(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct bed b;
		char buf[200];
		int fd = start(&b), r;

		bed_send(&b, fd, bad[i].bytes, bad[i].n);
		r = bed_read(&b, fd, buf, sizeof(buf));
		if (r != -1)
			fail_msg("%s: stays open", bad[i].name);
		if ((buf[0] & 0xff) != 0x88 ||
		    (buf[2] & 0xff) * 256 + (buf[3] & 0xff) != bad[i].code)
			fail_msg("%s: %02x, code %d", bad[i].name, buf[0] & 0xff,
			         (buf[2] & 0xff) * 256 + (buf[3] & 0xff));
		if (messages)
			fail_msg("%s: delivered", bad[i].name);
		stop(&b, fd);
	}
}

static void fragments_may_not_add_up_to_more_than_the_limit(void **state)
{
	static char half[WS_MESSAGE_MAX / 2 + 1];
	struct bed b;
	char buf[100];
	int fd = start(&b);

	send_frame(&b, fd, BINARY, half, sizeof(half));
	send_frame(&b, fd, FIN, half, sizeof(half));
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_memory_equal(buf, "\x88\x02\x03\xf1", 4);
	assert_int_equal(messages, 0);
	stop(&b, fd);

	fd = start(&b);
	send_frame(&b, fd, BINARY, half, sizeof(half));
	send_frame(&b, fd, FIN, half, sizeof(half) - 2);
	assert_int_equal(messages, 1);
	assert_int_equal(last_len, WS_MESSAGE_MAX);
	stop(&b, fd);
}

static void handshakes_that_are_none_are_refused(void **state)
{
	static const struct {
		const char *text;
		int status;
	} all[] = {
	    {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 426},
	    {"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
	     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
	     426},
	    {"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
	     426},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	     "Sec-WebSocket-Version: 8\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
	     426},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	     "Sec-WebSocket-Version: 13\r\n\r\n",
	     400},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n",
	     400},
	    {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
	     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhl*HNhbXBsZSBub25jZQ==\r\n\r\n",
	     400},
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct bed b;
		int fd;

		begin(&b);
		fd = bed_connect(&b);
		bed_text(&b, fd, all[i].text);
		assert_int_equal(bed_status(&b, fd), all[i].status);
		assert_null(ws);
		close(fd);
		bed_stop(&b);
	}
}

static void pings_keep_it_alive_and_silence_ends_it(void **state)
{
	struct bed b;
	int fd = start(&b);

	for (int i = 0; i < 10; i++) {
		bed_pass(&b, 20000);
		expect(&b, fd, "\x89\x00", 2);
		send_frame(&b, fd, FIN | PONG, "", 0);
	}
	bed_pass(&b, 55000);
	assert_int_equal(closes, 0);
	bed_pass(&b, 10000);
	assert_int_equal(closes, 1);
	stop(&b, fd);
}

static void a_paused_socket_reads_no_more_and_loses_nothing(void **state)
{
	static char data[HTTP_CHUNK];
	struct bed b;
	unsigned char buf[100];
	size_t n = 0, sent = 0, k;
	int fd = start(&b);
	ssize_t r;

	pausing = true;
	for (int i = 0; i < 5; i++)
		n += frame(buf + n, FIN | TEXT, (char[]){(char)('a' + i)}, 1);
	bed_send(&b, fd, buf, n);
	for (unsigned i = 1; i <= 5; i++) {
		assert_int_equal(messages, i);
		assert_int_equal(last[0], 'a' + (int)i - 1);
		bed_pass(&b, 300000); /* our pause is not the peer's silence */
		assert_int_equal(closes, 0);
		if (i < 5)
			ws_resume(ws);
		bed_run(&b);
	}
	k = frame((unsigned char *)data, FIN | BINARY, data, 1000);
	while ((r = send(fd, data, k, MSG_NOSIGNAL)) > 0 && sent < (8u << 20)) {
		sent += (size_t)r;
		bed_run(&b);
	}
	assert_true(sent < (1u << 20));
	assert_int_equal(messages, 5);
	pausing = false;
	ws_resume(ws);
	bed_run(&b);
	assert_true(messages >= 5 + sent / k);
	stop(&b, fd);
}

static void a_peer_that_pings_and_does_not_read_is_not_read_either(void **state)
{
	struct bed b;
	unsigned char buf[200];
	size_t n = frame(buf, FIN | PING, "0123456789012345678901234567890123456789", 40), sent = 0;
	int fd = start(&b);

	while (sent < (64u << 20)) {
		ssize_t r = send(fd, buf, n, MSG_NOSIGNAL);

		if (r < 0)
			break;
		sent += (size_t)r;
		bed_run(&b);
	}
	assert_true(sent < (16u << 20));
	assert_int_equal(closes, 0);
	stop(&b, fd);
}

static void room_comes_back(void **state)
{
	static char data[65536];
	struct bed b;
	char *got = malloc(1 << 20);
	int fd = start(&b);

	while (ws_room(ws))
		assert_int_equal(ws_send(ws, false, data, sizeof(data)), 0);
	bed_run(&b);
	assert_int_equal(writables, 0);
	while (bed_read(&b, fd, got, 1 << 20) > 0)
		;
	assert_int_equal(writables, 1);
	assert_true(ws_room(ws) > 0);
	free(got);
	stop(&b, fd);
}

static void a_subprotocol_is_named(void **state)
{
	struct bed b;
	char buf[1024];
	int fd;

	begin(&b);
	fd = bed_connect(&b);
	bed_text(&b, fd,
	         "GET /?tty.v1"
	         " "
	         "HTTP/1.1"
	         "\r\n");
	bed_text(&b, fd, strchr(HANDSHAKE, '\n') + 1);
	bed_read(&b, fd, buf, sizeof(buf));
	assert_non_null(strstr(buf, "\r\nSec-WebSocket-Protocol: tty.v1\r\n"));
	stop(&b, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(messages_come_whole_and_go_out),
	    cmocka_unit_test(messages_in_fragments_with_pings_between_are_put_together),
	    cmocka_unit_test(any_cut_gives_the_same_messages),
	    cmocka_unit_test(closes_are_answered_and_the_end_is_told),
	    cmocka_unit_test(peers_against_the_rules_are_closed_with_the_right_code),
	    cmocka_unit_test(fragments_may_not_add_up_to_more_than_the_limit),
	    cmocka_unit_test(handshakes_that_are_none_are_refused),
	    cmocka_unit_test(pings_keep_it_alive_and_silence_ends_it),
	    cmocka_unit_test(a_paused_socket_reads_no_more_and_loses_nothing),
	    cmocka_unit_test(a_peer_that_pings_and_does_not_read_is_not_read_either),
	    cmocka_unit_test(room_comes_back),
	    cmocka_unit_test(a_subprotocol_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
