/*
 * host/disk.h - the disk of the data directory, against those who write on it
 * What a guest writes goes to files that it was given, and pandad is not asked. So a thread of its
 * own looks what the files of all machines take, the more often the less is left, and:
 *
 *   - a machine that holds more than its disk can (disk_gb, and what a file system needs itself) is
 *     paused; one whose kernel goes on writing all the same, or made a file longer than its disk,
 *     is ended;
 *   - with less than disk_reserve free, the machines that write fastest are paused. They go on by
 *     themselves, one after the other, when there is room again.
 *
 * A sandbox that is paused so has a reason on record (enum sandbox_hold). Loop thread only.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/loop.h"

struct host;
struct pool;
struct sandbox;

struct disk_watch {
	struct host *host;
	struct pool *pool;
	struct loop_timer timer;
	bool busy, closing;
	bool low;            /* less than the reserve is free */
	uint64_t free_bytes; /* of the data directory, at the last look */
	uint64_t total_bytes;
	uint64_t used_bytes; /* what the disks of all machines held then */
	uint64_t overruns, holds, ends;
};

/* To be closed also after an error. */
int disk_open(struct disk_watch *d, struct host *h, struct err *e);
/* From here on it is looked at. */
void disk_begin(struct disk_watch *d);
/* No more of that. True: the thread is done. */
bool disk_drain(struct disk_watch *d);
void disk_close(struct disk_watch *d);

/* May a paused sandbox go on, as far as the disk is concerned? Kind disk_full. */
int disk_may_resume(const struct sandbox *sb, struct err *e);

/* Why the host has paused it, for a person; NULL: it has not. */
const char *disk_hold_text(const struct sandbox *sb);

/*
 * What files of machines may take at most, of a disk of that size: disk_gb is what the guest may
 * write, the rest is for tables and journal of its file system. disk_gb 0: all of it.
 */
uint64_t disk_limit(uint64_t size, unsigned disk_gb);
