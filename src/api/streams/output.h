/*
 * api/streams/output.h - output that is kept to be answered in one piece
 * Zero is an empty one; its owner frees p.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct output {
	char *p; /* with room for one byte more; NULL: nothing came yet */
	size_t len, cap;
	bool truncated; /* there was more */
};

/* Takes as much as fits below max bytes and memory. */
void output_add(struct output *o, size_t max, const void *p, size_t n);
