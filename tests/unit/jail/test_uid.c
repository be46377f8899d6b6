/* Two takers never get the same uid, and a taker that is killed gives it back. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "jail/uid.h"

enum {
	BASE = 0x7ffe0000,
	COUNT = 4,
};

static char dir[] = "/tmp/jail-uid-XXXXXX";
static struct uid_range range = {.base = BASE, .count = COUNT};

static void every_taker_gets_another_one(void **state)
{
	struct jail_uid u[COUNT], more;
	struct err e;

	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(uid_take(&range, &u[i], &e), 0);
		assert_in_range(u[i].uid, BASE, BASE + COUNT - 1);
		for (int k = 0; k < i; k++)
			assert_int_not_equal(u[i].uid, u[k].uid);
	}
	assert_int_equal(uid_take(&range, &more, &e), -EAGAIN);
	assert_string_equal(e.kind, "no_uid");
	jail_uid_drop(&u[2]);
	assert_int_equal(uid_take(&range, &more, &e), 0);
	assert_int_equal(more.uid, u[2].uid);
	jail_uid_drop(&more);
	for (int i = 0; i < COUNT; i++)
		jail_uid_drop(&u[i]);
}

static void a_killed_taker_gives_it_back(void **state)
{
	struct jail_uid u[COUNT], more;
	int p[2], status;
	pid_t pid;

	for (int i = 1; i < COUNT; i++)
		assert_int_equal(uid_take(&range, &u[i], NULL), 0);
	assert_int_equal(pipe(p), 0);
	pid = fork();
	if (pid == 0) {
		char ok = uid_take(&range, &u[0], NULL) == 0 ? 'y' : 'n';

		if (write(p[1], &ok, 1) == 1)
			for (;;)
				pause();
		_exit(1);
	}
	assert_int_equal(read(p[0], &status, 1), 1);
	assert_int_equal(*(char *)&status, 'y');
	assert_int_equal(uid_take(&range, &more, NULL), -EAGAIN);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(uid_take(&range, &more, NULL), 0);
	jail_uid_drop(&more);
	for (int i = 1; i < COUNT; i++)
		jail_uid_drop(&u[i]);
	close(p[0]);
	close(p[1]);
}

static void a_uid_somebody_has_is_not_given_away(void **state)
{
	struct uid_range mine = {.dir = range.dir, .base = getuid(), .count = 1};
	struct jail_uid u;

	assert_int_equal(uid_take(&mine, &u, NULL), -EAGAIN);
}

static int set_up(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	range.dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return range.dir < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
	unlinkat(range.dir, "uids.lock", 0);
	close(range.dir);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_taker_gets_another_one),
	    cmocka_unit_test(a_killed_taker_gives_it_back),
	    cmocka_unit_test(a_uid_somebody_has_is_not_given_away),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
