#include "vmm/index.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

int page_index_init(struct page_index *x, uint64_t pages)
{
	void *p;

	if (pages == 0 || pages > INDEX_PAGES_MAX)
		return -EINVAL;
	p = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	madvise(p, pages, MADV_NOHUGEPAGE); /* one byte that is set is one small page, not 2 MiB */
	*x = (struct page_index){.pages = pages, .at = p};
	return 0;
}

void page_index_fini(struct page_index *x)
{
	if (x->at)
		munmap(x->at, x->pages);
	*x = (struct page_index){0};
}

void page_index_set(struct page_index *x, uint64_t start, uint64_t n, uint8_t what)
{
	memset(x->at + start, what, n);
}

/* Where something else than what begins. Eight pages at a time: extents are long. */
static uint64_t skip(const struct page_index *x, uint64_t at, uint64_t end, uint8_t what)
{
	const uint64_t eight = 0x0101010101010101 * what;
	uint64_t word;

	for (; at + 8 <= end; at += 8) {
		memcpy(&word, x->at + at, sizeof(word));
		if (word != eight)
			break;
	}
	while (at < end && x->at[at] == what)
		at++;
	return at;
}

uint64_t page_index_same(const struct page_index *x, uint64_t start, uint64_t max)
{
	uint64_t end = max < x->pages - start ? start + max : x->pages;

	return skip(x, start, end, x->at[start]) - start;
}

int page_index_next(const struct page_index *x, uint64_t *at, struct extent *ret)
{
	uint64_t start = skip(x, *at, x->pages, 0);

	if (start >= x->pages)
		return 0;
	*ret = (struct extent){start, page_index_same(x, start, x->pages), x->at[start]};
	*at = start + ret->n;
	return 1;
}

long page_index_extents(const struct page_index *x, struct extent *v, size_t max)
{
	uint64_t at = 0;
	struct extent e;
	size_t n = 0;

	while (page_index_next(x, &at, &e)) {
		if (n == max)
			return -E2BIG;
		if (v)
			v[n] = e;
		n++;
	}
	return (long)n;
}

int page_index_load(struct page_index *x, const struct extent *v, size_t n, uint8_t last)
{
	uint64_t end = 0;

	if (n > INDEX_EXTENTS_MAX)
		return -EBADMSG;
	for (size_t i = 0; i < n; i++) {
		if (v[i].start < end || v[i].n == 0 || v[i].n > x->pages ||
		    v[i].start > x->pages - v[i].n || v[i].what == 0 || v[i].what > last)
			return -EBADMSG;
		page_index_set(x, v[i].start, v[i].n, (uint8_t)v[i].what);
		end = v[i].start + v[i].n;
	}
	return 0;
}

void page_index_renumber(struct page_index *x, uint8_t base, uint64_t dead, uint8_t to)
{
	uint8_t table[256];
	struct extent e;
	uint64_t at = 0;

	for (unsigned i = 0; i < sizeof(table); i++) {
		unsigned layer = i - base;

		table[i] = (uint8_t)i;
		if (i < base || layer >= 64)
			continue;
		if (dead >> layer & 1)
			table[i] = to;
		else
			table[i] -= (uint8_t)__builtin_popcountll(dead & ((1ull << layer) - 1));
	}
	while (page_index_next(x, &at, &e))
		if (table[e.what] != e.what)
			page_index_set(x, e.start, e.n, table[e.what]);
}
