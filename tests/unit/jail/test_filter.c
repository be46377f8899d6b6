/* The compiled filters, tried out on the real kernel in a child; no root needed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "jail/filter.h"

enum {
	OK = 200, /* exit code: the call worked; any other is its errno */
};

/* Runs one system call behind the filter; the wait status. */
static int behind6(const struct jail_filter *f, long nr, const long a[6])
{
	struct sock_fprog prog = {.len = f->n, .filter = f->insns};
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		long r;

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) < 0)
			_exit(255);
		r = syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
		syscall(SYS_exit_group, r < 0 ? errno : OK);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static int behind(const struct jail_filter *f, long nr, long a, long b, long c)
{
	return behind6(f, nr, (long[6]){a, b, c});
}

static int execveat_behind(const struct jail_filter *f, long flags, uint64_t ticket)
{
	return behind6(f, SYS_execveat, (long[6]){-1, (long)"", 0, 0, flags, (long)ticket});
}

static void assert_exit(int status, int code)
{
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), code);
}

static const struct jail_rule first[] = {
    {.name = "getppid"},
    {.name = "socket",
     .args = {{JAIL_EQ, 0, AF_UNIX, 0}, {JAIL_SET, 1, SOCK_CLOEXEC, SOCK_CLOEXEC}}},
};
static const struct jail_rule second[] = {
    {.name = "getppid"}, /* two tables may name the same call */
    {.name = "lseek", .args = {{JAIL_EQ, 2, SEEK_END, 0}}},
    {.name = "lseek", .args = {{JAIL_EQ, 2, SEEK_CUR, 0}}},
};
static const struct jail_rules lists[] = {{first, ARRAY_LEN(first)}, {second, ARRAY_LEN(second)}};

static void what_is_listed_works_and_the_rest_does_not_exist(void **state)
{
	struct jail_filter f = {0};
	struct err e = {0};

	assert_int_equal(jail_filter_build(lists, 2, JAIL_DENY_ENOSYS, &f, &e), 0);
	assert_exit(behind(&f, SYS_getppid, 0, 0, 0), OK);
	assert_exit(behind(&f, SYS_getpid, 0, 0, 0), ENOSYS);
	assert_exit(behind(&f, SYS_openat, AT_FDCWD, (long)"/", O_RDONLY), ENOSYS);
	jail_filter_fini(&f);
	assert_null(f.insns);
}

static void arguments_decide(void **state)
{
	struct jail_filter f = {0};

	assert_int_equal(jail_filter_build(lists, 2, JAIL_DENY_ENOSYS, &f, NULL), 0);
	assert_exit(behind(&f, SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), OK);
	assert_exit(behind(&f, SYS_socket, AF_UNIX, SOCK_STREAM, 0), ENOSYS);
	assert_exit(behind(&f, SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ENOSYS);
	/* either rule is enough; -1 is no fd, so reaching the kernel shows as EBADF */
	assert_exit(behind(&f, SYS_lseek, -1, 0, SEEK_END), EBADF);
	assert_exit(behind(&f, SYS_lseek, -1, 0, SEEK_CUR), EBADF);
	assert_exit(behind(&f, SYS_lseek, -1, 0, SEEK_SET), ENOSYS);
	jail_filter_fini(&f);
}

/* -1 is no fd, so reaching the kernel shows as EBADF. */
static void only_who_has_the_ticket_executes(void **state)
{
	struct jail_filter f = {0}, g = {0};

	assert_int_equal(jail_filter_build(NULL, 0, JAIL_DENY_ENOSYS, &f, NULL), 0);
	assert_int_equal(jail_filter_build(NULL, 0, JAIL_DENY_ENOSYS, &g, NULL), 0);
	assert_true(f.ticket != g.ticket);
	assert_exit(execveat_behind(&f, AT_EMPTY_PATH, f.ticket), EBADF);
	assert_exit(execveat_behind(&f, AT_EMPTY_PATH, g.ticket), ENOSYS);
	assert_exit(execveat_behind(&f, AT_EMPTY_PATH, 0), ENOSYS);
	for (int bit = 0; bit < 64; bit++)
		assert_exit(execveat_behind(&f, AT_EMPTY_PATH, f.ticket ^ 1ull << bit), ENOSYS);
	assert_exit(execveat_behind(&f, 0, f.ticket), ENOSYS); /* no path */
	assert_exit(behind(&f, SYS_execve, (long)"/bin/true", 0, 0), ENOSYS);
	jail_filter_fini(&f);
	jail_filter_fini(&g);
}

static void for_debugging_a_denied_call_traps_or_passes(void **state)
{
	struct jail_filter f = {0};
	int status;

	assert_int_equal(jail_filter_build(lists, 2, JAIL_DENY_TRAP, &f, NULL), 0);
	status = behind(&f, SYS_getpid, 0, 0, 0);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSYS);
	jail_filter_fini(&f);
	assert_int_equal(jail_filter_build(lists, 2, JAIL_DENY_LOG, &f, NULL), 0);
	assert_exit(behind(&f, SYS_getpid, 0, 0, 0), OK);
	jail_filter_fini(&f);
}

static void a_misspelt_name_is_refused(void **state)
{
	static const struct jail_rule bad[] = {{.name = "opneat"}};
	struct jail_rules list = {bad, 1};
	struct jail_filter f = {0};
	struct err e = {0};

	assert_int_equal(jail_filter_build(&list, 1, JAIL_DENY_ENOSYS, &f, &e), -EINVAL);
	assert_string_equal(e.kind, "bad_filter");
	assert_non_null(strstr(e.text, "opneat"));
	assert_null(f.insns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_is_listed_works_and_the_rest_does_not_exist),
	    cmocka_unit_test(arguments_decide),
	    cmocka_unit_test(only_who_has_the_ticket_executes),
	    cmocka_unit_test(for_debugging_a_denied_call_traps_or_passes),
	    cmocka_unit_test(a_misspelt_name_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
