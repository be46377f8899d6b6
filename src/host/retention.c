/*
 * host/retention.c - how long snapshots are kept
 * Three rules, of the host's configuration or of the sandbox they are of: the last so many of a
 * sandbox, so long, so much of a tenant. What has a name was meant to stay, and no rule takes it.
 * A rule deletes as a user would (host_snapshot_delete()): what a crash leaves, the next start
 * finishes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "template/depot.h"

/* Those that go, found first: a list must not be changed while it is read. */
struct going {
	const struct host_snapshot *kept; /* the one just taken never goes; NULL: none was */
	uint64_t keep, seen;              /* how many stay; 0: all */
	uint64_t bytes_max, bytes;
	uint64_t now_ms, next_ms; /* next_ms: when the next one's time is up; 0: never */
	const char *why;
	struct victim {
		char id[SANDBOX_ID + 1], tenant[TENANT_MAX + 1], sandbox_id[SANDBOX_ID + 1];
	} * at;
	size_t n, room;
};

static bool goes(struct going *g, const struct host_snapshot *s)
{
	if (g->n == g->room) {
		size_t room = g->room ? 2 * g->room : 16;
		void *bigger = reallocarray(g->at, room, sizeof(*g->at));

		if (!bigger)
			return false; /* the others next time */
		g->at = bigger;
		g->room = room;
	}
	memcpy(g->at[g->n].id, s->id, sizeof(s->id));
	memcpy(g->at[g->n].tenant, s->tenant, sizeof(s->tenant));
	memcpy(g->at[g->n].sandbox_id, s->sandbox_id, sizeof(s->sandbox_id));
	g->n++;
	return true;
}

static void gone(void *arg, const struct err *e, struct sandbox *sb)
{
	if (e)
		log_warn("a snapshot that is not to be kept stays why=\"%s\"", e->text);
}

static void drop(struct host *h, struct going *g)
{
	for (size_t i = 0; i < g->n; i++) {
		const struct victim *v = &g->at[i];

		log_info("snapshot goes snapshot=%s sandbox=%s why=\"%s\"", v->id, v->sandbox_id,
		         g->why);
		event_emit(&h->events, v->tenant, v->sandbox_id, "snapshot.expired",
		           json_pack("{s:s, s:s}", "snapshot_id", v->id, "reason", g->why));
		host_snapshot_delete(h, v->tenant, v->id, gone, NULL);
	}
	free(g->at);
}

static bool too_many(void *arg, const struct host_snapshot *s)
{
	struct going *g = arg;

	return s->name[0] || ++g->seen <= g->keep || goes(g, s);
}

static bool stays(const struct going *g, const struct host_snapshot *s)
{
	return s->name[0] || !strcmp(s->id, g->kept->id);
}

static bool count(void *arg, const struct host_snapshot *s)
{
	struct going *g = arg;

	g->bytes += stays(g, s) ? s->size_bytes : 0;
	return true;
}

/* What stays is counted already; of the others, the newest for which there is room. */
static bool too_much(void *arg, const struct host_snapshot *s)
{
	struct going *g = arg;

	if (stays(g, s))
		return true;
	if (g->bytes + s->size_bytes > g->bytes_max)
		return goes(g, s);
	g->bytes += s->size_bytes;
	return true;
}

static bool too_old(void *arg, const struct host_snapshot *s)
{
	struct going *g = arg;

	if (!s->expires_ms)
		return true;
	if (s->expires_ms <= g->now_ms)
		return goes(g, s);
	if (!g->next_ms || s->expires_ms < g->next_ms)
		g->next_ms = s->expires_ms;
	return true;
}

uint64_t retain_until(const struct host *h, const struct sandbox_spec *spec, const char *name,
                      uint64_t now_ms)
{
	int64_t age_s = spec->snapshots_max_age_s < 0 ? h->config.snapshots_max_age_s
	                                              : spec->snapshots_max_age_s;

	return name[0] || age_s <= 0 ? 0 : now_ms + (uint64_t)age_s * 1000;
}

void retain_after(struct host *h, const struct sandbox_spec *spec, const struct host_snapshot *s)
{
	struct going many = {.why = "newer ones are kept"}, much = {.kept = s};

	if (s->expires_ms && (!h->expires_ms || s->expires_ms < h->expires_ms))
		h->expires_ms = s->expires_ms;
	many.keep =
	    (uint64_t)(spec->snapshots_keep < 0 ? h->config.snapshots_keep : spec->snapshots_keep);
	if (many.keep) {
		host_snapshots(h, s->tenant, s->sandbox_id, too_many, &many, NULL);
		drop(h, &many);
	}
	much.why = "all of its owner are larger than is kept";
	much.bytes_max = h->config.snapshots_total;
	if (much.bytes_max) {
		host_snapshots(h, s->tenant, NULL, count, &much, NULL);
		host_snapshots(h, s->tenant, NULL, too_much, &much, NULL);
		drop(h, &much);
	}
}

void retain_sweep(struct host *h)
{
	struct going old = {.why = "its time is up", .now_ms = wall_ms()};

	if (!h->expires_ms || old.now_ms < h->expires_ms)
		return;
	host_snapshots(h, NULL, NULL, too_old, &old, NULL);
	h->expires_ms = old.next_ms;
	drop(h, &old);
}
