/*
 * api/streams/output.h - output that is kept to be answered in one piece
 * Zero is an empty one; its owner frees p.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/account.h"

struct output {
	char *p; /* with room for one byte more; NULL: nothing came yet */
	size_t len, cap;
	bool full;               /* there was no memory for more */
	bool truncated;          /* there was more */
	struct account *account; /* what it holds is counted there; NULL: no limit */
	size_t taken;            /* from it */
};

/* Takes as much as fits below max bytes, the account and memory. */
void output_add(struct output *o, size_t max, const void *p, size_t n);
void output_free(struct output *o);
