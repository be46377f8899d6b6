/*
 * The way to a sandbox's agent: one connection for all calls, made when it is needed, and what
 * becomes of calls when the guest is silent, lies, or goes.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/rewind.h"

struct call {
	struct bed *bed;
	const char *script;
	bool hoards;        /* gives no credit: what comes beyond its window is a lie */
	bool refused, over; /* refused: there was no guest, err says why */
	int err, code;
	struct err why;
	struct guest *guest;
	char out[256];
	size_t n;
	struct guest_call *call;
};

static void on_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct call *k = arg;
	size_t room = sizeof(k->out) - 1 - k->n;

	memcpy(k->out + k->n, p, MIN(n, room));
	k->n += MIN(n, room);
	if (!k->hoards)
		guest_credit(c, chan, n);
}

static void on_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	if (type == WIRE_EXITED)
		((struct call *)arg)->code = (int)((const struct wire_exited *)msg)->code;
}

static void on_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct call *k = arg;

	k->over = true;
	k->err = end->err;
	bed_wake(k->bed);
}

static void on_ready(void *arg, const struct err *e, struct sandbox *sb, struct guest *g)
{
	static const struct guest_ops ops = {.data = on_data, .reply = on_reply, .end = on_end};
	struct call *k = arg;
	char *argv[] = {(char *)k->script, NULL};
	struct wire_exec m = {.flags = WIRE_EXEC_SHELL, .window = GUEST_WINDOW};
	uint8_t room[256];

	k->guest = g;
	if (e) {
		k->refused = k->over = true;
		k->why = *e;
		bed_wake(k->bed);
		return;
	}
	assert_int_equal(wire_list_build(argv, room, sizeof(room), &m.argv), 0);
	m.env = (struct wire_list){0};
	m.cwd = m.user = wire_str("");
	assert_int_equal(guest_start(g, WIRE_EXEC, &m, &ops, k, &k->call), 0);
}

static struct call call_begin(struct bed *b, const char *script)
{
	return (struct call){.bed = b, .script = script};
}

static void call_wait(struct bed *b, struct call *k)
{
	bed_until(b, k->over);
	bed_check(b);
}

static void calls_share_one_connection(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k[3];

	for (unsigned i = 0; i < 3; i++) {
		k[i] = call_begin(b, "echo hello; exit 5");
		link_use(b->host, sb, on_ready, &k[i]);
	}
	for (unsigned i = 0; i < 3; i++) {
		call_wait(b, &k[i]);
		assert_int_equal(k[i].err, 0);
		assert_int_equal(k[i].code, 5);
		assert_string_equal(k[i].out, "hello\n");
		assert_ptr_equal(k[i].guest, k[0].guest);
	}
}

/* What its start has said to the agent was said on a connection: that is the link's. */
static void the_connection_of_its_start_is_used(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct link *l = sb->link;
	struct call k = call_begin(b, "true");

	assert_non_null(l);
	link_use(b->host, sb, on_ready, &k);
	call_wait(b, &k);
	assert_ptr_equal(sb->link, l);
	link_drop(sb);
	assert_null(sb->link);
	k = call_begin(b, "true");
	link_use(b->host, sb, on_ready, &k);
	call_wait(b, &k);
	assert_false(k.refused);
	assert_non_null(sb->link);
}

static void a_sleeping_one_wakes_up_for_a_call(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k[2] = {call_begin(b, "exit 3"), call_begin(b, "exit 4")};

	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_null(sb->link);
	link_use(b->host, sb, on_ready, &k[0]);
	link_use(b->host, sb, on_ready, &k[1]);
	call_wait(b, &k[0]);
	call_wait(b, &k[1]);
	assert_int_equal(k[0].code, 3);
	assert_int_equal(k[1].code, 4);
	assert_int_equal(b->host->stats.wakes, 1);
}

static void who_cannot_be_woken_cannot_be_called(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k = call_begin(b, "true");

	assert_int_equal(bed_hibernate(b, sb), 0);
	fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
	link_use(b->host, sb, on_ready, &k);
	call_wait(b, &k);
	assert_true(k.refused);
	assert_non_null(strstr(k.why.text, "could not be woken"));
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
}

static void states_without_a_guest_say_so(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k = call_begin(b, "true");

	assert_int_equal(bed_pause(b, sb), 0);
	link_use(b->host, sb, on_ready, &k);
	assert_true(k.refused); /* at once */
	assert_string_equal(k.why.kind, "sandbox_paused");
	bed_crash_machine(b, sb);
	k = call_begin(b, "true");
	link_use(b->host, sb, on_ready, &k);
	assert_true(k.refused);
	assert_string_equal(k.why.kind, "sandbox_failed");
}

static void calls_end_when_the_machine_does(void **state)
{
	static const char *const ends[] = {"crash", "poweroff", "panic"};
	struct bed *b = *state;

	for (unsigned i = 0; i < ARRAY_LEN(ends); i++) {
		struct sandbox *sb = bed_create_plain(b);
		struct call waits = call_begin(b, "sleep 1000"), kills = call_begin(b, ends[i]);

		link_use(b->host, sb, on_ready, &waits);
		link_use(b->host, sb, on_ready, &kills);
		call_wait(b, &waits);
		call_wait(b, &kills);
		assert_int_not_equal(waits.err, 0);
		bed_until(b, sb->state == SANDBOX_FAILED);
		assert_null(sb->link);
	}
}

/* Its kernel lives, its agent breaks the protocol: calls end, the sandbox stays. */
static void calls_end_when_the_guest_lies(void **state)
{
	static const struct {
		const char *mood;
		int err;
	} cases[] = {
	    {"{\"*\": \"garbage\"}", EPROTO},    {"{\"*\": \"length\"}", EPROTO},
	    {"{\"*\": \"stranger\"}", EPROTO},   {"{\"*\": \"flood\"}", EPROTO},
	    {"{\"*\": \"hangup\"}", ECONNRESET},
	};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
		struct call k = call_begin(b, "true");

		k.hoards = true;
		bed_rule(b, "mood", cases[i].mood);
		link_use(b->host, sb, on_ready, &k);
		call_wait(b, &k);
		assert_int_equal(k.err, cases[i].err);
		assert_int_equal(sb->state, SANDBOX_RUNNING);
		bed_until(b, !sb->link);
		/* The next call has another connection, and may be luckier. */
		bed_rule(b, "mood", NULL);
		k = call_begin(b, "exit 9");
		link_use(b->host, sb, on_ready, &k);
		call_wait(b, &k);
		assert_int_equal(k.code, 9);
	}
}

static void open_calls_end_when_it_is_put_to_sleep_or_back(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k = call_begin(b, "sleep 1000");

	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	link_use(b->host, sb, on_ready, &k);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_true(k.over);
	assert_int_equal(k.err, ECANCELED);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	k = call_begin(b, "sleep 1000");
	link_use(b->host, sb, on_ready, &k);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_true(k.over);
	assert_int_equal(k.err, ECANCELED);
}

static void a_call_in_the_middle_of_a_rewind_waits_for_its_end(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};
	struct call k = call_begin(b, "exit 8");

	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	fake_close(b->fake, FAKE_CALL_START);
	host_rewind(b->host, sb, NULL, 1, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	link_use(b->host, sb, on_ready, &k);
	assert_false(k.over || k.guest);
	fake_open(b->fake, FAKE_CALL_START);
	call_wait(b, &k);
	assert_int_equal(k.code, 8);
}

/* ---- silence ---- */

static int bed_setup_impatient(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));

	bed_make(b);
	b->config.silent_s = 1;
	bed_open_host(b);
	*state = b;
	return 0;
}

static void a_guest_that_falls_silent_is_given_up_until_it_answers(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k = call_begin(b, "true");
	uint64_t began = mono_ms();

	bed_rule(b, "mood", "{\"*\": \"silent\"}");
	link_use(b->host, sb, on_ready, &k);
	call_wait(b, &k);
	assert_int_equal(k.err, ETIMEDOUT);
	assert_in_range(mono_ms() - began, 1000, BED_PATIENCE_MS);
	assert_true(sb->silent);
	assert_int_equal(b->host->stats.silences, 1);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	/* From now on calls fail at once. */
	k = call_begin(b, "true");
	link_use(b->host, sb, on_ready, &k);
	assert_true(k.refused);
	assert_string_equal(k.why.kind, "guest_silent");
	bed_rule(b, "mood", NULL);
	bed_until(b, !sb->silent);
	k = call_begin(b, "exit 2");
	link_use(b->host, sb, on_ready, &k);
	call_wait(b, &k);
	assert_int_equal(k.code, 2);
}

/* A long command is no silence: it answers what needs only the agent. */
static void a_guest_that_is_only_slow_is_not_given_up(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct call k = call_begin(b, "sleep 1000");
	uint64_t began = mono_ms();

	link_use(b->host, sb, on_ready, &k);
	bed_until(b, mono_ms() - began > 2100);
	assert_false(k.over);
	assert_false(sb->silent);
	assert_int_equal(b->host->stats.silences, 0);
	link_drop(sb);
	call_wait(b, &k);
}

#define impatient_test(f) cmocka_unit_test_setup_teardown(f, bed_setup_impatient, bed_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(calls_share_one_connection),
	    bed_test(the_connection_of_its_start_is_used),
	    bed_test(a_sleeping_one_wakes_up_for_a_call),
	    bed_test(who_cannot_be_woken_cannot_be_called),
	    bed_test(states_without_a_guest_say_so),
	    bed_test(calls_end_when_the_machine_does),
	    bed_test(calls_end_when_the_guest_lies),
	    bed_test(open_calls_end_when_it_is_put_to_sleep_or_back),
	    bed_test(a_call_in_the_middle_of_a_rewind_waits_for_its_end),
	    impatient_test(a_guest_that_falls_silent_is_given_up_until_it_answers),
	    impatient_test(a_guest_that_is_only_slow_is_not_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
