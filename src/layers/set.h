/*
 * layers/set.h - the layers of one memory or one disk, oldest first
 * For each page the newest layer whose map holds it wins; a page no layer holds reads as zeros.
 *
 * A running guest names layers by their index, so only its kernel makes a chain shorter, at a
 * snapshot. Fork is: seal the newest layer, push it, set_copy(), and both sides go on above.
 */
#pragma once
#include "layers/layer.h"

enum { SET_LAYERS_MAX = 1024 /* each costs a restored machine an fd at most */ };

struct set {
	uint64_t pages;
	struct layer **at;
	size_t n;
};

/* {.pages = n} is an empty set. */
void set_fini(struct set *s);

/* Adds the newest layer and takes a reference. -EINVAL: other size. -E2BIG. -ENOMEM. */
int set_push(struct set *s, struct layer *l);

/* The same layers once more. */
int set_copy(const struct set *s, struct set *ret);

/*
 * Which layer has page? True and its index (the newest one), or false when no layer has it.
 * *ret_n says for how many pages, from this one on, the answer is the same. page < s->pages.
 */
bool set_find(const struct set *s, uint64_t page, size_t *ret_index, uint64_t *ret_n);

/* Writes the resolved content to an empty file, sparse, and sets its size. */
int set_export(const struct set *s, int fd);
