#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "jail/jail_internal.h"

enum {
	REMOVE_TIMEOUT_MS = 2000,
	STACK_MAX = 8 << 20,
};

static const char *const ns_names[] = {"/proc/self/ns/net", "/proc/self/ns/ipc",
                                       "/proc/self/ns/uts"};

static const char *const step_names[] = {
    [STEP_SIGNALS] = "resetting signals and session",
    [STEP_USERNS] = "mapping ids",
    [STEP_CGROUP] = "entering the control groups",
    [STEP_NAMESPACES] = "entering the namespaces",
    [STEP_ROOT] = "entering the empty root",
    [STEP_CPU] = "pinning to the cpu",
    [STEP_LIMITS] = "setting limits",
    [STEP_CAPS] = "dropping capabilities",
    [STEP_UID] = "changing uid and gid",
    [STEP_NO_NEW_PRIVS] = "setting no_new_privs",
    [STEP_LANDLOCK] = "entering Landlock",
    [STEP_FDS] = "arranging fds",
    [STEP_SECCOMP] = "installing the seccomp filter",
    [STEP_EXEC] = "executing the program",
};

void id_maps_self(struct id_maps *ret)
{
	snprintf(ret->uid, sizeof(ret->uid), "%u %u 1", geteuid(), geteuid());
	snprintf(ret->gid, sizeof(ret->gid), "%u %u 1", getegid(), getegid());
}

int namespaces_make(unsigned long flags, struct ns_job *job)
{
	/* No exit signal: a thread that waits for SIGCHLD shall not hear of this one. */
	struct clone_args ca = {.flags = flags | CLONE_FILES};
	pid_t pid;

	for (size_t i = 0; i < job->n; i++)
		job->fds[i] = -1;
	pid = child_run(&ca, child_namespaces, job);
	if (pid < 0)
		return pid;
	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	if (!job->err)
		return 0;
	for (size_t i = 0; i < job->n; i++) {
		closep(&job->fds[i]);
		job->fds[i] = -1;
	}
	return -job->err;
}

/* "machine_exists", EEXIST: the id is taken. */
static int make_groups(struct jail *j, const struct jail_spec *spec, struct err *e)
{
	int r = cg_create(j->cg, spec->tenant, spec->id);

	if (r == -EEXIST)
		return err_set(e, EEXIST, "machine_exists",
		               "there is a control group of machine %s already", spec->id);
	if (r < 0)
		return err_set(e, -r, "jail_failed", "cannot make a control group for %s: %s",
		               spec->id, strerror(-r));
	return 0;
}

/* A process that is not root gets them from clone3, together with its user namespace. */
static int make_namespaces(struct jail *j, struct child_job *job, struct err *e)
{
	struct ns_job ns = {.names = ns_names, .fds = job->ns, .n = ARRAY_LEN(ns_names)};
	int r;

	if (!(j->have & JAIL_NAMESPACES) || j->userns)
		return 0;
	r = namespaces_make(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, &ns);
	if (r < 0)
		return err_set(e, -r, "jail_failed", "cannot make namespaces for %s: %s",
		               job->spec->id, strerror(-r));
	return 0;
}

static int limit_groups(struct jail *j, const struct jail_spec *spec, struct err *e)
{
	int r = cg_limit(j->cg, spec->tenant, spec->id, &spec->limits);

	if (r < 0)
		return err_set(e, -r, "jail_failed", "cannot set the limits of %s: %s", spec->id,
		               strerror(-r));
	return 0;
}

static int check_wanted(const struct jail *j, unsigned want, struct err *e)
{
	struct jail_part parts[JAIL_PARTS];

	if (!(want & ~j->have))
		return 0;
	jail_probe(j, parts);
	for (size_t i = 0; i < JAIL_PARTS; i++)
		if (!parts[i].ok && (want & parts[i].bit))
			return err_set(e, EOPNOTSUPP, "jail_unavailable", "no %s here: %s; %s",
			               parts[i].name, parts[i].detail, parts[i].todo);
	return err_set(e, EINVAL, "jail_unavailable", "unknown jail parts are wanted: %#x",
	               want & ~j->have);
}

static int bad_spec(const char *what, struct err *e)
{
	return err_set(e, EINVAL, "bad_spec", "%s in a jail's spec is not possible", what);
}

static int check_limits(const struct jail_spec *s, struct err *e)
{
	if (!cg_id_valid(s->id))
		return bad_spec("the id", e);
	if (s->limits.memory_max && s->limits.memory_max < JAIL_MEMORY_MIN)
		return bad_spec("the memory limit (too small to start anything)", e);
	if (s->pin && s->cpu >= CPU_SETSIZE)
		return bad_spec("the cpu", e);
	return 0;
}

static int check_spec(const struct jail_spec *s, struct err *e)
{
	const char *what = NULL;

	if (!s->argv || !s->argv[0] || !s->envp)
		what = "argv or envp";
	else if (s->nfds > JAIL_FDS_MAX)
		what = "the number of fds";
	else if ((s->want & JAIL_SECCOMP) && !s->filter)
		what = "the missing seccomp filter";
	for (size_t i = 0; !what && i < s->nfds; i++) {
		if (s->fds[i].as < 0 || s->fds[i].as >= JAIL_FD_LIMIT)
			what = "an fd number";
		for (size_t k = 0; k < i; k++)
			if (s->fds[i].as == s->fds[k].as)
				what = "an fd number used twice";
	}
	return what ? bad_spec(what, e) : check_limits(s, e);
}

/* Never above what we have ourselves: raising a hard limit takes a capability we may lack. */
static void add_rlimit(struct child_job *job, int what, rlim_t v)
{
	struct rlimit old;

	if (getrlimit(what, &old) == 0 && old.rlim_max < v)
		v = old.rlim_max;
	job->rlimits[job->nrlimits].what = what;
	job->rlimits[job->nrlimits++].v = (struct rlimit){v, v};
}

static void add_rlimits(struct child_job *job)
{
	const struct jail_spec *s = job->spec;

	/* 0 still feeds a crash through a core_pattern pipe, all memory of it; 1 does not. */
	add_rlimit(job, RLIMIT_CORE, 1);
	add_rlimit(job, RLIMIT_NOFILE, s->nofile_max ? s->nofile_max : JAIL_NOFILE_DEFAULT);
	add_rlimit(job, RLIMIT_STACK, STACK_MAX);
	add_rlimit(job, RLIMIT_MEMLOCK, 0);
	add_rlimit(job, RLIMIT_MSGQUEUE, 0);
	add_rlimit(job, RLIMIT_RTPRIO, 0);
	add_rlimit(job, RLIMIT_NICE, 0);
	if (s->file_max)
		add_rlimit(job, RLIMIT_FSIZE, s->file_max);
	/* Counts per uid, so it means the machine only where that has its own. */
	if ((job->jail->have & JAIL_UID) && s->limits.pids_max)
		add_rlimit(job, RLIMIT_NPROC, s->limits.pids_max);
}

static int run(struct child_job *job, int *ret_pidfd, pid_t *ret_pid, struct err *e)
{
	const struct jail *j = job->jail;
	autoclose int group = cg_v2_dir(j->cg, job->spec->tenant, job->spec->id);
	autoclose int pidfd = -1;
	struct clone_args ca = {.flags = CLONE_PIDFD, .exit_signal = SIGCHLD};
	pid_t pid;

	ca.pidfd = (uintptr_t)&pidfd;
	if (group >= 0) {
		ca.flags |= CLONE_INTO_CGROUP;
		ca.cgroup = (uint64_t)group;
	} else if (group != -ENOENT) {
		return err_set(e, -group, "jail_failed", "cannot open the control group of %s",
		               job->spec->id);
	}
	if (j->have & JAIL_NAMESPACES)
		ca.flags |= CLONE_NEWPID;
	if ((j->have & JAIL_NAMESPACES) && j->userns)
		ca.flags |=
		    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
	pid = child_run(&ca, child_machine, job);
	/* Its change of uid cleared the flag of the memory we shared: it is ours, so set it
	 * back. */
	if (j->dumpable)
		prctl(PR_SET_DUMPABLE, 1);
	if (pid < 0)
		return err_set(e, -pid, "jail_failed", "cannot start machine %s: %s", job->spec->id,
		               strerror(-pid));
	if (job->step != STEP_NONE) {
		siginfo_t si;

		while (waitid(P_PIDFD, (id_t)pidfd, &si, WEXITED | __WALL) < 0 && errno == EINTR)
			;
		return err_set(e, job->err, "jail_failed", "machine %s failed at %s: %s",
		               job->spec->id, step_names[job->step], strerror(job->err));
	}
	*ret_pidfd = take_fd(&pidfd);
	*ret_pid = pid;
	return 0;
}

int jail_spawn(struct jail *j, const struct jail_spec *spec, int *ret_pidfd, pid_t *ret_pid,
               struct err *e)
{
	struct child_job job = {.spec = spec, .jail = j, .ns = {-1, -1, -1}, .landlock = -1};
	int r;

	if (j->no_spawns)
		return err_set(e, ENOTSUP, "jail_failed",
		               "this jail was made without a place for %s", spec->id);
	r = check_spec(spec, e);
	if (r == 0)
		r = check_wanted(j, spec->want, e);
	if (r == 0)
		r = make_groups(j, spec, e);
	if (r < 0)
		return r;

	r = limit_groups(j, spec, e);
	if (r == 0)
		r = make_namespaces(j, &job, e);
	if (r == 0 && (j->have & JAIL_LANDLOCK)) {
		job.landlock = landlock_rules(j->landlock_abi, spec->exe_fd);
		if (job.landlock < 0)
			r = err_set(e, -job.landlock, "jail_failed",
			            "cannot make Landlock rules: %s", strerror(-job.landlock));
	}
	if (r == 0) {
		cg_v1_joins(j->cg, spec->tenant, spec->id, job.joins, &job.njoins);
		id_maps_self(&job.maps);
		snprintf(job.oom_score_adj, sizeof(job.oom_score_adj), "%d", JAIL_OOM_SCORE_ADJ);
		add_rlimits(&job);
		r = run(&job, ret_pidfd, ret_pid, e);
	}
	/* The running process holds them now. */
	closep(&job.landlock);
	for (size_t i = 0; i < ARRAY_LEN(job.ns); i++)
		closep(&job.ns[i]);
	if (r < 0)
		cg_remove(j->cg, spec->id, REMOVE_TIMEOUT_MS);
	return r;
}

int jail_limit(struct jail *j, const struct jail_spec *spec, pid_t pid, struct err *e)
{
	cpu_set_t cpus;
	int r = check_limits(spec, e);

	if (r == 0)
		r = limit_groups(j, spec, e);
	if (r < 0 || !spec->pin)
		return r;
	CPU_ZERO(&cpus);
	CPU_SET(spec->cpu, &cpus);
	if (sched_setaffinity(pid, sizeof(cpus), &cpus) < 0)
		return err_set(e, errno, "jail_failed", "cannot bind machine %s to cpu %u: %s",
		               spec->id, spec->cpu, strerror(errno));
	return 0;
}
