/*
 * A server with a script: reads a request, sends the next reply, byte for byte as it stands.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/panda.h"

enum {
	FAKE_STEPS = 8,
	FAKE_REQUEST = 256 * 1024,
};

struct fake_step {
	const char *reply;
	size_t len;    /* 0: strlen */
	bool pieces;   /* one byte per packet */
	bool close;    /* afterwards */
	bool early;    /* reply behind the head, without reading the body */
	bool upgrade;  /* "%s" in the reply is the answer to Sec-WebSocket-Key */
	int then_read; /* so many bytes more go into request, after the reply */
};

struct fake {
	pthread_t thread;
	int fd, port, conns; /* conns: how many were accepted */
	atomic_int closed;   /* how many of these are closed again */
	size_t n;
	struct fake_step step[FAKE_STEPS];
	char *request[FAKE_STEPS]; /* as it came */
	size_t request_len[FAKE_STEPS];
};

/* Starts it; the steps are copied. */
void fake_start(struct fake *f, const struct fake_step *steps, size_t n);
/* Waits until the script is over. */
void fake_join(struct fake *f);
void fake_fini(struct fake *f);
/* A client for it, with a key "k". */
struct panda *fake_client(const struct fake *f);
