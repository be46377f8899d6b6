/*
 * agent/exec.h - one exec, between exec.c (its life), spawn.c (its birth) and kill.c (its death)
 *
 *   running ──leader exits──> exited ──output drained──> finished ──pipes closed──> gone or kept
 *
 * Attached: output goes from the pipe to the owner's stream, at the owner's pace. Detached: it
 * goes into rings, at the program's pace, and readers copy from there; an attached one becomes
 * detached when its connection was lost by a fork or restore. Abandoned (nobody will ever ask):
 * output is thrown away until the last writer is gone.
 */
#pragma once
#include <sys/resource.h>

#include "agent/agent.h"
#include "agent/sink.h"

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
	bool detached, abandoned, exited, finished, kept, timed_out;
	uint64_t deadline_ns; /* 0: none */
	int status;
	struct rusage usage;
	struct out_chan out[2];
	struct in_chan in;
	struct exec_stream *owner, *feeder;
	struct list readers;
	char command[96];
};

struct spawn {
	const struct wire_exec *m;
	uint64_t id;
	int in, tty; /* -1: fd 0 as it is, no terminal */
	int err;     /* filled by the child, which shares our memory until it execs */
	const char *what;
};

/* Starts the program with our fds 1 and 2 as its own (or the tty). Returns its pid or -errno. */
pid_t spawn_exec(struct agent *a, struct spawn *s);

/* Everything the exec started, also what left its session. */
void kill_tree(struct exec *x, int signo);
