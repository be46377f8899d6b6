/*
 * layers/sparse.h - files with holes: find the data, copy the data, leave zeros out
 * Offsets and lengths are bytes and multiples of MAP_PAGE. These move the file offset (lseek), so
 * every file of this room reads and writes with pread and pwrite.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The first offset in [off, end) that holds data, rounded down to its page; end when only holes
 * follow; or a negative errno. (Never SEEK_HOLE: in a memfd it walks page by page to the end of
 * the data, and a caller that asks once per piece is quadratic. Read on; zeros are found soon
 * enough.)
 */
off_t sparse_data(int fd, off_t off, off_t end);

/* Writes those pages of buf that are not all zeros; the file must have holes there. */
int sparse_write(int fd, const void *buf, size_t len, off_t off);

/* Copies [off, off + len) to the same place in another file that has a hole there. */
int sparse_copy(int from, int to, off_t off, off_t len);
