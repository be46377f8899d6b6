/*
 * engine/engines_internal.h - between the files of the engine
 */
#pragma once
#include <pthread.h>
#include <stdio.h>

#include "engine/engines.h"
#include "jail/jail.h"
#include "machine/engine.h"
#include "wire/control.h"

extern const struct jail_rules um_rules, vmm_rules;

/* How machines of one kind are started; whatever comes after that is the same for all. */
struct um_kind {
	const char *name, *isolation;
	const char *program; /* argv[0] */
	const struct jail_rules *rules;
	const char *const *boot; /* the kernel's command line for a cold boot, ends with NULL */
	bool kvm;                /* it is handed /dev/kvm and a kernel to load; has vcpus */
	/* Kernel process and guest processes hand over to each other all the time: one cpu, and
	 * the addresses of one life are those of the next. */
	bool one_cpu, no_aslr;
};

extern const struct um_kind um_kind, kvm_kind;

/* A kind that works here: programs open, rules compiled. */
struct um_runner {
	const struct um_kind *kind;
	struct jail_filter filter;
	int program_fd;
	int kvm_fd, kernel_fd; /* of a kind with kvm; else -1 */
	char build[65];        /* identity of the guest kernel */
};

/* Kinds: kernel_missing, kvm_unusable, um_unusable. */
int um_runner_init(struct um_runner *r, const struct um_kind *k, const struct um_config *cfg,
                   struct err *e);
void um_runner_fini(struct um_runner *r);

/* A machine process that waits for its greeting. It ends when this connection does without one. */
struct um_process {
	const struct um_runner *runner;
	pid_t pid;
	int pidfd, control, pagemap;
};

#define UM_PROCESS_EMPTY                                             \
	{                                                            \
		.pid = -1, .pidfd = -1, .control = -1, .pagemap = -1 \
	}

struct um_prepared {
	struct um_prepared *next;
	struct um_process process;
	char id[ENGINE_ID_MAX + 1];
};

struct um {
	struct engine engine;
	pthread_mutex_t lock;         /* of the next line */
	struct um_prepared *prepared; /* processes made ahead */
	struct jail *jail;
	int run_dirfd;
	unsigned want;
	struct engine_kind kinds[ENGINE_KINDS_MAX]; /* the same order as: */
	struct um_runner runners[ENGINE_KINDS_MAX];
};

enum {
	UM_START_TIMEOUT_MS = 30000, /* a cold boot on a busy host; a restore takes milliseconds */
};

/* Starts one that listens in this directory, and connects to it. s is NULL when nobody knows yet
 * which machine it will be. */
int um_process_start(struct um *um, const struct um_runner *w, const char *id, int dirfd,
                     const struct engine_start *s, struct um_process *ret, struct err *e);
/* The one that was made ahead for this machine, if it lives and fits; it has its limits then. */
bool um_process_take(struct um *um, const struct um_runner *w, const struct engine_start *s,
                     struct um_process *ret);
/* Ends it, so that another one can have its id. */
void um_process_end(struct um *um, const char *id, struct um_process *p);
/* Lets go of it; it goes on if it has been greeted. */
void um_process_fini(struct um_process *p);

/* process.c, um.c: of struct engine */
int um_prepare(struct engine *engine, const char *id, int dirfd, struct err *e);
void um_forget(struct engine *engine, const char *id);
int um_stop(struct engine *engine, const char *id, pid_t pid, struct err *e);

/* A message with its fds, built step by step. */
struct um_packet {
	struct um_msg msg;
	int fds[UM_FDS_MAX];
};

/* -E2BIG when it is full. fd is borrowed until the send. */
int um_packet_add(struct um_packet *p, int fd, unsigned slot);

/*
 * Sends and waits for the answer. alive is a pidfd: its death ends the waiting with -ESRCH.
 * -ETIMEDOUT after timeout_ms, -EPROTO when the answer makes no sense.
 */
int um_call(int control, int alive, const struct um_packet *p, unsigned timeout_ms,
            struct um_msg *ret);
/* What a machine says about how it went: 0 or a negative errno. */
int um_done(const struct um_msg *answer);
/* A message without more to it. Kinds: machine_gone, machine_silent. */
int um_ask(struct engine_machine *m, enum um_type type, struct um_msg *ret, struct err *e);
enum { UM_CALL_TIMEOUT_MS = 30000 };

/* The file of a layer of a disk that the machine writes, within its directory. */
static inline void um_disk_name(char buf[32], size_t disk, size_t layer)
{
	snprintf(buf, 32, ENGINE_DISKS "/disk%zu-%zu", disk, layer);
}

static inline uint64_t um_pages(uint64_t bytes)
{
	return bytes / MAP_PAGE;
}

/* The machine can do with an fd whatever the fd allows, so it must not allow more than we mean. */
int um_check_volume(const struct engine_volume *v, unsigned slot, struct err *e);

/* snapshot.c: of struct engine */
int um_snapshot(struct engine *engine, struct engine_machine *m, struct engine_image *ret,
                struct engine_snapshot_info *info, struct err *e);
int um_snapshot_hold(struct engine *engine, struct engine_machine *m, struct engine_image *ret,
                     struct engine_snapshot_info *info, struct err *e);
int um_go_on(struct engine *engine, struct engine_machine *m, struct err *e);
int um_unbooked(struct engine *engine, int dirfd, int disk, uint64_t pages, struct map *ret);

/* volume.c: of struct engine */
int um_volume_attach(struct engine *engine, struct engine_machine *m, unsigned slot,
                     const struct engine_volume *v, struct err *e);
int um_volume_detach(struct engine *engine, struct engine_machine *m, unsigned slot, bool force,
                     struct err *e);
int um_volume_grow(struct engine *engine, struct engine_machine *m, unsigned slot, uint64_t size,
                   struct err *e);
int um_volume_copy(struct engine *engine, struct engine_machine *m, unsigned slot, int to,
                   int marks, struct err *e);
int um_volume_copied(struct engine *engine, struct engine_machine *m, unsigned slot, struct err *e);
