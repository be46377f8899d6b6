/*
 * wire/control.h - what panda-um, or panda-vmm, and the host say to each other on the control
 * socket The other side is arch/um/include/shared/panda.h in kernel/um/patches, and src/vmm. One
 * message is one packet; fds travel with it, and slot[i] says which number the i-th gets in the
 * machine.
 */
#pragma once
#include <stdint.h>

#define UM_MAGIC 0x41444e50u

enum {
	UM_FD_CTL = 3,
	UM_FD_AGENT = 5,
	UM_FD_PAGEMAP = 6,
	UM_FD_TOP = 7,
	UM_FD_STATE = 8,
	UM_FD_KVM = 9,     /* panda-vmm: /dev/kvm, which it has from its start, */
	UM_FD_KERNEL = 10, /* and the kernel that a cold boot loads */
	UM_FD_NET = 13,    /* a tap; none: no network in this life */
	UM_FD_COPY = 14,   /* while a volume is copied: the file to fill, */
	UM_FD_MARKS = 15,  /* and a byte for each of its chunks: in there by the machine */
	UM_FD_LAYER = 16,
	UM_LAYERS_MAX = 64,
	UM_FD_DISK = 80,
	UM_DISKS_MAX = 4,
	UM_FD_VOLUME = UM_FD_DISK + UM_DISKS_MAX * UM_LAYERS_MAX, /* + volume */
	UM_VOLUMES_MAX = 6,
	UM_FD_DYNAMIC = UM_FD_VOLUME + UM_VOLUMES_MAX, /* what a machine opens by itself */
	UM_TO_STATE = 1000,                            /* snapshot: files to fill, not slots */
	UM_TO_MAP = 1001,
	UM_TOP_RO = 1002,   /* snapshot: the present top, read-only from now on */
	UM_DISK_RO = 1010,  /* + disk: the same for its top */
	UM_DISK_TOP = 1020, /* + disk: its next top */
	UM_FDS_MAX = 200,
};

enum um_type {
	UM_HELLO = 1,
	UM_READY,
	UM_SNAPSHOT,
	UM_PAUSE,
	UM_RESUME,
	UM_STATS,
	UM_DONE,
	UM_PING,
	UM_VOLUME,
};

enum um_volume_verb {
	UM_VOLUME_ATTACH = 1, /* volume[nr], with an fd for its slot */
	UM_VOLUME_DETACH,
	UM_VOLUME_GROW,   /* volume[nr].size */
	UM_VOLUME_COPY,   /* what is about to be changed is copied first, until */
	UM_VOLUME_COPIED, /* this, or the end of the connection; one volume at a time */
};

struct um_disk {
	uint64_t size;
	uint32_t layers;
	uint32_t read_only;
};

/* A file that is used in place. Size 0: none. */
struct um_volume {
	uint64_t size;
	uint32_t read_only;
	uint32_t reserved;
};

struct um_msg {
	uint32_t magic;
	uint32_t type;
	uint64_t arg[8];
	struct um_disk disk[UM_DISKS_MAX];
	struct um_volume volume[UM_VOLUMES_MAX]; /* UM_HELLO, UM_VOLUME */
	uint32_t nr_disks;
	uint32_t nr_fds;
	uint16_t slot[UM_FDS_MAX];
};

/* arg[] of UM_READY: volumes it was saved with and has no file for, one bit each */
enum {
	UM_READY_LOST = 1,
};

/* arg[] of UM_SNAPSHOT: stand still until the next request, or the end of the connection */
enum {
	UM_SNAPSHOT_HOLD,
};

/* arg[] of UM_VOLUME */
enum {
	UM_VOLUME_NR = 1,
	UM_VOLUME_VERB,
	UM_VOLUME_FORCE, /* detach: also when the guest has it open */
};

/* arg[] of the answer to UM_SNAPSHOT. Old layers that are still needed, one bit each. */
enum {
	UM_DONE_ERR,
	UM_DONE_STOP_NS,
	UM_DONE_RUNS,
	UM_DONE_LIVE,
	UM_DONE_DISK_RUNS, /* + disk */
};
