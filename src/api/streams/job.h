/*
 * api/streams/job.h - one call to the guest of a sandbox, from the loop
 * Finds the way to its agent (a hibernated sandbox wakes up), starts the call when the connection
 * takes it, and keeps the sandbox from being idle until the call has ended. No callback runs inside
 * job_start(). Loop thread only.
 */
#pragma once
#include "api/api.h"
#include "machine/guest.h"
#include "wire/guest.h"

struct job;

struct job_end {
	const struct err *e; /* the guest could not be asked, or the connection broke */
	int guest;           /* else: what the guest said, an errno value, 0 when all went well */
	enum wire_reason reason; /* of the guest */
	const char *text;        /* of the guest; may be "" */
};

struct job_ops { /* each may be NULL */
	/* Give credit when you are done with them. NULL: thrown away. */
	void (*data)(void *arg, struct job *j, uint8_t chan, const void *p, size_t n);
	void (*eof)(void *arg, struct job *j, uint8_t chan);
	/* As in struct guest_ops. */
	void (*reply)(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg);
	/* job_send() may take something now. */
	void (*writable)(void *arg, struct job *j);
	/* The last one; j is gone afterwards. */
	void (*end)(void *arg, struct job *j, const struct job_end *end);
};

/*
 * Starts a request of this type with its wire struct, which is the caller's again afterwards.
 * NULL: no memory, or it does not fit into a frame; *e says so.
 *
 * In the usual case the guest's connection is there and has room: then the message is encoded right
 * into its buffer. Only a request that has to wait is encoded aside.
 */
struct job *job_start(struct host *h, struct sandbox *sb, uint8_t type, const void *msg,
                      const struct job_ops *ops, void *arg, struct err *e);
/* The same for what may change everything: with a checkpoint before it, if the sandbox has
 * those. */
struct job *job_start_marked(struct host *h, struct sandbox *sb, uint8_t type, const void *msg,
                             const struct job_ops *ops, void *arg, struct err *e);

/* The same for a message that the caller has in wire form, and keeps until end(). */
struct job *job_start_encoded(struct host *h, struct sandbox *sb, const struct guest_request *rq,
                              const struct job_ops *ops, void *arg, struct err *e);

/* How many of the bytes were taken; writable() follows when it is less than n. */
size_t job_send(struct job *j, const void *p, size_t n);
void job_send_eof(struct job *j);
void job_resize(struct job *j, unsigned rows, unsigned cols);
void job_signal(struct job *j, int signo, uint32_t flags); /* WIRE_SIGNAL_* */
void job_credit(struct job *j, uint8_t chan, size_t n);

/* Asks the guest to stop; end() comes. An exec that is not detached dies. */
void job_cancel(struct job *j);
/* The same, but the owner is not told: no callback from here on. NULL is fine. */
void job_abandon(struct job *j);

/* Answers the call with what end says. what: "cannot read '/x'". */
void job_fail(struct call *c, const struct job_end *end, const char *what);
/* The same as an error for others to tell. Returns -code. */
int job_error(const struct job_end *end, const char *what, struct err *ret);
