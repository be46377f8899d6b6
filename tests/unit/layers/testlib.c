#include "testlib.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "base/macro.h"

int tmpdir_make(char path[64])
{
	const char *base = getenv("TMPDIR");
	int fd;

	assert_true(snprintf(path, 64, "%s/panda-layers.XXXXXX", base ? base : "/tmp") < 64);
	assert_non_null(mkdtemp(path));
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *f)
{
	return remove(path);
}

void tmpdir_remove(const char *path)
{
	assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

uint32_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 16);
}

int save_layer(struct layer *l, int dir)
{
	struct sync_list sync = {0};
	int r = layer_save(l, dir, LAYER_PLAIN, &sync);

	if (r == 0)
		r = sync_all(&sync);
	sync_fini(&sync);
	return r;
}

int read_set(const struct set *s, uint64_t page, uint64_t n, void *buf)
{
	char *p = buf;
	uint64_t same;
	size_t i;
	int r = 0;

	for (; r == 0 && n; page += same, p += same * MAP_PAGE, n -= same) {
		bool found = set_find(s, page, &i, &same);

		same = MIN(same, n);
		if (found)
			r = io_pread_full(s->at[i]->fd, p, same * MAP_PAGE,
			                  (off_t)(page * MAP_PAGE));
		else
			memset(p, 0, same * MAP_PAGE);
	}
	return r;
}
