#include "vmm/x86/cpuid.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/macro.h"

enum reg { EAX, EBX, ECX, EDX };

enum {
	MAX_LEAF = 0xd,
	TSC_DEADLINE =
	    24, /* leaf 1 ecx: KVM has it whenever it has the local APIC, and does not say so */
	HYPERVISOR = 31,
	HTT = 28,
};

#define MAX_EXTENDED 0x80000008u
#define KVM_LEAF     0x40000000u
#define BIT(n)       (1u << (n))

/* What a word of features may show at all, and what a baseline must have. */
struct word {
	uint32_t leaf, sub;
	enum reg reg;
	uint32_t v2, v3, v4; /* required */
	uint32_t allowed;    /* beside the required ones */
};

static const struct word words[] = {
    /* sse3 ssse3 cx16 sse4.1 sse4.2 popcnt | fma movbe xsave avx f16c | pclmul pcid x2apic aes
     * rdrand */
    {1, 0, ECX, BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23),
     BIT(12) | BIT(22) | BIT(26) | BIT(28) | BIT(29), 0,
     BIT(1) | BIT(17) | BIT(21) | BIT(25) | BIT(30) | BIT(HYPERVISOR)},
    /* fpu tsc msr pae cx8 apic pge cmov clfsh mmx fxsr sse sse2 | vme de pse mce mtrr mca pat
     * pse36 ss htt */
    {1, 0, EDX,
     BIT(0) | BIT(4) | BIT(5) | BIT(6) | BIT(8) | BIT(9) | BIT(13) | BIT(15) | BIT(23) | BIT(24) |
         BIT(25) | BIT(26),
     0, 0,
     BIT(1) | BIT(2) | BIT(3) | BIT(7) | BIT(11) | BIT(12) | BIT(14) | BIT(16) | BIT(17) | BIT(19) |
         BIT(27) | BIT(HTT)},
    /* bmi1 avx2 bmi2 | avx512 f dq cd bw vl | fsgsbase smep erms invpcid rdseed adx smap clflushopt
     * clwb sha */
    {7, 0, EBX, 0, BIT(3) | BIT(5) | BIT(8), BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31),
     BIT(0) | BIT(7) | BIT(9) | BIT(10) | BIT(18) | BIT(19) | BIT(20) | BIT(23) | BIT(24) |
         BIT(29)},
    /* umip gfni vaes vpclmulqdq rdpid */
    {7, 0, ECX, 0, 0, 0, BIT(2) | BIT(8) | BIT(9) | BIT(10) | BIT(22)},
    /* fsrm md_clear spec_ctrl stibp ssbd */
    {7, 0, EDX, 0, 0, 0, BIT(4) | BIT(10) | BIT(26) | BIT(27) | BIT(31)},
    {7, 1, EAX, 0, 0, 0, 0},
    /* xsaveopt xsavec xgetbv1 xsaves */
    {0xd, 1, EAX, 0, 0, 0, BIT(0) | BIT(1) | BIT(2) | BIT(3)},
    /* lahf | lzcnt | cmp_legacy cr8_legacy sse4a misalignsse 3dnowprefetch */
    {0x80000001, 0, ECX, BIT(0), BIT(5), 0, BIT(1) | BIT(4) | BIT(6) | BIT(7) | BIT(8)},
    /* syscall nx lm | what AMD repeats from leaf 1, mmxext fxsr_opt pdpe1gb rdtscp */
    {0x80000001, 0, EDX, BIT(11) | BIT(20) | BIT(29), 0, 0,
     0x0183f3ff | BIT(22) | BIT(25) | BIT(26) | BIT(27)},
    /* invariant tsc: not shown to guests, a snapshot may meet another clock */
    {0x80000007, 0, EDX, 0, 0, 0, 0},
    /* clzero xsaveerptr wbnoinvd ibpb ibrs stibp ssbd */
    {0x80000008, 0, EBX, 0, 0, 0, BIT(0) | BIT(2) | BIT(9) | BIT(12) | BIT(14) | BIT(15) | BIT(24)},
    /* clocksource nop_io clocksource2 pv_eoi unhalt tlb_flush send_ipi sched_yield stable */
    {KVM_LEAF + 1, 0, EAX, BIT(3), 0, 0,
     BIT(0) | BIT(1) | BIT(6) | BIT(7) | BIT(9) | BIT(11) | BIT(13) | BIT(24)},
};

struct baseline {
	const char *name;
	unsigned level;
	uint64_t xcr0; /* extended state: x87, sse, avx, avx-512; 0: no XSAVE at all */
};

static const struct baseline baselines[] = {
    {"panda-v4", 4, 0xe7},
    {"panda-v3", 3, 0x07},
    {"panda-v2", 2, 0},
};

static uint32_t *reg_of(struct kvm_cpuid_entry2 *e, enum reg r)
{
	return r == EAX ? &e->eax : r == EBX ? &e->ebx : r == ECX ? &e->ecx : &e->edx;
}

static struct kvm_cpuid_entry2 *find(const struct cpuid *c, uint32_t leaf, uint32_t sub)
{
	for (unsigned i = 0; i < c->head.nent && i < CPUID_MAX; i++) {
		const struct kvm_cpuid_entry2 *e = &c->entry[i];

		if (e->function == leaf &&
		    (!(e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || e->index == sub))
			return (struct kvm_cpuid_entry2 *)e;
	}
	return NULL;
}

static uint32_t value_of(const struct cpuid *c, uint32_t leaf, uint32_t sub, enum reg r)
{
	struct kvm_cpuid_entry2 *e = find(c, leaf, sub);

	return e ? *reg_of(e, r) : 0;
}

static uint32_t required(const struct word *w, unsigned level)
{
	return w->v2 | (level >= 3 ? w->v3 : 0) | (level >= 4 ? w->v4 : 0);
}

static bool has_baseline(const struct cpuid *c, unsigned level)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		uint32_t need = required(&words[i], level);

		if ((value_of(c, words[i].leaf, words[i].sub, words[i].reg) & need) != need)
			return false;
	}
	return true;
}

static bool leaf_shown(const struct kvm_cpuid_entry2 *e, const struct baseline *b)
{
	uint32_t f = e->function;

	if (f == 0xd)
		return b->xcr0 && (e->index < 2 || (e->index < 64 && b->xcr0 >> e->index & 1));
	if (f == 7)
		return e->index <= 1;
	return f == 0 || f == 1 || f == 2 || f == 4 || f == 6 || f == KVM_LEAF ||
	       f == KVM_LEAF + 1 || (f >= 0x80000000 && f <= MAX_EXTENDED);
}

static unsigned shift_for(unsigned cpus)
{
	unsigned s = 0;

	while (1u << s < cpus)
		s++;
	return s;
}

/* The words that name no features, but numbers. */
static void edit(struct kvm_cpuid_entry2 *e, const struct baseline *b, unsigned cpus)
{
	switch (e->function) {
	case 0:
		e->eax = MAX_LEAF;
		break;
	case 1:
		e->ebx = (e->ebx & 0xff00) | cpus << 16; /* line size stays */
		e->ecx |= BIT(TSC_DEADLINE) | BIT(HYPERVISOR);
		if (cpus > 1)
			e->edx |= BIT(HTT);
		else
			e->edx &= ~BIT(HTT);
		break;
	case 4: /* each cache belongs to one cpu, and each cpu is a core */
		e->eax = (e->eax & 0x3fff) | (cpus - 1) << 26;
		break;
	case 6:
		e->eax &= BIT(2); /* the APIC's timer does not stop */
		e->ebx = e->ecx = e->edx = 0;
		break;
	case 0xd:
		if (e->index == 0) {
			e->eax &= (uint32_t)b->xcr0;
			e->edx = 0;
		} else if (e->index == 1) {
			e->ecx = e->edx = 0; /* no supervisor state */
		}
		break;
	case KVM_LEAF:
		e->eax = KVM_LEAF + 1;
		break;
	case KVM_LEAF + 1:
		e->edx = 0;
		break;
	case 0x80000000:
		e->eax = MAX_EXTENDED;
		break;
	case 0x80000008:
		e->ecx = (cpus - 1) | shift_for(cpus) << 12;
		break;
	}
}

static void add(struct cpuid *c, struct kvm_cpuid_entry2 e)
{
	if (c->head.nent < CPUID_MAX)
		c->entry[c->head.nent++] = e;
}

int cpuid_make(const struct cpuid *supported, const char *name, unsigned cpus, struct cpuid *ret,
               const char **ret_name)
{
	const struct baseline *b = NULL;

	for (size_t i = 0; !b && i < ARRAY_LEN(baselines); i++)
		if ((!name || strcmp(name, baselines[i].name) == 0) &&
		    has_baseline(supported, baselines[i].level))
			b = &baselines[i];
	if (!b)
		return -EOPNOTSUPP;
	ret->head = (struct kvm_cpuid2){0};
	for (unsigned i = 0; i < supported->head.nent && i < CPUID_MAX; i++) {
		struct kvm_cpuid_entry2 e = supported->entry[i];

		if (!leaf_shown(&e, b))
			continue;
		for (size_t w = 0; w < ARRAY_LEN(words); w++) {
			const struct word *k = &words[w];

			if (k->leaf != e.function || k->sub != e.index)
				continue;
			*reg_of(&e, k->reg) &= k->allowed | required(k, b->level);
		}
		edit(&e, b, cpus);
		add(ret, e);
	}
	/* Every cpu is a core of one package. */
	add(ret, (struct kvm_cpuid_entry2){.function = 0xb,
	                                   .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
	                                   .ebx = 1,
	                                   .ecx = 0x100});
	add(ret, (struct kvm_cpuid_entry2){.function = 0xb,
	                                   .index = 1,
	                                   .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
	                                   .eax = shift_for(cpus),
	                                   .ebx = cpus,
	                                   .ecx = 0x201});
	*ret_name = b->name;
	return 0;
}

void cpuid_for(struct cpuid *c, unsigned i)
{
	for (unsigned k = 0; k < c->head.nent && k < CPUID_MAX; k++) {
		struct kvm_cpuid_entry2 *e = &c->entry[k];

		if (e->function == 1)
			e->ebx = (e->ebx & 0x00ffffff) | i << 24;
		else if (e->function == 0xb)
			e->edx = i;
	}
}

int cpuid_fits(const struct cpuid *old, const struct cpuid *supported)
{
	const struct kvm_cpuid_entry2 *a = find(old, 0, 0), *b = find(supported, 0, 0);

	if (!a || !b || a->ebx != b->ebx || a->ecx != b->ecx || a->edx != b->edx)
		return -EOPNOTSUPP; /* another maker */
	/* No baseline of ours has more than the highest: what does was never made here. */
	for (unsigned i = 0; i < old->head.nent && i < CPUID_MAX; i++)
		if (old->entry[i].function != 0xb && !leaf_shown(&old->entry[i], &baselines[0]))
			return -EBADMSG;
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		const struct word *w = &words[i];
		uint32_t had = value_of(old, w->leaf, w->sub, w->reg);

		if (w->leaf == 1 && w->reg == ECX)
			had &= ~(BIT(TSC_DEADLINE) | BIT(HYPERVISOR) |
			         BIT(27)); /* OSXSAVE is the guest's */
		if (w->leaf == 1 && w->reg == EDX)
			had &= ~BIT(HTT);
		if (had & ~(w->allowed | required(w, baselines[0].level)))
			return -EBADMSG;
		if (had & ~value_of(supported, w->leaf, w->sub, w->reg))
			return -EOPNOTSUPP;
	}
	return (value_of(old, 0xd, 0, EAX) & ~value_of(supported, 0xd, 0, EAX)) ? -EOPNOTSUPP : 0;
}
