/*
 * A state file from a machine that may have been taken over: devices, disks and cpu, in the order
 * of src/vmm/snapshot.c. Promise: a device that was accepted is written down again as it was read,
 * and works on without harm.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "vmm/serial.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/rng.h"
#include "vmm/vm.h"
#include "vmm/volume.h"

enum { MEMORY = 256 << 10, SLOT = 300, DISK = 64 * INDEX_PAGE };

static void no_output(void *arg, uint8_t byte)
{
}

static void nothing(void *arg, unsigned irq)
{
}

/* Where the kernel's code is: inside, and in whole huge pages. */
static void code_of(struct state_in in)
{
	struct ram ram = {.mem = {.size = MEM_MIN}};

	if (ram_load_code(&ram, &in) == 0 && ram.code_pages) {
		assert(ram.code < MEM_MIN / INDEX_PAGE);
		assert(ram.code_pages <= MEM_MIN / INDEX_PAGE - ram.code);
		assert((ram.code | ram.code_pages) % 512 == 0);
	}
}

/* Records of volumes alone, as they stand in the middle of a state. */
static void volumes_of(struct state_in in, const struct mem *mem)
{
	const struct ctl_volume none[CTL_VOLUMES_MAX] = {0};
	struct volumes v;
	uint64_t lost;

	volumes_init(&v, none, mem);
	if (volumes_load(&v, &in, &lost) < 0)
		return;
	assert(lost >> CTL_VOLUMES_MAX == 0);
	for (unsigned i = 0; i < CTL_VOLUMES_MAX; i++) {
		vdev_write(&v.blk[i].vdev, VDEV_NOTIFY, 4, 0);
		vdev_write(&v.blk[i].vdev, VDEV_CONFIG + BLK_CONFIG_OPEN, 4, 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree uint8_t *memory = aligned_alloc(4096, MEMORY);
	autofree uint8_t *aligned = aligned_alloc(8, (size + 8) & ~(size_t)7);
	struct ram ram = {.mem = {memory, MEMORY}, .top_slot = 999, .cold = true};
	struct state_in in = {.buf = aligned, .len = size};
	AUTO(state_out_fini) struct state_out out = {0};
	struct serial serial = {.out = no_output, .interrupt = nothing};
	struct cpuid cpuid;
	struct balloon balloon;
	struct blk blk = {0};
	size_t from;

	if (!memory || !aligned)
		return 0;
	memcpy(aligned, data, size);
	memset(memory, 0, MEMORY);
	volumes_of(in, &ram.mem);
	code_of(in);
	if (vm_load_cpuid(&in, &cpuid) == 0)
		assert(cpuid.head.nent <= CPUID_MAX);
	serial_load(&serial, &in);
	assert(disk_init(&blk.disk, SLOT, DISK, 3, false) == 0);
	blk_init(&blk, "pblk0", &ram.mem);
	from = in.at;
	if (vdev_load(&blk.vdev, &in) == 0) {
		vdev_save(&blk.vdev, &out);
		assert(out.len == in.at - from && memcmp(in.buf + from, out.buf, out.len) == 0);
		state_out_fini(&out);
		vdev_write(&blk.vdev, VDEV_NOTIFY, 4, 0);
	}
	if (disk_load(&blk.disk, &in) == 0)
		for (uint64_t i = 0; i < DISK / INDEX_PAGE; i++)
			assert(blk.disk.index.at[i] < 2); /* never its own top, which is empty */
	balloon_init(&balloon, &ram);
	if (balloon_load(&balloon, &in) == 0) {
		vdev_write(&balloon.vdev, VDEV_NOTIFY, 4, 0);
		balloon_ask(&balloon);
	}
	disk_fini(&blk.disk);
	return 0;
}
