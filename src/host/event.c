#include "host/event.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/macro.h"

enum {
	TRIM_EVERY = 500,
};

static bool read_seq(void *arg, struct db_row *row)
{
	*(int64_t *)arg = db_int(row, 0);
	return false;
}

int events_open(struct events *es, struct db *db, struct err *e)
{
	*es = (struct events){.db = db, .until_trim = TRIM_EVERY};
	return db_each(db, e, read_seq, &es->seq, "SELECT COALESCE(MAX(seq), 0) FROM events", "");
}

static void trim(struct events *es)
{
	es->until_trim = TRIM_EVERY;
	db_run(es->db, NULL, "DELETE FROM events WHERE seq <= ? AND type GLOB 'net.*'", "i",
	       es->seq - EVENTS_NET_KEPT);
	db_run(es->db, NULL,
	       "DELETE FROM events WHERE type NOT GLOB 'net.*' AND seq <="
	       " (SELECT seq FROM events WHERE type NOT GLOB 'net.*'"
	       " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
	       "i", (int64_t)EVENTS_KEPT);
}

void events_trim(struct events *es, const char *sandbox_id, const char *type, unsigned keep)
{
	db_run(es->db, NULL,
	       "DELETE FROM events WHERE sandbox_id = ? AND type = ? AND seq <="
	       " (SELECT seq FROM events WHERE sandbox_id = ? AND type = ?"
	       " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
	       "tttti", sandbox_id, type, sandbox_id, type, (int64_t)keep);
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
	struct event_listener *l, *next;
	struct err e;

	if (db_run(es->db, &e,
	           "INSERT INTO events(seq, tenant, sandbox_id, type, payload, at)"
	           " VALUES(?, ?, ?, ?, ?, ?)",
	           "itttti", ev.seq, tenant, sandbox_id, type, text ? text : "",
	           (int64_t)ev.at_ms) < 0)
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

struct tail {
	void (*fn)(void *arg, const struct event *ev);
	void *arg;
};

static bool tell(void *arg, struct db_row *row)
{
	struct tail *t = arg;
	json_t *payload = json_loads(db_text(row, 4), 0, NULL);
	struct event ev = {.seq = db_int(row, 0),
	                   .tenant = db_text(row, 1),
	                   .sandbox_id = db_text(row, 2),
	                   .type = db_text(row, 3),
	                   .payload = payload,
	                   .at_ms = (uint64_t)db_int(row, 5)};

	t->fn(t->arg, &ev);
	json_decref(payload);
	return true;
}

int events_tail(struct events *es, const char *tenant, const char *sandbox_id, int64_t n,
                void (*fn)(void *arg, const struct event *ev), void *arg, struct err *e)
{
	struct tail t = {.fn = fn, .arg = arg};

	if (sandbox_id)
		return db_each(es->db, e, tell, &t,
		               "SELECT * FROM (SELECT seq, tenant, sandbox_id, type, payload, at"
		               " FROM events WHERE sandbox_id = ? AND (? IS NULL OR tenant = ?)"
		               " ORDER BY seq DESC LIMIT ?) AS t ORDER BY seq",
		               "ttti", sandbox_id, tenant, tenant, n);
	return db_each(
	    es->db, e, tell, &t,
	    "SELECT * FROM (SELECT seq, tenant, sandbox_id, type, payload, at FROM events"
	    " WHERE ? IS NULL OR tenant = ? ORDER BY seq DESC LIMIT ?) AS t ORDER BY seq",
	    "tti", tenant, tenant, n);
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
