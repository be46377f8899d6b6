/*
 * api/audit.c - the changes that clients made, on record
 * Records are collected and written once a second in one transaction, so no request pays for them;
 * a kill -9 can cost the last second. At a clean end all are written.
 */
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "db/audit.h"
#include "db/db.h"
#include "host/host.h"
#include "http/server.h"

enum {
	FLUSH_MS = 1000,
	TRIM_EVERY = 4096,
};

static void due(void *arg)
{
	audit_flush(arg);
}

void audit_note(struct api *a, const struct call *c, const struct http_req *r, int status)
{
	struct audit *q = &a->audit;
	struct audit_entry *at;
	/* The path of a signed link is a secret, what it leads to is not. */
	bool secret = c->route && c->route->run == proxy_signed;

	if (!q->queue)
		q->queue = calloc(AUDIT_QUEUE_MAX, sizeof(*q->queue));
	if (!q->queue)
		return;
	if (q->n == AUDIT_QUEUE_MAX)
		audit_flush(a);
	at = &q->queue[q->n++];
	snprintf(at->tenant, sizeof(at->tenant), "%s", c->tenant);
	snprintf(at->actor, sizeof(at->actor), "%s", c->token);
	snprintf(at->request_id, sizeof(at->request_id), "%s", c->request_id);
	snprintf(at->method, sizeof(at->method), "%s", http_method(r));
	snprintf(at->path, sizeof(at->path), "%s", secret ? c->route->path : http_path(r));
	at->status = status;
	at->at_ms = wall_ms();
	if (!q->timer.slot) {
		q->timer.fn = due;
		q->timer.arg = a;
		(void)loop_timer_set(a->host->loop, &q->timer,
		                     loop_now_ms(a->host->loop) + FLUSH_MS);
	}
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
		                                       .at_ms = at->at_ms},
		                    e);
	}
	if (r == 0 && q->until_trim < q->n)
		r = db_audit_trim(db, AUDIT_KEPT, e);
	if (r == 0)
		return db_commit(db, e);
	db_rollback(db);
	return r;
}

void audit_flush(struct api *a)
{
	struct audit *q = &a->audit;
	struct err e = {0};

	loop_timer_clear(a->host->loop, &q->timer);
	if (q->n == 0)
		return;
	if (write_all(a, &e) < 0)
		log_error("audit records lost count=%zu why=%s", q->n, e.text);
	q->until_trim = q->until_trim < q->n ? TRIM_EVERY : q->until_trim - (unsigned)q->n;
	q->n = 0;
}
