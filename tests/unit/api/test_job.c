/*
 * Calls to a guest from the loop (api/streams/job.h): when they begin, and what they carry.
 */
#include <errno.h>
#include <string.h>

#include "api/streams/job.h"
#include "bed.h"

/* What a job has told. */
struct told {
	struct bed *b;
	struct job *j;
	bool ready, ended;
	int guest; /* errno value; 0 too when e has something to say */
	struct err e;
};

static void told_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct told *t = arg;

	t->ready |= type == WIRE_READY;
	bed_wake(t->b);
}

static void told_end(void *arg, struct job *j, const struct job_end *end)
{
	struct told *t = arg;

	t->j = NULL;
	t->ended = true;
	t->guest = end->guest;
	if (end->e)
		t->e = *end->e;
	bed_wake(t->b);
}

static const struct job_ops told_ops = {.reply = told_reply, .end = told_end};

static struct told *start_job(struct bed *b, struct told *t, struct sandbox *sb, uint8_t type,
                              const void *msg)
{
	*t = (struct told){.b = b};
	t->j = job_start(b->host, sb, type, msg, &told_ops, t, &b->err);
	assert_non_null(t->j);
	return t;
}

static void look_at_root(struct bed *b, struct told *t, struct sandbox *sb)
{
	start_job(b, t, sb, WIRE_STAT, &(struct wire_path_flags){.path = wire_str("/")});
}

static void a_job_asks_and_hears(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct told t;

	look_at_root(b, &t, sb);
	assert_false(t.ended); /* nothing is called from within job_start() */
	bed_until(b, t.ended);
	assert_int_equal(t.e.code, 0);
	assert_int_equal(t.guest, 0);
	assert_int_equal(sb->busy, 0);
	bed_empty(b);
}

static void a_request_survives_its_struct_when_the_sandbox_has_to_wake_up(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char path[] = "/made-while-it-woke-up";
	struct wire_mkdir m = {.path = wire_str(path), .mode = 0755};
	struct told t;

	assert_int_equal(bed_hibernate(b, sb), 0);
	start_job(b, &t, sb, WIRE_MKDIR, &m);
	memset(path, 'x', sizeof(path) - 1);
	memset(&m, 0, sizeof(m));
	bed_until(b, t.ended);
	assert_int_equal(t.e.code, 0);
	assert_int_equal(t.guest, 0);
	start_job(b, &t, sb, WIRE_STAT,
	          &(struct wire_path_flags){.path = wire_str("/made-while-it-woke-up")});
	bed_until(b, t.ended);
	assert_int_equal(t.guest, 0);
	bed_empty(b);
}

static void a_request_in_wire_form_is_asked_as_it_is(void **state)
{
	static const struct wire_path_flags m = {.path = {.p = "/nope", .len = 5}};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	uint8_t bytes[64];
	struct guest_request rq = {.type = WIRE_STAT, .p = bytes};
	struct told t = {.b = b};

	rq.n = (size_t)wire_path_flags_encode(&m, bytes, sizeof(bytes));
	for (unsigned asleep = 0; asleep < 2; asleep++) {
		if (asleep)
			assert_int_equal(bed_hibernate(b, sb), 0);
		t.ended = false;
		t.j = job_start_encoded(b->host, sb, &rq, &told_ops, &t, &b->err);
		assert_non_null(t.j);
		bed_until(b, t.ended);
		assert_int_equal(t.e.code, 0);
		assert_int_equal(t.guest, ENOENT);
	}
	bed_empty(b);
}

static void what_fits_into_no_frame_is_refused_at_once(void **state)
{
	static char path[WIRE_PAYLOAD_MAX + 1];
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct wire_path_flags m;
	struct told t = {.b = b};

	memset(path, 'x', sizeof(path) - 1);
	m = (struct wire_path_flags){.path = wire_str(path)};
	assert_null(job_start(b->host, sb, WIRE_STAT, &m, &told_ops, &t, &b->err));
	assert_string_equal(b->err.kind, "too_large");
	assert_int_equal(sb->busy, 0);
	bed_empty(b);
}

/* ---- when the connection has no room ---- */

static struct told watches[GUEST_CALLS_MAX];

static void take_all_calls(struct bed *b, struct sandbox *sb)
{
	struct wire_watch m = {.path = wire_str("/"), .window = 64};

	for (size_t i = 0; i < GUEST_CALLS_MAX; i++)
		start_job(b, &watches[i], sb, WIRE_WATCH, &m);
	bed_until(b, watches[GUEST_CALLS_MAX - 1].ready);
}

static void give_up_watches(struct bed *b)
{
	for (size_t i = 0; i < GUEST_CALLS_MAX; i++)
		job_abandon(watches[i].j);
}

static void a_job_begins_when_another_call_has_ended(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct told t[2];

	take_all_calls(b, sb);
	look_at_root(b, &t[0], sb);
	look_at_root(b, &t[1], sb);
	job_abandon(t[1].j); /* may be done while it waits */
	job_cancel(watches[500].j);
	bed_until(b, t[0].ended);
	assert_int_equal(t[0].e.code, 0);
	assert_int_equal(t[0].guest, 0);
	assert_true(watches[500].ended);
	assert_int_equal(watches[500].guest, ECANCELED);
	assert_false(t[1].ended);
	give_up_watches(b);
	bed_until(b, sb->busy == 0);
	bed_empty(b);
}

static void a_job_that_waits_for_room_outlives_the_connection(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct told t;

	take_all_calls(b, sb);
	look_at_root(b, &t, sb);
	assert_int_equal(bed_hibernate(b, sb), 0); /* which ends all calls */
	bed_until(b, t.ended);
	assert_int_equal(t.e.code, 0);
	assert_int_equal(t.guest, 0);
	bed_until(b, sb->busy == 0);
	bed_empty(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_job_asks_and_hears),
	    bed_test(a_request_survives_its_struct_when_the_sandbox_has_to_wake_up),
	    bed_test(a_request_in_wire_form_is_asked_as_it_is),
	    bed_test(what_fits_into_no_frame_is_refused_at_once),
	    bed_test(a_job_begins_when_another_call_has_ended),
	    bed_test(a_job_that_waits_for_room_outlives_the_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
