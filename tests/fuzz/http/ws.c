/*
 * Frames behind a handshake: the same messages and the same answers wherever they are cut; text is
 * UTF-8, and no message is longer than it may be. The first byte says where to cut.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"
#include "base/utf8.h"
#include "http/ws.h"
#include "rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char hello[] =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

static char told[2 * RIG_INPUT_MAX];
static size_t told_len;
static unsigned closed, opened;

static void on_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	assert(n <= WS_MESSAGE_MAX && (!text || utf8_is_good(p, n)));
	assert(told_len + n + 1 <= sizeof(told));
	told[told_len++] = text ? 't' : 'b';
	memcpy(told + told_len, p, n);
	told_len += n;
	if (n && *(const char *)p == 'c')
		ws_close(w, 1000, "c");
	if (n && *(const char *)p == 'p') {
		ws_pause(w);
		ws_resume(w);
	}
}

static void on_closed(void *arg, struct ws *w)
{
	closed++;
}

static void handle(void *arg, struct http_req *r)
{
	static const struct ws_ops ops = {.message = on_message, .closed = on_closed};
	struct ws *w;

	if (ws_accept(r, NULL, &ops, NULL, &w) < 0)
		abort();
	opened++;
}

/*
 * Is there a close with a reason? wslay 1.1.1 forgets the first two bytes of each piece of it when
 * it looks for UTF-8, so that one that comes in pieces may be answered later, or with another code.
 */
static bool gives_a_reason(const uint8_t *p, size_t n)
{
	while (n >= 2) {
		uint64_t len = p[1] & 0x7f;
		size_t head = 6;

		if ((p[0] & 0x0f) == 8)
			return len > 2;
		if (len >= 126) {
			size_t k = len == 126 ? 2 : 8;

			head += k;
			if (n < head)
				return false;
			len = 0;
			for (size_t i = 0; i < k; i++)
				len = len << 8 | p[2 + i];
		}
		if (n < head || len > n - head)
			return false;
		p += head + len;
		n -= head + len;
	}
	return false;
}

/* How much of the server's frames is before its close. */
static size_t until_close(const char *out, size_t n)
{
	const char *head = memmem(out, n, "\r\n\r\n", 4);
	size_t at = head ? (size_t)(head - out) + 4 : n;

	while (at + 1 < n && (out[at] & 0x0f) != 8)
		at += 2 + (size_t)(out[at + 1] & 0x7f); /* only pongs: they are short */
	return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t in[RIG_INPUT_MAX];
	static char whole[RIG_OUTPUT_MAX], parts[RIG_OUTPUT_MAX], first[sizeof(told)];
	size_t n, m, whole_end, parts_end, first_len, hello_len = sizeof(hello) - 1, total;

	if (size < 2 || size - 1 + hello_len > sizeof(in))
		return 0;
	memcpy(in, hello, hello_len);
	memcpy(in + hello_len, data + 1, size - 1);
	total = hello_len + size - 1;

	opened = closed = 0;
	told_len = 0;
	n = rig_exchange(handle, in, total, 0, whole);
	first_len = told_len;
	memcpy(first, told, told_len);
	told_len = 0;
	m = rig_exchange(handle, in, total, hello_len + data[0] * (size - 1) / 255, parts);
	assert(opened == 2 && closed == 2);
	assert(told_len == first_len && memcmp(told, first, told_len) == 0);
	if (gives_a_reason(data + 1, size - 1))
		return 0;
	whole_end = until_close(whole, n);
	parts_end = until_close(parts, m);
	assert((whole_end < n) == (parts_end < m));
	/* A pong that waits when a close comes up may be left out. */
	assert(whole_end < n || whole_end == parts_end);
	assert(memcmp(whole, parts, MIN(whole_end, parts_end)) == 0);
	return 0;
}
