/*
 * core/build_internal.h - what the two halves of a build share: its books and its work
 */
#pragma once
#include <stdatomic.h>

#include "core/build.h"
#include "core/dockerfile.h"
#include "core/host_internal.h"
#include "net/net.h"

struct build_stage {
	bool needed;
	struct engine_image image; /* what it begins with, and after it is done: what came of it */
	char key[65];              /* the digest so far */
	json_t *doc;               /* of the template at the root of it; NULL: from another stage */
};

struct build {
	struct build *next; /* newest first */
	struct build_info info;
	atomic_int status;

	/* from here on only while it is not over */
	struct build_order *order;
	struct dockerfile *file;
	struct build_stage stages[DOCKERFILE_STAGES_MAX];
	json_t *doc; /* of the template to be */
	char bake[SNAPSHOT_ID_MAX + 1], old[SNAPSHOT_ID_MAX + 1];
	size_t preparing;     /* stage whose template is being loaded */
	bool begun;           /* it counts as one at work */
	struct net_slot *net; /* its machine's place in the network; NULL: none */
	struct net_wait net_wait;
	int log, wake; /* wake: an eventfd that stops commands */
	atomic_bool stop;
	uint64_t log_bytes, deadline_ms;
	struct err err;
	int r;
};

/* On a thread of the builder: all of it. Leaves b->r and b->err. */
void build_work(struct build *b);
void build_say(struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Is this a base we stand for by another name ("debian:12")? NULL: it is called as it is. */
const char *build_base(const char *written);
