/*
 * cli/execio.h - a command in a sandbox, with our stdin, stdout and stderr
 * The way is chosen by what stdin is: a stream when there is none or it is short text, else a
 * detached command that is fed, and one JSON answer for --json. In all of them the command waits
 * when we do not read. Only of commands that others have started (execio_attach()) can output be
 * missing: that is said, and ends with 125.
 */
#pragma once
#include "cli/cli.h"

enum {
	EXECIO_STDIN = 1, /* -i: pass stdin on even when it is a terminal */
	EXECIO_NONE = 2,  /* -n: do not even look at it */
};

/* -C, or -w where a command has it; NULL: neither. */
const char *execio_cwd(const struct cli *c);
/* {"cmd"} of one word, {"argv"} of several, and -e -C -u --timeout. 0 or CLI_PANDA, said. */
int execio_body(struct cli *c, int argc, char **argv, json_t **ret);
/* Runs it to its end: its exit code, or CLI_PANDA, said; 128 and the number after a signal. */
int execio_run(struct cli *c, const char *id, json_t *body, int flags);
/* The output of a detached command from its start, until it ends; stdin when feed. */
int execio_attach(struct cli *c, const char *id, const char *exec, bool feed);

/* Signals that would end us arrive here instead, so that what must be done last is done. */
int execio_signals(void);

/* Words for a shell, quoted where they must be. Caller frees; NULL when there is no memory. */
char *execio_quote(int argc, char **argv);

/* -t: on a terminal (shell.c). cmd NULL: a login shell. */
int execio_terminal(struct cli *c, const char *id, const char *cmd);
