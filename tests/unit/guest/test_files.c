#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "calls.h"
#include "harness.h"

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

static void large_files_come_and_go_unchanged(void **state)
{
	struct box *b = *state;
	autoclose int in = -1, out = -1;
	char cmd[512];

	snprintf(cmd, sizeof(cmd), "head -c 67108864 /dev/urandom >'%s'", path_in(b, "src"));
	assert_int_equal(system(cmd), 0);
	in = open(path_in(b, "src"), O_RDONLY | O_CLOEXEC);
	out = open(path_in(b, "back"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_ok(guest_write_from_fd(b->g, path_in(b, "copy"), in, 0, 0640, &why));
	assert_ok(guest_read_to_fd(b->g, path_in(b, "copy"), out, SIZE_MAX, &why));
	snprintf(cmd, sizeof(cmd),
	         "cd '%s' && [ $(sha256sum src copy back | cut -c1-64 | uniq | wc -l) = 1 ]",
	         b->dir);
	assert_int_equal(system(cmd), 0);
}

/* Whatever it told before: the file may have grown, and the agent may lie. */
static void no_more_is_taken_than_was_agreed(void **state)
{
	struct box *b = *state;
	autoclose int out = memfd_create("out", MFD_CLOEXEC);
	struct stat st;
	char cmd[512];

	snprintf(cmd, sizeof(cmd), "head -c 3000000 /dev/zero >'%s'", path_in(b, "large"));
	assert_int_equal(system(cmd), 0);
	assert_int_equal(guest_read_to_fd(b->g, path_in(b, "large"), out, 2999999, &why), -EFBIG);
	assert_int_equal(fstat(out, &st), 0);
	assert_true(st.st_size <= 2999999);
	assert_int_equal(ftruncate(out, 0) + lseek(out, 0, SEEK_SET), 0);
	assert_ok(guest_read_to_fd(b->g, path_in(b, "large"), out, 3000000, &why));
}

static void assert_content(const char *path, const char *want)
{
	assert_string_equal(read_small(path), want);
}

/* Names in a directory, "." and ".." aside. */
static unsigned count_names(struct guest *g, const char *dir);

struct slow_write {
	bool ended;
	int err;
};

static void slow_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct slow_write *s = arg;

	s->ended = true;
	s->err = end->err;
}

static void a_replaced_file_is_old_or_new_and_never_between(void **state)
{
	static const struct guest_ops ops = {.end = slow_end};
	struct box *b = *state;
	char *path = path_in(b, "config");
	struct wire_write m = {.path = wire_str(path)};
	struct slow_write s = {0};
	struct guest_call *c;
	struct wire_file info;

	assert_ok(guest_write_file(b->g, path, "old", 3, 0, 0600, &why));
	assert_int_equal(guest_start(b->g, WIRE_WRITE, &m, &ops, &s, &c), 0);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(guest_send(c, "new", 3), 3);
		turn(b->g); /* answered after the data was handled */
		assert_content(path, "old");
	}
	assert_int_equal(guest_send_eof(c), 0);
	turn(b->g);
	assert_true(s.ended);
	assert_int_equal(s.err, 0);
	assert_content(path, "newnewnewnewnew");
	assert_ok(guest_stat(b->g, path, true, &info, &why));
	assert_int_equal(info.mode, S_IFREG | 0600); /* as before */

	/* One that is called off changes nothing and leaves nothing. */
	s = (struct slow_write){0};
	assert_int_equal(guest_start(b->g, WIRE_WRITE, &m, &ops, &s, &c), 0);
	assert_int_equal(guest_send(c, "never", 5), 5);
	assert_int_equal(guest_cancel(c), 0);
	turn(b->g);
	assert_int_equal(s.err, ECANCELED);
	assert_content(path, "newnewnewnewnew");
	assert_ok(guest_mkdir(b->g, path_in(b, "only"), 0, false, &why));
	path = path_in(b, "only/x");
	assert_ok(guest_write_file(b->g, path, "1", 1, 0, 0, &why));
	assert_int_equal(count_names(b->g, path_in(b, "only")), 1);
}

/* Many frames come with one read, and the agent writes those of a file together. */
static void frames_that_come_together_go_where_they_belong(void **state)
{
	static const struct guest_ops ops = {.end = slow_end};
	static const char *const at[] = {"left", "right", "/dev/full", "called off"};
	struct box *b = *state;
	struct slow_write s[ARRAY_LEN(at)] = {0};
	struct guest_call *c[ARRAY_LEN(at)];
	char want[2][200] = {"", ""};

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		const char *path = at[i][0] == '/' ? at[i] : path_in(b, at[i]);
		struct wire_write m = {.path = wire_str(path)};

		assert_int_equal(guest_start(b->g, WIRE_WRITE, &m, &ops, &s[i], &c[i]), 0);
	}
	for (unsigned i = 0; i < 40; i++) {
		unsigned to = i / 11 % 2; /* long runs of one, then the other */
		char piece[8];
		size_t n = (size_t)snprintf(piece, sizeof(piece), "%u,", i);

		assert_int_equal(guest_send(c[to], piece, n), n);
		strncat(want[to], piece, sizeof(want[to]) - strlen(want[to]) - 1);
		if (i % 5 == 0)
			assert_int_equal(guest_send(c[2], "x", 1), 1);
		if (i % 7 == 0)
			assert_int_equal(guest_send(c[3], "x", 1), 1);
	}
	assert_int_equal(guest_cancel(c[3]), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(guest_send_eof(c[i]), 0);
	turn(b->g);
	assert_soon(s[0].ended && s[1].ended && s[2].ended && s[3].ended);
	assert_int_equal(s[0].err, 0);
	assert_int_equal(s[1].err, 0);
	assert_int_equal(s[2].err, ENOSPC);
	assert_int_equal(s[3].err, ECANCELED);
	assert_content(path_in(b, at[0]), want[0]);
	assert_content(path_in(b, at[1]), want[1]);
	assert_content(path_in(b, at[3]), "");
}

static void writes_follow_links_append_and_refuse(void **state)
{
	struct box *b = *state;
	struct wire_file info;
	struct err e = {0};
	char *got = NULL;
	size_t n;

	assert_ok(
	    guest_write_file(b->g, path_in(b, "deep/er/f"), "a", 1, WIRE_WRITE_PARENTS, 0, &why));
	assert_ok(guest_symlink(b->g, "deep/er/f", path_in(b, "link"), &why));
	assert_ok(guest_write_file(b->g, path_in(b, "link"), "b", 1, 0, 0, &why));
	assert_ok(guest_stat(b->g, path_in(b, "link"), false, &info, &why));
	assert_true(S_ISLNK(info.mode));
	assert_content(path_in(b, "deep/er/f"), "b");
	assert_ok(guest_write_file(b->g, path_in(b, "link"), "cd", 2, WIRE_WRITE_APPEND, 0, &why));
	assert_ok(guest_read_file(b->g, path_in(b, "link"), 100, &got, &n, &why));
	assert_int_equal(n, 3);
	assert_string_equal(got, "bcd");
	free(got);
	assert_int_equal(guest_write_file(b->g, path_in(b, "link"), "x", 1, WIRE_WRITE_EXCL, 0, &e),
	                 -EEXIST);
	assert_int_equal(guest_write_file(b->g, path_in(b, "no/such"), "x", 1, 0, 0, &e), -ENOENT);
	assert_int_equal(guest_read_file(b->g, path_in(b, "nope"), 100, &got, NULL, &e), -ENOENT);
	assert_int_equal(guest_read_file(b->g, b->dir, 100, &got, NULL, &e), -EISDIR);
	assert_int_equal(guest_read_file(b->g, path_in(b, "link"), 2, &got, NULL, &e), -EFBIG);
	assert_ok(guest_write_file(b->g, "/dev/null", "x", 1, 0, 0, &why)); /* stays a device */
	assert_ok(guest_stat(b->g, "/dev/null", true, &info, &why));
	assert_true(S_ISCHR(info.mode));
	assert_ok(
	    guest_read_file(b->g, "/proc/self/comm", 100, &got, NULL, &why)); /* says size 0 */
	assert_memory_equal(got, "panda-init", 10);
	free(got);
}

struct names {
	unsigned n, links, dirs;
	uint64_t bytes;
};

static void count(void *arg, const struct wire_file *m)
{
	struct names *k = arg;

	k->n++;
	k->bytes += S_ISREG(m->mode) ? m->size : 0;
	k->dirs += S_ISDIR(m->mode);
	k->links += S_ISLNK(m->mode) && strcmp(m->target.p, "f") == 0;
}

static unsigned count_names(struct guest *g, const char *dir)
{
	struct names k = {0};

	assert_int_equal(call_dir(g, dir, count, &k), 0);
	return k.n;
}

static void directories_are_listed_whatever_their_size(void **state)
{
	struct box *b = *state;
	struct names k = {0};
	struct err e = {0};
	char cmd[256];

	snprintf(cmd, sizeof(cmd),
	         "mkdir '%s' && cd '%s' && mkdir sub && ln -s f link && seq -f name-%%g 1 5000 | "
	         "xargs touch && printf abc >f",
	         path_in(b, "many"), path_in(b, "many"));
	assert_int_equal(system(cmd), 0);
	assert_int_equal(call_dir(b->g, path_in(b, "many"), count, &k), 0);
	assert_int_equal(k.n, 5003);
	assert_int_equal(k.dirs, 1);
	assert_int_equal(k.links, 1);
	assert_int_equal(k.bytes, 3);
	assert_int_equal(call_dir(b->g, path_in(b, "many/f"), count, &k), -ENOTDIR);
	assert_int_equal(guest_remove(b->g, path_in(b, "many"), false, &e), -ENOTEMPTY);
	assert_ok(guest_remove(b->g, path_in(b, "many"), true, &why));
	assert_int_equal(access(path_in(b, "many"), F_OK), -1);
}

/* Some 12,000 characters deep: longer than any path. */
static void make_deep(const char *top)
{
	char name[201];
	int at = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	memset(name, 'd', 200);
	name[200] = 0;
	for (int i = 0; i < 60; i++) {
		int below;

		assert_int_equal(mkdirat(at, name, 0755), 0);
		below = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(below >= 0);
		close(at);
		at = below;
	}
	close(at);
}

static void trees_are_removed_but_not_what_links_point_to(void **state)
{
	struct box *b = *state;
	struct err e = {0};
	char cmd[512];

	snprintf(cmd, sizeof(cmd),
	         "cd '%s' && mkdir keep && touch keep/me && mkdir -p t/a/b/c t/d && "
	         "touch t/a/b/c/f t/d/f && ln -s ../keep t/link",
	         b->dir);
	assert_int_equal(system(cmd), 0);
	make_deep(path_in(b, "t"));
	assert_ok(guest_remove(b->g, path_in(b, "t"), true, &why));
	assert_int_equal(access(path_in(b, "t"), F_OK), -1);
	assert_int_equal(access(path_in(b, "keep/me"), F_OK), 0);
	assert_ok(
	    guest_remove(b->g, path_in(b, "keep/me"), true, &why)); /* a file is a small tree */
	assert_int_equal(guest_remove(b->g, path_in(b, "keep/me"), true, &e), -ENOENT);
}

static void names_modes_and_links_change(void **state)
{
	struct box *b = *state;
	char one[64], two[64];
	struct wire_two_paths move = {.flags = WIRE_RENAME_NOREPLACE};
	struct wire_file info;
	struct err e = {0};
	char *target = NULL;

	snprintf(one, sizeof(one), "%s", path_in(b, "p/one"));
	snprintf(two, sizeof(two), "%s", path_in(b, "p/two"));
	move.from = wire_str(one);
	move.to = wire_str(two);
	assert_ok(guest_mkdir(b->g, path_in(b, "p/q/r"), 0700, true, &why));
	assert_ok(guest_mkdir(b->g, path_in(b, "p/q/r"), 0700, true, &why));
	assert_int_equal(guest_mkdir(b->g, path_in(b, "p/q/r"), 0700, false, &e), -EEXIST);
	assert_ok(guest_stat(b->g, path_in(b, "p/q/r"), true, &info, &why));
	assert_int_equal(info.mode, S_IFDIR | 0700);
	assert_ok(guest_write_file(b->g, path_in(b, "p/one"), "1", 1, 0, 0, &why));
	assert_ok(guest_write_file(b->g, path_in(b, "p/two"), "22", 2, 0, 0, &why));
	assert_int_equal(guest_ask(b->g, WIRE_RENAME, &move, "rename", &e), -EEXIST);
	move.flags = 0;
	assert_ok(guest_ask(b->g, WIRE_RENAME, &move, "rename", &why));
	assert_content(path_in(b, "p/two"), "1");
	assert_ok(guest_ask(b->g, WIRE_CHMOD,
	                    &(struct wire_path_flags){.path = wire_str(path_in(b, "p/two")),
	                                              .flags = 0755},
	                    "chmod", &why));
	assert_ok(guest_stat(b->g, path_in(b, "p/two"), true, &info, &why));
	assert_int_equal(info.mode, S_IFREG | 0755);
	assert_int_equal(info.size, 1);
	assert_true(info.mtime_ns > 1600000000ull * 1000000000);
	assert_ok(guest_symlink(b->g, "anywhere at all", path_in(b, "p/l"), &why));
	assert_ok(guest_readlink(b->g, path_in(b, "p/l"), &target, &why));
	assert_string_equal(target, "anywhere at all");
	free(target);
	assert_int_equal(guest_readlink(b->g, path_in(b, "p/two"), &target, &e), -EINVAL);
	assert_int_equal(guest_stat(b->g, path_in(b, "p/l"), true, &info, &e), -ENOENT);
}

/* ---- watch ---- */

struct seen {
	struct box *b;
	unsigned created, written, moved_from, moved_to, deleted;
	uint32_t cookie;
};

static void make_changes(void *arg)
{
	struct seen *s = arg;
	char cmd[256];

	snprintf(cmd, sizeof(cmd),
	         "cd '%s/w' && mkdir -p new/deep && echo x >new/deep/file && mv old/a old/b && rm "
	         "old/b && "
	         "touch last",
	         s->b->dir);
	assert_int_equal(system(cmd), 0);
}

static bool see(void *arg, const struct wire_event *m)
{
	struct seen *s = arg;

	s->created += (m->what & WIRE_EV_CREATE) && strcmp(m->path.p, "new/deep/file") == 0;
	if ((m->what & WIRE_EV_MOVED_FROM) && strcmp(m->path.p, "old/a") == 0) {
		s->moved_from++;
		s->cookie = m->cookie;
	}
	if ((m->what & WIRE_EV_MOVED_TO) && strcmp(m->path.p, "old/b") == 0) {
		s->moved_to++;
		assert_int_equal(m->cookie, s->cookie);
	}
	s->deleted += (m->what & WIRE_EV_DELETE) && strcmp(m->path.p, "old/b") == 0;
	return !((m->what & WIRE_EV_WRITTEN) && strcmp(m->path.p, "last") == 0);
}

static void a_watch_sees_all_below(void **state)
{
	struct box *b = *state;
	struct seen s = {.b = b};
	char cmd[256];

	snprintf(cmd, sizeof(cmd), "mkdir -p '%s/w/old' && touch '%s/w/old/a'", b->dir, b->dir);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(call_watch(b->g, path_in(b, "w"), make_changes, see, &s), 0);
	assert_true(s.created >= 1); /* twice, when it came while its directory was being added */
	assert_int_equal(s.moved_from, 1);
	assert_int_equal(s.moved_to, 1);
	assert_int_equal(s.deleted, 1);
	assert_int_equal(call_watch(b->g, path_in(b, "absent"), NULL, see, &s), -ENOENT);
	turn(b->g); /* the connection is as good as before */
}

/* ---- ports ---- */

/* A server of one connection that sends back all it got, once the other side is done. */
static pid_t echo_server(int family, unsigned *port)
{
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr *addr = family == AF_INET ? (struct sockaddr *)&a4 : (struct sockaddr *)&a6;
	socklen_t n = family == AF_INET ? sizeof(a4) : sizeof(a6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pid_t pid;

	if (fd < 0 || bind(fd, addr, n) < 0 || listen(fd, 1) < 0 || getsockname(fd, addr, &n) < 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	*port = ntohs(family == AF_INET ? a4.sin_port : a6.sin6_port);
	pid = fork();
	if (pid == 0) {
		static char all[1 << 20];
		size_t have = 0;
		int c = accept(fd, NULL, NULL);
		ssize_t r;

		while ((r = read(c, all + have, sizeof(all) - have)) > 0)
			have += (size_t)r;
		_exit(io_write_full(c, all, have) == 0 ? 0 : 1);
	}
	close(fd);
	return pid;
}

static void through_port(struct box *b, int family)
{
	autoclose int in = -1, out = -1;
	char cmd[512];
	unsigned port = 0;
	int status;
	pid_t pid = echo_server(family, &port);

	if (pid < 0 && family == AF_INET6)
		return; /* a host without IPv6 */
	assert_true(pid > 0);
	snprintf(cmd, sizeof(cmd), "head -c 700000 /dev/urandom >'%s'", path_in(b, "sent"));
	assert_int_equal(system(cmd), 0);
	in = open(path_in(b, "sent"), O_RDONLY | O_CLOEXEC);
	out = open(path_in(b, "received"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_int_equal(call_connect(b->g, port, in, out), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	snprintf(cmd, sizeof(cmd), "cmp '%s' '%s'", path_in(b, "sent"), path_in(b, "received"));
	assert_int_equal(system(cmd), 0);
}

static void a_port_carries_bytes_both_ways(void **state)
{
	struct box *b = *state;
	autoclose int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	unsigned port = 0;
	int status;
	pid_t pid;

	through_port(b, AF_INET);
	through_port(b, AF_INET6);
	pid = echo_server(AF_INET, &port); /* a port that was free a moment ago */
	assert_int_equal(call_connect(b->g, port, null, null), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(call_connect(b->g, port, null, null), -ECONNREFUSED);
	assert_int_equal(call_connect(b->g, 70000, null, null), -EINVAL);
}

static void the_machine_tells_its_figures(void **state)
{
	struct box *b = *state;
	struct wire_stats m;

	assert_ok(guest_stats(b->g, &m, &why));
	assert_true(m.mem_total > 0 && m.mem_available <= m.mem_total && m.mem_available > 0);
	assert_true(m.disk_total > 0 && m.disk_free <= m.disk_total);
	assert_true(m.processes > 0 && m.uptime_ms > 0);
	assert_true(m.cpu_busy_ms > 0 && m.cpu_idle_ms > 0);
	assert_ok(guest_sync(b->g, &why));
}

/* The tests' own machine is not theirs to change: only as PID 1 does the agent mount anything. */
static void only_an_init_mounts_volumes(void **state)
{
	struct box *b = *state;
	struct wire_reborn m = {.generation = 77};
	struct wire_mount mounts[] = {{.volume = 4, .path = wire_str("/a")},
	                              {.volume = 5, .path = wire_str("/b")}};
	struct wire_stats stats;
	struct err e = {0};

	assert_int_equal(guest_mount(b->g, 0, "/nowhere/at/all", false, &e), -EPERM);
	assert_non_null(strstr(e.text, "volume 0 at /nowhere/at/all"));
	assert_int_equal(access("/nowhere", F_OK), -1);
	assert_int_equal(guest_umount(b->g, "/proc", true, &e), -EPERM);
	assert_int_equal(guest_umount_lost(b->g, &e), -EPERM);
	assert_int_equal(guest_grow(b->g, 0, "/", &e), -EPERM);
	assert_int_equal(guest_freeze(b->g, 0, "/", &e), -EPERM);
	assert_int_equal(guest_thaw(b->g, &e), -EINVAL);
	/* All in one write: the identity is taken, the first mount that fails is told. */
	assert_int_equal(guest_reborn_mount(b->g, &m, mounts, 0, &why), 0);
	m.generation = 78;
	assert_int_equal(guest_reborn_mount(b->g, &m, mounts, 2, &e), -EPERM);
	assert_non_null(strstr(e.text, "volume 4 at /a"));
	assert_ok(guest_stats(b->g, &stats, &why));
	assert_int_equal(stats.generation, 78);
	assert_ok(guest_sync(b->g, &why)); /* and the connection lives on */
}

struct meanwhile {
	const char *path;
	unsigned n;
	bool seen;
};

/* The request was written before: the agent acts on it while we are here. */
static void look_for_it(void *arg)
{
	struct meanwhile *m = arg;

	m->n++;
	for (int i = 0; i < 2000 && !m->seen; i++) {
		m->seen = access(m->path, F_OK) == 0;
		if (!m->seen)
			usleep(5000);
	}
}

static void something_can_be_done_while_the_guest_thinks(void **state)
{
	struct box *b = *state;
	char path[PATH_MAX];
	struct meanwhile m = {.path = path};

	snprintf(path, sizeof(path), "%s/meanwhile", b->dir);
	guest_set_meanwhile(b->g, look_for_it, &m);
	assert_ok(guest_mkdir(b->g, path, 0700, false, &why));
	assert_true(m.seen);
	assert_ok(guest_remove(b->g, path, false, &why)); /* once is once */
	assert_int_equal(m.n, 1);
}

const struct CMUnitTest file_tests[] = {
    TEST(large_files_come_and_go_unchanged),
    TEST(no_more_is_taken_than_was_agreed),
    TEST(a_replaced_file_is_old_or_new_and_never_between),
    TEST(frames_that_come_together_go_where_they_belong),
    TEST(writes_follow_links_append_and_refuse),
    TEST(directories_are_listed_whatever_their_size),
    TEST(trees_are_removed_but_not_what_links_point_to),
    TEST(names_modes_and_links_change),
    TEST(a_watch_sees_all_below),
    TEST(a_port_carries_bytes_both_ways),
    TEST(the_machine_tells_its_figures),
    TEST(only_an_init_mounts_volumes),
    TEST(something_can_be_done_while_the_guest_thinks),
};
const size_t n_file_tests = ARRAY_LEN(file_tests);
