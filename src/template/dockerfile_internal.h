/*
 * template/dockerfile_internal.h - what the files of the Dockerfile's reader share
 */
#pragma once
#include <sys/types.h>

#include "template/dockerfile.h"

enum {
	DOCKER_NAME_MAX = 128, /* of variables, stages and heredocs, with NUL */
};

struct dockerfile_reader {
	struct dockerfile *d;
	const char *p, *end;
	unsigned line;  /* of p */
	unsigned begun; /* line on which the instruction at hand began */
	char *text;     /* the instruction, continuations joined */
	size_t n;
	struct err *e;
};

#define docker_bad(r, ...) docker_bad_at((r)->e, (r)->begun, __VA_ARGS__)

/* "Dockerfile:LINE: why", bytes that cannot be printed replaced. */
int docker_bad_at(struct err *e, unsigned line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int docker_no_memory(struct err *e);

/* Zeroed; lives as long as d. */
void *docker_keep(struct dockerfile *d, size_t n);
char *docker_keep_text(struct dockerfile *d, const char *p, size_t n);

/* "# escape=`" and the like, before anything else. */
int docker_directives(struct dockerfile_reader *r);
/* Puts one instruction together, in r->text: 1, or 0 at the end. */
int docker_next(struct dockerfile_reader *r);

const char *docker_skip(const char *p);
/* Up to white space that is not quoted. 0: no more words; negative: a quote without its end. */
ssize_t docker_word_len(const char *p, char escape);
int docker_add_word(struct dockerfile_reader *r, struct docker_step *s, const char *p, size_t n);
/* Gives back what the list does not need. */
int docker_fit_words(struct dockerfile_reader *r, struct docker_step *s);
int docker_split(struct dockerfile_reader *r, struct docker_step *s, const char *p);
/* A JSON list of strings: 1. Something else: 0. */
int docker_json_words(struct dockerfile_reader *r, struct docker_step *s, const char *p);

/* "<<EOF", "<<-EOF", "<<'EOF'" at the beginning of p: its length, or 0. */
size_t docker_heredoc_at(const char *p, bool *tabs, bool *quoted, const char **name, size_t *n);
/* All heredocs that an instruction announces; their text follows it. */
int docker_heredocs(struct dockerfile_reader *r, struct docker_step *s, const char *rest);
