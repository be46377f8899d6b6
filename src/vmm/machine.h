/*
 * vmm/machine.h - the whole machine: memory, vcpus, devices, and where each is found
 * The main thread is the device thread: it has the loop and the control socket. One lock is for all
 * devices: vcpus take it for accesses to registers, the loop's callbacks for everything else.
 *
 * Start order: fds are in their slots (control.h) -> machine_boot() or machine_restore() ->
 * READY -> machine_go(). Snapshot: monitor_snapshot().
 */
#pragma once
#include "base/loop.h"
#include "vmm/host.h"
#include "vmm/mem.h"
#include "vmm/ram.h"
#include "vmm/serial.h"
#include "vmm/state.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"
#include "vmm/vm.h"
#include "vmm/volume.h"
#include "wire/control.h"

enum {
	MACHINE_DEVICES_MAX = CTL_DISKS_MAX + CTL_VOLUMES_MAX + 4,
	MACHINE_LOG_MAX = 16 << 20, /* what one life may write to its console */
	MACHINE_RESEED_MS = 100,    /* how long vcpus wait for a kernel that does not reseed */
};

#define MACHINE_DEVICES MEM_HOLE /* one page each, from here on */
#define MACHINE_HOST    (MEM_HOLE + 0x10000)

struct machine;

/* A virtio device and the bell that its driver rings. */
struct slot {
	struct machine *m;
	struct vdev *vdev;
	int bell;
	struct loop_io io;
};

struct machine {
	struct loop *loop;
	pthread_mutex_t lock;
	struct ram ram;
	struct vm vm;
	struct serial serial;
	struct host_page host;
	struct blk disk[CTL_DISKS_MAX];
	struct volumes volumes;
	unsigned nr_disks;
	struct virtio_net net;
	struct rng rng;
	struct vsock vsock;
	struct balloon balloon;
	struct slot slot[MACHINE_DEVICES_MAX];
	unsigned nr_slots;
	struct loop_timer reseed;
	uint64_t lives;
	struct state_out held; /* while paused: vcpus and clocks as they stopped */
	bool paused;
	char line[256]; /* of the console, not written yet */
	size_t line_len;
	uint64_t logged;
	void (*worked)(void *arg); /* after devices did something; may be NULL */
	void *worked_arg;
};

struct machine_spec {
	const struct ctl_msg *hello;
	unsigned layers; /* of memory, that came with it */
	bool agent, net; /* these fds came */
	/* a cold boot: */
	uint64_t memory;
	unsigned cpus;
	const char *baseline; /* of their features; NULL: the highest */
	const char *cmdline;
};

/* *ret_what: what failed, a constant. m is zeroed, and m->loop set. */
int machine_boot(struct machine *m, const struct machine_spec *s, const char **ret_what);
/* *ret_lost: volumes it was saved with and has no file for, one bit each. */
int machine_restore(struct machine *m, const struct machine_spec *s, uint64_t *ret_lost,
                    const char **ret_what);

/* vcpus run from here on; or stand still, and so does their time. */
void machine_go(struct machine *m);
void machine_pause(struct machine *m);

/* Fds of a snapshot, above all slots; the callee takes them all. */
struct snapshot_fds {
	int state, map, top_ro, top;
	int disk_ro[CTL_DISKS_MAX], disk_top[CTL_DISKS_MAX];
};

/*
 * Seals what was written. Fills the answer, also when it fails (then layers may be gone all the
 * same). hold: the machine stands still afterwards, as after machine_pause().
 */
int monitor_snapshot(struct machine *m, struct snapshot_fds *f, bool hold, struct ctl_msg *answer);

/* Does not return. */
void machine_end(struct machine *m, enum vm_end how, const char *why) __attribute__((noreturn));

/* between machine.c and snapshot.c */
int machine_devices(struct machine *m, const struct machine_spec *s, const char **ret_what);
int machine_vm(struct machine *m, const struct vm_spec *spec, const char **ret_what);
int machine_bells(struct machine *m);
int machine_new_life(struct machine *m);
