#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/log.h"

/* What a line looks like on stderr. */
static void assert_logged(const char *value, const char *want)
{
	autoclose int file = memfd_create("log", MFD_CLOEXEC);
	autoclose int was = fcntl(2, F_DUPFD_CLOEXEC, 3);
	char text[2048] = "";

	assert_int_equal(dup2(file, 2), 2);
	log_warn("it failed why=\"%s\"", value);
	dup2(was, 2);
	assert_true(pread(file, text, sizeof(text) - 1, 0) > 0);
	assert_string_equal(text, want);
}

static void a_line_is_one_line_whatever_a_guest_said(void **state)
{
	assert_logged("no such file", "warn it failed why=\"no such file\"\n");
	assert_logged("x\"\ninfo all is well\r\033[2J\x7f",
	              "warn it failed why=\"x\"?info all is well??[2J?\"\n");
	assert_logged("\xc3\xbc", "warn it failed why=\"\xc3\xbc\"\n");
}

static void a_long_line_is_cut_and_still_ends(void **state)
{
	char value[4000], want[1026];

	memset(value, 'a', sizeof(value) - 1);
	value[sizeof(value) - 1] = 0;
	memset(want, 'a', sizeof(want));
	memcpy(want, "warn it failed why=\"", 20);
	memcpy(want + 1023, "\n", 2);
	assert_logged(value, want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_is_one_line_whatever_a_guest_said),
	    cmocka_unit_test(a_long_line_is_cut_and_still_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
