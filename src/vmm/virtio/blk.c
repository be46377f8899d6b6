#include "vmm/virtio/blk.h"

#include <errno.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>
#include <stddef.h>
#include <stdio.h>

#include "base/macro.h"
#include "vmm/disk.h"
#include "vmm/index.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

enum {
	SECTOR = 512,
	SEGMENTS = CHAIN_MAX - 4,
	RANGES_MAX = 16,                     /* of one discard */
	RANGE_SECTORS = 0x7fffffff / SECTOR, /* of one range */
};

static int zero_ranges(struct blk *b, const struct chain *c, bool discard)
{
	struct virtio_blk_discard_write_zeroes v[RANGES_MAX];
	size_t head = sizeof(struct virtio_blk_outhdr), n = c->out_len - head;
	int r = 0;

	if (n == 0 || n % sizeof(v[0]) || n > sizeof(v))
		return -EINVAL;
	iov_copy_out(c->iov, c->nout, head, v, n);
	for (size_t i = 0; r == 0 && i < n / sizeof(v[0]); i++) {
		if (v[i].num_sectors > RANGE_SECTORS || v[i].sector > b->disk.size / SECTOR ||
		    v[i].flags & ~(uint32_t)VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP ||
		    (discard && v[i].flags))
			return -EINVAL;
		r = disk_zero(&b->disk, v[i].sector * SECTOR, (uint64_t)v[i].num_sectors * SECTOR);
	}
	return r;
}

/* Returns how many bytes were written into the chain, before the status; or what went wrong. */
static long carry_out(struct blk *b, struct chain *c)
{
	struct virtio_blk_outhdr head;
	struct iovec iov[CHAIN_MAX];
	size_t in = c->in_len - 1;
	int n;

	iov_copy_out(c->iov, c->nout, 0, &head, sizeof(head));
	switch (head.type) {
	case VIRTIO_BLK_T_IN:
		n = iov_slice(chain_in(c), c->nin, 0, in, iov, CHAIN_MAX);
		if (n < 0 || head.sector > b->disk.size / SECTOR)
			return -EINVAL;
		n = disk_read(&b->disk, iov, (unsigned)n, head.sector * SECTOR);
		return n < 0 ? n : (long)in;
	case VIRTIO_BLK_T_OUT:
		n = iov_slice(c->iov, c->nout, sizeof(head), c->out_len - sizeof(head), iov,
		              CHAIN_MAX);
		if (n < 0 || head.sector > b->disk.size / SECTOR)
			return -EINVAL;
		return disk_write(&b->disk, iov, (unsigned)n, head.sector * SECTOR);
	case VIRTIO_BLK_T_FLUSH:
		return disk_flush(&b->disk);
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return zero_ranges(b, c, head.type == VIRTIO_BLK_T_DISCARD);
	case VIRTIO_BLK_T_GET_ID:
		return (long)iov_copy_in(chain_in(c), c->nin, 0, b->name, MIN(in, sizeof(b->name)));
	default:
		return -EOPNOTSUPP;
	}
}

static void blk_work(struct vdev *v)
{
	struct blk *b = (struct blk *)v;
	struct chain c;
	bool any = false;

	while (vdev_pop(v, 0, &c)) {
		uint8_t status;
		long r;

		if (c.out_len < sizeof(struct virtio_blk_outhdr) || c.in_len < 1) {
			vdev_break(v);
			return;
		}
		r = carry_out(b, &c);
		status = r >= 0             ? VIRTIO_BLK_S_OK
		         : r == -EOPNOTSUPP ? VIRTIO_BLK_S_UNSUPP
		                            : VIRTIO_BLK_S_IOERR;
		iov_copy_in(chain_in(&c), c.nin, c.in_len - 1, &status, 1);
		queue_push(&v->queue[0], c.head, (uint32_t)(r > 0 ? r : 0) + 1);
		any = true;
	}
	if (any)
		vdev_signal(v, 0);
}

struct blk_config {
	struct virtio_blk_config standard;
	uint8_t unused[BLK_CONFIG_READ_ONLY - sizeof(struct virtio_blk_config)];
	uint32_t read_only, open, number;
};

_Static_assert(offsetof(struct blk_config, open) == BLK_CONFIG_OPEN &&
                   offsetof(struct blk_config, number) == BLK_CONFIG_NUMBER,
               "the driver's idea of it");

static void blk_config(struct vdev *v, size_t off, void *buf, size_t len)
{
	const struct blk *b = (const struct blk *)v;
	const struct blk_config config = {
	    .standard = {.capacity = b->disk.size / SECTOR,
	                 .seg_max = SEGMENTS,
	                 .blk_size = INDEX_PAGE,
	                 .max_discard_sectors = RANGE_SECTORS & ~7u,
	                 .max_discard_seg = RANGES_MAX,
	                 .discard_sector_alignment = INDEX_PAGE / SECTOR,
	                 .max_write_zeroes_sectors = RANGE_SECTORS & ~7u,
	                 .max_write_zeroes_seg = RANGES_MAX,
	                 .write_zeroes_may_unmap = 1},
	    .read_only = b->disk.read_only,
	    .open = b->open,
	    .number = b->number,
	};

	memcpy(buf, (const char *)&config + off, len);
}

static void blk_config_write(struct vdev *v, size_t off, const void *buf, size_t len)
{
	struct blk *b = (struct blk *)v;
	uint32_t value;

	if (off != BLK_CONFIG_OPEN || len != sizeof(value) || !vdev_has(v, BLK_F_VOLUME))
		return;
	memcpy(&value, buf, sizeof(value));
	b->open = value;
}

static bool blk_here(const struct vdev *v)
{
	const struct blk *b = (const struct blk *)v;

	return !b->disk.volume || b->disk.size || v->status;
}

static void blk_reset(struct vdev *v)
{
	((struct blk *)v)->open = false;
}

static const struct vdev_ops blk_ops = {
    .id = VIRTIO_ID_BLOCK,
    .features = 1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_BLK_SIZE |
                1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_DISCARD |
                1ull << VIRTIO_BLK_F_WRITE_ZEROES | 1ull << VIRTIO_BLK_F_RO | 1ull << BLK_F_VOLUME,
    .queues = 1,
    .queue_max = 128,
    .work = blk_work,
    .here = blk_here,
    .reset = blk_reset,
    .config_len = sizeof(struct blk_config),
    .config_read = blk_config,
    .config_write = blk_config_write,
};

void blk_init(struct blk *b, const char *name, const struct mem *mem)
{
	const uint64_t writes = 1ull << VIRTIO_BLK_F_DISCARD | 1ull << VIRTIO_BLK_F_WRITE_ZEROES;
	uint64_t not_here = 1ull << BLK_F_VOLUME;

	vdev_init(&b->vdev, &blk_ops, mem);
	snprintf(b->name, sizeof(b->name), "%s", name);
	b->open = false;
	/* A volume's slot is for either kind: what is in it may be another file at any moment. */
	if (b->disk.volume)
		not_here = 1ull << VIRTIO_BLK_F_RO;
	else
		not_here |= b->disk.read_only ? writes : 1ull << VIRTIO_BLK_F_RO;
	b->vdev.offered &= ~not_here;
}
