/*
 * vmm/snapshot.c - a machine at rest: how it stops, is saved, and wakes up somewhere else
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/loop.h"
#include "base/macro.h"
#include "vmm/disk.h"
#include "vmm/host.h"
#include "vmm/index.h"
#include "vmm/machine.h"
#include "vmm/mem.h"
#include "vmm/ram.h"
#include "vmm/seccomp.h"
#include "vmm/serial.h"
#include "vmm/state.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"
#include "vmm/vm.h"
#include "vmm/volume.h"
#include "vmm/x86/cpuid.h"
#include "wire/control.h"

struct saved_head {
	uint64_t magic;
	uint32_t version, cpus;
	uint64_t memory, lives;
	uint32_t layers, disks;
};

/* What drivers and devices had told each other when the machine stood still is not lost. */
static void wake_drivers(struct machine *m)
{
	for (unsigned i = 0; i < m->nr_slots; i++) {
		uint64_t one = 1;

		if (vdev_wake(m->slot[i].vdev))
			(void)!write(m->slot[i].bell, &one, sizeof(one));
	}
}

void machine_pause(struct machine *m)
{
	if (m->paused)
		return;
	vm_pause(&m->vm);
	m->paused = true;
	if (vm_save(&m->vm, &m->held) < 0)
		state_out_fini(&m->held); /* then its time goes on, and nothing else is lost */
}

/* Clocks and timers go on from where they stood; only the wall clock is told what time it is. */
void machine_go(struct machine *m)
{
	struct state_in in = {.buf = m->held.buf, .len = m->held.len};

	if (m->held.len && vm_load(&m->vm, &in) < 0)
		machine_end(m, VM_ERROR, "KVM does not take back what it gave");
	if (m->paused) { /* devices went on, and what they said then was not saved */
		vm_interrupt(&m->vm, HOST_IRQ);
		wake_drivers(m);
	}
	state_out_fini(&m->held);
	m->paused = false;
	vm_resume(&m->vm);
}

/* --- save */

static void save_devices(struct machine *m, struct state_out *s)
{
	serial_save(&m->serial, s);
	for (unsigned i = 0; i < m->nr_disks; i++) {
		vdev_save(&m->disk[i].vdev, s);
		disk_save(&m->disk[i].disk, s);
	}
	volumes_save(&m->volumes, s);
	vdev_save(&m->net.vdev, s);
	vdev_save(&m->rng.vdev, s);
	vsock_save(&m->vsock, s);
	balloon_save(&m->balloon, s);
	state_put(s, STATE_END, NULL, 0);
}

static int save_state(struct machine *m, uint64_t live, int fd)
{
	struct saved_head h = {.magic = STATE_MAGIC,
	                       .version = STATE_VERSION,
	                       .cpus = m->vm.cpus,
	                       .memory = m->ram.mem.size,
	                       .lives = m->lives,
	                       .layers = (uint32_t)__builtin_popcountll(live) + 1,
	                       .disks = m->nr_disks};
	AUTO(state_out_fini) struct state_out s = {0};
	int r;

	state_put(&s, STATE_HEAD, &h, sizeof(h));
	vm_save_cpuid(&m->vm, &s);
	ram_save(&m->ram, &s);
	if (m->held.len) {
		/* It was paused before: as it stopped then. */
		void *room = state_room(&s, STATE_HELD, m->held.len);

		if (room)
			memcpy(room, m->held.buf, m->held.len);
	} else {
		r = vm_save(&m->vm, &s);
		if (r < 0)
			return r;
	}
	save_devices(m, &s);
	return state_write_to(&s, fd);
}

static int put_runs(int fd, off_t *at, const struct extent *x, size_t n)
{
	uint64_t runs[64][2];
	int r;

	for (size_t i = 0; i < n; i++) {
		runs[i][0] = x[i].start;
		runs[i][1] = x[i].n;
	}
	r = n ? io_pwrite_full(fd, runs, n * sizeof(runs[0]), *at) : 0;
	*at += (off_t)(n * sizeof(runs[0]));
	return r;
}

/* The runs of one layer, as next() yields them. */
static int write_runs(int fd, off_t *at,
                      int (*next)(const void *arg, uint64_t *page, struct extent *x),
                      const void *arg, uint64_t *ret_n)
{
	struct extent batch[64];
	uint64_t page = 0;
	size_t n = 0;
	int r = 0;

	*ret_n = 0;
	while (r == 0 && next(arg, &page, &batch[n])) {
		++*ret_n;
		if (++n == ARRAY_LEN(batch)) {
			r = put_runs(fd, at, batch, n);
			n = 0;
		}
	}
	return r == 0 ? put_runs(fd, at, batch, n) : r;
}

static int next_ram(const void *arg, uint64_t *page, struct extent *x)
{
	return ram_next_run(arg, page, x);
}

static int next_disk(const void *arg, uint64_t *page, struct extent *x)
{
	const struct disk *d = arg;

	while (page_index_next(&d->index, page, x))
		if (x->what == d->layers - 1)
			return 1;
	return 0;
}

static int write_map(struct machine *m, int fd, off_t *at, struct ctl_msg *a)
{
	uint64_t n;
	int r = write_runs(fd, at, next_ram, &m->ram, &n);

	a->arg[CTL_DONE_RUNS] = n;
	for (unsigned d = 0; r == 0 && d < m->nr_disks; d++) {
		if (m->disk[d].disk.read_only)
			continue;
		r = write_runs(fd, at, next_disk, &m->disk[d].disk, &n);
		a->disk[d].layers = (uint32_t)n;
	}
	return r;
}

static int seal(struct machine *m, struct snapshot_fds *f)
{
	int r = ram_seal(&m->ram, f->top_ro, f->top);

	if (r == 0)
		f->top_ro = f->top = -1;
	for (unsigned d = 0; r == 0 && d < m->nr_disks; d++) {
		if (m->disk[d].disk.read_only)
			continue;
		r = disk_seal(&m->disk[d].disk, f->disk_ro[d], f->disk_top[d]);
		f->disk_ro[d] = f->disk_top[d] = -1;
	}
	return r;
}

static void close_all(struct snapshot_fds *f)
{
	closep(&f->state);
	closep(&f->map);
	closep(&f->top_ro);
	closep(&f->top);
	for (unsigned d = 0; d < CTL_DISKS_MAX; d++) {
		closep(&f->disk_ro[d]);
		closep(&f->disk_top[d]);
	}
}

static bool complete(const struct machine *m, const struct snapshot_fds *f)
{
	bool ok = f->state >= 0 && f->map >= 0 && f->top_ro >= 0 && f->top >= 0;

	for (unsigned d = 0; ok && d < m->nr_disks; d++)
		ok = m->disk[d].disk.read_only || (f->disk_ro[d] >= 0 && f->disk_top[d] >= 0);
	return ok;
}

/* Up to here all can be given up, but for layers that disks have taken over. */
static int prepare(struct machine *m, struct snapshot_fds *f, struct ctl_msg *a, off_t *at)
{
	uint64_t live;
	int r = 0;

	for (unsigned d = 0; r == 0 && d < m->nr_disks; d++)
		if (!m->disk[d].disk.read_only)
			r = disk_compact(&m->disk[d].disk, &a->disk[d].size);
	if (r < 0)
		return r;
	r = ram_collect(&m->ram, &live);
	if (r < 0)
		return r;
	a->arg[CTL_DONE_LIVE] = live;
	r = save_state(m, live, f->state);
	if (r == 0)
		r = write_map(m, f->map, at, a);
	if (r < 0)
		ram_undo(&m->ram);
	return r;
}

int monitor_snapshot(struct machine *m, struct snapshot_fds *f, bool hold, struct ctl_msg *a)
{
	bool ran = !m->paused;
	uint64_t from = mono_ns();
	off_t at = 0;
	int r;

	if (!complete(m, f)) {
		close_all(f);
		return -EINVAL;
	}
	if (hold)
		machine_pause(m);
	else if (ran)
		vm_pause(&m->vm);
	pthread_mutex_lock(&m->lock);
	r = prepare(m, f, a, &at);
	if (r == 0 && seal(m, f) < 0)
		machine_end(m, VM_ERROR, "a snapshot broke in the middle: no more mappings?");
	pthread_mutex_unlock(&m->lock);
	a->arg[CTL_DONE_STOP_NS] = mono_ns() - from;
	a->arg[CTL_DONE_ERR] = (uint64_t)(int64_t)r;
	/* Behind the runs stands the answer, for the process that comes after the one
	 * that asked. */
	if (r == 0)
		io_pwrite_full(f->map, a, sizeof(*a), at);
	if (ran && (!hold || r < 0)) {
		if (hold)
			machine_go(m);
		else
			vm_resume(&m->vm);
	}
	close_all(f);
	return r;
}

/* --- load */

static int load_devices(struct machine *m, struct state_in *s, uint64_t *ret_lost)
{
	int r = serial_load(&m->serial, s);

	for (unsigned i = 0; r == 0 && i < m->nr_disks; i++) {
		r = vdev_load(&m->disk[i].vdev, s);
		if (r == 0)
			r = disk_load(&m->disk[i].disk, s);
	}
	if (r == 0)
		r = volumes_load(&m->volumes, s, ret_lost);
	if (r == 0)
		r = vdev_load(&m->net.vdev, s);
	if (r == 0)
		r = vdev_load(&m->rng.vdev, s);
	if (r == 0)
		r = vsock_load(&m->vsock, s);
	if (r == 0)
		r = balloon_load(&m->balloon, s);
	if (r == 0)
		r = state_get(s, STATE_END, NULL, 0);
	if (r == 0)
		vdev_config_changed(&m->net.vdev); /* another tap, or none */
	return r;
}

static int load_vm(struct machine *m, struct state_in *s)
{
	struct state_in before = *s, held = {0};
	const void *p;
	size_t n;

	if (state_items(s, STATE_HELD, 1, STATE_MAX, &p, &n) == 0) {
		held = (struct state_in){.buf = p, .len = n};
		return vm_load(&m->vm, &held);
	}
	*s = before;
	return vm_load(&m->vm, s);
}

static void fault_ahead(struct machine *m)
{
	struct extent x;
	uint64_t at = 0;
	int r = 0;

	while (r == 0 && ram_next_ahead(&m->ram, &at, &x))
		r = vm_fault_ahead(&m->vm, x.start * INDEX_PAGE, x.n * INDEX_PAGE);
}

static int load(struct machine *m, const struct machine_spec *spec, struct state_in *s,
                uint64_t *ret_lost, const char **ret_what)
{
	struct saved_head h;
	struct cpuid cpuid;
	int r;

	*ret_what = "the state file is damaged, or of another version";
	r = state_get(s, STATE_HEAD, &h, sizeof(h));
	if (r == 0 && (h.magic != STATE_MAGIC || h.version < STATE_OLDEST ||
	               h.version > STATE_VERSION || h.cpus == 0 || h.cpus > VM_CPUS_MAX ||
	               h.layers != spec->layers || h.disks != spec->hello->nr_disks))
		r = -EBADMSG;
	if (r == 0)
		r = vm_load_cpuid(s, &cpuid);
	if (r == 0)
		r = ram_restore(&m->ram, h.memory, h.layers, s);
	if (r < 0)
		return r;
	m->lives = h.lives + 1;
	r = machine_vm(m, &(struct vm_spec){.cpus = h.cpus, .saved = &cpuid}, ret_what);
	if (r < 0)
		return r;
	*ret_what = "the saved vcpus do not fit this host, or are damaged";
	r = load_vm(m, s);
	if (r < 0)
		return r;
	fault_ahead(m);
	*ret_what = "the saved devices are damaged";
	return load_devices(m, s, ret_lost);
}

static void reseed_late(void *arg)
{
	vm_release(&((struct machine *)arg)->vm);
}

int machine_restore(struct machine *m, const struct machine_spec *spec, uint64_t *ret_lost,
                    const char **ret_what)
{
	struct state_in s = {0};
	int r;

	pthread_mutex_init(&m->lock, NULL);
	m->ram = (struct ram){.layer_slot = CTL_FD_LAYER,
	                      .top_slot = CTL_FD_TOP,
	                      .pagemap_slot = CTL_FD_PAGEMAP};
	r = m->vm.made ? 0 : vm_create(&m->vm, CTL_FD_KVM, ret_what);
	if (r == 0)
		r = machine_devices(m, spec, ret_what);
	if (r == 0)
		r = machine_bells(m);
	if (r < 0)
		return r;
	*ret_what = "cannot shut itself behind a filter";
	r = seccomp_restore();
	if (r < 0)
		return r;
	/* From here on it believes what another process has written. */
	*ret_what = "cannot read the state file";
	r = state_read_from(CTL_FD_STATE, &s);
	if (r == 0)
		r = load(m, spec, &s, ret_lost, ret_what);
	free((void *)s.buf);
	if (r < 0)
		return r;
	*ret_what = "cannot start the vcpus";
	r = machine_new_life(m);
	if (r < 0)
		return r;
	/* All of it before a vcpu runs: the guest finds its new life waiting as an interrupt. */
	vm_interrupt(&m->vm, HOST_IRQ);
	if (m->vm.cpus > 1) {
		vm_hold_others(&m->vm, HOST_IRQ);
		m->reseed = (struct loop_timer){.fn = reseed_late, .arg = m};
		loop_timer_set(m->loop, &m->reseed, mono_ms() + MACHINE_RESEED_MS);
	}
	vsock_reborn(&m->vsock);
	wake_drivers(m);
	return vm_start(&m->vm);
}
