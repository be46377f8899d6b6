/*
 * The body of a create request. The promises: what is refused is named, what is taken keeps to the
 * limits, and saying it again in the plain spelling means the same.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *say(struct sandbox_spec *s)
{
	json_t *j = json_pack("{s:s, s:s, s:b}", "template", s->template, "from_snapshot",
	                      s->from_snapshot, "persistent", s->persistent);

	assert(j);
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		if (*spec_number(s, n) >= 0)
			json_object_set_new(j, n->key, json_integer(*spec_number(s, n)));
	if (s->metadata)
		json_object_set(j, "metadata", s->metadata);
	if (s->env)
		json_object_set(j, "env", s->env);
	if (s->egress)
		json_object_set(j, "egress_allowlist", s->egress);
	if (s->volumes)
		json_object_set(j, "volumes", s->volumes);
	return j;
}

static bool same(const json_t *a, const json_t *b)
{
	return (!a && !b) || json_equal(a, b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *body = json_loadb((const char *)data, size, 0, NULL), *again, *v;
	struct sandbox_spec s, t;
	struct err e = {0};
	size_t i;

	if (!json_is_object(body) || !spec_parse(body, &s, &e)) {
		assert(!json_is_object(body) || (e.code > 0 && e.text[0]));
		json_decref(body);
		return 0;
	}
	assert(s.ttl_s != 0);
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		assert(*spec_number(&s, n) >= -1 && *spec_number(&s, n) <= n->max);
	assert(json_array_size(s.volumes) <= SANDBOX_VOLUMES_MAX);
	json_array_foreach(s.volumes, i, v) {
		const char *path = json_string_value(json_object_get(v, "path"));

		assert(path[0] == '/' && path[1] && !strstr(path, "/../"));
		assert(json_string_length(json_object_get(v, "name")) > 0);
		assert(json_is_boolean(json_object_get(v, "read_only")));
	}
	again = say(&s);
	assert(spec_parse(again, &t, &e));
	assert(!strcmp(s.template, t.template) && !strcmp(s.from_snapshot, t.from_snapshot));
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		assert(*spec_number(&s, n) == *spec_number(&t, n));
	assert(s.persistent == t.persistent);
	assert(same(s.metadata, t.metadata) && same(s.env, t.env) && same(s.egress, t.egress) &&
	       same(s.volumes, t.volumes));
	json_decref(again);
	json_decref(body);
	spec_fini(&s);
	spec_fini(&t);
	return 0;
}
