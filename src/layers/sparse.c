#include "layers/sparse.h"

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/map.h"

enum {
	COPY_BUF = 1 << 16 /* stays in the second-level cache between the read and the write */
};

off_t sparse_data(int fd, off_t off, off_t end)
{
	off_t at;

	if (off >= end)
		return end;
	at = lseek(fd, off, SEEK_DATA);
	if (at < 0)
		return errno == ENXIO ? end : -errno;
	at = MAX(at - at % MAP_PAGE, off);
	return MIN(at, end);
}

int sparse_write(int fd, const void *buf, size_t len, off_t off)
{
	const char *p = buf;
	size_t i = 0;

	while (i < len) {
		size_t from = i;
		int r;

		while (i < len && !io_is_zeros(p + i, MAP_PAGE))
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
	autofree char *buf = malloc(COPY_BUF);
	off_t end = off + len;
	int r;

	if (!buf)
		return -ENOMEM;
	while ((off = sparse_data(from, off, end)) >= 0 && off < end) {
		size_t n = (size_t)MIN(end - off, (off_t)COPY_BUF);

		r = io_pread_full(from, buf, n, off);
		if (r == 0)
			r = sparse_write(to, buf, n, off);
		if (r < 0)
			return r;
		off += (off_t)n;
	}
	return off < 0 ? (int)off : 0;
}
