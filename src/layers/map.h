/*
 * layers/map.h - which pages a layer provides: a sorted list of runs
 * A map comes as bytes from a machine process or from a snapshot on disk; both are strangers, so
 * map_parse() bounds everything before it allocates. No I/O here, nothing is printed.
 *
 * The bytes, little-endian: "PANDAMAP", u32 version 1, u32 number of runs, u64 pages of the whole
 * memory or disk, then per run u64 first page, u64 number of pages. Runs ascend and do not
 * overlap; runs that touch are accepted and joined.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAP_PAGE      4096u
#define MAP_PAGES_MAX ((uint64_t)1 << 26) /* 256 GiB: more than any one sandbox is given */
#define MAP_RUNS_MAX  ((size_t)1 << 20)   /* 16 MiB of runs, the most a stranger makes us hold */
#define MAP_HEAD_LEN  24u
#define MAP_RUN_LEN   16u
#define MAP_BYTES_MAX (MAP_HEAD_LEN + MAP_RUN_LEN * MAP_RUNS_MAX)

struct map_run {
	uint64_t start, n; /* in pages; n > 0 */
};

/* Plain to read, changed only by the functions below. {0} is the empty map. Runs never touch. */
struct map {
	struct map_run *runs;
	size_t n, cap;
};

void map_fini(struct map *m);

/*
 * Takes exactly len bytes that must describe a memory or disk of this many pages.
 * -EBADMSG when they do not, -EFBIG past MAP_RUNS_MAX, -ENOMEM. Caller owns *ret.
 */
int map_parse(const void *buf, size_t len, uint64_t pages, struct map *ret);

/* Caller frees *ret. -ERANGE when the map reaches past pages, -ENOMEM. */
int map_encode(const struct map *m, uint64_t pages, unsigned char **ret, size_t *ret_len);

/*
 * Adds a range; what is there already stays. Adding in ascending order is O(1).
 * -EINVAL for no pages, -ERANGE past MAP_PAGES_MAX, -EFBIG past MAP_RUNS_MAX, -ENOMEM; the map is
 * unchanged then.
 */
int map_add(struct map *m, uint64_t start, uint64_t n);

/* Caller owns *ret. -ENOMEM. */
int map_copy(const struct map *m, struct map *ret);
bool map_equal(const struct map *a, const struct map *b);

/* How many pages are in the map. */
uint64_t map_pages(const struct map *m);

/* First page behind the last run; 0 when empty. */
uint64_t map_end(const struct map *m);

/* The first run that ends behind page: it holds page, or is the next one; NULL: nothing follows. */
const struct map_run *map_find(const struct map *m, uint64_t page);

/*
 * Is page in the map? *ret_same (may be NULL) says for how many pages, from this one on, the
 * answer stays the same; UINT64_MAX - page when it never changes again.
 */
bool map_has(const struct map *m, uint64_t page, uint64_t *ret_same);
