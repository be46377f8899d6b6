/*
 * host/lifecycle_internal.h - an operation in the life of a sandbox
 * What create, pause, resume, kill, hibernate and wake share. Each has the same shape: on record,
 * then done on the pool, then on record again. What a crash leaves at any point between is what
 * host/recover.c reads. Loop thread only, but for what says that it is for the pool.
 */
#pragma once
#include "base/err.h"
#include "host/host.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"

/* One operation. */
struct life {
	struct op op;
	struct host *host;
	host_done *done;
	void *arg;
	const char *why;
	enum sandbox_hold hold; /* pause: the host does it */
	uint64_t asked_ns;
	struct start_job job;           /* create, wake */
	json_t *paths;                  /* volumes: keeps what the job's point into */
	struct volume_sources *sources; /* hibernate: to be synced */
	bool settle;                    /* kill: the guest can still be asked */
	int r;
	struct err err;
};

/* For those that only wait for their turn. */
void life_queue(struct host *h, struct sandbox *sb, const char *name, void (*begin)(struct op *op),
                host_done *done, void *arg);

/* Tells the caller, and gives the next one its turn. */
void life_end(struct life *l, const struct err *e);

/* work on the pool, then done on the loop; done alone, with l->r set, when that cannot be. */
void life_run(struct life *l, void (*work)(void *arg), void (*done)(void *arg));

/* As lifecycle_queue(), for the caller to queue. NULL: no memory, and done was told. */
struct life *life_new(struct host *h, host_done *done, void *arg, void (*begin)(struct op *op));

/* For the pool: the machine stands still, or goes on. */
int machine_control(struct host *h, const char *id, bool pause, struct err *e);

/* For the pool: what a sandbox sleeps in or has slept in goes, and the layers that only this
 * had. */
void drop_sleep(struct host *h, const char *sandbox_id);
