/*
 * vmm/virtio/blk.h - a disk (disk.h) as virtio block device
 * Requests are carried out at once, by whoever calls: at rest, none is in flight.
 */
#pragma once
#include "vmm/disk.h"
#include "vmm/virtio/mmio.h"

struct blk {
	struct vdev vdev;
	struct disk disk;
	char name[20]; /* the serial number: what the guest's agent calls it */
};

/* b->disk is set; it may be a volume of no size. */
void blk_init(struct blk *b, const char *name, const struct mem *mem);
