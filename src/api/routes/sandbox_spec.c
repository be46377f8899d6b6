/*
 * api/routes/sandbox_spec.c - what a create request says, in all its spellings, and how a sandbox
 * is shown
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "api/api_internal.h"
#include "api/streams/sse.h"
#include "base/macro.h"
#include "host/network.h"

enum {
	METADATA_MAX = 64, /* entries */
	METADATA_KEY_MAX = 128,
	METADATA_VALUE_MAX = 4096,
	ENV_MAX = 256, /* entries */
	ENV_BYTES_MAX = 32 * 1024,
	KBIT_MAX = 100000000, /* 100 Gbit/s */
	EGRESS_MAX = 256,
	EGRESS_ENTRY_MAX = 260,
	MOUNT_PATH_MAX = 1024,
	SIZE_MOST = 315360000, /* of what is asked for; a host has less */
};

static const json_t *field(const json_t *body, const char *key)
{
	const json_t *j = json_object_get(body, key);

	return json_is_null(j) ? NULL : j;
}

static int bad(struct err *e, const char *key, const char *what)
{
	return err_set(e, EINVAL, "bad_request", "field '%s' %s", key, what);
}

static int copy_text(const json_t *body, const char *key, char *buf, size_t n, struct err *e)
{
	const json_t *j = field(body, key);

	if (!j)
		return 0;
	if (!json_is_string(j))
		return bad(e, key, "must be a string");
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
	const json_t *j = field(body, n->key);
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
		const json_t *j = field(body, keys[i]);

		n = 0;
		if (j && !whole(j, SIZE_MOST, &n))
			return bad(e, keys[i], "must be a whole number");
	}
	s->disk_gb = (unsigned)n;
	return 0;
}

static int check_metadata(const json_t *m, struct err *e)
{
	const char *key;
	json_t *v;

	if (!json_is_object(m))
		return bad(e, "metadata", "must be an object of strings");
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
	const json_t *m = field(body, "metadata");
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
	const json_t *env = field(body, "env");
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

static bool egress_entry(const char *s)
{
	size_t n = strlen(s);

	return n >= 1 && n <= EGRESS_ENTRY_MAX &&
	       strspn(s,
	              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.*:/_-[]") ==
	           n;
}

static int egress_allow(const json_t *body, json_t **ret, struct err *e)
{
	const json_t *list = field(body, "egress_allowlist"), *word = field(body, "egress"), *v;
	size_t i;

	if (word) {
		const char *s = json_string_value(word);

		if (!s || (strcmp(s, "off") != 0 && strcmp(s, "open") != 0))
			return bad(e, "egress", "must be \"off\" or \"open\"");
		if (list && json_array_size(list) && strcmp(s, "off") == 0)
			return bad(e, "egress", "is \"off\", but egress_allowlist names hosts");
		if (!list || strcmp(s, "off") == 0) {
			*ret = strcmp(s, "off") == 0 ? json_array() : json_string("open");
			return *ret ? 0 : err_nomem(e);
		}
	}
	if (!list)
		return 0;
	if (!json_is_array(list) || json_array_size(list) > EGRESS_MAX)
		return err_set(e, EINVAL, "bad_request",
		               "field 'egress_allowlist' must be a list of up to %d strings",
		               EGRESS_MAX);
	json_array_foreach(list, i, v) {
		if (!json_is_string(v) || !egress_entry(json_string_value(v)))
			return err_set(e, EINVAL, "bad_request",
			               "field 'egress_allowlist': element %zu must be a host name, "
			               "*.name, name:port, address or CIDR",
			               i);
	}
	*ret = json_incref((json_t *)list);
	return 0;
}

/* Copies what we know of it: the rest is ignored, as everywhere. */
static int egress_limits(const json_t *given, json_t **ret, struct err *e)
{
	static const struct {
		const char *key;
		json_int_t max;
	} known[] = {{"connections", 65536}, {"up_kbit", KBIT_MAX}, {"down_kbit", KBIT_MAX}};
	json_t *limits = json_object();
	int r = limits ? 0 : err_nomem(e);

	if (r == 0 && !json_is_object(given))
		r = bad(e, "egress_limits", "must be an object");
	for (size_t i = 0; i < ARRAY_LEN(known) && r == 0; i++) {
		const json_t *v = field(given, known[i].key);

		if (!v)
			continue;
		if (!json_is_integer(v) || json_integer_value(v) < 1 ||
		    json_integer_value(v) > known[i].max)
			r = err_set(e, EINVAL, "bad_request",
			            "field 'egress_limits': %s must be a number from 1 to %lld",
			            known[i].key, (long long)known[i].max);
		else
			json_object_set(limits, known[i].key, (json_t *)v);
	}
	if (r == 0 && json_object_size(limits))
		*ret = json_incref(limits);
	json_decref(limits);
	return r;
}

int egress_parse(const json_t *body, const json_t *now, json_t **ret, struct err *e)
{
	const json_t *limits = json_object_get(body, "egress_limits");
	json_t *allow = NULL, *most = NULL;
	int r = 0;

	if (json_object_get(body, "egress_allowlist") || json_object_get(body, "egress"))
		r = egress_allow(body, &allow, e);
	else
		allow = json_incref((json_t *)network_allow(now));
	if (r == 0 && limits && !json_is_null(limits))
		r = egress_limits(limits, &most, e);
	else if (r == 0 && !limits)
		most = json_incref((json_t *)network_limits(now));
	if (r == 0 && network_join(allow, most, ret) < 0)
		r = err_nomem(e);
	json_decref(allow);
	json_decref(most);
	return r;
}

json_t *egress_list(const json_t *egress)
{
	const json_t *allow = network_allow(egress);

	return json_is_array(allow) ? json_incref((json_t *)allow) : json_null();
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
		j = field(v, "name") ? field(v, "name") : field(v, "id");
		name = json_string_value(j);
		j = field(v, "path") ? field(v, "path") : field(v, "mount");
		if (!j)
			j = field(v, "mount_path");
		if (j && !json_is_string(j)) {
			err_set(e, EINVAL, "bad_request",
			        "field 'volumes': path of element %zu must be a string", i);
			return NULL;
		}
		path = json_string_value(j);
		ro = field(v, "read_only") ? field(v, "read_only") : field(v, "readonly");
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
	const json_t *list = field(body, "volumes"), *v;
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
	const json_t *persistent = field(body, "persistent");
	int r;

	spec_init(&s);
	snprintf(s.template, sizeof(s.template), "base");
	r = copy_text(body, "template", s.template, sizeof(s.template), e);
	if (r == 0)
		r = copy_text(body, "from_snapshot", s.from_snapshot, sizeof(s.from_snapshot), e);
	for (const struct spec_number *n = spec_numbers; r == 0 && n->key; n++)
		r = parse_number(body, n, &s, e);
	if (r == 0 && persistent && !json_is_boolean(persistent))
		r = bad(e, "persistent", "must be true or false");
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

/* ---- showing ---- */

static json_t *show_metadata(const json_t *m)
{
	json_t *out = json_object();
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)m, key, v) {
		if (strncmp(key, "secret.", 7) != 0)
			json_object_set(out, key, v);
	}
	return out;
}

static json_t *text_or_null(const char *s)
{
	return *s ? json_string(s) : json_null();
}

json_t *show_sandbox(struct host *h, const struct sandbox *sb)
{
	const struct sandbox_spec *s = &sb->spec;
	uint64_t expires = sandbox_expires_ms(sb);
	const char *mac;
	char address[16];
	json_t *j;

	host_address(sb, address, &mac);
	j = json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:s, s:o}",
	              "id", sb->id, "template", s->template, "cpu", (int)sb->cpu, "memory_mb",
	              (int)sb->memory_mb, "disk_gb", (int)sb->disk_gb, "status",
	              sandbox_state_name(sb->state), "guest_ip", address, "host_tap", "", "mac",
	              mac, "vsock_cid", 0, "from_snapshot", s->from_snapshot, "boot_ms",
	              (int)sb->boot_ms, "boot_mode", sb->boot_mode ? sb->boot_mode : "",
	              "created_at", show_time(sb->created_ms));

	if (!j)
		return NULL;
	json_object_set_new(j, "isolation", json_string(sb->isolation));
	json_object_set_new(j, "runner", json_string(sb->runner ? sb->runner : "shell"));
	json_object_set_new(j, "persistent", json_boolean(s->persistent));
	json_object_set_new(j, "checkpoints", json_string(s->checkpoints ? "auto" : "off"));
	json_object_set_new(j, "ttl_seconds", s->ttl_s < 0 ? json_null() : json_integer(s->ttl_s));
	json_object_set_new(j, "expires_at", expires ? show_time(expires) : json_null());
	json_object_set_new(j, "parent_id", text_or_null(sb->parent));
	json_object_set_new(j, "fork_tree_id", text_or_null(sb->tree));
	json_object_set_new(j, "metadata", show_metadata(s->metadata));
	json_object_set_new(j, "volumes", volume_mounts_json(s->volumes));
	json_object_set_new(j, "egress_allowlist", egress_list(s->egress));
	if (sb->state == SANDBOX_FAILED)
		json_object_set_new(j, "end_reason", json_text(sb->end, strlen(sb->end)));
	if (sb->silent)
		json_object_set_new(j, "status_detail", json_string("its agent does not answer"));
	return j;
}
