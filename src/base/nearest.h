/*
 * base/nearest.h - which known word somebody who typed another one meant
 * Letters that are missing, too many, wrong, or swapped with their neighbour count one each.
 */
#pragma once
#include <stddef.h>

struct nearest {
	const char *word;
	const char *found; /* the nearest so far, borrowed; NULL: none is near enough */
	size_t cost;       /* of found; before that, the first cost that is too much */
};

/* A third of the letters of word may be wrong; one of them always. */
struct nearest nearest_to(const char *word);
/* The first of several that are equally near stays. */
void nearest_try(struct nearest *n, const char *known);
