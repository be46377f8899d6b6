/*
 * vmm/host.h - "panda host": what a guest kernel asks of the host beside virtio
 * A page of 32-bit registers, little-endian, and an interrupt that says: look again. The other side
 * is drivers/virt/panda_host.c in kernel/kvm/patches.
 *
 *   0x00 R magic    0x04 R version    0x08 W event (enum host_event)
 *   0x10..0x1f R    generation: 16 random bytes, others in every life
 *   0x20, 0x24 R    wall clock, ns since 1970; reading the low half keeps the high one
 */
#pragma once
#include <stdint.h>

#define HOST_MAGIC 0x41444e50u

enum { HOST_VERSION = 1, HOST_IRQ = 3, HOST_SIZE = 0x1000 };

enum host_event {
	HOST_NOTHING,
	HOST_POWER_OFF,
	HOST_RESET,
	HOST_PANIC,
	HOST_RESEEDED, /* the new generation has reached the random number generator */
};

struct host {
	uint32_t generation[4];
	uint32_t wall_high;
	uint64_t (*wall_ns)(void);
};

uint32_t host_read(struct host *h, uint64_t off, unsigned len);
enum host_event host_write(struct host *h, uint64_t off, unsigned len, uint64_t value);
