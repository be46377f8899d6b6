/*
 * panda completion: what bash really offers, with a panda that answers as the server would.
 */
#include "bed.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "cli/completion.h"

/* What a program of its directory prints. Good until the next call. */
static const char *output_of(const char *program)
{
	static char text[16384];
	char line[256];
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "exec env -i bash %s/%s 2>&1", bed.dir, program);
	f = popen(line, "re");
	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	assert_int_equal(pclose(f), 0);
	return text;
}

static void completion_file(void)
{
	autofree char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	assert_non_null(f);
	assert_true(completion_write("bash", f));
	fclose(f);
	bed_file("completion", text, 0, 0600);
}

/* Its panda prints what a server has, and writes into calls what it was asked. */
static void panda_that_answers(void)
{
	bed_file("bin/panda",
	         "#!/bin/sh\necho \"$*\" >>calls\ncase \"$1 $2\" in\n"
	         "'ls -q') echo sandbox-1; echo sandbox-2;;\n"
	         "*) printf '[\\n  {\\n    \"name\": \"%s-name\",\\n    \"id\": \"%s-id\",\\n"
	         "    \"prefix\": \"%s-prefix\"\\n  }\\n]\\n' \"$1\" \"$1\" \"$1\";;\nesac\n",
	         0, 0755);
}

/* What bash offers for a line; '^' at its end is an empty word. */
static const char *offers_now(const char *line)
{
	char script[1024];

	snprintf(script, sizeof(script),
	         "cd %s; export PATH=%s/bin:/usr/bin:/bin; compopt() { echo \"[files]\"; }; "
	         ". ./completion; COMP_WORDS=(%.*s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
	         "[ %c = ^ ] && COMP_WORDS[$((++COMP_CWORD))]=; _panda; printf '%%s\\n' "
	         "\"${COMPREPLY[@]}\"",
	         bed.dir, bed.dir, (int)strcspn(line, "^"), line, line[strlen(line) - 1]);
	bed_file("script", script, 0, 0600);
	return output_of("script");
}

static const char *offers(const char *line)
{
	completion_file();
	panda_that_answers();
	return offers_now(line);
}

static bool has_word(const char *text, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = text; (at = strstr(at, word)); at += n)
		if ((at == text || at[-1] == '\n') && at[n] == '\n')
			return true;
	return false;
}

static void expect_offer(const char *line, const char *word)
{
	const char *text = offers(line);

	if (!has_word(text, word))
		fail_msg("'%s' does not offer %s, but:\n%s", line, word, text);
}

static void the_first_word_is_a_command(void **state)
{
	expect_offer("panda ^", "run");
	expect_offer("panda ^", "--version");
	assert_string_equal(offers("panda snap"), "snapshot\n");
	assert_string_equal(offers("panda port"), "ports\nport-forward\n");
}

static void options_are_those_of_the_command(void **state)
{
	assert_string_equal(offers("panda ls --st"), "--status\n");
	assert_string_equal(offers("panda kill --j"), "--json\n");
	assert_string_equal(offers("panda completion --j"), "\n");
	expect_offer("panda exec -", "-C");
	expect_offer("panda exec -", "--detach");
}

static void sandboxes_are_asked_for(void **state)
{
	assert_string_equal(offers("panda get ^"), "sandbox-1\nsandbox-2\n");
	assert_string_equal(bed_content("calls", NULL), "ls -q\n");
	assert_string_equal(offers("panda kill sandbox-1 sandbox-2"), "sandbox-2\n");
}

static void verbs_come_before_what_they_take(void **state)
{
	assert_string_equal(offers("panda volume at"), "attach\n");
	expect_offer("panda volume attach ^", "sandbox-1");
	expect_offer("panda volume rm ^", "volume-name");
	expect_offer("panda snapshot rm ^", "snapshot-id");
	expect_offer("panda token rm ^", "token-prefix");
	expect_offer("panda template get ^", "template-name");
}

static void values_of_long_options_are_known(void **state)
{
	assert_string_equal(offers("panda create --template ^"), "template-name\n");
	assert_string_equal(offers("panda create --from ^"), "snapshot-id\n");
	assert_string_equal(offers("panda run --volume ^"), "volume-name\n");
	assert_string_equal(offers("panda create --name ^"), "\n");
	expect_offer("panda ls --ca-file ^", "[files]");
}

static void values_of_short_options_are_known_too(void **state)
{
	assert_string_equal(offers("panda create -t ^"), "template-name\n");
	assert_string_equal(offers("panda run -v ^"), "volume-name\n");
	assert_string_equal(offers("panda fork -n ^"), "\n");
	expect_offer("panda template build -f ^", "[files]");
}

static void files_are_left_to_bash(void **state)
{
	expect_offer("panda cp ^", "[files]");
	expect_offer("panda machine ^", "[files]");
}

static void names_of_a_server_are_words_and_never_run(void **state)
{
	completion_file();
	bed_file("bin/panda",
	         "#!/bin/sh\necho '$(touch ran)'; echo '`touch ran`'; echo 'a;touch ran'\n", 0,
	         0755);
	assert_true(has_word(offers_now("panda get ^"), "touch"));
	assert_null(bed_content("ran", NULL));
}

static void every_shell_is_told_apart(void **state)
{
	static const char *const shells[][2] = {{"bash", "# panda completion bash\n"},
	                                        {"zsh", "#compdef panda\n# panda completion zsh\n"},
	                                        {"fish", "# panda completion fish\n"}};

	for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
		panda("completion", shells[i][0]);
		gives(0, NULL, "");
		assert_memory_equal(bed.out, shells[i][1], strlen(shells[i][1]));
	}
	panda("completion", "tcsh");
	fails(125, "panda completion: it knows bash, zsh and fish, not 'tcsh'\n");
	panda("completion");
	fails(125, "panda completion: it needs bash|zsh|fish\n");
}

static void a_completion_that_could_not_be_written_is_told(void **state)
{
	bed.full = true;
	panda("completion", "fish");
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(the_first_word_is_a_command),
	    bed_test(options_are_those_of_the_command),
	    bed_test(sandboxes_are_asked_for),
	    bed_test(verbs_come_before_what_they_take),
	    bed_test(values_of_long_options_are_known),
	    bed_test(values_of_short_options_are_known_too),
	    bed_test(files_are_left_to_bash),
	    bed_test(names_of_a_server_are_words_and_never_run),
	    bed_test(every_shell_is_told_apart),
	    bed_test(a_completion_that_could_not_be_written_is_told),
	};

	if (access("/bin/bash", X_OK) < 0)
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
