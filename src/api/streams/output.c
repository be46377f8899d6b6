/*
 * api/streams/output.c
 */
#include "api/streams/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

enum {
	STEP = 64 * 1024,
};

void output_add(struct output *o, size_t max, const void *p, size_t n)
{
	size_t take = MIN(n, max - o->len);

	if (take < n)
		o->truncated = true;
	if (o->len + take + 1 > o->cap) {
		size_t want = MAX(2 * o->cap, o->len + take + STEP);
		size_t cap = MIN(want, max + 1);
		char *bigger = realloc(o->p, cap);

		if (!bigger) {
			o->truncated = true;
			return;
		}
		o->p = bigger;
		o->cap = cap;
	}
	memcpy(o->p + o->len, p, take);
	o->len += take;
}
