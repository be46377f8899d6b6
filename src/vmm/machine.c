#include "vmm/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/loop.h"
#include "base/macro.h"
#include "vmm/disk.h"
#include "vmm/host.h"
#include "vmm/ram.h"
#include "vmm/seccomp.h"
#include "vmm/serial.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"
#include "vmm/virtio/vsock.h"
#include "vmm/vm.h"
#include "vmm/volume.h"
#include "vmm/x86/boot.h"
#include "vmm/x86/load.h"
#include "wire/control.h"

/* ISA interrupts that no other device wants; volumes share one. */
enum { VOLUME_IRQ = 10, NET_IRQ = 11, RNG_IRQ = 12, VSOCK_IRQ = 14, BALLOON_IRQ = 15 };
static const unsigned disk_irq[CTL_DISKS_MAX] = {5, 6, 7, 9};

/* --- the console */

static void flush_log(struct machine *m)
{
	if (m->line_len)
		(void)!write(STDOUT_FILENO, m->line, m->line_len);
	m->line_len = 0;
}

static void log_byte(void *arg, uint8_t byte)
{
	struct machine *m = arg;

	if (m->logged >= MACHINE_LOG_MAX)
		return;
	m->logged++;
	m->line[m->line_len++] = (char)byte;
	if (byte == '\n' || m->line_len == sizeof(m->line))
		flush_log(m);
}

void machine_end(struct machine *m, enum vm_end how, const char *why)
{
	/* No lock: the thread that holds it may be the one that hangs. What is lost is half
	 * a line. */
	flush_log(m);
	if (how == VM_ERROR || how == VM_BAD_START)
		dprintf(STDERR_FILENO, "panda-vmm: %s\n", why);
	_exit(how);
}

/* --- what vcpus call */

static void interrupt(void *arg, unsigned irq)
{
	struct machine *m = arg;

	vm_interrupt(&m->vm, irq);
}

static void port_access(void *arg, uint16_t port, bool write, void *data, unsigned len)
{
	struct machine *m = arg;
	uint8_t *byte = data;

	if (!write)
		memset(data, 0xff, len);
	if (port >= SERIAL_PORT && port < SERIAL_PORT + SERIAL_PORTS && len == 1) {
		pthread_mutex_lock(&m->lock);
		if (write)
			serial_write(&m->serial, port - SERIAL_PORT, *byte);
		else
			*byte = serial_read(&m->serial, port - SERIAL_PORT);
		pthread_mutex_unlock(&m->lock);
	} else if (port == 0x64 && len == 1) {
		/* A keyboard controller's only duty: reset. */
		if (!write)
			*byte = 0;
		else if (*byte == 0xfe)
			machine_end(m, VM_RESET, "");
	}
}

static void host_access(struct machine *m, uint64_t off, bool write, void *data, unsigned len)
{
	uint64_t value = 0;

	if (!write) {
		uint32_t v = host_read(&m->host, off, len);

		memcpy(data, &v, MIN(len, (unsigned)sizeof(v)));
		return;
	}
	memcpy(&value, data, len);
	switch (host_write(&m->host, off, len, value)) {
	case HOST_NOTHING:
		break;
	case HOST_POWER_OFF:
		machine_end(m, VM_POWER_OFF, "");
	case HOST_RESET:
		machine_end(m, VM_RESET, "");
	case HOST_PANIC:
		machine_end(m, VM_PANIC, "");
	case HOST_RESEEDED:
		vm_release(&m->vm);
	}
}

/* len <= 8 */
static void mmio_access(void *arg, uint64_t gpa, bool write, void *data, unsigned len)
{
	struct machine *m = arg;
	uint64_t off = gpa - MACHINE_DEVICES, value = 0;

	if (!write)
		memset(data, 0, len);
	if (gpa < MACHINE_DEVICES)
		return;
	pthread_mutex_lock(&m->lock);
	if (gpa >= MACHINE_HOST && gpa < MACHINE_HOST + HOST_SIZE) {
		host_access(m, gpa - MACHINE_HOST, write, data, len);
	} else if (off / VDEV_MMIO_SIZE < m->nr_slots) {
		struct vdev *v = m->slot[off / VDEV_MMIO_SIZE].vdev;

		if (write) {
			memcpy(&value, data, len);
			vdev_write(v, off % VDEV_MMIO_SIZE, len, value);
		} else {
			value = vdev_read(v, off % VDEV_MMIO_SIZE, len);
			memcpy(data, &value, len);
		}
	}
	pthread_mutex_unlock(&m->lock);
}

static void vm_ended(void *arg, enum vm_end how, const char *why)
{
	machine_end(arg, how, why);
}

static void vcpu_begins(void *arg)
{
	if (seccomp_vcpu() < 0)
		machine_end(arg, VM_BAD_START, "cannot filter system calls of a vcpu");
}

/* --- devices */

static void bell_rung(void *arg, uint32_t events)
{
	struct slot *s = arg;
	uint64_t n;

	(void)!read(s->bell, &n, sizeof(n));
	pthread_mutex_lock(&s->m->lock);
	s->vdev->ops->work(s->vdev);
	pthread_mutex_unlock(&s->m->lock);
	if (s->m->worked)
		s->m->worked(s->m->worked_arg);
}

static void ring_bell(void *arg, struct vdev *v)
{
	struct machine *m = arg;
	uint64_t one = 1;

	for (unsigned i = 0; i < m->nr_slots; i++)
		if (m->slot[i].vdev == v)
			(void)!write(m->slot[i].bell, &one, sizeof(one));
}

static int add_device(struct machine *m, struct vdev *v, unsigned irq)
{
	struct slot *s = &m->slot[m->nr_slots];

	*s = (struct slot){.m = m, .vdev = v, .io = {.fn = bell_rung, .arg = s}};
	s->bell = vm_high_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (s->bell < 0)
		return s->bell;
	v->irq = irq;
	v->arg = m;
	v->interrupt = interrupt;
	v->ring = ring_bell;
	m->nr_slots++;
	return loop_io_add(m->loop, &s->io, s->bell, EPOLLIN);
}

static int add_disks(struct machine *m, const struct ctl_msg *h)
{
	char name[20];
	int r = 0;

	m->nr_disks = h->nr_disks;
	for (unsigned i = 0; r == 0 && i < m->nr_disks; i++) {
		struct blk *b = &m->disk[i];

		r = disk_init(&b->disk, CTL_FD_DISK + i * CTL_LAYERS_MAX, h->disk[i].size,
		              h->disk[i].layers, h->disk[i].read_only);
		snprintf(name, sizeof(name), "pblk%u", i);
		blk_init(b, name, &m->ram.mem);
		if (r == 0)
			r = add_device(m, &b->vdev, disk_irq[i]);
	}
	volumes_init(&m->volumes, h->volume, &m->ram.mem);
	for (unsigned i = 0; r == 0 && i < CTL_VOLUMES_MAX; i++)
		r = add_device(m, &m->volumes.blk[i].vdev, VOLUME_IRQ);
	return r;
}

int machine_devices(struct machine *m, const struct machine_spec *s, const char **ret_what)
{
	uint32_t random;
	int r;

	*ret_what = "cannot make the devices";
	m->serial = (struct serial){.out = log_byte, .interrupt = interrupt, .arg = m};
	if (s->hello->nr_disks > CTL_DISKS_MAX)
		return -EPROTO;
	if (getrandom(&random, sizeof(random), 0) < 0)
		return -errno;
	/* The loop must never wait for one of them. */
	if ((s->net && fcntl(CTL_FD_NET, F_SETFL, O_RDWR | O_NONBLOCK) < 0) ||
	    (s->agent && fcntl(CTL_FD_AGENT, F_SETFL, O_RDWR | O_NONBLOCK) < 0))
		return -errno;
	r = add_disks(m, s->hello);
	if (r == 0)
		r = net_init(&m->net, m->loop, &m->lock, s->net ? CTL_FD_NET : -1, &m->ram.mem);
	if (r == 0)
		r = add_device(m, &m->net.vdev, NET_IRQ);
	rng_init(&m->rng, &m->ram.mem);
	if (r == 0)
		r = add_device(m, &m->rng.vdev, RNG_IRQ);
	if (r == 0)
		r = vsock_init(&m->vsock, m->loop, &m->lock, s->agent ? CTL_FD_AGENT : -1, random,
		               &m->ram.mem);
	if (r == 0)
		r = add_device(m, &m->vsock.vdev, VSOCK_IRQ);
	balloon_init(&m->balloon, &m->ram);
	if (r == 0)
		r = add_device(m, &m->balloon.vdev, BALLOON_IRQ);
	return r;
}

int machine_vm(struct machine *m, const struct vm_spec *spec, const char **ret_what)
{
	const struct vm_calls calls = {.port = port_access,
	                               .mmio = mmio_access,
	                               .ended = vm_ended,
	                               .thread_begins = vcpu_begins,
	                               .arg = m};

	return vm_init(&m->vm, &m->ram.mem, spec, &calls, ret_what);
}

int machine_bells(struct machine *m)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < m->nr_slots; i++)
		r = vm_ioeventfd(&m->vm, MACHINE_DEVICES + i * VDEV_MMIO_SIZE + VDEV_NOTIFY,
		                 m->slot[i].bell);
	return r;
}

static uint64_t wall_now(void)
{
	return clock_ns(CLOCK_REALTIME);
}

int machine_new_life(struct machine *m)
{
	m->host.wall_ns = wall_now;
	if (getrandom(m->host.generation, sizeof(m->host.generation), 0) !=
	    sizeof(m->host.generation))
		return -EIO;
	return 0;
}

/* --- a cold boot */

static int read_kernel(void *arg, void *buf, size_t n, uint64_t off)
{
	return io_pread_full(CTL_FD_KERNEL, buf, n, (off_t)off);
}

/* The guest learns by its command line where devices are. */
static int command_line(const struct machine *m, const char *given, char *buf, size_t n)
{
	size_t at =
	    (size_t)snprintf(buf, n, "%s panda_host=0x%llx:%d", given, MACHINE_HOST, HOST_IRQ);

	for (unsigned i = 0; i < m->nr_slots && at < n; i++)
		at += (size_t)snprintf(buf + at, n - at, " virtio_mmio.device=4K@0x%llx:%u",
		                       MACHINE_DEVICES + i * VDEV_MMIO_SIZE, m->slot[i].vdev->irq);
	return at < n ? 0 : -E2BIG;
}

struct cold {
	struct machine *m;
	uint64_t memory;
	struct loaded loaded;
};

static int load_cold(void *arg, const char **ret_what)
{
	const struct load_source kernel = {.read = read_kernel};
	struct cold *c = arg;
	int r;

	*ret_what = "cannot map the machine's memory";
	r = ram_boot(&c->m->ram, c->memory);
	if (r < 0)
		return r;
	*ret_what = "cannot load the kernel: not an x86-64 vmlinux, or too large";
	r = load_kernel(&c->m->ram.mem, &kernel, &c->loaded);
	if (r == 0)
		ram_set_code(&c->m->ram, c->loaded.code, c->loaded.code_len);
	return r;
}

int machine_boot(struct machine *m, const struct machine_spec *s, const char **ret_what)
{
	struct cold cold = {.m = m, .memory = s->memory};
	char cmdline[BOOT_CMDLINE_MAX];
	struct boot_spec b = {.cmdline = cmdline, .cpus = s->cpus};
	int r;

	pthread_mutex_init(&m->lock, NULL);
	m->lives = 1;
	m->ram = (struct ram){.layer_slot = CTL_FD_LAYER,
	                      .top_slot = CTL_FD_TOP,
	                      .pagemap_slot = CTL_FD_PAGEMAP};
	r = vm_create_while(&m->vm, CTL_FD_KVM, load_cold, &cold, ret_what);
	if (r == 0)
		r = machine_devices(m, s, ret_what);
	if (r == 0)
		r = machine_vm(m, &(struct vm_spec){.cpus = s->cpus, .baseline = s->baseline},
		               ret_what);
	if (r < 0)
		return r;
	*ret_what = "the kernel's command line is too long";
	r = command_line(m, s->cmdline, cmdline, sizeof(cmdline));
	if (r == 0)
		r = boot_setup(&m->ram.mem, &b);
	if (r < 0)
		return r;
	*ret_what = "cannot set up the vcpus";
	r = vm_set_entry(&m->vm, cold.loaded.entry);
	if (r == 0)
		r = machine_bells(m);
	if (r == 0)
		r = machine_new_life(m);
	return r == 0 ? vm_start(&m->vm) : r;
}
