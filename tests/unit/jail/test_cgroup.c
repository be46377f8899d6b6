/*
 * Paths and texts, against directories that only look like control groups. A fake cgroup has the
 * files a test made in it; the kernel would fill a new directory by itself, a fake stays empty.
 */
#include <dirent.h>
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
	char full[PATH + 32];
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
	char full[PATH + 32];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	assert_int_equal(io_read_file(AT_FDCWD, full, SMALL, &text, NULL), 0);
	assert_string_equal(text, want);
}

static bool exists(const char *path)
{
	char full[PATH + 32];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	return access(full, F_OK) == 0;
}

static struct cg_host *open_shared(const char *fmt, const struct cg_share *share)
{
	struct cg_host *h = NULL;
	autofree char *text = NULL;

	/* %1$s is the root, as often as a line needs it */
	assert_true(asprintf(&text, fmt, root) > 0);
	assert_int_equal(cg_open(text, "panda/machines", share, &h), 0);
	return h;
}

static struct cg_host *open_host(const char *fmt)
{
	return open_shared(fmt, NULL);
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
	assert_int_equal(cg_create(h, NULL, "m1"), 0);
	assert_true(exists("v1/cpu,cpuacct/panda/machines/m1"));
	assert_true(exists("v1/memory/panda/machines/m1"));
	assert_true(exists("v1/pids/panda/machines/m1"));
	assert_false(exists("v1/systemd/panda"));
	assert_false(exists("v1/memory-again/panda"));
	assert_int_equal(cg_v2_dir(h, NULL, "m1"), -ENOENT);
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
	assert_int_equal(cg_create(h, NULL, "m2"), -EEXIST);
	assert_false(exists("v1/memory/panda/machines/m2"));
	assert_int_equal(cg_create(h, NULL, "../up"), -EINVAL);
	assert_int_equal(cg_create(h, NULL, ""), -EINVAL);
	assert_int_equal(cg_create(h, NULL, "a b"), -EINVAL);
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
	assert_int_equal(cg_limit(h, NULL, "m3", &lim), 0);
	assert_file("v1/memory/panda/machines/m3/memory.limit_in_bytes", "5242880");
	assert_file("v1/memory/panda/machines/m3/memory.memsw.limit_in_bytes", "5242880");
	assert_file("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_period_us", "100000");
	assert_file("v1/cpu,cpuacct/panda/machines/m3/cpu.cfs_quota_us", "250000");
	assert_file("v1/pids/panda/machines/m3/pids.max", "7");
	assert_int_equal(cg_v1_joins(h, NULL, "m3", joins, &n), 0);
	assert_int_equal(n, 3);
	assert_string_equal(joins[0].path, "panda/machines/m3/tasks");
	/* a limit that cannot be written is never passed over */
	assert_int_equal(cg_limit(h, NULL, "absent", &lim), -ENOENT);
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
	assert_int_equal(cg_limit(h, NULL, "m5", &lim), 0); /* a host without swap accounting */
	put("v2/panda/machines/m5/memory.swap.max", "");
	assert_int_equal(cg_limit(h, NULL, "m5", &lim), 0);
	assert_file("v2/panda/machines/m5/memory.max", "5242880");
	assert_file("v2/panda/machines/m5/memory.swap.max", "0");
	assert_file("v2/panda/machines/m5/memory.oom.group", "1");
	assert_file("v2/panda/machines/m5/cpu.max", "50000 100000");
	assert_file("v2/panda/machines/m5/pids.max", "7");
	dir = cg_v2_dir(h, NULL, "m5");
	assert_true(dir >= 0);
	assert_int_equal(cg_v1_joins(h, NULL, "m5", joins, &n), 0);
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
	assert_int_equal(cg_open("", "/absolute", NULL, &h), -EINVAL);
	assert_int_equal(cg_open("", "a/../b", NULL, &h), -EINVAL);
}

/* The one group of a tenant below this directory; "": there is none. */
static void find_tenant(const char *dir, char ret[PATH])
{
	char full[PATH + 32];
	struct dirent *e;
	autoclosedir DIR *d = NULL;

	*ret = 0;
	snprintf(full, sizeof(full), "%s/%s", root, dir);
	d = opendir(full);
	assert_non_null(d);
	while ((e = readdir(d))) {
		if (strncmp(e->d_name, "tenant.", 7) != 0 || !strcmp(e->d_name, "tenant.none"))
			continue;
		assert_string_equal(ret, "");
		snprintf(ret, PATH, "%.200s/%.100s", dir, e->d_name);
	}
}

static bool exists_in(const char *dir, const char *name)
{
	char path[PATH];

	snprintf(path, sizeof(path), "%.300s/%.100s", dir, name);
	return exists(path);
}

static void v2_machines_are_below_their_tenant(void **state)
{
	char tenant[PATH], path[PATH];
	struct cg_stats st;
	struct cg_host *h;

	make_v2("cpu memory pids\n", "cpu memory pids\n");
	h = open_host(v2_mounts);
	assert_int_equal(cg_create(h, "acme/../ inc", "t1"), 0);
	assert_int_equal(cg_create(h, "acme/../ inc", "t2"), 0);
	assert_int_equal(cg_create(h, "acme/../ inc", "t2"), -EEXIST);
	assert_int_equal(cg_create(h, "", "t3"), 0);
	find_tenant("v2/panda/machines", tenant);
	assert_null(strstr(tenant, "acme"));
	assert_true(exists_in(tenant, "t1"));
	assert_true(exists_in(tenant, "t2"));
	assert_true(exists("v2/panda/machines/tenant.none/t3"));
	snprintf(path, sizeof(path), "%.300s/t2/pids.current", tenant);
	put(path, "5\n");
	assert_int_equal(cg_stats(h, "t2", &st), 0); /* found by its id alone */
	assert_int_equal(st.pids, 5);
	snprintf(path, sizeof(path), "%s/%.300s/t2/pids.current", root, tenant);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(cg_remove(h, "t1", 0), 0);
	assert_true(exists_in(tenant, ""));
	assert_int_equal(cg_remove(h, "t2", 0), 0);
	assert_false(exists_in(tenant, "")); /* the last one */
	assert_int_equal(cg_remove(h, "t3", 0), 0);
	assert_false(exists("v2/panda/machines/tenant.none"));
	cg_close(h);
}

static void v1_only_the_tree_of_the_cpu_has_tenants(void **state)
{
	struct cg_limits lim = {.cpu_max_percent = 400};
	struct cg_share share = {.tenant_cpu_percent = 150};
	struct cg_join joins[CG_TREES_MAX];
	char tenant[PATH], path[PATH];
	struct cg_host *h;
	size_t n = 0;

	make_v1();
	h = open_shared(v1_mounts, &share);
	/* A fake group has no files of itself, so its tenant's cannot be limited. */
	assert_int_equal(cg_create(h, "acme", "t4"), -ENOTSUP);
	assert_false(exists("v1/memory/panda/machines/t4"));
	find_tenant("v1/cpu,cpuacct/panda/machines", tenant);
	assert_string_equal(tenant, "");
	cg_close(h);
	h = open_host(v1_mounts);
	assert_int_equal(cg_create(h, "acme", "t4"), 0);
	cg_close(h);
	h = open_shared(v1_mounts, &share);
	find_tenant("v1/cpu,cpuacct/panda/machines", tenant);
	assert_true(exists_in(tenant, "t4"));
	assert_true(exists("v1/memory/panda/machines/t4"));
	assert_true(exists("v1/pids/panda/machines/t4"));
	assert_int_equal(cg_v1_joins(h, "acme", "t4", joins, &n), 0);
	assert_int_equal(n, 3);
	assert_string_equal(joins[1].path, "panda/machines/t4/tasks");
	assert_non_null(strstr(joins[0].path, "/tenant."));
	snprintf(path, sizeof(path), "%.300s/t4/cpu.cfs_period_us", tenant);
	put(path, "");
	snprintf(path, sizeof(path), "%.300s/t4/cpu.cfs_quota_us", tenant);
	put(path, "");
	assert_int_equal(cg_limit(h, "acme", "t4", &lim), 0);
	assert_file(path, "150000"); /* v1 takes no more than what the tenant has */
	cg_close(h);
}

static void a_machine_moves_to_its_tenant_with_its_limits(void **state)
{
	char pid_text[32], tenant[PATH], path[PATH];
	struct cg_host *h;

	make_v2("cpu memory pids\n", "cpu memory pids\n");
	h = open_host(v2_mounts);
	assert_int_equal(cg_move(h, "absent", "zeta", 0), 0);
	assert_int_equal(cg_create(h, "zeta", "t5"), 0); /* a move that was not finished */
	find_tenant("v2/panda/machines", tenant);
	snprintf(path, sizeof(path), "%.300s/t5/memory.max", tenant);
	put(path, "");
	snprintf(path, sizeof(path), "%.300s/t5/cgroup.procs", tenant);
	put(path, "");
	snprintf(pid_text, sizeof(pid_text), "%d\n", getpid());
	put("v2/panda/machines/tenant.none/t5/cgroup.procs", pid_text);
	put("v2/panda/machines/tenant.none/t5/memory.max", "123\n");
	/* The fake list does not shrink. */
	assert_int_equal(cg_move(h, "t5", "zeta", 0), -ETIMEDOUT);
	pid_text[strlen(pid_text) - 1] = 0;
	assert_file(path, pid_text);
	snprintf(path, sizeof(path), "%.300s/t5/memory.max", tenant);
	assert_file(path, "123\n");
	assert_int_equal(cg_move(h, "../t5", "zeta", 0), -EINVAL);
	cg_close(h);
}

static void what_is_there_gets_the_share_and_goes_when_it_is_empty(void **state)
{
	struct cg_share share = {.cpu_weight = 50, .io_weight = 200};
	struct cg_host *h;

	make_v2("cpu io memory pids\n", "");
	put("v2/panda/machines/cpu.weight", "");
	put("v2/panda/machines/io.weight", "");
	put("v2/panda/machines/tenant.0123/cpu.max", "");
	put("v2/panda/machines/tenant.4567/gone", "");
	assert_int_equal(chdir(root), 0);
	assert_int_equal(unlink("v2/panda/machines/tenant.4567/gone"), 0);
	h = open_shared(v2_mounts, &share);
	assert_file("v2/cgroup.subtree_control", "+memory +cpu +pids +io");
	put("v2/panda/machines/cgroup.subtree_control", "cpu io memory pids\n");
	cg_close(h);
	h = open_shared(v2_mounts, &share);
	cg_settle(h);
	assert_file("v2/panda/machines/cpu.weight", "50");
	assert_file("v2/panda/machines/io.weight", "200");
	assert_file("v2/panda/machines/tenant.0123/cpu.max", "max");
	assert_false(exists("v2/panda/machines/tenant.4567"));
	cg_close(h);
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
	    cmocka_unit_test(v2_machines_are_below_their_tenant),
	    cmocka_unit_test(v1_only_the_tree_of_the_cpu_has_tenants),
	    cmocka_unit_test(a_machine_moves_to_its_tenant_with_its_limits),
	    cmocka_unit_test(what_is_there_gets_the_share_and_goes_when_it_is_empty),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
