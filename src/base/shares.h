/*
 * base/shares.h - how many rows of a table each name has, and who has to give some
 * Each name may have so many, and all together so many: above that the one with most gives first,
 * so none pushes out what another has. What is above is taken in batches. The caller counts rows
 * as it writes and deletes them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bucket.h"

enum {
	SHARES_BUCKETS = 64,
	SHARES_BATCH = 1024, /* the most that is to be given at once */
};

struct share {
	struct share *next;
	uint64_t n;
	struct bucket rate; /* the caller's */
	char name[];
};

struct shares {
	uint64_t each, all; /* limits; 0: none */
	uint64_t n;
	struct share *bucket[SHARES_BUCKETS];
};

/* Made when new. NULL: no memory. */
struct share *shares_of(struct shares *s, const char *name);
void shares_add(struct shares *s, struct share *of, uint64_t n);
void shares_gone(struct shares *s, struct share *of, uint64_t n);
/* Who has to give *n of its oldest; NULL: nobody. */
struct share *shares_over(const struct shares *s, uint64_t *n);
void shares_free(struct shares *s);
