/*
 * engine/engines.h - the engines of this host: each machine is a jailed process of its own
 * um: a Linux kernel that is an unprivileged host process (panda-um). kvm: a monitor (panda-vmm)
 * and a guest behind hardware virtualization. Both are told what to do in the same words
 * (control.h) and keep their layers in the same slots, so all but the start is one code.
 */
#pragma once
#include "jail/cgroup.h"
#include "machine/engine.h"

struct engines_config {
	/*
	 * "auto" (or NULL), "um" or "kvm": the engine of machines that do not ask for one. auto:
	 * kvm where it works. The other engine is there, too, if it works here.
	 */
	const char *engine;
	const char *kernel;        /* path of panda-um */
	const char *vmm, *vmlinux; /* paths of panda-vmm and of the kernel it boots; NULL: no kvm */
	const char *run_dir;       /* exists; uid locks and cpu samples */
	const char *cgroup_parent; /* NULL: "panda" */
	unsigned jail_want;        /* JAIL_*: refuse to start machines without these */
	struct cg_share share;     /* what tenants share the cpu and disks by */
	bool shared;               /* there are tenants, and it counts */
	/*
	 * Only for machines that run already: what it takes to start one is neither tried nor made,
	 * so an engine may be there that does not work here.
	 */
	bool no_starts;
};

/*
 * Kinds: bad_engine, kernel_missing, kvm_unusable, um_unusable, and those of jail_new(). Caller
 * frees with (*ret)->free().
 */
int engines_new(const struct engines_config *cfg, struct engines **ret, struct err *e);
