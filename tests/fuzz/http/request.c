/*
 * Heads of requests and answers. What parses can be written down and parses again to the same; and
 * the end of a head is found at the same place however many bytes are there already.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"
#include "http/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char text[2 * HTTP_HEAD_MAX];

static size_t put(size_t n, const char *s)
{
	for (; *s; s++) {
		assert(n < sizeof(text));
		text[n++] = *s;
	}
	return n;
}

static size_t put_fields(size_t n, const struct http_head *h)
{
	for (size_t i = 0; i < h->n; i++) {
		n = put(n, h->field[i].name);
		n = put(n, ": ");
		n = put(n, h->field[i].value);
		n = put(n, "\r\n");
	}
	return put(n, "\r\n");
}

static void same(const struct http_head *a, const struct http_head *b)
{
	assert(a->n == b->n && a->minor == b->minor && a->body == b->body);
	assert(a->length == b->length && a->keep_alive == b->keep_alive);
	assert(a->upgrade == b->upgrade && a->expect_continue == b->expect_continue);
	for (size_t i = 0; i < a->n; i++) {
		assert(strcmp(a->field[i].name, b->field[i].name) == 0);
		assert(strcmp(a->field[i].value, b->field[i].value) == 0);
		assert(strpbrk(a->field[i].value, "\r\n") == NULL);
	}
}

static void check_request(const struct http_head *h)
{
	struct http_head again;
	const char *why;
	size_t n = 0, scanned = 0;

	assert(h->path[0] == '/' && !(h->body == HTTP_BODY_LENGTH && h->length == 0));
	n = put(n, h->method);
	n = put(n, " ");
	n = put(n, h->path);
	if (h->query[0]) {
		n = put(n, "?");
		n = put(n, h->query);
	}
	n = put(n, h->minor ? " HTTP/1.1\r\n" : " HTTP/1.0\r\n");
	n = put_fields(n, h);
	assert(http_head_end(text, n, &scanned) == (ssize_t)n);
	assert(http_parse_request(text, n, &again, &why) == 0);
	assert(strcmp(h->method, again.method) == 0 && strcmp(h->path, again.path) == 0);
	assert(strcmp(h->query, again.query) == 0);
	same(h, &again);
}

static void check_response(const struct http_head *h)
{
	struct http_head again;
	const char *why;
	char line[40];
	size_t n = 0;

	snprintf(line, sizeof(line), "HTTP/1.%d %d ", h->minor, h->status);
	n = put(n, line);
	n = put(n, h->reason);
	n = put(n, "\r\n");
	n = put_fields(n, h);
	assert(http_parse_response(text, n, "GET", &again, &why) == 0);
	assert(h->status == again.status && strcmp(h->reason, again.reason) == 0);
	same(h, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t n = MIN(size, (size_t)HTTP_HEAD_MAX), all = 0, scanned = 0;
	ssize_t end = http_head_end((const char *)data, n, &all), r = 0;
	const char *why = NULL;
	struct http_head h;
	char *copy;
	int status;

	for (size_t k = 1; k <= n && r == 0; k++)
		r = http_head_end((const char *)data, k, &scanned);
	assert(r == end);
	if (end <= 0)
		return 0;

	copy = malloc((size_t)end);
	memcpy(copy, data, (size_t)end);
	status = http_parse_request(copy, (size_t)end, &h, &why);
	assert(status ? why != NULL : true);
	assert(status == 0 || status == 400 || status == 417 || status == 431 || status == 501 ||
	       status == 505);
	if (status == 0)
		check_request(&h);

	memcpy(copy, data, (size_t)end);
	if (http_parse_response(copy, (size_t)end, "GET", &h, &why) == 0)
		check_response(&h);
	free(copy);
	return 0;
}
