/*
 * host/checkpoint.h - moments of a sandbox that it can be put back to
 * A checkpoint is an image in memory: it shares every layer with the machine and with the other
 * checkpoints, so it costs about a millisecond and what is written after it. The last
 * CHECKPOINTS_RECENT are all there, of older ones every 2nd, then every 4th, and so on, up to
 * CHECKPOINTS_MAX; those with a name are not thinned. They are gone when pandad ends and when the
 * sandbox hibernates. Loop thread only.
 *
 * Kinds of errors: checkpoint_not_found, quota_exceeded, and those of host/host.h.
 */
#pragma once
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/engine.h"

enum {
	CHECKPOINTS_RECENT = 10,
	CHECKPOINTS_MAX = 32,
	CHECKPOINTS_NAMED_MAX = 16,
	CHECKPOINT_NAME_MAX = 64,
	HOST_CHECKPOINTS_MAX = 8192, /* of all sandboxes: each keeps some files open */
};
#define CHECKPOINT_BYTES_MAX ((uint64_t)2 << 30) /* of one sandbox; then the oldest go */

struct checkpoint {
	char id[SANDBOX_ID + 1];
	char name[CHECKPOINT_NAME_MAX + 1]; /* "": none */
	bool automatic;
	uint64_t serial; /* 1, 2, 3 ... */
	uint64_t created_ms, generation;
	uint64_t bytes;   /* what it keeps that the one before it did not */
	uint64_t stop_ns; /* how long the machine stood still for it */
	struct engine_image image;
	json_t *volumes; /* of the sandbox then */
	struct checkpoint *older;
};

struct history {
	struct checkpoint *newest;
	size_t n;
	uint64_t serial, bytes;
	bool untouched; /* rewound to the newest, and no client has asked for anything since */
};

/* Is a checkpoint this old one that has to go? Serials count from 1. */
bool checkpoint_thinned(uint64_t newest, uint64_t serial);

typedef void checkpoint_taken(void *arg, const struct err *e, const struct checkpoint *c);

/* name "": without one. A sleeping sandbox wakes up. c is valid in done only. */
void host_checkpoint(struct host *h, struct sandbox *sb, const char *name, checkpoint_taken *done,
                     void *arg);

/*
 * For a caller that is about to run something: when the sandbox is to have a checkpoint before
 * that, takes one, calls go() afterwards, whether it could be taken or not, and returns true.
 * False: nothing to wait for.
 */
bool host_checkpoint_before(struct host *h, struct sandbox *sb, void (*go)(void *arg), void *arg);

/* By id or name (the newest with it), or by steps from 1 on; the other one is NULL or 0. NULL:
 * there is none, and *e says why. */
struct checkpoint *checkpoint_find(struct sandbox *sb, const char *to, unsigned steps,
                                   struct err *e);
int host_checkpoint_delete(struct host *h, struct sandbox *sb, const char *id, struct err *e);

/* Takes checkpoints before commands from now on, or not any more; what there is stays. */
int host_set_checkpoints(struct host *h, struct sandbox *sb, bool automatic, struct err *e);

/* ---- for the files of this room ---- */

/* All go; lost (a constant) is what lists say about it. NULL: nothing is said. */
void history_drop(struct sandbox *sb, const char *lost);
/* Asserts that the list is in order and what is counted is what is there. */
void history_check(const struct history *y);
/* The machine is that of this checkpoint now: the newer ones go. */
void history_rewound(struct sandbox *sb, const char *id);
/* A command or a stream reaches the guest: from now on it is not what it was. */
void history_touch(struct sandbox *sb);
