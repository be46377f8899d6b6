/*
 * api/routes/sandboxes.c - create, list, get, delete, and the steps of life between
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/checkpoint.h"
#include "host/host.h"
#include "host/network.h"
#include "host/sandbox.h"
#include "http/server.h"
#include "http/url.h"

/* ---- create ---- */

static void created(void *arg, const struct err *e, struct sandbox *sb)
{
	struct call *c = arg;

	if (e && e->kind && strcmp(e->kind, "template_not_found") == 0)
		call_error_as(c, 400, e); /* the path is fine, what it was given is not */
	else if (e)
		call_error(c, e);
	else if (!c->req)
		host_kill(c->host, sb, "its client went away", NULL, NULL);
	else
		call_json(c, 201, show_sandbox(c->host, sb));
	call_drop(c);
}

void sandbox_create(struct call *c)
{
	struct sandbox_spec spec;
	struct err e;

	if (!spec_parse(c->body, &spec, &e)) {
		call_error(c, &e);
		return;
	}
	host_create(c->host, c->tenant, &spec, &c->quota, created, call_hold(c));
	spec_fini(&spec);
}

/* ---- list, get ---- */

/* Every "metadata.<key>=<value>" of the query must be so. */
static bool metadata_fits(const char *query, const struct sandbox *sb)
{
	bool fits = true;

	while (fits && *query) {
		size_t n = strcspn(query, "&"), k = strcspn(query, "=&");
		autofree char *key = NULL, *value = NULL;

		if (url_decode(query, k, 1, &key) == 0 && strncmp(key, "metadata.", 9) == 0) {
			const json_t *have = json_object_get(sb->spec.metadata, key + 9);

			fits = k < n && url_decode(query + k + 1, n - k - 1, 1, &value) == 0 &&
			       have && strncmp(key + 9, "secret.", 7) != 0 &&
			       strcmp(json_string_value(have), value) == 0;
		}
		query += n + (query[n] == '&');
	}
	return fits;
}

json_t *sandboxes_json(struct call *c, const char *query)
{
	autofree char *status = NULL, *template = NULL, *parent = NULL;
	json_t *list = json_array();

	url_query(query, "status", &status);
	url_query(query, "template", &template);
	url_query(query, "parent_id", &parent);
	for (struct sandbox *sb = c->host->newest; sb; sb = sb->next) {
		if (strcmp(sb->tenant, c->tenant) != 0 || sb->state == SANDBOX_KILLING ||
		    (*c->only && strcmp(sb->id, c->only) != 0) ||
		    (status && strcmp(status, sandbox_state_name(sb->state)) != 0) ||
		    (template && strcmp(template, sb->spec.template) != 0) ||
		    (parent && strcmp(parent, sb->parent) != 0) || !metadata_fits(query, sb))
			continue;
		if (json_array_append_new(list, show_sandbox(c->host, sb)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

void sandbox_list(struct call *c)
{
	call_json(c, 200, sandboxes_json(c, http_query(c->req)));
}

void sandbox_get(struct call *c)
{
	call_json(c, 200, show_sandbox(c->host, c->sb));
}

/* ---- steps ---- */

void call_stepped(void *arg, const struct err *e, struct sandbox *sb)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else if (c->route->reply)
		call_json(c, 200,
		          json_pack("{s:s}", "status",
		                    sb ? sandbox_state_name(sb->state) : "deleted"));
	else
		call_empty(c, 204);
	call_drop(c);
}

void sandbox_delete(struct call *c)
{
	host_kill(c->host, c->sb, "killed by request", call_stepped, call_hold(c));
}

void sandbox_pause(struct call *c)
{
	host_pause(c->host, c->sb, call_stepped, call_hold(c));
}

void sandbox_resume(struct call *c)
{
	host_resume(c->host, c->sb, call_stepped, call_hold(c));
}

void sandbox_hibernate(struct call *c)
{
	host_hibernate(c->host, c->sb, call_stepped, call_hold(c));
}

void sandbox_wake(struct call *c)
{
	host_wake(c->host, c->sb, call_stepped, call_hold(c));
}

/* ---- lifecycle ---- */

static json_t *lifecycle(struct call *c)
{
	const struct sandbox *sb = c->sb;
	uint64_t now = mono_ms(), expires = sandbox_expires_ms(sb);
	uint64_t idle = sb->busy || now < sb->active_ms ? 0 : (now - sb->active_ms) / 1000;

	return json_pack("{s:I, s:b, s:I, s:o, s:s}", "ttl_seconds",
	                 (json_int_t)(sb->spec.ttl_s < 0 ? 0 : sb->spec.ttl_s), "persistent",
	                 sb->spec.persistent, "idle_seconds", (json_int_t)idle, "expires_at",
	                 expires ? json_time(expires) : json_null(), "checkpoints",
	                 sb->spec.checkpoints ? "auto" : "off");
}

void sandbox_lifecycle(struct call *c)
{
	call_json(c, 200, lifecycle(c));
}

static const struct {
	const char *name;
	size_t at;
} net_counters[] = {
    {"up_bytes", offsetof(struct host_net, up_bytes)},
    {"down_bytes", offsetof(struct host_net, down_bytes)},
    {"up_packets", offsetof(struct host_net, up_packets)},
    {"down_packets", offsetof(struct host_net, down_packets)},
    {"refused", offsetof(struct host_net, refused)},
    {"odd", offsetof(struct host_net, odd)},
    {"names", offsetof(struct host_net, names)},
    {"names_refused", offsetof(struct host_net, names_refused)},
    {"names_limited", offsetof(struct host_net, names_limited)},
    {"events_lost", offsetof(struct host_net, events_lost)},
};

void sandbox_egress(struct call *c)
{
	const json_t *egress = c->sb->spec.egress;
	struct host_net n;
	const char *mac;
	char address[16];
	json_t *j;

	host_net(c->host, c->sb, &n);
	host_address(c->sb, address, &mac);
	j = json_pack("{s:o, s:s, s:O*, s:s}", "egress_allowlist", egress_list(egress), "mode",
	              network_mode(c->host, egress), "egress_limits", network_limits(egress),
	              "address", address);
	for (size_t i = 0; i < ARRAY_LEN(net_counters); i++) {
		uint64_t v;

		memcpy(&v, (const char *)&n + net_counters[i].at, sizeof(v));
		json_object_set_new(j, net_counters[i].name, json_integer((json_int_t)v));
	}
	call_json(c, 200, j);
}

void sandbox_set_egress(struct call *c)
{
	json_t *egress = NULL;
	struct err e;

	if (!json_object_get(c->body, "egress_allowlist") && !json_object_get(c->body, "egress") &&
	    !json_object_get(c->body, "egress_limits"))
		call_fail(
		    c, EINVAL, "bad_request",
		    "say what it may reach: egress_allowlist, a list of names and addresses, or "
		    "egress, \"off\" or \"open\"; or egress_limits");
	else if (egress_parse(c->body, c->sb->spec.egress, &egress, &e) < 0 ||
	         host_set_egress(c->host, c->sb, egress, &e) < 0)
		call_error(c, &e);
	else
		sandbox_egress(c);
}

void sandbox_set_lifecycle(struct call *c)
{
	const json_t *p = json_object_get(c->body, "persistent");
	int64_t ttl_s = 0;
	bool persistent = false, has_ttl, checkpoints = c->sb->spec.checkpoints;
	struct err e;

	has_ttl = json_object_get(c->body, "ttl_seconds") &&
	          !json_is_null(json_object_get(c->body, "ttl_seconds"));
	if (!call_int(c, "ttl_seconds", 0, 0, SPEC_SECONDS_MAX, &ttl_s) ||
	    !call_bool(c, "persistent", false, &persistent))
		return;
	if (!checkpoints_parse(c->body, &checkpoints, &e) ||
	    (checkpoints != c->sb->spec.checkpoints &&
	     host_set_checkpoints(c->host, c->sb, checkpoints, &e) < 0)) {
		call_error(c, &e);
		return;
	}
	if (host_set_life(c->host, c->sb,
	                  !has_ttl     ? -2
	                  : ttl_s == 0 ? -1
	                               : ttl_s,
	                  json_is_boolean(p) ? persistent : -1, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 200, lifecycle(c));
}
