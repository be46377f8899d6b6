#include "vmm/copy.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/macro.h"

void copy_begin(struct copy *c, int to, int marks, uint64_t size)
{
	*c = (struct copy){.on = true, .to = to, .marks = marks, .size = size};
}

/* All is done by the device thread: no other thread changes it between our look at the mark and the
 * copy. */
static int keep(struct copy *c, int from, uint64_t chunk)
{
	static unsigned char buf[COPY_CHUNK];
	uint64_t off = chunk * COPY_CHUNK;
	size_t len = (size_t)MIN((uint64_t)COPY_CHUNK, c->size - off);
	uint8_t mark;
	int r = io_pread_full(c->marks, &mark, 1, (off_t)chunk);

	if (r < 0 || mark)
		return r;
	r = io_pread_full(from, buf, len, (off_t)off);
	/* What is kept is as thin as the volume. */
	if (r == 0 && !io_is_zeros(buf, len))
		r = io_pwrite_full(c->to, buf, len, (off_t)off);
	mark = 1;
	return r == 0 ? io_pwrite_full(c->marks, &mark, 1, (off_t)chunk) : r;
}

void copy_before(struct copy *c, int from, uint64_t off, uint64_t len)
{
	/* What was added since is in no copy. */
	uint64_t end = MIN(off + len, c->size);

	for (uint64_t chunk = off / COPY_CHUNK; chunk * COPY_CHUNK < end && !c->error; chunk++)
		c->error = keep(c, from, chunk);
}

int copy_end(struct copy *c)
{
	int r = c->error;

	if (!c->on)
		return -ENOENT;
	close(c->to);
	close(c->marks);
	*c = (struct copy){0};
	return r;
}
