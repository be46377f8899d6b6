#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
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

struct jail_prep {
	const struct cg_host *cg;
	int ns[ARRAY_LEN(ns_names)];
	char id[CG_ID_MAX + 1];
};

void id_maps_self(struct id_maps *ret)
{
	snprintf(ret->uid, sizeof(ret->uid), "%u %u 1", geteuid(), geteuid());
	snprintf(ret->gid, sizeof(ret->gid), "%u %u 1", getegid(), getegid());
}

int namespaces_make(unsigned long flags, struct ns_job *job)
{
	/* No exit signal: nobody who waits for SIGCHLD shall hear of this one. */
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
	for (size_t i = 0; i < job->n; i++)
		closep(&job->fds[i]);
	return -job->err;
}

static void prep_close(struct jail_prep *p)
{
	for (size_t i = 0; i < ARRAY_LEN(p->ns); i++)
		closep(&p->ns[i]);
	free(p);
}

void jail_prep_free(struct jail_prep *p)
{
	if (!p)
		return;
	cg_remove(p->cg, p->id, REMOVE_TIMEOUT_MS);
	prep_close(p);
}

int jail_prepare(struct jail *j, const char *id, struct jail_prep **ret, struct err *e)
{
	struct jail_prep *p;
	struct ns_job job;
	int r;

	if (j->no_spawns)
		return err_set(e, ENOTSUP, "jail_failed",
		               "this jail was made without a place for %s", id);
	if (!cg_id_valid(id))
		return err_set(e, EINVAL, "bad_id", "a machine id has 1 to %d of A-Za-z0-9_-",
		               CG_ID_MAX);
	p = malloc(sizeof(*p));
	if (!p)
		return err_set(e, ENOMEM, "no_memory", "no memory to prepare machine %s", id);
	*p = (struct jail_prep){.cg = j->cg, .ns = {-1, -1, -1}};
	snprintf(p->id, sizeof(p->id), "%s", id);
	r = cg_create(j->cg, id);
	if (r < 0) {
		prep_close(p);
		if (r == -EEXIST)
			return err_set(e, EEXIST, "machine_exists",
			               "there is a control group of machine %s already", id);
		return err_set(e, -r, "jail_failed", "cannot make a control group for %s: %s", id,
		               strerror(-r));
	}
	/* A process that is not root gets them from clone3, together with its user namespace. */
	if ((j->have & JAIL_NAMESPACES) && !j->userns) {
		job = (struct ns_job){.names = ns_names, .fds = p->ns, .n = ARRAY_LEN(ns_names)};
		r = namespaces_make(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS, &job);
		if (r < 0) {
			jail_prep_free(p);
			return err_set(e, -r, "jail_failed", "cannot make namespaces for %s: %s",
			               id, strerror(-r));
		}
	}
	*ret = p;
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

static int check_spec(const struct jail_spec *s, struct err *e)
{
	const char *what = NULL;

	if (!cg_id_valid(s->id))
		what = "the id";
	else if (!s->argv || !s->argv[0] || !s->envp)
		what = "argv or envp";
	else if (s->nfds > JAIL_FDS_MAX)
		what = "the number of fds";
	else if (s->limits.memory_max && s->limits.memory_max < JAIL_MEMORY_MIN)
		what = "the memory limit (too small to start anything)";
	else if (s->pin && s->cpu >= CPU_SETSIZE)
		what = "the cpu";
	else if ((s->want & JAIL_SECCOMP) && !s->filter)
		what = "the missing seccomp filter";
	for (size_t i = 0; !what && i < s->nfds; i++) {
		if (s->fds[i].as < 0 || s->fds[i].as >= JAIL_FD_LIMIT)
			what = "an fd number";
		for (size_t k = 0; k < i; k++)
			if (s->fds[i].as == s->fds[k].as)
				what = "an fd number used twice";
	}
	return what ? err_set(e, EINVAL, "bad_spec", "%s in a jail's spec is not possible", what)
	            : 0;
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
	autoclose int group = cg_v2_dir(j->cg, job->spec->id);
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
	/* Its change of uid cleared the flag of the memory we shared: it is ours, so set it back.
	 */
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
	struct child_job job = {.spec = spec, .jail = j};
	struct jail_prep *p = spec->prep ? *spec->prep : NULL;
	autoclose int rules = -1;
	int r;

	r = check_spec(spec, e);
	if (r == 0)
		r = check_wanted(j, spec->want, e);
	if (r == 0 && p && strcmp(p->id, spec->id) != 0)
		r = err_set(e, EINVAL, "bad_spec", "%s was prepared, not %s", p->id, spec->id);
	if (r == 0 && !p)
		r = jail_prepare(j, spec->id, &p, e);
	if (r < 0)
		return r;

	r = cg_limit(j->cg, spec->id, &spec->limits);
	if (r < 0)
		r = err_set(e, -r, "jail_failed", "cannot set the limits of %s: %s", spec->id,
		            strerror(-r));
	if (r == 0 && (j->have & JAIL_LANDLOCK)) {
		rules = landlock_rules(j->landlock_abi, spec->exe_fd);
		if (rules < 0)
			r = err_set(e, -rules, "jail_failed", "cannot make Landlock rules: %s",
			            strerror(-rules));
	}
	if (r == 0) {
		job.landlock = rules;
		memcpy(job.ns, p->ns, sizeof(job.ns));
		cg_v1_joins(j->cg, spec->id, job.joins, &job.njoins);
		id_maps_self(&job.maps);
		snprintf(job.oom_score_adj, sizeof(job.oom_score_adj), "%d", JAIL_OOM_SCORE_ADJ);
		add_rlimits(&job);
		r = run(&job, ret_pidfd, ret_pid, e);
	}
	if (r < 0) {
		if (!spec->prep || !*spec->prep)
			jail_prep_free(p);
		return r;
	}
	if (spec->prep)
		*spec->prep = NULL;
	prep_close(p); /* the running process holds the namespaces now */
	return 0;
}
