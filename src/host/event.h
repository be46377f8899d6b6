/*
 * host/event.h - what happened to sandboxes, on record and told to listeners
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bucket.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/shares.h"

struct db;

/*
 * What is on record of each tenant, and of all: the tenant with most gives first. Events of the
 * network, of which a guest can make as many as it likes, have shares of their own and push out no
 * others. They are also limited by the second, for a tenant and for the host, and written together,
 * once a second; all others are on record when event_emit() returns. 0: no limit.
 */
struct events_config {
	uint64_t kept, kept_per_tenant;
	unsigned net_per_s, net_per_s_per_tenant;
};

enum {
	EVENTS_BATCH = 256, /* of the network, written together */
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

struct event_waiting;

struct events {
	struct db *db;
	struct loop *loop;
	struct events_config config;
	struct event_listener *listeners;
	int64_t seq;
	struct shares life, net; /* rows of each tenant */
	struct bucket net_rate;
	uint64_t net_dropped;          /* above the rate */
	struct event_waiting *waiting; /* EVENTS_BATCH of them, for the record */
	size_t nwaiting;
	struct loop_timer timer;
};

int events_open(struct events *es, struct loop *loop, struct db *db,
                const struct events_config *config, struct err *e);
void events_close(struct events *es); /* all is on record then */

/* Takes the payload (may be NULL). A record that cannot be written is logged, not an error. */
void event_emit(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                json_t *payload);

/* The same for an event of the network. False: there were too many, this one is only counted. */
bool event_emit_net(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                    json_t *payload);

/* Of this sandbox and type only the newest so many stay on record. */
void events_trim(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                 unsigned keep);

/* The newest n, oldest first. sandbox_id NULL: of all; tenant NULL: of all. */
int events_tail(struct events *es, const char *tenant, const char *sandbox_id, int64_t n,
                void (*fn)(void *arg, const struct event *ev), void *arg, struct err *e);

/* Listeners are embedded; fn is called for every event, on the loop. */
void events_listen(struct events *es, struct event_listener *l);
void events_unlisten(struct event_listener *l);
