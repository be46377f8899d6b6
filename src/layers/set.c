#include "layers/set.h"

#include "base/cleanup.h"
#include "base/io.h"
#include "layers/sparse.h"

void set_fini(struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		layer_unref(s->at[i]);
	free(s->at);
	*s = (struct set){0};
}

int set_push(struct set *s, struct layer *l)
{
	struct layer **bigger;

	if (l->pages != s->pages)
		return -EINVAL;
	if (s->n == SET_LAYERS_MAX)
		return -E2BIG;
	bigger = realloc(s->at, (s->n + 1) * sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	s->at = bigger;
	s->at[s->n++] = layer_ref(l);
	return 0;
}

int set_copy(const struct set *s, struct set *ret)
{
	struct set copy = {.pages = s->pages};
	int r;

	for (size_t i = 0; i < s->n; i++) {
		r = set_push(&copy, s->at[i]);
		if (r < 0) {
			set_fini(&copy);
			return r;
		}
	}
	*ret = copy;
	return 0;
}

/* set_find() among the indices first..last only. */
static bool find_among(const struct set *s, size_t first, size_t last, uint64_t page,
                       size_t *ret_index, uint64_t *ret_n)
{
	uint64_t n = s->pages - page, same;

	for (size_t i = last + 1; i-- > first;) {
		if (i < last && s->at[i] == s->at[i + 1])
			continue; /* a collapsed stretch: asked already */
		if (map_has(&s->at[i]->map, page, &same)) {
			*ret_index = i;
			*ret_n = MIN(n, same);
			return true;
		}
		n = MIN(n, same);
	}
	*ret_n = n;
	return false;
}

bool set_find(const struct set *s, uint64_t page, size_t *ret_index, uint64_t *ret_n)
{
	if (s->n)
		return find_among(s, 0, s->n - 1, page, ret_index, ret_n);
	*ret_n = s->pages - page;
	return false;
}

int set_read(const struct set *s, uint64_t page, uint64_t n, void *buf)
{
	char *p = buf;
	uint64_t same;
	size_t i;
	int r;

	if (page > s->pages || n > s->pages - page)
		return -ERANGE;
	for (; n; page += same, p += same * MAP_PAGE, n -= same) {
		bool found = set_find(s, page, &i, &same);

		same = MIN(same, n);
		if (!found) {
			memset(p, 0, same * MAP_PAGE);
			continue;
		}
		r = io_pread_full(s->at[i]->fd, p, same * MAP_PAGE, (off_t)(page * MAP_PAGE));
		if (r < 0)
			return r;
	}
	return 0;
}

/* Copies what first..last provide, resolved, into an empty file. */
static int copy_among(const struct set *s, size_t first, size_t last, int fd)
{
	uint64_t same;
	size_t i;
	int r;

	for (uint64_t page = 0; page < s->pages; page += same) {
		if (!find_among(s, first, last, page, &i, &same))
			continue;
		r = sparse_copy(s->at[i]->fd, fd, (off_t)(page * MAP_PAGE),
		                (off_t)(same * MAP_PAGE));
		if (r < 0)
			return r;
	}
	return 0;
}

int set_export(const struct set *s, int fd)
{
	if (ftruncate(fd, (off_t)(s->pages * MAP_PAGE)) < 0)
		return -errno;
	return s->n ? copy_among(s, 0, s->n - 1, fd) : 0;
}

/* The last index of the stretch of one and the same layer that begins at i. */
static size_t stretch_end(const struct set *s, size_t i)
{
	while (i + 1 < s->n && s->at[i + 1] == s->at[i])
		i++;
	return i;
}

static bool small(const struct layer *l)
{
	return map_pages(&l->map) <= SET_SMALL_PAGES;
}

bool set_plan(const struct set *s, size_t *ret_first, size_t *ret_last)
{
	uint64_t cheapest = UINT64_MAX;
	size_t files = 0, run_first = 0, run_files = 0;

	for (size_t i = 0; i < s->n; i = stretch_end(s, i) + 1)
		files++;
	if (files <= SET_CHAIN_MAX)
		return false;
	for (size_t i = 0; i < s->n; i = stretch_end(s, i) + 1) {
		if (small(s->at[i])) {
			if (run_files++ == 0)
				run_first = i;
			*ret_first = run_first;
			*ret_last = stretch_end(s, i);
		} else if (run_files >= 2) {
			break;
		} else {
			run_files = 0;
		}
	}
	if (run_files >= 2)
		return true;
	for (size_t i = 0; stretch_end(s, i) + 1 < s->n; i = stretch_end(s, i) + 1) {
		size_t next = stretch_end(s, i) + 1;
		uint64_t cost = map_pages(&s->at[i]->map) + map_pages(&s->at[next]->map);

		if (cost < cheapest) {
			cheapest = cost;
			*ret_first = i;
			*ret_last = stretch_end(s, next);
		}
	}
	return true;
}

static int map_among(const struct set *s, size_t first, size_t last, struct map *ret)
{
	struct map sum = {0}, more;
	int r;

	for (size_t i = first; i <= last; i++) {
		if (i > first && s->at[i] == s->at[i - 1])
			continue;
		r = map_union(&sum, &s->at[i]->map, &more);
		map_fini(&sum);
		if (r < 0)
			return r;
		sum = more;
	}
	*ret = sum;
	return 0;
}

int set_merge(const struct set *s, size_t first, size_t last, int dirfd, const char *name,
              struct layer **ret)
{
	AUTO(map_fini) struct map map = {0};
	autoclose int fd = -1;
	int r;

	if (first > last || last >= s->n)
		return -EINVAL;
	r = map_among(s, first, last, &map);
	if (r == 0)
		r = dirfd < 0 ? layer_create_memfd(name, s->pages, &fd)
		              : layer_create_file(dirfd, name, s->pages, &fd);
	if (r < 0)
		return r;
	r = copy_among(s, first, last, fd);
	if (r == 0 && dirfd < 0)
		return layer_seal_memfd(fd, s->pages, &map, ret);
	close(
	    take_fd(&fd)); /* a file is sealed only once nobody can write it, ourselves included */
	if (r == 0)
		r = layer_seal_file(dirfd, name, s->pages, &map, ret);
	if (r < 0 && dirfd >= 0)
		unlinkat(dirfd, name, 0);
	return r;
}

int set_replace(struct set *s, size_t first, size_t last, struct layer *l)
{
	AUTO(map_fini) struct map map = {0};
	int r;

	if (first > last || last >= s->n || l->pages != s->pages)
		return -EINVAL;
	r = map_among(s, first, last, &map);
	if (r < 0)
		return r;
	if (!map_equal(&map, &l->map))
		return -EINVAL; /* a page would change its layer, or get lost */
	for (size_t i = first; i <= last; i++) {
		struct layer *old = s->at[i];

		s->at[i] = layer_ref(l);
		layer_unref(old);
	}
	return 0;
}
