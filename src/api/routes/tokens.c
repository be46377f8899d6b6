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
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/shares.h"
#include "host/disk_use.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "template/depot.h"

static json_t *scopes(const struct rights *r)
{
	char words[SCOPES_MAX], *save = NULL;
	json_t *list = json_array();

	rights_print(r, words);
	for (char *w = strtok_r(words, ",", &save); w; w = strtok_r(NULL, ",", &save))
		json_array_append_new(list, json_string(w));
	return list;
}

static json_t *text_or_null(const char *s)
{
	return *s ? json_string(s) : json_null();
}

static json_t *time_or_null(uint64_t ms)
{
	return ms ? json_time(ms) : json_null();
}

static json_t *show(const struct token *t)
{
	return json_pack("{s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:o}", "prefix", t->prefix, "label",
	                 t->label, "created_at", json_time(t->created_ms), "tenant",
	                 t->tenant->name, "scopes", scopes(&t->rights), "quota",
	                 quota_json(&t->quota, t->rate_per_s), "expires_at",
	                 time_or_null(t->rights.expires_ms), "made_by", text_or_null(t->maker));
}

/* The caller's; without a token (stub_auth) an admin's. */
static struct rights rights_of(const struct call *c)
{
	const struct token *t = *c->token ? token_by_prefix(c->api, c->token) : NULL;

	return t ? t->rights : (struct rights){.level = LEVEL_ADMIN};
}

static bool is_own(const struct call *c, const struct token *t)
{
	return *c->token && token_descends(c->api, t, c->token);
}

static bool may_see(const struct call *c, const struct token *t)
{
	return c->admin || is_own(c, t) || (!*c->only && strcmp(t->tenant->name, c->tenant) == 0);
}

/* NULL: answered with 404. */
static struct token *token_asked(struct call *c)
{
	struct token *t = token_by_prefix(c->api, c->param[0]);

	if (t && may_see(c, t))
		return t;
	call_fail(c, ENOENT, "token_not_found", "token not found: %.16s", c->param[0]);
	return NULL;
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
	struct rights rights;
	struct quota quota;
	unsigned rate_per_s;
};

/* What says nothing is as wide as its maker, but for scope admin. */
static bool wish_scopes(struct call *c, const struct rights *mine, struct wish *w)
{
	const json_t *list = json_object_get(c->body, "scopes"), *v;
	bool fine = json_array_size(list) > 0, level = false;
	size_t i;

	w->rights =
	    (struct rights){.level = mine->level == LEVEL_ADMIN ? LEVEL_SANDBOX : mine->level};
	memcpy(w->rights.only, mine->only, sizeof(mine->only));
	if (!list || json_is_null(list))
		return true;
	w->rights = (struct rights){.level = LEVEL_READ};
	json_array_foreach(list, i, v) {
		const char *s = json_string_value(v);

		fine &= s && rights_word(s, &w->rights);
		level |= s && strncmp(s, "sandbox:", 8) != 0;
	}
	if (!level)
		w->rights.level = LEVEL_SANDBOX;
	fine &= !(*w->rights.only && w->rights.level == LEVEL_ADMIN);
	if (!fine)
		call_fail(c, EINVAL, "bad_request",
		          "field 'scopes' must be [\"sandbox\"], [\"exec\"], [\"read\"] or "
		          "[\"admin\"]; \"sandbox:<id>\" beside one of the first three, or alone, "
		          "is for one sandbox");
	return fine;
}

/* "ttl_seconds", or "expires_at" as it is shown. */
static bool wish_end(struct call *c, const struct rights *mine, struct wish *w)
{
	const char *at;
	uint64_t ms = 0;
	int64_t ttl;

	if (!call_int(c, "ttl_seconds", 0, 1, SPEC_SECONDS_MAX, &ttl) ||
	    !call_str(c, "expires_at", NULL, &at))
		return false;
	if (at && (ttl || !parse_since(at, &ms) || ms <= wall_ms())) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'expires_at' must be a time to come, as 2026-01-31T00:00:00Z, "
		          "without 'ttl_seconds'");
		return false;
	}
	w->rights.expires_ms = at ? ms : ttl ? wall_ms() + (uint64_t)ttl * 1000 : mine->expires_ms;
	return true;
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
	    !limit(c, q, "disk_mb", (uint64_t)1 << 40, &w->quota.disk_mb) ||
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
	struct rights rights = rights_of(c);
	struct wish w = {.tenant = c->tenant};
	char text[TOKEN_TEXT + 1];
	struct err e;
	json_t *j;

	if (!call_str(c, "name", "", &w.label) || !call_str(c, "label", w.label, &w.label) ||
	    !call_str(c, "tenant", c->tenant, &w.tenant) || !wish_scopes(c, &rights, &w) ||
	    !wish_end(c, &rights, &w) || !wish_quota(c, &w))
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
	if (!c->admin && (w.rights.level == LEVEL_ADMIN || wants(c, "quota") ||
	                  strcmp(w.tenant, c->tenant) != 0)) {
		call_fail(c, EPERM, "forbidden",
		          "scope admin, another tenant or a quota need a token with scope admin");
		return;
	}
	if (!rights_within(&w.rights, &rights)) {
		call_fail(c, EPERM, "forbidden",
		          "a token makes none that may do more, or for longer, than it may");
		return;
	}
	if (*w.rights.only && !host_find(c->host, w.tenant, w.rights.only)) {
		call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found: %.64s",
		          w.rights.only);
		return;
	}
	if (!c->admin && mine) {
		w.quota = mine->quota;
		w.rate_per_s = mine->rate_per_s;
	}
	if (token_add(c->api, w.tenant, w.label, c->token, &w.rights, &w.quota, w.rate_per_s, text,
	              &t, &e) < 0) {
		call_error(c, &e);
		return;
	}
	j = show(t);
	if (j)
		json_object_set_new(j, "token", json_string(text));
	call_json(c, 200, j);
}

/* ---- revoke, rotate ---- */

/* Would there be no way back in? */
static bool last_admins(struct call *c, const struct token *t, bool cascade)
{
	const struct token *other = NULL;

	while ((other = token_next(c->api, (struct token *)other)))
		if (other->rights.level == LEVEL_ADMIN && !other->rights.expires_ms && other != t &&
		    !(cascade && token_descends(c->api, other, t->prefix)))
			return false;
	return true;
}

void tokens_delete(struct call *c)
{
	autofree char *keep = call_query(c, "cascade");
	bool cascade = !keep || call_query_flag(c, "cascade");
	struct token *t = token_asked(c);
	struct err e;

	if (!t)
		return;
	if (t->rights.level == LEVEL_ADMIN && !c->admin) {
		call_fail(c, EPERM, "forbidden", "only an admin revokes a token with scope admin");
		return;
	}
	if (!is_own(c, t) && rights_of(c).level < LEVEL_SANDBOX) {
		call_fail(c, EPERM, "forbidden", "this needs a token with scope sandbox");
		return;
	}
	if (last_admins(c, t, cascade)) {
		call_fail(
		    c, EBUSY, "conflict",
		    last_admins(c, t, false)
			? "this is the last token with scope admin: make another one first"
			: "the last token with scope admin was made with this one and would go "
			  "with it: rotate this one, or keep what it made with ?cascade=0");
		return;
	}
	if (token_remove(c->api, t, cascade, &e) < 0)
		call_error(c, &e);
	else
		call_empty(c, 204);
}

void tokens_rotate(struct call *c)
{
	struct token *t = token_asked(c);
	char text[TOKEN_TEXT + 1];
	struct err e;
	json_t *j;

	if (!t)
		return;
	/* The answer is the secret of another token. */
	if (!c->admin && !is_own(c, t)) {
		call_fail(c, EPERM, "forbidden",
		          "a token rotates itself and those it made; others need scope admin");
		return;
	}
	if (token_rotate(c->api, t, text, &e) < 0) {
		call_error(c, &e);
		return;
	}
	j = show(t);
	if (j)
		json_object_set_new(j, "token", json_string(text));
	call_json(c, 200, j);
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
		if (strcmp(sb->tenant, c->tenant) == 0 && sb->state != SANDBOX_KILLING &&
		    (!*c->only || strcmp(sb->id, c->only) == 0)) {
			sandboxes++;
			memory_mb += sb->state == SANDBOX_HIBERNATED ? 0 : sb->memory_mb;
		}
	(void)host_snapshots(c->host, c->tenant, NULL, count_snapshot, &snapshots, NULL);
	volume_usage(c->host, c->tenant, &volumes, &volumes_mb);
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "sandboxes",
	                 (json_int_t)sandboxes, "memory_mb", (json_int_t)memory_mb, "snapshots",
	                 (json_int_t)snapshots, "volumes", (json_int_t)volumes, "volumes_mb",
	                 (json_int_t)volumes_mb, "disk_mb",
	                 (json_int_t)(disk_use_of(c->host, c->tenant) >> 20), "held_bytes",
	                 (json_int_t)c->account->held, "events",
	                 (json_int_t)share_of(&c->host->events.life, c->tenant), "net_events",
	                 (json_int_t)share_of(&c->host->events.net, c->tenant), "audit_entries",
	                 (json_int_t)share_of(&c->api->audit.shares, c->tenant));
}

/* What the config says of each tenant, or of disk_mb its quota. */
static json_t *limits(const struct call *c)
{
	const struct api_config *api = &c->api->config;
	const struct events_config *events = &c->host->config.events;

	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "disk_mb",
	                 (json_int_t)(disk_use_max(c->host, &c->quota) >> 20), "held_bytes",
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
	struct rights rights = rights_of(c);

	call_json(
	    c, 200,
	    json_pack("{s:s, s:s, s:n, s:[], s:s, s:s, s:o, s:o, s:o, s:{s:i, s:i}, s:o, s:o}",
	              "user_id", c->tenant, "email", "", "current_org", "orgs", "auth_method",
	              c->token[0] ? "token" : "stub", "tenant", c->tenant, "scopes",
	              scopes(&rights), "expires_at", time_or_null(rights.expires_ms), "quota",
	              quota_json(&c->quota, rate), "share", "cpu_percent",
	              (int)c->host->config.tenant_cpu_percent, "sandbox_cpu_percent",
	              (int)c->host->config.sandbox_cpu_percent, "limits", limits(c), "usage",
	              usage(c)));
}
