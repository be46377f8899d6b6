/*
 * base/account.h - bytes that are held for somebody, with a limit
 * An account may be a part of another: what is taken from it is taken from all above it, too.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/macro.h"

struct account {
	struct account *above;
	uint64_t held, max; /* max 0: no limit */
	uint64_t most;      /* that was ever held at once */
	uint64_t refused;   /* times that there was not enough */
};

/* For what cannot be refused any more. */
static inline void account_add(struct account *a, uint64_t n)
{
	for (; a; a = a->above) {
		a->held += n;
		if (a->most < a->held)
			a->most = a->held;
	}
}

static inline void account_give(struct account *a, uint64_t n)
{
	for (; a; a = a->above)
		a->held -= MIN(n, a->held);
}

/* The first one that has no room for n bytes; NULL: all have. */
static inline struct account *account_full(struct account *a, uint64_t n)
{
	while (a && (!a->max || (a->held <= a->max && n <= a->max - a->held)))
		a = a->above;
	return a;
}

/* False: nothing was taken, and the one that is full has counted it. */
static inline bool account_take(struct account *a, uint64_t n)
{
	struct account *full = n ? account_full(a, n) : NULL;

	if (full) {
		full->refused++;
		return false;
	}
	account_add(a, n);
	return true;
}

/* More than half is held: time to hold less of what can wait. */
static inline bool account_tight(const struct account *a)
{
	for (; a; a = a->above)
		if (a->max && a->held > a->max / 2)
			return true;
	return false;
}
