/*
 * jail/jail.h - starts a machine process that can reach nothing but what it was handed
 * A jailed process has a uid of its own, is PID 1 of its own pid namespace (when it dies, all it
 * started die), sees an empty read-only root, an empty network, no capability, a seccomp
 * allow-list, Landlock, a control group, and exactly the fds of its spec. It is not tied to the
 * life of the process that started it: machines outlive pandad. docs/design/jail.md has the
 * reasons.
 *
 * A struct jail is not changed after jail_new() (but for one atomic hint): threads may share it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"
#include "jail/cgroup.h"
#include "jail/filter.h"
#include "jail/uid.h"

struct jail;

/* What a jail is made of. A host may lack some; a spec says which it will not go without. */
enum {
	JAIL_UID = 1 << 0,        /* a uid and gid that no other process has */
	JAIL_NAMESPACES = 1 << 1, /* pid, mount (empty root), net, ipc, uts, cgroup */
	JAIL_CG_MEMORY = 1 << 2,
	JAIL_CG_CPU = 1 << 3,
	JAIL_CG_PIDS = 1 << 4,
	JAIL_NO_NEW_PRIVS = 1 << 5, /* with it: every capability set empty, securebits locked */
	JAIL_SECCOMP = 1 << 6,
	JAIL_LANDLOCK = 1 << 7,
	JAIL_ALL = (1 << 8) - 1,
	JAIL_PARTS = 8,
};

enum {
	JAIL_UID_BASE = 0x70000000, /* above systemd's container ranges, below 2^31 */
	JAIL_UID_COUNT = 65536,
	JAIL_FDS_MAX = 64,         /* fds handed over */
	JAIL_FD_LIMIT = 256,       /* their numbers inside stay below */
	JAIL_MEMORY_MIN = 4 << 20, /* a limit below could kill the starter, see jail.md */
	JAIL_NOFILE_DEFAULT = 1024,
	JAIL_OOM_SCORE_ADJ = 500, /* when the host runs dry, machines go before services */
};

struct jail_config {
	const char *run_dir; /* exists; holds the lock file of the uids. Borrowed for the call */
	const char *cgroup_parent; /* "panda" when NULL */
	uid_t uid_base;            /* JAIL_UID_BASE when 0 */
	unsigned uid_count;        /* JAIL_UID_COUNT when 0 */
	/* What tenants share; the groups that are there get it now. NULL: this is no such host. */
	const struct cg_share *share;
	bool no_spawns; /* there is no root then, and nothing can be spawned */
};

/*
 * Takes some ms: finds out what the host has and makes the empty root all machines share. A
 * process that wants to be undumpable says so before: spawning restores what was so then.
 */
int jail_new(const struct jail_config *cfg, struct jail **ret, struct err *e);
/* Machines that run go on. */
void jail_free(struct jail *j);

/* Control groups of machines by id: limits, stats, kill, leftovers. Lives as long as j. */
const struct cg_host *jail_cgroups(const struct jail *j);

struct jail_part {
	unsigned bit; /* JAIL_* */
	const char *name;
	bool ok;
	char detail[160]; /* what is there, or why it is missing */
	const char *todo; /* what to do about it; NULL when ok */
};

/* One row per part that this host and this process can provide or not, for `panda doctor`. */
void jail_probe(const struct jail *j, struct jail_part ret[JAIL_PARTS]);

/* A uid for the next machine, see jail/uid.h; drop it when jail_spawn() has returned. */
int jail_uid_take(struct jail *j, struct jail_uid *ret, struct err *e);

struct jail_fd {
	int fd; /* here */
	int as; /* inside, < JAIL_FD_LIMIT */
};

struct jail_spec {
	const char *id;
	const char *tenant; /* whose share of the host it uses, see cg_create() */
	uid_t uid;          /* from jail_uid_take(); ignored where the host lacks JAIL_UID */
	gid_t gid;
	/*
	 * A static ELF file, executable but better not readable by others (mode 0711): then the
	 * kernel marks the process undumpable at exec, which nothing before the exec could do.
	 */
	int exe_fd;
	char *const *argv;
	char *const *envp;
	const struct jail_fd *fds;
	size_t nfds;
	struct cg_limits limits; /* memory_max: 0 or at least JAIL_MEMORY_MIN */
	unsigned nofile_max;     /* 0: JAIL_NOFILE_DEFAULT */
	uint64_t file_max;       /* no file it writes gets larger; 0: no limit */
	bool pin;                /* run on this cpu only: */
	unsigned cpu;
	bool no_aslr; /* fixed addresses, as the user-mode kernel needs them */
	const struct jail_filter *filter;
	unsigned want; /* JAIL_*: refuse to start without */
};

/*
 * Returns once the new program runs (after its exec). Caller owns the pidfd (close-on-exec) and
 * reaps the child. On failure nothing is left behind. Errors: "jail_unavailable" (a wanted part is
 * missing, the text says why), "machine_exists", "jail_failed" (the text names the step).
 */
int jail_spawn(struct jail *j, const struct jail_spec *spec, int *ret_pidfd, pid_t *ret_pid,
               struct err *e);

/*
 * For one that was spawned before the caller knew what for, and has one thread yet: it gets the
 * limits of this spec and its cpu. What the process itself carries, file_max and RLIMIT_NPROC (from
 * pids_max), stays as it was. "jail_failed".
 */
int jail_limit(struct jail *j, const struct jail_spec *spec, pid_t pid, struct err *e);
