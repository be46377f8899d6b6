/*
 * cli/cli.h - what the subcommands of panda share
 */
#pragma once
#include "base/err.h"

/* Exit codes; a command that runs something in a guest passes the guest's on. */
enum {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_TIMEOUT = 124,
};

/* Prints "panda: text" and returns CLI_FAILED. */
int cli_fail(const struct err *e);
/* Prints what is wrong and where the help is, returns CLI_USAGE. */
int cli_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int cmd_machine(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
