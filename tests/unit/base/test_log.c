#include <errno.h>
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
#include "base/macro.h"

/* What stderr gets from what speak() logs. */
static void assert_logs(void (*speak)(const char *value), const char *value, const char *want)
{
	autoclose int file = memfd_create("log", MFD_CLOEXEC);
	autoclose int was = fcntl(2, F_DUPFD_CLOEXEC, 3);
	char text[2048] = "";

	assert_int_equal(dup2(file, 2), 2);
	speak(value);
	dup2(was, 2);
	assert_true(pread(file, text, sizeof(text) - 1, 0) >= 0);
	assert_string_equal(text, want);
}

static void set(const char *words)
{
	struct log_filter f;

	assert_int_equal(log_filter_parse(words, &f, NULL), 0);
	log_filter_set(&f);
}

static int reset(void **state)
{
	set("");
	return 0;
}

static void fail_with(const char *value)
{
	log_warn("it failed why=\"%s\"", value);
}

static void a_line_is_one_line_whatever_a_guest_said(void **state)
{
	assert_logs(fail_with, "no such file", "warn base: it failed why=\"no such file\"\n");
	assert_logs(fail_with, "x\"\ninfo all is well\r\033[2J\x7f",
	            "warn base: it failed why=\"x\"?info all is well??[2J?\"\n");
	assert_logs(fail_with, "\xc3\xbc", "warn base: it failed why=\"\xc3\xbc\"\n");
}

static void a_long_line_is_cut_and_still_ends(void **state)
{
	static const char begin[] = "warn base: it failed why=\"";
	char value[4000], want[1026];

	memset(value, 'a', sizeof(value) - 1);
	value[sizeof(value) - 1] = 0;
	memset(want, 'a', sizeof(want));
	memcpy(want, begin, sizeof(begin) - 1);
	memcpy(want + 1023, "\n", 2);
	assert_logs(fail_with, value, want);
}

static void at_all_levels(const char *value)
{
	log_error("e");
	log_warn("w");
	log_info("i");
	log_debug("d");
}

static void a_level_lets_through_what_matters_more(void **state)
{
	assert_logs(at_all_levels, NULL, "error base: e\nwarn base: w\ninfo base: i\n");
	set("error");
	assert_logs(at_all_levels, NULL, "error base: e\n");
	set("debug");
	assert_logs(at_all_levels, NULL,
	            "error base: e\nwarn base: w\ninfo base: i\ndebug base: d\n");
}

static int computed;

static int compute(void)
{
	return ++computed;
}

static void with_a_value(const char *value)
{
	log_debug("n=%d", compute());
}

static void what_is_off_is_not_computed(void **state)
{
	computed = 0;
	assert_logs(with_a_value, NULL, "");
	assert_int_equal(computed, 0);
	set("debug");
	assert_logs(with_a_value, NULL, "debug base: n=1\n");
}

static void from_rooms(const char *value)
{
	log_line(LOG_INFO, "../src/host/fork.c", "i");
	log_line(LOG_DEBUG, "../src/host/fork.c", "d");
	log_line(LOG_INFO, "/usr/src/panda/src/api/routes/forks.c", "i");
	log_line(LOG_DEBUG, "/usr/src/panda/src/api/routes/forks.c", "d");
	log_line(LOG_WARN, "src/net/dns.c", "w");
	log_line(LOG_WARN, "main.c", "w");
}

static void a_room_has_a_level_of_its_own(void **state)
{
	set("warn,host=debug,net=error,host=info");
	assert_logs(from_rooms, NULL, "info host: i\nwarn : w\n");
	set("api=debug error");
	assert_logs(from_rooms, NULL, "info api: i\ndebug api: d\n");
	assert_true(log_on(LOG_DEBUG));
}

static void about_sandboxes(const char *value)
{
	log_info("created sandbox=4f0c1 tenant=me");
	log_info("created sandbox=77aa0 tenant=me");
	log_info("said sandbox=77aa0 why=\" sandbox=4f0c1\"");
	log_info("ready");
	log_info("request ended sandbox=-");
	log_warn("no network");
	log_warn("died sandbox=77aa0");
}

static void a_sandbox_is_followed_without_the_others(void **state)
{
	set("sandbox=4f0c");
	assert_logs(about_sandboxes, NULL,
	            "info base: created sandbox=4f0c1 tenant=me\nwarn base: no network\n");
	set("error,sandbox=77");
	assert_logs(about_sandboxes, NULL, "");
}

static void words_that_mean_nothing_are_refused(void **state)
{
	static const char *const bad[] = {"loud",        "host=",  "host=loud",
	                                  "hosts=debug", "=debug", "sandbox=",
	                                  "debug=1",     "debugs", "debu"};
	struct log_filter f = {.level = LOG_ERROR};
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(log_filter_parse(bad[i], &f, &e), -EINVAL);
		assert_string_equal(e.kind, "bad_config");
		assert_int_equal(f.level, LOG_ERROR);
	}
	assert_int_equal(log_filter_parse("loud", &f, &e), -EINVAL);
	assert_non_null(strstr(e.text, "'loud'"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_is_one_line_whatever_a_guest_said),
	    cmocka_unit_test(a_long_line_is_cut_and_still_ends),
	    cmocka_unit_test_setup_teardown(a_level_lets_through_what_matters_more, NULL, reset),
	    cmocka_unit_test_setup_teardown(what_is_off_is_not_computed, NULL, reset),
	    cmocka_unit_test_setup_teardown(a_room_has_a_level_of_its_own, NULL, reset),
	    cmocka_unit_test_setup_teardown(a_sandbox_is_followed_without_the_others, NULL, reset),
	    cmocka_unit_test(words_that_mean_nothing_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
