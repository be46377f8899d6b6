/*
 * vmm/x86/load.h - puts an x86-64 Linux (an ELF vmlinux) into guest memory, ready to jump to
 * The file is a stranger's: what does not fit into memory, or would touch the first MiB where the
 * tables of boot.h go, is refused.
 */
#pragma once
#include "vmm/mem.h"

struct load_source {
	/* Exactly n bytes at off, or a negative errno. */
	int (*read)(void *arg, void *buf, size_t n, uint64_t off);
	void *arg;
};

/* Guest addresses: the 64-bit entry, and what is executed and never written; code_len may be 0. */
struct loaded {
	uint64_t entry, code, code_len;
};

/* -ENOEXEC: no such ELF. -ENOSPC: memory is too small. */
int load_kernel(const struct mem *m, const struct load_source *s, struct loaded *ret);
