/*
 * api/streams/output.c
 */
#include "api/streams/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/account.h"
#include "base/macro.h"

enum {
	STEP = 64 * 1024,
	FREE = 2 * STEP, /* not counted: a full account keeps nobody from a small answer */
};

static size_t counted(size_t cap)
{
	return cap > FREE ? cap - FREE : 0;
}

void output_add(struct output *o, size_t max, const void *p, size_t n)
{
	size_t take = MIN(n, max - o->len);

	if (o->full) /* what fits now would be behind a gap */
		return;
	if (take < n)
		o->truncated = true;
	if (o->len + take + 1 > o->cap) {
		size_t want = MAX(2 * o->cap, o->len + take + STEP);
		size_t cap = MIN(want, max + 1), more = counted(cap) - o->taken;
		bool may = account_take(o->account, more);
		char *bigger = may ? realloc(o->p, cap) : NULL;

		if (!bigger) {
			account_give(o->account, may ? more : 0);
			o->truncated = o->full = true;
			return;
		}
		o->taken += more;
		o->p = bigger;
		o->cap = cap;
	}
	memcpy(o->p + o->len, p, take);
	o->len += take;
}

void output_free(struct output *o)
{
	free(o->p);
	account_give(o->account, o->taken);
	*o = (struct output){0};
}
