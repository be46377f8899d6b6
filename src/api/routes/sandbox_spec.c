/*
 * api/routes/sandbox_spec.c - what a create request says, in all its spellings
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "api/api_internal.h"
#include "api/routes/sandbox_spec.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/sandbox.h"

enum {
	METADATA_MAX = 64, /* entries */
	METADATA_KEY_MAX = 128,
	METADATA_VALUE_MAX = 4096,
	ENV_MAX = 256, /* entries */
	ENV_BYTES_MAX = 32 * 1024,
	MOUNT_PATH_MAX = 1024,
	SIZE_MOST = 315360000, /* of what is asked for; a host has less */
};

static int copy_text(const json_t *body, const char *key, char *buf, size_t n, struct err *e)
{
	const json_t *j = spec_field(body, key);

	if (!j)
		return 0;
	if (!json_is_string(j))
		return spec_bad(e, key, "must be a string");
	if (json_string_length(j) >= n)
		return err_set(e, EINVAL, "bad_request", "field '%s' is longer than %zu bytes", key,
		               n - 1);
	snprintf(buf, n, "%s", json_string_value(j));
	return 0;
}

/* A whole number from 0 to max; 3.0 is one. */
static bool whole(const json_t *j, int64_t max, int64_t *ret)
{
	double n = json_is_number(j) ? json_number_value(j) : -1;

	if (!(n >= 0 && n <= (double)max) || n != (double)(int64_t)n)
		return false;
	*ret = (int64_t)n;
	return true;
}

/* 0 means none, as clients of other services use it. */
static int parse_number(const json_t *body, const struct spec_number *n, struct sandbox_spec *s,
                        struct err *e)
{
	const json_t *j = spec_field(body, n->key);
	int64_t said;

	if (!j)
		return 0;
	if (!whole(j, n->max, &said))
		return err_set(e, EINVAL, "bad_request", "field '%s' must be %s to %lld", n->key,
		               n->what, (long long)n->max);
	*spec_number(s, n) = said == 0 ? n->zero : said;
	return 0;
}

/* The template decides its size; old clients send one all the same. Only a disk may be smaller. */
static int parse_size(const json_t *body, struct sandbox_spec *s, struct err *e)
{
	static const char *const keys[] = {"cpu", "memory_mb", "disk_gb"};
	int64_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const json_t *j = spec_field(body, keys[i]);

		n = 0;
		if (j && !whole(j, SIZE_MOST, &n))
			return spec_bad(e, keys[i], "must be a whole number");
	}
	s->disk_gb = (unsigned)n;
	return 0;
}

static int check_metadata(const json_t *m, struct err *e)
{
	const char *key;
	json_t *v;

	if (!json_is_object(m))
		return spec_bad(e, "metadata", "must be an object of strings");
	if (json_object_size(m) > METADATA_MAX)
		return err_set(e, EINVAL, "bad_request",
		               "field 'metadata' has more than %d entries", METADATA_MAX);
	json_object_foreach((json_t *)m, key, v) {
		if (!json_is_string(v))
			return err_set(e, EINVAL, "bad_request",
			               "field 'metadata': the value of '%.64s' must be a string",
			               key);
		if (!*key || strlen(key) > METADATA_KEY_MAX ||
		    json_string_length(v) > METADATA_VALUE_MAX)
			return err_set(
			    e, EINVAL, "bad_request",
			    "field 'metadata': '%.64s' is empty or too long (keys up to %d "
			    "bytes, values up to %d)",
			    key, METADATA_KEY_MAX, METADATA_VALUE_MAX);
	}
	return 0;
}

int metadata_parse(const json_t *body, json_t **ret, struct err *e)
{
	const json_t *m = spec_field(body, "metadata");
	int r = m ? check_metadata(m, e) : 0;

	if (r == 0 && m)
		*ret = json_incref((json_t *)m);
	return r;
}

static bool env_name(const char *s)
{
	if (!isalpha((unsigned char)*s) && *s != '_')
		return false;
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && *s != '_')
			return false;
	return true;
}

static int parse_env(const json_t *body, json_t **ret, struct err *e)
{
	const json_t *env = spec_field(body, "env");
	const char *key;
	size_t bytes = 0;
	json_t *v;

	if (!env)
		return 0;
	if (!json_is_object(env) || json_object_size(env) > ENV_MAX)
		return err_set(e, EINVAL, "bad_request",
		               "field 'env' must be an object of strings with up to %d entries",
		               ENV_MAX);
	json_object_foreach((json_t *)env, key, v) {
		if (!env_name(key) || !json_is_string(v))
			return err_set(e, EINVAL, "bad_request",
			               "field 'env': '%.64s' must be a name of letters, digits and "
			               "underscores with a string as value",
			               key);
		bytes += strlen(key) + json_string_length(v) + 2;
	}
	if (bytes > ENV_BYTES_MAX)
		return err_set(e, EINVAL, "bad_request", "field 'env' has more than %d bytes",
		               ENV_BYTES_MAX);
	*ret = json_incref((json_t *)env);
	return 0;
}

/* {name|id, path|mount|mount_path, read_only|readonly}, or the name alone */
static json_t *parse_volume(const json_t *v, size_t i, struct err *e)
{
	const char *name = NULL, *path = NULL;
	char otherwise[MOUNT_PATH_MAX + 1];
	const json_t *ro = NULL, *j;

	if (json_is_string(v)) {
		name = json_string_value(v);
	} else if (json_is_object(v)) {
		j = spec_field(v, "name") ? spec_field(v, "name") : spec_field(v, "id");
		name = json_string_value(j);
		j = spec_field(v, "path") ? spec_field(v, "path") : spec_field(v, "mount");
		if (!j)
			j = spec_field(v, "mount_path");
		if (j && !json_is_string(j)) {
			err_set(e, EINVAL, "bad_request",
			        "field 'volumes': path of element %zu must be a string", i);
			return NULL;
		}
		path = json_string_value(j);
		ro = spec_field(v, "read_only") ? spec_field(v, "read_only")
		                                : spec_field(v, "readonly");
	}
	if (!name || !*name || strlen(name) > 64 || (ro && !json_is_boolean(ro))) {
		err_set(e, EINVAL, "bad_request",
		        "field 'volumes': element %zu must be {\"name\": ..., \"path\": ..., "
		        "\"read_only\": true|false}",
		        i);
		return NULL;
	}
	if (!path) {
		snprintf(otherwise, sizeof(otherwise), "/mnt/%s", name);
		path = otherwise;
	}
	if (path[0] != '/' || strlen(path) > MOUNT_PATH_MAX || strcmp(path, "/") == 0 ||
	    strstr(path, "/../") ||
	    (strlen(path) >= 3 && !strcmp(path + strlen(path) - 3, "/.."))) {
		err_set(
		    e, EINVAL, "bad_request",
		    "field 'volumes': path of element %zu must be absolute, without '..', and not "
		    "the root",
		    i);
		return NULL;
	}
	j = json_pack("{s:s, s:s, s:b}", "name", name, "path", path, "read_only",
	              ro ? json_is_true(ro) : 0);
	if (!j)
		err_nomem(e);
	return (json_t *)j;
}

json_t *volume_mount_parse(const json_t *v, struct err *e)
{
	return parse_volume(v, 0, e);
}

static int parse_volumes(const json_t *body, json_t **ret, struct err *e)
{
	const json_t *list = spec_field(body, "volumes"), *v;
	json_t *out;
	size_t i;

	if (!list)
		return 0;
	if (!json_is_array(list) || json_array_size(list) > SANDBOX_VOLUMES_MAX)
		return err_set(e, EINVAL, "bad_request",
		               "field 'volumes' must be a list of up to %d elements",
		               SANDBOX_VOLUMES_MAX);
	out = json_array();
	json_array_foreach(list, i, v) {
		json_t *one = parse_volume(v, i, e);
		int r = one ? 0 : -e->code;

		if (one && json_array_append_new(out, one) < 0)
			r = err_nomem(e);
		if (r < 0) {
			json_decref(out);
			return r;
		}
	}
	if (!out)
		return err_nomem(e);
	*ret = out;
	return 0;
}

/* A name is metadata that has a field of its own. */
static int parse_name(const json_t *body, struct sandbox_spec *s, struct err *e)
{
	char name[METADATA_KEY_MAX + 1] = "";
	json_t *m;
	int r = copy_text(body, "name", name, sizeof(name), e);

	if (r < 0 || !name[0] || json_object_get(s->metadata, "name"))
		return r;
	m = s->metadata ? json_copy(s->metadata) : json_object();
	if (json_object_set_new(m, "name", json_string(name)) < 0) {
		json_decref(m);
		return err_nomem(e);
	}
	json_decref(s->metadata);
	s->metadata = m;
	return 0;
}

bool spec_parse(const json_t *body, struct sandbox_spec *ret, struct err *e)
{
	struct sandbox_spec s;
	const json_t *persistent = spec_field(body, "persistent");
	int r;

	spec_init(&s);
	snprintf(s.template, sizeof(s.template), "base");
	r = copy_text(body, "template", s.template, sizeof(s.template), e);
	if (r == 0)
		r = copy_text(body, "from_snapshot", s.from_snapshot, sizeof(s.from_snapshot), e);
	for (const struct spec_number *n = spec_numbers; r == 0 && n->key; n++)
		r = parse_number(body, n, &s, e);
	if (r == 0 && persistent && !json_is_boolean(persistent))
		r = spec_bad(e, "persistent", "must be true or false");
	s.persistent = json_is_true(persistent);
	if (r == 0 && !checkpoints_parse(body, &s.checkpoints, e))
		r = -e->code;
	if (r == 0)
		r = parse_size(body, &s, e);
	if (r == 0)
		r = metadata_parse(body, &s.metadata, e);
	if (r == 0)
		r = parse_name(body, &s, e);
	if (r == 0)
		r = parse_env(body, &s.env, e);
	if (r == 0)
		r = egress_parse(body, NULL, &s.egress, e);
	if (r == 0)
		r = parse_volumes(body, &s.volumes, e);
	if (r < 0) {
		spec_fini(&s);
		return false;
	}
	*ret = s;
	return true;
}
