/*
 * vmm/x86/cpuid.h - which cpu a guest sees
 * A guest gets a named baseline and nothing beyond it, so that a snapshot can go on on any host of
 * the same maker that has the baseline. What it got is saved with it, and compared with what the
 * next host can do. No I/O here.
 */
#pragma once
#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>

enum { CPUID_MAX = 256 };

struct cpuid {
	struct kvm_cpuid2 head;
	struct kvm_cpuid_entry2 entry[CPUID_MAX];
};

/*
 * Makes the table of a guest from what KVM supports: the highest baseline this host has, or the one
 * that is named. *ret_name: which one. -EOPNOTSUPP: not even the lowest, or not that one.
 */
int cpuid_make(const struct cpuid *supported, const char *name, unsigned cpus, struct cpuid *ret,
               const char **ret_name);

/* The same for cpu i of cpus: its ids. */
void cpuid_for(struct cpuid *c, unsigned i);

/*
 * Can a guest that saw old go on where this is supported? -EOPNOTSUPP: it would miss something.
 * -EBADMSG: we never show that.
 */
int cpuid_fits(const struct cpuid *old, const struct cpuid *supported);
