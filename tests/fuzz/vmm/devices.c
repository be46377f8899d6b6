/*
 * A driver that does anything: the first byte chooses a device, then steps of 8 bytes each write
 * and read registers and memory. Promise: no step harms the process, and a device that was broken
 * works again after a reset.
 */
#include <assert.h>
#include <fcntl.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "vmm/host.h"
#include "vmm/serial.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"
#include "vmm/volume.h"

enum { DEVICES = 6, MEMORY = 256 << 10, SLOT = 300, DISK = 16 * INDEX_PAGE, STEPS_MAX = 512 };

struct step {
	uint8_t what, len;
	uint16_t at;
	uint32_t value;
};

static struct {
	struct ram ram;
	struct loop *loop;
	pthread_mutex_t lock;
	int tap[2], stream[2];
	struct blk blk;
	struct volumes volumes;
	int file, marks;
	struct virtio_net net;
	struct rng rng;
	struct vsock vsock;
	struct balloon balloon;
	struct serial serial;
	struct host_page host;
} f;

static void nothing(void *arg, unsigned irq)
{
}

static void no_output(void *arg, uint8_t byte)
{
}

static uint64_t no_time(void)
{
	return 0;
}

static void stop(void *arg)
{
	loop_stop(arg);
}

static void turn(void)
{
	struct loop_defer d = {.fn = stop, .arg = f.loop};

	loop_defer(f.loop, &d);
	loop_run(f.loop);
}

static void once(void)
{
	pthread_mutex_init(&f.lock, NULL);
	assert(loop_new(&f.loop) == 0);
	for (int i = 0; i < 2; i++) {
		int fd = memfd_create("layer", 0);

		assert(ftruncate(fd, DISK) == 0 && dup2(fd, SLOT + i) >= 0);
		close(fd);
	}
	f.file = memfd_create("volume", 0);
	f.marks = memfd_create("marks", 0);
	assert(ftruncate(f.file, DISK) == 0 && ftruncate(f.marks, 1) == 0);
	assert(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, f.tap) == 0);
}

/* A host that gives and takes a volume at any moment. */
static void volume_moves(uint32_t value)
{
	struct ctl_msg msg = {.arg = {[CTL_VOLUME_NR] = value >> 8 & 7,
	                              [CTL_VOLUME_VERB] = value & 7,
	                              [CTL_VOLUME_FORCE] = value >> 3 & 1},
	                      .nr_fds = 3,
	                      .slot = {CTL_FD_VOLUME, CTL_FD_COPY, CTL_FD_MARKS}};
	const int fds[] = {f.file, f.file, f.marks};

	msg.volume[0] = (struct ctl_volume){.size = DISK, .read_only = value >> 4 & 1};
	volumes_request(&f.volumes, &msg, fds);
}

static struct vdev *make(unsigned which)
{
	const struct ctl_volume none[CTL_VOLUMES_MAX] = {0};
	const struct mem *m = &f.ram.mem;

	switch (which % DEVICES) {
	case 0:
		assert(disk_init(&f.blk.disk, SLOT, DISK, 2, false) == 0);
		blk_init(&f.blk, "pblk0", m);
		return &f.blk.vdev;
	case 1:
		assert(net_init(&f.net, f.loop, &f.lock, f.tap[0], m) == 0);
		return &f.net.vdev;
	case 2:
		rng_init(&f.rng, m);
		return &f.rng.vdev;
	case 3:
		assert(vsock_init(&f.vsock, f.loop, &f.lock, -1, 0, m) == 0);
		return &f.vsock.vdev;
	case 5:
		volumes_init(&f.volumes, none, m);
		return &f.volumes.blk[0].vdev;
	default:
		balloon_init(&f.balloon, &f.ram);
		return &f.balloon.vdev;
	}
}

static void unmake(unsigned which)
{
	char frame[65536];

	switch (which % DEVICES) {
	case 0:
		disk_fini(&f.blk.disk);
		break;
	case 1:
		loop_io_del(f.loop, &f.net.io);
		break;
	case 3:
		vsock_fini(&f.vsock);
		break;
	case 5:
		volume_moves(CTL_VOLUME_DETACH | 1 << 3);
		assert(f.volumes.blk[0].disk.size == 0 && !f.volumes.copy.on);
		break;
	}
	while (recv(f.tap[1], frame, sizeof(frame), MSG_DONTWAIT) > 0 ||
	       recv(f.tap[0], frame, sizeof(frame), MSG_DONTWAIT) > 0)
		;
}

static void take(struct vdev *v, unsigned which, const struct step *s)
{
	uint64_t gpa = (uint64_t)s->at * 4;

	switch (s->what % 8) {
	case 0:
	case 1:
		vdev_write(v, s->at % VDEV_MMIO_SIZE, 4, s->value);
		break;
	case 2:
		vdev_write(v, s->at % VDEV_MMIO_SIZE, s->len, s->value);
		break;
	case 3:
		vdev_read(v, s->at % VDEV_MMIO_SIZE, s->len);
		break;
	case 4:
	case 5: /* memory, four bytes at a time */
		if (gpa + 4 <= MEMORY)
			memcpy(f.ram.mem.base + gpa, &s->value, 4);
		break;
	case 6: /* the outside world */
		if (which % DEVICES == 1)
			(void)!write(f.tap[1], f.ram.mem.base, s->at);
		if (which % DEVICES == 3)
			vsock_reborn(&f.vsock);
		if (which % DEVICES == 4)
			balloon_ask(&f.balloon);
		if (which % DEVICES == 5)
			volume_moves(s->value);
		turn();
		break;
	case 7: /* small devices ride along */
		serial_write(&f.serial, s->at, (uint8_t)s->value);
		serial_read(&f.serial, s->at);
		host_write(&f.host, s->at, s->len, s->value);
		host_read(&f.host, s->at, s->len);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree uint8_t *memory = aligned_alloc(4096, MEMORY);
	struct vdev *v;
	unsigned which;

	if (!f.loop)
		once();
	if (size < 1 || !memory)
		return 0;
	memset(memory, 0, MEMORY);
	/* Shared, and no top to punch: what is released is only checked. */
	f.ram = (struct ram){.mem = {memory, MEMORY}, .top_slot = 999, .cold = true};
	f.serial = (struct serial){.out = no_output, .interrupt = nothing};
	f.host = (struct host_page){.wall_ns = no_time};
	which = data[0];
	v = make(which);
	v->interrupt = nothing;
	for (size_t at = 1, n = 0; at + sizeof(struct step) <= size && n < STEPS_MAX;
	     at += sizeof(struct step), n++) {
		struct step s;

		memcpy(&s, data + at, sizeof(s));
		take(v, which, &s);
	}
	vdev_write(v, VIRTIO_MMIO_STATUS, 4, 0);
	assert(vdev_read(v, VIRTIO_MMIO_STATUS, 4) == 0 && !vdev_live(v));
	vdev_write(v, VIRTIO_MMIO_STATUS, 4, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	assert(vdev_read(v, VIRTIO_MMIO_STATUS, 4) == VIRTIO_CONFIG_S_ACKNOWLEDGE);
	turn();
	unmake(which);
	return 0;
}
