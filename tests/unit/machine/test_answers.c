/*
 * Every request with every reply, none, once, twice and a thousand times, and with every kind of
 * end: an agent that this test plays answers over a socket, and what the host's end makes of it is
 * what the table of wire/answers.h says. The cases are made from that table.
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
#include "base/macro.h"
#include "machine/guest.h"
#include "wire/answers.h"

enum { MANY = 1000, WINDOW = 4096 };

enum ending {
	WELL,   /* END 0 */
	ERROR,  /* END with an errno value */
	HANGUP, /* the connection ends, and the stream did not */
	CANCEL, /* nothing, until the host calls it off */
	ENDINGS,
};

static const uint8_t replies[] = {WIRE_DATA,    WIRE_EOF,  WIRE_CREDIT,     WIRE_READY,
                                  WIRE_STARTED, WIRE_GAP,  WIRE_EXITED,     WIRE_ATTACHED,
                                  WIRE_FILE,    WIRE_PATH, WIRE_STATS_REPLY};

/* One case, and what has come of it. */
struct run {
	const struct wire_answers *may;
	uint8_t reply;
	unsigned times;
	enum ending ending;
	bool opened; /* the reply that must come first has come before */

	struct guest *g;
	int agent;
	struct guest_call *call;
	bool dead;
	unsigned told[WIRE_STATS_REPLY + 1]; /* by type */
	unsigned ends;
	int err;
	uint64_t gap; /* the newest that was told */
};

static void note_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct run *r = arg;

	assert_int_equal(r->ends, 0);
	assert_true(n > 0);
	r->told[WIRE_DATA]++;
	guest_credit(c, chan, n);
}

static void note_eof(void *arg, struct guest_call *c, uint8_t chan)
{
	struct run *r = arg;

	assert_int_equal(r->ends, 0);
	r->told[WIRE_EOF]++;
}

static void note_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct run *r = arg;

	assert_int_equal(r->ends, 0);
	assert_int_equal(msg == NULL, type == WIRE_READY);
	r->told[type]++;
	if (type == WIRE_GAP)
		r->gap = ((const struct wire_gap *)msg)->offset;
}

static void note_writable(void *arg, struct guest_call *c)
{
	struct run *r = arg;

	assert_int_equal(r->ends, 0);
	r->told[WIRE_CREDIT]++;
}

static void note_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct run *r = arg;

	r->ends++;
	r->err = end->err;
	r->call = NULL;
}

static const struct guest_ops ops = {.data = note_data,
                                     .eof = note_eof,
                                     .reply = note_reply,
                                     .writable = note_writable,
                                     .end = note_end};

/* ---- the host's side ---- */

static void ask(struct run *r)
{
	struct wire_str path = wire_str("/x");
	union wire_request m = {0};

	switch (r->may->request) {
	case WIRE_EXEC:
		m.exec.flags = r->may->flags;
		m.exec.window = WINDOW;
		m.exec.cwd = m.exec.user = wire_str("");
		break;
	case WIRE_ATTACH:
		m.attach.window = WINDOW;
		break;
	case WIRE_LIST:
		m.window.window = WINDOW;
		break;
	case WIRE_READ:
		m.read.path = path;
		m.read.window = WINDOW;
		break;
	case WIRE_WRITE:
		m.write.path = path;
		break;
	case WIRE_MKDIR:
		m.mkdir.path = path;
		break;
	case WIRE_RENAME:
	case WIRE_SYMLINK:
		m.two_paths.from = m.two_paths.to = path;
		break;
	case WIRE_READLINK:
		m.path.path = path;
		break;
	case WIRE_WATCH:
		m.watch.path = path;
		m.watch.window = WINDOW;
		break;
	case WIRE_CONNECT:
		m.connect.window = WINDOW;
		break;
	case WIRE_REBORN:
		m.reborn.hostname = m.reborn.machine_id = wire_str("");
		break;
	case WIRE_MOUNT:
	case WIRE_GROW:
	case WIRE_FREEZE:
		m.mount.path = m.mount.fstype = path;
		break;
	case WIRE_DIR:
	case WIRE_STAT:
	case WIRE_REMOVE:
	case WIRE_CHMOD:
	case WIRE_UMOUNT:
		m.path_flags.path = path;
		m.path_flags.flags = WINDOW;
		break;
	}
	assert_int_equal(guest_start(r->g, r->may->request, &m, &ops, r, &r->call), 0);
	if (r->may->fed)
		assert_int_equal(guest_send_eof(r->call), 0);
}

static void dispatch(struct run *r)
{
	uint8_t byte;

	while (!r->dead && recv(guest_fd(r->g), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
		r->dead = guest_dispatch(r->g, EPOLLIN) < 0;
}

/* ---- the agent's side ---- */

static void say(struct run *r, uint8_t type, uint8_t chan, const void *msg)
{
	uint8_t frame[512];
	struct wire_header h = {.type = type, .chan = chan, .stream = 1};
	ssize_t n = wire_frame(&h, wire_desc_of(type), msg, frame, sizeof(frame));

	assert_true(n > 0);
	if (type == WIRE_DATA) { /* of one byte */
		h.length = 1;
		wire_header_encode(&h, frame);
		frame[n++] = 'x';
	}
	assert_int_equal(io_write_full(r->agent, frame, (size_t)n), 0);
}

static void say_end(struct run *r, int err)
{
	say(r, WIRE_END, 0, &(struct wire_end){.err = (uint32_t)err, .text = wire_str("words")});
}

/* The turn'th time, from 1 on. */
static void say_reply(struct run *r, uint8_t type, unsigned turn)
{
	struct wire_file file = {.name = wire_str("f"), .target = wire_str("")};

	switch (type) {
	case WIRE_DATA:
	case WIRE_EOF:
		say(r, type, WIRE_OUT, NULL);
		break;
	case WIRE_CREDIT:
		say(r, type, WIRE_IN, &(struct wire_window){.window = 1});
		break;
	case WIRE_READY:
		say(r, type, 0, NULL);
		break;
	case WIRE_STARTED:
		say(r, type, 0, &(struct wire_started){.id = 1});
		break;
	case WIRE_GAP:
		say(r, type, WIRE_OUT, &(struct wire_gap){.offset = turn});
		break;
	case WIRE_EXITED:
		say(r, type, 0, &(struct wire_exited){.id = 1});
		break;
	case WIRE_ATTACHED:
		say(r, type, 0, &(struct wire_attached){.id = 1});
		break;
	case WIRE_FILE:
		say(r, type, 0, &file);
		break;
	case WIRE_PATH:
		say(r, type, 0, &(struct wire_path){.path = wire_str("/y")});
		break;
	case WIRE_STATS_REPLY:
		say(r, type, 0, &(struct wire_stats){0});
		break;
	}
}

/* ---- what the table says ---- */

/* How often this reply may come, when nothing but what came first was before it. */
static unsigned allowed(const struct run *r)
{
	const struct wire_answers *may = r->may;
	bool opened = r->opened || !may->first;

	if (r->reply == may->first)
		return 1;
	if (r->reply == may->last)
		return opened;
	switch (r->reply) {
	case WIRE_DATA:
		return opened && may->chans ? MANY : 0;
	case WIRE_GAP:
		return opened && may->gaps ? MANY : 0;
	case WIRE_EOF:
		return opened && may->eof;
	case WIRE_CREDIT:
		return may->input ? MANY : 0;
	}
	return 0;
}

/* Is that all which has to come before END says that all went well? */
static bool whole(const struct run *r)
{
	const struct wire_answers *may = r->may;
	bool first = !may->first || r->opened || (r->reply == may->first && r->times);
	bool last = !may->last || (r->reply == may->last && r->times);
	bool eof = !may->eof || (r->reply == WIRE_EOF && r->times);

	return first && last && eof && !may->endless;
}

static void run_open(struct run *r)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	assert_int_equal(guest_new(fd[0], &r->g), 0);
	r->agent = fd[1];
	ask(r);
}

static void run_close(struct run *r)
{
	guest_free(r->g);
	assert_int_equal(r->ends, 1);
	close(r->agent);
}

static void run_end(struct run *r)
{
	switch (r->ending) {
	case WELL:
		say_end(r, 0);
		break;
	case ERROR:
		say_end(r, ENOENT);
		break;
	case HANGUP:
		assert_int_equal(shutdown(r->agent, SHUT_WR), 0);
		r->dead = guest_dispatch(r->g, EPOLLIN) < 0;
		assert_true(r->dead);
		return;
	case CANCEL:
		if (r->call)
			assert_int_equal(guest_cancel(r->call), 0);
		say_end(r, ECANCELED);
		break;
	default:
		break;
	}
	dispatch(r);
}

static int expected_err(const struct run *r, unsigned bad)
{
	static const int errs[] = {0, ENOENT, ECONNRESET, ECANCELED};

	if (bad)
		return EPROTO;
	return r->ending == WELL && !whole(r) ? EPROTO : errs[r->ending];
}

/* The connection is as before: its next call gets the id, and ends as the guest says. */
static void check_next_call(struct run *r)
{
	struct run next = {.may = wire_answers_of(WIRE_SYNC, NULL), .g = r->g, .agent = r->agent};

	assert_true(guest_idle(r->g));
	ask(&next);
	say_end(&next, ENOSPC);
	dispatch(&next);
	assert_false(next.dead);
	assert_int_equal(next.ends, 1);
	assert_int_equal(next.err, ENOSPC);
}

static void run_case(struct run *r)
{
	unsigned most = allowed(r), bad = r->times > most ? r->times - most : 0;
	unsigned told = MIN(r->times, most);
	bool dead;

	run_open(r);
	if (r->opened)
		say_reply(r, r->may->first, 1);
	dispatch(r);
	for (unsigned i = 1; i <= r->times && !r->dead; i++) {
		say_reply(r, r->reply, i);
		dispatch(r);
	}
	assert_int_equal(r->dead, bad >= 2);
	assert_int_equal(r->ends, bad >= 1);
	if (r->opened)
		r->told[r->may->first]--;
	assert_int_equal(r->told[r->reply], r->reply == WIRE_GAP ? 0 : told);

	if (!r->dead)
		run_end(r);
	dead = bad >= 2 || r->ending == HANGUP;
	assert_int_equal(r->dead, dead);
	assert_int_equal(r->ends, 1);
	assert_int_equal(r->err, expected_err(r, bad));
	assert_int_equal(guest_dead(r->g) != 0, dead);
	if (!dead)
		check_next_call(r);
	run_close(r);
}

static void each_request_gets_what_the_table_says_and_no_more(void **state)
{
	static const unsigned times[] = {0, 1, 2, MANY};
	size_t n = wire_answers_count * ARRAY_LEN(replies) * ARRAY_LEN(times) * ENDINGS * 2;

	for (size_t i = 0; i < n; i++) {
		size_t left = i;
		struct run r = {0};

		r.opened = left % 2;
		left /= 2;
		r.ending = (enum ending)(left % ENDINGS);
		left /= ENDINGS;
		r.times = times[left % ARRAY_LEN(times)];
		left /= ARRAY_LEN(times);
		r.reply = replies[left % ARRAY_LEN(replies)];
		left /= ARRAY_LEN(replies);
		r.may = &wire_answers[left];
		if (r.opened && !r.may->first)
			continue;
		if (r.opened && r.reply == r.may->first && r.times) { /* that is once more */
			r.opened = false;
			r.times++;
		}
		run_case(&r);
	}
}

static void a_gap_is_told_with_what_follows_it(void **state)
{
	static const uint8_t followers[] = {WIRE_DATA, WIRE_EXITED};

	for (size_t i = 0; i < ARRAY_LEN(followers); i++) {
		struct run r = {.may = wire_answers_of(WIRE_ATTACH, NULL)};

		run_open(&r);
		say_reply(&r, WIRE_ATTACHED, 1);
		for (unsigned k = 1; k <= MANY; k++) {
			say_reply(&r, WIRE_GAP, k);
			dispatch(&r);
		}
		assert_int_equal(r.told[WIRE_GAP], 0);
		say_reply(&r, followers[i], 1);
		dispatch(&r);
		assert_int_equal(r.told[WIRE_GAP], 1);
		assert_int_equal(r.gap, MANY);
		assert_int_equal(r.told[followers[i]], 1);
		run_close(&r);
	}
}

static void a_gap_goes_forward(void **state)
{
	struct run r = {.may = wire_answers_of(WIRE_ATTACH, NULL)};

	run_open(&r);
	say(&r, WIRE_ATTACHED, 0, &(struct wire_attached){.id = 1, .out_offset = 10});
	say_reply(&r, WIRE_DATA, 1);
	say(&r, WIRE_GAP, WIRE_OUT, &(struct wire_gap){.offset = 12});
	dispatch(&r);
	assert_int_equal(r.ends, 0);
	say(&r, WIRE_GAP, WIRE_OUT, &(struct wire_gap){.offset = 12});
	dispatch(&r);
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.err, EPROTO);
	run_close(&r);
}

/* What is on its way when the host ends a call is no reason to end all others. */
static void the_rest_of_an_answer_after_its_violation_is_thrown_away(void **state)
{
	struct run r = {.may = wire_answers_of(WIRE_CONNECT, NULL)}, other = {0};

	run_open(&r);
	say_reply(&r, WIRE_DATA, 1); /* before READY */
	dispatch(&r);
	assert_int_equal(r.ends, 1);
	assert_int_equal(r.err, EPROTO);

	other = (struct run){.may = wire_answers_of(WIRE_SYNC, NULL), .g = r.g};
	ask(&other);
	say_reply(&r, WIRE_READY, 1);
	for (unsigned i = 0; i < WINDOW - 1; i++) {
		say_reply(&r, WIRE_DATA, 1);
		dispatch(&r);
	}
	say_reply(&r, WIRE_CREDIT, 1);
	say_reply(&r, WIRE_EOF, 1);
	say_end(&r, 0);
	dispatch(&r);
	assert_false(r.dead);
	assert_int_equal(r.ends, 1);
	assert_int_equal(other.ends, 0); /* its id was not the other's */
	run_close(&r);
	assert_int_equal(other.ends, 1);
}

/* So what is thrown away is no more than its window. */
static void a_call_that_is_over_gets_no_credit(void **state)
{
	struct run r = {.may = wire_answers_of(WIRE_CONNECT, NULL)};

	run_open(&r);
	say_reply(&r, WIRE_DATA, 1);
	say_reply(&r, WIRE_READY, 1);
	for (unsigned i = 0; i < WINDOW + 1; i++) {
		dispatch(&r);
		assert_false(r.dead);
		say_reply(&r, WIRE_DATA, 1);
	}
	dispatch(&r);
	assert_true(r.dead);
	assert_int_equal(r.ends, 1);
	run_close(&r);
}

static void empty_data_costs_no_credit_and_may_not_come(void **state)
{
	struct run r = {.may = wire_answers_of(WIRE_LIST, NULL)};
	uint8_t frame[WIRE_HEADER];

	run_open(&r);
	wire_header_encode(&(struct wire_header){.type = WIRE_DATA, .chan = WIRE_OUT, .stream = 1},
	                   frame);
	assert_int_equal(io_write_full(r.agent, frame, sizeof(frame)), 0);
	dispatch(&r);
	assert_int_equal(r.err, EPROTO);
	assert_int_equal(r.told[WIRE_DATA], 0);
	run_close(&r);
}

static void each_request_has_a_row(void **state)
{
	struct wire_exec any = {0};

	for (unsigned type = WIRE_EXEC; type <= UINT8_MAX; type++)
		assert_int_equal(wire_type_known((uint8_t)type),
		                 wire_answers_of((uint8_t)type, &any) != NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_request_has_a_row),
	    cmocka_unit_test(a_gap_is_told_with_what_follows_it),
	    cmocka_unit_test(a_gap_goes_forward),
	    cmocka_unit_test(the_rest_of_an_answer_after_its_violation_is_thrown_away),
	    cmocka_unit_test(a_call_that_is_over_gets_no_credit),
	    cmocka_unit_test(empty_data_costs_no_credit_and_may_not_come),
	    cmocka_unit_test(each_request_gets_what_the_table_says_and_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
