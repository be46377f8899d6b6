/*
 * api/streams/exec.h - commands in a sandbox, for handlers that answer with them
 * The command lives as long as its owner wants it: exec_abandon() kills all it started. No callback
 * runs inside exec_begin() or exec_collect(). Loop thread only.
 */
#pragma once
#include "api/api.h"
#include "wire/guest.h"

enum {
	EXEC_TIMEOUT_MS = 60000,    /* when the caller gives none */
	EXEC_OUTPUT = 1 << 20,      /* of each stream, in one answer, when the caller says none */
	EXEC_OUTPUT_MAX = 16 << 20, /* the most it may say */
	EXEC_SCRIPT_INLINE = 32 * 1024, /* longer scripts go through stdin */
	EXEC_WINDOW = 64 * 1024,        /* of streams: how much a slow reader has us hold */
	EXEC_TIMED_OUT = 124,           /* exit code */
};

/* What to run. All borrowed, and only until exec_begin() returns. */
struct exec_spec {
	const char *cmd;    /* a script for /bin/sh -c, */
	const json_t *argv; /* or this, a list of strings */
	const char *cwd;    /* NULL: / */
	const char *user;   /* NULL: root */
	const json_t *env;  /* object of strings, over the sandbox's own; may be NULL */
	const char *in;     /* what it reads, NULL: nothing */
	size_t in_len;
	uint64_t timeout_ms;     /* 0: none */
	size_t output_max;       /* exec_collect(): of each stream; 0: EXEC_OUTPUT */
	struct account *account; /* the same: what it holds is taken from there */
	unsigned rows, cols;     /* with pty */
	bool pty;
	bool detach;    /* for execs.c */
	bool hold;      /* the same: it waits for its readers instead of losing output */
	bool keep_open; /* its stdin is fed with exec_send() */
	bool hangup;    /* when the caller goes away its stdin ends, and nothing is killed */
};

/* Reads cmd, argv, cwd, env, user, stdin, timeout_seconds, max_output_bytes of an object. */
int exec_spec_parse(const json_t *body, struct exec_spec *ret, struct err *e);
/* max_output_bytes alone. */
int exec_output_parse(const json_t *body, size_t *ret, struct err *e);

struct exec_exit {
	int exit_code; /* EXEC_TIMED_OUT, 128 + signal, or its own */
	int signal;    /* 0: none */
	bool timed_out;
	bool oom_killed; /* the guest had no memory left */
	uint64_t duration_ms;
};

/* exit_code, timed_out, and signal and oom_killed where they apply; NULL: no memory. */
json_t *exec_exit_json(const struct exec_exit *x);
/* What the guest says of an end. */
void exec_exit_of(const struct wire_exited *m, struct exec_exit *ret);

struct exec_job;

struct exec_ops {
	void (*started)(void *arg, uint64_t id, unsigned pid); /* may be NULL */
	/* err: it is stderr. exec_credit() when they are dealt with: without it, the command
	 * waits. */
	void (*data)(void *arg, bool err, const void *p, size_t n);
	void (*writable)(void *arg); /* may be NULL */
	/* The last one. e is NULL when there is an exit (x), and the other way round. */
	void (*end)(void *arg, const struct err *e, const struct exec_exit *x);
};

/* NULL: *e says why (bad_request, too_large, internal). */
struct exec_job *exec_begin(struct host *h, struct sandbox *sb, const struct exec_spec *s,
                            const struct exec_ops *ops, void *arg, struct err *e);
void exec_credit(struct exec_job *x, bool err, size_t n);
size_t exec_send(struct exec_job *x, const void *p, size_t n); /* writable() when less than n */
void exec_send_eof(struct exec_job *x);
void exec_resize(struct exec_job *x, unsigned rows, unsigned cols);
void exec_send_signal(struct exec_job *x, int signo);
void exec_cancel(struct exec_job *x);  /* end() comes, with kind "cancelled" */
void exec_abandon(struct exec_job *x); /* no callback any more; NULL is fine */

/* ---- to the end, all output in memory ---- */

struct exec_result {
	const char *out, *err; /* UTF-8, NUL behind it; may have NULs inside */
	size_t out_len, err_len;
	struct exec_exit exit;
	bool truncated; /* some output was thrown away */
};

typedef void exec_done(void *arg, const struct err *e, const struct exec_result *r);

struct exec_collect;
/* NULL: *e says why, and done is not called. */
struct exec_collect *exec_collect(struct host *h, struct sandbox *sb, const struct exec_spec *s,
                                  exec_done *done, void *arg, struct err *e);
/* Kills it; done is not called any more. Not after done. */
void exec_collect_abandon(struct exec_collect *x);

/* Runs it, and its result is the answer; extra (taken, may be NULL) is added to that object. */
void exec_answer(struct call *c, const struct exec_spec *s, json_t *extra);
/* The answer of POST exec. */
json_t *exec_result_json(const struct exec_result *r);
