/*
 * base/io.h: whole reads and writes, small files, fds over sockets.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

struct place {
	char path[64];
	int fd;
};

static int entries(int dirfd)
{
	autoclosedir DIR *d = fdopendir(openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	int n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	return n;
}

static int open_fds(void)
{
	autoclose int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return entries(dir);
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	snprintf(p->path, sizeof(p->path), "/tmp/panda-io-XXXXXX");
	assert_non_null(mkdtemp(p->path));
	p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(p->fd >= 0);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;
	autoclosedir DIR *d = fdopendir(p->fd);

	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(p->fd, e->d_name, 0);
	assert_int_equal(rmdir(p->path), 0);
	free(p);
	return 0;
}

static void put(struct place *p, const char *name, size_t n)
{
	autoclose int fd = openat(p->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	autofree char *bytes = malloc(n + 1);

	assert_true(fd >= 0 && bytes);
	for (size_t i = 0; i < n; i++)
		bytes[i] = (char)('a' + i % 26);
	assert_int_equal(io_write_full(fd, bytes, n), 0);
}

static void reads_and_writes_are_whole_or_say_so(void **state)
{
	autoclose int fd = memfd_create("io", MFD_CLOEXEC);
	autoclose int ro = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char buf[8] = "";

	assert_int_equal(io_pwrite_full(fd, "abcdef", 6, 0), 0);
	assert_int_equal(io_pread_full(fd, buf, 6, 0), 0);
	assert_memory_equal(buf, "abcdef", 6);
	assert_int_equal(io_pread_full(fd, buf, 2, 5), -ENODATA);
	assert_int_equal(io_pread_full(fd, buf, 0, 99), 0);
	assert_int_equal(io_write_full(ro, "x", 1), -EBADF);
	assert_int_equal(io_pwrite_full(ro, "x", 1, 0), -EBADF);
}

/* A pipe that is read in small pieces takes what it has room for; the rest goes with the next
 * write. */
static void a_write_goes_on_until_all_is_written(void **state)
{
	char in[200000], out[sizeof(in)];
	size_t have = 0;
	int p[2], status;
	ssize_t r;
	pid_t pid;

	for (size_t i = 0; i < sizeof(in); i++)
		in[i] = (char)(i * 7);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0)
		_exit(io_write_full(p[1], in, sizeof(in)) == 0 ? 0 : 1);
	close(p[1]);
	while ((r = read(p[0], out + have, MIN(sizeof(out) - have, (size_t)999))) > 0)
		have += (size_t)r;
	assert_int_equal(have, sizeof(in));
	assert_memory_equal(in, out, sizeof(in));
	close(p[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void a_file_is_read_up_to_its_limit_and_not_past_it(void **state)
{
	struct place *p = *state;
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 8192, 100000};

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		autofree char *text = NULL;
		char *untouched = (char *)p;
		size_t n = 1;

		put(p, "f", sizes[i]);
		assert_int_equal(io_read_file(p->fd, "f", sizes[i], &text, &n), 0);
		assert_int_equal(n, sizes[i]);
		assert_int_equal(text[n], 0);
		if (n)
			assert_int_equal(text[n - 1], 'a' + (n - 1) % 26);
		if (sizes[i] == 0)
			continue;
		assert_int_equal(io_read_file(p->fd, "f", sizes[i] - 1, &untouched, &n), -EFBIG);
		assert_ptr_equal(untouched, p);
	}
	assert_int_equal(io_read_file(p->fd, "none", 10, &(char *){NULL}, NULL), -ENOENT);
	assert_int_equal(io_read_file(p->fd, ".", 10, &(char *){NULL}, NULL), -EISDIR);
	/* A file that never ends is no reason to take all memory. */
	assert_int_equal(io_read_file(AT_FDCWD, "/dev/zero", 1 << 20, &(char *){NULL}, NULL),
	                 -EFBIG);
}

static void replace_leaves_the_new_file_alone_in_place(void **state)
{
	struct place *p = *state;
	autofree char *text = NULL;
	struct stat st;

	assert_int_equal(io_replace_file(p->fd, "book", "one", 3, 0640, true), 0);
	assert_int_equal(io_replace_file(p->fd, "book", "second", 6, 0600, true), 0);
	assert_int_equal(io_read_file(p->fd, "book", 100, &text, NULL), 0);
	assert_string_equal(text, "second");
	assert_int_equal(fstatat(p->fd, "book", &st, 0), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(entries(p->fd), 1);
}

/* Whoever has the old file open goes on reading it: content never changes under a reader. */
static void replace_does_not_touch_the_old_file(void **state)
{
	struct place *p = *state;
	autoclose int old = -1;
	char buf[3];

	assert_int_equal(io_replace_file(p->fd, "book", "one", 3, 0600, true), 0);
	old = openat(p->fd, "book", O_RDONLY | O_CLOEXEC);
	assert_int_equal(io_replace_file(p->fd, "book", "two", 3, 0600, true), 0);
	assert_int_equal(io_pread_full(old, buf, 3, 0), 0);
	assert_memory_equal(buf, "one", 3);
}

static void a_replace_that_fails_leaves_nothing_behind(void **state)
{
	struct place *p = *state;
	char long_name[5000];

	memset(long_name, 'x', sizeof(long_name));
	long_name[sizeof(long_name) - 1] = 0;
	assert_int_equal(io_replace_file(p->fd, long_name, "a", 1, 0600, true), -ENAMETOOLONG);
	assert_int_equal(io_replace_file(p->fd, "none/book", "a", 1, 0600, true), -ENOENT);
	/* The name belongs to a directory: the rename is what fails, after the write. */
	assert_int_equal(mkdirat(p->fd, "book", 0700), 0);
	assert_int_equal(io_replace_file(p->fd, "book", "a", 1, 0600, true), -EISDIR);
	assert_int_equal(entries(p->fd), 1);
	assert_int_equal(unlinkat(p->fd, "book", AT_REMOVEDIR), 0);
}

static void write_file_writes_to_what_is_there_and_makes_nothing(void **state)
{
	struct place *p = *state;
	autofree char *text = NULL;

	assert_int_equal(io_write_file(p->fd, "none", "x"), -ENOENT);
	put(p, "f", 3);
	assert_int_equal(io_write_file(p->fd, "f", "xy"), 0);
	assert_int_equal(io_read_file(p->fd, "f", 10, &text, NULL), 0);
	assert_string_equal(text, "xyc");
}

static void make_pair(int type, int sv[2])
{
	assert_int_equal(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, sv), 0);
}

static void fds_arrive_in_order_and_close_on_exec(void **state)
{
	enum { N = 253 };
	int sv[2], send[N], got[N], before = open_fds();
	struct stat a, b;
	size_t n = N;
	char buf[4];

	make_pair(SOCK_SEQPACKET, sv);
	for (int i = 0; i < N; i++)
		assert_true((send[i] = memfd_create("f", MFD_CLOEXEC)) >= 0);
	assert_int_equal(io_send_fds(sv[0], "abc", 3, send, N), 0);
	assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), got, &n), 3);
	assert_int_equal(n, N);
	assert_memory_equal(buf, "abc", 3);
	for (int i = 0; i < N; i++) {
		assert_int_equal(fstat(send[i], &a) | fstat(got[i], &b), 0);
		assert_int_equal(a.st_ino, b.st_ino);
		assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
		close(send[i]);
		close(got[i]);
	}
	/* One more than the kernel takes is refused before it is tried. */
	assert_int_equal(io_send_fds(sv[0], "abc", 3, send, N + 1), -EINVAL);
	close(sv[0]);
	close(sv[1]);
	assert_int_equal(open_fds(), before);
}

static void more_fds_than_expected_are_closed_and_refused(void **state)
{
	int sv[2], send[3] = {0, 1, 2}, got[2] = {-7, -7}, before;
	size_t n;
	char buf[4];

	make_pair(SOCK_SEQPACKET, sv);
	before = open_fds();
	for (size_t room = 0; room < 3; room++) {
		n = room;
		assert_int_equal(io_send_fds(sv[0], "abc", 3, send, 3), 0);
		assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EMSGSIZE);
		assert_int_equal(open_fds(), before);
	}
	/* Nobody asked for fds at all. */
	assert_int_equal(io_send_fds(sv[0], "abc", 3, send, 1), 0);
	assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), NULL, NULL), -EMSGSIZE);
	assert_int_equal(open_fds(), before);
	close(sv[0]);
	close(sv[1]);
}

static void a_message_that_is_too_long_is_refused_with_its_fds(void **state)
{
	int sv[2], got[2], before;
	size_t n = 2;
	char buf[2];

	make_pair(SOCK_SEQPACKET, sv);
	before = open_fds();
	assert_int_equal(io_send_fds(sv[0], "abc", 3, (int[]){0, 1}, 2), 0);
	assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), got, &n), -EMSGSIZE);
	assert_int_equal(open_fds(), before);
	/* The next one is whole again. */
	assert_int_equal(io_send_fds(sv[0], "ab", 2, NULL, 0), 0);
	n = 2;
	assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), got, &n), 2);
	assert_int_equal(n, 0);
	close(sv[0]);
	close(sv[1]);
}

static void a_peer_that_is_gone_is_an_end_or_an_error_but_no_signal(void **state)
{
	int sv[2];
	size_t n = 0;
	char buf[2];

	make_pair(SOCK_SEQPACKET, sv);
	close(sv[0]);
	assert_int_equal(io_recv_fds(sv[1], buf, sizeof(buf), NULL, &n), 0);
	assert_int_equal(io_send_fds(sv[1], "a", 1, NULL, 0), -EPIPE);
	close(sv[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(reads_and_writes_are_whole_or_say_so),
	    cmocka_unit_test(a_write_goes_on_until_all_is_written),
	    cmocka_unit_test_setup_teardown(a_file_is_read_up_to_its_limit_and_not_past_it, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(replace_leaves_the_new_file_alone_in_place, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(replace_does_not_touch_the_old_file, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_replace_that_fails_leaves_nothing_behind, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(write_file_writes_to_what_is_there_and_makes_nothing,
	                                    setup, teardown),
	    cmocka_unit_test(fds_arrive_in_order_and_close_on_exec),
	    cmocka_unit_test(more_fds_than_expected_are_closed_and_refused),
	    cmocka_unit_test(a_message_that_is_too_long_is_refused_with_its_fds),
	    cmocka_unit_test(a_peer_that_is_gone_is_an_end_or_an_error_but_no_signal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
