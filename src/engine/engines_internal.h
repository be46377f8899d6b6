/*
 * engine/engines_internal.h - between the files of the engine
 */
#pragma once
#include <pthread.h>
#include <stdio.h>

#include "engine/engines.h"
#include "jail/filter.h"
#include "layers/map.h"
#include "machine/engine.h"
#include "wire/control.h"

/* How machines of one engine are started. All that comes later is the same for both engines. */
struct engine_recipe {
	const char *name, *isolation;
	const char *program; /* argv[0] */
	const struct jail_rules *rules;
	const char *const *boot; /* the kernel's command line for a cold boot, ends with NULL */
	bool kvm;                /* it is handed /dev/kvm and a kernel to load; has vcpus */
	/* Kernel process and guest processes hand over to each other all the time: one cpu, and
	 * the addresses of one life are those of the next. */
	bool one_cpu, no_aslr;
};

extern const struct engine_recipe um_recipe, kvm_recipe;

/* An engine that works here: its program is open, its rules are compiled. */
struct engine_program {
	const struct engine_recipe *recipe;
	struct jail_filter filter;
	int program_fd;
	int kvm_fd, kernel_fd; /* of engine kvm; else -1 */
	char build[65];        /* identity of the guest kernel */
};

/* Kinds: kernel_missing, kvm_unusable, um_unusable. */
int engine_program_init(struct engine_program *r, const struct engine_recipe *k,
                        const struct engines_config *cfg, struct err *e);
void engine_program_fini(struct engine_program *r);

/* A machine process that waits for its greeting. It ends when this connection does without one. */
struct machine_process {
	const struct engine_program *program;
	pid_t pid;
	int pidfd, control, pagemap;
};

#define MACHINE_PROCESS_EMPTY                                        \
	{                                                            \
		.pid = -1, .pidfd = -1, .control = -1, .pagemap = -1 \
	}

struct prepared_process {
	struct prepared_process *next;
	struct machine_process process;
	char id[ENGINE_ID_MAX + 1];
};

struct tenant_move;

/* tenant.c: machines that wait to be moved to where their tenant's are. */
struct tenant_moves {
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t more, done;
	struct tenant_move *first;
	const char *at_work; /* id of the one that is being moved */
	bool running, ending;
	pthread_t thread;
};

void tenant_moves_init(struct tenant_moves *t);
void tenant_moves_fini(struct tenant_moves *t);

struct local_engines {
	struct engines engines;
	struct tenant_moves moves;
	bool shared;                       /* each machine is its tenant's, who share the host */
	pthread_mutex_t lock;              /* of the next line */
	struct prepared_process *prepared; /* processes made ahead */
	struct jail *jail;
	int run_dirfd;
	unsigned want;
	struct engine list[ENGINES_MAX]; /* the same order as: */
	struct engine_program programs[ENGINES_MAX];
};

enum {
	START_TIMEOUT_MS = 30000, /* a cold boot on a busy host; a restore takes milliseconds */
};

/* Starts one that listens in this directory, and connects to it. s is NULL when it is not known yet
 * which machine it will be. */
int machine_process_start(struct local_engines *local, const struct engine_program *w,
                          const char *id, int dirfd, const struct engine_start *s,
                          struct machine_process *ret, struct err *e);
/* The one that was made ahead for this machine, if it lives and fits; it has its limits then. */
bool machine_process_take(struct local_engines *local, const struct engine_program *w,
                          const struct engine_start *s, struct machine_process *ret);
/* Ends it, so that another one can have its id. */
void machine_process_end(struct local_engines *local, const char *id, struct machine_process *p);
/* Lets go of it; it goes on if it has been greeted. */
void machine_process_fini(struct machine_process *p);

/* Its groups are the caller's from now on. */
void tenant_moves_forget(struct local_engines *local, const char *id);

/* process.c, engines.c, tenant.c: of struct engines */
void local_belongs(struct engines *engines, const char *id, const char *tenant);
int local_prepare(struct engines *engines, const char *id, int dirfd, struct err *e);
void local_forget(struct engines *engines, const char *id);
int local_stop(struct engines *engines, const char *id, pid_t pid, struct err *e);

/* A message with its fds, built step by step. */
struct control_packet {
	struct ctl_msg msg;
	int fds[CTL_FDS_MAX];
};

/* -E2BIG when it is full. fd is borrowed until the send. */
int control_packet_add(struct control_packet *p, int fd, unsigned slot);

/*
 * Sends and waits for the answer. alive is a pidfd: its death ends the waiting with -ESRCH.
 * -ETIMEDOUT after timeout_ms, -EPROTO when the answer makes no sense.
 */
int control_call(int control, int alive, const struct control_packet *p, unsigned timeout_ms,
                 struct ctl_msg *ret);
/* What a machine says about how it went: 0 or a negative errno. */
int control_done(const struct ctl_msg *answer);
/* A message without more to it. Kinds: machine_gone, machine_silent. */
int control_ask(struct engine_machine *m, enum ctl_type type, struct ctl_msg *ret, struct err *e);
enum { CONTROL_CALL_TIMEOUT_MS = 30000 };

/* The file of a layer of a disk that the machine writes, within its directory. */
static inline void layer_file_name(char buf[32], size_t disk, size_t layer)
{
	snprintf(buf, 32, ENGINE_DISKS "/disk%zu-%zu", disk, layer);
}

static inline uint64_t pages_of(uint64_t bytes)
{
	return bytes / MAP_PAGE;
}

/* The machine can do with an fd whatever the fd allows, so it must not allow more than we mean. */
int check_volume(const struct engine_volume *v, unsigned slot, struct err *e);

/* snapshot.c: of struct engines */
int local_snapshot(struct engines *engines, struct engine_machine *m, struct engine_image *ret,
                   struct engine_snapshot_info *info, struct err *e);
int local_snapshot_hold(struct engines *engines, struct engine_machine *m, struct engine_image *ret,
                        struct engine_snapshot_info *info, struct err *e);
int local_go_on(struct engines *engines, struct engine_machine *m, struct err *e);
int local_unbooked(struct engines *engines, int dirfd, int disk, uint64_t pages, struct map *ret);

/* volume.c: of struct engines */
int local_volume_attach(struct engines *engines, struct engine_machine *m, unsigned slot,
                        const struct engine_volume *v, struct err *e);
int local_volume_detach(struct engines *engines, struct engine_machine *m, unsigned slot,
                        bool force, struct err *e);
int local_volume_grow(struct engines *engines, struct engine_machine *m, unsigned slot,
                      uint64_t size, struct err *e);
int local_volume_copy(struct engines *engines, struct engine_machine *m, unsigned slot, int to,
                      int marks, struct err *e);
int local_volume_copied(struct engines *engines, struct engine_machine *m, unsigned slot,
                        struct err *e);
