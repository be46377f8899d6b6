/*
 * jail/uid.h - uids that no other process on this host has
 * Between take and drop a byte of a lock file is ours (open file description lock: the kernel
 * frees it when we are killed). From the moment a process runs under the uid, that process itself
 * keeps it taken: the kernel is asked, so a machine cannot lie about it, nothing must be handed to
 * it, and when it is gone (and reaped) the uid is free, even if other processes were killed in
 * between.
 */
#pragma once
#include <stdatomic.h>
#include <sys/types.h>

#include "base/err.h"

struct uid_range {
	int dir; /* where the lock file is; borrowed */
	uid_t base;
	unsigned count;
	atomic_uint hint; /* threads may share a range */
};

struct jail_uid {
	uid_t uid;
	int lock; /* -1: dropped */
};

/* -EAGAIN, "no_uid": the whole range is in use. */
int uid_take(struct uid_range *range, struct jail_uid *ret, struct err *e);
void jail_uid_drop(struct jail_uid *u);
