/*
 * api/streams/cell.h - code that runs in an interpreter which stays
 * A session is a detached command of the guest: /usr/lib/panda/repl.py or repl-node, with
 * "--session <id> <created>" behind it. Nothing about it is kept here: it is found in the guest's
 * list of commands, so it lives on in forks, after hibernation and under the next pandad. Cells go
 * to its stdin, answers come as lines of JSON with the cell's id. One cell at a time: the guest
 * lets one stream feed a command, others wait for their turn.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct host;
struct sandbox;

enum {
	SESSION_ID_MAX = 32,
	SESSIONS_MAX = 8,            /* per sandbox */
	CELL_LINE_MAX = 24 << 20,    /* one answer of an interpreter */
	CELL_RESULTS_MAX = 32 << 20, /* bytes of all results in one answer of ours */
	CELL_TIMEOUT_MS = 30000,
	CELL_WAIT_MS = 60000, /* for other cells of the session */
};

struct session {
	char id[SESSION_ID_MAX + 1];
	const char *language; /* "python", "javascript" */
	uint64_t created_ms;  /* 0: not known */
	uint64_t exec;
	uint64_t out_to, err_to; /* where its output stands */
};

/* Is this line of the list an interpreter of ours? */
struct wire_exec_info;
bool session_of(const struct wire_exec_info *m, struct session *ret);

struct cell;

struct cell_ops {
	void (*output)(void *arg, bool err, const char *text, size_t n); /* UTF-8 */
	void (*result)(void *arg, json_t *bundle);                       /* borrowed */
	void (*error)(void *arg, json_t *error); /* name, value, traceback */
	bool (*room)(void *arg); /* false: not so fast; then cell_go(). May be NULL */
	/* The last one. e: it did not run, or it is not known how it ended. */
	void (*end)(void *arg, const struct err *e, int exit, bool timed_out, uint64_t duration_ms);
};

/* timeout_ms 0: none. NULL: *e says why. No callback from within. */
struct cell *cell_run(struct host *h, struct sandbox *sb, const struct session *s, const char *code,
                      size_t n, uint64_t timeout_ms, const struct cell_ops *ops, void *arg,
                      struct err *e);
void cell_go(struct cell *x);
/* Interrupts it; no callback any more. */
void cell_abandon(struct cell *x);
