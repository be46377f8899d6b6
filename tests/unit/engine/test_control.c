/*
 * engine/control.c: calls to a machine, played here by the other end of a socket pair.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/sock.h"
#include "engine/engines_internal.h"

enum { LONG_MS = 30000 };

struct pair {
	int host, machine;
};

static int setup(void **state)
{
	struct pair *p = malloc(sizeof(*p));
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	*p = (struct pair){sv[0], sv[1]};
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct pair *p = *state;

	closep(&p->host);
	closep(&p->machine);
	free(p);
	return 0;
}

static const struct ctl_msg good = {.magic = CTL_MAGIC, .type = CTL_DONE, .arg = {1, 2, 3}};

/* The answer may be there before the question: a socket keeps it. */
static int ask(struct pair *p, int alive, unsigned timeout_ms, struct ctl_msg *ret)
{
	struct control_packet q = {.msg = {.magic = CTL_MAGIC, .type = CTL_PING}};

	return control_call(p->host, alive, &q, timeout_ms, ret);
}

static void answer(struct pair *p, const void *bytes, size_t n)
{
	assert_int_equal(send(p->machine, bytes, n, 0), n);
}

static void question_and_fds_arrive_with_their_slots(void **state)
{
	struct pair *p = *state;
	struct control_packet q = {.msg = {.magic = CTL_MAGIC, .type = CTL_SNAPSHOT}};
	autoclose int a = open("/dev/null", O_RDONLY | O_CLOEXEC);
	autoclose int b = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	struct ctl_msg got, ret;
	size_t n = 2;
	int fds[2];
	char c = 1;

	assert_int_equal(control_packet_add(&q, a, CTL_TO_MAP), 0);
	assert_int_equal(control_packet_add(&q, b, CTL_FD_TOP), 0);
	answer(p, &good, sizeof(good));
	assert_int_equal(control_call(p->host, -1, &q, LONG_MS, &ret), 0);
	assert_memory_equal(&ret, &good, sizeof(good));
	assert_int_equal(io_recv_fds(p->machine, &got, sizeof(got), fds, &n), sizeof(got));
	assert_int_equal(got.type, CTL_SNAPSHOT);
	assert_int_equal(got.nr_fds, 2);
	assert_int_equal(n, 2);
	assert_int_equal(got.slot[0], CTL_TO_MAP);
	assert_int_equal(got.slot[1], CTL_FD_TOP);
	assert_int_equal(read(fds[0], &c, 1), 0);
	assert_int_equal(read(fds[1], &c, 1), 1);
	close(fds[0]);
	close(fds[1]);
}

static void a_full_packet_takes_no_more(void **state)
{
	struct control_packet q = {0};

	for (unsigned i = 0; i < CTL_FDS_MAX; i++)
		assert_int_equal(control_packet_add(&q, 0, i), 0);
	assert_int_equal(control_packet_add(&q, 0, 0), -E2BIG);
	assert_int_equal(q.msg.nr_fds, CTL_FDS_MAX);
}

static void nonsense_is_refused_and_leaves_the_result_alone(void **state)
{
	struct pair *p = *state;
	struct ctl_msg wrong = good, ret = {.type = 77};
	char big[sizeof(struct ctl_msg) + 1] = {0};

	wrong.magic ^= 1;
	answer(p, &wrong, sizeof(wrong));
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -EPROTO);
	answer(p, &good, sizeof(good) - 1);
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -EPROTO);
	answer(p, "", 1);
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -EPROTO);
	memcpy(big, &good, sizeof(good));
	answer(p, big, sizeof(big));
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -EPROTO);
	assert_int_equal(ret.type, 77);
	/* Each was one packet: the next answer is read from its beginning. */
	answer(p, &good, sizeof(good));
	assert_int_equal(ask(p, -1, LONG_MS, &ret), 0);
}

/* A machine must not be able to fill our fd table. */
static void fds_in_an_answer_are_refused_and_closed(void **state)
{
	struct pair *p = *state;
	struct ctl_msg ret;
	int before = dup(0), after;

	close(before);
	assert_int_equal(io_send_fds(p->machine, &good, sizeof(good), (int[]){0, 1}, 2), 0);
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -EPROTO);
	after = dup(0);
	close(after);
	assert_int_equal(after, before);
}

static void a_machine_that_hung_up_is_gone(void **state)
{
	struct pair *p = *state;
	struct ctl_msg ret;

	/* It took the question, then ended. */
	shutdown(p->machine, SHUT_WR);
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -ESRCH);
	/* It is not there to take one. */
	close(p->machine);
	p->machine = -1;
	assert_int_equal(ask(p, -1, LONG_MS, &ret), -ESRCH);
}

static void a_machine_that_died_is_gone_though_its_socket_is_open(void **state)
{
	struct pair *p = *state;
	autoclose int alive = -1;
	struct ctl_msg ret;
	siginfo_t si;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	alive = pidfd_open(pid, 0);
	assert_true(alive >= 0);
	/* Dead, and not reaped yet: whether the pidfd is readable does not depend on that. */
	assert_int_equal(waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT), 0);
	assert_int_equal(ask(p, alive, LONG_MS, &ret), -ESRCH);
	/* What it said before it died still counts. */
	answer(p, &good, sizeof(good));
	assert_int_equal(ask(p, alive, LONG_MS, &ret), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_silent_machine_is_not_waited_for_for_ever(void **state)
{
	struct pair *p = *state;
	struct ctl_msg ret = {.type = 77};

	assert_int_equal(ask(p, -1, 1, &ret), -ETIMEDOUT);
	assert_int_equal(ask(p, -1, 0, &ret), -ETIMEDOUT);
	assert_int_equal(ret.type, 77);
}

/* A path does not fit into sun_path; the directory's fd does. */
static void sockets_are_found_in_directories_with_long_names(void **state)
{
	char dir[256] = "/tmp/panda-control-XXXXXX", deep[512];
	autoclose int dirfd = -1, listening = -1, conn = -1;

	assert_non_null(mkdtemp(dir));
	snprintf(deep, sizeof(deep), "%s/%0200d", dir, 0);
	assert_int_equal(mkdir(deep, 0700), 0);
	dirfd = open(deep, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(sock_connect(dirfd, "control", SOCK_SEQPACKET, &conn), -ENOENT);
	assert_int_equal(sock_listen(dirfd, "control", SOCK_SEQPACKET, &listening), 0);
	assert_int_equal(sock_connect(dirfd, "control", SOCK_SEQPACKET, &conn), 0);
	closep(&listening);
	closep(&conn);
	listening = conn = -1;
	/* Nobody listens any more, or the name is taken. */
	assert_int_equal(sock_connect(dirfd, "control", SOCK_SEQPACKET, &conn), -ECONNREFUSED);
	assert_int_equal(sock_listen(dirfd, "control", SOCK_SEQPACKET, &listening), -EADDRINUSE);
	assert_int_equal(unlinkat(dirfd, "control", 0), 0);
	assert_int_equal(rmdir(deep), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(question_and_fds_arrive_with_their_slots, setup,
	                                    teardown),
	    cmocka_unit_test(a_full_packet_takes_no_more),
	    cmocka_unit_test_setup_teardown(nonsense_is_refused_and_leaves_the_result_alone, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(fds_in_an_answer_are_refused_and_closed, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_machine_that_hung_up_is_gone, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_machine_that_died_is_gone_though_its_socket_is_open,
	                                    setup, teardown),
	    cmocka_unit_test_setup_teardown(a_silent_machine_is_not_waited_for_for_ever, setup,
	                                    teardown),
	    cmocka_unit_test(sockets_are_found_in_directories_with_long_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
