/*
 * Paths and texts, against directories that only look like control groups. A fake cgroup has the
 * files a test made in it; the kernel would fill a new directory by itself, a fake stays empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "jail/cgroup.h"

enum {
	PATH = 512,
	SMALL = 4096,
};

static char root[] = "/tmp/jail-cg-XXXXXX";

static void put(const char *path, const char *text)
{
	char full[PATH];
	autoclose int fd = -1;

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *p = full + sizeof(root); (p = strchr(p, '/')); *p++ = '/') {
		*p = 0;
		mkdir(full, 0755);
	}
	fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(io_write_full(fd, text, strlen(text)), 0);
}

static void assert_file(const char *path, const char *want)
{
	autofree char *text = NULL;
	char full[PATH];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	assert_int_equal(io_read_file(AT_FDCWD, full, SMALL, &text, NULL), 0);
	assert_string_equal(text, want);
}

static bool exists(const char *path)
{
	char full[PATH];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	return access(full, F_OK) == 0;
}

static struct cg_host *open_host(const char *fmt)
{
	struct cg_host *h = NULL;
	autofree char *text = NULL;

	/* %1$s is the root, as often as a line needs it */
	assert_true(asprintf(&text, fmt, root) > 0);
	assert_int_equal(cg_open(text, "panda/machines", &h), 0);
	return h;
}

static const char v1_mounts[] =
    "22 1 0:20 / /proc rw shared:1 - proc proc rw\n"
    "30 20 0:26 / %1$s/v1/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "31 20 0:27 / %1$s/v1/memory rw - cgroup cgroup rw,memory\n"
    "32 20 0:28 / %1$s/v1/pids rw - cgroup cgroup rw,pids\n"
    "33 20 0:29 / %1$s/v1/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "34 20 0:27 / %1$s/v1/memory-again rw - cgroup cgroup rw,memory\n"
    "garbage\n";

static const char v2_mounts[] =
    "30 20 0:26 / %1$s/v2 rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n";

static void make_v1(void)
{
	static const char *const dirs[] = {"cpu,cpuacct", "memory", "pids", "systemd",
	                                   "memory-again"};
	char path[PATH];

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		snprintf(path, sizeof(path), "v1/%s/cgroup.procs", dirs[i]);
		put(path, "");
	}
}

static void make_v2(const char *available, const char *enabled)
{
	static const char *const dirs[] = {"v2", "v2/panda", "v2/panda/machines"};
	char path[PATH];

	for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
		snprintf(path, sizeof(path), "%s/cgroup.controllers", dirs[i]);
		put(path, available);
		snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dirs[i]);
		put(path, enabled);
	}
}

static void v1_groups_are_made_in_every_tree_once(void **state)
{
	struct cg_host *h;

	make_v1();
	h = open_host(v1_mounts);
	assert_int_equal(cg_have(h), CG_MEMORY | CG_CPU | CG_CPUACCT | CG_PIDS);
	assert_string_equal(cg_describe(h), "v1: cpu cpuacct memory pids");
	assert_string_equal(cg_why(h), "");
	assert_int_equal(cg_create(h, "m1"), 0);
	assert_true(exists("v1/cpu,cpuacct/panda/machines/m1"));
	assert_true(exists("v1/memory/panda/machines/m1"));
	assert_true(exists("v1/pids/panda/machines/m1"));
	assert_false(exists("v1/systemd/panda"));
	assert_false(exists("v1/memory-again/panda"));
	assert_int_equal(cg_v2_dir(h, "m1"), -ENOENT);
	assert_int_equal(cg_remove(h, "m1", 0), 0);
	assert_false(exists("v1/memory/panda/machines/m1"));
	assert_int_equal(cg_remove(h, "m1", 0), 0);
	cg_close(h);
}

static void an_id_that_exists_anywhere_is_refused_whole(void **state)
{
	struct cg_host *h;

	make_v1();
	h = open_host(v1_mounts);
	put("v1/pids/panda/machines/m2/pids.current", "1\n");
	assert_int_equal(cg_create(h, "m2"), -EEXIST);
	assert_false(exists("v1/memory/panda/machines/m2"));
	assert_int_equal(cg_create(h, "../up"), -EINVAL);
	assert_int_equal(cg_create(h, ""), -EINVAL);
	assert_int_equal(cg_create(h, "a b"), -EINVAL);
	cg_close(h);
}

static void v1_limits_are_written(void **state)
{
	struct cg_limits lim = {.memory_max = 5 << 20, .cpu_max_percent = 250, .pids_max = 7};
	struct cg_join joins[CG_TREES_MAX];
	struct cg_host *h;
	size_t n = 0;

	make_v1();
	put("v1/memory/panda/machines/m3/memory.limit_in_bytes", "");
	put("v1/memory/panda/machines/m3/memory.memsw.limit_in_bytes", "");
	put("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_period_us", "");
	put("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_quota_us", "");
	put("v1/pids/panda/machines/m3/pids.max", "");
	h = open_host(v1_mounts);
	assert_int_equal(cg_limit(h, "m3", &lim), 0);
	assert_file("v1/memory/panda/machines/m3/memory.limit_in_bytes", "5242880");
	assert_file("v1/memory/panda/machines/m3/memory.memsw.limit_in_bytes", "5242880");
	assert_file("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_period_us", "100000");
	assert_file("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_quota_us", "250000");
	assert_file("v1/pids/panda/machines/m3/pids.max", "7");
	assert_int_equal(cg_v1_joins(h, "m3", joins, &n), 0);
	assert_int_equal(n, 3);
	assert_string_equal(joins[0].path, "panda/machines/m3/tasks");
	/* a limit that cannot be written is never passed over */
	assert_int_equal(cg_limit(h, "absent", &lim), -ENOENT);
	cg_close(h);
}

static void v1_stats_are_read(void **state)
{
	struct cg_stats st;
	struct cg_host *h;

	make_v1();
	put("v1/memory/panda/machines/m4/memory.usage_in_bytes", "4096\n");
	put("v1/memory/panda/machines/m4/memory.max_usage_in_bytes", "8192\n");
	put("v1/memory/panda/machines/m4/memory.oom_control",
	    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
	put("v1/cpu,cpuacct/panda/machines/m4/cpuacct.usage", "123456789\n");
	put("v1/pids/panda/machines/m4/pids.current", "junk\n");
	h = open_host(v1_mounts);
	assert_int_equal(cg_stats(h, "m4", &st), 0);
	assert_int_equal(st.have, CG_MEMORY | CG_CPUACCT); /* junk is not a number of pids */
	assert_int_equal(st.memory_bytes, 4096);
	assert_int_equal(st.memory_peak_bytes, 8192);
	assert_int_equal(st.oom_kills, 3);
	assert_int_equal(st.cpu_ns, 123456789);
	assert_int_equal(cg_stats(h, "absent", &st), -ENOENT);
	cg_close(h);
}

static void v2_controllers_are_switched_on_all_the_way_down(void **state)
{
	struct cg_host *h;

	make_v2("cpuset cpu io memory pids\n", "");
	h = open_host(v2_mounts);
	assert_file("v2/cgroup.subtree_control", "+memory +cpu +pids");
	assert_file("v2/panda/cgroup.subtree_control", "+memory +cpu +pids");
	assert_file("v2/panda/machines/cgroup.subtree_control", "+memory +cpu +pids");
	cg_close(h);

	/* what is on already is not touched: somebody else may manage that file */
	make_v2("cpuset cpu io memory pids\n", "cpu memory pids\n");
	h = open_host(v2_mounts);
	assert_file("v2/cgroup.subtree_control", "cpu memory pids\n");
	assert_int_equal(cg_have(h), CG_MEMORY | CG_CPU | CG_PIDS);
	assert_string_equal(cg_describe(h), "v2: memory cpu pids kill");
	cg_close(h);
}

static void v2_limits_are_written(void **state)
{
	struct cg_limits lim = {.memory_max = 5 << 20, .cpu_max_percent = 50, .pids_max = 7};
	struct cg_join joins[CG_TREES_MAX];
	autoclose int dir = -1;
	struct cg_host *h;
	size_t n = 9;

	make_v2("cpu memory pids\n", "cpu memory pids\n");
	put("v2/panda/machines/m5/memory.max", "");
	put("v2/panda/machines/m5/memory.oom.group", "");
	put("v2/panda/machines/m5/cpu.max", "");
	put("v2/panda/machines/m5/pids.max", "");
	h = open_host(v2_mounts);
	assert_int_equal(cg_limit(h, "m5", &lim), 0); /* a host without swap accounting */
	put("v2/panda/machines/m5/memory.swap.max", "");
	assert_int_equal(cg_limit(h, "m5", &lim), 0);
	assert_file("v2/panda/machines/m5/memory.max", "5242880");
	assert_file("v2/panda/machines/m5/memory.swap.max", "0");
	assert_file("v2/panda/machines/m5/memory.oom.group", "1");
	assert_file("v2/panda/machines/m5/cpu.max", "50000 100000");
	assert_file("v2/panda/machines/m5/pids.max", "7");
	dir = cg_v2_dir(h, "m5");
	assert_true(dir >= 0);
	assert_int_equal(cg_v1_joins(h, "m5", joins, &n), 0);
	assert_int_equal(n, 0);
	cg_close(h);
}

static void v2_stats_are_read(void **state)
{
	struct cg_stats st;
	struct cg_host *h;

	make_v2("cpu memory pids\n", "cpu memory pids\n");
	put("v2/panda/machines/m6/memory.current", "4096\n");
	put("v2/panda/machines/m6/memory.events", "low 0\nmax 2\noom 1\noom_kill 1\n");
	put("v2/panda/machines/m6/cpu.stat", "usage_usec 1500\nuser_usec 1000\n");
	put("v2/panda/machines/m6/pids.current", "5\n");
	h = open_host(v2_mounts);
	assert_int_equal(cg_stats(h, "m6", &st), 0);
	assert_int_equal(st.have, CG_MEMORY | CG_CPUACCT | CG_PIDS);
	assert_int_equal(st.memory_bytes, 4096);
	assert_int_equal(st.memory_peak_bytes, 0); /* older than 5.19 */
	assert_int_equal(st.oom_kills, 1);
	assert_int_equal(st.cpu_ns, 1500000);
	assert_int_equal(st.pids, 5);
	cg_close(h);
}

static void a_v2_tree_without_controllers_still_kills(void **state)
{
	struct cg_host *h;

	make_v2("hugetlb\n", "");
	put("v2/panda/machines/m7/cgroup.procs", "1\n");
	put("v2/panda/machines/m7/cgroup.kill", "");
	h = open_host(v2_mounts);
	assert_int_equal(cg_have(h), 0);
	assert_string_equal(cg_describe(h), "v2: kill");
	/* the fake lists pid 1 for ever; it is the file that is asked, nobody is signalled */
	assert_int_equal(cg_kill(h, "m7", 0), -ETIMEDOUT);
	assert_file("v2/panda/machines/m7/cgroup.kill", "1");
	assert_int_equal(cg_kill(h, "absent", 0), 0);
	cg_close(h);
}

static void where_there_is_no_kill_file_each_process_is_signalled(void **state)
{
	char pid_text[32];
	struct cg_host *h;
	siginfo_t si = {0};
	pid_t pid = fork();

	if (pid == 0)
		for (;;)
			pause();
	make_v1();
	snprintf(pid_text, sizeof(pid_text), "%d\n", pid);
	put("v1/pids/panda/machines/m8/cgroup.procs", pid_text);
	h = open_host(v1_mounts);
	assert_int_equal(cg_kill(h, "m8", 0), -ETIMEDOUT); /* the fake list does not shrink */
	assert_int_equal(waitid(P_PID, (id_t)pid, &si, WEXITED), 0);
	assert_int_equal(si.si_status, SIGKILL);
	put("v1/pids/panda/machines/m8/cgroup.procs", "");
	assert_int_equal(cg_kill(h, "m8", 0), 0);
	cg_close(h);
}

static void a_tree_that_cannot_be_used_is_explained(void **state)
{
	struct cg_host *h;

	put("flat", "a file where the mount should be");
	h = open_host("30 20 0:26 / %1$s/flat rw - cgroup cgroup rw,memory\n");
	assert_int_equal(cg_have(h), 0);
	assert_string_equal(cg_describe(h), "none");
	assert_non_null(strstr(cg_why(h), "flat/panda/machines: Not a directory"));
	cg_close(h);
	assert_int_equal(cg_open("", "/absolute", &h), -EINVAL);
	assert_int_equal(cg_open("", "a/../b", &h), -EINVAL);
}

static int set_up(void **state)
{
	return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	return remove(path);
}

static int tear_down(void **state)
{
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(v1_groups_are_made_in_every_tree_once),
	    cmocka_unit_test(an_id_that_exists_anywhere_is_refused_whole),
	    cmocka_unit_test(v1_limits_are_written),
	    cmocka_unit_test(v1_stats_are_read),
	    cmocka_unit_test(v2_controllers_are_switched_on_all_the_way_down),
	    cmocka_unit_test(v2_limits_are_written),
	    cmocka_unit_test(v2_stats_are_read),
	    cmocka_unit_test(a_v2_tree_without_controllers_still_kills),
	    cmocka_unit_test(where_there_is_no_kill_file_each_process_is_signalled),
	    cmocka_unit_test(a_tree_that_cannot_be_used_is_explained),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
