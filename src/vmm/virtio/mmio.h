/*
 * vmm/virtio/mmio.h - a virtio device behind registers in memory (virtio 1.2, "MMIO", version 2)
 * The caller holds one lock for all devices. What a driver does wrong breaks its device: it says
 * NEEDS_RESET and does nothing until the driver resets it.
 */
#pragma once
#include "vmm/state.h"
#include "vmm/virtio/queue.h"

enum {
	VDEV_QUEUES_MAX = 4,
	VDEV_MMIO_SIZE = 0x1000,
	VDEV_NOTIFY = 0x50, /* the register that a driver rings */
	VDEV_CONFIG = 0x100,
};

#define VDEV_VERSION_1 (1ull << 32)
#define VDEV_INDIRECT  (1ull << 28)

struct vdev;

struct vdev_ops {
	uint32_t id;       /* VIRTIO_ID_* */
	uint64_t features; /* offered beside VERSION_1 and indirect descriptors */
	unsigned queues;
	uint16_t queue_max;
	/* The driver has rung, or the device was started, reset or restored. See vdev_pop(). */
	void (*work)(struct vdev *v);
	/* NULL: always. While it is not, its place looks empty to a driver. */
	bool (*here)(const struct vdev *v);
	/* Forgets what belongs to a driver. May be NULL. */
	void (*reset)(struct vdev *v);
	/* Config space: [off, off + len) is inside config_len. Write may be NULL. */
	size_t config_len;
	void (*config_read)(struct vdev *v, size_t off, void *buf, size_t len);
	void (*config_write)(struct vdev *v, size_t off, const void *buf, size_t len);
};

struct vdev {
	const struct vdev_ops *ops;
	const struct mem *mem;
	void (*interrupt)(void *arg, unsigned irq);
	/* NULL: ops->work at once; else work is to be done, soon, on the thread it belongs to */
	void (*ring)(void *arg, struct vdev *v);
	void *arg;
	unsigned irq;
	uint64_t offered; /* what ops says, less what this one has not */

	uint64_t features; /* what the driver took */
	uint32_t status, features_sel, driver_features_sel, queue_sel;
	uint32_t interrupts; /* InterruptStatus */
	uint32_t generation;
	struct queue queue[VDEV_QUEUES_MAX];
};

void vdev_init(struct vdev *v, const struct vdev_ops *ops, const struct mem *mem);

/* Anything a guest may do, at any offset and with any length. */
uint64_t vdev_read(struct vdev *v, uint64_t off, unsigned len);
void vdev_write(struct vdev *v, uint64_t off, unsigned len, uint64_t value);

bool vdev_live(const struct vdev *v);
/* Did driver and device agree on this? */
static inline bool vdev_has(const struct vdev *v, unsigned feature)
{
	return v->features >> feature & 1;
}

/* queue_pop(), but a lie breaks the device; then and when there is nothing: false. */
bool vdev_pop(struct vdev *v, unsigned queue, struct chain *ret);
/* Tells the driver of pushed requests, if it wants to know. True: it was told. */
bool vdev_signal(struct vdev *v, unsigned queue);
/* The config has changed: a new generation, and the driver is told. */
void vdev_config_changed(struct vdev *v);
void vdev_break(struct vdev *v);

/*
 * The machine goes on after it stood still. An interrupt that the driver has not acknowledged comes
 * again. True: the driver has asked for something that was not looked at yet.
 */
bool vdev_wake(struct vdev *v);

void vdev_save(const struct vdev *v, struct state_out *s);
/* -EBADMSG: no device of this kind can be in that state. */
int vdev_load(struct vdev *v, struct state_in *s);
