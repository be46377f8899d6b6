/*
 * fake/agent.h - the guest of a fake machine: an agent that speaks the guest protocol
 * Its files are trees (tree.h) on the machine's disk, in its memory (/dev/shm) and on its volumes,
 * its commands are a few words that this file's neighbour understands (programs.c). What a test has
 * asked for otherwise stands in a file of rules (guest.h), which is read again for each request.
 */
#pragma once
#include <jansson.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "tree.h"
#include "wire/guest.h"

enum { AGENT_CONNS = 32, AGENT_EXECS = 256 };

struct buf {
	char *p;
	size_t n, cap;
};
void buf_add(struct buf *b, const void *p, size_t n);
void buf_free(struct buf *b);

struct agent_mount {
	bool there;
	bool read_only;
	char path[256];
	struct tree tree;
};

/* A command: of a stream, or detached. */
struct agent_exec {
	uint64_t id, deadline_ms;
	uint32_t flags, how, code, exited; /* exited: WIRE_EXITED_* */
	bool running, detached;
	bool wants_stdin; /* cat: what comes goes to its output */
	bool hashes;      /* panda-upper hash: what comes are names of files */
	struct buf in;
	char text[512], cwd[256], user[64];
	char *env; /* "KEY=value" lines */
	struct buf out[2];
	bool repl;        /* an interpreter (repl.c) */
	struct buf cells; /* what it has not read to its end */
	char waiting[40]; /* of the cell that waits to be interrupted; "": none does */
	struct agent_exec *next;
};

struct agent_stream {
	uint32_t id;
	uint8_t type; /* of its request */
	uint32_t credit[2];
	size_t sent[2];
	struct buf own[2];       /* what it has to send, unless it shows an exec */
	struct agent_exec *exec; /* which it shows, or NULL */
	bool over, eof, failed;  /* over: all is there, it ends when that is sent */
	bool feeds, waits;       /* stdin of exec; for its turn to feed it */
	int err;
	char text[160];
	/* WRITE */
	char path[512];
	uint32_t flags, mode;
	struct buf in;
	/* CONNECT */
	json_t *service;
	struct agent_stream *next;
};

struct agent_conn {
	int fd;
	struct buf in, out;
	struct agent_stream *streams;
};

struct fake_agent {
	char id[80], rules_path[200];
	json_t *rules; /* as of this request; NULL: none */
	int dirfd, listener;
	bool mute;                  /* it was told to be silent */
	bool asleep;                /* the machine is paused: nobody is served */
	struct agent_conn *freezer; /* while a volume is frozen: only this one is served */
	uint64_t generation, next_exec;
	uint32_t held; /* volumes that the machine has, by bit */
	char hostname[80];
	struct tree root, shm;
	struct agent_mount mounts[FAKE_VOLUMES];
	struct agent_exec *execs;
	struct agent_conn conns[AGENT_CONNS]; /* fd < 0: free */
	unsigned live;
};

/* What a root has from the beginning. */
extern const char *const agent_dirs[];

/* root and memory are where its files are; state (may be NULL) is what agent_state() gave. */
void agent_start(struct fake_agent *a, const struct device *root, const struct device *memory,
                 const json_t *state);
json_t *agent_state(const struct fake_agent *a);
/* In which slots it had a volume mounted by that state. */
uint32_t agent_state_volumes(const json_t *state);

/* What is in that slot now; dev.fd < 0: nothing. */
struct device agent_volume(const struct fake_agent *a, unsigned slot);
bool agent_uses(const struct fake_agent *a, unsigned slot);

size_t agent_poll(struct fake_agent *a, struct pollfd *p, size_t max);
void agent_ready(struct fake_agent *a, const struct pollfd *p, size_t n);
int agent_timeout_ms(const struct fake_agent *a);
void agent_tick(struct fake_agent *a);

/* ---- between agent.c and programs.c ---- */

/* The tree that has path, and the path within it. NULL: not absolute. */
struct tree *agent_resolve(struct fake_agent *a, const char *path, const char **ret);
void exec_output(struct agent_exec *x, unsigned chan, const void *p, size_t n);
void exec_end(struct agent_exec *x, uint32_t how, uint32_t code);
/* Runs it, to its end or until it waits. -ENOENT: there is no such program. */
int program_start(struct fake_agent *a, struct agent_exec *x, char *const *argv, bool shell);
void program_input(struct agent_exec *x, const void *p, size_t n);
void program_eof(struct fake_agent *a, struct agent_exec *x);
/* machine.c: what is about to change on the volume in slot arg. */
void volume_before(void *arg, off_t off, size_t n);
/* The machine ends, with these last words on its console. */
_Noreturn void machine_exit(struct fake_agent *a, const char *words);
/* repl.c */
void repl_input(struct agent_exec *x, const void *p, size_t n);
void repl_interrupt(struct agent_exec *x);
