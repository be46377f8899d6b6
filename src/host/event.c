#include "host/event.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "db/events.h"

enum {
	TRIM_EVERY = 500,
};

int events_open(struct events *es, struct db *db, struct err *e)
{
	*es = (struct events){.db = db, .until_trim = TRIM_EVERY};
	return db_events_last(db, &es->seq, e);
}

static void trim(struct events *es)
{
	es->until_trim = TRIM_EVERY;
	db_events_trim_net(es->db, es->seq - EVENTS_NET_KEPT, NULL);
	db_events_trim(es->db, EVENTS_KEPT, NULL);
}

void events_trim(struct events *es, const char *sandbox_id, const char *type, unsigned keep)
{
	db_events_trim_type(es->db, sandbox_id, type, keep, NULL);
}

void event_emit(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                json_t *payload)
{
	struct event ev = {.seq = ++es->seq,
	                   .tenant = tenant,
	                   .sandbox_id = sandbox_id,
	                   .type = type,
	                   .payload = payload,
	                   .at_ms = wall_ms()};
	autofree char *text = payload ? json_dumps(payload, JSON_COMPACT) : NULL;
	const struct db_event row = {.seq = ev.seq,
	                             .tenant = tenant,
	                             .sandbox_id = sandbox_id,
	                             .type = type,
	                             .payload = text ? text : "",
	                             .at_ms = ev.at_ms};
	struct event_listener *l, *next;
	struct err e;

	if (db_event_insert(es->db, &row, &e) < 0)
		log_warn("event not recorded, we go on without sandbox=%s type=%s why=\"%s\"",
		         sandbox_id, type, e.text);
	for (l = es->listeners; l; l = next) {
		next = l->next;
		l->fn(l->arg, &ev);
	}
	json_decref(payload);
	if (--es->until_trim == 0)
		trim(es);
}

struct event_tail {
	void (*fn)(void *arg, const struct event *ev);
	void *arg;
};

static bool tell(void *arg, const struct db_event *row)
{
	struct event_tail *t = arg;
	json_t *payload = json_loads(row->payload, 0, NULL);
	struct event ev = {.seq = row->seq,
	                   .tenant = row->tenant,
	                   .sandbox_id = row->sandbox_id,
	                   .type = row->type,
	                   .payload = payload,
	                   .at_ms = row->at_ms};

	t->fn(t->arg, &ev);
	json_decref(payload);
	return true;
}

int events_tail(struct events *es, const char *tenant, const char *sandbox_id, int64_t n,
                void (*fn)(void *arg, const struct event *ev), void *arg, struct err *e)
{
	struct event_tail t = {.fn = fn, .arg = arg};

	return db_events_tail(es->db, tenant, sandbox_id, n, tell, &t, e);
}

void events_listen(struct events *es, struct event_listener *l)
{
	l->next = es->listeners;
	l->prevp = &es->listeners;
	if (l->next)
		l->next->prevp = &l->next;
	es->listeners = l;
}

void events_unlisten(struct event_listener *l)
{
	if (!l->prevp)
		return;
	*l->prevp = l->next;
	if (l->next)
		l->next->prevp = l->prevp;
	l->prevp = NULL;
}
