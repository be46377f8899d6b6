#include "vmm/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "vmm/copy.h"
#include "vmm/index.h"
#include "vmm/state.h"

enum { COPY_BYTES = 65536, IOV_BATCH = 256 };

int disk_init(struct disk *d, unsigned slot, uint64_t size, unsigned layers, bool read_only)
{
	if (size == 0 || size % INDEX_PAGE || layers < (read_only ? 1u : 2u) ||
	    layers > DISK_LAYERS_MAX)
		return -EINVAL;
	*d = (struct disk){.size = size, .slot = slot, .layers = layers, .read_only = read_only};
	return page_index_init(&d->index, size / INDEX_PAGE);
}

void disk_init_volume(struct disk *d, unsigned slot, uint64_t size, bool read_only)
{
	*d = (struct disk){
	    .size = size, .slot = slot, .layers = 1, .read_only = read_only, .volume = true};
}

void disk_fini(struct disk *d)
{
	page_index_fini(&d->index);
}

static int layer_fd(const struct disk *d, unsigned layer)
{
	return (int)(d->slot + layer);
}

static int top_fd(const struct disk *d)
{
	return layer_fd(d, d->layers - 1);
}

/* Takes n bytes off the front of an iovec, which may end in the middle of a piece. */
struct disk_cursor {
	struct iovec *iov;
	unsigned n;
};

static void advance(struct disk_cursor *c, size_t n)
{
	while (n) {
		size_t step = MIN(n, c->iov->iov_len);

		c->iov->iov_base = (char *)c->iov->iov_base + step;
		c->iov->iov_len -= step;
		n -= step;
		if (c->iov->iov_len == 0) {
			c->iov++;
			c->n--;
		}
	}
}

/* One transfer of len bytes to or from one file: cuts the iovec at len for the call. */
static int transfer(int fd, struct disk_cursor *c, size_t len, uint64_t off, bool write)
{
	while (len) {
		size_t total = 0, cut = 0;
		unsigned n = 0;
		ssize_t r;

		while (n < c->n && n < IOV_BATCH && total < len)
			total += c->iov[n++].iov_len;
		if (total > len) {
			cut = total - len;
			c->iov[n - 1].iov_len -= cut;
		}
		do
			r = write ? pwritev(fd, c->iov, (int)n, (off_t)off)
			          : preadv(fd, c->iov, (int)n, (off_t)off);
		while (r < 0 && errno == EINTR);
		if (cut)
			c->iov[n - 1].iov_len += cut;
		if (r < 0)
			return -errno;
		if (r == 0) {
			if (write)
				return -EIO;
			/* Behind the end of a sparse file there are zeros. */
			while (len) {
				size_t step = MIN(len, c->iov->iov_len);

				memset(c->iov->iov_base, 0, step);
				advance(c, step);
				len -= step;
			}
			return 0;
		}
		advance(c, (size_t)r);
		off += (uint64_t)r;
		len -= (size_t)r;
	}
	return 0;
}

static int check(const struct disk *d, const struct iovec *iov, unsigned n, uint64_t off,
                 uint64_t *ret_len)
{
	uint64_t len = 0;

	for (unsigned i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (len == 0 || (off | len) % INDEX_PAGE || len > d->size || off > d->size - len)
		return -EINVAL;
	*ret_len = len;
	return 0;
}

int disk_read(struct disk *d, struct iovec *iov, unsigned n, uint64_t off)
{
	struct disk_cursor c = {iov, n};
	uint64_t len;
	int r = check(d, iov, n, off, &len);

	if (r == 0 && d->volume)
		return transfer(top_fd(d), &c, len, off, false);
	while (r == 0 && len) {
		uint64_t block = off / INDEX_PAGE;
		uint64_t step = page_index_same(&d->index, block, len / INDEX_PAGE) * INDEX_PAGE;

		r = transfer(layer_fd(d, d->index.at[block]), &c, step, off, false);
		off += step;
		len -= step;
	}
	return r;
}

static void mark(struct disk *d, uint64_t off, uint64_t len)
{
	if (!d->volume)
		page_index_set(&d->index, off / INDEX_PAGE, len / INDEX_PAGE,
		               (uint8_t)(d->layers - 1));
}

int disk_write(struct disk *d, struct iovec *iov, unsigned n, uint64_t off)
{
	struct disk_cursor c = {iov, n};
	uint64_t len;
	int r = check(d, iov, n, off, &len);

	if (r == 0 && d->read_only)
		r = -EROFS;
	if (r == 0 && d->copy)
		copy_before(d->copy, top_fd(d), off, len);
	if (r == 0)
		r = transfer(top_fd(d), &c, len, off, true);
	if (r == 0)
		mark(d, off, len);
	return r;
}

int disk_zero(struct disk *d, uint64_t off, uint64_t len)
{
	if (len == 0 || (off | len) % INDEX_PAGE || len > d->size || off > d->size - len)
		return -EINVAL;
	if (d->read_only)
		return -EROFS;
	if (d->copy)
		copy_before(d->copy, top_fd(d), off, len);
	if (fallocate(top_fd(d), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off,
	              (off_t)len) < 0)
		return -errno;
	mark(d, off, len);
	return 0;
}

int disk_flush(struct disk *d)
{
	if (!d->volume || d->read_only)
		return 0;
	return fdatasync(top_fd(d)) < 0 ? -errno : 0;
}

/* Which old layers are small enough to be taken over; the smallest when none is. */
static uint64_t choose_dead(const struct disk *d)
{
	uint64_t blocks[DISK_LAYERS_MAX] = {0}, at = 0, dead = 0;
	unsigned top = d->layers - 1, least = 1;
	struct extent e;

	if (top < DISK_CHAIN_MAX)
		return 0;
	while (page_index_next(&d->index, &at, &e))
		blocks[e.what] += e.n;
	for (unsigned i = 1; i < top; i++) {
		if (blocks[i] <= DISK_SMALL_BLOCKS)
			dead |= 1ull << i;
		if (blocks[i] < blocks[least])
			least = i;
	}
	return dead ? dead : 1ull << least;
}

static int take_over(struct disk *d, uint64_t dead)
{
	autofree char *buf = malloc(COPY_BYTES);
	uint64_t at = 0;
	struct extent e;

	if (!buf)
		return -ENOMEM;
	while (page_index_next(&d->index, &at, &e)) {
		if (!(dead >> e.what & 1))
			continue;
		for (uint64_t done = 0, all = e.n * INDEX_PAGE; done < all;) {
			uint64_t off = e.start * INDEX_PAGE + done;
			size_t step = (size_t)MIN(all - done, (uint64_t)COPY_BYTES);
			struct iovec iov = {buf, step};
			struct disk_cursor c = {&iov, 1};
			int r = transfer(layer_fd(d, (unsigned)e.what), &c, step, off, false);

			if (r < 0)
				return r;
			iov = (struct iovec){buf, step};
			c = (struct disk_cursor){&iov, 1};
			r = transfer(top_fd(d), &c, step, off, true);
			if (r < 0)
				return r;
			done += step;
		}
	}
	return 0;
}

int disk_compact(struct disk *d, uint64_t *ret_live)
{
	uint64_t dead = choose_dead(d);
	unsigned top = d->layers - 1, to = 0;

	*ret_live = (1ull << top) - 1;
	if (dead) {
		int r = take_over(d, dead);

		if (r < 0)
			return r;
		for (unsigned i = 0; i <= top; i++) {
			if (dead >> i & 1)
				continue;
			if (to != i && dup3(layer_fd(d, i), layer_fd(d, to), O_CLOEXEC) < 0)
				return -errno;
			to++;
		}
		for (unsigned i = to; i <= top; i++)
			close(layer_fd(d, i));
		d->layers = to;
		page_index_renumber(&d->index, 0, dead, (uint8_t)(to - 1));
		*ret_live &= ~dead;
	}
	return d->layers < DISK_LAYERS_MAX ? 0 : -E2BIG;
}

int disk_seal(struct disk *d, int ro, int next)
{
	if (dup3(ro, top_fd(d), O_CLOEXEC) < 0 || dup3(next, layer_fd(d, d->layers), O_CLOEXEC) < 0)
		return -errno;
	close(ro);
	close(next);
	d->layers++;
	return 0;
}

struct saved_disk {
	uint64_t size;
	uint32_t layers, read_only;
};

void disk_save(const struct disk *d, struct state_out *s)
{
	struct saved_disk k = {d->size, d->layers + !d->read_only, d->read_only};
	long n = page_index_extents(&d->index, NULL, INDEX_EXTENTS_MAX);
	struct extent *v;

	if (n < 0 && !s->error)
		s->error = (int)n;
	state_put(s, STATE_DISK, &k, sizeof(k));
	v = n < 0 ? NULL : state_room(s, STATE_EXTENTS, (size_t)n * sizeof(*v));
	if (v)
		page_index_extents(&d->index, v, (size_t)n);
}

int disk_load(struct disk *d, struct state_in *s)
{
	struct saved_disk k;
	const void *at;
	size_t n;
	int r;

	r = state_get(s, STATE_DISK, &k, sizeof(k));
	if (r == 0 && (k.size != d->size || k.layers != d->layers || k.read_only != d->read_only))
		r = -EBADMSG;
	if (r == 0)
		r = state_items(s, STATE_EXTENTS, sizeof(struct extent), INDEX_EXTENTS_MAX, &at,
		                &n);
	if (r < 0)
		return r;
	/* Its newest layer is empty yet. */
	return page_index_load(&d->index, at, n, (uint8_t)(d->layers - (d->read_only ? 1 : 2)));
}
