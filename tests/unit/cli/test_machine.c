/*
 * panda machine: its options, its words, and what holds without them; doctor's words. No machine
 * is started: the engine of these tests has no kernel.
 */
#include "bed.h"

#include "base/macro.h"
#include "cli/cli.h"
#include "cli/machine/machine_internal.h"

static struct opts o;
static int first; /* the first word that is no option */

extern int optind;

static int take(const char *const *words)
{
	static char copy[16][64];
	char *argv[17] = {(char *)"machine"};
	int argc = 1, r;

	for (; *words; words++, argc++) {
		snprintf(copy[argc - 1], sizeof(copy[0]), "%s", *words);
		argv[argc] = copy[argc - 1]; /* --volume cuts its word */
	}
	argv[argc] = NULL;
	machine_defaults(&o);
	optind = 0;
	r = machine_options(argc, argv, &o);
	first = optind;
	return r;
}

#define options(...) take((const char *const[]){__VA_ARGS__, NULL})

static void every_option_has_its_place(void **state)
{
	assert_int_equal(options("--id", "m1", "-m", "1024", "-n", "3", "-i", "-t", "-C", "/srv",
	                         "-u", "web", "--timeout", "9"),
	                 0);
	assert_string_equal(o.id, "m1");
	assert_int_equal(o.memory_mib, 1024);
	assert_int_equal(o.count, 3);
	assert_true(o.stdin_on && o.tty);
	assert_string_equal(o.cwd, "/srv");
	assert_string_equal(o.user, "web");
	assert_int_equal(o.timeout_s, 9);
	assert_int_equal(options("--cpu", "5", "--cpus", "8", "--cpu-max", "50", "--tap-fd", "7",
	                         "--engine", "um", "--image", "i", "--upper", "u"),
	                 0);
	assert_int_equal(o.cpu, 5);
	assert_int_equal(o.cpus, 8);
	assert_int_equal(o.cpu_percent, 50);
	assert_int_equal(o.tap_fd, 7);
	assert_string_equal(o.engine, "um");
	assert_string_equal(o.image, "i");
	assert_string_equal(o.upper, "u");
	assert_int_equal(options("--verify", "--weak-jail", "--timing", "--kernel", "k"), 0);
	assert_true(o.verify && o.keep_jail_optional && o.timing);
	assert_string_equal(o.kernel, "k"); /* whichever the engine is */
	assert_string_equal(o.vmlinux, "k");
}

static void without_options_there_are_defaults(void **state)
{
	assert_int_equal(options("x"), 0);
	assert_int_equal(o.memory_mib, 512);
	assert_int_equal(o.count, 1);
	assert_int_equal(o.cpu, -1);
	assert_null(o.id);
	assert_false(o.tty || o.stdin_on || o.verify || o.keep_jail_optional || o.timing);
	assert_int_equal(o.nvolumes, 0);
	assert_int_equal(o.nenv, 0);
}

static void options_end_at_the_first_word_or_two_dashes(void **state)
{
	assert_int_equal(options("-n", "2", "id", "-n", "3"), 0);
	assert_int_equal(o.count, 2);
	assert_int_equal(first, 3);
	assert_int_equal(options("-t", "--", "-n", "3"), 0);
	assert_int_equal(o.count, 1);
	assert_int_equal(first, 3);
	assert_true(options("-h") < 0);
	assert_true(options("--help") < 0);
}

static void numbers_have_their_limits(void **state)
{
	static const char *const bad[][2] = {
	    {"-m", "63"},
	    {"-m", "1048577"},
	    {"-m", "x"},
	    {"-m", ""},
	    {"-m", "-64"},
	    {"-m", " 64"},
	    {"-m", "64M"},
	    {"-n", "0"},
	    {"-n", "1001"},
	    {"--cpus", "0"},
	    {"--cpus", "9"},
	    {"--cpu-max", "0"},
	    {"--cpu-max", "101"},
	    {"--tap-fd", "2"},
	    {"--cpu", "4096"},
	    {"--timeout", "99999999999999999999"},
	    {"--volume-of", "x"},
	    {"-e", "novalue"},
	    {"--mount", "0:relative"},
	    {"--mount", "9:/x"},
	    {"--mount", "x:/x"},
	    {"--mount", "0/x"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (options(bad[i][0], bad[i][1]) != CLI_USAGE)
			fail_msg("%s '%s' was taken", bad[i][0], bad[i][1]);
	assert_int_equal(options("-m", "64", "-n", "1000", "--cpu", "0"), 0);
}

static void volumes_are_numbered_as_they_come(void **state)
{
	assert_int_equal(options("--volume", "a.img", "--volume", "b.img:ro", "--mount", "1:/srv",
	                         "--volume", "x:ro:ro"),
	                 0);
	assert_int_equal(o.nvolumes, 3);
	assert_string_equal(o.volumes[0].path, "a.img");
	assert_false(o.volumes[0].read_only);
	assert_null(o.volumes[0].mount);
	assert_string_equal(o.volumes[1].path, "b.img");
	assert_true(o.volumes[1].read_only);
	assert_string_equal(o.volumes[1].mount, "/srv");
	assert_string_equal(o.volumes[2].path, "x:ro");
	assert_int_equal(options("--volume", "1", "--volume", "2", "--volume", "3", "--volume", "4",
	                         "--volume", "5", "--volume", "6", "--volume", "7"),
	                 CLI_USAGE);
}

static void the_environment_of_a_command_is_kept_in_order(void **state)
{
	assert_int_equal(options("-e", "A=1", "--env", "B=", "-e", "A=2"), 0);
	assert_int_equal(o.nenv, 3);
	assert_string_equal(o.env[0], "A=1");
	assert_string_equal(o.env[1], "B=");
	assert_string_equal(o.env[2], "A=2");
	assert_null(o.env[3]);
}

static void numbers_are_decimal_and_nothing_else(void **state)
{
	uint64_t v;

	assert_true(machine_number("18446744073709551615", UINT64_MAX, &v));
	assert_true(v == UINT64_MAX);
	assert_false(machine_number("18446744073709551616", UINT64_MAX, &v));
	assert_true(machine_number("007", 10, &v));
	assert_int_equal(v, 7);
	assert_false(machine_number("11", 10, &v));
	assert_false(machine_number("+1", 10, &v));
	assert_false(machine_number("0x1", 10, &v));
	assert_false(machine_number("", 10, &v));
}

/* ---- the command ---- */

static void words_that_make_no_sense_are_two(void **state)
{
	static const struct {
		const char *words[4], *says;
	} bad[] = {
	    {{"machine", "fly"}, "panda machine: there is no verb 'fly'\n"},
	    {{"machine", "exec"}, "panda machine: exec needs the name of a machine or snapshot\n"},
	    {{"machine", "exec", "m1"}, "panda machine: exec needs a command\n"},
	    {{"machine", "exec", "--", "ls"}, "panda machine: exec needs the name of a machine"},
	    {{"machine", "run"}, "panda machine: run needs a command\n"},
	    {{"machine", "ls", "x"}, "panda machine: ls: what is 'x'?\n"},
	    {{"machine", "pause", "a", "b"}, "panda machine: pause: what is 'b'?\n"},
	    {{"machine", "snapshot", "m1"},
	     "panda machine: snapshot needs a name for the snapshot\n"},
	    {{"machine", "fork", "-n"}, "Try 'panda machine --help'.\n"},
	    {{"machine", "boot", "-m", "1"},
	     "panda machine: --memory takes 64 MiB and more, not '1'\n"},
	    {{"machine", "fork", "-n", "0"}, "panda machine: -n takes 1 to 1000, not '0'\n"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda(bad[i].words[0], bad[i].words[1], bad[i].words[2], bad[i].words[3]);
		fails(2, bad[i].says);
	}
	bed_run(__FILE__, __LINE__, (const char *const[]){"panda", "machine", NULL});
	fails(2, "usage: panda machine VERB");
}

static void help_of_machine_is_no_failure(void **state)
{
	static const char *const ways[][3] = {{"machine", "--help"},
	                                      {"machine", "-h"},
	                                      {"help", "machine"},
	                                      {"machine", "boot", "-h"}};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		panda(ways[i][0], ways[i][1], ways[i][2]);
		gives(0, NULL, "");
		assert_memory_equal(bed.out, "usage: panda machine VERB", 25);
	}
}

static void a_kernel_that_is_not_there_is_named(void **state)
{
	bed.env[0] = "PANDA_RUN=run";
	bed.env[1] = "PANDA_STORE=store";
	panda("machine", "ls", "--engine", "um", "--kernel", "no-kernel");
	fails(1, "panda: cannot open the kernel no-kernel: ");
	bed.env[0] = "PANDA_RUN=/dev/null/run";
	panda("machine", "ls");
	fails(1, "panda: cannot make /dev/null/run: Not a directory\n");
}

static void words_that_make_no_sense_to_doctor_are_two_too(void **state)
{
	panda("doctor", "now");
	fails(2, "panda doctor: unexpected argument 'now'\n");
	panda("doctor", "--nonsense");
	fails(2, "panda doctor: there is no option '--nonsense'");
	panda("doctor", "--url");
	fails(2, "panda doctor: --url wants a value\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(every_option_has_its_place),
	    bed_test(without_options_there_are_defaults),
	    bed_test(options_end_at_the_first_word_or_two_dashes),
	    bed_test(numbers_have_their_limits),
	    bed_test(volumes_are_numbered_as_they_come),
	    bed_test(the_environment_of_a_command_is_kept_in_order),
	    bed_test(numbers_are_decimal_and_nothing_else),
	    bed_test(words_that_make_no_sense_are_two),
	    bed_test(help_of_machine_is_no_failure),
	    bed_test(a_kernel_that_is_not_there_is_named),
	    bed_test(words_that_make_no_sense_to_doctor_are_two_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
