/*
 * A sandbox sleeps without a machine and wakes up as it was.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

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
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_true(sb->generation > generation);
	assert_recalls(sb, 7, "a thought");
	assert_string_equal(bed_read(b, sb, "/work/note"), "on disk");
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(what_was_hibernated_wakes_up_as_it_was),
	    bed_test(the_next_pandad_wakes_it_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
