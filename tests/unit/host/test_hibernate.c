/*
 * A sandbox sleeps without a machine and wakes up as it was; one that cannot be saved goes on, one
 * that cannot be woken sleeps on.
 */
#include "fake/bed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/host_internal.h"

static void what_was_hibernated_wakes_up_as_it_was(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	uint64_t generation = sb->generation;

	bed_remember(sb, 7, "a thought");
	assert_int_equal(bed_write(b, sb, "/work/note", "on disk"), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	assert_int_equal(sb->pid, 0);
	assert_int_equal(bed_snapshots(b, "hib-"), 1);
	bed_check_leftovers(b);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(sb->generation, generation + 1);
	assert_recalls(sb, 7, "a thought");
	assert_string_equal(bed_read(b, sb, "/work/note"), "on disk");
	bed_check_leftovers(b);
}

static void the_next_pandad_wakes_it_up(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	bed_remember(sb, 7, "a thought");
	assert_int_equal(bed_hibernate(b, sb), 0);
	bed_reopen(b);
	sb = bed_find(b, id);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_recalls(sb, 7, "a thought");
}

/* What it has slept in is kept while it is awake, and goes when it sleeps in another. */
static void it_can_sleep_again_and_again(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	for (unsigned i = 0; i < 4; i++) {
		char text[16];

		snprintf(text, sizeof(text), "night %u", i);
		bed_remember(sb, 7, text);
		assert_int_equal(bed_hibernate(b, sb), 0);
		bed_until(b, bed_snapshots(b, "was-") == 0);
		assert_int_equal(bed_wake_up(b, sb), 0);
		bed_until(b, !sb->ops);
		assert_int_equal(bed_snapshots(b, "hib-"), 0);
		assert_int_equal(bed_snapshots(b, "was-"), 1);
		assert_recalls(sb, 7, text);
	}
	assert_int_equal(b->host->stats.hibernations, 4);
	assert_int_equal(b->host->stats.wakes, 4);
	bed_check_leftovers(b);
}

static void it_may_be_kept_compressed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb;
	char id[SANDBOX_ID + 1];

	b->config.compress_hibernated = true;
	bed_reopen(b);
	sb = bed_create_plain(b);
	memcpy(id, sb->id, sizeof(id));
	bed_remember(sb, 7, "squeezed");
	assert_int_equal(bed_write(b, sb, "/work/note", "squeezed, too"), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	bed_reopen(b);
	sb = bed_find(b, id);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_recalls(sb, 7, "squeezed");
	assert_string_equal(bed_read(b, sb, "/work/note"), "squeezed, too");
}

static void asking_twice_is_asking_once(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer first = {.bed = b}, second = {.bed = b};

	host_hibernate(b->host, sb, bed_answered, &first);
	host_hibernate(b->host, sb, bed_answered, &second);
	assert_int_equal(bed_wait_answer(b, &first), 0);
	assert_int_equal(bed_wait_answer(b, &second), 0);
	assert_int_equal(b->host->stats.hibernations, 1);
	first.done = second.done = false;
	host_wake(b->host, sb, bed_answered, &first);
	host_wake(b->host, sb, bed_answered, &second);
	assert_int_equal(bed_wait_answer(b, &first), 0);
	assert_int_equal(bed_wait_answer(b, &second), 0);
	assert_int_equal(b->host->stats.wakes, 1);
	assert_int_equal(bed_wake_up(b, sb), 0); /* it is awake already */
}

static void a_paused_one_sleeps_too_and_wakes_up_running(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_pause(b, sb), -EBUSY);
	assert_string_equal(b->err.kind, "conflict");
	assert_int_equal(bed_resume(b, sb), -EBUSY);
	assert_string_equal(b->err.kind, "conflict");
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
}

/* Pausing, sealing and ending the machine, each of which may fail: then it goes on. */
static void one_that_cannot_be_saved_goes_on(void **state)
{
	static const enum fake_call calls[] = {FAKE_CALL_PAUSE, FAKE_CALL_SNAPSHOT, FAKE_CALL_STOP,
	                                       FAKE_CALL_ADOPT};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	bed_remember(sb, 7, "awake");
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		fake_fail(b->fake, calls[i], 1, EIO);
		assert_int_equal(bed_hibernate(b, sb), -EIO);
		assert_int_equal(sb->state, SANDBOX_RUNNING);
		assert_recalls(sb, 7, "awake");
		assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
		bed_check_leftovers(b);
	}
	assert_int_equal(b->host->stats.hibernations, 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
}

static void one_that_dies_while_it_is_put_to_sleep_has_failed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};

	fake_close(b->fake, FAKE_CALL_SNAPSHOT);
	host_hibernate(b->host, sb, bed_answered, &a);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_SNAPSHOT) == 1);
	bed_crash_machine(b, sb);
	assert_int_equal(sb->state, SANDBOX_HIBERNATING);
	fake_open(b->fake, FAKE_CALL_SNAPSHOT);
	assert_true(bed_wait_answer(b, &a) < 0);
	bed_until(b, sb->state == SANDBOX_FAILED);
	assert_non_null(strstr(sb->end, "hibernated"));
	bed_check_leftovers(b);
}

static void one_that_cannot_be_woken_sleeps_on(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	bed_remember(sb, 7, "deep");
	assert_int_equal(bed_hibernate(b, sb), 0);
	fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
	assert_int_equal(bed_wake_up(b, sb), -EIO);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	assert_non_null(strstr(b->err.text, "could not be woken"));
	bed_check_leftovers(b);
	/* Nor when its guest is not itself. */
	bed_rule(b, "mood", "{\"*\": \"die\"}");
	assert_true(bed_wake_up(b, sb) < 0);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	bed_rule(b, "mood", NULL);
	bed_check_leftovers(b);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_recalls(sb, 7, "deep");
}

static void a_sleeping_one_can_be_killed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_kill(b, sb), 0);
	assert_int_equal(b->host->count, 0);
	assert_int_equal(bed_snapshots(b, "hib-"), 0);
	bed_check_leftovers(b);
}

static void one_that_is_being_woken_can_be_killed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer woken = {.bed = b}, killed = {.bed = b};

	assert_int_equal(bed_hibernate(b, sb), 0);
	fake_close(b->fake, FAKE_CALL_START);
	host_wake(b->host, sb, bed_answered, &woken);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	assert_int_equal(sb->state, SANDBOX_WAKING);
	host_kill(b->host, sb, "test", bed_answered, &killed);
	fake_open(b->fake, FAKE_CALL_START);
	bed_until(b, woken.done && killed.done);
	assert_int_equal(killed.r, 0);
	assert_int_equal(b->host->count, 0);
	bed_check_leftovers(b);
}

/* Its files are there, but not as they were written. */
static void one_whose_files_are_damaged_sleeps_on_and_says_so(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char path[300];

	assert_int_equal(bed_hibernate(b, sb), 0);
	snprintf(path, sizeof(path), "%s/store/snapshots/hib-%s/state", b->data_dir, sb->id);
	assert_int_equal(chmod(path, 0600), 0);
	assert_int_equal(truncate(path, 3), 0);
	assert_true(bed_wake_up(b, sb) < 0);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	assert_string_equal(b->err.kind, "snapshot_corrupt");
	bed_check_leftovers(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(what_was_hibernated_wakes_up_as_it_was),
	    bed_test(the_next_pandad_wakes_it_up),
	    bed_test(it_can_sleep_again_and_again),
	    bed_test(it_may_be_kept_compressed),
	    bed_test(asking_twice_is_asking_once),
	    bed_test(a_paused_one_sleeps_too_and_wakes_up_running),
	    bed_test(one_that_cannot_be_saved_goes_on),
	    bed_test(one_that_dies_while_it_is_put_to_sleep_has_failed),
	    bed_test(one_that_cannot_be_woken_sleeps_on),
	    bed_test(a_sleeping_one_can_be_killed),
	    bed_test(one_that_is_being_woken_can_be_killed),
	    bed_test(one_whose_files_are_damaged_sleeps_on_and_says_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
