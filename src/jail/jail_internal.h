/*
 * jail/jail_internal.h - what the files of this room share
 */
#pragma once
#include <linux/sched.h>
#include <signal.h>
#include <sys/resource.h>

#include "jail/cgroup.h"
#include "jail/jail.h"
#include "jail/uid.h"

struct jail {
	struct cg_host *cg;
	unsigned have; /* JAIL_* */
	bool userns;   /* not root: namespaces come with a user namespace of one uid */
	int mnt;       /* mount namespace with the empty root; -1: not root, or none to be had */
	struct uid_range uids; /* its dir is ours */
	bool dumpable; /* were we, before the first spawn; read later it might be another thread's
	                  child */
	int landlock_abi;
	int ns_err; /* errno of the attempt to make namespaces; 0 when it worked */
	bool no_spawns;
};

/* Landlock. The headers of Debian 12 stop at ABI 2, so these are raw calls with our constants. */
int landlock_abi(void); /* -errno when there is none */
/* An fd of rules that allow nothing but executing exe_fd; -errno. */
int landlock_rules(int abi, int exe_fd);

/* The steps of a child, in their order; a failure is reported as the step it happened in. */
enum child_step {
	STEP_NONE,
	STEP_SIGNALS,
	STEP_USERNS,
	STEP_CGROUP,
	STEP_NAMESPACES,
	STEP_ROOT,
	STEP_CPU,
	STEP_LIMITS,
	STEP_CAPS,
	STEP_UID,
	STEP_NO_NEW_PRIVS,
	STEP_LANDLOCK,
	STEP_FDS,
	STEP_SECCOMP,
	STEP_EXEC,
};

enum { CHILD_RLIMITS_MAX = 9 };

/* The texts of uid_map and gid_map. */
struct id_maps {
	char uid[64], gid[64];
};

/* Filled by the parent; the child shares its memory, reads all of it and writes the result. */
struct child_job {
	const struct jail_spec *spec;
	const struct jail *jail;
	struct cg_join joins[CG_TREES_MAX];
	size_t njoins;
	int ns[3]; /* net, ipc, uts to enter; -1 for none */
	int landlock;
	struct {
		int what;
		struct rlimit v;
	} rlimits[CHILD_RLIMITS_MAX];
	size_t nrlimits;
	struct id_maps maps; /* only for a user namespace */
	char oom_score_adj[8];
	/* result */
	enum child_step step; /* STEP_NONE: all went well */
	int err;
};

/* Namespaces made by a helper that shares our fd table: it leaves the opened fds there. */
struct ns_job {
	const struct id_maps *maps; /* NULL: no user namespace */
	bool root;                  /* build the empty root in the (new) mount namespace */
	const char *const *names;
	int *fds;
	size_t n;
	int err;
};

/*
 * clone3 with CLONE_VM and CLONE_VFORK added: fn runs on a stack of its own in our memory while
 * the calling thread waits, until it execs or exits. Returns the pid or -errno.
 */
pid_t child_run(struct clone_args *ca, void (*fn)(void *), void *arg);

/* Runs child_namespaces() with these CLONE_NEW*. The fds opened are the caller's; -errno. */
int namespaces_make(unsigned long flags, struct ns_job *job);
void id_maps_self(struct id_maps *ret);

_Noreturn void child_machine(void *job);    /* struct child_job */
_Noreturn void child_namespaces(void *job); /* struct ns_job */
