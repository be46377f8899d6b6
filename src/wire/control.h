/*
 * wire/control.h - what the process of a machine and the host say to each other
 * The process is panda-um or panda-vmm, on its control socket. One message is one packet; fds
 * travel with it, and slot[i] says which number the i-th gets in the machine. panda-um has its own
 * declaration, arch/um/include/shared/panda.h in kernel/um/patches: tools/check-control compares.
 */
#pragma once
#include <stdint.h>

#define CTL_MAGIC 0x41444e50u

enum {
	CTL_FD_CTL = 3,
	CTL_FD_AGENT = 5,
	CTL_FD_PAGEMAP = 6,
	CTL_FD_TOP = 7,
	CTL_FD_STATE = 8,
	CTL_FD_KVM = 9,     /* panda-vmm: /dev/kvm, which it has from its start, */
	CTL_FD_KERNEL = 10, /* and the kernel that a cold boot loads */
	CTL_FD_NET = 13,    /* a tap; none: no network in this life */
	CTL_FD_COPY = 14,   /* while a volume is copied: the file to fill, */
	CTL_FD_MARKS = 15,  /* and a byte for each of its chunks: in there by the machine */
	CTL_FD_LAYER = 16,
	CTL_LAYERS_MAX = 64,
	CTL_FD_DISK = 80,
	CTL_DISKS_MAX = 4,
	CTL_FD_VOLUME = CTL_FD_DISK + CTL_DISKS_MAX * CTL_LAYERS_MAX, /* + volume */
	CTL_VOLUMES_MAX = 6,
	CTL_FD_DYNAMIC = CTL_FD_VOLUME + CTL_VOLUMES_MAX, /* what a machine opens by itself */
	CTL_TO_STATE = 1000,                              /* snapshot: files to fill, not slots */
	CTL_TO_MAP = 1001,
	CTL_TOP_RO = 1002,   /* snapshot: the present top, read-only from now on */
	CTL_DISK_RO = 1010,  /* + disk: the same for its top */
	CTL_DISK_TOP = 1020, /* + disk: its next top */
	CTL_FDS_MAX = 200,
};

enum ctl_type {
	CTL_HELLO = 1,
	CTL_READY,
	CTL_SNAPSHOT,
	CTL_PAUSE,
	CTL_RESUME,
	CTL_STATS,
	CTL_DONE,
	CTL_PING,
	CTL_VOLUME,
};

enum ctl_volume_verb {
	CTL_VOLUME_ATTACH = 1, /* volume[nr], with an fd for its slot */
	CTL_VOLUME_DETACH,
	CTL_VOLUME_GROW,   /* volume[nr].size */
	CTL_VOLUME_COPY,   /* what is about to be changed is copied first, until */
	CTL_VOLUME_COPIED, /* this, or the end of the connection; one volume at a time */
};

struct ctl_disk {
	uint64_t size;
	uint32_t layers;
	uint32_t read_only;
};

/* A file that is used in place. Size 0: none. */
struct ctl_volume {
	uint64_t size;
	uint32_t read_only;
	uint32_t reserved;
};

struct ctl_msg {
	uint32_t magic;
	uint32_t type;
	uint64_t arg[8];
	struct ctl_disk disk[CTL_DISKS_MAX];
	struct ctl_volume volume[CTL_VOLUMES_MAX]; /* CTL_HELLO, CTL_VOLUME */
	uint32_t nr_disks;
	uint32_t nr_fds;
	uint16_t slot[CTL_FDS_MAX];
};

/* arg[] of CTL_READY: volumes it was saved with and has no file for, one bit each */
enum {
	CTL_READY_LOST = 1,
};

/* arg[] of CTL_SNAPSHOT: stand still until the next request, or the end of the connection */
enum {
	CTL_SNAPSHOT_HOLD,
};

/* arg[] of CTL_VOLUME */
enum {
	CTL_VOLUME_NR = 1,
	CTL_VOLUME_VERB,
	CTL_VOLUME_FORCE, /* detach: also when the guest has it open */
};

/* arg[] of the answer to CTL_SNAPSHOT. Old layers that are still needed, one bit each. */
enum {
	CTL_DONE_ERR,
	CTL_DONE_STOP_NS,
	CTL_DONE_RUNS,
	CTL_DONE_LIVE,
};
