/*
 * db/events.h - what happened to sandboxes, on record
 *
 * Rows are written once and never changed; old ones are trimmed. The caller counts seq up, so that
 * an event has its number even when its record could not be written (host/event.c). Events of the
 * network have types that begin with "net."; a guest can make as many of those as it likes, so they
 * are counted apart from all others and push out none of them. Old ones are dropped, of each tenant
 * its own.
 */
#pragma once
#include "db/db.h"

struct db_event {
	int64_t seq;
	const char *tenant, *sandbox_id, *type;
	const char *payload; /* JSON; "": none */
	uint64_t at_ms;      /* wall clock */
};

bool db_event_is_net(const char *type);
int db_event_insert(struct db *d, const struct db_event *row, struct err *e);
/* The highest seq on record; 0: there is none. */
int db_events_last(struct db *d, int64_t *ret, struct err *e);

typedef bool db_event_fn(void *arg, const struct db_event *row);

/* The newest n, the oldest of them first. tenant NULL: of all; sandbox_id NULL: of all. fn returns
 * false to stop. */
int db_events_tail(struct db *d, const char *tenant, const char *sandbox_id, int64_t n,
                   db_event_fn *fn, void *arg, struct err *e);
/* The newest n of a tenant and a type, the newest first. */
int db_events_of_type(struct db *d, const char *tenant, const char *type, int64_t n,
                      db_event_fn *fn, void *arg, struct err *e);

/* Away with the oldest n of a tenant: those of the network, or of all others. */
int db_events_drop(struct db *d, const char *tenant, bool net, int64_t n, struct err *e);
/* How many of each kind every tenant has. */
int db_events_counts(struct db *d, bool (*fn)(void *arg, const char *tenant, bool net, uint64_t n),
                     void *arg, struct err *e);
/* Of this sandbox and type the newest `keep` stay; *ret_n went. */
int db_events_trim_type(struct db *d, const char *sandbox_id, const char *type, int64_t keep,
                        uint64_t *ret_n, struct err *e);
