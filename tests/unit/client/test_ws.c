/*
 * client/ws.c: the handshake, masked frames, fragments, pings, and ends of all kinds.
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
#include "fake.h"

static struct fake f;
static struct panda *p;
static struct panda_error e;
static struct panda_ws *w;

static void start(const char *frames, size_t len, bool pieces, int then_read)
{
	fake_start(&f,
	           (struct fake_step[]){{.reply = frames,
	                                 .len = len,
	                                 .pieces = pieces,
	                                 .upgrade = true,
	                                 .close = true,
	                                 .then_read = then_read}},
	           1);
	p = fake_client(&f);
	assert_int_equal(panda_ws_open(p, "/v1/t", &w, &e), 0);
}

static void end(void)
{
	panda_ws_close(w);
	panda_free(p);
	fake_join(&f);
}

static void expect(bool text, const char *data)
{
	struct panda_message m;

	assert_int_equal(panda_ws_recv(w, 10000, &m, &e), 1);
	assert_int_equal(m.text, text);
	assert_int_equal(m.len, strlen(data));
	assert_memory_equal(m.data, data, m.len);
}

static void messages_arrive_across_any_border_and_out_of_fragments(void **state)
{
	/* binary "hi"; text in two fragments with a ping in between; close 1000 */
	static const char frames[] =
	    "\x82\x02hi\x01\x03{\"e\x89\x00\x80\x06xit\":0\x88\x02\x03\xe8";
	struct panda_message m;

	for (int pieces = 0; pieces < 2; pieces++) {
		start(frames, sizeof(frames) - 1, pieces, 0);
		expect(false, "hi");
		expect(true, "{\"exit\":0");
		assert_int_equal(panda_ws_recv(w, 10000, &m, &e), 0);
		end();
		assert_non_null(strstr(f.request[0], "\r\nUpgrade: websocket\r\n"));
		assert_non_null(strstr(f.request[0], "\r\nSec-WebSocket-Version: 13\r\n"));
		assert_non_null(strstr(f.request[0], "\r\nAuthorization: Bearer k\r\n"));
		fake_fini(&f);
	}
}

static void what_we_send_is_masked(void **state)
{
	struct panda_message m;
	char got[6];
	const unsigned char *at;

	/* The fake reads the request's head and 11 bytes more: one small frame with its mask. */
	fake_start(
	    &f,
	    (struct fake_step[]){
		{.reply = "\x82\x01x", .upgrade = true, .close = true, .then_read = FAKE_REQUEST}},
	    1);
	p = fake_client(&f);
	assert_int_equal(panda_ws_open(p, "/v1/t", &w, &e), 0);
	assert_int_equal(panda_ws_send(w, false, "hello", 5, &e), 0);
	assert_int_equal(panda_ws_recv(w, 10000, &m, &e), 1);
	panda_ws_close(w); /* ends the fake's reading */
	panda_free(p);
	fake_join(&f);
	at = (unsigned char *)strstr(f.request[0], "\r\n\r\n") + 4;
	assert_int_equal(at[0], 0x82);
	assert_int_equal(at[1], 0x80 | 5);
	for (int i = 0; i < 5; i++)
		got[i] = (char)(at[6 + i] ^ at[2 + i % 4]);
	got[5] = 0;
	assert_string_equal(got, "hello");
	/* And a goodbye behind it: close, masked. */
	assert_int_equal(at[11], 0x88);
	fake_fini(&f);
}

static void a_server_that_just_goes_has_ended_it(void **state)
{
	struct panda_message m;

	start("\x82\x02hi\x82", 5, false, 0);
	expect(false, "hi");
	assert_int_equal(panda_ws_recv(w, 10000, &m, &e), 0);
	assert_true(panda_ws_send(w, false, "x", 1, &e) < 0);
	end();
	fake_fini(&f);
}

static void frames_against_the_rules_are_refused(void **state)
{
	static const char *const bad[] = {
	    "\xf2\x02hi",         /* reserved bits */
	    "\x82\x82\1\2\3\4hi", /* a server must not mask */
	    "\x83\x01x",          /* an opcode that is none */
	    "\x80\x01x",          /* a continuation of nothing */
	    "\x81\x02\xff\xfe",   /* text that is not UTF-8 */
	};
	struct panda_message m;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		start(bad[i], strlen(bad[i]), false, 0);
		assert_true(panda_ws_recv(w, 10000, &m, &e) < 0);
		end();
		fake_fini(&f);
	}
}

static void a_message_that_is_too_long_is_refused(void **state)
{
	struct panda_message m;

	start("\x82\x7f\0\0\0\0\x7f\xff\xff\xffx", 11, false, 0);
	assert_true(panda_ws_recv(w, 10000, &m, &e) < 0);
	end();
	fake_fini(&f);
}

static void nothing_to_read_is_eagain_at_once(void **state)
{
	struct panda_message m;

	start("\x82\x01x", 3, false, FAKE_REQUEST);
	expect(false, "x");
	assert_int_equal(panda_ws_recv(w, 0, &m, &e), -EAGAIN);
	end();
	fake_fini(&f);
}

static void a_refused_upgrade_is_an_ordinary_error(void **state)
{
	static const struct {
		const char *reply;
		int r;
	} no[] = {
	    {"HTTP/1.1 404 x\r\nContent-Length: 43\r\n\r\n"
	     "{\"error\":\"no\",\"code\":\"sandbox_not_found\"}   ",
	     -ENOENT},
	    {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", -EPROTO},
	    {"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
	     "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
	     -EPROTO},
	};

	for (size_t i = 0; i < ARRAY_LEN(no); i++) {
		w = NULL;
		fake_start(&f, (struct fake_step[]){{.reply = no[i].reply, .close = true}}, 1);
		p = fake_client(&f);
		assert_int_equal(panda_ws_open(p, "/v1/t", &w, &e), no[i].r);
		assert_null(w);
		end();
		fake_fini(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(messages_arrive_across_any_border_and_out_of_fragments),
	    cmocka_unit_test(what_we_send_is_masked),
	    cmocka_unit_test(a_server_that_just_goes_has_ended_it),
	    cmocka_unit_test(frames_against_the_rules_are_refused),
	    cmocka_unit_test(a_message_that_is_too_long_is_refused),
	    cmocka_unit_test(nothing_to_read_is_eagain_at_once),
	    cmocka_unit_test(a_refused_upgrade_is_an_ordinary_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
