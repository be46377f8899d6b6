#include "layers/set.h"

#include <errno.h>
#include <unistd.h>

#include "base/macro.h"
#include "layers/layer.h"
#include "layers/map.h"
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

bool set_find(const struct set *s, uint64_t page, size_t *ret_index, uint64_t *ret_n)
{
	uint64_t n = s->pages - page, same;

	for (size_t i = s->n; i-- > 0;) {
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

int set_export(const struct set *s, int fd)
{
	uint64_t same;
	size_t i;
	int r;

	if (ftruncate(fd, (off_t)(s->pages * MAP_PAGE)) < 0)
		return -errno;
	for (uint64_t page = 0; page < s->pages; page += same) {
		if (!set_find(s, page, &i, &same))
			continue;
		r = sparse_copy(s->at[i]->fd, fd, (off_t)(page * MAP_PAGE),
		                (off_t)(same * MAP_PAGE));
		if (r < 0)
			return r;
	}
	return 0;
}
