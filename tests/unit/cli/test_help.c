/*
 * cli: the texts of --help are understood without the lines around them
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands.h"
#include "common/phrase.h"

static void read_text(const char *command, const char *text)
{
	const char *why = phrase_fault(text);

	if (why)
		fail_msg("panda %s --help: '%s' %s", command, text, why);
}

static void read_options(const char *command, const struct cli_opt *o)
{
	for (; o && o->key; o++)
		read_text(command, o->help);
}

static void every_text_stands_alone(void **state)
{
	size_t commands = 0;

	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		commands++;
		read_text((*c)->name, (*c)->what);
		if ((*c)->about)
			read_text((*c)->name, (*c)->about);
		read_options((*c)->name, (*c)->opts);
		for (const struct cli_verb *v = (*c)->verbs; v && v->name; v++)
			read_text((*c)->name, v->what);
	}
	assert_true(commands > 20);
	read_options("COMMAND", cli_common);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_text_stands_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
