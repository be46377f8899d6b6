#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "base/nearest.h"

static const char *among(const char *word, const char *const *known, size_t n)
{
	struct nearest near = nearest_to(word);

	for (size_t i = 0; i < n; i++)
		nearest_try(&near, known[i]);
	return near.found;
}

static void a_slip_of_the_hand_is_understood(void **state)
{
	static const char *const known[] = {"create", "ttl_seconds", "egress", "ls", "snapshot"};
	static const struct {
		const char *typed, *meant;
	} slips[] = {{"craete", "create"},          {"ttl_second", "ttl_seconds"},
	             {"egres", "egress"},           {"sl", "ls"},
	             {"snaphsots", "snapshot"},     {"ccreate", "create"},
	             {"ttl-seconds", "ttl_seconds"}};

	for (size_t i = 0; i < ARRAY_LEN(slips); i++)
		assert_string_equal(among(slips[i].typed, known, ARRAY_LEN(known)), slips[i].meant);
}

static void another_word_is_another_word(void **state)
{
	static const char *const known[] = {"create", "ls", "snapshot"};
	static const char *const typed[] = {"docker", "", "x", "snap", "creation"};

	for (size_t i = 0; i < ARRAY_LEN(typed); i++)
		assert_null(among(typed[i], known, ARRAY_LEN(known)));
}

static void the_nearest_wins_and_then_the_first(void **state)
{
	static const char *const known[] = {"merge", "marge", "me"};

	assert_string_equal(among("marge", known, 3), "marge");
	assert_string_equal(among("murge", known, 3), "merge");
}

static void a_word_of_any_length_is_looked_at(void **state)
{
	char word[300];
	static const char *const known[] = {"create"};

	memset(word, 'a', sizeof(word));
	word[sizeof(word) - 1] = 0;
	assert_null(among(word, known, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_slip_of_the_hand_is_understood),
	    cmocka_unit_test(another_word_is_another_word),
	    cmocka_unit_test(the_nearest_wins_and_then_the_first),
	    cmocka_unit_test(a_word_of_any_length_is_looked_at),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
