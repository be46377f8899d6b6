/*
 * vmm/virtio/blk.h - a disk (disk.h) as virtio block device
 * Requests are carried out at once, by the calling thread: at rest, none is in flight.
 *
 * A volume's device has a feature of our own: its config says whether the file that is there now is
 * read-only, which may change while the guest runs, and its driver writes there whether a program
 * has the device open. Until it has a file for the first time, or a driver knows it, it is not
 * there: most machines never have a volume, and a device takes a guest's time and memory.
 */
#pragma once
#include "vmm/disk.h"
#include "vmm/virtio/mmio.h"

enum {
	BLK_F_VOLUME = 23,
	BLK_CONFIG_READ_ONLY = 0x80,
	BLK_CONFIG_OPEN = 0x84,
	BLK_CONFIG_NUMBER = 0x88,
};

struct blk {
	struct vdev vdev;
	struct disk disk;
	bool open;       /* a volume: the guest says it is in use */
	uint32_t number; /* a volume: which one */
	char name[20];   /* the serial number: what it is called in the guest */
};

/* b->disk is set; it may be a volume of no size. */
void blk_init(struct blk *b, const char *name, const struct mem *mem);
