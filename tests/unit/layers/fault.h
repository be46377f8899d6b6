/*
 * Makes the n-th allocation or system call fail, or end or stop the process there. The linker
 * puts these in front of the real functions (see meson.build); until armed they only pass on.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum fault {
	FAULT_NONE,
	FAULT_ALLOC, /* returns NULL */
	FAULT_CALL,  /* fails with EIO */
	FAULT_SPACE, /* fails with ENOSPC */
	FAULT_KILL,  /* the process dies before the call, as by kill -9 */
	FAULT_STOP,  /* the process stops before the call, as by kill -STOP */
};

/* Once; fault_fired() tells whether it came to that, and disarms. nth counts from 1. */
void fault_arm(enum fault what, int nth);
bool fault_fired(void);

/*
 * Watches what is written and what is synced: was everything in a directory, and the list of its
 * entries, synced when renameat2() gave it its name, and was dirfd (where that happened) after?
 */
void sync_watch(void);
bool sync_was_kept(int dirfd);

/* Counted like ours; for libraries that let us choose. */
void *fault_malloc(size_t n);
