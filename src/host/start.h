/*
 * host/start.h - the start of a sandbox's machine, by a thread of the pool
 * create, fork, wake and rewind fill a start_job on the loop, start_job_run() starts the machine on
 * the pool, and the loop takes from the job what came of it.
 */
#pragma once
#include "base/err.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "template/depot.h"

/* A machine to start on the pool: what it needs is copied in, what came of it is in the end. */
struct start_job {
	struct host *host;
	char id[SANDBOX_ID + 1];      /* of the sandbox */
	char machine[SANDBOX_ID + 1]; /* the name it is started under */
	char tenant[TENANT_MAX + 1];  /* whose share of the host it uses */
	bool prepared;
	const char *parent;
	struct engine_image image; /* owned */
	uint64_t generation;
	char load[SNAPSHOT_ID_MAX + 1]; /* load this snapshot into image first; "": it is there */
	struct engine_volume volumes[ENGINE_VOLUMES_MAX]; /* owned */
	int net_fd;       /* borrowed from the slot of the sandbox; 0 or -1: none */
	unsigned disk_gb; /* it may write that much; 0: as its memory says. Made smaller when the
	                     disk is */
	/* result */
	struct guest *guest; /* owned, until link_take() */
	pid_t pid;
	const struct engine *engine;
	uint64_t took_us;
	int r;
	struct err err;
};

/* Nothing open yet: it can be given to start_job_fini() from here on. */
void start_job_init(struct start_job *j, struct host *h);
/* Which sandbox, and which machine, it is about. */
void start_job_name(struct start_job *j, const struct sandbox *sb);
void start_job_run(struct start_job *j); /* blocks: on the pool */
void start_job_fini(struct start_job *j);
