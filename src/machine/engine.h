/*
 * machine/engine.h - the seam: what runs machines, whichever way it does
 * A machine is made of a kernel process and layers. Every create, fork, wake and rewind is one
 * operation: start from an image that has a state. Only an image without one is booted cold.
 * No room above knows an engine by name; an engine includes this header and nothing else of
 * machine.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "layers/set.h"

enum {
	ENGINE_LAYERS_MAX = 64, /* of one memory or disk; engines keep their chains below it */
	ENGINE_DISKS_MAX = 4,
	ENGINE_VOLUMES_MAX = 6,
	ENGINE_COPY_CHUNK = 65536,
	ENGINE_ID_MAX = 64,
	ENGINES_MAX = 2,
};

/*
 * One way of running machines: what a machine process is, and what stands between a guest and the
 * host. A machine has one engine for ever, and so has all that was saved of it.
 */
struct engine {
	const char *name;      /* "um", "kvm": in manifests and templates */
	const char *isolation; /* what the API calls this boundary */
	const char *kernel;    /* identity of the guest kernel, for manifests */
	bool host_cpu;         /* guests see the host's cpu, with all of its flags */
	bool copies_ahead;     /* a start copies what was written last before the snapshot */
};

#define ENGINE_VOLUME_BYTES_MAX ((uint64_t)64 << 30)

struct engine_disk {
	uint64_t size;
	bool read_only;
	struct set layers; /* sealed, oldest first; a read-only disk has one: its image */
};

/*
 * A file that a machine uses in place, as /dev/pvol<slot>. It is part of no snapshot and outlives
 * machines; what the guest has flushed is on the host's disk. Every machine has all slots, empty at
 * first, and each start says what is in them: also a restored machine can be given volumes. One
 * that had a volume when it was saved needs the same content in the same slot again (its own file
 * when it goes on, a clone for a fork); else that slot is empty and what is mounted from it gets
 * I/O errors.
 */
struct engine_volume {
	uint64_t size; /* 0: none in this slot */
	bool read_only;
	int fd;            /* for a start: open for reading or for both; -1 in a machine */
	uint64_t dev, ino; /* which file it is */
	const char *mount; /* for machine_start_guest(): where the agent mounts it, or NULL */
};

/*
 * The file as a volume, whole 4096-byte blocks, locked (flock) for as long as this or a machine
 * has it open: by one machine, or by any number of readers. Kinds: volume_missing, volume_busy,
 * volume_unusable.
 */
int engine_volume_open(const char *path, bool read_only, struct engine_volume *ret, struct err *e);
void engine_volume_close(struct engine_volume *v);

/*
 * The content of one file in another, empty one: shared blocks where the file system can, else a
 * copy that keeps holes. Only for a file that no process writes: see snapshot_hold(). Not synced.
 */
int engine_volume_clone(int from, int to);

/* A machine at rest: sealed, so any number of machines may start from it. Owns what it names. */
struct engine_image {
	const struct engine *engine; /* NULL, of one that never ran: the host's default */
	uint64_t memory_size;
	struct set memory;
	struct engine_disk disks[ENGINE_DISKS_MAX];
	size_t ndisks;
	int state; /* the engine's own; -1: never ran */
};

#define ENGINE_IMAGE_EMPTY  \
	{                   \
		.state = -1 \
	}

/* A directory in a machine's directory: for the layers of its disks, maybe on another file
 * system. */
#define ENGINE_DISKS "disks"

/* In a machine's directory from before a snapshot until its books are written. */
#define ENGINE_UNBOOKED "snapshot.map"

void engine_image_fini(struct engine_image *i);
/* Bytes that its files take on the host, without read-only disks. */
uint64_t engine_image_bytes(const struct engine_image *i);
int engine_image_copy(const struct engine_image *i, struct engine_image *ret);

/*
 * What a machine boots from: a read-only root image, and an ext4 file as base of its own disk.
 * Kinds: image_missing, image_unusable. Caller owns *ret.
 */
int engine_image_cold(uint64_t memory_size, const char *root, const char *upper,
                      struct engine_image *ret, struct err *e);

/* A running machine. Closing this does not stop it: it lives in its own process. */
struct engine_machine {
	char id[ENGINE_ID_MAX + 1];
	int dirfd; /* its directory: control, agent (sockets), console.log, disks/disk<d>-<layer> */
	pid_t pid;
	int pidfd;
	struct engine_image image; /* what its newest layers stand on; image.state is -1 */
	int top;                   /* writable fd of its newest memory layer */
	int control;               /* connected */
	struct engine_volume volumes[ENGINE_VOLUMES_MAX];
	uint32_t volumes_lost; /* after a start, by bit: it was saved with one, and has none now */
	bool net;              /* it was given a tap */
};

#define ENGINE_MACHINE_EMPTY                                                                 \
	{                                                                                    \
		.dirfd = -1, .pid = -1, .pidfd = -1, .image = ENGINE_IMAGE_EMPTY, .top = -1, \
		.control = -1                                                                \
	}

void engine_machine_fini(struct engine_machine *m);

struct engine_start {
	const char *id;
	const char *tenant;   /* whose share of the host it uses; NULL: no tenant's */
	const char *hostname; /* what its guest is called; NULL: as its id */
	int dirfd;            /* directory for it, empty or prepared; borrowed */
	const struct engine_image *image;
	uint64_t memory_limit;    /* of the whole machine process; 0: its size and some room */
	unsigned cpu_max_percent; /* 0: no limit */
	unsigned pids_max;        /* 0: the engine's default */
	int cpu;                  /* where it runs; -1: the least loaded one */
	unsigned cpus;            /* cold boot only: how many it has, 0 as 1; um: always one */
	const char *cmdline;      /* cold boot only: added to the kernel's command line, or NULL */
	/* machine_start(): when it can be read, its guest is waited for no longer. 0: none. */
	int stop_fd;
	bool prepared; /* machine_start(): its directory is there, by machine_prepare() */
	struct engine_volume volumes[ENGINE_VOLUMES_MAX]; /* fds are borrowed */
	/* machine_start(): what its guest had mounted from volumes it is not given is unmounted. */
	bool umount_lost;
	/*
	 * The tap behind the guest's eth0 (IFF_TAP, IFF_NO_PI, IFF_VNET_HDR with 10 bytes),
	 * borrowed; 0 or -1: none, and eth0 has no carrier. It is part of no snapshot: each life
	 * has its own or none, and connections of an earlier one that went outside end with
	 * ECONNRESET.
	 */
	int net_fd;
};

struct engine_stats {
	uint64_t memory_bytes;      /* what the guest was given */
	uint64_t memory_free_bytes; /* what the guest says is free */
	uint64_t uptime_ns;
	uint64_t lives; /* how often it woke up in a new process */
};

struct engine_snapshot_info {
	uint64_t stop_ns; /* how long the machine stood still */
};

struct engines {
	/* Those that work on this host. A machine that does not ask for one gets the first. */
	const struct engine *list;
	size_t count;
	/* Where a machine process holds its layers: fd numbers, for the process that takes it up
	 * again. */
	unsigned memory_slot,
	    disk_slot, /* disk d, layer i: disk_slot + d * ENGINE_LAYERS_MAX + i */
	    volume_slot, net_slot;

	/*
	 * Makes ahead what is slow about a start: the process of the machine that will have this id
	 * and this directory, in its jail. It holds nothing of any machine yet, and ends with us.
	 * The caller need not. forget() undoes it when the start did not come; free() forgets all.
	 */
	int (*prepare)(struct engines *e, const char *id, int dirfd, struct err *err);
	void (*forget)(struct engines *e, const char *id);

	/* One that runs is this tenant's from some ms later on, if it is not yet. Returns at once.
	 */
	void (*belongs)(struct engines *e, const char *id, const char *tenant);

	/* Boots or restores. Returns when the kernel runs; *ret is the caller's. */
	int (*start)(struct engines *e, const struct engine_start *s, struct engine_machine *ret,
	             struct err *err);

	/*
	 * A snapshot that the machine finished but the process that asked for it did not: waits
	 * until the machine is at peace, then gives the map of the layer it sealed, of its memory
	 * (disk -1) or of a disk. -ENOENT: there was none. In the file ENGINE_UNBOOKED of dirfd.
	 */
	int (*unbooked)(struct engines *e, int dirfd, int disk, uint64_t pages, struct map *ret);

	/* Takes up a machine that another process started. id and dirfd say which. */
	int (*adopt)(struct engines *e, const char *id, int dirfd, pid_t pid,
	             const struct engine_image *image, struct engine_machine *ret, struct err *err);

	/*
	 * Seals what the machine has written and lets it go on above. *ret can be started from,
	 * any number of times, also when the machine is long gone.
	 */
	int (*snapshot)(struct engines *e, struct engine_machine *m, struct engine_image *ret,
	                struct engine_snapshot_info *info, struct err *err);

	/*
	 * The same, and the machine stands still until go_on(), or until m->control is closed: what
	 * its volumes hold now belongs to *ret.
	 */
	int (*snapshot_hold)(struct engines *e, struct engine_machine *m, struct engine_image *ret,
	                     struct engine_snapshot_info *info, struct err *err);
	int (*go_on)(struct engines *e, struct engine_machine *m, struct err *err);

	/*
	 * Volumes of a machine that runs: the device is there, a file comes or goes. Kinds of
	 * errors: volume_busy (the guest has the device open; with force it is taken away all the
	 * same), volume_failed. v->fd is borrowed.
	 */
	int (*volume_attach)(struct engines *e, struct engine_machine *m, unsigned slot,
	                     const struct engine_volume *v, struct err *err);
	int (*volume_detach)(struct engines *e, struct engine_machine *m, unsigned slot, bool force,
	                     struct err *err);
	int (*volume_grow)(struct engines *e, struct engine_machine *m, unsigned slot,
	                   uint64_t size, struct err *err);

	/*
	 * A copy of a volume as of now, while the machine writes it. Before it changes one of its
	 * ENGINE_COPY_CHUNK bytes for the first time, it puts the old ones into the file `to` and
	 * sets that chunk's byte in the file `marks`. The caller copies the rest: reads a chunk,
	 * and leaves it alone when it is marked by then. The machine may keep `to` open for ever.
	 * Ends with volume_copied(), which says whether the machine could do its part, or when
	 * m->control is closed.
	 */
	int (*volume_copy)(struct engines *e, struct engine_machine *m, unsigned slot, int to,
	                   int marks, struct err *err);
	int (*volume_copied)(struct engines *e, struct engine_machine *m, unsigned slot,
	                     struct err *err);

	int (*pause)(struct engines *e, struct engine_machine *m, struct err *err);
	int (*resume)(struct engines *e, struct engine_machine *m, struct err *err);
	int (*stats)(struct engines *e, struct engine_machine *m, struct engine_stats *ret,
	             struct err *err);

	/* Does the host know why it ended (out of memory)? Then true, and the reason in words. */
	bool (*why_ended)(struct engines *e, const char *id, char *ret, size_t n);

	/* Kills it and removes what the host kept for it, but for its directory. */
	int (*stop)(struct engines *e, const char *id, pid_t pid, struct err *err);

	void (*free)(struct engines *e);
};

/* By name; NULL or "" or "auto" is the default. NULL when it is not there; *e says so and why. */
const struct engine *engine_find(const struct engines *engines, const char *name, struct err *e);
