/*
 * host/sandbox.h - one sandbox: what it is, and which state it is in
 *
 *                     create, fork
 *                          |
 *                          v                 pause
 *   (undone) <-fails-- CREATING --> RUNNING <------> PAUSED
 *                                    |  ^    resume    |
 *                                    |  |              |
 *                          hibernate |  | wake         | hibernate
 *                                    v  |              |
 *                           HIBERNATING |              |
 *                               |  ^----|--------------'
 *                               v       |
 *                          HIBERNATED -> WAKING
 *
 *   RUNNING, PAUSED -- the machine process ends --> FAILED
 *   any state -- kill, ttl, idle --> KILLING --> (gone)
 *   RUNNING, PAUSED, FAILED -- rewind --> REWINDING --> RUNNING, or what it was
 *
 * Every state is on record before the step it announces is taken, so the next pandad can finish or
 * undo it (host/recover.c). sandbox_check() asserts the rules. Loop thread only.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/loop.h"
#include "base/uuid.h"
#include "template/depot.h"
#include "template/template.h"

enum {
	SANDBOX_ID = UUID_TEXT, /* a UUID: it is part of host names */
	PREVIEW_NAME = 20,      /* letters and digits of base32: 100 random bits */
	SNAPSHOT_NAME_MAX = 64,
	SANDBOX_VOLUMES_MAX = 4,
};

enum sandbox_state {
	SANDBOX_CREATING,
	SANDBOX_RUNNING,
	SANDBOX_PAUSED,
	SANDBOX_HIBERNATING,
	SANDBOX_HIBERNATED,
	SANDBOX_WAKING,
	SANDBOX_KILLING,
	SANDBOX_FAILED,
	SANDBOX_REWINDING, /* on record only when something else was changed meanwhile */
	SANDBOX_STATES,
};

/* Why a sandbox is paused. */
enum sandbox_hold {
	HOLD_NONE,    /* a client asked for it, or it is not */
	HOLD_RESERVE, /* the disk of the host is nearly full: host/disk.h */
	HOLD_OVERRUN, /* it holds more of that disk than its own disk has */
	SANDBOX_HOLDS,
};

struct history;
struct host;
struct link;
struct net_slot;
struct op;

/* What the caller of create decides; a fork's children have their parent's. */
struct sandbox_spec {
	char template[TEMPLATE_NAME_MAX + 1];
	char from_snapshot[SNAPSHOT_NAME_MAX + 1];   /* "": from the template */
	int64_t ttl_s;                               /* from creation; -1: none */
	int64_t idle_s;                              /* -1: the host's default; 0: never */
	int64_t auto_hibernate_s;                    /* -1: never */
	int64_t snapshots_keep, snapshots_max_age_s; /* host/retention.c; -1: the host's, 0: all */
	unsigned disk_gb;                            /* at most that of the template; 0: that */
	bool persistent;
	bool checkpoints;                          /* one before every command: host/checkpoint.h */
	json_t *metadata, *env, *egress, *volumes; /* objects, lists; NULL: none */
};

/*
 * A number of the spec: how a request and a record call it, and what it may be. It is -1 when a
 * request does not say it. The list in sandbox.c decides what is parsed and what is recorded: a new
 * number is a member above, and a line there.
 */
struct spec_number {
	const char *key, *recorded;
	size_t at; /* of its int64_t in struct sandbox_spec */
	int64_t max;
	int64_t zero;     /* what it is when a request says 0 */
	const char *what; /* what a request may say; an error puts max behind it */
};

enum {
	SPEC_SECONDS_MAX = 315360000, /* ten years */
};

extern const struct spec_number spec_numbers[]; /* until a key is NULL */

struct sandbox {
	/* on record */
	char id[SANDBOX_ID + 1];
	char tenant[TENANT_MAX + 1];
	enum sandbox_state state;
	/* Of its machine: its own id until a rewind (host/rewind.h) puts another in its place. */
	char machine[SANDBOX_ID + 1];
	struct sandbox_spec spec;                          /* owned */
	char parent[SANDBOX_ID + 1], tree[SANDBOX_ID + 1]; /* "" when there is none */
	unsigned cpu, memory_mb, disk_gb;
	unsigned boot_ms;
	const char *boot_mode; /* "cold", "snapshot", "fork" */
	const char *runner;    /* "shell", "python" */
	char isolation[24];    /* of its machine, see struct engine */
	uint64_t created_ms;   /* wall clock */
	uint64_t generation;   /* of its machine */
	char end[160];         /* FAILED: why */
	/* Part of the host names by which visitors without a token come: host/preview.h. */
	char preview[PREVIEW_NAME + 1];
	uint64_t preview_epoch; /* links that were signed in an earlier one are revoked */
	bool checkpointed;      /* it has had checkpoints */
	/* Its machine may not have the volumes of the spec as they stand there: recover.c. */
	bool volumes_pending;
	enum sandbox_hold hold; /* PAUSED: who did it */

	/* not on record */
	struct host *host;
	pid_t pid; /* of its machine; 0: none */
	int pidfd;
	struct loop_io death;
	struct loop_timer timer;       /* ttl, idle, auto-hibernate: whichever is next */
	uint64_t active_ms;            /* monotonic: when a client last asked for something */
	uint64_t ends_ms, ends_due_ms; /* its TTL: by the wall clock, and the monotonic one */
	unsigned diffs;                /* those at work, it on either side */
	unsigned busy;         /* commands, streams, terminals that are open: it is not idle */
	struct link *link;     /* to its agent; NULL until needed */
	bool silent;           /* which does not answer */
	struct net_slot *slot; /* in the host's network; NULL: none */
	struct {               /* host/disk.c: what its machine holds of the host's disk */
		char machine[SANDBOX_ID + 1]; /* which one this is about */
		uint64_t size;                /* of its disk; 0: not known yet */
		uint64_t bytes, grown;        /* at the last look, and since the one before */
		uint64_t asked_ms;            /* monotonic: it shall be paused; 0: no */
		uint64_t held_bytes;          /* from when on it must not grow; 0: not yet */
		const char *end;              /* why it was ended; NULL: it was not */
	} disk;
	struct history *history;  /* its checkpoints; NULL: none */
	const char *history_lost; /* when those it had were dropped; NULL: never */
	struct op *ops;           /* waiting for their turn, the first one is at work */
	struct sandbox *next;     /* in the host's list, newest first */
	struct sandbox **prevp;
};

const char *sandbox_state_name(enum sandbox_state s);                /* as the API says it */
bool sandbox_state_parse(const char *name, enum sandbox_state *ret); /* of the record */
const char *sandbox_state_record(enum sandbox_state s);
/* As records and events say it; "" for none. */
const char *sandbox_hold_name(enum sandbox_hold hold);

/* Is there an arrow in the drawing that is taken by what went well? */
bool sandbox_may_go(enum sandbox_state from, enum sandbox_state to);
/* Asserts every rule of the drawing that can be seen from the sandbox alone. */
void sandbox_check(const struct sandbox *sb);

/* To and from the doc column. sandbox_from_doc() leaves what it does not find. */
json_t *sandbox_to_doc(const struct sandbox *sb);
void sandbox_from_doc(struct sandbox *sb, const json_t *doc);

/* What a request that says nothing asks for, but for the template. */
void spec_init(struct sandbox_spec *ret);
/* Where one of spec_numbers is in s. */
int64_t *spec_number(struct sandbox_spec *s, const struct spec_number *n);
void spec_fini(struct sandbox_spec *s);
/* Deep copy. */
int spec_copy(const struct sandbox_spec *s, struct sandbox_spec *ret);

/* When it ends by its ttl: wall clock ms, 0: never. */
uint64_t sandbox_expires_ms(const struct sandbox *sb);
