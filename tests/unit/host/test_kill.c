/*
 * How sandboxes end: killed in any state, by their ttl, for being idle; and machines that end by
 * themselves. Time is moved by changing what it is compared with.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "db/db.h"
#include "db/db_internal.h"
#include "host/host_internal.h"

static void into_running(struct bed *b, struct sandbox *sb)
{
}

static void into_paused(struct bed *b, struct sandbox *sb)
{
	assert_int_equal(bed_pause(b, sb), 0);
}

static void into_hibernated(struct bed *b, struct sandbox *sb)
{
	assert_int_equal(bed_hibernate(b, sb), 0);
}

static void into_failed(struct bed *b, struct sandbox *sb)
{
	bed_crash_machine(b, sb);
}

static void into_woken(struct bed *b, struct sandbox *sb)
{
	into_hibernated(b, sb);
	assert_int_equal(bed_wake_up(b, sb), 0);
}

static void into_rewound(struct bed *b, struct sandbox *sb)
{
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
}

static void it_can_be_killed_in_every_state(void **state)
{
	static void (*const into[])(struct bed * b, struct sandbox * sb) = {
	    into_running, into_paused, into_hibernated, into_failed, into_woken, into_rewound,
	};
	struct bed *b = *state;

	for (size_t i = 0; i < ARRAY_LEN(into); i++) {
		struct sandbox *sb = bed_create_plain(b);

		into[i](b, sb);
		assert_int_equal(bed_kill(b, sb), 0);
		bed_until(b, b->host->count == 0);
		bed_check_leftovers(b);
	}
	assert_int_equal(b->host->stats.kills, ARRAY_LEN(into));
}

static void killed_twice_is_killed_once(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer first = {.bed = b}, second = {.bed = b};

	host_kill(b->host, sb, "test", bed_answered, &first);
	assert_null(host_find(b->host, "t", sb->id)); /* from here on others do not see it */
	host_kill(b->host, sb, "test", bed_answered, &second);
	bed_until(b, first.done && second.done);
	assert_int_equal(first.r, 0);
	assert_int_equal(second.r, 0);
	assert_int_equal(b->host->stats.kills, 1);
}

/* Behind what is at work, in front of all that waits; those are told that it is gone. */
static void a_kill_goes_to_the_front(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer snapped = {.bed = b}, paused = {.bed = b}, killed = {.bed = b};

	fake_close(b->fake, FAKE_CALL_SNAPSHOT);
	host_hibernate(b->host, sb, bed_answered, &snapped);
	host_pause(b->host, sb, bed_answered, &paused);
	host_kill(b->host, sb, "test", bed_answered, &killed);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_SNAPSHOT) == 1);
	assert_false(killed.done);
	fake_open(b->fake, FAKE_CALL_SNAPSHOT);
	bed_until(b, snapped.done && paused.done && killed.done);
	assert_int_equal(snapped.r, 0);
	assert_int_equal(killed.r, 0);
	assert_int_equal(paused.r, -ENOENT);
	assert_string_equal(b->err.kind, "sandbox_not_found");
	assert_int_equal(b->host->count, 0);
	bed_check_leftovers(b);
}

/* It is gone for its owner, on record as being killed, and the next pandad ends it. */
static void a_machine_that_does_not_end_is_ended_by_the_next_pandad(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	bed_until(b, b->host->nspare == b->host->config.prepare_ahead);
	fake_fail(b->fake, FAKE_CALL_STOP, 1, EIO);
	assert_int_equal(bed_kill(b, sb), -EIO);
	assert_int_equal(b->host->count, 0);
	assert_int_equal(bed_processes(), 1 + b->host->nspare);
	bed_reopen(b);
	assert_int_equal(b->host->count, 0);
	bed_check_leftovers(b);
}

static void a_machine_that_ends_by_itself_has_failed_for_a_reason(void **state)
{
	static const struct {
		const char *command, *end;
	} cases[] = {
	    {"crash", "killed"},
	    {"poweroff", "powered off"},
	    {"panic", "crashed: Kernel panic - not syncing: the test asked for it"},
	};
	struct bed *b = *state;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct sandbox *sb = bed_create_plain(b);
		char id[SANDBOX_ID + 1];

		memcpy(id, sb->id, sizeof(id));
		assert_true(bed_exec(b, sb, cases[i].command, NULL) < 0);
		bed_until(b, sb->state == SANDBOX_FAILED);
		assert_string_equal(sb->end, cases[i].end);
		assert_int_equal(bed_pause(b, sb), -ESRCH);
		assert_string_equal(b->err.kind, "sandbox_failed");
		assert_int_equal(bed_hibernate(b, sb), -ESRCH);
		assert_int_equal(bed_wake_up(b, sb), -ESRCH);
		assert_int_equal(bed_snapshot(b, sb, "", NULL), -ESRCH);
		bed_reopen(b);
		sb = bed_find(b, id);
		assert_int_equal(sb->state, SANDBOX_FAILED);
		assert_string_equal(sb->end, cases[i].end);
		bed_check_leftovers(b);
	}
	assert_int_equal(b->host->count, ARRAY_LEN(cases));
}

static void the_host_says_when_memory_was_the_reason(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	memcpy(b->fake->oom, sb->machine, sizeof(sb->machine));
	bed_crash_machine(b, sb);
	assert_non_null(strstr(sb->end, "out of memory"));
	assert_int_equal(b->host->stats.deaths, 1);
}

static void a_paused_one_may_die_too(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_pause(b, sb), 0);
	bed_crash_machine(b, sb);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	assert_int_equal(bed_resume(b, sb), -ESRCH);
}

static void one_that_dies_while_it_is_paused_has_failed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};

	fake_close(b->fake, FAKE_CALL_PAUSE);
	host_pause(b->host, sb, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_PAUSE) == 1);
	bed_crash_machine(b, sb);
	fake_open(b->fake, FAKE_CALL_PAUSE);
	assert_true(bed_wait_answer(b, &a) < 0);
	assert_int_equal(sb->state, SANDBOX_FAILED);
}

/* ---- pause and resume ---- */

static void a_paused_one_answers_nobody_until_it_is_resumed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct guest *g;

	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_pause(b, sb), 0); /* it is already */
	assert_int_equal(machine_guest(&b->host->machines, sb->machine, &g, &b->err), 0);
	guest_set_deadline(g, 20);
	assert_int_equal(guest_sync(g, &b->err), -ETIMEDOUT);
	guest_free(g);
	assert_int_equal(bed_resume(b, sb), 0);
	assert_int_equal(bed_resume(b, sb), 0);
	assert_int_equal(bed_exec(b, sb, "exit 4", NULL), 4);
}

static void what_cannot_be_paused_or_resumed_stays_as_it_was(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	fake_fail(b->fake, FAKE_CALL_PAUSE, 1, EIO);
	assert_int_equal(bed_pause(b, sb), -EIO);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(bed_pause(b, sb), 0);
	fake_fail(b->fake, FAKE_CALL_RESUME, 1, EIO);
	assert_int_equal(bed_resume(b, sb), -EIO);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(bed_resume(b, sb), 0);
}

/* ---- time ---- */

static void when_its_time_is_up_it_goes(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(host_set_life(b->host, sb, 3600, -1, &b->err), 0);
	assert_true(sb->timer.slot != 0);
	sb->created_ms -= 3599 * 1000; /* it was created an hour ago, nearly */
	sandbox_schedule(sb);
	assert_int_equal(b->host->count, 1);
	sb->created_ms -= 1000;
	sandbox_schedule(sb);
	bed_until(b, b->host->count == 0);
	bed_check_leftovers(b);
}

/* A clock that is set back does not prolong a life. */
static void either_clock_ends_it(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(host_set_life(b->host, sb, 3600, -1, &b->err), 0);
	sb->ends_due_ms = mono_ms(); /* by the monotonic one it is over */
	sandbox_schedule(sb);
	bed_until(b, b->host->count == 0);
}

static void a_ttl_ends_sleeping_and_paused_ones_too(void **state)
{
	struct bed *b = *state;
	struct sandbox *asleep = bed_create_plain(b), *paused = bed_create_plain(b);

	assert_int_equal(bed_hibernate(b, asleep), 0);
	assert_int_equal(bed_pause(b, paused), 0);
	assert_int_equal(host_set_life(b->host, asleep, 0, -1, &b->err), 0);
	assert_int_equal(host_set_life(b->host, paused, 0, -1, &b->err), 0);
	bed_until(b, b->host->count == 0);
	bed_check_leftovers(b);
}

static void its_time_may_be_up_while_no_pandad_runs(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	sb->spec.ttl_s = 3600;
	sb->created_ms -= 3600 * 1000;
	assert_int_equal(db_run(b->host->db, &b->err, "UPDATE sandboxes SET created_at = ?", "i",
	                        (int64_t)sb->created_ms),
	                 0);
	assert_int_equal(record_update(sb, &b->err), 0);
	bed_reopen(b);
	bed_until(b, b->host->count == 0);
	bed_check_leftovers(b);
}

/* Its owner asked for nothing for idle_s. */
/* On a host that runs for longer than that: mono_ms() counts from its start. */
static void let_it_be_idle(struct sandbox *sb, uint64_t seconds)
{
	sb->active_ms = mono_ms() - seconds * 1000;
	loop_timer_set(sb->host->loop, &sb->timer, mono_ms());
}

static void an_idle_one_goes(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	spec.idle_s = 60;
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	let_it_be_idle(sb, 59);
	bed_until(b, sb->timer.at_ms > mono_ms()); /* looked at, and left */
	assert_int_equal(b->host->count, 1);
	let_it_be_idle(sb, 60);
	bed_until(b, b->host->count == 0);
}

static void one_that_is_busy_persistent_or_asleep_is_not_idle(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *busy, *persistent, *asleep, *ttl;

	spec.idle_s = 60;
	busy = bed_create(b, &spec);
	asleep = bed_create(b, &spec);
	spec.persistent = true;
	persistent = bed_create(b, &spec);
	spec.persistent = false;
	spec.ttl_s = 3600; /* says itself how long it lives */
	ttl = bed_create(b, &spec);
	assert_true(busy && asleep && persistent && ttl);
	host_busy(b->host, busy);
	assert_int_equal(bed_hibernate(b, asleep), 0);
	let_it_be_idle(busy, 61);
	let_it_be_idle(persistent, 61);
	let_it_be_idle(asleep, 61);
	let_it_be_idle(ttl, 61);
	bed_until(b, busy->timer.at_ms > mono_ms() && !persistent->timer.slot &&
	                 !asleep->timer.slot && ttl->timer.at_ms > mono_ms());
	assert_int_equal(b->host->count, 4);
	/* No more busy: from now on it counts again. */
	host_idle(b->host, busy->id);
	let_it_be_idle(busy, 61);
	bed_until(b, b->host->count == 3);
}

static void an_idle_one_is_put_to_sleep_when_that_was_asked_for(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	spec.auto_hibernate_s = 30;
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	bed_remember(sb, 0, "dozing");
	let_it_be_idle(sb, 29);
	bed_until(b, sb->timer.at_ms > mono_ms());
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	let_it_be_idle(sb, 30);
	bed_until(b, sb->state == SANDBOX_HIBERNATED && !sb->ops);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_recalls(sb, 0, "dozing");
}

static void a_paused_one_is_not_put_to_sleep(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	spec.auto_hibernate_s = 30;
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	assert_int_equal(bed_pause(b, sb), 0);
	let_it_be_idle(sb, 61);
	bed_until(b, !sb->timer.slot);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(it_can_be_killed_in_every_state),
	    bed_test(killed_twice_is_killed_once),
	    bed_test(a_kill_goes_to_the_front),
	    bed_test(a_machine_that_does_not_end_is_ended_by_the_next_pandad),
	    bed_test(a_machine_that_ends_by_itself_has_failed_for_a_reason),
	    bed_test(the_host_says_when_memory_was_the_reason),
	    bed_test(a_paused_one_may_die_too),
	    bed_test(one_that_dies_while_it_is_paused_has_failed),
	    bed_test(a_paused_one_answers_nobody_until_it_is_resumed),
	    bed_test(what_cannot_be_paused_or_resumed_stays_as_it_was),
	    bed_test(when_its_time_is_up_it_goes),
	    bed_test(either_clock_ends_it),
	    bed_test(a_ttl_ends_sleeping_and_paused_ones_too),
	    bed_test(its_time_may_be_up_while_no_pandad_runs),
	    bed_test(an_idle_one_goes),
	    bed_test(one_that_is_busy_persistent_or_asleep_is_not_idle),
	    bed_test(an_idle_one_is_put_to_sleep_when_that_was_asked_for),
	    bed_test(a_paused_one_is_not_put_to_sleep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
