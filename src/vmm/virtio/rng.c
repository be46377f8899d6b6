#include "vmm/virtio/rng.h"

#include <linux/virtio_ids.h>
#include <sys/random.h>

#include "base/macro.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

enum { AT_ONCE = 4096 }; /* of one request: who wants more asks again */

static void rng_work(struct vdev *v)
{
	uint8_t bytes[AT_ONCE];
	bool any = false;
	struct chain c;

	while (vdev_pop(v, 0, &c)) {
		ssize_t n = getrandom(bytes, MIN(c.in_len, sizeof(bytes)), GRND_NONBLOCK);

		n = n > 0 ? (ssize_t)iov_copy_in(chain_in(&c), c.nin, 0, bytes, (size_t)n) : 0;
		queue_push(&v->queue[0], c.head, (uint32_t)n);
		any = true;
	}
	explicit_bzero(bytes, sizeof(bytes));
	if (any)
		vdev_signal(v, 0);
}

static const struct vdev_ops rng_ops = {
    .id = VIRTIO_ID_RNG,
    .queues = 1,
    .queue_max = 8,
    .work = rng_work,
};

void rng_init(struct rng *r, const struct mem *mem)
{
	vdev_init(&r->vdev, &rng_ops, mem);
}
