/*
 * A sandbox comes to be, or leaves nothing.
 */
#include "fake/bed.h"

#include <errno.h>

#include "base/cleanup.h"

static void a_create_starts_a_machine_with_a_guest(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	const char *out;

	assert_true(sb->pid > 0);
	assert_string_equal(sb->boot_mode, "snapshot");
	assert_int_equal(bed_exec(b, sb, "echo hello; exit 3", &out), 3);
	assert_string_equal(out, "hello\n");
	assert_int_equal(bed_machines(b) > 0, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_create_starts_a_machine_with_a_guest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
