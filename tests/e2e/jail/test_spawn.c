/*
 * The jail, from outside and from inside: needs root and starts real processes.
 * argv[1] is jail-child. Leftovers of a run that was killed are swept up by the next one.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"
#include "jail/jail.h"

#define PARENT "panda-test"

enum {
	DEADLINE_MS = 20000,
	TEST_UIDS = 0x7ff00000, /* a range of our own */
	TEXT_MAX = 1 << 16,
};

/* What jail-child and the start-up code of a static glibc program need. */
static const struct jail_rule child_rules[] = {
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
    {.name = "fstat"},
    {.name = "write"},
    {.name = "mmap"},
    {.name = "munmap"},
    {.name = "fcntl"},
    {.name = "capget"},
    {.name = "prctl"},
    {.name = "getpid"},
    {.name = "getppid"},
    {.name = "getsid"},
    {.name = "getuid"},
    {.name = "geteuid"},
    {.name = "getgid"},
    {.name = "getgroups"},
    {.name = "personality"},
    {.name = "rt_sigprocmask"},
    {.name = "rt_sigaction"},
    {.name = "sched_getaffinity"},
    {.name = "openat"},
    {.name = "open"},
    {.name = "mkdir"},
    {.name = "ioctl"},
    {.name = "close"},
    {.name = "pause"},
    {.name = "getdents64"},
    {.name = "gettid"},
    {.name = "socket", .args = {{JAIL_EQ, 0, AF_UNIX, 0}}},
    /* fork, but never into a namespace */
    {.name = "clone", .args = {{JAIL_SET, 0, 0, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID}}},
};

static const char *child_path;
static const char run_dir[] = "/run/panda-jail-test"; /* fixed: the next run finds a killed one's */
static struct jail *jail;
static struct jail_filter filter;
static int exe = -1;
static int skipped;
static unsigned serial;

/* JAIL_*: the parts this host has. */
static unsigned parts_here(void)
{
	struct jail_part parts[JAIL_PARTS];
	unsigned have = 0;

	jail_probe(jail, parts);
	for (size_t i = 0; i < JAIL_PARTS; i++)
		have |= parts[i].ok ? parts[i].bit : 0;
	return have;
}

/* A part this host lacks: said aloud, and the exit code says it again. */
static bool lacks(unsigned part, const char *name)
{
	if (parts_here() & part)
		return false;
	print_message("SKIP: this host has no %s\n", name);
	skipped++;
	return true;
}

struct box {
	char id[CG_ID_MAX + 1];
	struct jail_uid uid;
	struct jail_spec spec;
	struct jail_fd fds[2];
	char *argv[4];
	char *envp[1];
	int out; /* read end of its fd 1 */
	int out_w;
	int pidfd;
	pid_t pid;
	struct err e;
};

static void box_init(struct box *b, char *what, char *arg)
{
	int p[2];

	*b = (struct box){.pidfd = -1, .argv = {"jail-child", what, arg, NULL}};
	snprintf(b->id, sizeof(b->id), "t%d-%u", getpid(), serial++);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	b->out = p[0];
	b->out_w = p[1];
	b->fds[0] = (struct jail_fd){.fd = p[1], .as = 1};
	b->uid.lock = -1;
	if (parts_here() & JAIL_UID)
		assert_int_equal(jail_uid_take(jail, &b->uid, &b->e), 0);
	b->spec = (struct jail_spec){
	    .id = b->id,
	    .uid = b->uid.uid,
	    .gid = b->uid.uid,
	    .exe_fd = exe,
	    .argv = b->argv,
	    .envp = b->envp,
	    .fds = b->fds,
	    .nfds = 1,
	    .limits = {.memory_max = 64 << 20, .cpu_max_percent = 150, .pids_max = 32},
	    .filter = &filter,
	    .want = parts_here(),
	};
}

static int box_spawn(struct box *b)
{
	int r = jail_spawn(jail, &b->spec, &b->pidfd, &b->pid, &b->e);

	jail_uid_drop(&b->uid);
	closep(&b->out_w);
	b->out_w = -1;
	return r;
}

static void box_start(struct box *b)
{
	if (box_spawn(b) < 0)
		fail_msg("%s: %s", b->e.kind, b->e.text);
}

/* Reads what it says until `until` has come, or until the end when that is NULL. */
static char *box_read(struct box *b, const char *until)
{
	uint64_t end = mono_ms() + DEADLINE_MS;
	char *text = calloc(1, TEXT_MAX);
	size_t n = 0;

	for (;;) {
		struct pollfd p = {.fd = b->out, .events = POLLIN};
		uint64_t now = mono_ms();
		ssize_t r;

		if (now >= end || poll(&p, 1, (int)(end - now)) == 0)
			fail_msg("waited in vain, it said:\n%s", text);
		r = read(b->out, text + n, TEXT_MAX - 1 - n);
		assert_true(r >= 0);
		n += (size_t)r;
		if (until ? strstr(text, until) != NULL : r == 0)
			return text;
		if (r == 0)
			fail_msg("it ended without saying '%s', but:\n%s", until, text);
	}
}

/* Waits for the end and reaps; returns the status as waitid tells it. */
static siginfo_t box_wait(struct box *b)
{
	struct pollfd p = {.fd = b->pidfd, .events = POLLIN};
	siginfo_t si = {0};

	if (poll(&p, 1, DEADLINE_MS) != 1)
		fail_msg("machine %s does not end", b->id);
	assert_int_equal(waitid(P_PIDFD, (id_t)b->pidfd, &si, WEXITED), 0);
	return si;
}

/* After this nothing of it is left, or the test fails. */
static void box_fini(struct box *b)
{
	struct cg_stats st;

	assert_int_equal(cg_kill(jail_cgroups(jail), b->id, DEADLINE_MS), 0);
	if (b->pidfd >= 0)
		waitid(P_PIDFD, (id_t)b->pidfd, &(siginfo_t){0}, WEXITED);
	assert_int_equal(cg_remove(jail_cgroups(jail), b->id, DEADLINE_MS), 0);
	assert_int_equal(cg_stats(jail_cgroups(jail), b->id, &st), -ENOENT);
	closep(&b->pidfd);
	closep(&b->out);
	closep(&b->out_w);
	jail_uid_drop(&b->uid);
}

static void value_of(const char *text, const char *key, char *buf, size_t cap)
{
	size_t n = strlen(key);

	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (strncmp(p, key, n) == 0 && (p[n] == '=' || p[n] == ':')) {
			p += n + 1;
			p += strspn(p, "\t ");
			snprintf(buf, cap, "%.*s", (int)strcspn(p, "\n"), p);
			return;
		}
	}
	fail_msg("no '%s' in:\n%s", key, text);
}

static void assert_says(const char *text, const char *key, const char *want)
{
	char got[256];

	value_of(text, key, got, sizeof(got));
	if (strcmp(got, want) != 0)
		fail_msg("%s is '%s', not '%s'", key, got, want);
}

static void assert_says_u(const char *text, const char *key, uint64_t want)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%" PRIu64, want);
	assert_says(text, key, buf);
}

static void the_inside_sees_nothing(void **state)
{
	autofree char *t = NULL;
	struct box b;

	if (lacks(JAIL_ALL & ~(JAIL_CG_MEMORY | JAIL_CG_CPU | JAIL_CG_PIDS), "whole jail"))
		return;
	signal(SIGPIPE, SIG_IGN); /* must not be handed down */
	box_init(&b, "report", NULL);
	b.spec.no_aslr = b.spec.pin = true;
	b.spec.nofile_max = 77;
	b.spec.file_max = 4096;
	box_start(&b);
	t = box_read(&b, NULL);
	assert_int_equal(box_wait(&b).si_code, CLD_EXITED);
	assert_says_u(t, "pid", 1);
	assert_says_u(t, "ppid", 0);
	assert_says_u(t, "sid", 1);
	assert_says_u(t, "uid", b.spec.uid);
	assert_says_u(t, "euid", b.spec.uid);
	assert_says_u(t, "gid", b.spec.uid);
	assert_says(t, "groups", "0");
	assert_says(t, "caps", "0");
	assert_says(t, "bounding", "0");
	assert_says(t, "ambient", "0");
	assert_says(t, "no_new_privs", "1");
	assert_says(t, "seccomp", "2");
	assert_says(t, "dumpable", "0"); /* its program is executable only */
	assert_says(t, "securebits", "ef");
	assert_says(t, "no_aslr", "1");
	assert_says(t, "blocked", "0");
	assert_says(t, "ignored", "0");
	assert_says(t, "cpus", "1");
	assert_says(t, "cpu0", "1");
	assert_says(t, "core", "1,1");
	assert_says(t, "nofile", "77,77");
	assert_says(t, "fsize", "4096,4096");
	assert_says(t, "fds", "1,");
	assert_says(t, "open_root", "EACCES");
	assert_says(t, "open_dotdot", "EACCES");
	assert_says(t, "open_proc", "EACCES");
	assert_says(t, "open_passwd", "EACCES");
	assert_says(t, "create", "EACCES");
	assert_says(t, "mkdir", "EACCES");
	assert_says(t, "root_mode", "0");
	assert_says(t, "root_nlink", "2"); /* itself and its dot: no directory inside */
	assert_says(t, "net", "lo");
	assert_says(t, "net_others", "0");
	box_fini(&b);
}

static char *proc_file(pid_t pid, const char *name)
{
	char path[64], *text;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	assert_int_equal(io_read_file(AT_FDCWD, path, TEXT_MAX, &text, NULL), 0);
	return text;
}

static ino_t ns_of(pid_t pid, const char *name)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

static void the_host_sees_it_locked_in(void **state)
{
	static const char *const own[] = {"pid", "net", "ipc", "uts", "cgroup"};
	autofree char *status = NULL, *mounts = NULL, *said1 = NULL, *said2 = NULL, *adj = NULL;
	struct box b, c;

	if (lacks(JAIL_UID | JAIL_NAMESPACES, "own uid and namespaces"))
		return;
	box_init(&b, "wait", NULL);
	box_init(&c, "wait", NULL);
	assert_int_not_equal(b.spec.uid, c.spec.uid);
	box_start(&b);
	box_start(&c);
	said1 = box_read(&b, "last=ok");
	said2 = box_read(&c, "last=ok");
	status = proc_file(b.pid, "status");
	assert_says(status, "CapInh", "0000000000000000");
	assert_says(status, "CapPrm", "0000000000000000");
	assert_says(status, "CapEff", "0000000000000000");
	assert_says(status, "CapBnd", "0000000000000000");
	assert_says(status, "CapAmb", "0000000000000000");
	assert_says(status, "NoNewPrivs", "1");
	assert_says(status, "Seccomp", "2");
	assert_says(status, "Groups", "");
	for (size_t i = 0; i < ARRAY_LEN(own); i++) {
		assert_int_not_equal(ns_of(b.pid, own[i]), ns_of(getpid(), own[i]));
		assert_int_not_equal(ns_of(b.pid, own[i]), ns_of(c.pid, own[i]));
	}
	assert_int_not_equal(ns_of(b.pid, "mnt"), ns_of(getpid(), "mnt"));
	/* one mount, nothing else: a read-only tmpfs */
	mounts = proc_file(b.pid, "mountinfo");
	assert_ptr_equal(strchr(mounts, '\n'), mounts + strlen(mounts) - 1);
	assert_non_null(strstr(mounts, " / / ro,nosuid,nodev,noexec,noatime "));
	assert_non_null(strstr(mounts, "- tmpfs panda ro,"));
	adj = proc_file(b.pid, "oom_score_adj");
	assert_int_equal(atoi(adj), JAIL_OOM_SCORE_ADJ);
	box_fini(&b);
	box_fini(&c);
}

static void the_starter_is_unchanged(void **state)
{
	autofree char *before = NULL, *after = NULL, *mounts = NULL, *now = NULL;
	struct box b;
	char was[64], is[64];

	before = proc_file(getpid(), "status");
	mounts = proc_file(getpid(), "mountinfo");
	box_init(&b, "exit", NULL);
	box_start(&b);
	after = proc_file(getpid(), "status");
	now = proc_file(getpid(), "mountinfo");
	for (size_t i = 0; i < 5; i++) {
		static const char *const keys[] = {"SigBlk", "Uid", "CapEff", "NoNewPrivs",
		                                   "Seccomp"};

		value_of(before, keys[i], was, sizeof(was));
		value_of(after, keys[i], is, sizeof(is));
		assert_string_equal(was, is);
	}
	assert_string_equal(mounts, now);
	assert_int_equal(prctl(PR_GET_DUMPABLE), 1);
	box_fini(&b);
}

static void fds_arrive_under_their_numbers(void **state)
{
	autofree char *t = NULL;
	struct box b;
	int p[2];

	box_init(&b, "report", NULL);
	/* a number above all, and a source that sits where the other target is */
	assert_int_equal(dup2(b.out_w, 200), 200);
	assert_int_equal(pipe(p), 0); /* not close-on-exec: must not get in */
	assert_int_equal(dup2(p[1], 900), 900);
	b.fds[0] = (struct jail_fd){.fd = 200, .as = 1};
	b.fds[1] = (struct jail_fd){.fd = 1, .as = 200};
	b.spec.nfds = 2;
	box_start(&b);
	close(200);
	close(900);
	close(p[0]);
	close(p[1]);
	t = box_read(&b, NULL);
	assert_says(t, "fds", "1,200,");
	box_wait(&b);
	box_fini(&b);
}

static void forbidden_calls_fail(void **state)
{
	autofree char *t = NULL;
	struct box b;

	if (lacks(JAIL_SECCOMP, "seccomp"))
		return;
	box_init(&b, "forbidden", NULL);
	box_start(&b);
	t = box_read(&b, NULL);
	assert_says(t, "ptrace", "ENOSYS");
	assert_says(t, "bpf", "ENOSYS");
	assert_says(t, "unshare", "ENOSYS");
	assert_says(t, "mount", "ENOSYS");
	assert_says(t, "setuid", "ENOSYS");
	assert_says(t, "kexec", "ENOSYS");
	assert_says(t, "nosuch", "ENOSYS");
	assert_says(t, "open", "EACCES");
	assert_says(t, "socket_unix", "ok");
	assert_says(t, "socket_inet", "ENOSYS");
	box_wait(&b);
	box_fini(&b);
}

static void landlock_holds_where_a_directory_was_handed_in(void **state)
{
	autoclose int etc = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	autofree char *t = NULL;
	struct box b;

	if (lacks(JAIL_LANDLOCK, "Landlock"))
		return;
	box_init(&b, "dir", NULL);
	b.fds[1] = (struct jail_fd){.fd = etc, .as = 5};
	b.spec.nfds = 2;
	box_start(&b);
	t = box_read(&b, NULL);
	/* everybody may read it, no namespace and no mode is in the way */
	assert_says(t, "stat_handed", "ok");
	assert_says(t, "open_handed", "EACCES");
	box_wait(&b);
	box_fini(&b);
}

static void the_memory_limit_kills_it_and_is_counted(void **state)
{
	autofree char *t = NULL;
	struct cg_stats st;
	struct box b;
	siginfo_t si;

	if (lacks(JAIL_CG_MEMORY, "memory controller"))
		return;
	box_init(&b, "eat", NULL);
	b.spec.limits.memory_max = 16 << 20;
	box_start(&b);
	t = box_read(&b, NULL);
	si = box_wait(&b);
	assert_int_equal(si.si_code, CLD_KILLED);
	assert_int_equal(si.si_status, SIGKILL);
	assert_int_equal(cg_stats(jail_cgroups(jail), b.id, &st), 0);
	assert_true(st.have & CG_MEMORY);
	assert_true(st.oom_kills >= 1);
	assert_true(st.memory_peak_bytes <= 16 << 20);
	assert_true(st.memory_peak_bytes > 8 << 20);
	box_fini(&b);
}

/* Were it too small, the kernel could kill the starter, which shares memory until the exec. */
static void the_smallest_memory_limit_still_starts(void **state)
{
	for (int i = 0; i < 10; i++) {
		struct box b;

		box_init(&b, "exit", NULL);
		b.spec.limits.memory_max = JAIL_MEMORY_MIN;
		box_start(&b);
		assert_int_equal(box_wait(&b).si_code, CLD_EXITED);
		box_fini(&b);
	}
}

static void the_pids_limit_stops_a_fork_bomb(void **state)
{
	autofree char *t = NULL;
	struct cg_stats st;
	struct box b;

	if (lacks(JAIL_CG_PIDS, "pids controller"))
		return;
	box_init(&b, "tree", "100000");
	b.spec.limits.pids_max = 20;
	box_start(&b);
	t = box_read(&b, "last=");
	assert_says(t, "forked", "19"); /* and itself */
	assert_non_null(strstr(t, "EAGAIN"));
	assert_int_equal(cg_stats(jail_cgroups(jail), b.id, &st), 0);
	assert_int_equal(st.pids, 20);
	assert_true(st.have & CG_CPUACCT);
	assert_true(st.cpu_ns > 0);
	box_fini(&b);
}

static char *group_file(const char *id, const char *file)
{
	static const char *const trees[] = {"cpu", "cpu,cpuacct", ".", "unified"};
	char path[256], *text;

	for (size_t i = 0; i < ARRAY_LEN(trees); i++) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/" PARENT "/%s/%s", trees[i], id,
		         file);
		if (io_read_file(AT_FDCWD, path, TEXT_MAX, &text, NULL) == 0)
			return text;
	}
	return NULL;
}

static void the_cpu_limit_is_written(void **state)
{
	autofree char *v1 = NULL, *v2 = NULL;
	struct box b;

	if (lacks(JAIL_CG_CPU, "cpu controller"))
		return;
	box_init(&b, "wait", NULL);
	box_start(&b);
	v1 = group_file(b.id, "cpu.cfs_quota_us");
	v2 = group_file(b.id, "cpu.max");
	if (v1)
		assert_string_equal(v1, "150000\n");
	else
		assert_string_equal(v2, "150000 100000\n");
	box_fini(&b);
}

static bool gone(const char *id)
{
	struct cg_stats st;

	return cg_stats(jail_cgroups(jail), id, &st) == 0 && st.pids == 0;
}

static void killing_the_first_process_kills_all(void **state)
{
	autofree char *t = NULL;
	struct cg_stats st;
	struct box b;

	if (lacks(JAIL_NAMESPACES, "namespaces") || lacks(JAIL_CG_PIDS, "pids controller"))
		return;
	box_init(&b, "tree", "8");
	box_start(&b);
	t = box_read(&b, "last=ok");
	assert_int_equal(cg_stats(jail_cgroups(jail), b.id, &st), 0);
	assert_int_equal(st.pids, 9);
	assert_int_equal(kill(b.pid, SIGKILL), 0);
	/* The kernel lets a pid namespace's init end only after all others: no waiting here. */
	assert_int_equal(box_wait(&b).si_status, SIGKILL);
	assert_true(gone(b.id));
	/* and that is not only what the counter says: the pipe has no writer left */
	free(box_read(&b, NULL));
	box_fini(&b);
}

static void a_group_can_be_killed_without_knowing_pids(void **state)
{
	autofree char *t = NULL;
	struct box b;

	if (lacks(JAIL_CG_PIDS, "pids controller"))
		return;
	box_init(&b, "tree", "8");
	box_start(&b);
	t = box_read(&b, "last=ok");
	/* never from under somebody */
	assert_int_equal(cg_remove(jail_cgroups(jail), b.id, 0), -EBUSY);
	assert_int_equal(cg_kill(jail_cgroups(jail), b.id, DEADLINE_MS), 0);
	assert_int_equal(box_wait(&b).si_status, SIGKILL);
	assert_true(gone(b.id));
	box_fini(&b);
}

/* This host as it would look with only v1 or only v2 trees. */
static struct cg_host *host_with(const char *type)
{
	autofree char *text = proc_file(getpid(), "mountinfo"), *kept = calloc(1, TEXT_MAX);
	struct cg_host *h = NULL;
	size_t n = 0;

	for (char *line = text; *line; line += strcspn(line, "\n") + 1) {
		int len = (int)strcspn(line, "\n") + 1;
		char *at = memmem(line, (size_t)len, type, strlen(type));

		if (at)
			n += (size_t)snprintf(kept + n, TEXT_MAX - n, "%.*s", len, line);
	}
	assert_int_equal(cg_open(kept, PARENT, NULL, &h), 0);
	return h;
}

static void either_kind_of_tree_alone_can_kill(void **state)
{
	static const char *const types[] = {" - cgroup ", " - cgroup2 "};

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct cg_host *h = host_with(types[i]);
		autofree char *t = NULL;
		struct box b;

		if (strcmp(cg_describe(h), "none") == 0) {
			print_message("SKIP: no tree of type%s here\n", types[i]);
			skipped++;
			cg_close(h);
			continue;
		}
		box_init(&b, "tree", "8");
		box_start(&b);
		t = box_read(&b, "last=ok");
		assert_int_equal(cg_kill(h, b.id, DEADLINE_MS), 0);
		assert_int_equal(box_wait(&b).si_status, SIGKILL);
		free(box_read(&b, NULL)); /* no writer is left */
		cg_close(h);
		box_fini(&b);
	}
}

static void an_id_that_is_taken_is_refused(void **state)
{
	autofree char *t = NULL;
	struct box b, c;

	box_init(&b, "wait", NULL);
	box_start(&b);
	t = box_read(&b, "last=ok");
	box_init(&c, "exit", NULL);
	c.spec.id = b.id;
	assert_int_equal(box_spawn(&c), -EEXIST);
	assert_string_equal(c.e.kind, "machine_exists");
	assert_int_equal(kill(b.pid, 0), 0); /* it is still there, with its group */
	box_fini(&c);
	box_fini(&b);
}

static void one_that_was_made_ahead_is_limited_later(void **state)
{
	autofree char *t = NULL, *status = NULL, *v1 = NULL, *v2 = NULL;
	struct box b;

	if (lacks(JAIL_CG_CPU, "cpu controller"))
		return;
	box_init(&b, "wait", NULL);
	b.spec.limits = (struct cg_limits){0};
	box_start(&b);
	t = box_read(&b, "last=ok");
	b.spec.limits = (struct cg_limits){.cpu_max_percent = 70, .pids_max = 19};
	b.spec.pin = true;
	assert_int_equal(jail_limit(jail, &b.spec, b.pid, &b.e), 0);
	v1 = group_file(b.id, "cpu.cfs_quota_us");
	v2 = group_file(b.id, "cpu.max");
	assert_string_equal(v1 ? v1 : v2, v1 ? "70000\n" : "70000 100000\n");
	status = proc_file(b.pid, "status");
	assert_says(status, "Cpus_allowed_list", "0");

	b.spec.limits.memory_max = 4096;
	assert_int_equal(jail_limit(jail, &b.spec, b.pid, &b.e), -EINVAL);
	assert_string_equal(b.e.kind, "bad_spec");
	b.spec.limits.memory_max = 0;
	b.spec.id = "somebody-else";
	assert_int_equal(jail_limit(jail, &b.spec, b.pid, &b.e), -ENOENT);
	assert_string_equal(b.e.kind, "jail_failed");
	box_fini(&b);
}

/* The last part of a path that glob() marked with a slash at its end. */
static void id_of(const char *path, char ret[CG_ID_MAX + 1])
{
	const char *end = path + strlen(path) - 1, *from = end;

	while (from > path && from[-1] != '/')
		from--;
	snprintf(ret, CG_ID_MAX + 1, "%.*s", (int)(end - from), from);
}

/* The ids that have groups in some tree, each once, go to fn; how many they are. */
static int each_left(void (*fn)(const char *id))
{
	char id[CG_ID_MAX + 1], other[CG_ID_MAX + 1];
	glob_t found = {0};
	int n = 0;

	glob("/sys/fs/cgroup/" PARENT "/*", GLOB_ONLYDIR | GLOB_MARK, NULL, &found);
	glob("/sys/fs/cgroup/*/" PARENT "/*", GLOB_ONLYDIR | GLOB_MARK | GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		bool seen = false;

		id_of(found.gl_pathv[i], id);
		for (size_t k = 0; k < i && !seen; k++) {
			id_of(found.gl_pathv[k], other);
			seen = strcmp(id, other) == 0;
		}
		n += !seen;
		if (!seen && fn)
			fn(id);
	}
	globfree(&found);
	return n;
}

static int leftovers(void)
{
	return each_left(NULL);
}

static void a_failed_start_leaves_nothing(void **state)
{
	autoclose int bad = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct box b;

	box_init(&b, "exit", NULL);
	b.spec.exe_fd = bad;
	assert_int_equal(box_spawn(&b), -EACCES);
	assert_string_equal(b.e.kind, "jail_failed");
	assert_non_null(strstr(b.e.text, "executing the program"));
	assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1);
	assert_int_equal(errno, ECHILD);
	box_fini(&b);

	box_init(&b, "exit", NULL);
	b.fds[0].fd = 987; /* not open */
	assert_int_equal(box_spawn(&b), -EBADF);
	assert_non_null(strstr(b.e.text, "arranging fds"));
	box_fini(&b);

	box_init(&b, "exit", NULL);
	b.spec.limits.memory_max = 4096;
	assert_int_equal(box_spawn(&b), -EINVAL);
	assert_string_equal(b.e.kind, "bad_spec");
	box_fini(&b);
	assert_int_equal(leftovers(), 0);
}

static int take_and_drop(struct jail *j)
{
	struct jail_uid u = {.lock = -1};
	int r = jail_uid_take(j, &u, NULL);

	jail_uid_drop(&u);
	return r;
}

static void a_uid_is_taken_exactly_while_its_machine_lives(void **state)
{
	struct jail_config cfg = {.run_dir = run_dir,
	                          .cgroup_parent = PARENT,
	                          .uid_base = TEST_UIDS + 5000,
	                          .uid_count = 1};
	struct jail *one = NULL;
	struct box b;

	if (lacks(JAIL_UID, "own uid"))
		return;
	box_init(&b, "wait", NULL);
	assert_int_equal(jail_new(&cfg, &one, &b.e), 0);
	assert_int_equal(take_and_drop(one), 0);
	b.spec.uid = b.spec.gid = cfg.uid_base;
	box_start(&b);
	/* all locks are dropped; it closed every fd it could: only its life keeps the uid */
	assert_int_equal(take_and_drop(one), -EAGAIN);
	assert_int_equal(kill(b.pid, SIGKILL), 0);
	box_wait(&b);
	assert_int_equal(take_and_drop(one), 0);
	jail_free(one);
	box_fini(&b);
}

static void print_part(const struct jail_part *p)
{
	print_message("  %-14s %-7s %s%s%s\n", p->name, p->ok ? "ok" : "missing", p->detail,
	              p->todo ? "; " : "", p->todo ? p->todo : "");
}

static void the_probe_names_every_part(void **state)
{
	struct jail_part parts[JAIL_PARTS];
	unsigned seen = 0;

	jail_probe(jail, parts);
	for (size_t i = 0; i < JAIL_PARTS; i++) {
		print_part(&parts[i]);
		seen |= parts[i].bit;
		assert_int_equal(parts[i].ok, parts[i].todo == NULL);
		assert_true(*parts[i].detail);
	}
	assert_int_equal(seen, JAIL_ALL);
}

/*
 * Runs a helper (see main) in a process of its own that a test may kill. It is a new program: a
 * failed assertion in a mere fork would go on as a second test runner.
 */
static pid_t start(const char *helper, int out)
{
	char fd[16];
	pid_t pid;

	snprintf(fd, sizeof(fd), "%d", out);
	pid = fork();
	if (pid == 0) {
		fcntl(out, F_SETFD, 0);
		execl("/proc/self/exe", "test-jail-spawn", child_path, helper, fd, NULL);
		_exit(1);
	}
	assert_true(pid > 0);
	return pid;
}

static void spawn_and_hang(int out)
{
	struct box b;

	box_init(&b, "tree", "3");
	box_start(&b);
	free(box_read(&b, "last=ok"));
	if (write(out, b.id, strlen(b.id)) < 0)
		_exit(1);
	for (;;)
		pause();
}

enum {
	THREADS = 4,
	EACH = 6,
};

static struct box crowd[THREADS][EACH];

/* No assertions here: they would jump to another thread's stack. */
static void *spawn_some(void *arg)
{
	struct box *boxes = arg;

	for (int i = 0; i < EACH; i++)
		if (box_spawn(&boxes[i]) < 0)
			return boxes[i].e.text;
	return NULL;
}

static void threads_may_start_machines_at_once(void **state)
{
	pthread_t threads[THREADS];
	struct box *all = &crowd[0][0];

	for (int i = 0; i < THREADS * EACH; i++) {
		box_init(&all[i], "wait", NULL);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(all[i].spec.uid, all[k].spec.uid);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, spawn_some, crowd[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		void *problem;

		assert_int_equal(pthread_join(threads[i], &problem), 0);
		if (problem)
			fail_msg("%s", (char *)problem);
	}
	for (int i = 0; i < THREADS * EACH; i++)
		free(box_read(&all[i], "last=ok"));
	assert_int_equal(prctl(PR_GET_DUMPABLE), 1);
	for (int i = 0; i < THREADS * EACH; i++)
		box_fini(&all[i]);
}

static void a_machine_outlives_its_starter_and_is_adopted(void **state)
{
	char id[CG_ID_MAX + 1] = "";
	struct jail_config cfg = {.run_dir = run_dir, .cgroup_parent = PARENT};
	struct jail *fresh = NULL;
	struct cg_stats st;
	int p[2];
	pid_t pid;

	if (lacks(JAIL_CG_PIDS, "pids controller"))
		return;
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	pid = start("spawn_and_hang", p[1]);
	assert_true(read(p[0], id, sizeof(id) - 1) > 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);

	assert_int_equal(jail_new(&cfg, &fresh, NULL), 0);
	assert_int_equal(leftovers(), 1);
	assert_int_equal(cg_stats(jail_cgroups(fresh), id, &st), 0);
	assert_int_equal(st.pids, 4);
	assert_int_equal(cg_kill(jail_cgroups(fresh), id, DEADLINE_MS), 0);
	assert_int_equal(cg_remove(jail_cgroups(fresh), id, DEADLINE_MS), 0);
	assert_int_equal(leftovers(), 0);
	jail_free(fresh);
	close(p[0]);
	close(p[1]);
}

static void sweep_one(const char *id)
{
	const struct cg_host *h = jail_cgroups(jail);

	assert_int_equal(cg_kill(h, id, DEADLINE_MS), 0);
	assert_int_equal(cg_remove(h, id, DEADLINE_MS), 0);
}

static void spawn_for_ever(int out)
{
	for (;;) {
		struct box b;

		box_init(&b, "wait", NULL);
		box_start(&b);
		if (write(out, ".", 1) < 0)
			_exit(1);
		closep(&b.out);
		closep(&b.pidfd);
	}
}

/* Is any process of the test's uids left? Zombies of nobody's count as well. */
static int processes_left(void)
{
	autoclosedir DIR *d = opendir("/proc");
	struct dirent *ent;
	int n = 0;

	while ((ent = readdir(d))) {
		struct stat st;
		char path[300], *status = NULL, uid[64];

		snprintf(path, sizeof(path), "/proc/%s/status", ent->d_name);
		if (!isdigit((unsigned char)*ent->d_name) || stat(path, &st) < 0 ||
		    io_read_file(AT_FDCWD, path, TEXT_MAX, &status, NULL) < 0)
			continue;
		value_of(status, "Uid", uid, sizeof(uid));
		free(status);
		n += strtol(uid, NULL, 10) >= TEST_UIDS &&
		     strtol(uid, NULL, 10) < TEST_UIDS + JAIL_UID_COUNT;
	}
	return n;
}

static void wait_until_clean(void)
{
	uint64_t end = mono_ms() + DEADLINE_MS;
	int left = 0;

	/* we are a subreaper, so the orphans of a killed helper are ours to reap */
	while (waitpid(-1, NULL, WNOHANG) > 0 || (left = processes_left())) {
		if (mono_ms() > end)
			fail_msg("%d processes are left", left);
		poll(NULL, 0, 5);
	}
}

static void a_starter_killed_anywhere_leaves_only_what_can_be_swept(void **state)
{
	if (lacks(JAIL_UID | JAIL_NAMESPACES, "own uid and namespaces"))
		return;
	for (int round = 0; round < 12; round++) {
		char dots[2];
		pid_t pid;
		int p[2];

		assert_int_equal(pipe2(p, O_CLOEXEC), 0);
		pid = start("spawn_for_ever", p[1]);
		/* a different place each time: nobody knows where it is now */
		for (int i = 0; i <= round % 4; i++)
			assert_int_equal(read(p[0], dots, 1), 1);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		each_left(sweep_one);
		assert_int_equal(leftovers(), 0);
		wait_until_clean();
		close(p[0]);
		close(p[1]);
	}
}

/* The rest of a helper that has just given up some right; says what its machine said. */
static void spawn_with_less(int out)
{
	struct jail_config cfg = {.run_dir = run_dir, .cgroup_parent = PARENT};
	unsigned parts = JAIL_NAMESPACES | JAIL_SECCOMP | JAIL_NO_NEW_PRIVS | JAIL_LANDLOCK;
	autofree char *t = NULL;
	struct err e = {0};
	struct box b;

	prctl(PR_SET_DUMPABLE, 1); /* as after an exec with these rights */
	jail_free(jail);
	assert_int_equal(jail_new(&cfg, &jail, &e), 0);
	if ((parts_here() & parts) != parts) {
		dprintf(out, "skip\n");
		return;
	}
	box_init(&b, "report", NULL);
	b.spec.want = JAIL_ALL;
	assert_int_equal(jail_spawn(jail, &b.spec, &b.pidfd, &b.pid, &b.e), -EOPNOTSUPP);
	assert_string_equal(b.e.kind, "jail_unavailable");
	assert_non_null(strstr(b.e.text, "own uid"));
	b.spec.want = parts;
	box_start(&b);
	t = box_read(&b, NULL);
	box_wait(&b);
	box_fini(&b);
	assert_int_equal(io_write_full(out, t, strlen(t)), 0);
}

static void without_root(int out)
{
	uid_t uid = TEST_UIDS + 6000;

	assert_int_equal(setgroups(0, NULL), 0);
	assert_int_equal(setresgid(uid, uid, uid), 0);
	assert_int_equal(setresuid(uid, uid, uid), 0);
	spawn_with_less(out);
}

/* root in a container, as most of them are */
static void without_sys_admin(int out)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2];

	assert_int_equal(syscall(SYS_capget, &head, d), 0);
	d[0].permitted &= ~(1u << CAP_SYS_ADMIN);
	d[0].effective &= ~(1u << CAP_SYS_ADMIN);
	assert_int_equal(syscall(SYS_capset, &head, d), 0);
	spawn_with_less(out);
}

static void check_with_less(const char *helper, uid_t uid)
{
	autofree char *t = NULL;
	struct box b;
	pid_t pid;
	int status;

	box_init(&b, "report", NULL);
	pid = start(helper, b.out_w);
	closep(&b.out_w);
	b.out_w = -1;
	t = box_read(&b, NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	if (strcmp(t, "skip\n") == 0) {
		print_message("SKIP: this host gives no user namespaces to users\n");
		skipped++;
	} else {
		assert_says_u(t, "pid", 1);
		assert_says_u(t, "uid", uid);
		assert_says(t, "caps", "0");
		assert_says(t, "bounding", "0");
		assert_says(t, "no_new_privs", "1");
		assert_says(t, "seccomp", "2");
		assert_says(t, "fds", "1,");
		assert_says(t, "open_passwd", "EACCES");
		assert_says(t, "create", "EACCES");
		assert_says(t, "net", "lo");
		assert_says(t, "net_others", "0");
	}
	box_fini(&b);
}

static void without_root_the_rest_of_the_jail_still_holds(void **state)
{
	check_with_less("without_root", TEST_UIDS + 6000);
}

static void a_root_that_may_not_mount_gets_the_same(void **state)
{
	check_with_less("without_sys_admin", 0);
}

/* The program as a package would install it: everyone may run it, nobody may read it. */
static int copy_child(void)
{
	autofree char *bytes = NULL;
	char path[sizeof(run_dir) + 16];
	size_t n;
	int r;

	r = io_read_file(AT_FDCWD, child_path, 64 << 20, &bytes, &n);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/child", run_dir);
	return io_replace_file(AT_FDCWD, path, bytes, n, 0711, true);
}

/* Everything but the directory of this run. */
static int open_all(void)
{
	struct jail_config cfg = {.run_dir = run_dir,
	                          .cgroup_parent = PARENT,
	                          .uid_base = TEST_UIDS};
	struct jail_rules rules = {child_rules, ARRAY_LEN(child_rules)};
	struct err e = {0};

	char path[sizeof(run_dir) + 16];

	snprintf(path, sizeof(path), "%s/child", run_dir);
	exe = open(path, O_RDONLY | O_CLOEXEC);
	if (exe < 0 || jail_filter_build(&rules, 1, JAIL_DENY_ENOSYS, &filter, &e) < 0 ||
	    jail_new(&cfg, &jail, &e) < 0) {
		print_error("%s\n", e.text);
		return -1;
	}
	return 0;
}

static int set_up(void **state)
{
	if ((mkdir(run_dir, 0755) < 0 && errno != EEXIST) || copy_child() < 0 || open_all() < 0)
		return -1;
	/* what a killed run before us may have left */
	each_left(sweep_one);
	return 0;
}

static int tear_down(void **state)
{
	static const char *const files[] = {"child", "uids.lock"};
	autoclosedir DIR *d = opendir("/sys/fs/cgroup");
	char path[sizeof(run_dir) + 300];
	struct dirent *ent;
	int left = leftovers();

	wait_until_clean();
	jail_free(jail);
	jail_filter_fini(&filter);
	close(exe);
	while (d && (ent = readdir(d))) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup/%s/" PARENT, ent->d_name);
		rmdir(path);
	}
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", run_dir, files[i]);
		unlink(path);
	}
	if (rmdir(run_dir) < 0 || left) {
		print_error("%d groups are left, or something in %s\n", left, run_dir);
		return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_probe_names_every_part),
	    cmocka_unit_test(the_inside_sees_nothing),
	    cmocka_unit_test(the_host_sees_it_locked_in),
	    cmocka_unit_test(the_starter_is_unchanged),
	    cmocka_unit_test(fds_arrive_under_their_numbers),
	    cmocka_unit_test(forbidden_calls_fail),
	    cmocka_unit_test(landlock_holds_where_a_directory_was_handed_in),
	    cmocka_unit_test(the_memory_limit_kills_it_and_is_counted),
	    cmocka_unit_test(the_smallest_memory_limit_still_starts),
	    cmocka_unit_test(the_pids_limit_stops_a_fork_bomb),
	    cmocka_unit_test(the_cpu_limit_is_written),
	    cmocka_unit_test(killing_the_first_process_kills_all),
	    cmocka_unit_test(a_group_can_be_killed_without_knowing_pids),
	    cmocka_unit_test(either_kind_of_tree_alone_can_kill),
	    cmocka_unit_test(an_id_that_is_taken_is_refused),
	    cmocka_unit_test(one_that_was_made_ahead_is_limited_later),
	    cmocka_unit_test(a_failed_start_leaves_nothing),
	    cmocka_unit_test(a_uid_is_taken_exactly_while_its_machine_lives),
	    cmocka_unit_test(threads_may_start_machines_at_once),
	    cmocka_unit_test(a_machine_outlives_its_starter_and_is_adopted),
	    cmocka_unit_test(a_starter_killed_anywhere_leaves_only_what_can_be_swept),
	    cmocka_unit_test(without_root_the_rest_of_the_jail_still_holds),
	    cmocka_unit_test(a_root_that_may_not_mount_gets_the_same),
	};
	static const struct {
		const char *name;
		void (*fn)(int out);
	} helpers[] = {{"spawn_and_hang", spawn_and_hang},
	               {"spawn_for_ever", spawn_for_ever},
	               {"without_root", without_root},
	               {"without_sys_admin", without_sys_admin}};
	int r;

	if (argc < 2 || geteuid() != 0) {
		fprintf(stderr, "SKIP: needs root and the path of jail-child\n");
		return 77;
	}
	child_path = argv[1];
	for (size_t i = 0; argc == 4 && i < ARRAY_LEN(helpers); i++) {
		if (strcmp(argv[2], helpers[i].name) != 0)
			continue;
		if (open_all() < 0)
			return 1;
		fcntl(atoi(argv[3]), F_SETFD, FD_CLOEXEC);
		helpers[i].fn(atoi(argv[3]));
		return 0;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (setgroups(2, (gid_t[]){1, 2}) < 0) /* must not be handed down */
		return 1;
	r = cmocka_run_group_tests(tests, set_up, tear_down);
	return r ? 1 : skipped ? 77 : 0;
}
