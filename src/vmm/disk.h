/*
 * vmm/disk.h - a disk of layers, or one file used in place (a volume)
 * Block b stands at b * 4096 in each layer's file. The index says which layer holds a block; layer
 * 0 is below all, the newest one, the top, is the only one written. Fds are slots that stay the
 * caller's (control.h): layer i of a disk is fd slot + i.
 */
#pragma once
#include <stdbool.h>
#include <sys/uio.h>

#include "vmm/copy.h"
#include "vmm/index.h"
#include "vmm/state.h"

enum {
	DISK_LAYERS_MAX = 64,
	DISK_CHAIN_MAX = 24, /* from here on the top takes over what small old layers hold */
	DISK_SMALL_BLOCKS = 4096,
};

struct disk {
	struct page_index index; /* of a volume: none */
	uint64_t size;           /* in bytes; 0: there is none */
	unsigned slot, layers;
	bool read_only;
	bool volume;
	struct copy *copy; /* of a volume that is being copied; else NULL */
};

int disk_init(struct disk *d, unsigned slot, uint64_t size, unsigned layers, bool read_only);
void disk_init_volume(struct disk *d, unsigned slot, uint64_t size, bool read_only);
void disk_fini(struct disk *d);

/*
 * off and the pieces together are whole blocks inside the disk (-EINVAL). iov is used up. -EIO and
 * what the host says.
 */
int disk_read(struct disk *d, struct iovec *iov, unsigned n, uint64_t off);
int disk_write(struct disk *d, struct iovec *iov, unsigned n, uint64_t off);
/* Reads as zeros from now on, and takes no room. */
int disk_zero(struct disk *d, uint64_t off, uint64_t len);
/* A volume's content is on the host's disk then; layers outlive the machine anyway. */
int disk_flush(struct disk *d);

/*
 * Begins a snapshot: returns the mask of older layers that the top does without from now on (bit 0
 * is layer 0); their content is in it. Layers above them move down, fds included. Cannot be undone
 * and need not be.
 */
int disk_compact(struct disk *d, uint64_t *ret_live);
/* Ends it: the top becomes sealed layer ro, next is the new one. Both fds are taken. */
int disk_seal(struct disk *d, int ro, int next);

/* The map of layers, as it will be once the top is sealed. */
void disk_save(const struct disk *d, struct state_out *s);
/* d was made by disk_init() with its new top: the same size and number of layers, or -EBADMSG. */
int disk_load(struct disk *d, struct state_in *s);
