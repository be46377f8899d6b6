#include "host/event.h"

#include <stdlib.h>
#include <string.h>

#include "base/bucket.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/shares.h"
#include "db/db.h"
#include "db/events.h"

enum {
	FLUSH_MS = 1000,
};

struct event_waiting {
	int64_t seq;
	char *tenant, *sandbox_id, *type, *payload;
	uint64_t at_ms;
};

static struct shares *shares_for(struct events *es, bool net)
{
	return net ? &es->net : &es->life;
}

static bool count(void *arg, const char *tenant, bool net, uint64_t n)
{
	struct shares *s = shares_for(arg, net);
	struct share *of = shares_of(s, tenant);

	if (of)
		shares_add(s, of, n);
	return true;
}

static void flush(struct events *es);

static void due(void *arg)
{
	flush(arg);
}

int events_open(struct events *es, struct loop *loop, struct db *db,
                const struct events_config *config, struct err *e)
{
	int r;

	*es = (struct events){.loop = loop, .db = db, .config = *config};
	es->life = (struct shares){.each = config->kept_per_tenant, .all = config->kept};
	es->net = es->life;
	es->timer = (struct loop_timer){.fn = due, .arg = es};
	r = db_events_last(db, &es->seq, e);
	if (r == 0)
		r = db_events_counts(db, count, es, e);
	return r;
}

/* ---- the record ---- */

static void trim(struct events *es, bool net)
{
	struct shares *s = shares_for(es, net);
	struct share *of;
	uint64_t n;

	of = shares_over(s, &n);
	if (of && db_events_drop(es->db, of->name, net, (int64_t)n, NULL) == 0)
		shares_gone(s, of, n);
}

static void written(struct events *es, const char *tenant, bool net)
{
	struct shares *s = shares_for(es, net);
	struct share *of = shares_of(s, tenant);

	if (of)
		shares_add(s, of, 1);
}

static int insert(struct events *es, const struct event_waiting *w, struct err *e)
{
	return db_event_insert(es->db,
	                       &(struct db_event){.seq = w->seq,
	                                          .tenant = w->tenant,
	                                          .sandbox_id = w->sandbox_id,
	                                          .type = w->type,
	                                          .payload = w->payload,
	                                          .at_ms = w->at_ms},
	                       e);
}

static int write_waiting(struct events *es, struct err *e)
{
	int r = db_begin(es->db, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < es->nwaiting && r == 0; i++)
		r = insert(es, &es->waiting[i], e);
	if (r == 0)
		return db_commit(es->db, e);
	db_rollback(es->db);
	return r;
}

static void flush(struct events *es)
{
	struct err e;
	bool ok;

	if (es->loop)
		loop_timer_clear(es->loop, &es->timer);
	if (!es->nwaiting)
		return;
	ok = write_waiting(es, &e) == 0;
	if (!ok)
		log_warn(
		    "events of the network not recorded, we go on without count=%zu why=\"%s\"",
		    es->nwaiting, e.text);
	for (size_t i = 0; i < es->nwaiting; i++) {
		struct event_waiting *w = &es->waiting[i];

		if (ok)
			written(es, w->tenant, true);
		free(w->tenant);
		free(w->sandbox_id);
		free(w->type);
		free(w->payload);
	}
	es->nwaiting = 0;
	trim(es, true);
}

void events_close(struct events *es)
{
	flush(es);
	free(take_ptr(es->waiting));
	shares_free(&es->life);
	shares_free(&es->net);
}

void events_trim(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                 unsigned keep)
{
	struct shares *s = shares_for(es, db_event_is_net(type));
	struct share *of = shares_of(s, tenant);
	uint64_t n;

	if (db_events_trim_type(es->db, sandbox_id, type, keep, &n, NULL) == 0 && of)
		shares_gone(s, of, n);
}

/* ---- what happens ---- */

static void tell_listeners(struct events *es, const struct event *ev)
{
	struct event_listener *l, *next;

	for (l = es->listeners; l; l = next) {
		next = l->next;
		l->fn(l->arg, ev);
	}
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
	bool net = db_event_is_net(type);
	struct err e;

	if (db_event_insert(es->db, &row, &e) < 0)
		log_warn("event not recorded, we go on without sandbox=%s type=%s why=\"%s\"",
		         sandbox_id, type, e.text);
	else
		written(es, tenant, net);
	tell_listeners(es, &ev);
	json_decref(payload);
	trim(es, net);
}

static bool take(struct bucket *b, unsigned per_s)
{
	return !per_s || bucket_take(b, mono_ms(), per_s, 2 * (uint64_t)per_s, 1);
}

/* A tenant's guests may make so many, so that they leave some of the host's to others. */
static bool may_emit(struct events *es, const char *tenant)
{
	struct share *of = shares_of(&es->net, tenant);

	return of && take(&of->rate, es->config.net_per_s_per_tenant) &&
	       take(&es->net_rate, es->config.net_per_s);
}

static void wait_for_record(struct events *es, const struct event *ev)
{
	struct event_waiting *w;
	char *text = ev->payload ? json_dumps(ev->payload, JSON_COMPACT) : strdup("");

	if (es->nwaiting == EVENTS_BATCH)
		flush(es);
	if (!es->waiting)
		es->waiting = calloc(EVENTS_BATCH, sizeof(*es->waiting));
	if (!es->waiting) {
		free(text);
		return;
	}
	w = &es->waiting[es->nwaiting];
	*w = (struct event_waiting){.seq = ev->seq,
	                            .tenant = strdup(ev->tenant),
	                            .sandbox_id = strdup(ev->sandbox_id),
	                            .type = strdup(ev->type),
	                            .payload = text,
	                            .at_ms = ev->at_ms};
	if (!w->tenant || !w->sandbox_id || !w->type || !w->payload) {
		log_warn("event not recorded, there is no memory sandbox=%s type=%s",
		         ev->sandbox_id, ev->type);
		free(w->tenant);
		free(w->sandbox_id);
		free(w->type);
		free(w->payload);
		return;
	}
	es->nwaiting++;
	if (es->loop && !es->timer.slot)
		(void)loop_timer_set(es->loop, &es->timer, loop_now_ms(es->loop) + FLUSH_MS);
}

bool event_emit_net(struct events *es, const char *tenant, const char *sandbox_id, const char *type,
                    json_t *payload)
{
	struct event ev = {.tenant = tenant,
	                   .sandbox_id = sandbox_id,
	                   .type = type,
	                   .payload = payload,
	                   .at_ms = wall_ms()};
	bool ok = may_emit(es, tenant);

	if (ok) {
		ev.seq = ++es->seq;
		wait_for_record(es, &ev);
		tell_listeners(es, &ev);
	} else {
		es->net_dropped++;
	}
	json_decref(payload);
	return ok;
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

	flush(es);
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
