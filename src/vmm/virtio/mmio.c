#include "vmm/virtio/mmio.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>

#include "vmm/state.h"
#include "vmm/virtio/queue.h"

enum { VENDOR = 0x41444e50 }; /* "PNDA" */

static void reset_queues(struct vdev *v)
{
	for (unsigned i = 0; i < VDEV_QUEUES_MAX; i++)
		v->queue[i] = (struct queue){.mem = v->mem,
		                             .max = i < v->ops->queues ? v->ops->queue_max : 0};
}

void vdev_init(struct vdev *v, const struct vdev_ops *ops, const struct mem *mem)
{
	*v = (struct vdev){.ops = ops, .mem = mem};
	v->offered = ops->features | VDEV_VERSION_1 | VDEV_INDIRECT;
	reset_queues(v);
}

bool vdev_live(const struct vdev *v)
{
	return (v->status & (VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_NEEDS_RESET |
	                     VIRTIO_CONFIG_S_FAILED)) == VIRTIO_CONFIG_S_DRIVER_OK;
}

/* Work is the device thread's: another thread rings. */
static void ring(struct vdev *v)
{
	if (v->ring)
		v->ring(v->arg, v);
	else
		v->ops->work(v);
}

static void interrupt(struct vdev *v, uint32_t why)
{
	v->interrupts |= why;
	if (v->interrupt)
		v->interrupt(v->arg, v->irq);
}

void vdev_break(struct vdev *v)
{
	v->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
	interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

bool vdev_pop(struct vdev *v, unsigned queue, struct chain *ret)
{
	int r;

	if (!vdev_live(v) || !v->queue[queue].ready)
		return false;
	r = queue_pop(&v->queue[queue], ret);
	if (r < 0)
		vdev_break(v);
	return r > 0;
}

bool vdev_signal(struct vdev *v, unsigned queue)
{
	if (!v->queue[queue].ready || !queue_wants_interrupt(&v->queue[queue]))
		return false;
	interrupt(v, VIRTIO_MMIO_INT_VRING);
	return true;
}

void vdev_config_changed(struct vdev *v)
{
	v->generation++;
	if (v->status & VIRTIO_CONFIG_S_DRIVER_OK)
		interrupt(v, VIRTIO_MMIO_INT_CONFIG);
}

bool vdev_wake(struct vdev *v)
{
	bool asked = false;

	if (v->interrupts)
		interrupt(v, 0);
	for (unsigned i = 0; vdev_live(v) && i < v->ops->queues; i++)
		asked |= v->queue[i].ready && queue_asked(&v->queue[i]);
	return asked;
}

static uint64_t read_config(struct vdev *v, size_t off, unsigned len)
{
	uint64_t value = 0;

	if (off <= v->ops->config_len && len <= v->ops->config_len - off)
		v->ops->config_read(v, off, &value, len);
	return value;
}

static struct queue *selected(struct vdev *v)
{
	return v->queue_sel < v->ops->queues ? &v->queue[v->queue_sel] : NULL;
}

static uint32_t read_register(struct vdev *v, uint64_t off)
{
	const struct queue *q = selected(v);

	switch (off) {
	case VIRTIO_MMIO_MAGIC_VALUE:
		return 0x74726976;
	case VIRTIO_MMIO_VERSION:
		return 2;
	case VIRTIO_MMIO_DEVICE_ID:
		return !v->ops->here || v->ops->here(v) ? v->ops->id : 0;
	case VIRTIO_MMIO_VENDOR_ID:
		return VENDOR;
	case VIRTIO_MMIO_DEVICE_FEATURES:
		return v->features_sel < 2 ? (uint32_t)(v->offered >> (32 * v->features_sel)) : 0;
	case VIRTIO_MMIO_QUEUE_NUM_MAX:
		return q ? q->max : 0;
	case VIRTIO_MMIO_QUEUE_READY:
		return q && q->ready;
	case VIRTIO_MMIO_INTERRUPT_STATUS:
		return v->interrupts;
	case VIRTIO_MMIO_STATUS:
		return v->status;
	case VIRTIO_MMIO_CONFIG_GENERATION:
		return v->generation;
	case VIRTIO_MMIO_SHM_LEN_LOW: /* all ones: no such region */
	case VIRTIO_MMIO_SHM_LEN_HIGH:
	case VIRTIO_MMIO_SHM_BASE_LOW:
	case VIRTIO_MMIO_SHM_BASE_HIGH:
		return UINT32_MAX;
	default:
		return 0;
	}
}

uint64_t vdev_read(struct vdev *v, uint64_t off, unsigned len)
{
	if (len != 1 && len != 2 && len != 4 && len != 8)
		return 0;
	if (off >= VDEV_CONFIG)
		return read_config(v, off - VDEV_CONFIG, len);
	return len == 4 ? read_register(v, off) : 0;
}

static void reset(struct vdev *v)
{
	bool ran = v->status & VIRTIO_CONFIG_S_DRIVER_OK;

	v->features = 0;
	v->status = v->features_sel = v->driver_features_sel = v->queue_sel = v->interrupts = 0;
	reset_queues(v);
	if (v->ops->reset) {
		v->ops->reset(v);
		if (ran)
			ring(v);
	}
}

static void set_status(struct vdev *v, uint32_t value)
{
	const uint32_t bits = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER |
	                      VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FEATURES_OK |
	                      VIRTIO_CONFIG_S_FAILED;
	uint32_t before = v->status;

	if (value == 0) {
		reset(v);
		return;
	}
	value &= bits;
	if ((value & VIRTIO_CONFIG_S_FEATURES_OK) && !(before & VIRTIO_CONFIG_S_FEATURES_OK) &&
	    (v->features & ~v->offered || !(v->features & VDEV_VERSION_1)))
		value &= ~(uint32_t)VIRTIO_CONFIG_S_FEATURES_OK;
	if (!((before | value) & VIRTIO_CONFIG_S_FEATURES_OK))
		value &= ~(uint32_t)VIRTIO_CONFIG_S_DRIVER_OK;
	v->status |= value; /* bits are only taken back by a reset */
	if (v->status & ~before & VIRTIO_CONFIG_S_DRIVER_OK)
		ring(v); /* there may be something in its queues already */
}

static void set_features(struct vdev *v, uint32_t value)
{
	unsigned shift = 32 * v->driver_features_sel;

	if (v->driver_features_sel < 2 && !(v->status & VIRTIO_CONFIG_S_FEATURES_OK))
		v->features = (v->features & ~(0xffffffffull << shift)) | (uint64_t)value << shift;
}

static void set_half(uint64_t *address, bool high, uint32_t value)
{
	if (high)
		*address = (uint32_t)*address | (uint64_t)value << 32;
	else
		*address = (*address & ~0xffffffffull) | value;
}

static void set_ready(struct vdev *v, struct queue *q, uint32_t value)
{
	if (!(value & 1)) {
		q->ready = false;
		return;
	}
	if (q->ready)
		return;
	if (!queue_usable(q)) {
		vdev_break(v);
		return;
	}
	q->ready = true;
	q->next_avail = q->next_used = 0;
}

/* All that changes nothing once the queue is ready. */
static void write_queue(struct vdev *v, struct queue *q, uint64_t off, uint32_t value)
{
	if (!q)
		return;
	if (off == VIRTIO_MMIO_QUEUE_READY) {
		set_ready(v, q, value);
		return;
	}
	if (q->ready)
		return;
	switch (off) {
	case VIRTIO_MMIO_QUEUE_NUM:
		q->size = value <= QUEUE_SIZE_MAX ? (uint16_t)value : 0;
		break;
	case VIRTIO_MMIO_QUEUE_DESC_LOW:
	case VIRTIO_MMIO_QUEUE_DESC_HIGH:
		set_half(&q->desc, off == VIRTIO_MMIO_QUEUE_DESC_HIGH, value);
		break;
	case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
	case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
		set_half(&q->avail, off == VIRTIO_MMIO_QUEUE_AVAIL_HIGH, value);
		break;
	case VIRTIO_MMIO_QUEUE_USED_LOW:
	case VIRTIO_MMIO_QUEUE_USED_HIGH:
		set_half(&q->used, off == VIRTIO_MMIO_QUEUE_USED_HIGH, value);
		break;
	}
}

void vdev_write(struct vdev *v, uint64_t off, unsigned len, uint64_t value)
{
	if (off >= VDEV_CONFIG) {
		off -= VDEV_CONFIG;
		if (v->ops->config_write && len <= sizeof(value) && off <= v->ops->config_len &&
		    len <= v->ops->config_len - off)
			v->ops->config_write(v, off, &value, len);
		return;
	}
	if (len != 4)
		return;
	switch (off) {
	case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
		v->features_sel = (uint32_t)value;
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
		v->driver_features_sel = (uint32_t)value;
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES:
		set_features(v, (uint32_t)value);
		break;
	case VIRTIO_MMIO_QUEUE_SEL:
		v->queue_sel = (uint32_t)value;
		break;
	case VIRTIO_MMIO_QUEUE_NOTIFY:
		ring(v);
		break;
	case VIRTIO_MMIO_INTERRUPT_ACK:
		v->interrupts &= ~(uint32_t)value;
		break;
	case VIRTIO_MMIO_STATUS:
		set_status(v, (uint32_t)value);
		break;
	default:
		write_queue(v, selected(v), off, (uint32_t)value);
	}
}

struct saved_vdev {
	uint64_t features;
	uint32_t id, status, features_sel, driver_features_sel, queue_sel, interrupts, generation;
	uint32_t queues;
};

struct saved_queue {
	uint64_t desc, avail, used;
	uint16_t size, next_avail, next_used, ready;
};

void vdev_save(const struct vdev *v, struct state_out *s)
{
	struct saved_vdev d = {.features = v->features,
	                       .id = v->ops->id,
	                       .status = v->status,
	                       .features_sel = v->features_sel,
	                       .driver_features_sel = v->driver_features_sel,
	                       .queue_sel = v->queue_sel,
	                       .interrupts = v->interrupts,
	                       .generation = v->generation,
	                       .queues = v->ops->queues};

	state_put(s, STATE_VIRTIO, &d, sizeof(d));
	for (unsigned i = 0; i < v->ops->queues; i++) {
		const struct queue *q = &v->queue[i];
		struct saved_queue k = {q->desc,       q->avail,     q->used, q->size,
		                        q->next_avail, q->next_used, q->ready};

		state_put(s, STATE_QUEUE, &k, sizeof(k));
	}
}

int vdev_load(struct vdev *v, struct state_in *s)
{
	struct saved_vdev d;
	int r = state_get(s, STATE_VIRTIO, &d, sizeof(d));

	if (r < 0)
		return r;
	/* Features are judged when they are agreed on; here they must have been. */
	if (d.id != v->ops->id || d.queues != v->ops->queues ||
	    ((d.status & VIRTIO_CONFIG_S_FEATURES_OK) &&
	     (d.features & ~v->offered || !(d.features & VDEV_VERSION_1))) ||
	    ((d.status & VIRTIO_CONFIG_S_DRIVER_OK) && !(d.status & VIRTIO_CONFIG_S_FEATURES_OK)))
		return -EBADMSG;
	v->features = d.features;
	v->status = d.status;
	v->features_sel = d.features_sel;
	v->driver_features_sel = d.driver_features_sel;
	v->queue_sel = d.queue_sel;
	v->interrupts = d.interrupts;
	v->generation = d.generation;
	for (unsigned i = 0; i < v->ops->queues; i++) {
		struct queue *q = &v->queue[i];
		struct saved_queue k;

		r = state_get(s, STATE_QUEUE, &k, sizeof(k));
		if (r < 0)
			return r;
		q->desc = k.desc;
		q->avail = k.avail;
		q->used = k.used;
		q->size = k.size;
		q->next_avail = k.next_avail;
		q->next_used = k.next_used;
		q->ready = k.ready;
		if (k.ready > 1 || (q->ready && !queue_usable(q)))
			return -EBADMSG;
	}
	return 0;
}
