/*
 * A server on a loop whose clock belongs to the test: when nothing is left to do, time jumps to the
 * next timer. Clients are the other ends of unix sockets, used from the same thread.
 * Link with --wrap=clock_gettime and --wrap=epoll_wait.
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "http/server.h"

struct bed {
	struct loop *loop;
	struct http_server *server;
	int listener; /* the server's; for its address */
};

/* The handler and arg of c are the test's. */
void bed_start(struct bed *b, const struct http_config *c);
void bed_stop(struct bed *b);

/* Until there is nothing to do; no time passes. */
void bed_run(struct bed *b);
/* And then, on to this time. */
void bed_pass(struct bed *b, uint64_t ms);
uint64_t bed_now_ms(void);

/* A client's end: non-blocking. */
int bed_connect(struct bed *b);
void bed_send(struct bed *b, int fd, const void *p, size_t n); /* all of it, and runs */
void bed_text(struct bed *b, int fd, const char *text);

/* Runs and reads what is there, up to size - 1 bytes, NUL behind. -1: the server closed; then what
 * came before is in buf all the same. */
int bed_read(struct bed *b, int fd, char *buf, size_t size);
/* The status of the one reply that is there, 0 for none, -1 for a closed connection without. */
int bed_status(struct bed *b, int fd);
/* The server has closed this connection (and its reply, if any, was read). */
bool bed_closed(struct bed *b, int fd);
