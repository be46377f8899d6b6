/*
 * The host's end of the guest protocol, against an agent that this test plays byte for byte.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/io.h"
#include "machine/guest.h"

struct bench {
	struct guest *g;
	int agent; /* the other end of its connection */
};

static int setup(void **state)
{
	static struct bench b;
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0 ||
	    guest_new(fd[0], &b.g) < 0)
		return -1;
	b.agent = fd[1];
	*state = &b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	guest_free(b->g);
	close(b->agent);
	return 0;
}

/* The agent sends a frame on stream 1, and the host reads it. */
static void say(struct bench *b, uint8_t type, uint8_t chan, const void *msg)
{
	uint8_t frame[512];
	struct wire_header h = {.type = type, .chan = chan, .stream = 1};
	ssize_t n = wire_frame(&h, wire_desc_of(type), msg, frame, sizeof(frame));

	assert_true(n > 0);
	assert_int_equal(io_write_full(b->agent, frame, (size_t)n), 0);
	assert_int_equal(guest_dispatch(b->g, EPOLLIN), 0);
}

/* ---- how calls end ---- */

static void note_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	*(struct guest_end *)arg = *end;
}

static enum wire_reason reason_of(struct bench *b, struct wire_end m)
{
	static const struct guest_ops ops = {.end = note_end};
	struct guest_end end = {.err = -1};

	assert_int_equal(guest_start(b->g, WIRE_SYNC, NULL, &ops, &end, NULL), 0);
	say(b, WIRE_END, 0, &m);
	assert_int_equal(end.err, m.err);
	return end.reason;
}

static void an_end_says_its_reason(void **state)
{
	struct wire_end m = {.err = ENOENT, .text = wire_str("any words"), .reason = 1};

	assert_int_equal(reason_of(*state, m), WIRE_REASON_DIRECTORY);
	m.reason = WIRE_REASON_PROGRAM;
	assert_int_equal(reason_of(*state, m), WIRE_REASON_PROGRAM);
	m.reason = 4711; /* of an agent that is newer than we are */
	assert_int_equal(reason_of(*state, m), 4711);
	m.reason = 0;
	assert_int_equal(reason_of(*state, m), WIRE_REASON_NONE);
}

static void an_agent_that_was_saved_before_there_were_reasons_is_understood(void **state)
{
	struct wire_end m = {.err = ENOENT};

	m.text = wire_str("cannot start program");
	assert_int_equal(reason_of(*state, m), WIRE_REASON_PROGRAM);
	m.text = wire_str("cannot enter directory");
	assert_int_equal(reason_of(*state, m), WIRE_REASON_DIRECTORY);
	m.text = wire_str("no such user");
	assert_int_equal(reason_of(*state, m), WIRE_REASON_NONE);
	m.err = 0;
	m.text = wire_str("cannot start program");
	assert_int_equal(reason_of(*state, m), WIRE_REASON_NONE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    TEST(an_end_says_its_reason),
	    TEST(an_agent_that_was_saved_before_there_were_reasons_is_understood),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
