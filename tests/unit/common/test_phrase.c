/*
 * common/phrase.c: it refuses what it is there to refuse
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/macro.h"
#include "common/phrase.h"

static void fragments_are_refused(void **state)
{
	static const char *const bad[] = {
	    "",
	    "and receive",
	    "of clients",
	    "for what blocks",
	    "and so long; 0: for ever",
	    "by which the host reaches it",
	    "when that is",
	    "When that is",
	    "them",
	    "also, when you have one",
	    "milliseconds",
	    "0",
	    " the name of it",
	    "the name of it ",
	    "the name of it:",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (!phrase_fault(bad[i]))
			fail_msg("'%s' was taken for a phrase", bad[i]);
}

static void actors_without_a_name_are_refused(void **state)
{
	assert_non_null(phrase_fault("a link: whoever has it needs no key"));
	assert_non_null(phrase_fault("Somebody changed something"));
	assert_non_null(phrase_fault("a volume that nobody's sandbox has"));
	assert_null(phrase_fault("a body that no client reads"));
}

static void brackets_and_quotes_must_match(void **state)
{
	assert_non_null(phrase_fault("the size (in MiB"));
	assert_non_null(phrase_fault("the size in MiB)"));
	assert_non_null(phrase_fault("the size [in MiB)"));
	assert_non_null(phrase_fault("a name like \"TERM"));
	assert_non_null(phrase_fault("too deep ((((((((((((((((("));
	assert_null(phrase_fault("a name like \"TERM\" (or [9])"));
}

static void phrases_are_taken(void **state)
{
	static const char *const good[] = {
	    "connections that clients may have open at once",
	    "1: standard input is closed after these bytes",
	    "android images",
	    "Format of the answer",
	    "whole file",
	    "name, *.name, name:port, address or CIDR; []: nothing",
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++)
		if (phrase_fault(good[i]))
			fail_msg("'%s' %s", good[i], phrase_fault(good[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(fragments_are_refused),
	    cmocka_unit_test(actors_without_a_name_are_refused),
	    cmocka_unit_test(brackets_and_quotes_must_match),
	    cmocka_unit_test(phrases_are_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
