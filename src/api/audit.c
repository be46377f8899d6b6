/*
 * api/audit.c - the changes that clients made, on record
 * Records are collected and written once a second in one transaction, so no request pays for them;
 * a kill -9 can cost the last second. At a clean end all are written. Requests that no valid token
 * vouches for cost strangers nothing, so they are only counted, and the counts are written once a
 * minute.
 */
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/shares.h"
#include "db/audit.h"
#include "db/db.h"
#include "host/host.h"
#include "http/server.h"

enum {
	FLUSH_MS = 1000,
	MINUTE_MS = 60000,
};

static bool count(void *arg, const char *tenant, uint64_t n)
{
	struct shares *s = arg;
	struct share *of = shares_of(s, tenant);

	if (of)
		shares_add(s, of, n);
	return true;
}

int audit_open(struct api *a, struct err *e)
{
	a->audit.shares =
	    (struct shares){.each = a->config.audit_kept_per_tenant, .all = a->config.audit_kept};
	return db_audit_counts(a->host->db, count, &a->audit.shares, e);
}

void audit_close(struct api *a)
{
	audit_flush(a);
	free(take_ptr(a->audit.queue));
	free(take_ptr(a->audit.strangers));
	shares_free(&a->audit.shares);
}

static void write_queue(struct api *a);

static void due(void *arg)
{
	struct api *a = arg;

	if (a->audit.nstrangers && a->audit.minute_ms <= loop_now_ms(a->host->loop))
		audit_flush(a);
	else
		write_queue(a);
}

static void wake_at(struct api *a, uint64_t at_ms)
{
	struct loop_timer *t = &a->audit.timer;

	t->fn = due;
	t->arg = a;
	if (!t->slot || t->at_ms > at_ms)
		(void)loop_timer_set(a->host->loop, t, at_ms);
}

static void fill(struct audit_entry *at, const struct call *c, const struct http_req *r, int status)
{
	/* The path of a signed link is a secret, what it leads to is not. */
	bool secret = c->route && c->route->run == proxy_signed;

	*at = (struct audit_entry){.status = status, .at_ms = wall_ms(), .count = 1};
	snprintf(at->actor, sizeof(at->actor), "%s", c->token);
	snprintf(at->request_id, sizeof(at->request_id), "%s", c->request_id);
	snprintf(at->method, sizeof(at->method), "%s", http_method(r));
	snprintf(at->path, sizeof(at->path), "%s", secret ? c->route->path : http_path(r));
	snprintf(at->address, sizeof(at->address), "%s", http_peer(r));
}

/* The last place in the queue is free; whoever takes it has counted n up. */
static struct audit_entry *place(struct api *a)
{
	struct audit *q = &a->audit;

	if (!q->queue)
		q->queue = calloc(AUDIT_QUEUE_MAX, sizeof(*q->queue));
	if (!q->queue)
		return NULL;
	if (q->n == AUDIT_QUEUE_MAX)
		write_queue(a);
	return &q->queue[q->n];
}

void audit_note(struct api *a, const struct call *c, const struct http_req *r, int status)
{
	struct audit_entry *at = place(a);

	if (!at)
		return;
	fill(at, c, r, status);
	snprintf(at->tenant, sizeof(at->tenant), "%s", c->tenant);
	a->audit.n++;
	wake_at(a, loop_now_ms(a->host->loop) + FLUSH_MS);
}

void audit_stranger(struct api *a, const struct call *c, const struct http_req *r, int status)
{
	struct audit *q = &a->audit;
	const char *address = http_peer(r);
	struct audit_entry *at;

	if (!q->strangers)
		q->strangers = calloc(AUDIT_STRANGERS, sizeof(*q->strangers));
	if (!q->strangers)
		return;
	for (size_t i = 0; i < q->nstrangers; i++) {
		at = &q->strangers[i];
		if ((at->status == status && strcmp(at->address, address) == 0) ||
		    i == AUDIT_STRANGERS - 1) {
			at->count++;
			return;
		}
	}
	if (!q->nstrangers)
		q->minute_ms = loop_now_ms(a->host->loop) + MINUTE_MS;
	at = &q->strangers[q->nstrangers++];
	fill(at, c, r, status);
	if (q->nstrangers == AUDIT_STRANGERS)
		snprintf(at->address, sizeof(at->address), "others");
	wake_at(a, q->minute_ms);
}

static int write_all(struct api *a, struct err *e)
{
	struct audit *q = &a->audit;
	struct db *db = a->host->db;
	int r = db_begin(db, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < q->n && r == 0; i++) {
		const struct audit_entry *at = &q->queue[i];

		r = db_audit_insert(db,
		                    &(struct db_audit){.tenant = at->tenant,
		                                       .actor = at->actor,
		                                       .request_id = at->request_id,
		                                       .method = at->method,
		                                       .path = at->path,
		                                       .status = at->status,
		                                       .at_ms = at->at_ms,
		                                       .address = at->address,
		                                       .count = at->count},
		                    e);
	}
	if (r == 0)
		return db_commit(db, e);
	db_rollback(db);
	return r;
}

static void trim(struct api *a)
{
	struct shares *s = &a->audit.shares;
	struct share *of;
	uint64_t n;

	/* Twice as many as one transaction adds at most; what is above goes next time. */
	for (int i = 0; i < 2 && (of = shares_over(s, &n)); i++)
		if (db_audit_drop(a->host->db, of->name, (int64_t)n, NULL) == 0)
			shares_gone(s, of, n);
}

static void write_queue(struct api *a)
{
	struct audit *q = &a->audit;
	struct err e = {0};

	loop_timer_clear(a->host->loop, &q->timer);
	if (q->nstrangers)
		wake_at(a, q->minute_ms);
	if (q->n == 0)
		return;
	if (write_all(a, &e) < 0)
		log_error("audit records lost count=%zu why=%s", q->n, e.text);
	else
		for (size_t i = 0; i < q->n; i++)
			count(&q->shares, q->queue[i].tenant, 1);
	q->n = 0;
	trim(a);
}

void audit_flush(struct api *a)
{
	struct audit *q = &a->audit;
	size_t n = q->nstrangers;
	struct audit_entry *at;

	q->nstrangers = 0;
	for (size_t i = 0; i < n; i++)
		if ((at = place(a))) {
			*at = q->strangers[i];
			q->n++;
		}
	write_queue(a);
}
