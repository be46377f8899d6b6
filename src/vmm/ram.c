#include "vmm/ram.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "vmm/index.h"
#include "vmm/mem.h"
#include "vmm/state.h"

enum {
	LAYERS_MAX = 64,
	PAGEMAP_BATCH = 4096,
	SCAN_BATCH = 1024,
	RELEASE_PAGES = 16, /* what is smaller is not worth a mapping */
	HUGE_PAGE = 2 << 20,
	HUGE_PAGES = HUGE_PAGE / INDEX_PAGE,
};

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Documentation/admin-guide/mm/pagemap.rst; linux/fs.h has the second half since 6.7 */
#define PM_PRESENT (1ull << 63)
#define PM_SWAPPED (1ull << 62)
#define PM_FILE    (1ull << 61)
#define PM_ALONE   (1ull << 56) /* no other process maps it */

#ifndef PAGEMAP_SCAN
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)

enum {
	PAGE_IS_FILE = 1 << 2,
	PAGE_IS_PRESENT = 1 << 3,
	PAGE_IS_SWAPPED = 1 << 4,
	PAGE_IS_PFNZERO = 1 << 5,
};

struct page_region {
	uint64_t start, end, categories;
};

struct pm_scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#endif

static uint64_t pages(const struct ram *r)
{
	return r->mem.size / INDEX_PAGE;
}

static int map_at(struct ram *r, uint64_t page, uint64_t n, int flags, int fd)
{
	void *p =
	    mmap(r->mem.base + page * INDEX_PAGE, n * INDEX_PAGE, PROT_READ | PROT_WRITE,
	         flags | MAP_FIXED | MAP_NORESERVE, fd, fd < 0 ? 0 : (off_t)(page * INDEX_PAGE));

	return p == MAP_FAILED ? -errno : 0;
}

static int map_zeros(struct ram *r, uint64_t page, uint64_t n)
{
	return map_at(r, page, n, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

/* So aligned that whatever is a huge page of the guest's can be one of the host's. */
static int reserve(struct ram *r, uint64_t size)
{
	uint8_t *p, *base;

	if (size < MEM_MIN || size > MEM_LIMIT || size % INDEX_PAGE)
		return -EINVAL;
	p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
	         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return -errno;
	base = p + (-(uintptr_t)p & (HUGE_PAGE - 1));
	if (base > p)
		munmap(p, (size_t)(base - p));
	munmap(base + size, (size_t)(p + HUGE_PAGE - base));
	r->mem = (struct mem){.base = base, .size = size};
	return page_index_init(&r->index, pages(r));
}

/* Small pages only: a machine shall have what it touched, and layers are made of small ones. */
static void small_pages(struct ram *r)
{
	madvise(r->mem.base, r->mem.size, MADV_NOHUGEPAGE);
}

/*
 * No other machine shares anything with this one yet, and a kernel that starts touches page after
 * page: each small one would be a way out of the guest.
 */
int ram_boot(struct ram *r, uint64_t size)
{
	int e = reserve(r, size);

	if (e == 0)
		madvise(r->mem.base, size, MADV_HUGEPAGE);
	r->cold = true;
	return e;
}

/* --- what spares a restored guest faults */

void ram_set_code(struct ram *r, uint64_t gpa, uint64_t len)
{
	const uint8_t *p = mem_at(&r->mem, gpa, len);
	uint64_t from, end;

	if (!p || len > RAM_CODE_MAX)
		return;
	from = ((uint64_t)(p - r->mem.base) + HUGE_PAGE - 1) / HUGE_PAGE;
	end = MIN((uint64_t)(p - r->mem.base) + len + HUGE_PAGE - 1, r->mem.size) / HUGE_PAGE;
	r->code = from * HUGE_PAGES;
	r->code_pages = end > from ? (end - from) * HUGE_PAGES : 0;
}

struct saved_code {
	uint64_t start, pages;
};

int ram_load_code(struct ram *r, struct state_in *s)
{
	struct saved_code c;

	if (state_get(s, STATE_CODE, &c, sizeof(c)) < 0)
		return 0;
	if (c.start % HUGE_PAGES || c.pages % HUGE_PAGES || c.pages > pages(r) ||
	    c.start > pages(r) - c.pages || c.pages > RAM_CODE_MAX / INDEX_PAGE)
		return -EBADMSG;
	r->code = c.start;
	r->code_pages = c.pages;
	return 0;
}

/*
 * Then the guest meets its code with one fault for 512 pages. The first machine that does it to a
 * file copies them, all others find it done. One by one, and whatever it says: Linux 6.1 has joined
 * a page and calls it an error when no process has it mapped yet; where there is no file of memory,
 * all calls fail, at once.
 */
static void join_code(struct ram *r)
{
	uint64_t end = r->code + r->code_pages;

	for (uint64_t at = r->code; at < end; at += HUGE_PAGES)
		if (r->index.at[at] && page_index_same(&r->index, at, HUGE_PAGES) == HUGE_PAGES)
			madvise(r->mem.base + at * INDEX_PAGE, HUGE_PAGE, MADV_COLLAPSE);
}

/*
 * The newest layer, if it is small: what was written last before the snapshot is what is written
 * first after it. 0: it is not.
 */
static uint8_t find_ahead(const struct ram *r)
{
	uint64_t at = 0, n = 0;
	struct extent x;

	while (page_index_next(&r->index, &at, &x))
		if (x.what == r->layers)
			n += x.n;
	return n <= RAM_AHEAD_PAGES ? (uint8_t)r->layers : 0;
}

int ram_next_ahead(const struct ram *r, uint64_t *at, struct extent *ret)
{
	while (r->ahead && page_index_next(&r->index, at, ret))
		if (ret->what == r->ahead)
			return 1;
	return 0;
}

/* A call for each run takes less than the faults of a mapping to copy from. */
static int copy_ahead(struct ram *r)
{
	uint64_t at = 0;
	struct extent x;
	int e = 0;

	while (e == 0 && ram_next_ahead(r, &at, &x))
		e = io_pread_full((int)(r->layer_slot + r->ahead - 1u),
		                  r->mem.base + x.start * INDEX_PAGE, x.n * INDEX_PAGE,
		                  (off_t)(x.start * INDEX_PAGE));
	return e;
}

static int map_layer(struct ram *r, const struct extent *x)
{
	return x->n ? map_at(r, x->start, x->n, MAP_PRIVATE,
	                     (int)(r->layer_slot + (unsigned)x->what - 1))
	            : 0;
}

/*
 * What is copied ahead needs no mapping of its own: it may lie in anything. So the mapping of a
 * layer goes on across it, and a few hundred single pages do not become as many mappings.
 */
static int map_layers(struct ram *r)
{
	struct extent x, m = {0};
	uint64_t at = 0;
	int e = 0;

	while (e == 0 && page_index_next(&r->index, &at, &x)) {
		if (m.n && x.start == m.start + m.n && (x.what == m.what || x.what == r->ahead)) {
			m.n += x.n;
		} else if (x.what != r->ahead) {
			e = map_layer(r, &m);
			m = x;
		}
	}
	return e == 0 ? map_layer(r, &m) : e;
}

int ram_restore(struct ram *r, uint64_t size, unsigned layers, struct state_in *s)
{
	const void *v;
	size_t n;
	int e;

	if (layers >= LAYERS_MAX)
		return -EBADMSG;
	r->layers = layers;
	e = reserve(r, size);
	if (e == 0)
		small_pages(r);
	if (e == 0)
		e = state_items(s, STATE_EXTENTS, sizeof(struct extent), INDEX_EXTENTS_MAX, &v, &n);
	if (e == 0)
		e = page_index_load(&r->index, v, n, (uint8_t)layers);
	if (e == 0)
		e = ram_load_code(r, s);
	if (e < 0)
		return e;
	r->ahead = find_ahead(r);
	e = map_layers(r);
	if (e < 0)
		return e;
	join_code(r);
	return copy_ahead(r);
}

void ram_fini(struct ram *r)
{
	if (r->mem.base)
		munmap(r->mem.base, r->mem.size);
	page_index_fini(&r->index);
	page_index_fini(&r->next);
}

void ram_release(struct ram *r, uint64_t gpa, uint64_t len)
{
	uint8_t *p = mem_at(&r->mem, gpa, len);
	uint64_t page, n = len / INDEX_PAGE;

	if (!p || (gpa | len) % INDEX_PAGE)
		return;
	page = (uint64_t)(p - r->mem.base) / INDEX_PAGE;
	if (r->cold)
		madvise(p, len, MADV_DONTNEED);
	else if (n >= RELEASE_PAGES && map_zeros(r, page, n) == 0)
		page_index_set(&r->index, page, n, 0);
}

static bool is_zeros(const struct ram *r, uint64_t page)
{
	return io_is_zeros(r->mem.base + page * INDEX_PAGE, INDEX_PAGE);
}

/* The host's one page of zeros, where the guest only looked, is no copy. */
static bool is_private(const struct ram *r, uint64_t page, uint64_t pm)
{
	if (!(pm & (PM_PRESENT | PM_SWAPPED)) || pm & PM_FILE)
		return false;
	return pm & (PM_SWAPPED | PM_ALONE) || r->index.at[page] || !is_zeros(r, page);
}

/* Marks the pages that the host has copied for us: those it does not share with a layer. Linux
 * 6.7. */
static int scan_private(struct ram *r, uint8_t top)
{
	autofree struct page_region *v = malloc(SCAN_BATCH * sizeof(*v));
	uint64_t base = (uint64_t)(uintptr_t)r->mem.base;
	struct pm_scan_arg a = {.size = sizeof(a),
	                        .start = base,
	                        .end = base + r->mem.size,
	                        .vec = (uint64_t)(uintptr_t)v,
	                        .vec_len = SCAN_BATCH,
	                        .category_inverted = PAGE_IS_FILE | PAGE_IS_PFNZERO,
	                        .category_mask = PAGE_IS_FILE | PAGE_IS_PFNZERO,
	                        .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
	                        .return_mask = PAGE_IS_PRESENT};

	if (!v)
		return -ENOMEM;
	for (; a.start < a.end; a.start = a.walk_end) {
		int n = ioctl((int)r->pagemap_slot, PAGEMAP_SCAN, &a);

		if (n < 0)
			return -errno;
		for (int i = 0; i < n; i++)
			page_index_set(&r->next, (v[i].start - base) / INDEX_PAGE,
			               (v[i].end - v[i].start) / INDEX_PAGE, top);
	}
	return 0;
}

/* The same for older hosts, page by page. */
static int read_private(struct ram *r, uint8_t top)
{
	autofree uint64_t *v = malloc(PAGEMAP_BATCH * sizeof(*v));
	uint64_t first = (uint64_t)(uintptr_t)r->mem.base / INDEX_PAGE, total = pages(r);

	if (!v)
		return -ENOMEM;
	for (uint64_t page = 0; page < total; page += PAGEMAP_BATCH) {
		uint64_t n = MIN(total - page, (uint64_t)PAGEMAP_BATCH);
		int e = io_pread_full((int)r->pagemap_slot, v, n * sizeof(*v),
		                      (off_t)((first + page) * sizeof(*v)));

		if (e < 0)
			return e;
		for (uint64_t i = 0; i < n; i++)
			if (is_private(r, page + i, v[i]))
				r->next.at[page + i] = top;
	}
	return 0;
}

/* What lies between two runs of the top, if it is at most gap pages, becomes part of it. */
static void close_gaps(struct page_index *x, uint8_t top, uint64_t gap)
{
	uint64_t at = 0, end = 0;
	struct extent e;

	while (page_index_next(x, &at, &e)) {
		if (e.what != top)
			continue;
		if (end && e.start - end <= gap)
			page_index_set(x, end, e.start - end, top);
		end = e.start + e.n;
	}
}

/*
 * A huge page is mostly zeros: those stay out, but for short runs, which are no mapping's worth,
 * and those between code, which shall be one piece.
 */
static void drop_zeros(struct ram *r, uint8_t top)
{
	for (uint64_t p = 0; p < pages(r); p++)
		if (r->next.at[p] == top && is_zeros(r, p))
			r->next.at[p] = 0;
	page_index_set(&r->next, r->code, r->code_pages, top);
	close_gaps(&r->next, top, RAM_REMAP_PAGES);
}

/* Which old layers are small enough to be taken over; the smallest when none is. */
static uint64_t choose_dead(const struct ram *r)
{
	uint64_t held[LAYERS_MAX] = {0}, at = 0, dead = 0;
	unsigned least = 0;
	struct extent x;

	if (r->layers < RAM_CHAIN_MAX)
		return 0;
	while (page_index_next(&r->next, &at, &x))
		if (x.what <= r->layers)
			held[x.what - 1] += x.n;
	for (unsigned i = 0; i < r->layers; i++) {
		if (held[i] <= RAM_SMALL_PAGES)
			dead |= 1ull << i;
		if (held[i] < held[least])
			least = i;
	}
	return dead ? dead : 1ull << least;
}

static int write_top(const struct ram *r, uint8_t top)
{
	uint64_t at = 0;
	struct extent x;
	int e = 0;

	while (e == 0 && page_index_next(&r->next, &at, &x))
		if (x.what == top)
			e = io_pwrite_full((int)r->top_slot, r->mem.base + x.start * INDEX_PAGE,
			                   x.n * INDEX_PAGE, (off_t)(x.start * INDEX_PAGE));
	return e;
}

static int collect(struct ram *r)
{
	uint8_t top = (uint8_t)(r->layers + 1);
	int e = page_index_init(&r->next, pages(r));
	struct extent x;
	uint64_t at = 0;

	if (e < 0)
		return e;
	while (page_index_next(&r->index, &at, &x)) /* not a copy: zeros take no memory */
		page_index_set(&r->next, x.start, x.n, (uint8_t)x.what);
	e = scan_private(r, top);
	if (e == -ENOTTY || e == -ENOSYS)
		e = read_private(r, top);
	if (e < 0)
		return e;
	if (r->cold)
		drop_zeros(r, top);
	r->dead = choose_dead(r);
	for (uint64_t p = 0; r->dead && p < pages(r); p++)
		if (r->next.at[p] && r->next.at[p] < top && r->dead >> (r->next.at[p] - 1) & 1)
			r->next.at[p] = top;
	for (uint64_t gap = 2; page_index_extents(&r->next, NULL, RAM_EXTENTS) < 0 && gap < 1024;
	     gap *= 4)
		close_gaps(&r->next, top, gap);
	if (page_index_extents(&r->next, NULL, INDEX_EXTENTS_MAX / 2) < 0)
		return -E2BIG;
	return write_top(r, top);
}

int ram_collect(struct ram *r, uint64_t *ret_live)
{
	int e = collect(r);

	if (e == 0 && r->layers - (unsigned)__builtin_popcountll(r->dead) + 2 > LAYERS_MAX)
		e = -E2BIG;
	if (e < 0) {
		ram_undo(r);
		return e;
	}
	*ret_live = (r->layers ? ~0ull >> (64 - r->layers) : 0) & ~r->dead;
	page_index_renumber(&r->next, 1, r->dead, 0); /* nothing of the dead is left in it */
	return 0;
}

void ram_save(const struct ram *r, struct state_out *s)
{
	long n = page_index_extents(&r->next, NULL, INDEX_EXTENTS_MAX);
	struct extent *v = n < 0 ? NULL : state_room(s, STATE_EXTENTS, (size_t)n * sizeof(*v));

	if (v)
		page_index_extents(&r->next, v, (size_t)n);
	else if (!s->error)
		s->error = -E2BIG;
	state_put(s, STATE_CODE, &(struct saved_code){r->code, r->code_pages},
	          sizeof(struct saved_code));
}

static uint8_t sealed_number(const struct ram *r)
{
	return (uint8_t)(r->layers - (unsigned)__builtin_popcountll(r->dead) + 1);
}

int ram_next_run(const struct ram *r, uint64_t *at, struct extent *ret)
{
	while (page_index_next(&r->next, at, ret))
		if (ret->what == sealed_number(r))
			return 1;
	return 0;
}

/* Dead layers go, the others move down. */
static int renumber_fds(struct ram *r)
{
	unsigned to = 0;

	for (unsigned i = 0; i < r->layers; i++) {
		if (r->dead >> i & 1)
			continue;
		if (to != i &&
		    dup3((int)(r->layer_slot + i), (int)(r->layer_slot + to), O_CLOEXEC) < 0)
			return -errno;
		to++;
	}
	for (unsigned i = to; i < r->layers; i++)
		close((int)(r->layer_slot + i));
	r->layers = to;
	return 0;
}

int ram_seal(struct ram *r, int ro, int next)
{
	uint64_t at = 0, end = 0;
	struct extent x;
	int e = 0;

	/* After a cold boot all of it is mapped anew: what was in huge pages is in the layer. */
	while (e == 0 && ram_next_run(r, &at, &x)) {
		if (r->cold && x.start > end)
			e = map_zeros(r, end, x.start - end);
		if (e == 0 && (r->cold || x.n >= RAM_REMAP_PAGES))
			e = map_at(r, x.start, x.n, MAP_PRIVATE, ro);
		end = x.start + x.n;
	}
	if (e == 0 && r->cold && end < pages(r))
		e = map_zeros(r, end, pages(r) - end);
	if (e == 0)
		e = renumber_fds(r);
	if (e == 0 && (dup3(ro, (int)(r->layer_slot + r->layers), O_CLOEXEC) < 0 ||
	               dup3(next, (int)r->top_slot, O_CLOEXEC) < 0))
		e = -errno;
	if (e < 0)
		return e;
	close(ro);
	close(next);
	small_pages(r);
	page_index_fini(&r->index);
	r->index = r->next;
	r->next = (struct page_index){0};
	r->layers++;
	r->dead = 0;
	r->cold = false;
	return 0;
}

void ram_undo(struct ram *r)
{
	page_index_fini(&r->next);
	r->dead = 0;
}
