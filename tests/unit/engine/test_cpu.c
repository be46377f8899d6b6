/*
 * engine/cpu.h: the choice is a function of two texts and a set.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "engine/cpu.h"

static cpu_set_t cpus(int n)
{
	cpu_set_t s;

	CPU_ZERO(&s);
	for (int i = 0; i < n; i++)
		CPU_SET(i, &s);
	return s;
}

static int pick(struct cpu_sample *s, const cpu_set_t *may, const char *stat)
{
	return cpu_pick(s, stat, may);
}

static void the_cpu_that_idled_most_since_the_last_choice_wins(void **state)
{
	struct cpu_sample s = {0};
	cpu_set_t may = cpus(3);

	pick(&s, &may,
	     "cpu  0 0 0 1250 0\ncpu0 1 1 1 900 9\ncpu1 1 1 1 200 9\ncpu2 1 1 1 150 9\nintr 7\n");
	/* cpu0 has the most idle ticks of all time, but cpu1 the most since. */
	assert_int_equal(pick(&s, &may,
	                      "cpu  0 0 0 1420 0\ncpu0 1 1 1 930 9\ncpu1 1 1 1 300 9\n"
	                      "cpu2 1 1 1 190 9\nintr 7\n"),
	                 1);
	assert_int_equal(s.idle[1], 300);
	assert_int_equal(pick(&s, &may,
	                      "cpu0 1 1 1 960 9\ncpu1 1 1 1 301 9\ncpu2 1 1 1 290 9\nintr 7\n"),
	                 2);
}

static void equally_idle_cpus_take_turns(void **state)
{
	struct cpu_sample s = {0};
	cpu_set_t may = cpus(4);
	int chosen[4] = {0};

	for (int i = 0; i < 8; i++)
		chosen[pick(&s, &may,
		            "cpu0 0 0 0 100\ncpu1 0 0 0 100\ncpu2 0 0 0 100\ncpu3 0 0 0 100\n")]++;
	for (int i = 0; i < 4; i++)
		assert_int_equal(chosen[i], 2);
}

static void samples_too_close_together_keep_the_older_one(void **state)
{
	struct cpu_sample s = {.idle = {100, 100}};
	cpu_set_t may = cpus(2);

	pick(&s, &may, "cpu0 0 0 0 101\ncpu1 0 0 0 100\n");
	assert_int_equal(s.idle[0], 100);
	pick(&s, &may, "cpu0 0 0 0 101\ncpu1 0 0 0 102\n");
	assert_int_equal(s.idle[0], 101);
	assert_int_equal(s.idle[1], 102);
}

static void a_count_that_went_back_is_no_idle_cpu(void **state)
{
	struct cpu_sample s = {.idle = {5000, 5000}};
	cpu_set_t may = cpus(2);

	assert_int_equal(pick(&s, &may, "cpu0 0 0 0 4000\ncpu1 0 0 0 5003\n"), 1);
}

static void only_cpus_we_may_use_are_chosen(void **state)
{
	struct cpu_sample s = {0};
	cpu_set_t may;

	CPU_ZERO(&may);
	assert_int_equal(pick(&s, &may, "cpu0 0 0 0 100\n"), -1);
	CPU_SET(5, &may);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pick(&s, &may, "cpu0 0 0 0 100\ncpu5 0 0 0 1\n"), 5);
}

static void a_text_that_says_nothing_still_gives_a_cpu(void **state)
{
	static const char *const texts[] = {"",
	                                    "\n\n",
	                                    "cpu",
	                                    "cpu0",
	                                    "cpu0 1 2",
	                                    "cpu4000000000 1 1 1 1\n",
	                                    "cpu99999999999999999999 1 1 1 1\n",
	                                    "cpu1024 1 1 1 77\n"};
	cpu_set_t may = cpus(2);

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct cpu_sample s = {0};

		assert_int_equal(pick(&s, &may, texts[i]), 0);
		assert_int_equal(s.placed, 1);
	}
}

/* "cpu  1 ..." is the sum: its first number must not be taken for a cpu's. */
static void the_sum_of_all_cpus_is_none(void **state)
{
	struct cpu_sample s = {0};
	cpu_set_t may = cpus(2);

	assert_int_equal(pick(&s, &may, "cpu0 0 0 0 50\ncpu  1 0 0 0 90 0\n"), 0);
}

static void the_real_host_has_a_cpu_for_us_every_time(void **state)
{
	char dir[] = "/tmp/panda-cpu-XXXXXX", file[64];
	autoclose int fd = -1;
	cpu_set_t may;

	assert_non_null(mkdtemp(dir));
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(sched_getaffinity(0, sizeof(may), &may), 0);
	for (int i = 0; i < 3; i++) {
		int cpu = cpu_choose(fd);

		assert_true(cpu >= 0 && CPU_ISSET(cpu, &may));
	}
	snprintf(file, sizeof(file), "%s/cpus", dir);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_cpu_that_idled_most_since_the_last_choice_wins),
	    cmocka_unit_test(equally_idle_cpus_take_turns),
	    cmocka_unit_test(samples_too_close_together_keep_the_older_one),
	    cmocka_unit_test(a_count_that_went_back_is_no_idle_cpu),
	    cmocka_unit_test(only_cpus_we_may_use_are_chosen),
	    cmocka_unit_test(a_text_that_says_nothing_still_gives_a_cpu),
	    cmocka_unit_test(the_sum_of_all_cpus_is_none),
	    cmocka_unit_test(the_real_host_has_a_cpu_for_us_every_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
