/*
 * What a jail costs, part by part: jail-bench <jail-child> [rounds]. Needs root. Prints
 * microseconds; docs/design/jail.md quotes them.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/macro.h"
#include "jail/jail_internal.h"

enum {
	ROUNDS_MAX = 10000,
	MANY_FDS = 4000,
	BIG_PARENT = 512 << 20,
};

static const struct jail_rule rules[] = {
    {.name = "brk"},
    {.name = "arch_prctl"},
    {.name = "set_tid_address"},
    {.name = "rseq"},
    {.name = "set_robust_list"},
    {.name = "prlimit64"},
    {.name = "readlink"},
    {.name = "readlinkat"},
    {.name = "getrandom"},
    {.name = "mprotect"},
    {.name = "newfstatat"},
    {.name = "write"},
    {.name = "mmap"},
    {.name = "munmap"},
    {.name = "futex"},
    {.name = "ppoll"},
    {.name = "epoll_pwait"},
    {.name = "epoll_ctl"},
    {.name = "read"},
    {.name = "pread64"},
    {.name = "pwrite64"},
    {.name = "recvmsg"},
    {.name = "sendmsg"},
    {.name = "timer_create"},
    {.name = "timer_settime"},
    {.name = "clock_gettime"},
    {.name = "rt_sigreturn"},
    {.name = "rt_sigprocmask"},
    {.name = "rt_sigaction"},
    {.name = "sigaltstack"},
    {.name = "clone", .args = {{JAIL_SET, 0, 0, CLONE_NEWUSER}}},
};

static uint64_t took[ROUNDS_MAX];
static unsigned rounds = 300;
static char run_dir[] = "/tmp/jail-bench-XXXXXX";
static struct jail *jail;
static struct jail_filter filter;
static int exe;
static const char *exe_path;

static void die(const char *what, const struct err *e)
{
	fprintf(stderr, "jail-bench: %s: %s\n", what, e && e->code ? e->text : strerror(errno));
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print(const char *name)
{
	qsort(took, rounds, sizeof(took[0]), by_value);
	printf("%-44s %8.1f %8.1f %8.1f\n", name, (double)took[0] / 1e3,
	       (double)took[rounds / 2] / 1e3, (double)took[rounds * 99 / 100] / 1e3);
}

static void bench_namespaces(const char *name, unsigned long flags, bool root)
{
	for (unsigned i = 0; i < rounds; i++) {
		struct ns_job job = {.root = root};
		uint64_t t = mono_ns();

		if (namespaces_make(flags, &job) < 0)
			die(name, NULL);
		took[i] = mono_ns() - t;
	}
	print(name);
}

static void bench_cgroups(void)
{
	const struct cg_host *cg = jail_cgroups(jail);
	struct cg_limits lim = {.memory_max = 64 << 20, .cpu_max_percent = 100, .pids_max = 64};
	static uint64_t limit[ROUNDS_MAX], gone[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++) {
		uint64_t a = mono_ns(), b, c;

		if (cg_create(cg, NULL, "bench") < 0)
			die("cg_create", NULL);
		b = mono_ns();
		if (cg_limit(cg, NULL, "bench", &lim) < 0)
			die("cg_limit", NULL);
		c = mono_ns();
		if (cg_remove(cg, "bench", 1000) < 0)
			die("cg_remove", NULL);
		took[i] = b - a;
		limit[i] = c - b;
		gone[i] = mono_ns() - c;
	}
	print("cg_create (all trees)");
	memcpy(took, limit, sizeof(took));
	print("cg_limit");
	memcpy(took, gone, sizeof(took));
	print("cg_remove");
}

static void bench_uid(void)
{
	for (unsigned i = 0; i < rounds; i++) {
		struct jail_uid u;
		struct err e = {0};
		uint64_t t = mono_ns();

		if (jail_uid_take(jail, &u, &e) < 0)
			die("jail_uid_take", &e);
		jail_uid_drop(&u);
		took[i] = mono_ns() - t;
	}
	print("jail_uid_take + drop");
}

enum what {
	SPAWN,
	LIMIT,
	RUN,
	CLEAN,
};

/* One machine from nothing to nothing; the time of one part of that. */
static uint64_t round_of(enum what what)
{
	char *argv[] = {"jail-child", "wait", NULL}, *envp[] = {NULL};
	struct jail_uid u;
	struct jail_spec spec = {
	    .id = "bench",
	    .exe_fd = exe,
	    .argv = argv,
	    .envp = envp,
	    .no_aslr = true,
	    .filter = &filter,
	    .want = JAIL_ALL,
	};
	uint64_t at[5];
	struct err e = {0};
	int pidfd;
	pid_t pid;

	at[0] = mono_ns();
	if (jail_uid_take(jail, &u, &e) < 0)
		die("jail_uid_take", &e);
	spec.uid = spec.gid = u.uid;
	if (jail_spawn(jail, &spec, &pidfd, &pid, &e) < 0)
		die("jail_spawn", &e);
	jail_uid_drop(&u);
	at[1] = mono_ns();
	spec.limits =
	    (struct cg_limits){.memory_max = 64 << 20, .cpu_max_percent = 100, .pids_max = 64};
	spec.pin = true;
	if (jail_limit(jail, &spec, pid, &e) < 0)
		die("jail_limit", &e);
	at[2] = mono_ns();
	pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
	if (waitid(P_PIDFD, (id_t)pidfd, &(siginfo_t){0}, WEXITED) < 0)
		die("waitid", NULL);
	at[3] = mono_ns();
	close(pidfd);
	if (cg_remove(jail_cgroups(jail), spec.id, 1000) < 0)
		die("cg_remove", NULL);
	at[4] = mono_ns();
	return at[what + 1] - at[what];
}

static void bench_round(const char *name, enum what what)
{
	for (unsigned i = 0; i < rounds; i++)
		took[i] = round_of(what);
	print(name);
}

static uint64_t cpu_us(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* On a busy host the times above are mostly waiting; this is what we make it work. */
static void bench_cpu(void)
{
	uint64_t t = cpu_us(RUSAGE_SELF) + cpu_us(RUSAGE_CHILDREN);

	for (unsigned i = 0; i < rounds; i++)
		round_of(SPAWN);
	t = cpu_us(RUSAGE_SELF) + cpu_us(RUSAGE_CHILDREN) - t;
	printf("%-44s %8s %8.1f   (mean)\n", "cpu time of a whole life, spawn to remove", "",
	       (double)t / rounds);
}

/* The yardstick: the same program, vforked and executed with no jail at all. */
static void bench_plain(void)
{
	char *argv[] = {"jail-child", "exit", NULL}, *envp[] = {NULL};

	for (unsigned i = 0; i < rounds; i++) {
		uint64_t t = mono_ns();
		pid_t pid;

		if (posix_spawn(&pid, exe_path, NULL, NULL, argv, envp))
			die("posix_spawn", NULL);
		took[i] = mono_ns() - t;
		waitpid(pid, NULL, 0);
	}
	print("posix_spawn of the same program, no jail");
}

static void bench_heavy_parent(void)
{
	struct rlimit l;
	char *big;

	big = mmap(NULL, BIG_PARENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (big == MAP_FAILED)
		die("mmap", NULL);
	memset(big, 1, BIG_PARENT);
	bench_round("jail_spawn, 512 MiB parent", SPAWN);
	munmap(big, BIG_PARENT);
	getrlimit(RLIMIT_NOFILE, &l);
	l.rlim_cur = l.rlim_max;
	setrlimit(RLIMIT_NOFILE, &l);
	for (int i = 0; i < MANY_FDS; i++)
		if (fcntl(0, F_DUPFD_CLOEXEC, 300) < 0)
			die("dup", NULL);
	bench_round("jail_spawn, 4000 fds open", SPAWN);
	for (int fd = 300; fd < 300 + MANY_FDS + 16; fd++)
		close(fd);
}

static void clean_up(void)
{
	static const char *const trees[] = {"memory", "cpu", "cpuacct", "cpu,cpuacct",
	                                    "pids",   ".",   "unified"};
	char path[128];

	jail_free(jail);
	jail_filter_fini(&filter);
	for (size_t i = 0; i < ARRAY_LEN(trees); i++) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/panda-bench", trees[i]);
		rmdir(path);
	}
	snprintf(path, sizeof(path), "%s/uids.lock", run_dir);
	unlink(path);
	rmdir(run_dir);
}

int main(int argc, char **argv)
{
	struct jail_config cfg = {.run_dir = run_dir, .cgroup_parent = "panda-bench"};
	struct jail_rules list = {rules, ARRAY_LEN(rules)};
	struct err e = {0};
	uint64_t t;

	if (argc < 2 || geteuid() != 0) {
		fprintf(stderr, "usage (as root): jail-bench <jail-child> [rounds]\n");
		return 2;
	}
	if (argc > 2)
		rounds = (unsigned)atoi(argv[2]);
	if (rounds < 1 || rounds > ROUNDS_MAX)
		rounds = ROUNDS_MAX;
	exe_path = argv[1];
	exe = open(exe_path, O_RDONLY | O_CLOEXEC);
	if (exe < 0 || !mkdtemp(run_dir))
		die(argv[1], NULL);
	t = mono_ns();
	if (jail_filter_build(&list, 1, JAIL_DENY_ENOSYS, &filter, &e) < 0)
		die("jail_filter_build", &e);
	printf("%-44s %8s %8s %8s\n", "microseconds", "min", "p50", "p99");
	printf("%-44s %8s %8.1f   (once, %u instructions)\n", "jail_filter_build", "",
	       (double)(mono_ns() - t) / 1e3, filter.n);
	t = mono_ns();
	if (jail_new(&cfg, &jail, &e) < 0)
		die("jail_new", &e);
	printf("%-44s %8s %8.1f   (once)\n", "jail_new", "", (double)(mono_ns() - t) / 1e3);

	bench_namespaces("helper process alone", 0, false);
	bench_namespaces("... with CLONE_NEWUTS", CLONE_NEWUTS, false);
	bench_namespaces("... with CLONE_NEWIPC", CLONE_NEWIPC, false);
	bench_namespaces("... with CLONE_NEWPID", CLONE_NEWPID, false);
	bench_namespaces("... with CLONE_NEWNET", CLONE_NEWNET, false);
	bench_namespaces("... with CLONE_NEWNS", CLONE_NEWNS, false);
	bench_namespaces("... with CLONE_NEWNS and an empty root", CLONE_NEWNS, true);
	bench_cgroups();
	bench_uid();
	bench_plain();
	bench_round("jail_spawn (with uid)", SPAWN);
	bench_round("jail_limit", LIMIT);
	bench_round("kill and reap", RUN);
	bench_round("remove groups", CLEAN);
	bench_heavy_parent();
	bench_cpu();
	clean_up();
	return 0;
}
