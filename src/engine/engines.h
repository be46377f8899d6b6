/*
 * engine/engines.h - the engine: each machine is a jailed process of its own, of one of two kinds
 * um: a Linux kernel that is an unprivileged host process (panda-um). kvm: a monitor (panda-vmm)
 * and a guest behind hardware virtualization. Both are told what to do in the same words
 * (control.h) and keep their layers in the same slots, so all but the start is one code.
 */
#pragma once
#include "machine/engine.h"

struct um_config {
	/*
	 * "auto" (or NULL), "um" or "kvm": the kind of what does not ask for one. auto: kvm where
	 * it works. The other kind is there, too, if it works here.
	 */
	const char *engine;
	const char *kernel;        /* path of panda-um */
	const char *vmm, *vmlinux; /* paths of panda-vmm and of the kernel it boots; NULL: no kvm */
	const char *run_dir;       /* exists; uid locks and cpu samples */
	const char *cgroup_parent; /* NULL: "panda" */
	unsigned jail_want;        /* JAIL_*: refuse to start machines without these */
	/*
	 * Only for machines that run already: what it takes to start one is neither tried nor made,
	 * so a kind may be there that does not work here.
	 */
	bool no_starts;
};

/*
 * Kinds: bad_engine, kernel_missing, kvm_unusable, um_unusable, and those of jail_new(). Caller
 * frees with (*ret)->free().
 */
int um_engine_new(const struct um_config *cfg, struct engine **ret, struct err *e);
