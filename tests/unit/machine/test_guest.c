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

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "machine/guest_internal.h"

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

/* ---- how calls begin ---- */

/* What the host has sent so far. */
static size_t hear(struct bench *b, uint8_t *p, size_t cap)
{
	ssize_t n;

	assert_int_equal(guest_flush(b->g), 0);
	n = recv(b->agent, p, cap, MSG_DONTWAIT);
	assert_true(n > 0);
	return (size_t)n;
}

static void a_request_in_wire_form_is_the_same_request(void **state)
{
	static const struct guest_ops ops = {0};
	struct wire_read m = {.path = wire_str("/etc/passwd"), .offset = 7, .window = 64};
	struct bench *b = *state;
	uint8_t bytes[256], first[256], second[256];
	struct guest_request rq = {.type = WIRE_READ};
	size_t n, k;

	assert_int_equal(guest_start(b->g, WIRE_READ, &m, &ops, NULL, NULL), 0);
	n = hear(b, first, sizeof(first));
	rq.p = bytes;
	rq.n = wire_length(&wire_read_desc, &m);
	assert_int_equal(wire_read_encode(&m, bytes, rq.n), rq.n); /* no byte more is needed */
	assert_int_equal(guest_start_encoded(b->g, &rq, &ops, NULL, NULL), 0);
	k = hear(b, second, sizeof(second));
	assert_int_equal(n, k);
	assert_int_equal(second[8], 2); /* the number of the stream, */
	second[8] = first[8];
	assert_memory_equal(first, second, n); /* and nothing else is different */
}

static void count_bytes(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	*(size_t *)arg += n;
}

static void the_window_of_a_request_in_wire_form_holds(void **state)
{
	static const struct guest_ops ops = {.data = count_bytes};
	static const uint8_t frame[WIRE_HEADER + 65] = {65,        0,        0, 0, WIRE_VERSION,
	                                                WIRE_DATA, WIRE_OUT, 0, 1};
	struct wire_read m = {.path = wire_str("/x"), .window = 64};
	struct wire_file file = {.name = wire_str(""), .target = wire_str("")};
	struct bench *b = *state;
	uint8_t bytes[64];
	struct guest_request rq = {.type = WIRE_READ, .p = bytes};
	size_t got = 0;

	rq.n = (size_t)wire_read_encode(&m, bytes, sizeof(bytes));
	assert_int_equal(guest_start_encoded(b->g, &rq, &ops, &got, NULL), 0);
	say(b, WIRE_FILE, 0, &file);
	assert_int_equal(io_write_full(b->agent, frame, sizeof(frame)), 0);
	assert_int_equal(guest_dispatch(b->g, EPOLLIN), -EPROTO);
	assert_int_equal(got, 0);
}

static void a_request_larger_than_a_frame_is_refused_in_either_form(void **state)
{
	static const struct guest_ops ops = {0};
	static char big[WIRE_PAYLOAD_MAX];
	struct guest_request rq = {.type = WIRE_READLINK, .p = big, .n = WIRE_PAYLOAD_MAX + 1};
	struct bench *b = *state;
	struct wire_path m;

	memset(big, 'x', sizeof(big) - 1);
	m.path = wire_str(big);
	assert_true(wire_length(&wire_path_desc, &m) > WIRE_PAYLOAD_MAX);
	assert_int_equal(guest_start(b->g, WIRE_READLINK, &m, &ops, NULL, NULL), -EMSGSIZE);
	assert_int_equal(guest_start_encoded(b->g, &rq, &ops, NULL, NULL), -EMSGSIZE);
	assert_true(guest_idle(b->g));
}

/* ---- who waits for room ---- */

static void note_call(void *arg)
{
	++*(unsigned *)arg;
}

/* Opens calls until there may be no more. */
static void open_all_calls(struct bench *b)
{
	static const struct guest_ops ops = {0};

	for (unsigned i = 0; i < GUEST_CALLS_MAX; i++)
		assert_int_equal(guest_start(b->g, WIRE_SYNC, NULL, &ops, NULL, NULL), 0);
	assert_int_equal(guest_start(b->g, WIRE_SYNC, NULL, &ops, NULL, NULL), -EAGAIN);
}

static void who_waits_for_a_call_hears_when_one_has_ended(void **state)
{
	struct bench *b = *state;
	unsigned calls[2] = {0};
	struct guest_room w[2] = {{.fn = note_call, .arg = &calls[0]},
	                          {.fn = note_call, .arg = &calls[1]}};

	assert_false(guest_room_wait(b->g, &w[0])); /* there is room */
	open_all_calls(b);
	assert_true(guest_room_wait(b->g, &w[0]));
	assert_true(guest_room_wait(b->g, &w[0])); /* twice is once */
	assert_true(guest_room_wait(b->g, &w[1]));
	assert_int_equal(guest_flush(b->g), 0); /* written output is no help here */
	assert_int_equal(calls[0], 0);
	guest_room_cancel(&w[1]);
	guest_room_cancel(&w[1]);
	say(b, WIRE_END, 0, &(struct wire_end){.text = wire_str("")});
	assert_int_equal(calls[0], 1);
	assert_int_equal(calls[1], 0);
	assert_false(guest_room_wait(b->g, &w[1]));
}

/* Queues as much as guest_send() takes. */
static void fill_output(struct bench *b)
{
	static const struct guest_ops ops = {0};
	static const char bytes[WIRE_WINDOW];
	struct wire_write m = {.path = wire_str("/x")};
	struct guest_call *c[GUEST_OUT_MAX / WIRE_WINDOW];

	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		assert_int_equal(guest_start(b->g, WIRE_WRITE, &m, &ops, NULL, &c[i]), 0);
	for (size_t i = 0; i < ARRAY_LEN(c); i++)
		guest_send(c[i], bytes, sizeof(bytes));
	assert_int_equal(guest_sendable(c[0]), 0);
	assert_int_equal(guest_start(b->g, WIRE_SYNC, NULL, &ops, NULL, NULL), -EAGAIN);
}

static void who_waits_for_room_hears_when_output_was_written(void **state)
{
	struct bench *b = *state;
	static uint8_t sink[GUEST_OUT_MAX];
	unsigned calls = 0;
	struct guest_room w = {.fn = note_call, .arg = &calls};
	int small = 4096;

	/* So little at a time that it takes more than one read of the agent. */
	setsockopt(guest_fd(b->g), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	fill_output(b);
	assert_true(guest_room_wait(b->g, &w));
	assert_int_equal(guest_flush(b->g), 0);
	assert_int_equal(calls, 0);
	for (unsigned i = 0; i < GUEST_OUT_MAX && !calls; i++) {
		assert_true(recv(b->agent, sink, sizeof(sink), MSG_DONTWAIT) > 0);
		assert_int_equal(guest_dispatch(b->g, EPOLLOUT), 0);
	}
	assert_int_equal(calls, 1);
	assert_false(guest_room_wait(b->g, &w));
	assert_int_equal(guest_flush(b->g), 0);
	assert_int_equal(calls, 1);
}

static void who_waits_for_room_hears_when_there_will_never_be_any(void **state)
{
	struct bench *b = *state;
	unsigned calls = 0;
	struct guest_room w = {.fn = note_call, .arg = &calls};

	open_all_calls(b);
	assert_true(guest_room_wait(b->g, &w));
	assert_int_equal(guest_fail(b->g, ETIMEDOUT, "tired"), -ETIMEDOUT);
	assert_int_equal(calls, 1);
	assert_false(guest_room_wait(b->g, &w));
}

struct again {
	struct guest *g;
	struct guest_room w;
	unsigned calls;
};

static void wait_again(void *arg)
{
	static const struct guest_ops ops = {0};
	struct again *a = arg;

	a->calls++;
	assert_int_equal(guest_start(a->g, WIRE_SYNC, NULL, &ops, NULL, NULL),
	                 a->calls == 1 ? 0 : -EAGAIN);
	assert_true(guest_room_wait(a->g, &a->w));
}

static void who_comes_too_late_may_wait_again(void **state)
{
	struct bench *b = *state;
	struct again a = {.g = b->g, .w = {.fn = wait_again, .arg = &a}};

	open_all_calls(b);
	assert_true(guest_room_wait(b->g, &a.w));
	say(b, WIRE_END, 0, &(struct wire_end){.text = wire_str("")});
	assert_int_equal(a.calls, 1);
	assert_int_equal(guest_flush(b->g), 0);
	assert_int_equal(a.calls, 1); /* no other call has ended */
	guest_room_cancel(&a.w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    TEST(an_end_says_its_reason),
	    TEST(an_agent_that_was_saved_before_there_were_reasons_is_understood),
	    TEST(a_request_in_wire_form_is_the_same_request),
	    TEST(the_window_of_a_request_in_wire_form_holds),
	    TEST(a_request_larger_than_a_frame_is_refused_in_either_form),
	    TEST(who_waits_for_a_call_hears_when_one_has_ended),
	    TEST(who_waits_for_room_hears_when_output_was_written),
	    TEST(who_waits_for_room_hears_when_there_will_never_be_any),
	    TEST(who_comes_too_late_may_wait_again),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
