#include "layers/map.h"

#include "base/cleanup.h"
#include "base/macro.h"
#include "layers/bytes.h"

static const char map_magic[8] = "PANDAMAP";

enum { MAP_VERSION = 1 };

void map_fini(struct map *m)
{
	free(m->runs);
	*m = (struct map){0};
}

static int reserve(struct map *m, size_t n)
{
	size_t cap = MAX(m->cap * 2, (size_t)8);
	struct map_run *bigger;

	if (n <= m->cap)
		return 0;
	if (n > MAP_RUNS_MAX)
		return -EFBIG;
	cap = MAX(cap, n);
	bigger = realloc(m->runs, cap * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	m->runs = bigger;
	m->cap = cap;
	return 0;
}

int map_parse(const void *buf, size_t len, uint64_t pages, struct map *ret)
{
	const unsigned char *p = buf;
	AUTO(map_fini) struct map m = {0};
	uint64_t end = 0;
	size_t n;
	int r;

	if (len < MAP_HEAD_LEN || memcmp(p, map_magic, sizeof(map_magic)) != 0 ||
	    get_le32(p + 8) != MAP_VERSION || pages > MAP_PAGES_MAX || get_le64(p + 16) != pages)
		return -EBADMSG;
	n = get_le32(p + 12);
	if (n > MAP_RUNS_MAX)
		return -EFBIG;
	if (len - MAP_HEAD_LEN != n * MAP_RUN_LEN)
		return -EBADMSG;
	r = reserve(&m, n);
	if (r < 0)
		return r;
	p += MAP_HEAD_LEN;
	for (size_t i = 0; i < n; i++, p += MAP_RUN_LEN) {
		struct map_run run = {.start = get_le64(p), .n = get_le64(p + 8)};

		if (run.start < end || run.start >= pages || run.n == 0 ||
		    run.n > pages - run.start)
			return -EBADMSG;
		if (m.n && run.start == end)
			m.runs[m.n - 1].n += run.n;
		else
			m.runs[m.n++] = run;
		end = run.start + run.n;
	}
	*ret = m;
	m = (struct map){0};
	return 0;
}

int map_encode(const struct map *m, uint64_t pages, unsigned char **ret, size_t *ret_len)
{
	size_t len = MAP_HEAD_LEN + m->n * MAP_RUN_LEN;
	unsigned char *buf, *p;

	if (map_end(m) > pages || pages > MAP_PAGES_MAX)
		return -ERANGE;
	buf = malloc(len);
	if (!buf)
		return -ENOMEM;
	memcpy(buf, map_magic, sizeof(map_magic));
	put_le32(buf + 8, MAP_VERSION);
	put_le32(buf + 12, (uint32_t)m->n);
	put_le64(buf + 16, pages);
	p = buf + MAP_HEAD_LEN;
	for (size_t i = 0; i < m->n; i++, p += MAP_RUN_LEN) {
		put_le64(p, m->runs[i].start);
		put_le64(p + 8, m->runs[i].n);
	}
	*ret = buf;
	*ret_len = len;
	return 0;
}

/* Index of the first run that ends at or behind page; m->n when there is none. */
static size_t first_reaching(const struct map *m, uint64_t page)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (m->runs[mid].start + m->runs[mid].n < page)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

int map_add(struct map *m, uint64_t start, uint64_t n)
{
	uint64_t end = start + n;
	size_t i, j;
	int r;

	if (n == 0)
		return -EINVAL;
	if (start >= MAP_PAGES_MAX || n > MAP_PAGES_MAX - start)
		return -ERANGE;
	/* Runs i..j-1 touch or overlap the new one and melt into it. */
	i = m->n && map_end(m) < start ? m->n : first_reaching(m, start);
	for (j = i; j < m->n && m->runs[j].start <= end; j++) {
		start = MIN(start, m->runs[j].start);
		end = MAX(end, m->runs[j].start + m->runs[j].n);
	}
	if (i == j) {
		r = reserve(m, m->n + 1);
		if (r < 0)
			return r;
	}
	if (j - i != 1 && j < m->n)
		memmove(&m->runs[i + 1], &m->runs[j], (m->n - j) * sizeof(*m->runs));
	m->n = m->n + 1 - (j - i);
	m->runs[i] = (struct map_run){.start = start, .n = end - start};
	return 0;
}

int map_copy(const struct map *m, struct map *ret)
{
	AUTO(map_fini) struct map copy = {0};
	int r;

	for (size_t i = 0; i < m->n; i++) {
		r = map_add(&copy, m->runs[i].start, m->runs[i].n);
		if (r < 0)
			return r;
	}
	*ret = copy;
	copy = (struct map){0};
	return 0;
}

bool map_equal(const struct map *a, const struct map *b)
{
	return a->n == b->n &&
	       (a->n == 0 || memcmp(a->runs, b->runs, a->n * sizeof(*a->runs)) == 0);
}

uint64_t map_pages(const struct map *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n; i++)
		sum += m->runs[i].n;
	return sum;
}

uint64_t map_end(const struct map *m)
{
	return m->n ? m->runs[m->n - 1].start + m->runs[m->n - 1].n : 0;
}

const struct map_run *map_find(const struct map *m, uint64_t page)
{
	size_t i = page == UINT64_MAX ? m->n : first_reaching(m, page + 1);

	return i < m->n ? &m->runs[i] : NULL;
}

bool map_has(const struct map *m, uint64_t page, uint64_t *ret_same)
{
	const struct map_run *run = map_find(m, page);
	bool in = run && run->start <= page;

	if (ret_same && !run)
		*ret_same = UINT64_MAX - page;
	else if (ret_same)
		*ret_same = (in ? run->start + run->n : run->start) - page;
	return in;
}
