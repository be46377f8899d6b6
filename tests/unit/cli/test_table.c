/*
 * The table of commands: what help and completion say is what there is, and options are parsed by
 * it.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/completion.h"

static char *completion_of(const char *shell)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	assert_true(completion_write(shell, f));
	fclose(f);
	return text;
}

static void completion_lists_every_command_and_option(void **state)
{
	static const char *const shells[] = {"bash", "zsh", "fish"};

	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		autofree char *text = completion_of(shells[i]);

		for (const struct cli_command *const *c = cli_commands; *c; c++) {
			char word[64];

			/* With its end, so that "ls" is not found in "tools". */
			snprintf(word, sizeof(word),
			         i == 0   ? "\t\t%s) words="
			         : i == 1 ? "\t%s) _arguments"
			                  : " -a %s -d ",
			         (*c)->name);
			if (!strstr(text, word))
				fail_msg("%s does not know %s", shells[i], (*c)->name);
			for (const struct cli_opt *o = (*c)->opts; o && o->key; o++) {
				snprintf(word, sizeof(word), i == 2 ? " -l %s " : "--%s", o->name);
				if (!strstr(text, word))
					fail_msg("%s does not know %s %s", shells[i], (*c)->name,
					         word);
			}
			for (const struct cli_verb *v = (*c)->verbs; v && v->name; v++)
				assert_non_null(strstr(text, v->name));
		}
	}
	assert_false(completion_write("tcsh", stderr));
}

static void every_help_fits_a_screen_and_has_two_examples(void **state)
{
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		autofree char *text = NULL;
		size_t n, lines = 0, wide = 0, examples = 0;
		FILE *f;

		if ((*c)->raw)
			continue;
		f = open_memstream(&text, &n);
		cli_help(*c, f);
		fclose(f);
		for (const char *s = text, *end; *s; s = end + 1) {
			end = strchr(s, '\n');
			assert_non_null(end); /* the last line has an end, too */
			lines++;
			wide = MAX(wide, (size_t)(end - s));
		}
		for (const char *s = strstr(text, "\nExamples:\n") + 11; *s;
		     s = strchr(s, '\n') + 1)
			examples++;
		if (lines > 40 || wide > 100 || examples != 2)
			fail_msg("panda %s --help: %zu lines, %zu columns, %zu examples",
			         (*c)->name, lines, wide, examples);
	}
}

static void examples_use_options_that_exist(void **state)
{
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		for (const char *s = (*c)->examples; s && (s = strstr(s, "panda ")); s += 6) {
			const struct cli_command *used;
			char name[32];

			if (sscanf(s, "panda %31[a-z-]", name) != 1)
				continue;
			used = cli_find(name);
			if (!used)
				fail_msg("%s: an example uses 'panda %s'", (*c)->name, name);
			for (const char *o = s;
			     (o = strstr(o, " --")) && o[3] >= 'a' &&
			     !memchr(s, '|', (size_t)(o - s)) && !memchr(s, '\n', (size_t)(o - s));
			     o += 3) {
				char opt[32] = "";
				bool known = false;

				sscanf(o, " --%31[a-z-]", opt);
				for (int part = 0; part < 2; part++)
					for (const struct cli_opt *k = part ? cli_common
					                                    : used->opts;
					     k && k->key; k++)
						known |= !strcmp(k->name, opt);
				if (!known && !strstr(s, "$("))
					fail_msg("%s: an example uses 'panda %s --%s'", (*c)->name,
					         name, opt);
			}
		}
}

static void keys_of_a_command_are_told_apart(void **state)
{
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		for (const struct cli_opt *a = (*c)->opts; a && a->key; a++) {
			for (const struct cli_opt *b = (*c)->opts; b != a; b++)
				if (a->key == b->key || !strcmp(a->name, b->name))
					fail_msg("%s has --%s twice", (*c)->name, a->name);
			for (const struct cli_opt *b = cli_common; b->key; b++)
				if (a->key == b->key || !strcmp(a->name, b->name))
					fail_msg("%s has --%s, which is common", (*c)->name,
					         a->name);
		}
}

/* ---- exit codes, without a server ---- */

static int run(const char *line)
{
	char *argv[16], *copy = strdup(line), *save = NULL;
	int argc = 0, code, err = dup(2), out = dup(1), null = open("/dev/null", O_WRONLY);

	for (char *w = strtok_r(copy, " ", &save); w && argc < 15; w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	argv[argc] = NULL;
	fflush(stdout);
	dup2(null, 1);
	dup2(null, 2);
	code = cli_main(argc, argv);
	fflush(stdout);
	dup2(out, 1);
	dup2(err, 2);
	close(out);
	close(err);
	close(null);
	free(copy);
	return code;
}

static void our_own_failures_are_125(void **state)
{
	/* Port 9 of this host: nobody is there. */
	setenv("PANDASTACK_API", "http://127.0.0.1:9", 1);
	setenv("PANDASTACK_API_KEY", "k", 1);
	assert_int_equal(run("panda ls"), 125);
	assert_int_equal(run("panda run true"), 125);
	assert_int_equal(run("panda exec 01234567-89ab-cdef-0123-456789abcdef true"), 125);
	assert_int_equal(run("panda shell x"), 125);
	assert_int_equal(run("panda ls --url nonsense"), 125);
	assert_int_equal(run("panda ls --no-such-option"), 125);
	assert_int_equal(run("panda ls extra"), 125);
	assert_int_equal(run("panda run"), 125);
	assert_int_equal(run("panda fork -n 17 x"), 125);
	assert_int_equal(run("panda create --ttl soon"), 125);
	assert_int_equal(run("panda create --env novalue"), 125);
	assert_int_equal(run("panda create --volume x:relative"), 125);
	assert_int_equal(run("panda cp a b"), 125);
	assert_int_equal(run("panda cp x:/a y:/b"), 125);
	assert_int_equal(run("panda cp x:relative b"), 125);
	assert_int_equal(run("panda volume"), 125);
	assert_int_equal(run("panda volume paint"), 125);
	assert_int_equal(run("panda url x 99999"), 125);
	assert_int_equal(run("panda completion tcsh"), 125);
}

static void help_is_no_failure_and_needs_no_server(void **state)
{
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		char line[64];

		snprintf(line, sizeof(line), "panda %s --help", (*c)->name);
		assert_int_equal(run(line), 0);
		snprintf(line, sizeof(line), "panda help %s", (*c)->name);
		assert_int_equal(run(line), 0);
	}
	assert_int_equal(run("panda --help"), 0);
	assert_int_equal(run("panda"), 2);
	assert_int_equal(run("panda nonsense"), 2);
	assert_int_equal(run("panda completion bash"), 0);
}

static void what_follows_the_command_of_the_guest_is_the_guests(void **state)
{
	/* --help behind the guest's command is not ours: it fails for want of a server instead. */
	assert_int_equal(run("panda run ls --help"), 125);
	assert_int_equal(run("panda exec x ls --help"), 125);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(completion_lists_every_command_and_option),
	    cmocka_unit_test(every_help_fits_a_screen_and_has_two_examples),
	    cmocka_unit_test(examples_use_options_that_exist),
	    cmocka_unit_test(keys_of_a_command_are_told_apart),
	    cmocka_unit_test(our_own_failures_are_125),
	    cmocka_unit_test(help_is_no_failure_and_needs_no_server),
	    cmocka_unit_test(what_follows_the_command_of_the_guest_is_the_guests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
