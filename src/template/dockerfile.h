/*
 * template/dockerfile.h - Dockerfiles, read
 * Pure: text in, steps out; no I/O, nothing is run. Everything in a struct dockerfile belongs to it
 * and goes with it. Errors are of kind bad_request and say "Dockerfile:LINE: why".
 *
 * Words are as written, quotes and variables in them: what they mean depends on ENV and ARG and is
 * told by dockerfile_expand() when the build gets there.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
	DOCKERFILE_MAX = 256 << 10, /* bytes of text */
	DOCKERFILE_STEPS_MAX = 512,
	DOCKERFILE_STAGES_MAX = 32,
	DOCKERFILE_WORDS_MAX = 512, /* of one instruction */
	DOCKERFILE_MOUNTS_MAX = 16,
	DOCKERFILE_EXPANDED_MAX = 128 << 10, /* one word, with its variables */
};

enum docker_op {
	DOCKER_RUN,         /* words: argv; or, in shell form, the one command */
	DOCKER_COPY,        /* words: sources, and where to. "<<NAME": the next heredoc */
	DOCKER_ADD,         /* the same */
	DOCKER_ENV,         /* words: name, value, name, value ... */
	DOCKER_ARG,         /* words: name, default or NULL, ... */
	DOCKER_WORKDIR,     /* words: one */
	DOCKER_USER,        /* words: one */
	DOCKER_SHELL,       /* words: argv */
	DOCKER_ENTRYPOINT,  /* as RUN; no words: none */
	DOCKER_CMD,         /* as RUN; no words: none */
	DOCKER_HEALTHCHECK, /* as RUN; no words: none */
	DOCKER_NOTED,       /* LABEL, EXPOSE and others that mean nothing to us */
};

struct docker_heredoc {
	char *name, *text;
	bool expand; /* its variables; the name was not quoted */
};

enum docker_mount_kind {
	DOCKER_BIND,
	DOCKER_CACHE,
	DOCKER_TMPFS,
};

struct docker_mount {
	enum docker_mount_kind kind;
	bool writable;
	int from; /* as of a step */
	char *source, *target;
};

struct docker_step {
	enum docker_op op;
	unsigned line;
	char *text; /* on one line, with what its heredocs hold: for logs and for the cache */
	bool exec;  /* JSON form */
	char **words;
	size_t nwords;
	bool script;         /* of RUN: its one word says on its first line what runs it (#!) */
	bool parents;        /* of COPY: sources keep their directories */
	char *chown, *chmod; /* of COPY and ADD, or NULL */
	int from;            /* COPY --from: a stage, maybe an implied one; -1: the context */
	struct docker_heredoc *heredocs;
	size_t nheredocs;
	struct docker_mount *mounts; /* of RUN */
	size_t nmounts;
};

struct docker_stage {
	unsigned line;
	char *base;   /* as written: an earlier stage when from is not -1 */
	char *name;   /* or NULL */
	bool implied; /* not in the Dockerfile: COPY --from names an image, all of which this is */
	int from;
	size_t first, end; /* its steps: first <= i < end */
};

struct dockerfile {
	char escape;                 /* '\\' or '`' */
	struct docker_step *globals; /* ARGs above the first FROM */
	size_t nglobals;
	struct docker_step *steps;
	size_t nsteps;
	struct docker_stage *stages;
	size_t nstages;
	struct docker_chunk *chunks;
};

/* Line ends may be CR LF. Caller owns *ret. */
int dockerfile_parse(const char *text, size_t n, struct dockerfile **ret, struct err *e);
void dockerfile_free(struct dockerfile *d);
void dockerfile_freep(struct dockerfile **d);

/*
 * A word without its quotes, with the values of its variables: $X, ${X}, ${X:-word}, ${X:+word},
 * ${X:?word} and those without ':'. get() returns NULL for one that is not set. quotes false:
 * quotes are text (heredocs). line is for the error. Caller frees *ret.
 */
int dockerfile_expand(const char *word, char escape, bool quotes, unsigned line,
                      const char *(*get)(void *arg, const char *name), void *arg, char **ret,
                      struct err *e);
