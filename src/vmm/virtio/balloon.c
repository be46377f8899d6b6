#include "vmm/virtio/balloon.h"

#include <errno.h>
#include <linux/virtio_balloon.h>
#include <linux/virtio_ids.h>

#include "base/macro.h"
#include "vmm/mem.h"
#include "vmm/ram.h"
#include "vmm/state.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

/* Queues that stand for features which were not taken are left out, the others move up. */
enum { INFLATE, DEFLATE, STATS, REPORTS };

enum { STATS_MAX = 64 }; /* numbers in one message: more with every kernel */

static unsigned reports_queue(const struct balloon *b)
{
	return vdev_has(&b->vdev, VIRTIO_BALLOON_F_STATS_VQ) ? REPORTS : STATS;
}

/* Inflating and deflating: page numbers that we hear and never asked for. */
static bool drain(struct balloon *b, unsigned queue)
{
	struct chain c;
	bool any = false;

	while (vdev_pop(&b->vdev, queue, &c)) {
		queue_push(&b->vdev.queue[queue], c.head, 0);
		any = true;
	}
	return any;
}

/* The buffers of a report are the free pages themselves. */
static bool take_reports(struct balloon *b, unsigned queue)
{
	const uint8_t *base = b->ram->mem.base;
	uint64_t low = mem_low(&b->ram->mem);
	struct chain c;
	bool any = false;

	while (vdev_pop(&b->vdev, queue, &c)) {
		for (unsigned i = 0; i < c.nin; i++) {
			const struct iovec *v = &chain_in(&c)[i];
			uint64_t at = (uint64_t)((uint8_t *)v->iov_base - base);

			ram_release(b->ram, at < low ? at : at - low + MEM_HIGH, v->iov_len);
		}
		queue_push(&b->vdev.queue[queue], c.head, 0);
		any = true;
	}
	return any;
}

static void take_stats(struct balloon *b)
{
	struct virtio_balloon_stat v[STATS_MAX];
	struct chain c;
	size_t n;

	while (vdev_pop(&b->vdev, STATS, &c)) {
		if (b->has_stats) /* one is enough */
			queue_push(&b->vdev.queue[STATS], b->stats_head, 0);
		n = iov_copy_out(c.iov, c.nout, 0, v, sizeof(v)) / sizeof(v[0]);
		for (size_t i = 0; i < n; i++)
			if (v[i].tag == VIRTIO_BALLOON_S_MEMFREE)
				b->free_bytes = MIN((uint64_t)v[i].val, b->ram->mem.size);
		b->stats_head = c.head;
		b->has_stats = true;
		b->stats_seen++;
	}
}

static void balloon_work(struct vdev *v)
{
	struct balloon *b = (struct balloon *)v;
	unsigned reports = reports_queue(b);

	if (drain(b, INFLATE))
		vdev_signal(v, INFLATE);
	if (drain(b, DEFLATE))
		vdev_signal(v, DEFLATE);
	if (reports == REPORTS)
		take_stats(b);
	if (vdev_has(v, VIRTIO_BALLOON_F_REPORTING) && take_reports(b, reports))
		vdev_signal(v, reports);
}

bool balloon_ask(struct balloon *b)
{
	if (!vdev_live(&b->vdev) || !b->has_stats)
		return false;
	b->has_stats = false;
	queue_push(&b->vdev.queue[STATS], b->stats_head, 0);
	vdev_signal(&b->vdev, STATS);
	return true;
}

static void balloon_reset(struct vdev *v)
{
	((struct balloon *)v)->has_stats = false;
}

/* num_pages is 0 for ever; what the guest says it has is ours to ignore. */
static void balloon_config(struct vdev *v, size_t off, void *buf, size_t len)
{
	memset(buf, 0, len);
}

static const struct vdev_ops balloon_ops = {
    .id = VIRTIO_ID_BALLOON,
    .features = 1ull << VIRTIO_BALLOON_F_STATS_VQ | 1ull << VIRTIO_BALLOON_F_REPORTING |
                1ull << VIRTIO_BALLOON_F_DEFLATE_ON_OOM,
    .queues = 4,
    .queue_max = 32,
    .work = balloon_work,
    .reset = balloon_reset,
    .config_len = sizeof(struct virtio_balloon_config),
    .config_read = balloon_config,
};

void balloon_init(struct balloon *b, struct ram *ram)
{
	*b = (struct balloon){.ram = ram};
	vdev_init(&b->vdev, &balloon_ops, &ram->mem);
}

struct saved_balloon {
	uint64_t free_bytes;
	uint32_t has_stats, stats_head;
};

void balloon_save(const struct balloon *b, struct state_out *o)
{
	struct saved_balloon k = {b->free_bytes, b->has_stats, b->stats_head};

	vdev_save(&b->vdev, o);
	state_put(o, STATE_VIRTIO, &k, sizeof(k));
}

int balloon_load(struct balloon *b, struct state_in *i)
{
	struct saved_balloon k;
	int r = vdev_load(&b->vdev, i);

	if (r == 0)
		r = state_get(i, STATE_VIRTIO, &k, sizeof(k));
	if (r < 0)
		return r;
	if (k.has_stats > 1 || k.stats_head > UINT16_MAX ||
	    (k.has_stats && !b->vdev.queue[STATS].ready))
		return -EBADMSG;
	b->free_bytes = MIN(k.free_bytes, b->ram->mem.size);
	b->has_stats = k.has_stats;
	b->stats_head = (uint16_t)k.stats_head;
	return 0;
}
