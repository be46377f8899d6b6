/*
 * pandad --help: what it says of each option is understood without the lines around it
 * The program is the first argument.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/phrase.h"

static const char *program;

/* "  -V, --version   the text": the text, or NULL when the line is none of an option */
static const char *text_of_option(const char *line)
{
	const char *dashes = strstr(line, "--"), *blanks;

	if (strncmp(line, "  ", 2) != 0 || !dashes || strncmp(line, "  pandad", 8) == 0)
		return NULL;
	blanks = strstr(dashes, "  ");
	return blanks ? blanks + strspn(blanks, " ") : NULL;
}

static void every_text_stands_alone(void **state)
{
	char command[4096], line[256];
	size_t options = 0;
	FILE *f;

	snprintf(command, sizeof(command), "exec '%s' --help", program);
	f = popen(command, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		const char *text, *why;

		line[strcspn(line, "\n")] = 0;
		text = text_of_option(line);
		if (!text)
			continue;
		options++;
		why = phrase_fault(text);
		if (why)
			fail_msg("pandad --help: '%s' %s", text, why);
	}
	assert_int_equal(pclose(f), 0);
	assert_true(options >= 6);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_text_stands_alone),
	};

	program = argc > 1 ? argv[1] : "pandad";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
