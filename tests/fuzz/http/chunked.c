/*
 * A chunked body gives the same data, the same end and the same verdict wherever it is cut; and
 * what it gave can be chunked again.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "http/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 512 };

struct result {
	char out[INPUT_MAX];
	size_t len, ate;
	bool done, bad;
};

static void feed(struct http_chunked *c, const uint8_t *p, size_t n, struct result *r)
{
	char *exact = malloc(n ? n : 1); /* a sanitizer sees its end */
	size_t at = 0;

	memcpy(exact, p, n);
	while (at < n && !c->done && !r->bad) {
		const char *run;
		size_t len;
		ssize_t ate = http_chunked_eat(c, exact + at, n - at, &run, &len);

		if (ate < 0) {
			r->bad = true;
			break;
		}
		assert(ate > 0 && (size_t)ate <= n - at);
		assert(!len || (run >= exact + at && run + len == exact + at + ate));
		memcpy(r->out + r->len, run ? run : "", len);
		r->len += len;
		at += (size_t)ate;
	}
	r->ate += at;
	r->done = c->done;
	free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct result whole, cut;
	struct http_chunked c = {0};

	if (size > INPUT_MAX)
		return 0;
	memset(&whole, 0, sizeof(whole));
	feed(&c, data, size, &whole);
	for (size_t at = 1; at < size; at++) {
		memset(&cut, 0, sizeof(cut));
		c = (struct http_chunked){0};
		feed(&c, data, at, &cut);
		if (!cut.bad && !cut.done)
			feed(&c, data + at, size - at, &cut);
		assert(cut.bad == whole.bad && cut.done == whole.done);
		assert(cut.len == whole.len && memcmp(cut.out, whole.out, cut.len) == 0);
		assert(whole.bad || cut.ate == whole.ate);
	}
	if (whole.done) {
		char again[INPUT_MAX + 32];
		size_t n = 0;

		if (whole.len) {
			n = (size_t)snprintf(again, 16, "%zx\r\n", whole.len);
			memcpy(again + n, whole.out, whole.len);
			n += whole.len;
			n += (size_t)snprintf(again + n, sizeof(again) - n, "\r\n");
		}
		n += (size_t)snprintf(again + n, sizeof(again) - n, "0\r\n\r\n");
		memset(&cut, 0, sizeof(cut));
		c = (struct http_chunked){0};
		feed(&c, (const uint8_t *)again, n, &cut);
		assert(cut.done && cut.len == whole.len && !memcmp(cut.out, whole.out, cut.len));
	}
	return 0;
}
