/*
 * api/streams/credit.h - bytes of a guest that a slow client has not taken yet
 * Their producer, a call to the guest, may send as many again when the client has room, and not
 * before: so a slow reader holds up one program and fills no memory. Loop thread only.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct credit {
	/* Lets the producer send n bytes more; chan 0: stdout or the only one, 1: stderr. */
	void (*give)(void *arg, int chan, size_t n); /* NULL: there is no producer to be told */
	void *arg;
	size_t owed[2];
};

/* n bytes of chan have been passed on. room: the client takes more, so all is paid at once. */
void credit_owe(struct credit *k, int chan, size_t n, bool room);
/* The client has room: what is owed is paid. Fits call_on_room(). */
void credit_pay(void *credit);

/*
 * Rows of a guest that become more bytes than they are: of a name becomes a path, in JSON. So each
 * one wants room, not only each frame. Those that find none wait as they came, and cost the guest
 * credit meanwhile: they are never more than it may send.
 */
struct credit_rows {
	struct credit *credit;
	/* Tells the first one of these bytes. Its length, or a negative errno: nonsense. */
	ssize_t (*row)(void *arg, const uint8_t *p, size_t n);
	bool (*room)(void *arg); /* the client takes another one */
	void *arg;
	uint8_t *held; /* its owner frees it */
	size_t n_held;
};

/* A frame of whole rows. 0, or a negative errno of row() or for want of memory. */
int credit_rows_add(struct credit_rows *r, const uint8_t *p, size_t n);
/* The client has room. 0, or what row() said. */
int credit_rows_more(struct credit_rows *r);

/* To give: arg is the place of a pointer to a job, or an exec. NULL in it: it has ended. */
void credit_to_job(void *jobp, int chan, size_t n);
void credit_to_exec(void *execp, int chan, size_t n);
