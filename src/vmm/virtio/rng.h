/*
 * vmm/virtio/rng.h - random bytes of the host, as many as are asked for
 */
#pragma once
#include "vmm/virtio/mmio.h"

struct rng {
	struct vdev vdev;
};

void rng_init(struct rng *r, const struct mem *mem);
