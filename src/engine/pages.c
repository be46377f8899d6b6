#include "engine/pages.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/map.h"

int runs_add(struct map *m, const void *bytes, size_t nr, uint64_t pages)
{
	const unsigned char *p = bytes;

	for (size_t i = 0; i < nr; i++, p += RUN_LEN) {
		struct map_run run;
		int r;

		memcpy(&run.start, p, sizeof(run.start));
		memcpy(&run.n, p + sizeof(run.start), sizeof(run.n));
		if (run.n == 0 || run.n > pages || run.start > pages - run.n ||
		    run.start < map_end(m))
			return -EBADMSG;
		r = map_add(m, run.start, run.n);
		if (r < 0)
			return r;
	}
	return 0;
}

int runs_read(int fd, off_t *pos, uint64_t nr, uint64_t pages, struct map *ret)
{
	AUTO(map_fini) struct map m = {0};
	unsigned char buf[256 * RUN_LEN];
	off_t at = *pos;

	if (nr > MAP_RUNS_MAX)
		return -EFBIG;
	while (nr) {
		size_t n = (size_t)MIN(nr, (uint64_t)(sizeof(buf) / RUN_LEN));
		int r = io_pread_full(fd, buf, n * RUN_LEN, at);

		if (r == 0)
			r = runs_add(&m, buf, n, pages);
		if (r < 0)
			return r == -ENODATA ? -EBADMSG : r;
		at += (off_t)(n * RUN_LEN);
		nr -= n;
	}
	*pos = at;
	*ret = m;
	m = (struct map){0};
	return 0;
}
