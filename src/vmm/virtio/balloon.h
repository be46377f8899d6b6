/*
 * vmm/virtio/balloon.h - memory that goes back to the host, and how much the guest has free
 * Nothing is ever asked back by inflating. The guest reports blocks of free pages as they come to
 * be, and their memory is released; and it says how much is free when it is asked.
 */
#pragma once
#include "vmm/ram.h"
#include "vmm/virtio/mmio.h"

struct balloon {
	struct vdev vdev;
	struct ram *ram;
	uint64_t free_bytes; /* as the guest said last */
	bool has_stats;      /* its buffer is here, to be given back when it shall tell anew */
	uint16_t stats_head;
	unsigned stats_seen; /* how often it told */
};

void balloon_init(struct balloon *b, struct ram *ram);
/* Asks the guest to tell anew: b->stats_seen grows when it has. False: it cannot be asked. */
bool balloon_ask(struct balloon *b);
void balloon_save(const struct balloon *b, struct state_out *o);
int balloon_load(struct balloon *b, struct state_in *i);
