/*
 * A sandbox is put back to moments it has had (test_rewind.c: which of them are kept).
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "host/checkpoint.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/rewind.h"

static void remember_and_take(struct bed *b, struct sandbox *sb, const char *word, const char *name,
                              char id[37])
{
	bed_remember(sb, 0, word);
	assert_int_equal(bed_write(b, sb, "/work/note", word), 0);
	assert_int_equal(bed_checkpoint(b, sb, name, id), 0);
}

static void it_is_put_back_to_what_it_was(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	uint64_t generation = sb->generation;
	char id[SANDBOX_ID + 1];
	pid_t pid = sb->pid;

	memcpy(id, sb->id, sizeof(id));
	remember_and_take(b, sb, "one", "", NULL);
	bed_remember(sb, 0, "two");
	assert_int_equal(bed_write(b, sb, "/work/note", "two"), 0);
	assert_int_equal(bed_write(b, sb, "/work/more", "of it"), 0);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_string_equal(sb->id, id); /* the same sandbox, on another machine */
	assert_string_not_equal(sb->machine, id);
	assert_int_not_equal(sb->pid, pid);
	assert_int_equal(sb->generation, generation + 1);
	assert_recalls(sb, 0, "one");
	assert_string_equal(bed_read(b, sb, "/work/note"), "one");
	assert_null(bed_read(b, sb, "/work/more"));
	bed_check_leftovers(b);
}

static void any_of_them_by_name_by_id_or_by_steps(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[3][SANDBOX_ID + 1];

	remember_and_take(b, sb, "one", "first", id[0]);
	remember_and_take(b, sb, "two", "", id[1]);
	remember_and_take(b, sb, "three", "", id[2]);
	bed_remember(sb, 0, "four");
	assert_int_equal(bed_rewind(b, sb, NULL, 2), 0);
	assert_recalls(sb, 0, "two");
	assert_int_equal(bed_rewind(b, sb, "first", 0), 0);
	assert_recalls(sb, 0, "one");
	assert_int_equal(bed_rewind(b, sb, id[0], 0), 0); /* it is there still */
	assert_recalls(sb, 0, "one");
	bed_check_leftovers(b);
}

static void those_that_are_newer_are_gone(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[3][SANDBOX_ID + 1];

	remember_and_take(b, sb, "one", "", id[0]);
	remember_and_take(b, sb, "two", "", id[1]);
	remember_and_take(b, sb, "three", "", id[2]);
	assert_int_equal(b->host->checkpoints, 3);
	assert_int_equal(bed_rewind(b, sb, id[0], 0), 0);
	assert_int_equal(sb->history->n, 1);
	assert_int_equal(b->host->checkpoints, 1);
	assert_int_equal(bed_rewind(b, sb, id[1], 0), -ENOENT);
	assert_string_equal(b->err.kind, "checkpoint_not_found");
	assert_recalls(sb, 0, "one");
}

/* Where it has just been put back to is no step, until somebody has asked for something. */
static void a_step_back_twice_is_two_steps(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	remember_and_take(b, sb, "one", "", NULL);
	remember_and_take(b, sb, "two", "", NULL);
	bed_remember(sb, 0, "three");
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_recalls(sb, 0, "two");
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_recalls(sb, 0, "one");
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -ENOENT);
	history_touch(sb);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_recalls(sb, 0, "one");
}

static void it_says_why_there_are_none(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -ENOENT);
	assert_non_null(strstr(b->err.text, "has no checkpoints: take one"));
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	assert_int_equal(bed_rewind(b, sb, "none", 0), -ENOENT);
	assert_non_null(strstr(b->err.text, "has no checkpoint 'none'"));
	assert_int_equal(bed_rewind(b, sb, NULL, 5), -ENOENT);
	assert_non_null(strstr(b->err.text, "so many steps back"));
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(b->host->checkpoints, 0);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -ENOENT);
	assert_non_null(strstr(b->err.text, "it was hibernated"));
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	bed_reopen(b);
	sb = bed_find(b, id);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -ENOENT);
	assert_non_null(strstr(b->err.text, "pandad was started anew"));
}

static void one_that_has_failed_comes_back(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	remember_and_take(b, sb, "alive", "", NULL);
	bed_crash_machine(b, sb);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_string_equal(sb->end, "");
	assert_recalls(sb, 0, "alive");
	bed_check_leftovers(b);
}

static void a_paused_one_runs_then(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	remember_and_take(b, sb, "moving", "", NULL);
	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), -EBUSY);
	assert_string_equal(b->err.kind, "sandbox_paused");
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	bed_check_leftovers(b);
}

static void one_that_cannot_be_put_back_stays_what_it_is(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char machine[SANDBOX_ID + 1];

	memcpy(machine, sb->machine, sizeof(machine));
	remember_and_take(b, sb, "one", "", NULL);
	bed_remember(sb, 0, "two");
	for (unsigned paused = 0; paused < 2; paused++) {
		fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
		assert_int_equal(bed_rewind(b, sb, NULL, 1), -EIO);
		assert_int_equal(sb->state, paused ? SANDBOX_PAUSED : SANDBOX_RUNNING);
		assert_string_equal(sb->machine, machine);
		assert_recalls(sb, 0, "two");
		bed_check_leftovers(b);
		if (!paused)
			assert_int_equal(bed_pause(b, sb), 0);
	}
	bed_crash_machine(b, sb);
	fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -EIO);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_recalls(sb, 0, "one");
}

/* The old machine ends while the new one starts: that does not matter any more. */
static void its_old_machine_may_die_meanwhile(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};

	remember_and_take(b, sb, "one", "", NULL);
	fake_close(b->fake, FAKE_CALL_START);
	host_rewind(b->host, sb, NULL, 1, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	assert_int_equal(sb->state, SANDBOX_REWINDING);
	bed_crash_machine(b, sb);
	assert_int_equal(sb->state, SANDBOX_REWINDING);
	fake_open(b->fake, FAKE_CALL_START);
	assert_int_equal(bed_wait_answer(b, &a), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_recalls(sb, 0, "one");
	bed_check_leftovers(b);
}

/* And when the new one does not start either, it has failed. */
static void when_both_machines_are_gone_it_has_failed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};

	remember_and_take(b, sb, "one", "", NULL);
	fake_close(b->fake, FAKE_CALL_START);
	fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
	host_rewind(b->host, sb, NULL, 1, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	bed_crash_machine(b, sb);
	fake_open(b->fake, FAKE_CALL_START);
	assert_int_equal(bed_wait_answer(b, &a), -EIO);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	bed_check_leftovers(b);
}

static void one_that_is_put_back_can_be_killed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer rewound = {.bed = b}, killed = {.bed = b};

	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	fake_close(b->fake, FAKE_CALL_START);
	host_rewind(b->host, sb, NULL, 1, bed_answered, &rewound);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	host_kill(b->host, sb, "test", bed_answered, &killed);
	fake_open(b->fake, FAKE_CALL_START);
	bed_until(b, rewound.done && killed.done);
	assert_int_equal(b->host->count, 0);
	assert_int_equal(b->host->checkpoints, 0);
	bed_check_leftovers(b);
}

/* In a pandad that goes without a word while the rewind is at work. */
static void pause_and_begin_a_rewind(struct bed *b, void *arg)
{
	struct sandbox *sb = bed_find(b, arg);
	struct bed_answer a = {.bed = b};

	remember_and_take(b, sb, "one", "", NULL);
	assert_int_equal(bed_pause(b, sb), 0);
	fake_close(b->fake, FAKE_CALL_START);
	host_rewind(b->host, sb, NULL, 1, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	/* REWINDING is on record only because something else is changed meanwhile. */
	assert_int_equal(host_set_metadata(b->host, sb, json_pack("{s:i}", "n", 1), &b->err), 0);
}

static void a_paused_one_whose_rewind_was_cut_short_is_not_stuck(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	bed_close_host(b);
	assert_false(bed_in_child(b, NULL, pause_and_begin_a_rewind, id));
	bed_open_host(b);
	sb = bed_find(b, id);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	assert_recalls(sb, 0, "one");
	bed_check_leftovers(b);
}

static void checkpoints_that_fail_leave_the_list_as_it_was(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_checkpoint(b, sb, "good", NULL), 0);
	fake_fail(b->fake, FAKE_CALL_SNAPSHOT, 1, EIO);
	assert_int_equal(bed_checkpoint(b, sb, "bad", NULL), -EIO);
	assert_int_equal(sb->history->n, 1);
	assert_int_equal(b->host->checkpoints, 1);
	assert_non_null(checkpoint_find(sb, "good", 0, &b->err));
	assert_null(checkpoint_find(sb, "bad", 0, &b->err));
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
}

static void one_can_be_deleted(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[3][SANDBOX_ID + 1];

	for (unsigned i = 0; i < 3; i++)
		remember_and_take(b, sb, i ? "later" : "first", "", id[i]);
	assert_int_equal(host_checkpoint_delete(b->host, sb, id[1], &b->err), 0);
	assert_int_equal(host_checkpoint_delete(b->host, sb, id[1], &b->err), -ENOENT);
	assert_int_equal(sb->history->n, 2);
	assert_int_equal(bed_rewind(b, sb, NULL, 2), 0);
	assert_recalls(sb, 0, "first");
}

static void only_so_many_have_names(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char name[16];

	for (unsigned i = 0; i < CHECKPOINTS_NAMED_MAX; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(bed_checkpoint(b, sb, name, NULL), 0);
	}
	assert_int_equal(bed_checkpoint(b, sb, "one more", NULL), -EDQUOT);
	assert_string_equal(b->err.kind, "quota_exceeded");
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
}

static void many_are_thinned_and_those_with_names_stay(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	unsigned unnamed = 0;

	assert_int_equal(bed_checkpoint(b, sb, "keep me", NULL), 0);
	for (unsigned i = 0; i < 45; i++)
		assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	assert_in_range(sb->history->n, CHECKPOINTS_RECENT, CHECKPOINTS_MAX);
	for (struct checkpoint *c = sb->history->newest; c; c = c->older)
		unnamed += !c->name[0];
	assert_int_equal(unnamed + 1, sb->history->n);
	assert_int_equal(sb->history->n, b->host->checkpoints);
	assert_int_equal(bed_rewind(b, sb, "keep me", 0), 0);
}

static void gone(void *arg)
{
	*(bool *)arg = true;
}

static void before_each_command_when_that_was_asked_for(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	bool go = false;

	assert_false(host_checkpoint_before(b->host, sb, gone, &go));
	assert_int_equal(host_set_checkpoints(b->host, sb, true, &b->err), 0);
	assert_true(host_checkpoint_before(b->host, sb, gone, &go));
	bed_until(b, go);
	assert_int_equal(sb->history->n, 1);
	assert_true(sb->history->newest->automatic);
	/* One that fails holds nobody up. */
	go = false;
	fake_fail(b->fake, FAKE_CALL_SNAPSHOT, 1, EIO);
	assert_true(host_checkpoint_before(b->host, sb, gone, &go));
	bed_until(b, go);
	assert_int_equal(sb->history->n, 1);
	/* Right after a rewind, the one it was put back to stands for this moment. */
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	go = false;
	assert_true(host_checkpoint_before(b->host, sb, gone, &go));
	bed_until(b, go);
	assert_int_equal(sb->history->n, 1);
}

static void a_sleeping_one_wakes_up_for_a_checkpoint(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(sb->history->n, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(it_is_put_back_to_what_it_was),
	    bed_test(any_of_them_by_name_by_id_or_by_steps),
	    bed_test(those_that_are_newer_are_gone),
	    bed_test(a_step_back_twice_is_two_steps),
	    bed_test(it_says_why_there_are_none),
	    bed_test(one_that_has_failed_comes_back),
	    bed_test(a_paused_one_runs_then),
	    bed_test(one_that_cannot_be_put_back_stays_what_it_is),
	    bed_test(its_old_machine_may_die_meanwhile),
	    bed_test(when_both_machines_are_gone_it_has_failed),
	    bed_test(one_that_is_put_back_can_be_killed),
	    bed_test(a_paused_one_whose_rewind_was_cut_short_is_not_stuck),
	    bed_test(checkpoints_that_fail_leave_the_list_as_it_was),
	    bed_test(one_can_be_deleted),
	    bed_test(only_so_many_have_names),
	    bed_test(many_are_thinned_and_those_with_names_stay),
	    bed_test(before_each_command_when_that_was_asked_for),
	    bed_test(a_sleeping_one_wakes_up_for_a_checkpoint),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
