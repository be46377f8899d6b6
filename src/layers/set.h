/*
 * layers/set.h - the layers of one memory or one disk, oldest first
 * For each page the newest layer whose map holds it wins; a page nobody holds reads as zeros.
 *
 * A running guest names layers by their index, so an index never moves: a collapse puts the
 * merged layer at each index it replaces. Two indices may therefore be the same layer.
 * Fork is: seal the newest layer, push it, set_copy(), and both sides go on above.
 */
#pragma once
#include "layers/layer.h"

enum {
	SET_LAYERS_MAX = 1024, /* indices; each costs a restored machine an fd at most */

	/*
	 * Each layer more costs every restore an open, an mmap per run and a map look-up, so a
	 * chain is kept to this many different files.
	 */
	SET_CHAIN_MAX = 16,

	/*
	 * A layer up to this size (16 MiB, about 20 ms of copying) is cheap to merge. A bigger one
	 * is left alone as long as possible: it is mostly a template that others share, and a
	 * merged copy would be shared with nobody.
	 */
	SET_SMALL_PAGES = 4096,
};

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

/* The content of n pages as the machine would see it. -ERANGE past the end. */
int set_read(const struct set *s, uint64_t page, uint64_t n, void *buf);

/* Writes the resolved content to an empty file, sparse, and sets its size. */
int set_export(const struct set *s, int fd);

/*
 * Should this chain be collapsed, and where? False while it has at most SET_CHAIN_MAX different
 * files. Picks the oldest run of two or more small layers; when there is none, the two neighbours
 * that are cheapest to merge, so a chain cannot grow for ever. Indices first..last, inclusive.
 * Merging a whole run at a time keeps the work low: a page is copied again only when its chain
 * has filled up again, and no more once its layer has outgrown SET_SMALL_PAGES.
 */
bool set_plan(const struct set *s, size_t *ret_first, size_t *ret_last);

/*
 * Merges first..last into one new sealed layer, the newer winning: a memfd when dirfd is
 * negative, else file name in dirfd (removed again on failure). The set is not changed.
 */
int set_merge(const struct set *s, size_t first, size_t last, int dirfd, const char *name,
              struct layer **ret);

/* Puts l at each index first..last. -EINVAL unless it provides exactly the pages they provide. */
int set_replace(struct set *s, size_t first, size_t last, struct layer *l);
