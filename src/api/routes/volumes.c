/*
 * api/routes/volumes.c - named disks that outlive sandboxes, their snapshots, and who has them
 */
#include "host/volume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/err.h"
#include "host/host.h"
#include "host/sandbox.h"

/* Who has it? A fork's private copy is not it. */
static json_t *mounted_by(struct call *c, const char *name)
{
	json_t *ids = json_array(), *v;
	size_t i;

	for (struct sandbox *sb = c->host->newest; sb; sb = sb->next) {
		if (strcmp(sb->tenant, c->tenant) != 0)
			continue;
		json_array_foreach(sb->spec.volumes, i, v) {
			const char *has = json_string_value(json_object_get(v, "name"));

			if (has && strcmp(has, name) == 0 && !json_object_get(v, "copy"))
				json_array_append_new(ids, json_string(sb->id));
		}
	}
	return ids;
}

static json_t *show(struct call *c, const struct volume_info *v)
{
	return json_pack("{s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:o, s:o}", "name", v->name, "id",
	                 v->name, "kind", v->snapshot ? "snapshot" : "volume", "source",
	                 v->source[0] ? json_string(v->source) : json_null(), "size_mb",
	                 (json_int_t)(v->size_bytes >> 20), "size_bytes", (json_int_t)v->size_bytes,
	                 "used_bytes", (json_int_t)v->used_bytes, "created_at",
	                 json_time(v->created_ms), "mounted_by", mounted_by(c, v->name));
}

static void answer(struct call *c, int status, const struct err *e, const struct volume_info *v)
{
	if (e)
		call_error(c, e);
	else
		call_json(c, status, show(c, v));
	call_drop(c);
}

static void created(void *arg, const struct err *e, const struct volume_info *v)
{
	answer(arg, 201, e, v);
}

static void changed(void *arg, const struct err *e, const struct volume_info *v)
{
	answer(arg, 200, e, v);
}

/* size_mb or size_gb of a body, in MiB; 0: neither. */
static bool size_field(struct call *c, uint64_t *ret_mb)
{
	int64_t mb, gb;

	if (!call_int(c, "size_mb", 0, 1, VOLUME_MB_MAX, &mb) ||
	    !call_int(c, "size_gb", 0, 1, VOLUME_MB_MAX / 1024, &gb))
		return false;
	*ret_mb = (uint64_t)(gb ? gb * 1024 : mb);
	return true;
}

static bool name_field(struct call *c, const char *otherwise, const char **ret)
{
	if (!call_str(c, "name", otherwise, ret))
		return false;
	if (!*ret) {
		call_fail(c, EINVAL, "bad_request", "field 'name' is missing");
		return false;
	}
	if (!volume_name_valid(*ret)) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'name' must have 1 to %d letters, digits, '.', '_' or '-'",
		          VOLUME_NAME_MAX);
		return false;
	}
	return true;
}

void volumes_create(struct call *c)
{
	const char *name, *from;
	uint64_t size_mb;

	if (!name_field(c, NULL, &name) || !call_str(c, "from", NULL, &from) ||
	    !size_field(c, &size_mb))
		return;
	if (from)
		volume_copy(c->host, c->tenant, from, name, false, size_mb, &c->quota, created,
		            call_hold(c));
	else
		volume_create(c->host, c->tenant, name, size_mb ? size_mb : VOLUME_MB_DEFAULT,
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

static void list(struct call *c, const char *snapshots_of)
{
	struct listing l = {.call = c, .list = json_array()};
	struct volume_info v;
	struct err e;
	int r;

	r = volume_each(c->host, c->tenant, snapshots_of, add, &l, &e);
	/* Snapshots may outlive their volume; of one that never was there are none. */
	if (r == 0 && snapshots_of && *snapshots_of && !json_array_size(l.list))
		r = volume_get(c->host, c->tenant, snapshots_of, &v, &e);
	if (r == 0) {
		call_json(c, 200, l.list);
		return;
	}
	json_decref(l.list);
	call_error(c, &e);
}

void volumes_list(struct call *c)
{
	list(c, call_query_flag(c, "snapshots") ? "" : NULL);
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

void volumes_resize(struct call *c)
{
	uint64_t size_mb;

	if (!size_field(c, &size_mb))
		return;
	if (!size_mb) {
		call_fail(c, EINVAL, "bad_request",
		          "give 'size_mb' or 'size_gb': how large it shall be");
		return;
	}
	volume_resize(c->host, c->tenant, c->param[0], size_mb, &c->quota, changed, call_hold(c));
}

void volumes_delete(struct call *c)
{
	volume_delete(c->host, c->tenant, c->param[0], call_stepped, call_hold(c));
}

/* Without a name it is called by the moment it was taken. */
static void name_of_now(const char *volume, char ret[VOLUME_NAME_MAX + 1])
{
	struct timespec now;
	struct tm tm;
	char when[16];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &tm);
	snprintf(ret, VOLUME_NAME_MAX + 1, "%.40s-%s-%03ld", volume, when,
	         now.tv_nsec / 1000000 % 1000);
}

void volume_snapshots_create(struct call *c)
{
	char otherwise[VOLUME_NAME_MAX + 1];
	const char *name;

	name_of_now(c->param[0], otherwise);
	if (name_field(c, otherwise, &name))
		volume_copy(c->host, c->tenant, c->param[0], name, true, 0, &c->quota, created,
		            call_hold(c));
}

void volume_snapshots_list(struct call *c)
{
	list(c, c->param[0]);
}

/* --- of a sandbox ----------------------------------------------------------------------------- */

json_t *volume_mounts_json(const json_t *list)
{
	json_t *out = json_array(), *v;
	size_t i;

	json_array_foreach((json_t *)list, i, v)
		json_array_append_new(out, json_pack("{s:O, s:O, s:b, s:b}", "name",
		                                     json_object_get(v, "name"), "path",
		                                     json_object_get(v, "path"), "read_only",
		                                     json_is_true(json_object_get(v, "read_only")),
		                                     "copy", json_object_get(v, "copy") != NULL));
	return out;
}

void sandbox_volumes_list(struct call *c)
{
	call_json(c, 200, volume_mounts_json(c->sb->spec.volumes));
}

static void attached(void *arg, const struct err *e, struct sandbox *sb)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 201, volume_mounts_json(sb->spec.volumes));
	call_drop(c);
}

void sandbox_volumes_attach(struct call *c)
{
	struct err e;
	json_t *item = volume_mount_parse(c->body, &e);

	if (!item) {
		call_error(c, &e);
		return;
	}
	volume_attach(c->host, c->sb, item, attached, call_hold(c));
	json_decref(item);
}

void sandbox_volumes_detach(struct call *c)
{
	volume_detach(c->host, c->sb, c->param[1], call_query_flag(c, "force"), call_stepped,
	              call_hold(c));
}
