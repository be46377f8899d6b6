/*
 * A fake guest: memory, and the driver's half of virtqueues in it. Queue q has its rings in page q
 * of the second MiB; buffers are wherever the test puts them.
 */
#pragma once
#include <assert.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "vmm/virtio/mmio.h"

enum {
	GUEST_SIZE = 4 << 20,
	GUEST_RINGS = 1 << 20,
	GUEST_RING_SPACE = 64 << 10,
	GUEST_QUEUE = 8, /* descriptors of each queue */
	GUEST_DATA = 2 << 20,
};

struct guest {
	struct mem mem;
	uint16_t avail[VDEV_QUEUES_MAX], seen[VDEV_QUEUES_MAX], next[VDEV_QUEUES_MAX];
	unsigned interrupts;
};

struct piece {
	uint64_t gpa;
	uint32_t len;
	uint16_t flags; /* VRING_DESC_F_WRITE: the device writes it */
};

static inline void guest_new(struct guest *g)
{
	*g = (struct guest){.mem.size = GUEST_SIZE};
	g->mem.base =
	    mmap(NULL, GUEST_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert(g->mem.base != MAP_FAILED);
}

static inline void guest_free(struct guest *g)
{
	munmap(g->mem.base, GUEST_SIZE);
}

static inline uint64_t guest_desc(unsigned q)
{
	return GUEST_RINGS + q * GUEST_RING_SPACE;
}

static inline uint64_t guest_avail(unsigned q)
{
	return guest_desc(q) + 0x4000;
}

static inline uint64_t guest_used(unsigned q)
{
	return guest_desc(q) + 0x8000;
}

static inline void *guest_at(struct guest *g, uint64_t gpa)
{
	return g->mem.base + gpa;
}

static inline void guest_desc_set(struct guest *g, unsigned q, unsigned i, struct vring_desc d)
{
	memcpy(guest_at(g, guest_desc(q) + i * sizeof(d)), &d, sizeof(d));
}

static inline void guest_offer(struct guest *g, unsigned q, uint16_t head)
{
	uint16_t *ring = guest_at(g, guest_avail(q));

	ring[2 + g->avail[q] % GUEST_QUEUE] = head;
	ring[1] = ++g->avail[q];
}

/* A request of these pieces, in the next free descriptors. */
static inline uint16_t guest_add(struct guest *g, unsigned q, const struct piece *p, unsigned n)
{
	uint16_t head = g->next[q] % GUEST_QUEUE;

	for (unsigned i = 0; i < n; i++) {
		uint16_t at = g->next[q] % GUEST_QUEUE, follow = (at + 1) % GUEST_QUEUE;

		guest_desc_set(g, q, at,
		               (struct vring_desc){p[i].gpa, p[i].len,
		                                   p[i].flags | (i + 1 < n ? VRING_DESC_F_NEXT : 0),
		                                   follow});
		g->next[q]++;
	}
	guest_offer(g, q, head);
	return head;
}

/* Has the device handed back another request? Which, and how many bytes it wrote. */
static inline bool guest_used_next(struct guest *g, unsigned q, uint16_t *ret_head,
                                   uint32_t *ret_len)
{
	uint16_t *ring = guest_at(g, guest_used(q));
	struct vring_used_elem e;

	if (ring[1] == g->seen[q])
		return false;
	memcpy(&e, (char *)ring + 4 + g->seen[q]++ % GUEST_QUEUE * sizeof(e), sizeof(e));
	if (ret_head)
		*ret_head = (uint16_t)e.id;
	if (ret_len)
		*ret_len = e.len;
	return true;
}

static inline void guest_interrupted(void *arg, unsigned irq)
{
	((struct guest *)arg)->interrupts++;
}

static inline uint32_t reg_read(struct vdev *v, uint64_t off)
{
	return (uint32_t)vdev_read(v, off, 4);
}

static inline void reg_write(struct vdev *v, uint64_t off, uint32_t value)
{
	vdev_write(v, off, 4, value);
}

static inline void guest_queue(struct vdev *v, unsigned q)
{
	reg_write(v, VIRTIO_MMIO_QUEUE_SEL, q);
	reg_write(v, VIRTIO_MMIO_QUEUE_NUM, GUEST_QUEUE);
	reg_write(v, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)guest_desc(q));
	reg_write(v, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)guest_avail(q));
	reg_write(v, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)guest_used(q));
	reg_write(v, VIRTIO_MMIO_QUEUE_READY, 1);
}

/* As a driver brings a device up: all features that are offered, all queues. */
static inline void guest_probe(struct guest *g, struct vdev *v)
{
	v->arg = g;
	v->interrupt = guest_interrupted;
	reg_write(v, VIRTIO_MMIO_STATUS, 0);
	reg_write(v, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
	for (uint32_t half = 0; half < 2; half++) {
		reg_write(v, VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
		reg_write(v, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
		reg_write(v, VIRTIO_MMIO_DRIVER_FEATURES, reg_read(v, VIRTIO_MMIO_DEVICE_FEATURES));
	}
	reg_write(v, VIRTIO_MMIO_STATUS,
	          VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER |
	              VIRTIO_CONFIG_S_FEATURES_OK);
	assert(reg_read(v, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK);
	for (unsigned q = 0; q < v->ops->queues; q++)
		guest_queue(v, q);
	reg_write(v, VIRTIO_MMIO_STATUS,
	          VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER |
	              VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);
}

static inline void guest_ring(struct vdev *v, unsigned q)
{
	reg_write(v, VIRTIO_MMIO_QUEUE_NOTIFY, q);
}

static inline bool guest_sees_broken(struct vdev *v)
{
	return reg_read(v, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET;
}
