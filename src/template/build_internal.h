/*
 * template/build_internal.h - what the two halves of a build share: its books and its work
 */
#pragma once
#include <limits.h>
#include <stdatomic.h>

#include "base/err.h"
#include "layers/digest.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "net/net.h"
#include "template/build.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/oci.h"
#include "template/tail.h"

struct guest_exit;

/* What a stage begins with that begins with no other stage. */
enum build_root {
	BUILD_ROOT_TEMPLATE,
	BUILD_ROOT_EMPTY,   /* FROM scratch */
	BUILD_ROOT_ARCHIVE, /* an image: a file of the context */
	BUILD_ROOT_DEBIAN,  /* an image to be had: see build_debian() */
};

struct build_stage {
	bool needed;
	enum build_root root;
	size_t archive;              /* which file */
	char which[OCI_REF_MAX + 1]; /* of several images in it, "": there is one; or the suite */
	struct engine_image image; /* what it begins with, and after it is done: what came of it */
	char key[65];              /* the digest so far */
	char root_key[65];         /* what it was when the root was there and nothing else */
	json_t *doc;               /* of the template at the root of it, or of one to be that says
	                              what the archive says; NULL: from another stage */
	json_t *said;              /* when it is done: "env", "workdir", "user", "start" */
};

struct build {
	struct build *next; /* newest first */
	struct build_info info;
	atomic_int status;

	/* from here on only while it is not over */
	struct build_order *order;
	struct dockerfile *file;
	json_t *globals; /* what the ARGs above the first FROM come to */
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
	struct depot *depot;
	struct pool *pool;
	int dir;
	struct build *newest;
	bool closing;
};

/* Kind too_many. */
int builds_too_many(const struct builds *bs, const char *tenant, struct err *e);
/* All files of a build, or but for its record and its log. */
void build_clean_dir(int builds, const char *id, bool all);

enum {
	BUILD_VARIABLES_MAX = 512,
	BUILD_VARIABLES_BYTES = 1 << 20, /* a program's environment holds no more than twice that */
};

/* Are these more, or more text? Either may be NULL. */
bool build_variables_too_many(const json_t *a, const json_t *b);
/* b->globals, with what the order says. Kind bad_request. */
int build_globals(struct build *b, struct err *e);
/* What stages may take over with "ARG NAME"; NULL: nothing. */
const char *build_global(void *build, const char *name);
/* The stage that begins with the template which the last one comes from. */
size_t build_root_of(const struct dockerfile *f);
/*
 * What a stage begins with: a template; or a root of its own, made in a machine of this one: then
 * the stage's root says which. NULL: none. The caller frees *ret_name.
 */
struct template *build_base_of(struct build *b, size_t stage, char **ret_name, struct err *e);

/* On a thread of the builder: all of it. Leaves b->r and b->err. */
void build_work(struct build *b);
void build_say(struct build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- a stage at work, for build_run.c and build_copy.c ---- */

enum {
	BUILD_FILE_MS = 120 * 1000, /* one file, one directory */
};

struct stage {
	struct build *b;
	const struct docker_stage *what;
	struct build_stage *s;
	/* what the instructions so far have set */
	json_t *env, *args, *shell, *entrypoint, *cmd, *ready;
	bool cmd_own; /* said in this stage */
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
/*
 * network: with the build's place in it; one machine at a time. volumes may be NULL. Caller owns
 * *ret and the machine.
 */
int build_start(struct build *b, const struct engine_image *image, bool network,
                const struct engine_volume *volumes, char machine[ENGINE_ID_MAX + 1],
                struct guest **ret, struct err *e);
/* Why it must not go on: cancelled, about to end, out of time. 0: it may. */
int build_stopped(struct build *b, struct err *e);
/* The same, if that is why something failed with r; else r, and e as it is. */
int build_why(struct build *b, int r, struct err *e);
/* For the next call to the guest that is about one file: it may take BUILD_FILE_MS, or what is left
 * of the build's time. */
void build_short(struct build *b, struct guest *g);
/* Of the template at the root of a stage; NULL: it has none. */
const json_t *build_root_doc(const struct build *b, size_t stage);
/* Templates and steps leave the host its reserve, as creates do. */
bool build_disk_has_room(const struct depot *depot);
/* A machine for the stage, if it has none. */
int build_machine(struct stage *st);
/* What the machine is now becomes the stage's image, and a step of the cache when key is given. */
int build_seal(struct stage *st, const char *key);

#define BUILD_SPOOL_MAX ((uint64_t)2 << 30) /* what one COPY --from carries over */

struct build_command {
	struct guest *guest;
	char *const *argv, *const *env;
	const char *cwd, *user; /* NULL: "/", root */
	int in;                 /* -1: none */
	int out;                /* -1: the log; else at most out_max bytes go there */
	uint64_t out_max;
	struct tail tail; /* filled in: the end of its stderr */
};

/* 0 when it ran, whatever came of it. */
int build_command(struct build *b, struct build_command *c, struct guest_exit *ret, struct err *e);
/* One that must succeed; in and out as above. */
int build_tool(struct stage *st, const struct docker_step *step, struct guest *g, char *const *argv,
               int in, int out);
void build_free_list(char ***list);

/* ---- build_cache.c ---- */

void build_digest_add(struct sha *sha, const char *text);
/* The stage's key, from what it was and all that decides what comes of the next step. */
int build_next_key(struct stage *st, const struct docker_step *step, struct sha *sha);
/* The step becomes the stage's image; false: it is not there. */
bool build_load_step(struct stage *st, const char *key);
/* The ones not used for longest go. */
void build_trim_steps(struct depot *depot);

/* ---- build_root.c ---- */

/* For a stage that begins with no template: what its root says of itself, in st->s->doc, and the
 * key it begins with. */
int build_root_look(struct stage *st);
/* Its root as a machine's, running; a step of the cache. */
int build_root_make(struct stage *st);

/* A path as instructions mean it: below WORKDIR, unless it begins with '/'. */
int build_path(struct stage *st, const struct docker_step *step, const char *word,
               char ret[PATH_MAX]);

/* ---- build_debian.c ---- */

/* Has the root of the stage's suite, or makes it: it is an archive of the order from then on. */
int build_debian(struct stage *st);

/* ---- build_mount.c ---- */

struct build_mounted {
	size_t n;
	bool made[DOCKERFILE_MOUNTS_MAX]; /* where it is mounted was nothing before */
};

/* Before and after a RUN. When one fails the machine is of no use any more. */
int build_mounts(struct stage *st, const struct docker_step *step, struct build_mounted *ret);
int build_unmount(struct stage *st, const struct docker_step *step, const struct build_mounted *m);

/* ---- build_copy.c ---- */

/* Where panda-tool (guest_tool.c) is when build_hand() has been called: the root may have no
 * programs. */
#define BUILD_TOOL "/run/panda/tool"
int build_hand(struct stage *st, const struct docker_step *step, struct guest *g, char *const *argv,
               int in, int out);

/* A file without a name, for what comes out of a guest: it goes when it is closed. */
int build_spool(struct stage *st);

int build_copy(struct stage *st, const struct docker_step *step);
/* A source as the paths of the context are: "./a/" is "a", "." is "". In place. */
int build_source(struct stage *st, const struct docker_step *step, char *s);
/* Does this file of the context belong to the source? Then what it is called below it, else NULL.
 * *ret_whole: it is the source itself. */
const char *build_below(const char *source, const char *path, bool *ret_whole);
/* Marks what the context's .dockerignore names. */
void build_ignore(struct build *b);
