/*
 * api/streams/body.h - the body of a request, into a call to the guest
 * As fast as the guest takes it: while it does not, the client waits.
 */
#pragma once
#include "api/streams/job.h"

struct body_feed {
	struct call *c;
	struct job *j;
	const char *rest; /* of the piece, not taken by the guest; the server keeps it for us */
	size_t left;
	bool all; /* the body is complete */
	uint64_t bytes;
	void (*done)(void *arg); /* all of it is on its way to the guest */
	void *arg;
};

/* Where to; and begins to read the body. */
void body_feed_begin(struct body_feed *p, struct call *c, struct job *j, void (*done)(void *arg),
                     void *arg);
/* The guest takes more: call it from the job's writable. */
void body_feed_more(struct body_feed *p);
/* The job is over: what still comes is thrown away. */
void body_feed_stop(struct body_feed *p);
