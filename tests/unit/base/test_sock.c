#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "base/sock.h"

enum { MANY = 1000 };

static void a_listener_that_never_accepts_keeps_nobody_waiting(void **state)
{
	static const int types[] = {SOCK_STREAM, SOCK_SEQPACKET};
	char path[] = "/tmp/panda-sock.XXXXXX";
	int dir, listener, fd[MANY], r = 0, n;

	assert_non_null(mkdtemp(path));
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		assert_int_equal(sock_connect(dir, "s", types[i], &fd[0]), -ENOENT);
		assert_int_equal(sock_listen(dir, "s", types[i], &listener), 0);
		alarm(20); /* it would wait for ever */
		for (n = 0; n < MANY && (r = sock_connect(dir, "s", types[i], &fd[n])) == 0; n++)
			;
		alarm(0);
		assert_int_equal(r, -EAGAIN);
		assert_in_range(n, 16, MANY);
		assert_int_equal(fcntl(fd[0], F_GETFL) & O_NONBLOCK, 0);
		assert_int_equal(fcntl(fd[0], F_GETFD), FD_CLOEXEC);
		while (n)
			close(fd[--n]);
		close(listener);
		assert_int_equal(unlinkat(dir, "s", 0), 0);
	}
	close(dir);
	assert_int_equal(rmdir(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_listener_that_never_accepts_keeps_nobody_waiting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
