/*
 * jail/cgroup.h - one control group per machine, on cgroup v2, v1, or a host that mixes both
 * In a tree that shares out cpu or io, a machine is below the group of its tenant,
 * <parent>/tenant.<hash>/<id>: tenants weigh the same, whatever they run. In the other trees of v1,
 * and where no tenant is named, it is <parent>/<id>.
 * Everything is found again by the machine's id, so a new process can adopt what a killed one made.
 * Nothing but the trees' fds is kept open. A struct cg_host is never changed after cg_open(), so
 * threads may share it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cg_host;

enum {
	CG_MEMORY = 1 << 0,
	CG_CPU = 1 << 1,
	CG_PIDS = 1 << 2,
	CG_CPUACCT = 1 << 3, /* v1 only; v2 counts cpu time without being asked */
	CG_IO = 1 << 4,      /* only where a share says an io weight */
	CG_TREES_MAX = 6,    /* the five above, each a tree of its own, and a v2 tree beside them */
	CG_ID_MAX = 64,
};

/* 0 means no limit. */
struct cg_limits {
	uint64_t memory_max;      /* bytes; swap is never given on top */
	unsigned cpu_max_percent; /* 100 is one whole cpu */
	unsigned pids_max;
};

/* 0 means: as the kernel has it. 100 is what a group weighs of which nothing is said. */
struct cg_share {
	unsigned cpu_weight;         /* of <parent>, against the other groups of the host */
	unsigned io_weight;          /* the same; 0: io is not shared out at all */
	unsigned tenant_cpu_percent; /* of all machines of one tenant; 100 is one whole cpu */
};

struct cg_stats {
	unsigned have; /* CG_*: which of the numbers below were there to be read */
	uint64_t memory_bytes;
	uint64_t memory_peak_bytes; /* 0 on v2 before 5.19 */
	uint64_t oom_kills;
	uint64_t cpu_ns;
	uint64_t pids;
};

/*
 * Finds the trees in a text like /proc/self/mountinfo (NULL: that file itself) and makes <parent>
 * (relative, like "panda") in each. A tree that cannot be written is left out and cg_why() says
 * why. share may be NULL. Caller owns *ret. Having no tree at all is not an error: cg_have() is 0.
 */
int cg_open(const char *mountinfo, const char *parent, const struct cg_share *share,
            struct cg_host **ret);
void cg_close(struct cg_host *h);

/* CG_* of what can be limited and counted here. */
unsigned cg_have(const struct cg_host *h);
/* "v1: memory cpu pids cpuacct; v2: kill", or "none". Lives as long as h. */
const char *cg_describe(const struct cg_host *h);
/* Why something is left out; empty when nothing is. Lives as long as h. */
const char *cg_why(const struct cg_host *h);

/* Letters, digits, '-' and '_', at most CG_ID_MAX of them: it becomes a directory name. */
bool cg_id_valid(const char *id);

/*
 * Writes what the share says of groups that are there, and removes those of tenants without a
 * machine: for the one process that makes machines below this parent, when it begins.
 */
void cg_settle(const struct cg_host *h);

/*
 * tenant is NULL: no tenant's; "": of one that is not known yet (these share one group). -EEXIST
 * when there is such a machine of this tenant already, in any tree; nothing is made then.
 */
int cg_create(const struct cg_host *h, const char *tenant, const char *id);
int cg_limit(const struct cg_host *h, const char *tenant, const char *id,
             const struct cg_limits *lim);

/*
 * The machine, which runs, becomes this tenant's, wherever it is now, and keeps its limits.
 * 0 also when it is there already, or gone. The kernel takes some ms for it (it waits until all
 * cpus have looked), so no request should wait. No other thread may do anything to this machine's
 * groups meanwhile. -ETIMEDOUT: some of its processes are where they were.
 */
int cg_move(const struct cg_host *h, const char *id, const char *tenant, unsigned timeout_ms);

/* -ENOENT when no tree has this id. */
int cg_stats(const struct cg_host *h, const char *id, struct cg_stats *ret);

/* Kills until no process is left. 0 also when the group is gone. -ETIMEDOUT: a process is left. */
int cg_kill(const struct cg_host *h, const char *id, unsigned timeout_ms);

/* Removes the empty group from every tree. 0 also when it is gone. -EBUSY: not empty in time. */
int cg_remove(const struct cg_host *h, const char *id, unsigned timeout_ms);

/*
 * For spawn: an fd of the machine's v2 directory (CLONE_INTO_CGROUP), or -ENOENT when the host has
 * no v2 tree; and the v1 `tasks` files, as tree fd plus a path, that a new process writes "0" to.
 * A single thread that moves itself that way takes no global lock; moving it by pid would.
 */
struct cg_join {
	int tree;
	char path[256];
};
int cg_v2_dir(const struct cg_host *h, const char *tenant, const char *id);
int cg_v1_joins(const struct cg_host *h, const char *tenant, const char *id, struct cg_join *ret,
                size_t *ret_n);
