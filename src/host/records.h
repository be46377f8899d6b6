/*
 * host/records.h - keeps the log of the records short
 * The loop only ever appends to panda.db-wal. A thread that does nothing else moves it into
 * panda.db: every two seconds, and at once when the log is larger than DB_LOG_USUAL. Jobs that wait
 * for guests or disks have a pool of their own, so none of them keeps this one waiting. The loop
 * waits for the thread only when the log is larger than DB_LOG_LARGE, and for one sync then.
 * On a disk that is nearly full (host/disk.h) the records keep blocks of their own.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/loop.h"

struct host;

struct records {
	struct host *host;
	struct pool *pool;
	struct loop_timer timer;
	bool busy, closing;
	bool failed; /* the last time */
	char path[PATH_MAX];
	/* the thread's while busy: */
	bool low; /* the disk is nearly full: keep what the records have of it */
	int result;
	uint64_t bytes;
	struct err err;
};

/* Opens h->db, in the data directory. To be closed also after an error. */
int records_open(struct records *r, struct host *h, struct err *e);
/* From here on the log is looked after. */
void records_begin(struct records *r);
/* Now, if it is not at work: the disk begins to be full. Then it takes room that is the records'
 * alone. */
void records_hurry(struct records *r);
/* No more of that. True: the thread is done. */
bool records_drain(struct records *r);
void records_close(struct records *r);
