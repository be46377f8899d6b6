/*
 * A form is told the same wherever it is cut, and its names are clean text. The same bytes are also
 * tried as a content type.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 300 };

struct told {
	char text[4 * INPUT_MAX];
	size_t len;
	ssize_t verdict; /* 1: whole, 0: wants more, or an error */
};

static void say(struct told *t, const char *p, size_t n)
{
	assert(t->len + n <= sizeof(t->text));
	memcpy(t->text + t->len, p, n);
	t->len += n;
}

static void say_name(struct told *t, const char *name)
{
	if (!name)
		name = "";
	assert(utf8_is_good(name, strlen(name)) && !strpbrk(name, "\r\n"));
	say(t, "|", 1);
	say(t, name, strlen(name));
}

static void feed(struct multipart *m, const uint8_t *p, size_t n, struct told *t)
{
	char *exact = malloc(n ? n : 1);
	size_t at = 0;

	memcpy(exact, p, n);
	while (at < n && t->verdict == 0) {
		enum multipart_event ev;
		const char *run;
		size_t len;
		ssize_t ate = multipart_eat(m, exact + at, n - at, &ev, &run, &len);

		if (ate < 0) {
			t->verdict = ate;
			break;
		}
		assert((size_t)ate <= n - at && (ate > 0 || ev == MULTIPART_DATA));
		assert((ev == MULTIPART_DATA) == (len > 0));
		at += (size_t)ate;
		if (ev == MULTIPART_DATA)
			say(t, run, len);
		else if (ev == MULTIPART_PART_END)
			say(t, "/", 1);
		else if (ev == MULTIPART_END)
			t->verdict = 1;
		if (ev == MULTIPART_PART) {
			say_name(t, m->name);
			say_name(t, m->filename);
			say_name(t, m->type);
		}
	}
	free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct told whole, cut;
	static struct multipart m;

	if (size > INPUT_MAX)
		return 0;
	memset(&whole, 0, sizeof(whole));
	assert(multipart_init(&m, "multipart/form-data; boundary=b") == 0);
	feed(&m, data, size, &whole);
	for (size_t at = 1; at < size; at++) {
		memset(&cut, 0, sizeof(cut));
		assert(multipart_init(&m, "multipart/form-data; boundary=b") == 0);
		feed(&m, data, at, &cut);
		feed(&m, data + at, size - at, &cut);
		assert(cut.verdict == whole.verdict && cut.len == whole.len);
		assert(memcmp(cut.text, whole.text, cut.len) == 0);
	}
	{
		autofree char *type = malloc(size + 1);

		memcpy(type, data, size);
		type[size] = 0;
		if (multipart_init(&m, type) == 0)
			assert(m.delim_len > 4 && m.delim_len == strlen(m.delim));
	}
	return 0;
}
