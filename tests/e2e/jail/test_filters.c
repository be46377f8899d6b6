/*
 * What each engine's rules let a machine ask of the host, tried from inside a jail with those very
 * rules: every number of a system call, every condition of a rule with one bit changed, and what
 * must be refused whatever the rules say. Needs root. argv[1] is jail-child.
 *
 * What is expected comes from the tables in src/engine, matched once more here; a call that is let
 * through shows by any answer but ENOSYS, or by its effect: it does not come back. All arguments
 * that no condition names are -1, which is no fd and no address.
 */
#include <asm/prctl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "calls.h"
#include "engine/engines_internal.h"
#include "jail/cgroup.h"
#include "jail/filter.h"
#include "jail/jail.h"
#include "jail/uid.h"

enum {
	DEADLINE_MS = 30000,
	NUMBERS = 1024,   /* of system calls; Linux 7 knows fewer than 500 */
	FOREIGN = 512,    /* the same of other ways in */
	X32 = 0x40000000, /* this bit in a number: the x32 way to call */
	TRIES_MAX = 1 << 15,
	TEST_UIDS = 0x7fe00000, /* a range of our own */
};

static const char run_dir[] = "/run/panda-filters-test";
static struct jail *jail;
static struct jail_filter filter; /* of the engine that is tried */
static const struct engine_recipe *recipe;
static int exe = -1, list_fd = -1;
static struct call *tries;
static size_t tries_n;
static unsigned serial;

/* ---- what the rules say ---- */

static bool arg_holds(const struct jail_arg *a, const uint64_t args[6])
{
	switch (a->cmp) {
	case JAIL_EQ:
		return args[a->arg] == a->value;
	case JAIL_SET:
		return (args[a->arg] & a->mask) == a->value;
	case JAIL_ANY:
		break;
	}
	return true;
}

static bool rule_allows(const struct jail_rule *rule, const struct call *c)
{
	int nr = seccomp_syscall_resolve_name(rule->name);
	bool holds = nr >= 0 && c->nr == (uint64_t)nr;

	for (size_t i = 0; i < JAIL_ARGS_MAX && holds && rule->args[i].cmp != JAIL_ANY; i++)
		holds = arg_holds(&rule->args[i], c->args);
	return holds;
}

/* Linux itself takes these past every filter: they answer only to the code page of a uprobe. */
static bool past_every_filter(uint64_t nr)
{
	enum { URETPROBE = 335, UPROBE = 336 };

	return nr == URETPROBE || nr == UPROBE;
}

static bool rules_allow(const struct call *c)
{
	if (c->nr == SYS_exit || c->nr == SYS_exit_group)
		return true;
	for (size_t i = 0; i < recipe->rules->n; i++)
		if (rule_allows(&recipe->rules->v[i], c))
			return true;
	return false;
}

/* ---- trying ---- */

static struct call *add(uint64_t nr)
{
	struct call *c = &tries[tries_n++];

	assert_true(tries_n < TRIES_MAX);
	*c = (struct call){.nr = nr, .args = {-1, -1, -1, -1, -1, -1}};
	return c;
}

/* One process in its jail, from try number `from` on; how it ended. */
static siginfo_t run_from(size_t from, size_t n)
{
	static char *envp[] = {NULL};
	char id[CG_ID_MAX + 1], first[24], many[24];
	char *argv[] = {"jail-child", "calls", first, many, NULL};
	struct jail_fd fds[] = {{list_fd, CALLS_FD}};
	struct jail_uid uid = {.lock = -1};
	struct jail_part parts[JAIL_PARTS];
	struct err e = {0};
	siginfo_t si = {0};
	unsigned have = 0;
	pid_t pid;
	int pidfd = -1, r;

	snprintf(id, sizeof(id), "f%d-%u", getpid(), serial++);
	snprintf(first, sizeof(first), "%zu", from);
	snprintf(many, sizeof(many), "%zu", n);
	jail_probe(jail, parts);
	for (size_t i = 0; i < JAIL_PARTS; i++)
		have |= parts[i].ok ? parts[i].bit : 0;
	if (have & JAIL_UID)
		assert_int_equal(jail_uid_take(jail, &uid, &e), 0);
	const struct jail_spec spec = {
	    .id = id,
	    .uid = uid.uid,
	    .gid = uid.uid,
	    .exe_fd = exe,
	    .argv = argv,
	    .envp = envp,
	    .fds = fds,
	    .nfds = ARRAY_LEN(fds),
	    .limits = {.memory_max = 64 << 20, .pids_max = 32},
	    .filter = &filter,
	    .want = have,
	};

	r = jail_spawn(jail, &spec, &pidfd, &pid, &e);
	jail_uid_drop(&uid);
	if (r < 0)
		fail_msg("%s: %s", e.kind, e.text);
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	r = poll(&p, 1, DEADLINE_MS);
	assert_int_equal(cg_kill(jail_cgroups(jail), id, DEADLINE_MS), 0);
	assert_int_equal(waitid(P_PIDFD, (id_t)pidfd, &si, WEXITED), 0);
	assert_int_equal(cg_remove(jail_cgroups(jail), id, DEADLINE_MS), 0);
	closep(&pidfd);
	if (r != 1)
		fail_msg("a call does not come back, nor end its process");
	return si;
}

/* All that were added. A try that ends its process stays at CALL_BEGUN; a new process goes on. */
static void run_all(void)
{
	size_t at = 0;

	while (at < tries_n) {
		siginfo_t si = run_from(at, tries_n);

		while (at < tries_n && tries[at].state == CALL_DONE)
			at++;
		if (at == tries_n)
			return;
		if (tries[at].state == CALL_UNTRIED)
			fail_msg("it ended before it began: code %d, status %d", si.si_code,
			         si.si_status);
		if (si.si_code != CLD_EXITED && si.si_status == SIGSYS)
			fail_msg("call %ju ended the process by the filter",
			         (uintmax_t)tries[at].nr);
		at++;
	}
}

static bool refused(const struct call *c)
{
	return c->state == CALL_DONE && c->result == -ENOSYS;
}

static void describe(const struct call *c, char *buf, size_t cap)
{
	char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, (int)c->nr);

	snprintf(buf, cap, "%s: %s (%ju) of %jx %jx %jx %jx %jx gave %jd", recipe->name,
	         name ? name : "?", (uintmax_t)c->nr, (uintmax_t)c->args[0], (uintmax_t)c->args[1],
	         (uintmax_t)c->args[2], (uintmax_t)c->args[3], (uintmax_t)c->args[4],
	         (intmax_t)c->result);
	free(name);
}

static void assert_as_the_rules_say(void)
{
	size_t allowed = 0, wrong = 0;

	for (size_t i = 0; i < tries_n; i++) {
		char text[256];
		bool want = rules_allow(&tries[i]);

		allowed += want;
		if (refused(&tries[i]) == !want || past_every_filter(tries[i].nr))
			continue;
		wrong++;
		describe(&tries[i], text, sizeof(text));
		print_message("%s, but the rules %s it\n", text, want ? "allow" : "refuse");
	}
	assert_int_equal(wrong, 0);
	assert_true(allowed > 0 && allowed < tries_n); /* the list was worth trying */
}

/* ---- tests, once for each engine ---- */

static void every_number_is_as_the_rules_say(void **state)
{
	for (uint64_t nr = 0; nr < NUMBERS; nr++)
		add(nr);
	add(UINT32_MAX);
	run_all();
	assert_as_the_rules_say();
}

static void add_with(const struct jail_rule *rule, size_t changed, uint64_t bit)
{
	struct call *c = add((uint64_t)seccomp_syscall_resolve_name(rule->name));

	for (size_t i = 0; i < JAIL_ARGS_MAX && rule->args[i].cmp != JAIL_ANY; i++) {
		const struct jail_arg *a = &rule->args[i];

		c->args[a->arg] = a->cmp == JAIL_EQ ? a->value : a->value | ~a->mask;
		if (i == changed)
			c->args[a->arg] ^= bit;
	}
}

/* Each condition fulfilled, then with each of its bits the other way round. */
static void every_condition_counts(void **state)
{
	for (size_t k = 0; k < recipe->rules->n; k++) {
		const struct jail_rule *rule = &recipe->rules->v[k];

		if (seccomp_syscall_resolve_name(rule->name) < 0 || rule->args[0].cmp == JAIL_ANY)
			continue;
		add_with(rule, JAIL_ARGS_MAX, 0);
		for (size_t i = 0; i < JAIL_ARGS_MAX && rule->args[i].cmp != JAIL_ANY; i++)
			for (int bit = 0; bit < 64; bit++)
				if (rule->args[i].cmp == JAIL_EQ ||
				    (rule->args[i].mask & 1ull << bit))
					add_with(rule, i, 1ull << bit);
	}
	run_all();
	assert_as_the_rules_say();
}

/* Whatever the tables say: a list of its own. */
static void no_way_out_is_in_the_rules(void **state)
{
	static const char *const never[] = {
	    "unshare",
	    "setns",
	    "clone3",
	    "fork",
	    "vfork",
	    "execve",
	    "ptrace",
	    "process_vm_readv",
	    "process_vm_writev",
	    "process_madvise",
	    "process_mrelease",
	    "kcmp",
	    "pidfd_open",
	    "pidfd_getfd",
	    "pidfd_send_signal",
	    "userfaultfd",
	    "io_uring_setup",
	    "io_uring_enter",
	    "io_uring_register",
	    "io_setup",
	    "io_submit",
	    "socket",
	    "socketpair",
	    "connect",
	    "bind",
	    "listen",
	    "setsockopt",
	    "bpf",
	    "perf_event_open",
	    "keyctl",
	    "add_key",
	    "request_key",
	    "mount",
	    "umount2",
	    "pivot_root",
	    "chroot",
	    "chdir",
	    "fchdir",
	    "open_tree",
	    "move_mount",
	    "fsopen",
	    "fsconfig",
	    "fsmount",
	    "fspick",
	    "mount_setattr",
	    "open",
	    "openat",
	    "openat2",
	    "creat",
	    "mknod",
	    "mknodat",
	    "mkdir",
	    "mkdirat",
	    "link",
	    "linkat",
	    "symlink",
	    "rename",
	    "unlink",
	    "unlinkat",
	    "chmod",
	    "fchmod",
	    "chown",
	    "fchown",
	    "setxattr",
	    "fsetxattr",
	    "truncate",
	    "name_to_handle_at",
	    "open_by_handle_at",
	    "inotify_init1",
	    "fanotify_init",
	    "flock",
	    "splice",
	    "tee",
	    "vmsplice",
	    "sendfile",
	    "copy_file_range",
	    "setuid",
	    "setgid",
	    "setresuid",
	    "setresgid",
	    "setgroups",
	    "setfsuid",
	    "capset",
	    "setns",
	    "sethostname",
	    "setrlimit",
	    "setpriority",
	    "sched_setscheduler",
	    "sched_setattr",
	    "sched_setaffinity",
	    "ioprio_set",
	    "mlock",
	    "mlockall",
	    "mbind",
	    "migrate_pages",
	    "move_pages",
	    "memfd_secret",
	    "remap_file_pages",
	    "shmget",
	    "semget",
	    "msgget",
	    "mq_open",
	    "modify_ldt",
	    "ioperm",
	    "iopl",
	    "kexec_load",
	    "kexec_file_load",
	    "init_module",
	    "finit_module",
	    "delete_module",
	    "reboot",
	    "swapon",
	    "quotactl",
	    "acct",
	    "syslog",
	    "settimeofday",
	    "clock_settime",
	    "adjtimex",
	    "clock_adjtime",
	    "personality",
	    "landlock_restrict_self",
	    "pkey_mprotect",
	    "rt_sigqueueinfo",
	    "rt_tgsigqueueinfo",
	    "tkill",
	    "setpgid",
	    "setsid",
	};
	static const struct {
		const char *name;
		uint64_t args[6];
	} variants[] = {
	    {"clone", {SIGCHLD}}, /* a process of its own memory: no stub, no thread */
	    {"clone", {CLONE_VM | CLONE_VFORK | CLONE_PARENT}},
	    {"clone", {CLONE_VM | CLONE_VFORK | CLONE_PTRACE}},
	    {"clone", {CLONE_VM | CLONE_VFORK | CLONE_UNTRACED | SIGCHLD}},
	    {"execveat", {AT_FDCWD, -1, -1, 0, 0}},
	    {"execveat", {CALLS_FD, -1, -1, 0, AT_EMPTY_PATH}},
	    {"execveat", {10, -1, -1, -1, AT_EMPTY_PATH}}, /* um's own, but with an environment */
	    {"prctl", {PR_SET_DUMPABLE, 1}},
	    {"prctl", {PR_SET_PTRACER, -1}},
	    {"prctl", {PR_SET_MM, PR_SET_MM_EXE_FILE, 1}},
	    {"prctl", {PR_SET_CHILD_SUBREAPER, 1}},
	    {"prctl", {PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE}},
	    {"prctl", {PR_SET_SECUREBITS, 0}},
	    {"prctl", {PR_SET_SPECULATION_CTRL, 0, 0}},
	    {"prctl", {PR_SCHED_CORE, 1}},
	    {"prctl", {PR_SET_IO_FLUSHER, 1}},
	    {"prctl", {PR_SET_SYSCALL_USER_DISPATCH, 1}},
	    {"prctl", {PR_SET_SECCOMP, SECCOMP_MODE_STRICT}},
	    {"seccomp", {SECCOMP_SET_MODE_STRICT}},
	    {"seccomp", {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER}},
	    {"seccomp",
	     {SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_LOG}},
	    {"arch_prctl", {0x3001}}, /* ARCH_CET_STATUS */
	    {"arch_prctl", {ARCH_MAP_VDSO_64}},
	    {"fcntl", {1, F_SETLEASE, F_WRLCK}}, /* would hold up the host's own opens */
	    {"fcntl", {1, F_SETLK}},
	    {"fcntl", {1, F_OFD_SETLKW}},
	    {"fcntl", {1, F_NOTIFY}},
	    {"fcntl", {1, F_SETPIPE_SZ, 1 << 20}},
	    {"fallocate", {1, 0, 0, 1 << 20}}, /* would fill the disk of the host */
	    {"fallocate", {1, FALLOC_FL_KEEP_SIZE, 0, 1 << 20}},
	    {"fallocate", {1, FALLOC_FL_ZERO_RANGE, 0, 1 << 20}},
	    {"mmap", {0, 1 << 21, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0}},
	    {"mmap", {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0}},
	    {"memfd_create", {0, MFD_HUGETLB}},
	    {"prlimit64", {1, 7, 0, 0}},
	    {"futex", {0, FUTEX_LOCK_PI}},
	    {"futex", {0, FUTEX_CMP_REQUEUE_PI}},
	    {"ioctl", {1, 0x5413}},     /* TIOCGWINSZ */
	    {"ioctl", {1, 0x400454ca}}, /* TUNSETIFF */
	    {"ioctl", {1, 0x40049409}}, /* FICLONE */
	    {"personality", {0}},
	};
	static const uint64_t spaces[] = {CLONE_NEWNS,   CLONE_NEWCGROUP,
	                                  CLONE_NEWUTS,  CLONE_NEWIPC,
	                                  CLONE_NEWUSER, CLONE_NEWPID,
	                                  CLONE_NEWNET,  0x80};
	size_t wrong = 0;

	for (size_t i = 0; i < ARRAY_LEN(never); i++) {
		int nr = seccomp_syscall_resolve_name(never[i]);

		if (nr == __NR_SCMP_ERROR) /* newer than this libseccomp: by number, above */
			continue;
		assert_true(nr >= 0);
		if (strcmp(never[i], "personality") != 0) /* with -1 it only asks */
			add((uint64_t)nr);
		memset(add((uint64_t)nr)->args, 0, sizeof(tries->args));
	}
	for (size_t i = 0; i < ARRAY_LEN(variants); i++)
		memcpy(add((uint64_t)seccomp_syscall_resolve_name(variants[i].name))->args,
		       variants[i].args, sizeof(variants[i].args));
	for (size_t i = 0; i < ARRAY_LEN(spaces); i++) {
		add(SYS_clone)->args[0] = spaces[i] | SIGCHLD;
		add(SYS_clone)->args[0] = spaces[i] | CLONE_VM | CLONE_VFORK | SIGCHLD;
		add(SYS_clone)->args[0] = spaces[i] | CLONE_VM | CLONE_VFORK;
	}
	run_all();
	for (size_t i = 0; i < tries_n; i++) {
		char text[256];

		if (refused(&tries[i]))
			continue;
		wrong++;
		describe(&tries[i], text, sizeof(text));
		print_message("not refused: %s\n", text);
	}
	assert_int_equal(wrong, 0);
}

/* By a number of x32, or by the gate of 32-bit programs: ends the process, whatever the number. */
static void another_way_in_ends_the_process(void **state)
{
	for (int by_int80 = 0; by_int80 < 2; by_int80++)
		for (uint64_t nr = 0; nr < FOREIGN; nr++) {
			siginfo_t si;

			tries_n = 0;
			add(by_int80 ? nr : nr | X32)->by_int80 = (uint32_t)by_int80;
			si = run_from(0, 1);
			assert_int_equal(tries[0].state, CALL_BEGUN);
			assert_true(si.si_code == CLD_KILLED || si.si_code == CLD_DUMPED);
			if (si.si_status == SIGSEGV && by_int80) {
				print_message("SKIP: this host has no gate of 32-bit programs\n");
				return;
			}
			assert_int_equal(si.si_status, SIGSYS);
		}
}

static int engine_begins(void **state)
{
	struct err e = {0};

	recipe = *state;
	tries_n = 0;
	memset(tries, 0, TRIES_MAX * sizeof(*tries));
	if (jail_filter_build(recipe->rules, 1, JAIL_DENY_ENOSYS, &filter, &e) < 0)
		fail_msg("%s: %s", e.kind, e.text);
	return 0;
}

static int engine_ends(void **state)
{
	jail_filter_fini(&filter);
	return 0;
}

/* Groups of a run that was killed. */
static void sweep(void)
{
	static const char command[] =
	    "for d in /sys/fs/cgroup/panda-filters /sys/fs/cgroup/*/panda-filters; do "
	    "find \"$d\" -mindepth 1 -depth -type d -exec rmdir {} \\; 2>/dev/null; "
	    "rmdir \"$d\" 2>/dev/null; done; :";

	assert_int_equal(system(command), 0);
}

static int set_up(void **state)
{
	struct jail_config cfg = {.run_dir = run_dir,
	                          .cgroup_parent = "panda-filters",
	                          .uid_base = TEST_UIDS};
	struct err e = {0};

	sweep();
	mkdir(run_dir, 0700);
	list_fd = memfd_create("calls", MFD_CLOEXEC);
	if (list_fd < 0 || ftruncate(list_fd, TRIES_MAX * sizeof(*tries)) < 0)
		return -1;
	tries =
	    mmap(NULL, TRIES_MAX * sizeof(*tries), PROT_READ | PROT_WRITE, MAP_SHARED, list_fd, 0);
	return tries == MAP_FAILED || jail_new(&cfg, &jail, &e) < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	jail_free(jail);
	sweep();
	return system("rm -rf /run/panda-filters-test");
}

#define EACH(test)                                                                    \
	{#test " (um)", test, engine_begins, engine_ends, (void *)&um_recipe},        \
	{                                                                             \
#test " (kvm)", test, engine_begins, engine_ends, (void *)&kvm_recipe \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    EACH(every_number_is_as_the_rules_say),
	    EACH(every_condition_counts),
	    EACH(no_way_out_is_in_the_rules),
	    EACH(another_way_in_ends_the_process),
	};

	if (argc != 2 || geteuid() != 0) {
		print_message("SKIP: root and jail-child are needed\n");
		return 77;
	}
	exe = open(argv[1], O_PATH | O_CLOEXEC);
	if (exe < 0) {
		print_message("cannot open %s\n", argv[1]);
		return 1;
	}
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
