/*
 * client/sse.c - bytes in, events out
 * Lines end with LF or CR LF; events with an empty line. What comes after the last empty line is no
 * event: the server was cut in the middle of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"
#include "client/client_internal.h"
#include "client/panda.h"

static int append(char **buf, size_t *len, size_t *cap, const char *p, size_t n)
{
	size_t want = *len + n + 1, size = *cap ? *cap : 512;
	char *more;

	if (want > PANDA_EVENT_MAX)
		return -EMSGSIZE;
	if (want > *cap) {
		while (size < want)
			size *= 2;
		more = realloc(*buf, size);
		if (!more)
			return -ENOMEM;
		*buf = more;
		*cap = size;
	}
	if (n)
		memcpy(*buf + *len, p, n);
	*len += n;
	(*buf)[*len] = 0;
	return 0;
}

/* 1 when the line was the empty one that ends an event with data. */
static int take_line(struct sse_reader *s, const char *p, size_t n)
{
	const char *colon, *value;
	size_t nname, nvalue;
	int r;

	if (n && p[n - 1] == '\r')
		n--;
	if (!n) {
		if (!s->has_data)
			s->name[0] = 0;
		return s->has_data;
	}
	colon = memchr(p, ':', n);
	nname = colon ? (size_t)(colon - p) : n;
	value = colon ? colon + 1 : p + n;
	nvalue = (size_t)(p + n - value);
	if (nvalue && *value == ' ') {
		value++;
		nvalue--;
	}
	if (nname == 5 && !memcmp(p, "event", 5)) {
		snprintf(s->name, sizeof(s->name), "%.*s", (int)MIN(nvalue, sizeof(s->name) - 1),
		         value);
	} else if (nname == 4 && !memcmp(p, "data", 4)) {
		if (s->has_data) {
			r = append(&s->data, &s->data_len, &s->data_cap, "\n", 1);
			if (r < 0)
				return r;
		}
		r = append(&s->data, &s->data_len, &s->data_cap, value, nvalue);
		if (r < 0)
			return r;
		s->has_data = true;
	}
	return 0; /* comments and fields that we do not know */
}

int sse_reader_feed(struct sse_reader *s, const char *p, size_t n, size_t *used,
                    struct panda_event *ret)
{
	const char *start = p, *end = p + n, *lf;
	int r;

	if (s->done) { /* the event handed out last is over */
		s->done = s->has_data = false;
		s->name[0] = 0;
		s->data_len = 0;
	}
	while (p < end && (lf = memchr(p, '\n', (size_t)(end - p)))) {
		if (s->len) {
			r = append(&s->buf, &s->len, &s->cap, p, (size_t)(lf - p));
			if (r == 0)
				r = take_line(s, s->buf, s->len);
			s->len = 0;
		} else {
			r = take_line(s, p, (size_t)(lf - p));
		}
		p = lf + 1;
		if (r < 0)
			return r;
		if (r) {
			*ret = (struct panda_event){
			    .name = s->name[0] ? s->name : "message",
			    .data = s->data,
			    .len = s->data_len,
			};
			s->done = true;
			*used = (size_t)(p - start);
			return 1;
		}
	}
	*used = n;
	return p < end ? append(&s->buf, &s->len, &s->cap, p, (size_t)(end - p)) : 0;
}

void sse_reader_fini(struct sse_reader *s)
{
	free(s->buf);
	free(s->data);
	*s = (struct sse_reader){0};
}
