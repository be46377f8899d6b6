/*
 * What runs between clone3 and exec, in the parent's memory, on a stack of its own, while the
 * calling thread of the parent waits. So: system calls only (libc's setuid and friends would
 * signal the parent's threads), no allocation, no locks, nothing written but the job's result.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/macro.h"
#include "jail/cgroup.h"
#include "jail/filter.h"
#include "jail/jail.h"
#include "jail/jail_internal.h"

enum {
	STACK_SIZE = 32768,
	SIGNALS = 64,
	KERNEL_SIGSET = 8, /* bytes */
};

#if !defined(__x86_64__)
#error "child_run() needs its clone3 stub for this cpu"
#endif

pid_t child_run(struct clone_args *ca, void (*fn)(void *), void *arg)
{
	char stack[STACK_SIZE] __attribute__((aligned(16)));
	uint64_t all = ~0ull, old;
	register void (*child)(void *) __asm__("r12") = fn;
	register void *child_arg __asm__("r13") = arg;
	long r = SYS_clone3;

	ca->flags |= CLONE_VM | CLONE_VFORK;
	ca->stack = (uintptr_t)stack;
	ca->stack_size = sizeof(stack);
	/* A handler of ours must not run over there. Raw, because libc leaves two signals open. */
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, KERNEL_SIGSET);
	__asm__ volatile("syscall\n\t"
	                 "test %%rax, %%rax\n\t"
	                 "jnz 1f\n\t"
	                 "xor %%ebp, %%ebp\n\t"
	                 "mov %%r13, %%rdi\n\t"
	                 "call *%%r12\n\t"
	                 "ud2\n"
	                 "1:"
	                 : "+a"(r)
	                 : "D"(ca), "S"(sizeof(*ca)), "r"(child), "r"(child_arg)
	                 : "rcx", "r11", "memory");
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, KERNEL_SIGSET);
	return (pid_t)r;
}

static _Noreturn void leave(int code)
{
	for (;;)
		syscall(SYS_exit_group, code);
}

static _Noreturn void fail(struct child_job *job, enum child_step step)
{
	job->err = errno;
	job->step = step;
	leave(127);
}

#define MUST(step, call)                 \
	do {                             \
		if ((call) < 0)          \
			fail(job, step); \
	} while (0)

static int put(int dir, const char *path, const char *text)
{
	long fd = syscall(SYS_openat, dir, path, O_WRONLY | O_CLOEXEC), r;

	if (fd < 0)
		return -1;
	r = syscall(SYS_write, fd, text, strlen(text));
	syscall(SYS_close, fd);
	return r < 0 ? -1 : 0;
}

/*
 * Ends with the root being a tmpfs that is empty, read-only, closed to all, and alone. It is
 * mounted over /proc only because we know that directory to be there.
 */
static int build_root(void)
{
	unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME;

	if (syscall(SYS_mount, NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    syscall(SYS_mount, "panda", "/proc", "tmpfs", flags, "mode=000,size=4k,nr_inodes=1") <
	        0 ||
	    syscall(SYS_chdir, "/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 ||
	    syscall(SYS_umount2, ".", MNT_DETACH) < 0)
		return -1;
	return (int)syscall(SYS_chdir, "/");
}

/* One uid, ourselves: all that an unprivileged process may map. */
static int map_ids(const struct id_maps *maps)
{
	if (put(AT_FDCWD, "/proc/self/setgroups", "deny") < 0 ||
	    put(AT_FDCWD, "/proc/self/uid_map", maps->uid) < 0)
		return -1;
	return put(AT_FDCWD, "/proc/self/gid_map", maps->gid);
}

_Noreturn void child_namespaces(void *arg)
{
	struct ns_job *job = arg;

	if (job->maps && map_ids(job->maps) < 0)
		goto failed;
	for (size_t i = 0; i < job->n; i++) {
		/* Stays in the table we share with the parent. */
		job->fds[i] =
		    (int)syscall(SYS_openat, AT_FDCWD, job->names[i], O_RDONLY | O_CLOEXEC);
		if (job->fds[i] < 0)
			goto failed;
	}
	if (job->root && build_root() < 0)
		goto failed;
	leave(0);
failed:
	job->err = errno;
	leave(1);
}

/* Ignored signals stay ignored over an exec; a machine starts with none of our choices. */
static void reset_signals(struct child_job *job)
{
	struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} dfl = {0};

	for (int sig = 1; sig <= SIGNALS; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			MUST(STEP_SIGNALS,
			     syscall(SYS_rt_sigaction, sig, &dfl, NULL, KERNEL_SIGSET));
}

static void enter_namespaces(struct child_job *job)
{
	const struct jail *j = job->jail;

	for (size_t i = 0; i < job->njoins; i++)
		MUST(STEP_CGROUP, put(job->joins[i].tree, job->joins[i].path, "0"));
	if (!(j->have & JAIL_NAMESPACES))
		return;
	for (size_t i = 0; i < ARRAY_LEN(job->ns); i++)
		if (job->ns[i] >= 0)
			MUST(STEP_NAMESPACES, syscall(SYS_setns, job->ns[i], 0));
	/* Now, not at clone: its root shall be the machine's own group, which we are in since. */
	MUST(STEP_NAMESPACES, syscall(SYS_unshare, CLONE_NEWCGROUP));
	/* From here on there are no paths. */
	MUST(STEP_ROOT, j->userns ? build_root() : syscall(SYS_setns, j->mnt, CLONE_NEWNS));
}

static void drop_capabilities(struct child_job *job)
{
	unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
	                     SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
	                     SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};
	const struct jail_spec *spec = job->spec;
	bool privileged = job->jail->have & (JAIL_UID | JAIL_NAMESPACES);

	if (privileged) {
		MUST(STEP_CAPS, syscall(SYS_prctl, PR_SET_SECUREBITS, bits, 0, 0, 0));
		for (unsigned long cap = 0; cap < 64; cap++) {
			if (syscall(SYS_prctl, PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
				continue;
			if (errno == EINVAL)
				break; /* past the last one this kernel knows */
			fail(job, STEP_CAPS);
		}
	}
	if (job->jail->have & JAIL_UID) {
		MUST(STEP_UID, syscall(SYS_setgroups, 0, NULL));
		MUST(STEP_UID, syscall(SYS_setresgid, spec->gid, spec->gid, spec->gid));
		MUST(STEP_UID, syscall(SYS_setresuid, spec->uid, spec->uid, spec->uid));
	}
	/* The ambient set goes with the permitted one. */
	MUST(STEP_CAPS, syscall(SYS_capset, &head, none));
	MUST(STEP_NO_NEW_PRIVS, syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

/* All sources move above the numbers wanted, so no dup2 can step on a source not yet moved. */
static int arrange_fds(struct child_job *job)
{
	const struct jail_spec *spec = job->spec;
	int high[JAIL_FDS_MAX];
	long exe;

	exe = syscall(SYS_fcntl, spec->exe_fd, F_DUPFD_CLOEXEC, JAIL_FD_LIMIT);
	MUST(STEP_FDS, exe);
	for (size_t i = 0; i < spec->nfds; i++) {
		high[i] = (int)syscall(SYS_fcntl, spec->fds[i].fd, F_DUPFD_CLOEXEC, JAIL_FD_LIMIT);
		MUST(STEP_FDS, high[i]);
	}
	MUST(STEP_FDS, syscall(SYS_close_range, 0, JAIL_FD_LIMIT - 1, 0));
	for (size_t i = 0; i < spec->nfds; i++)
		MUST(STEP_FDS, syscall(SYS_dup3, high[i], spec->fds[i].as, 0));
	/* The rest goes at exec; our own are marked already, foreign ones may not be. */
	MUST(STEP_FDS, syscall(SYS_close_range, JAIL_FD_LIMIT, ~0u, CLOSE_RANGE_CLOEXEC));
	return (int)exe;
}

_Noreturn void child_machine(void *arg)
{
	struct child_job *job = arg;
	const struct jail_spec *spec = job->spec;
	const struct jail *j = job->jail;
	uint64_t none = 0;
	int exe;

	reset_signals(job);
	if (j->userns && (j->have & JAIL_NAMESPACES))
		MUST(STEP_USERNS, map_ids(&job->maps));
	/* A wish, not a wall: an unprivileged starter that is worse off itself cannot lower it. */
	(void)put(AT_FDCWD, "/proc/self/oom_score_adj", job->oom_score_adj);
	enter_namespaces(job);
	MUST(STEP_SIGNALS, syscall(SYS_setsid));
	if (spec->pin) {
		unsigned long cpus[CPU_SETSIZE / (8 * sizeof(long))] = {0};

		cpus[spec->cpu / (8 * sizeof(long))] = 1ul << spec->cpu % (8 * sizeof(long));
		MUST(STEP_CPU, syscall(SYS_sched_setaffinity, 0, sizeof(cpus), cpus));
	}
	if (spec->no_aslr)
		MUST(STEP_LIMITS, syscall(SYS_personality, PER_LINUX | ADDR_NO_RANDOMIZE));
	drop_capabilities(job);
	if (job->landlock >= 0)
		MUST(STEP_LANDLOCK, syscall(SYS_landlock_restrict_self, job->landlock, 0));
	exe = arrange_fds(job);
	for (size_t i = 0; i < job->nrlimits; i++)
		MUST(STEP_LIMITS,
		     syscall(SYS_prlimit64, 0, job->rlimits[i].what, &job->rlimits[i].v, NULL));
	MUST(STEP_SIGNALS, syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, KERNEL_SIGSET));
	if (spec->filter) {
		struct sock_fprog prog = {.len = spec->filter->n, .filter = spec->filter->insns};

		MUST(STEP_SECCOMP, syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog));
	}
	syscall(SYS_execveat, exe, "", spec->argv, spec->envp, AT_EMPTY_PATH,
	        spec->filter ? spec->filter->ticket : 0);
	fail(job, STEP_EXEC);
}
