/*
 * Is there room for one more? And what is made ahead, so that one more is quick.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "host/host_internal.h"

static void expect_refused(struct bed *b, const struct quota *quota, size_t n, const char *kind)
{
	uint64_t refused = b->host->stats.refused;
	struct err e = {0};

	assert_true(host_admit(b->host, "t", n, BED_MEMORY_MB, quota, &e) < 0);
	assert_string_equal(e.kind, kind);
	/* What the host lacks is counted, what a tenant may not have is not. */
	assert_int_equal(b->host->stats.refused - refused, !strcmp(kind, "host_full"));
}

static void expect_room(struct bed *b, const struct quota *quota, size_t n)
{
	struct err e = {0};

	if (host_admit(b->host, "t", n, BED_MEMORY_MB, quota, &e) < 0)
		fail_msg("%s", e.text);
}

static void a_quota_of_sandboxes_counts_all_of_a_tenant(void **state)
{
	struct bed *b = *state;
	struct quota quota = {.sandboxes = 2};
	struct sandbox *sb;

	expect_room(b, &quota, 2);
	expect_refused(b, &quota, 3, "quota_exceeded");
	sb = bed_create_plain(b);
	expect_room(b, &quota, 1);
	expect_refused(b, &quota, 2, "quota_exceeded");
	/* A sleeping one counts, too: it can be woken. */
	assert_int_equal(bed_hibernate(b, sb), 0);
	expect_refused(b, &quota, 2, "quota_exceeded");
	assert_int_equal(host_admit(b->host, "other", 2, 0, &quota, &b->err), 0);
	assert_int_equal(bed_kill(b, sb), 0);
	expect_room(b, &quota, 2);
}

static void a_quota_of_memory_counts_what_each_may_use(void **state)
{
	struct bed *b = *state;
	struct quota quota = {.memory_mb = 2 * BED_MEMORY_MB};

	expect_room(b, &quota, 2);
	expect_refused(b, &quota, 3, "quota_exceeded");
	bed_create_plain(b);
	expect_room(b, &quota, 1);
	expect_refused(b, &quota, 2, "quota_exceeded");
}

static void a_create_over_the_quota_leaves_nothing(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct quota quota = {.sandboxes = 1};
	struct bed_answer a = {.bed = b}, c = {.bed = b};

	host_create(b->host, "t", &spec, &quota, bed_answered, &a);
	host_create(b->host, "t", &spec, &quota, bed_answered, &c);
	assert_true(c.done); /* the first one counts from when it was asked for */
	assert_int_equal(c.r, -EDQUOT);
	assert_int_equal(bed_wait_answer(b, &a), 0);
	bed_check_leftovers(b);
}

static void a_host_takes_only_so_many(void **state)
{
	struct bed *b = *state;

	b->config.sandboxes_max = 2;
	bed_reopen(b);
	expect_room(b, NULL, 2);
	expect_refused(b, NULL, 3, "host_full");
	bed_create_plain(b);
	bed_create_plain(b);
	expect_refused(b, NULL, 1, "host_full");
	expect_room(b, NULL, 0); /* what is there already may wake up */
}

static void memory_and_disk_are_kept_in_reserve(void **state)
{
	struct bed *b = *state;

	b->host->config.memory_reserve = (uint64_t)1 << 60;
	expect_refused(b, NULL, 0, "host_full");
	b->host->config.memory_reserve = 1;
	b->host->config.disk_reserve = (uint64_t)1 << 60;
	expect_refused(b, NULL, 0, "host_full");
	b->host->config.disk_reserve = 1;
	expect_room(b, NULL, 1);
}

static void one_that_cannot_be_woken_for_want_of_room_sleeps_on(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_hibernate(b, sb), 0);
	b->host->config.memory_reserve = (uint64_t)1 << 60;
	assert_int_equal(bed_wake_up(b, sb), -EAGAIN);
	assert_string_equal(b->err.kind, "host_full");
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	b->host->config.memory_reserve = 1;
	assert_int_equal(bed_wake_up(b, sb), 0);
}

static void no_room_is_no_reason_to_keep_one(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	b->host->config.memory_reserve = b->host->config.disk_reserve = (uint64_t)1 << 60;
	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_resume(b, sb), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), -EAGAIN);
	assert_int_equal(bed_kill(b, sb), 0);
}

/* ---- made ahead ---- */

static void a_process_is_made_ahead_and_used(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	(void)sb;
	bed_until(b, b->host->nspare == 1);
	assert_int_equal(bed_processes(), 2);
	host_take_id(b->host, id, &(bool){false});
	machine_remove(&b->host->machines, id, NULL); /* it was ours to undo */
	assert_int_equal(b->host->nspare, 0);
	host_fill_spare(b->host);
	bed_until(b, b->host->nspare == 1);
	bed_check_leftovers(b);
}

static void what_was_made_ahead_goes_with_the_host(void **state)
{
	struct bed *b = *state;

	bed_until(b, b->host->nspare == 1);
	bed_close_host(b);
	assert_int_equal(bed_machines(b), 0);
	assert_int_equal(bed_processes(), 0);
}

static void one_that_cannot_be_made_ahead_is_made_when_it_is_needed(void **state)
{
	struct bed *b = *state;

	for (unsigned i = 1; i <= 3; i++)
		fake_fail(b->fake, FAKE_CALL_PREPARE, i, EIO);
	b->host->config.prepare_ahead = 0;
	bed_create_plain(b);
	bed_create_plain(b);
	b->host->config.prepare_ahead = 1;
	bed_check_leftovers(b);
}

/* It has died before it was needed: another one takes its place. */
static void one_that_was_made_ahead_and_died_is_undone(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	bed_create_plain(b);
	bed_until(b, b->host->nspare == 1);
	fake_fail(b->fake, FAKE_CALL_START, 1, ESRCH);
	assert_null(bed_create(b, &spec));
	bed_check_leftovers(b);
	bed_create_plain(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_quota_of_sandboxes_counts_all_of_a_tenant),
	    bed_test(a_quota_of_memory_counts_what_each_may_use),
	    bed_test(a_create_over_the_quota_leaves_nothing),
	    bed_test(a_host_takes_only_so_many),
	    bed_test(memory_and_disk_are_kept_in_reserve),
	    bed_test(one_that_cannot_be_woken_for_want_of_room_sleeps_on),
	    bed_test(no_room_is_no_reason_to_keep_one),
	    bed_test(a_process_is_made_ahead_and_used),
	    bed_test(what_was_made_ahead_goes_with_the_host),
	    bed_test(one_that_cannot_be_made_ahead_is_made_when_it_is_needed),
	    bed_test(one_that_was_made_ahead_and_died_is_undone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
