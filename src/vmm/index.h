/*
 * vmm/index.h - which layer holds which page of a memory or a disk
 * One byte per page: 0 is what lies below all layers (zeros for memory, the base for a disk), any
 * other number is the caller's. Pages the caller never wrote cost nothing: the host gives a page of
 * the index when it is first set. Written down it is a list of extents.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
	INDEX_PAGE_SHIFT = 12,
	INDEX_PAGE = 1 << INDEX_PAGE_SHIFT,
};

#define INDEX_PAGES_MAX   ((uint64_t)1 << 26) /* as layers/map.h: 256 GiB */
#define INDEX_EXTENTS_MAX ((size_t)1 << 16)

struct page_index {
	uint64_t pages;
	uint8_t *at;
};

struct extent {
	uint64_t start, n;
	uint64_t what;
};

int page_index_init(struct page_index *x, uint64_t pages);
void page_index_fini(struct page_index *x);

/* The caller has checked the range. */
void page_index_set(struct page_index *x, uint64_t start, uint64_t n, uint8_t what);

/* How many pages from start on, at most max, are the same as start. */
uint64_t page_index_same(const struct page_index *x, uint64_t start, uint64_t max);

/*
 * The next extent that is not 0, from page *at on; false when nothing follows. Moves *at behind it.
 */
int page_index_next(const struct page_index *x, uint64_t *at, struct extent *ret);

/* Extents that are not 0: at most max, else -E2BIG. Returns their number. v may be NULL to
 * count. */
long page_index_extents(const struct page_index *x, struct extent *v, size_t max);

/* Takes extents from a stranger: ascending, in range, what <= last; else -EBADMSG. x is empty. */
int page_index_load(struct page_index *x, const struct extent *v, size_t n, uint8_t last);

/*
 * Layers are numbered from base on. Those of the mask dead (bit 0 is number base) become to, all
 * above them move down by as many as are dead below them.
 */
void page_index_renumber(struct page_index *x, uint8_t base, uint64_t dead, uint8_t to);
