#include "vmm/vm.h"

#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/mem.h"
#include "vmm/x86/boot.h"
#include "vmm/x86/cpuid.h"

enum { KICK = SIGUSR1, TCG = 0x54474354 /* "TCGT" */ };

/* Three pages that KVM on Intel wants for itself, out of the guest's way. */
#define TSS_ADDRESS      0xfffbd000ul
#define IDENTITY_ADDRESS 0xfffbc000ull

int vm_high_fd(int fd)
{
	int high = fd < 0 ? -errno : fcntl(fd, F_DUPFD_CLOEXEC, VM_FIRST_FD);

	if (fd < 0)
		return high;
	if (high < 0)
		high = -errno;
	close(fd);
	return high;
}

static int set_memory(struct vm *vm)
{
	uint64_t low = mem_low(vm->mem);
	struct kvm_userspace_memory_region r = {.memory_size = low,
	                                        .userspace_addr =
	                                            (uint64_t)(uintptr_t)vm->mem->base};

	if (ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &r) < 0)
		return -errno;
	if (vm->mem->size == low)
		return 0;
	r = (struct kvm_userspace_memory_region){.slot = 1,
	                                         .guest_phys_addr = MEM_HIGH,
	                                         .memory_size = vm->mem->size - low,
	                                         .userspace_addr =
	                                             (uint64_t)(uintptr_t)vm->mem->base + low};
	return ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &r) < 0 ? -errno : 0;
}

static int make_vcpu(struct vm *vm, unsigned i, size_t run_size)
{
	struct vcpu *c = &vm->cpu[i];
	struct cpuid id = vm->cpuid;

	*c = (struct vcpu){.vm = vm, .i = i, .run_size = run_size};
	c->fd = vm_high_fd(ioctl(vm->fd, KVM_CREATE_VCPU, (unsigned long)i));
	if (c->fd < 0)
		return c->fd;
	c->run = mmap(NULL, run_size, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
	if (c->run == MAP_FAILED)
		return -errno;
	cpuid_for(&id, i);
	return ioctl(c->fd, KVM_SET_CPUID2, &id) < 0 ? -errno : 0;
}

/*
 * QEMU's emulation of SVM does not intercept XSETBV: a guest would switch extended state on without
 * KVM knowing of it. There, the baseline without such state must do.
 */
static const char *best_baseline(void)
{
	unsigned eax, ebx, ecx, edx;

	__cpuid(0x40000000, eax, ebx, ecx, edx);
	return ebx == TCG ? "panda-v2" : NULL;
}

static int make_cpuid(struct vm *vm, const struct vm_spec *spec, const char **ret_what)
{
	struct cpuid supported = {.head.nent = CPUID_MAX};
	const char *name = spec->baseline ? spec->baseline : best_baseline();
	int r;

	*ret_what = "KVM does not say what this cpu has";
	if (ioctl(vm->kvm, KVM_GET_SUPPORTED_CPUID, &supported) < 0)
		return -errno;
	if (spec->saved) {
		*ret_what = "this host's cpu lacks what the machine was started with";
		vm->cpuid = *spec->saved;
		return cpuid_fits(spec->saved, &supported);
	}
	*ret_what = spec->baseline ? "this host's cpu lacks the baseline that was asked for"
	                           : "this host's cpu is older than x86-64-v2";
	r = cpuid_make(&supported, name, vm->cpus, &vm->cpuid, &name);
	if (r == 0)
		snprintf(vm->baseline, sizeof(vm->baseline), "%s", name);
	return r;
}

static int begin_thread(pthread_t *ret, void *(*fn)(void *arg), void *arg)
{
	pthread_attr_t attr;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, VM_STACK);
	r = -pthread_create(ret, &attr, fn, arg);
	pthread_attr_destroy(&attr);
	return r;
}

struct meanwhile {
	int (*fn)(void *arg, const char **ret_what);
	void *arg;
	const char *what;
	int r;
};

static void *do_meanwhile(void *arg)
{
	struct meanwhile *m = arg;

	m->r = m->fn(m->arg, &m->what);
	return NULL;
}

int vm_create(struct vm *vm, int kvm, const char **ret_what)
{
	uint64_t identity = IDENTITY_ADDRESS;

	*vm = (struct vm){.kvm = kvm, .fd = -1};
	*ret_what = "this is no /dev/kvm";
	if (ioctl(kvm, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
		return -ENODEV;
	*ret_what = "cannot make a virtual machine";
	do
		vm->fd = vm_high_fd(ioctl(kvm, KVM_CREATE_VM, 0));
	while (vm->fd == -EINTR);
	if (vm->fd < 0)
		return vm->fd;
	*ret_what = "cannot make the interrupt controllers";
	/* The first two are for Intel; elsewhere they do nothing. */
	ioctl(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity);
	ioctl(vm->fd, KVM_SET_TSS_ADDR, TSS_ADDRESS);
	if (ioctl(vm->fd, KVM_CREATE_IRQCHIP, 0) < 0)
		return -errno;
	vm->made = true;
	return 0;
}

/* The thread is not the one that makes it: where there is one cpu, a new one waits for its turn. */
int vm_create_while(struct vm *vm, int kvm, int (*meanwhile)(void *arg, const char **ret_what),
                    void *arg, const char **ret_what)
{
	struct meanwhile m = {.fn = meanwhile, .arg = arg};
	pthread_t thread;
	int r;

	if (vm->made)
		return meanwhile(arg, ret_what);
	*ret_what = "cannot start a thread";
	r = begin_thread(&thread, do_meanwhile, &m);
	if (r < 0)
		return r;
	r = vm_create(vm, kvm, ret_what);
	pthread_join(thread, NULL);
	if (r < 0)
		return r;
	*ret_what = m.what;
	return m.r;
}

/* Interrupts come through the I/O APIC; the guest does not touch the controllers before it. */
static int mask_old_controllers(struct vm *vm)
{
	for (uint32_t i = KVM_IRQCHIP_PIC_MASTER; i <= KVM_IRQCHIP_PIC_SLAVE; i++) {
		struct kvm_irqchip chip = {.chip_id = i};

		if (ioctl(vm->fd, KVM_GET_IRQCHIP, &chip) < 0)
			return -errno;
		chip.chip.pic.imr = 0xff;
		if (ioctl(vm->fd, KVM_SET_IRQCHIP, &chip) < 0)
			return -errno;
	}
	return 0;
}

int vm_init(struct vm *vm, const struct mem *mem, const struct vm_spec *spec,
            const struct vm_calls *calls, const char **ret_what)
{
	int run_size, r;

	vm->calls = *calls;
	vm->mem = mem;
	vm->cpus = spec->cpus;
	pthread_mutex_init(&vm->lock, NULL);
	pthread_cond_init(&vm->changed, NULL);
	*ret_what = "cannot mask the old interrupt controllers";
	r = spec->saved ? 0 : mask_old_controllers(vm);
	if (r < 0)
		return r;
	*ret_what = "cannot give the machine its memory";
	r = set_memory(vm);
	if (r < 0)
		return r;
	r = make_cpuid(vm, spec, ret_what);
	if (r < 0)
		return r;
	*ret_what = "cannot make a vcpu";
	run_size = ioctl(vm->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (run_size < (int)sizeof(struct kvm_run))
		return -ENODEV;
	for (unsigned i = 0; r == 0 && i < vm->cpus; i++)
		r = make_vcpu(vm, i, (size_t)run_size);
	if (r < 0)
		return r;
	r = ioctl(vm->cpu[0].fd, KVM_GET_TSC_KHZ, 0);
	vm->tsc_khz = r > 0 ? (uint32_t)r : 0;
	return 0;
}

int vm_set_entry(struct vm *vm, uint64_t entry)
{
	const struct kvm_segment code = {.limit = 0xffffffff,
	                                 .selector = BOOT_CS,
	                                 .type = 11,
	                                 .present = 1,
	                                 .s = 1,
	                                 .l = 1,
	                                 .g = 1};
	const struct kvm_segment data = {.limit = 0xffffffff,
	                                 .selector = BOOT_DS,
	                                 .type = 3,
	                                 .present = 1,
	                                 .db = 1,
	                                 .s = 1,
	                                 .g = 1};
	struct kvm_regs regs = {
	    .rip = entry, .rsp = BOOT_STACK, .rbp = BOOT_STACK, .rsi = BOOT_ZERO_PAGE, .rflags = 2};
	struct kvm_sregs s;

	if (ioctl(vm->cpu[0].fd, KVM_GET_SREGS, &s) < 0)
		return -errno;
	s.cs = code;
	s.ds = s.es = s.fs = s.gs = s.ss = data;
	s.gdt = (struct kvm_dtable){.base = BOOT_GDT, .limit = 31};
	s.idt = (struct kvm_dtable){0};
	s.cr0 = 0x80050033; /* PG AM WP NE ET MP PE */
	s.cr3 = BOOT_PML4;
	s.cr4 = 0x20;   /* PAE */
	s.efer = 0x500; /* LME LMA */
	if (ioctl(vm->cpu[0].fd, KVM_SET_SREGS, &s) < 0 ||
	    ioctl(vm->cpu[0].fd, KVM_SET_REGS, &regs) < 0)
		return -errno;
	return 0;
}

void vm_hold_others(struct vm *vm, unsigned irq)
{
	struct kvm_irqchip chip = {.chip_id = KVM_IRQCHIP_IOAPIC};
	unsigned target = VM_CPUS_MAX;

	if (irq >= KVM_IOAPIC_NUM_PINS || ioctl(vm->fd, KVM_GET_IRQCHIP, &chip) < 0)
		return;
	if (!chip.chip.ioapic.redirtbl[irq].fields.dest_mode)
		target = chip.chip.ioapic.redirtbl[irq].fields.dest_id;
	else if (chip.chip.ioapic.redirtbl[irq].fields.dest_id)
		target = (unsigned)__builtin_ctz(chip.chip.ioapic.redirtbl[irq].fields.dest_id);
	for (unsigned i = 0; target < vm->cpus && i < vm->cpus; i++)
		vm->cpu[i].held = i != target;
}

void vm_release(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	for (unsigned i = 0; i < vm->cpus; i++)
		vm->cpu[i].held = false;
	pthread_cond_broadcast(&vm->changed);
	pthread_mutex_unlock(&vm->lock);
}

void vm_interrupt(struct vm *vm, unsigned irq)
{
	struct kvm_irq_level level = {.irq = irq, .level = 1};

	ioctl(vm->fd, KVM_IRQ_LINE, &level);
	level.level = 0;
	ioctl(vm->fd, KVM_IRQ_LINE, &level);
}

/* linux/kvm.h has them since 6.11. */
struct pre_fault {
	uint64_t gpa, size, flags, unused[5];
};
#define PRE_FAULT_MEMORY _IOWR(KVMIO, 0xd5, struct pre_fault)

int vm_fault_ahead(struct vm *vm, uint64_t gpa, uint64_t len)
{
	struct pre_fault f = {.gpa = gpa, .size = len};

	while (f.size) /* a call that was interrupted says how far it came */
		if (ioctl(vm->cpu[0].fd, PRE_FAULT_MEMORY, &f) < 0)
			return -errno;
	return 0;
}

int vm_ioeventfd(struct vm *vm, uint64_t gpa, int fd)
{
	struct kvm_ioeventfd e = {.addr = gpa, .len = 4, .fd = fd};

	return ioctl(vm->fd, KVM_IOEVENTFD, &e) < 0 ? -errno : 0;
}

/* --- running */

static void ended(struct vcpu *c, enum vm_end how, const char *why)
{
	c->vm->calls.ended(c->vm->calls.arg, how, why);
}

static void do_port(struct vcpu *c)
{
	struct kvm_run *run = c->run;
	unsigned size = run->io.size;
	uint32_t n = run->io.count;
	char *data;

	/* KVM's numbers, but in a page that this thread alone should write: still, bounded. */
	if ((size != 1 && size != 2 && size != 4) || run->io.data_offset >= c->run_size ||
	    n > (c->run_size - run->io.data_offset) / size)
		return;
	for (data = (char *)run + run->io.data_offset; n--; data += size)
		c->vm->calls.port(c->vm->calls.arg, run->io.port,
		                  run->io.direction == KVM_EXIT_IO_OUT, data, size);
}

static void handle_exit(struct vcpu *c)
{
	struct kvm_run *run = c->run;
	char why[96];

	switch (run->exit_reason) {
	case KVM_EXIT_IO:
		do_port(c);
		break;
	case KVM_EXIT_MMIO:
		if (run->mmio.len <= sizeof(run->mmio.data))
			c->vm->calls.mmio(c->vm->calls.arg, run->mmio.phys_addr, run->mmio.is_write,
			                  run->mmio.data, run->mmio.len);
		break;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN:
		break;
	case KVM_EXIT_SHUTDOWN: /* a triple fault */
		ended(c, VM_RESET, "triple fault");
		break;
	case KVM_EXIT_SYSTEM_EVENT:
		ended(c,
		      run->system_event.type == KVM_SYSTEM_EVENT_SHUTDOWN ? VM_POWER_OFF : VM_RESET,
		      "system event");
		break;
	default:
		snprintf(why, sizeof(why), "KVM exit %u, hardware reason 0x%llx, suberror %u",
		         run->exit_reason, (unsigned long long)run->hw.hardware_exit_reason,
		         run->internal.suberror);
		ended(c, VM_ERROR, why);
	}
}

/* What a vcpu has begun (an access that was answered) is finished before a snapshot saves it. */
static void park(struct vcpu *c)
{
	struct vm *vm = c->vm;

	__atomic_store_n(&c->run->immediate_exit, 1, __ATOMIC_RELAXED);
	while (ioctl(c->fd, KVM_RUN, 0) == 0)
		handle_exit(c); /* an instruction may need several; none enters the guest */
	pthread_mutex_lock(&vm->lock);
	vm->parked++;
	pthread_cond_broadcast(&vm->changed);
	while (vm->stop || c->held)
		pthread_cond_wait(&vm->changed, &vm->lock);
	vm->parked--;
	__atomic_store_n(&c->run->immediate_exit, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&vm->lock);
}

static void *vcpu_thread(void *arg)
{
	struct vcpu *c = arg;
	struct vm *vm = c->vm;
	char why[64];

	vm->calls.thread_begins(vm->calls.arg);
	for (;;) {
		if (vm->stop)
			park(c);
		if (ioctl(c->fd, KVM_RUN, 0) == 0) {
			handle_exit(c);
		} else if (errno != EINTR && errno != EAGAIN) {
			snprintf(why, sizeof(why), "KVM_RUN: %s", strerror(errno));
			ended(c, VM_ERROR, why);
		}
	}
	return NULL;
}

static void kicked(int sig)
{
}

int vm_start(struct vm *vm)
{
	struct sigaction sa = {.sa_handler = kicked};
	int r = 0;

	if (sigaction(KICK, &sa, NULL) < 0)
		return -errno;
	vm->stop = true;
	for (unsigned i = 0; r == 0 && i < vm->cpus; i++) {
		r = begin_thread(&vm->cpu[i].thread, vcpu_thread, &vm->cpu[i]);
		vm->cpu[i].started = r == 0;
	}
	if (r == 0)
		vm_pause(vm);
	return r;
}

void vm_pause(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	vm->stop = true;
	for (unsigned i = 0; i < vm->cpus; i++) {
		if (!vm->cpu[i].started)
			continue;
		__atomic_store_n(&vm->cpu[i].run->immediate_exit, 1, __ATOMIC_RELAXED);
		pthread_kill(vm->cpu[i].thread, KICK);
	}
	while (vm->parked < vm->cpus)
		pthread_cond_wait(&vm->changed, &vm->lock);
	pthread_mutex_unlock(&vm->lock);
}

void vm_resume(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	for (unsigned i = 0; i < vm->cpus; i++) /* it stood still: no lock-up */
		ioctl(vm->cpu[i].fd, KVM_KVMCLOCK_CTRL, 0);
	vm->stop = false;
	pthread_cond_broadcast(&vm->changed);
	pthread_mutex_unlock(&vm->lock);
}
