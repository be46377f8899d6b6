/*
 * bed.h - the machines that are measured: a run directory and a store of their own, all of it
 * removed at the end, and sessions as users have them
 */
#pragma once
#include "jail/cgroup.h"
#include "machine/machine.h"

#include <limits.h>

enum {
	BED_MEMORY_MIB = 512,
	BED_GUEST_MS = 60000, /* an answer that takes longer is a failure */
};

struct bed {
	const char *kind, *kernel, *vmm, *vmlinux; /* as in struct engines_config */
	const char *image, *upper, *run_dir, *store_dir;
	char work[PATH_MAX]; /* the program that is measured inside and outside */
	unsigned cpu;        /* where machines and native runs that are compared run */
	struct engines *engines;
	struct machines ms;
	struct snapshot_store store;
	struct cg_host *cg;
	struct engine_image warm;   /* from disk: a booted machine that has run a few programs */
	char id[ENGINE_ID_MAX + 1]; /* of the newest machine, or of the next one when prepared */
	bool prepared;
	uint64_t memory_limit;
};

/* How long the engine's own part of the last start took: what is left of it is
 * machine_start()'s. */
extern double bed_engine_ms;

extern char *const true_argv[], *const python_argv[];

/* The caller sets kind, the files of that kind, image, upper, run_dir, store_dir and work. */
int bed_open(struct bed *b, struct err *e);
/* Ends every machine and removes the directories, also after another process that was killed. */
void bed_clear(struct bed *b);

/* A machine that never ran, of this size. */
int bed_cold(struct bed *b, unsigned mib, struct engine_image *ret, struct err *e);
/* A template as users would bake one: booted, warmed up, saved to disk, loaded into b->warm. */
int bed_bake(struct bed *b, struct err *e);

/* Has the process of the next machine made ahead, as a daemon does while nobody asks for one: so
 * long that it is ready. */
int bed_prepare(struct bed *b, unsigned wait_ms, struct err *e);
/* A new machine, wherever there is room when cpu < 0. */
int bed_start(struct bed *b, const struct engine_image *i, int cpu, struct machine_info *ret,
              struct err *e);
void bed_end(struct bed *b, const struct machine_info *m);

/* Runs to the end, keeps up to n - 1 bytes of stdout in out (may be NULL). -ECHILD unless it exits
 * with 0. */
int bed_run(struct guest *g, char *const *argv, char *out, size_t n, struct err *e);
/* A connection of its own and /bin/true: what a client's first call does. */
int bed_first_exec(struct bed *b, const char *id, struct err *e);

/* A machine with a Python that holds a heap, none of it zeros, and waits. */
struct session {
	struct machine_info m;
	uint64_t python; /* its exec; SIGUSR1 makes it write to every page of its heap */
};

int session_start(struct bed *b, unsigned memory_mib, unsigned heap_mib, struct session *ret,
                  struct err *e);
int session_rewrite(struct bed *b, const struct session *s, struct err *e);
