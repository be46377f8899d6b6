/*
 * cli/bed_internal.h - between the files of the bed: bed.c runs a command, bed_server.c is its
 * pandad, bed_expect.c looks at what came of it
 */
#pragma once
#include <poll.h>

#include "bed.h"

/* The next line of what the test did not expect: it fails at the end of bed_run(). */
void bed_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Aborts when there is no memory; a NUL stands behind the text. */
void bed_append(char **p, size_t *n, const void *data, size_t len);
void bed_shut(int *fd); /* closes it; -1 afterwards */
/* ' becomes ". Caller frees. */
char *bed_json(const char *s);
/* Freed when the test ends. */
void *bed_keep(void *p);

/* ---- bed_server.c ---- */

enum { SERVER_FDS = BED_MAX + 1 };

void server_begin(void);  /* listens at a port of its own */
void server_listen(void); /* again, at bed.port */
void server_leave(void);  /* its connections, and nobody listens any more */
/* What it waits for, into p; how many. Each entry goes back to server_take() in its place. */
size_t server_poll(struct pollfd p[SERVER_FDS]);
void server_take(const struct pollfd *p, size_t n);
/* On the newest connection that is held. */
void server_say(bool text, const char *p, size_t n);
void server_end(void);
/* The command has ended: says which answers it never asked for, and forgets the script. */
void server_over(void);
