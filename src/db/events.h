/*
 * db/events.h - what happened to sandboxes, on record
 *
 * Rows are written once and never changed; old ones are trimmed. The caller counts seq up, so that
 * an event has its number even when its record could not be written (host/event.c). Events of the
 * network have types that begin with "net."; a guest can make as many of those as it likes, so they
 * are trimmed apart from all others and push out none of them.
 */
#pragma once
#include "db/db.h"

struct db_event {
	int64_t seq;
	const char *tenant, *sandbox_id, *type;
	const char *payload; /* JSON; "": none */
	uint64_t at_ms;      /* wall clock */
};

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

/* Away with those of the network up to this seq. */
int db_events_trim_net(struct db *d, int64_t seq, struct err *e);
/* Of all others the newest `keep` stay. */
int db_events_trim(struct db *d, int64_t keep, struct err *e);
/* Of this sandbox and type the newest `keep` stay. */
int db_events_trim_type(struct db *d, const char *sandbox_id, const char *type, int64_t keep,
                        struct err *e);
