/*
 * api/volumes.c - named disks that outlive sandboxes
 */
#include "core/volume.h"

#include <errno.h>
#include <string.h>

#include "api/api_internal.h"

/* Who has it? */
static json_t *mounted_by(struct call *c, const char *name)
{
	json_t *ids = json_array(), *v;
	size_t i;

	for (struct sandbox *sb = c->host->newest; sb; sb = sb->next) {
		if (strcmp(sb->tenant, c->tenant) != 0)
			continue;
		json_array_foreach(sb->spec.volumes, i, v)
		{
			const char *has = json_string_value(json_object_get(v, "name"));

			if (has && strcmp(has, name) == 0)
				json_array_append_new(ids, json_string(sb->id));
		}
	}
	return ids;
}

static json_t *show(struct call *c, const struct volume_info *v)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "name", v->name, "id", v->name,
	                 "size_mb", (json_int_t)(v->size_bytes >> 20), "size_bytes",
	                 (json_int_t)v->size_bytes, "used_bytes", (json_int_t)v->used_bytes,
	                 "created_at", show_time(v->created_ms), "mounted_by",
	                 mounted_by(c, v->name));
}

static void created(void *arg, const struct err *e, const struct volume_info *v)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 201, show(c, v));
	call_drop(c);
}

void volumes_create(struct call *c)
{
	const char *name;
	int64_t size_mb, size_gb;

	if (!call_str(c, "name", NULL, &name) ||
	    !call_int(c, "size_mb", VOLUME_MB_DEFAULT, 1, VOLUME_MB_MAX, &size_mb) ||
	    !call_int(c, "size_gb", 0, 1, VOLUME_MB_MAX / 1024, &size_gb))
		return;
	if (!name) {
		call_fail(c, EINVAL, "bad_request", "field 'name' is missing");
		return;
	}
	if (!volume_name_valid(name)) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'name' must have 1 to %d letters, digits, '.', '_' or '-'",
		          VOLUME_NAME_MAX);
		return;
	}
	volume_create(c->host, c->tenant, name, (uint64_t)(size_gb ? size_gb * 1024 : size_mb),
	              &c->quota, created, call_hold(c));
}

struct listing {
	struct call *call;
	json_t *list;
};

static bool add(void *arg, const struct volume_info *v)
{
	struct listing *l = arg;

	return json_array_append_new(l->list, show(l->call, v)) == 0;
}

void volumes_list(struct call *c)
{
	struct listing l = {.call = c, .list = json_array()};
	struct err e;

	if (volume_each(c->host, c->tenant, add, &l, &e) == 0) {
		call_json(c, 200, l.list);
		return;
	}
	json_decref(l.list);
	call_error(c, &e);
}

void volumes_get(struct call *c)
{
	struct volume_info v;
	struct err e;

	if (volume_get(c->host, c->tenant, c->param[0], &v, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 200, show(c, &v));
}

void volumes_delete(struct call *c)
{
	volume_delete(c->host, c->tenant, c->param[0], call_stepped, call_hold(c));
}
