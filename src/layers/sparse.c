#include "layers/sparse.h"

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "layers/map.h"

enum {
	COPY_BUF = 1 << 16 /* stays in the second-level cache between the read and the write */
};

int sparse_next(int fd, off_t off, off_t end, off_t *ret_start, off_t *ret_end)
{
	off_t start, stop;

	if (off >= end)
		return 0;
	start = lseek(fd, off, SEEK_DATA);
	if (start < 0)
		return errno == ENXIO ? 0 : -errno;
	if (start >= end)
		return 0;
	stop = lseek(fd, start, SEEK_HOLE);
	if (stop < 0)
		return -errno;
	start -= start % MAP_PAGE;
	stop += (MAP_PAGE - stop % MAP_PAGE) % MAP_PAGE;
	*ret_start = MAX(start, off);
	*ret_end = MIN(stop, end);
	return 1;
}

static bool all_zero(const char *page)
{
	static const char zeros[MAP_PAGE];

	return memcmp(page, zeros, MAP_PAGE) == 0;
}

int sparse_write(int fd, const void *buf, size_t len, off_t off)
{
	const char *p = buf;
	size_t i = 0;

	while (i < len) {
		size_t from = i;
		int r;

		while (i < len && !all_zero(p + i))
			i += MAP_PAGE;
		if (i > from) {
			r = io_pwrite_full(fd, p + from, i - from, off + (off_t)from);
			if (r < 0)
				return r;
		}
		i += MAP_PAGE; /* the zero page that ended the run */
	}
	return 0;
}

int sparse_copy(int from, int to, off_t off, off_t len)
{
	off_t end = off + len, start, stop;
	autofree char *buf = malloc(COPY_BUF);
	int r;

	if (!buf)
		return -ENOMEM;
	while ((r = sparse_next(from, off, end, &start, &stop)) > 0) {
		for (off = start; off < stop;) {
			size_t n = (size_t)MIN(stop - off, (off_t)COPY_BUF);

			r = io_pread_full(from, buf, n, off);
			if (r == 0)
				r = sparse_write(to, buf, n, off);
			if (r < 0)
				return r;
			off += (off_t)n;
		}
	}
	return r;
}
