/*
 * host/event.h - what happened to sandboxes, on record and told to listeners
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct db;

enum {
	/* On record, of all sandboxes together; those of the network, of which a guest can make as
	 * many as it likes, push out no others. */
	EVENTS_KEPT = 10000,
	EVENTS_NET_KEPT = 50000,
};

struct event {
	int64_t seq;
	const char *tenant, *sandbox_id, *type;
	const json_t *payload; /* may be NULL */
	uint64_t at_ms;        /* wall clock */
};

struct event_listener {
	void (*fn)(void *arg, const struct event *ev);
	void *arg;
	struct event_listener *next, **prevp;
};

struct events {
	struct db *db;
	struct event_listener *listeners;
	int64_t seq;
	unsigned until_trim;
};

int events_open(struct events *es, struct db *db, struct err *e);

/* Takes the payload (may be NULL). A record that cannot be written is logged, not an error. */
void event_emit(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                json_t *payload);

/* Of this sandbox and type only the newest so many stay on record. */
void events_trim(struct events *es, const char *sandbox_id, const char *type, unsigned keep);

/* The newest n, oldest first. sandbox_id NULL: of all; tenant NULL: of all. */
int events_tail(struct events *es, const char *tenant, const char *sandbox_id, int64_t n,
                void (*fn)(void *arg, const struct event *ev), void *arg, struct err *e);

/* Listeners are embedded; fn is called for every event, on the loop. */
void events_listen(struct events *es, struct event_listener *l);
void events_unlisten(struct event_listener *l);
