/*
 * fake/control.h - what the fake engine and a fake machine say to each other
 * One struct per message on a SEQPACKET socket: first the one that the machine was born with, later
 * any that connects to "control" in its directory. A request may carry fds, each with the number
 * that the machine holds it under from then on.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
	FAKE_BIRTH = 3, /* the socket that a machine process is started with */
	FAKE_LIFELINE,  /* its end is the end of the test, and so of the machine */

	FAKE_MEMORY = 100, /* sealed layers, as struct engines says */
	FAKE_DISK = 200,
	FAKE_VOLUME = 460,
	FAKE_NET = 470,
	FAKE_FLAT_MEMORY = 480, /* what the guest reads: all layers in one file */
	FAKE_FLAT_DISK,
	FAKE_TOP = 490, /* what its memory is written to */
	FAKE_DIR,       /* its directory */
	FAKE_STATE,     /* of the image it starts from, or of the one it makes */
	FAKE_MAP,       /* of what a snapshot seals */
	FAKE_COPY,      /* of a volume */
	FAKE_MARKS,
	FAKE_DISK_NEXT, /* the tops of disks after a snapshot: one for each disk */
	FAKE_FDS_END = FAKE_DISK_NEXT + 4,

	FAKE_FDS_MAX = 250,
	FAKE_DISKS = 4,
	FAKE_LAYERS = 64,
	FAKE_VOLUMES = 6,
};

enum fake_op {
	FAKE_START = 1,
	FAKE_PING,
	FAKE_SNAPSHOT,
	FAKE_KEEP, /* after a snapshot: which layers it needs */
	FAKE_PAUSE,
	FAKE_RESUME,
	FAKE_STATS,
	FAKE_ATTACH,
	FAKE_DETACH,
	FAKE_GROW,
	FAKE_COPY_BEGIN,
	FAKE_COPY_END,
};

struct fake_disk {
	uint64_t size;
	uint64_t keep; /* bit n: layer n stays */
	uint32_t layers;
	uint32_t read_only;
};

struct fake_volume {
	uint64_t size; /* 0: none */
	uint32_t read_only;
};

struct fake_msg {
	uint32_t op;
	int32_t result; /* of an answer: 0 or a negative errno */
	uint32_t nfds;
	uint32_t slot[FAKE_FDS_MAX];
	char id[80], rules[200]; /* START: whose it is, and the file with its guest's rules */
	uint64_t memory_size;    /* START */
	uint32_t memory_layers;  /* START, and in the answer of SNAPSHOT */
	uint64_t keep;           /* KEEP: of memory */
	struct fake_disk disk[FAKE_DISKS];
	struct fake_volume volume[FAKE_VOLUMES];
	uint32_t nr, force, hold; /* of a volume; of DETACH; of SNAPSHOT */
	uint32_t lost;            /* answer of START: volumes it had and has not */
	uint64_t lives, generation;
};

/* In the map file: this, behind it that many runs of memory, then those of each disk. */
struct fake_sealed {
	char magic[8];
	uint32_t runs[1 + FAKE_DISKS];
};
#define FAKE_SEALED_MAGIC "fakeseal"
