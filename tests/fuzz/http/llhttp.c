/*
 * Another reader's opinion: what we take for a request, llhttp takes for the same one, with the
 * same end. (It takes more than we do; nobody asks it about what we refuse.) Two readers who
 * disagree about where a request ends are how requests are smuggled.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <llhttp/llhttp.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "http/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 8192 };

/* Everything as one text: method, target, fields, body. */
struct told {
	char text[4 * INPUT_MAX];
	size_t len;
	bool in_value, headers_done, done;
};

static void say(struct told *t, const char *p, size_t n)
{
	assert(t->len + n <= sizeof(t->text));
	memcpy(t->text + t->len, p, n);
	t->len += n;
}

/* ---- llhttp's ---- */

static int on_url(llhttp_t *l, const char *p, size_t n)
{
	say(l->data, p, n);
	return 0;
}

static void end_value(struct told *t)
{
	if (!t->in_value)
		return;
	/* It leaves the blanks behind a value to us. */
	while (t->text[t->len - 1] == ' ' || t->text[t->len - 1] == '\t')
		t->len--;
	t->in_value = false;
}

static int on_field(llhttp_t *l, const char *p, size_t n)
{
	struct told *t = l->data;

	if (t->headers_done)
		return 0; /* a trailer */
	say(t, p, n);
	return 0;
}

static int on_field_done(llhttp_t *l)
{
	struct told *t = l->data;

	if (!t->headers_done)
		say(t, "\r", 1);
	t->in_value = !t->headers_done;
	return 0;
}

static int on_value(llhttp_t *l, const char *p, size_t n)
{
	if (!((struct told *)l->data)->headers_done)
		say(l->data, p, n);
	return 0;
}

static int on_value_done(llhttp_t *l)
{
	struct told *t = l->data;

	if (!t->headers_done) {
		end_value(t);
		say(t, "\n", 1);
	}
	return 0;
}

static int on_url_done(llhttp_t *l)
{
	say(l->data, "\n", 1);
	return 0;
}

static int on_headers(llhttp_t *l)
{
	((struct told *)l->data)->headers_done = true;
	return 0;
}

static int on_body(llhttp_t *l, const char *p, size_t n)
{
	say(l->data, p, n);
	return 0;
}

static int on_complete(llhttp_t *l)
{
	struct told *t = l->data;

	assert(!t->done);
	t->done = true;
	return 0;
}

static bool is_known(const char *method)
{
	static const char *const all[] = {"DELETE", "GET",     "HEAD", "POST",
	                                  "PUT",    "OPTIONS", "PATCH"};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (strcmp(all[i], method) == 0)
			return true;
	return false;
}

/* ---- ours ---- */

/* How long the request is, or 0 when it is none or not whole. */
static size_t our_opinion(const uint8_t *data, size_t size, struct told *t)
{
	autofree char *copy = malloc(size);
	size_t scanned = 0;
	const char *why, *target;
	struct http_head h;
	ssize_t end = http_head_end((const char *)data, size, &scanned);

	if (end <= 0)
		return 0;
	memcpy(copy, data, (size_t)end);
	if (http_parse_request(copy, (size_t)end, &h, &why) != 0 || !is_known(h.method))
		return 0;
	target = memchr(data, ' ', size);
	say(t, target + 1, strcspn(target + 1, " "));
	say(t, "\n", 1);
	for (size_t i = 0; i < h.n; i++) {
		say(t, h.field[i].name, strlen(h.field[i].name));
		say(t, "\r", 1);
		say(t, h.field[i].value, strlen(h.field[i].value));
		say(t, "\n", 1);
	}
	if (h.body == HTTP_BODY_LENGTH) {
		if (size - (size_t)end < h.length)
			return 0;
		say(t, (const char *)data + end, h.length);
		return (size_t)end + h.length;
	}
	if (h.body == HTTP_BODY_CHUNKED) {
		struct http_chunked c = {.no_trailers = true};
		size_t at = (size_t)end;

		while (at < size && !c.done) {
			const char *p;
			size_t n;
			ssize_t ate =
			    http_chunked_eat(&c, (const char *)data + at, size - at, &p, &n);

			if (ate < 0)
				return 0;
			say(t, p ? p : "", n);
			at += (size_t)ate;
		}
		return c.done ? at : 0;
	}
	return (size_t)end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct told ours, theirs;
	llhttp_settings_t settings;
	llhttp_errno_t e;
	llhttp_t l;
	size_t n;

	if (size > INPUT_MAX)
		return 0;
	ours = (struct told){.len = 0};
	theirs = (struct told){.len = 0};
	n = our_opinion(data, size, &ours);
	if (!n)
		return 0;
	llhttp_settings_init(&settings);
	settings.on_url = on_url;
	settings.on_url_complete = on_url_done;
	settings.on_header_field = on_field;
	settings.on_header_field_complete = on_field_done;
	settings.on_header_value = on_value;
	settings.on_header_value_complete = on_value_done;
	settings.on_headers_complete = on_headers;
	settings.on_body = on_body;
	settings.on_message_complete = on_complete;
	llhttp_init(&l, HTTP_REQUEST, &settings);
	l.data = &theirs;
	e = llhttp_execute(&l, (const char *)data, n);
	if (e != HPE_OK && e != HPE_PAUSED_UPGRADE) {
		fprintf(stderr, "llhttp refuses: %s\n", llhttp_get_error_reason(&l));
		abort();
	}
	assert(theirs.done);
	assert(ours.len == theirs.len && memcmp(ours.text, theirs.text, ours.len) == 0);
	return 0;
}
