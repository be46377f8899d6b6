/*
 * api/routes/snapshots.c - moments of sandboxes, kept
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/err.h"
#include "host/host.h"
#include "host/sandbox.h"

json_t *snapshot_json(const struct host_snapshot *s)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:s?, s:o, s:o, s:s, s:s, s:s}", "id",
	                 s->id, "sandbox_id", s->sandbox_id, "name", s->name, "template",
	                 s->template, "size_bytes", (json_int_t)s->size_bytes, "memory_mb",
	                 (int)s->memory_mb, "disk_gb", (int)s->disk_gb, "imported",
	                 snapshot_origin_name(s->origin), "created_at", json_time(s->created_ms),
	                 "expires_at", s->expires_ms ? json_time(s->expires_ms) : json_null(),
	                 "mem_path", "", "state_path", "", "workspace", s->tenant);
}

static void taken(void *arg, const struct err *e, const struct host_snapshot *s)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 201, snapshot_json(s));
	call_drop(c);
}

void snapshot_create(struct call *c)
{
	const char *name;

	if (!call_str(c, "name", "", &name))
		return;
	if (strlen(name) > SNAPSHOT_NAME_MAX) {
		call_fail(c, EINVAL, "bad_request", "field 'name' is longer than %d bytes",
		          SNAPSHOT_NAME_MAX);
		return;
	}
	host_snapshot(c->host, c->sb, name, &c->quota, taken, call_hold(c));
}

static bool add(void *arg, const struct host_snapshot *s)
{
	return json_array_append_new(arg, snapshot_json(s)) == 0;
}

void snapshot_list(struct call *c)
{
	char *of = call_query(c, "sandbox_id");
	json_t *list = json_array();
	struct err e;

	if (host_snapshots(c->host, c->tenant, of, add, list, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 200, json_pack("{s:O}", "snapshots", list));
	json_decref(list);
	free(of);
}

void snapshot_get(struct call *c)
{
	struct host_snapshot s;
	struct err e;

	if (host_snapshot_get(c->host, c->tenant, c->param[0], &s, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 200, snapshot_json(&s));
}

void snapshot_remove(struct call *c)
{
	host_snapshot_delete(c->host, c->tenant, c->param[0], call_stepped, call_hold(c));
}
