/*
 * vmm/volume.h - volumes: files used in place, behind block devices
 * Every machine has a place for each of its volumes. A file can come, go and grow while it runs,
 * and in its next life: a capacity is all that changes, and a device that has none yet is not seen.
 * The guest's driver says whether a program has a device open (virtio/blk.h); such a one neither
 * loses its file unasked nor gets another, which what is still mounted would write over. The caller
 * holds the devices' lock.
 */
#pragma once
#include "vmm/copy.h"
#include "vmm/virtio/blk.h"
#include "wire/control.h"

struct volumes {
	struct blk blk[CTL_VOLUMES_MAX];
	struct copy copy; /* of one of them */
};

/* Files are in their slots (control.h) where is[i].size says so. */
void volumes_init(struct volumes *v, const struct ctl_volume is[CTL_VOLUMES_MAX],
                  const struct mem *mem);

/*
 * CTL_VOLUME. fds[i] is for msg->slot[i]; they stay the caller's. -EBUSY: the guest has it open;
 * -EEXIST, -ENOENT: there is a file, or none. CTL_VOLUME_COPIED answers how the copy went.
 */
int volumes_request(struct volumes *v, const struct ctl_msg *msg, const int *fds);
/* The process that copied is gone. */
void volumes_end_copy(struct volumes *v);

void volumes_save(const struct volumes *v, struct state_out *s);
/* Tells drivers what is not as it was. *ret_lost: those that had a file and have none, by bit. */
int volumes_load(struct volumes *v, struct state_in *s, uint64_t *ret_lost);
