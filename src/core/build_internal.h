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
	bool reboot;          /* its memory is of another size than the base's */
	bool begun;           /* it counts as one at work */
	struct net_slot *net; /* its machine's place in the network; NULL: none */
	struct net_wait net_wait;
	int log, wake; /* wake: an eventfd that stops commands */
	atomic_bool stop, cancelled;
	uint64_t log_bytes, deadline_ms, bytes;
	struct err err;
	int r;
};

/* ---- the books ---- */

struct builds {
	struct host *host;
	struct pool *pool;
	int dir;
	struct build *newest;
	bool closing;
};

/* Kind too_many. */
int builds_too_many(const struct builds *bs, const char *tenant, struct err *e);
/* All files of a build, or but for its record and its log. */
void build_clean_dir(int builds, const char *id, bool all);

/* On a thread of the builder: all of it. Leaves b->r and b->err. */
void build_work(struct build *b);
void build_say(struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Is this a base we stand for by another name ("debian:12")? NULL: it is called as it is. */
const char *build_base(const char *written);

/* ---- a stage at work, for build_run.c and build_copy.c ---- */

enum {
	BUILD_FILE_MS = 120 * 1000, /* one file, one directory */
};

struct stage {
	struct build *b;
	const struct docker_stage *what;
	struct build_stage *s;
	/* what the instructions so far have set */
	json_t *env, *args, *shell, *entrypoint, *cmd;
	char workdir[PATH_MAX], user[256];
	/* its machine */
	char machine[ENGINE_ID_MAX + 1];
	struct guest *guest;
	bool dirty; /* something happened since the image was taken */
	struct err *e;
};

/* "Dockerfile:7: why", kind build_failed. */
int build_bad(struct stage *st, const struct docker_step *step, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *build_variable(void *stage, const char *name);
int build_expand(struct stage *st, const struct docker_step *step, const char *word, char **ret);
/* network: with the build's place in it; one machine at a time. Caller owns *ret and the machine.
 */
int build_start(struct build *b, const struct engine_image *image, bool network,
                char machine[ENGINE_ID_MAX + 1], struct guest **ret, struct err *e);
/* A command that must succeed; in and out are fds, -1: none, the log. */
int build_tool(struct stage *st, const struct docker_step *step, struct guest *g, char *const *argv,
               int in, int out);
void build_free_list(char ***list);

/* ---- build_copy.c ---- */

int build_copy(struct stage *st, const struct docker_step *step);
/* A source as the paths of the context are: "./a/" is "a", "." is "". In place. */
int build_source(struct stage *st, const struct docker_step *step, char *s);
/* Does this file of the context belong to the source? Then what it is called below it, else NULL.
 * *ret_whole: it is the source itself. */
const char *build_below(const char *source, const char *path, bool *ret_whole);
/* Marks what the context's .dockerignore names. */
void build_ignore(struct build_order *o);
