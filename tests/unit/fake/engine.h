/*
 * fake/engine.h - an engine whose machines are small processes (machine.c): no root, no kernel
 * They do what machines do for the rooms above: they have layers that are sealed, a guest that
 * answers, volumes, a life of their own that outlasts pandad. What a test asks for goes wrong.
 */
#pragma once
#include <pthread.h>

#include "machine/engine.h"

enum fake_call {
	FAKE_CALL_PREPARE,
	FAKE_CALL_START,
	FAKE_CALL_ADOPT,
	FAKE_CALL_SNAPSHOT, /* with hold or without */
	FAKE_CALL_GO_ON,
	FAKE_CALL_ATTACH,
	FAKE_CALL_DETACH,
	FAKE_CALL_GROW,
	FAKE_CALL_COPY,
	FAKE_CALL_COPIED,
	FAKE_CALL_PAUSE,
	FAKE_CALL_RESUME,
	FAKE_CALL_STATS,
	FAKE_CALL_STOP,
	FAKE_CALLS,
};

struct fake_process;

struct fake_engine {
	struct engines seam; /* first: what the rooms above are given */
	struct engine engine;
	char rules[200]; /* file with the rules of its guests */
	int lifeline;    /* read end: when the write end is closed, all machines end */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fake_process *prepared;
	struct {
		unsigned count;   /* so often it was called */
		unsigned fail_at; /* the call with this number fails; 0: none */
		int fail_with;    /* errno value */
		bool closed;      /* calls wait */
		unsigned waiting;
	} call[FAKE_CALLS];
	char oom[ENGINE_ID_MAX + 1]; /* this machine ended for want of memory, says the host */
};

/* rules_path is copied. Freed with e->seam.free(&e->seam). */
struct fake_engine *fake_engine_new(const char *rules_path, int lifeline);

/* Of the calls from now on, the nth (from 1) fails with this errno value, and only that. */
void fake_fail(struct fake_engine *e, enum fake_call call, unsigned nth, int err);
/* Calls wait from now on, on their threads, until fake_open(). */
void fake_close(struct fake_engine *e, enum fake_call call);
void fake_open(struct fake_engine *e, enum fake_call call);
unsigned fake_waiting(struct fake_engine *e, enum fake_call call);
unsigned fake_count(struct fake_engine *e, enum fake_call call);

/*
 * Bytes of a machine's memory (below 1 MiB: what is above is its guest's), as a program of its
 * guest would write and read them.
 */
void fake_poke(pid_t pid, uint64_t at, const void *p, size_t n);
void fake_peek(pid_t pid, uint64_t at, void *p, size_t n);
