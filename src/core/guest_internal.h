/*
 * core/guest_internal.h - between guest.c and guest_wait.c
 */
#pragma once
#include "core/guest.h"

struct guest_call {
	struct guest *g;
	uint32_t id;
	const struct guest_ops *ops;
	void *arg;
	uint32_t window;
	uint32_t take_left[2]; /* what the guest may still send on OUT and ERR */
	uint32_t taken[2];     /* dealt with, not yet given back as credit */
	uint32_t send_left;    /* what we may still send on IN */
	bool sent_eof;
};

struct guest {
	int fd;
	int dead; /* errno value, once the connection is over */
	uint64_t deadline_ms;
	void (*meanwhile)(void *arg);
	void *meanwhile_arg;
	struct guest_call *calls[GUEST_CALLS_MAX]; /* id - 1 is the place */
	unsigned first_free;                       /* all below it are taken */
	uint8_t *in;
	size_t in_len;
	uint8_t *out;
	size_t out_head, out_len;
};

/* Ends every call with err; the connection is of no more use. Returns -err. */
int guest_fail(struct guest *g, int err, const char *text);
