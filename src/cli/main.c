/*
 * panda - the command line of PandaStack
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"

static const struct {
	const char *name, *what;
	int (*run)(int argc, char **argv);
} commands[] = {
    {"machine", "boot, ask, fork, save and stop machines, without a daemon", cmd_machine},
    {"doctor", "say what this host can do, and what is missing", cmd_doctor},
};

int cli_fail(const struct err *e)
{
	fprintf(stderr, "panda: %s\n", e->text);
	return CLI_FAILED;
}

int cli_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "panda %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nTry 'panda %s --help'.\n", command);
	return CLI_USAGE;
}

static int help(FILE *to)
{
	fprintf(to, "usage: panda COMMAND ...\n\nCommands:\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].what);
	fprintf(to, "\n'panda COMMAND --help' tells more. Examples:\n"
	            "  panda machine run -- python3 -c 'print(6 * 7)'\n"
	            "  panda doctor\n");
	return to == stdout ? CLI_OK : CLI_USAGE;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return help(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return help(stdout);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	fprintf(stderr, "panda: there is no command '%.40s'\nTry 'panda --help'.\n", argv[1]);
	return CLI_USAGE;
}
