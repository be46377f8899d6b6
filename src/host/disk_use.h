/*
 * host/disk_use.h - how much of the host's disk each tenant takes
 * Counted from the blocks that files have: disks of machines, what hibernated sandboxes sleep in,
 * snapshots, volumes, the copies that forks have of volumes, own templates, and builds. A file that
 * several of these share (hard links) counts once for a tenant. What belongs to no tenant
 * (templates of the host, steps of builds that are kept) counts for none.
 *
 * It is counted a moment after something changed, and every ten seconds; but for no more than
 * a hundredth of the time. Loop thread only.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "template/depot.h"

struct host;
struct quota;

struct disk_uses {
	struct disk_use {
		char tenant[TENANT_MAX + 1];
		uint64_t bytes;
	} * at; /* by name */
	size_t n;
	bool busy;
	bool changed;        /* since the last time */
	uint64_t counted_ms; /* monotonic, 0: never */
	uint64_t rest_ms;    /* and not before that much later */
};

/* Something was made or deleted. */
void disk_use_changed(struct host *h);
/* Bytes, when it was counted last. */
uint64_t disk_use_of(const struct host *h, const char *tenant);
/* What a tenant may take at most: by its quota (may be NULL), else as all may; 0: no limit. */
uint64_t disk_use_max(const struct host *h, const struct quota *quota);
/* May it take more? quota_exceeded. */
int disk_use_admit(const struct host *h, const char *tenant, const struct quota *quota,
                   struct err *e);
void disk_use_fini(struct host *h);

/* Counts anew, if it is time: on a thread of the host's pool. */
void disk_use_look(struct host *h);
