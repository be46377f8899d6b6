/*
 * machine/guest_internal.h - between the files of machine/guest.h
 */
#pragma once
#include "machine/guest.h"
#include "wire/answers.h"
#include "wire/guest.h"

/*
 *   open ──END──> free
 *     └──an answer that may not come──> over ──END──> free
 *
 * A call that is over has told its end, but the guest has not: its id stays taken, and what still
 * comes for it is thrown away.
 */
struct guest_call {
	struct guest *g;
	uint32_t id;
	const struct guest_ops *ops;
	void *arg;
	bool over;
	struct wire_answered answered;
	bool gap[2]; /* GAP has come on OUT or ERR, and is told when it is followed */
	uint32_t window;
	uint32_t take_left[2]; /* what the guest may still send on OUT and ERR */
	uint32_t taken[2];     /* dealt with, not yet given back as credit */
	uint32_t send_left;    /* what we may still send on IN */
};

struct guest {
	int fd;
	int dead; /* errno value, once the connection is over */
	uint64_t deadline_ms;
	bool stops; /* guest_set_stop(): */
	int stop_fd;
	uint64_t until_ms;
	void (*meanwhile)(void *arg);
	void *meanwhile_arg;
	struct guest_call *calls[GUEST_CALLS_MAX]; /* id - 1 is the place */
	unsigned first_free;                       /* all below it are taken */
	unsigned n_calls;
	unsigned n_over; /* of them; more than one cannot be: */
	bool warned;     /* an answer came that may not; the next one ends the connection */
	struct guest_room *rooms;   /* who waits, and for what: */
	bool wants_call, wants_out; /* neither: rooms is empty */
	uint8_t *in;
	size_t in_len;
	uint8_t *out;
	size_t out_head, out_len;
};

/* ---- guest_wait.c: the blocking half ---- */

/* One call we wait for, and what it brought. */
struct wait {
	bool done;
	int err;
	char text[200];
	int failed; /* our own trouble with its data, negative errno; the call is cancelled then */
	struct guest_call *call;

	/* who gets the data */
	void (*output)(void *arg, uint8_t chan, const void *p, size_t n);
	int (*row)(struct wait *w, const uint8_t *p, size_t n); /* bytes of one row or -errno */
	void *arg;
	size_t rows;

	/* replies */
	struct wire_exited exited;
	struct wire_started started;
	struct guest_attach *attach;
	struct wire_stats stats;
	struct wire_file file;
	char *path;
	uint64_t pos[2]; /* of an attached exec */

	/* data for the guest */
	int in_fd;
	bool feeding;
	void (*wake)(void *arg, struct guest_call *c);
	int wake_fd;
};

/* Queues the request: several can be on their way before wait_finish() waits for each. */
int wait_begin(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
               struct err *e);
/* Waits for its end, and tells of its failure as "what: why". */
int wait_finish(struct guest *g, struct wait *w, const char *what, struct err *e);
/* Both. */
int wait_run(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
             struct err *e);
/* Sleeps until something happens, and deals with it. */
int wait_turn(struct guest *g, struct wait *w);
/* Our own trouble with its data, a negative errno: no more of it. The first one counts. */
void wait_give_up(struct wait *w, int err);
