/*
 * A whole connection: the server says the same wherever the client's bytes are cut, every request
 * it hands out ends once, and nothing is left when the client is gone. The first byte says where to
 * cut.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned begun, ended;

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	ended++;
}

static void echo(void *arg, struct http_req *r, char *p, size_t n)
{
	http_add_header(r, "X-Path", http_path(r));
	http_reply(r, 200, "text/plain", p, n);
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	http_send(r, p, n);
	http_body_more(r);
}

static void on_data_end(void *arg, struct http_req *r)
{
	http_finish(r);
}

static void handle(void *arg, struct http_req *r)
{
	static const struct http_body_ops ops = {.data = on_data, .end = on_data_end};

	begun++;
	http_on_end(r, on_end, NULL);
	if (strncmp(http_path(r), "/s", 2) == 0) {
		/* With a length, since the sizes of chunks show where the client's bytes were
		 * cut. */
		int64_t n = http_body_length(r);

		if (n < 0 || n > RIG_INPUT_MAX) {
			http_reply(r, 411, NULL, "", 0);
			return;
		}
		http_body_stream(r, &ops, NULL);
		http_begin(r, 200, NULL, n);
	} else if (strncmp(http_path(r), "/u", 2) == 0 && http_body_length(r) == 0 &&
	           http_wants_upgrade(r, "tube")) {
		if (http_upgrade(r, "", &ops, NULL) < 0)
			abort();
	} else if (strncmp(http_path(r), "/n", 2) == 0) {
		http_reply(r, 200, NULL, "not read", 8);
	} else {
		http_body_collect(r, 1000, echo, NULL);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char whole[RIG_OUTPUT_MAX], parts[RIG_OUTPUT_MAX];
	size_t n, m;

	if (size < 2 || size > RIG_INPUT_MAX)
		return 0;
	begun = ended = 0;
	n = rig_exchange(handle, data + 1, size - 1, 0, whole);
	assert(begun == ended);
	m = rig_exchange(handle, data + 1, size - 1, (data[0] * (size - 1) + 127) / 255, parts);
	assert(begun == ended);
	/* 100 Continue is said only while the body is not there yet. */
	if (!memmem(data, size, "xpect", 5) && !memmem(data, size, "XPECT", 5))
		assert(n == m && memcmp(whole, parts, n) == 0);
	return 0;
}
