/*
 * guest/init/exec.h - one exec, between exec.c (its life), spawn.c (its birth) and kill.c (its
 * death)
 *
 *   running ──leader exits──> exited ──output drained──> finished ──pipes closed──> gone or kept
 *
 * Attached: output goes from the pipe to the owner's stream, at the owner's pace. Detached: it
 * goes into rings, at the program's pace, and readers copy from there; an attached one becomes
 * detached when its connection was lost by a fork or restore. Abandoned (no client will ever ask):
 * output is thrown away until the last writer is gone.
 */
#pragma once
#include <sys/resource.h>

#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "guest/init/sink.h"
#include "wire/guest.h"

/* The last bytes of an endless stream; offsets count from its beginning. */
struct ring {
	uint8_t *p;
	uint32_t cap;      /* a power of two, or 0 */
	uint64_t from, to; /* what is in it; to is also the length of the stream */
};

struct out_chan {
	struct source src;
	struct exec *x;
	int fd;
	bool readable, hung_up, eof;
	bool drained; /* the leader is gone, and the pipe was seen empty after that */
	struct ring ring;
};

struct in_chan {
	struct source src;
	struct exec *x;
	bool polled;
	struct sink sink;
};

struct exec {
	struct work work;
	struct agent *a;
	struct list node;
	uint64_t id;
	pid_t pid;      /* also its session and process group */
	uint32_t flags; /* WIRE_EXEC_* */
	bool detached, abandoned, exited, finished, kept, timed_out, oom;
	bool was_read;        /* a reader that holds was there, */
	uint64_t seen[2];     /* and has read up to here */
	uint64_t deadline_ns; /* 0: none */
	int status;
	struct rusage usage;
	struct out_chan out[2];
	struct in_chan in;
	struct exec_stream *owner, *feeder;
	struct list readers;
	char command[96];
};

/* A stream that shows one exec: its owner, or a reader of a detached one. */
struct exec_stream {
	struct stream s;
	struct exec *x;
	struct list node; /* among the readers */
	uint64_t pos[2];
	bool hold;                /* the ring keeps what this reader has not seen */
	bool waits;               /* for its turn to feed stdin; until then it is not attached */
	struct wire_attach asked; /* what it is attached with then */
};

struct spawn {
	const struct wire_exec *m;
	uint64_t id;
	int in, tty;             /* -1: fd 0 as it is, no terminal */
	int err;                 /* filled by the child, which shares our memory until it execs */
	enum wire_reason reason; /* with err, for programs, */
	const char *what;        /* and for people */
};

/* Starts the program with our fds 1 and 2 as its own (or the tty). Returns its pid or -errno. */
pid_t spawn_exec(struct agent *a, struct spawn *s);

/* Everything the exec started, also what left its session. */
void kill_tree(struct exec *x, int signo);

/* exec.c, for exec_stream.c */
extern const struct stream_ops exec_stream_ops;
struct exec *exec_find(struct agent *a, uint64_t id); /* not those that were abandoned */
void exec_check_finished(struct exec *x);
void exec_end_deadline(struct exec *x);
/* Its pipes are at their end and its leader reaped: forget it, or remember its result. */
void exec_gone(struct exec *x);
/* One read of output. Returns its length, or 0 when there is nothing, now or ever. */
size_t out_read(struct out_chan *c, uint8_t *p, size_t n);
void out_end(struct out_chan *c);
