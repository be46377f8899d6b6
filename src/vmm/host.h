/*
 * vmm/host.h - "panda host": what a guest kernel asks of the host beside virtio
 * A page of 32-bit registers, little-endian, and an interrupt that says: look again. The other side
 * is drivers/virt/panda_host.c in kernel/kvm/patches; tools/check-control compares the two.
 */
#pragma once
#include <stdint.h>

#define HOST_MAGIC 0x41444e50u

enum { HOST_VERSION = 1, HOST_IRQ = 3, HOST_SIZE = 0x1000 };

enum host_reg {
	HOST_REG_MAGIC = 0x00,
	HOST_REG_VERSION = 0x04,
	HOST_REG_EVENT = 0x08,      /* written: enum host_event */
	HOST_REG_GENERATION = 0x10, /* 16 random bytes, others in every life */
	HOST_REG_CLOCK = 0x20,      /* u64, ns since 1970; reading its low half keeps the high */
};

enum host_event {
	HOST_NOTHING,
	HOST_POWER_OFF,
	HOST_RESET,
	HOST_PANIC,
	HOST_RESEEDED, /* the new generation has reached the random number generator */
};

struct host_page {
	uint32_t generation[4];
	uint32_t wall_high;
	uint64_t (*wall_ns)(void);
};

uint32_t host_read(struct host_page *h, uint64_t off, unsigned len);
enum host_event host_write(struct host_page *h, uint64_t off, unsigned len, uint64_t value);
