/*
 * api/routes/tokens.c - tokens, and who one is with one of them
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/account.h"
#include "base/err.h"
#include "base/shares.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "template/depot.h"

static json_t *scopes(bool admin)
{
	return admin ? json_pack("[s, s]", "admin", "sandbox") : json_pack("[s]", "sandbox");
}

static json_t *show(const struct token *t)
{
	return json_pack("{s:s, s:s, s:o, s:s, s:o, s:o}", "prefix", t->prefix, "label", t->label,
	                 "created_at", json_time(t->created_ms), "tenant", t->tenant->name,
	                 "scopes", scopes(t->admin), "quota", quota_json(&t->quota, t->rate_per_s));
}

static bool may_see(const struct call *c, const struct token *t)
{
	return c->admin || strcmp(t->tenant->name, c->tenant) == 0;
}

void tokens_list(struct call *c)
{
	json_t *list = json_array();
	struct token *t = NULL;

	while ((t = token_next(c->api, t)))
		if (may_see(c, t))
			json_array_append_new(list, show(t));
	call_json(c, 200, json_pack("{s:o}", "items", list));
}

/* ---- create ---- */

struct wish {
	const char *label, *tenant;
	bool admin;
	struct quota quota;
	unsigned rate_per_s;
};

static bool wish_scopes(struct call *c, struct wish *w)
{
	const json_t *list = json_object_get(c->body, "scopes"), *v;
	bool fine = json_array_size(list) > 0;
	size_t i;

	if (!list || json_is_null(list))
		return true;
	json_array_foreach(list, i, v) {
		const char *s = json_string_value(v);
		bool admin = s && strcmp(s, "admin") == 0;

		w->admin |= admin;
		fine &= admin || (s && strcmp(s, "sandbox") == 0);
	}
	if (!fine)
		call_fail(c, EINVAL, "bad_request",
		          "field 'scopes' must be [\"sandbox\"] or [\"admin\"]");
	return fine;
}

static bool limit(struct call *c, const json_t *quota, const char *key, uint64_t max, uint64_t *ret)
{
	const json_t *v = json_object_get(quota, key);

	if (!v || json_is_null(v))
		return true;
	if (!json_is_integer(v) || json_integer_value(v) < 0 ||
	    (uint64_t)json_integer_value(v) > max) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'quota.%s' must be a whole number from 0 (no limit) to %" PRIu64,
		          key, max);
		return false;
	}
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

static bool wish_quota(struct call *c, struct wish *w)
{
	const json_t *q = json_object_get(c->body, "quota");
	uint64_t rate = 0;

	if (!q || json_is_null(q))
		return true;
	if (!json_is_object(q)) {
		call_fail(c, EINVAL, "bad_request", "field 'quota' must be an object");
		return false;
	}
	if (!limit(c, q, "sandboxes", 1000000, &w->quota.sandboxes) ||
	    !limit(c, q, "memory_mb", (uint64_t)1 << 32, &w->quota.memory_mb) ||
	    !limit(c, q, "snapshots", 1000000, &w->quota.snapshots) ||
	    !limit(c, q, "volumes", 1000000, &w->quota.volumes) ||
	    !limit(c, q, "volumes_mb", (uint64_t)1 << 40, &w->quota.volumes_mb) ||
	    !limit(c, q, "requests_per_s", 1000000, &rate))
		return false;
	w->rate_per_s = (unsigned)rate;
	return true;
}

static bool wants(const struct call *c, const char *key)
{
	const json_t *v = json_object_get(c->body, key);

	return v && !json_is_null(v);
}

void tokens_create(struct call *c)
{
	struct token *mine = c->token[0] ? token_by_prefix(c->api, c->token) : NULL, *t;
	struct wish w = {.tenant = c->tenant};
	char text[TOKEN_TEXT + 1];
	struct err e;
	json_t *j;

	if (!call_str(c, "name", "", &w.label) || !call_str(c, "label", w.label, &w.label) ||
	    !call_str(c, "tenant", c->tenant, &w.tenant) || !wish_scopes(c, &w) ||
	    !wish_quota(c, &w))
		return;
	if (strlen(w.label) > TOKEN_LABEL_MAX) {
		call_fail(c, EINVAL, "bad_request", "field 'label' is longer than %d bytes",
		          TOKEN_LABEL_MAX);
		return;
	}
	if (!tenant_name_valid(w.tenant)) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'tenant' must have 1 to %d letters, digits, '.', '_', '-' or '@'",
		          TENANT_MAX);
		return;
	}
	/* What one may do, one may share; more needs an admin. */
	if (!c->admin && (w.admin || wants(c, "quota") || strcmp(w.tenant, c->tenant) != 0)) {
		call_fail(c, EPERM, "forbidden",
		          "scope admin, another tenant or a quota need a token with scope admin");
		return;
	}
	if (!c->admin && mine) {
		w.quota = mine->quota;
		w.rate_per_s = mine->rate_per_s;
	}
	if (token_add(c->api, w.tenant, w.label, w.admin, &w.quota, w.rate_per_s, text, &t, &e) <
	    0) {
		call_error(c, &e);
		return;
	}
	j = show(t);
	if (j)
		json_object_set_new(j, "token", json_string(text));
	call_json(c, 200, j);
}

void tokens_delete(struct call *c)
{
	struct token *t = token_by_prefix(c->api, c->param[0]), *other = NULL;
	unsigned admins = 0;
	struct err e;

	if (!t || !may_see(c, t)) {
		call_fail(c, ENOENT, "token_not_found", "token not found: %.16s", c->param[0]);
		return;
	}
	if (t->admin && !c->admin) {
		call_fail(c, EPERM, "forbidden", "only an admin revokes a token with scope admin");
		return;
	}
	while ((other = token_next(c->api, other)))
		admins += other->admin;
	if (t->admin && admins == 1) {
		call_fail(c, EBUSY, "conflict",
		          "this is the last token with scope admin: make another one first");
		return;
	}
	if (token_remove(c->api, t, &e) < 0)
		call_error(c, &e);
	else
		call_empty(c, 204);
}

/* ---- me ---- */

static bool count_snapshot(void *arg, const struct host_snapshot *s)
{
	(void)s;
	++*(uint64_t *)arg;
	return true;
}

static uint64_t share_of(struct shares *s, const char *tenant)
{
	const struct share *of = shares_of(s, tenant);

	return of ? of->n : 0;
}

static json_t *usage(struct call *c)
{
	uint64_t sandboxes = 0, memory_mb = 0, snapshots = 0, volumes, volumes_mb;

	for (struct sandbox *sb = c->host->newest; sb; sb = sb->next)
		if (strcmp(sb->tenant, c->tenant) == 0 && sb->state != SANDBOX_KILLING) {
			sandboxes++;
			memory_mb += sb->state == SANDBOX_HIBERNATED ? 0 : sb->memory_mb;
		}
	(void)host_snapshots(c->host, c->tenant, NULL, count_snapshot, &snapshots, NULL);
	volume_usage(c->host, c->tenant, &volumes, &volumes_mb);
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "sandboxes",
	                 (json_int_t)sandboxes, "memory_mb", (json_int_t)memory_mb, "snapshots",
	                 (json_int_t)snapshots, "volumes", (json_int_t)volumes, "volumes_mb",
	                 (json_int_t)volumes_mb, "held_bytes", (json_int_t)c->account->held,
	                 "events", (json_int_t)share_of(&c->host->events.life, c->tenant),
	                 "net_events", (json_int_t)share_of(&c->host->events.net, c->tenant),
	                 "audit_entries", (json_int_t)share_of(&c->api->audit.shares, c->tenant));
}

/* What the config says of each tenant. */
static json_t *limits(const struct call *c)
{
	const struct api_config *api = &c->api->config;
	const struct events_config *events = &c->host->config.events;

	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "held_bytes",
	                 (json_int_t)api->held_per_tenant, "events",
	                 (json_int_t)events->kept_per_tenant, "net_events_per_s",
	                 (json_int_t)events->net_per_s_per_tenant, "audit_entries",
	                 (json_int_t)api->audit_kept_per_tenant, "requests_burst",
	                 (json_int_t)api->rate_burst);
}

void me_get(struct call *c)
{
	struct token *t = c->token[0] ? token_by_prefix(c->api, c->token) : NULL;
	unsigned rate = t && t->rate_per_s ? t->rate_per_s : c->api->config.rate_per_s;

	call_json(c, 200,
	          json_pack("{s:s, s:s, s:n, s:[], s:s, s:s, s:o, s:o, s:{s:i, s:i}, s:o, s:o}",
	                    "user_id", c->tenant, "email", "", "current_org", "orgs", "auth_method",
	                    c->token[0] ? "token" : "stub", "tenant", c->tenant, "scopes",
	                    scopes(c->admin), "quota", quota_json(&c->quota, rate), "share",
	                    "cpu_percent", (int)c->host->config.tenant_cpu_percent,
	                    "sandbox_cpu_percent", (int)c->host->config.sandbox_cpu_percent,
	                    "limits", limits(c), "usage", usage(c)));
}
