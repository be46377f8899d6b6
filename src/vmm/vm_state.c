/*
 * vmm/vm_state.c - what KVM knows of a machine, saved and loaded
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/macro.h"
#include "vmm/state.h"
#include "vmm/vm.h"
#include "vmm/x86/cpuid.h"

enum { MSRS_MAX = 64, CHIPS = 3 };

#define MSR_TSC          0x10
#define MSR_TSC_DEADLINE 0x6e0

/*
 * Those a guest can change and that are not part of another structure. The TSC comes first: what
 * follows may be relative to it. The deadline comes last: it means something only when TSC and
 * local APIC are as they were.
 */
static const uint32_t msrs[] = {MSR_TSC,
                                0x3b /* TSC_ADJUST */,
                                0x48 /* SPEC_CTRL */,
                                0x174,
                                0x175,
                                0x176 /* SYSENTER */,
                                0x17a /* MCG_STATUS */,
                                0x1a0 /* MISC_ENABLE */,
                                0x277 /* PAT */,
                                0x2ff /* MTRRs */,
                                0x250,
                                0x258,
                                0x259,
                                0x268,
                                0x269,
                                0x26a,
                                0x26b,
                                0x26c,
                                0x26d,
                                0x26e,
                                0x26f,
                                0xda0 /* XSS */,
                                0xc0000081 /* STAR */,
                                0xc0000082,
                                0xc0000083,
                                0xc0000084,
                                0xc0000102 /* KERNEL_GS_BASE */,
                                0xc0000103 /* TSC_AUX */,
                                0xc0011029 /* DE_CFG */,
                                0x4b564d00 /* kvm: wall clock */,
                                0x4b564d01 /* system time */,
                                0x4b564d04 /* PV EOI */,
                                MSR_TSC_DEADLINE};

struct msr_block {
	struct kvm_msrs head;
	struct kvm_msr_entry v[MSRS_MAX];
};

struct saved_vm {
	struct kvm_irqchip chip[CHIPS];
	struct kvm_clock_data clock;
	uint32_t tsc_khz, reserved;
	char baseline[16];
};

struct saved_vcpu {
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_xsave xsave;
	struct kvm_xcrs xcrs;
	struct kvm_lapic_state lapic;
	struct kvm_vcpu_events events;
	struct kvm_mp_state mp_state;
	struct kvm_debugregs debugregs;
};

/* One by one: a host may lack some, and the first that it lacks would end the list. */
static int get_msrs(int fd, struct msr_block *b)
{
	b->head = (struct kvm_msrs){0};
	for (size_t i = 0; i < ARRAY_LEN(msrs); i++) {
		struct msr_block one = {.head.nmsrs = 1, .v[0].index = msrs[i]};
		int r = ioctl(fd, KVM_GET_MSRS, &one);

		if (r < 0)
			return -errno;
		if (r == 1)
			b->v[b->head.nmsrs++] = one.v[0];
	}
	return 0;
}

static bool known_msr(uint32_t index)
{
	for (size_t i = 0; i < ARRAY_LEN(msrs); i++)
		if (msrs[i] == index)
			return true;
	return false;
}

static int set_msrs(int fd, const struct kvm_msr_entry *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct msr_block one = {.head.nmsrs = 1, .v[0] = v[i]};
		int r = ioctl(fd, KVM_SET_MSRS, &one);

		if (r < 0)
			return -errno;
		if (r == 0 && v[i].data)
			return -EOPNOTSUPP; /* it had something there that this host does not
					     * know */
	}
	return 0;
}

static int get_vcpu(int fd, struct saved_vcpu *s)
{
	struct {
		unsigned long what;
		void *to;
	} calls[] = {
	    /* first of all: it may change the others (an INIT or a pending event) */
	    {KVM_GET_MP_STATE, &s->mp_state}, {KVM_GET_REGS, &s->regs},
	    {KVM_GET_SREGS, &s->sregs},       {KVM_GET_XSAVE, &s->xsave},
	    {KVM_GET_XCRS, &s->xcrs},         {KVM_GET_DEBUGREGS, &s->debugregs},
	    {KVM_GET_LAPIC, &s->lapic},       {KVM_GET_VCPU_EVENTS, &s->events},
	};

	for (size_t i = 0; i < ARRAY_LEN(calls); i++)
		if (ioctl(fd, calls[i].what, calls[i].to) < 0)
			return -errno;
	return 0;
}

/*
 * The order matters: system registers say where the local APIC is and in which mode, and which
 * features are on; the extended state needs XCR0; MSRs of the timer need the APIC; events come
 * last, because setting registers drops what is pending.
 */
static int set_vcpu(int fd, struct saved_vcpu *s, const struct kvm_msr_entry *m, size_t nr_msrs)
{
	struct {
		unsigned long what;
		void *from;
	} before[] = {{KVM_SET_SREGS, &s->sregs},         {KVM_SET_XCRS, &s->xcrs},
	              {KVM_SET_XSAVE, &s->xsave},         {KVM_SET_REGS, &s->regs},
	              {KVM_SET_DEBUGREGS, &s->debugregs}, {KVM_SET_LAPIC, &s->lapic}},
	  after[] = {{KVM_SET_VCPU_EVENTS, &s->events}, {KVM_SET_MP_STATE, &s->mp_state}};
	int r;

	for (size_t i = 0; i < ARRAY_LEN(before); i++)
		if (ioctl(fd, before[i].what, before[i].from) < 0)
			return -errno;
	r = set_msrs(fd, m, nr_msrs);
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(after); i++)
		if (ioctl(fd, after[i].what, after[i].from) < 0)
			return -errno;
	return 0;
}

int vm_save(struct vm *vm, struct state_out *s)
{
	struct saved_vm g = {.tsc_khz = vm->tsc_khz};
	struct msr_block m;
	uint64_t tsc = 0;
	int r;

	memcpy(g.baseline, vm->baseline, sizeof(g.baseline));
	for (unsigned i = 0; i < CHIPS; i++) {
		g.chip[i].chip_id = i;
		if (ioctl(vm->fd, KVM_GET_IRQCHIP, &g.chip[i]) < 0)
			return -errno;
	}
	if (ioctl(vm->fd, KVM_GET_CLOCK, &g.clock) < 0)
		return -errno;
	state_put(s, STATE_VM, &g, sizeof(g));
	for (unsigned i = 0; i < vm->cpus; i++) {
		struct saved_vcpu *c = state_room(s, STATE_VCPU, sizeof(*c));

		if (!c)
			return s->error;
		r = get_vcpu(vm->cpu[i].fd, c);
		if (r == 0)
			r = get_msrs(vm->cpu[i].fd, &m);
		if (r < 0)
			return r;
		/* All counters run alike; read one after the other they would seem not to. */
		if (m.head.nmsrs && m.v[0].index == MSR_TSC) {
			if (i == 0)
				tsc = m.v[0].data;
			m.v[0].data = tsc;
		}
		state_put(s, STATE_MSRS, m.v, m.head.nmsrs * sizeof(m.v[0]));
	}
	return s->error;
}

int vm_load(struct vm *vm, struct state_in *s)
{
	struct saved_vcpu c;
	struct saved_vm g;
	const void *m;
	size_t n;
	int r;

	r = state_get(s, STATE_VM, &g, sizeof(g));
	if (r < 0)
		return r;
	memcpy(vm->baseline, g.baseline, sizeof(vm->baseline));
	vm->baseline[sizeof(vm->baseline) - 1] = 0;
	for (unsigned i = 0; i < vm->cpus; i++) {
		/* Counters go on at the speed they had; a host that cannot do that says so. */
		if (g.tsc_khz && g.tsc_khz != vm->tsc_khz &&
		    ioctl(vm->cpu[i].fd, KVM_SET_TSC_KHZ, (unsigned long)g.tsc_khz) < 0)
			return -EOPNOTSUPP;
		r = state_get(s, STATE_VCPU, &c, sizeof(c));
		if (r == 0)
			r = state_items(s, STATE_MSRS, sizeof(struct kvm_msr_entry), MSRS_MAX, &m,
			                &n);
		for (size_t k = 0; r == 0 && k < n; k++)
			if (!known_msr(((const struct kvm_msr_entry *)m)[k].index))
				r = -EBADMSG;
		if (r == 0)
			r = set_vcpu(vm->cpu[i].fd, &c, m, n);
		if (r < 0)
			return r;
	}
	if (g.tsc_khz)
		vm->tsc_khz = g.tsc_khz;
	for (unsigned i = 0; i < CHIPS; i++) {
		g.chip[i].chip_id = i;
		if (ioctl(vm->fd, KVM_SET_IRQCHIP, &g.chip[i]) < 0)
			return -errno;
	}
	/* From where it stood: time that passed meanwhile is not the machine's. */
	g.clock.flags = 0;
	return ioctl(vm->fd, KVM_SET_CLOCK, &g.clock) < 0 ? -errno : 0;
}

uint64_t vm_uptime_ns(struct vm *vm)
{
	struct kvm_clock_data clock = {0};

	return ioctl(vm->fd, KVM_GET_CLOCK, &clock) < 0 ? 0 : clock.clock;
}

void vm_save_cpuid(const struct vm *vm, struct state_out *s)
{
	state_put(s, STATE_CPUID, vm->cpuid.entry,
	          vm->cpuid.head.nent * sizeof(vm->cpuid.entry[0]));
}

int vm_load_cpuid(struct state_in *s, struct cpuid *ret)
{
	const void *v;
	size_t n;
	int r = state_items(s, STATE_CPUID, sizeof(ret->entry[0]), CPUID_MAX, &v, &n);

	if (r < 0)
		return r;
	ret->head = (struct kvm_cpuid2){.nent = (uint32_t)n};
	memcpy(ret->entry, v, n * sizeof(ret->entry[0]));
	return 0;
}
