/*
 * One moment of a sandbox, as children: each has what its parent had, and nothing that came later.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

static void children_have_their_parents_memory_and_files(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[3];

	bed_remember(sb, 0, "before");
	assert_int_equal(bed_write(b, sb, "/dev/shm/note", "in memory"), 0);
	assert_int_equal(bed_write(b, sb, "/work/note", "on disk"), 0);
	assert_int_equal(bed_fork(b, sb, 3, child), 3);
	bed_remember(sb, 0, "after");
	assert_int_equal(bed_write(b, sb, "/work/note", "later"), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(child[i]->state, SANDBOX_RUNNING);
		assert_string_equal(child[i]->parent, sb->id);
		assert_string_equal(child[i]->boot_mode, "fork");
		assert_recalls(child[i], 0, "before");
		assert_string_equal(bed_read(b, child[i], "/dev/shm/note"), "in memory");
		assert_string_equal(bed_read(b, child[i], "/work/note"), "on disk");
	}
	assert_recalls(sb, 0, "after");
	assert_string_equal(bed_read(b, sb, "/work/note"), "later");
}

static void siblings_do_not_see_each_other(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[2];

	assert_int_equal(bed_fork(b, sb, 2, child), 2);
	bed_remember(child[0], 1, "mine");
	assert_int_equal(bed_write(b, child[0], "/mine", "x"), 0);
	assert_recalls(child[1], 1, "");
	assert_null(bed_read(b, child[1], "/mine"));
	assert_null(bed_read(b, sb, "/mine"));
	/* And of a child a child is made. */
	assert_int_equal(bed_fork(b, child[0], 1, &child[1]), 1);
	assert_recalls(child[1], 1, "mine");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(children_have_their_parents_memory_and_files),
	    bed_test(siblings_do_not_see_each_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
