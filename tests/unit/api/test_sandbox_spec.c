/*
 * api/routes/sandbox_spec.c: what a create request may say, and how it is told what is wrong
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "base/macro.h"
#include "host/network.h"

static struct sandbox_spec good(const char *text)
{
	json_t *j = json_loads(text, 0, NULL);
	struct sandbox_spec s;
	struct err e = {0};

	assert_non_null(j);
	if (!spec_parse(j, &s, &e))
		fail_msg("%s: %s", text, e.text);
	json_decref(j);
	return s;
}

static void nothing_is_enough(void **state)
{
	struct sandbox_spec s = good("{}");

	assert_string_equal(s.template, "base");
	assert_string_equal(s.from_snapshot, "");
	assert_int_equal(s.ttl_s, -1);
	assert_int_equal(s.idle_s, -1);
	assert_int_equal(s.auto_hibernate_s, -1);
	assert_false(s.persistent);
	assert_null(s.metadata);
	assert_null(s.egress);
	assert_null(s.volumes);
	spec_fini(&s);
}

static void all_fields_are_taken(void **state)
{
	struct sandbox_spec s = good(
	    "{\"template\":\"t\",\"from_snapshot\":\"s\",\"ttl_seconds\":60,\"idle_seconds\":5,"
	    "\"auto_hibernate_seconds\":7,\"persistent\":true,\"metadata\":{\"a\":\"b\"},"
	    "\"env\":{\"A_1\":\"x\"},\"name\":\"n\",\"cpu\":4,\"memory_mb\":9.0,\"disk_gb\":1,"
	    "\"unknown\":[1,{\"x\":2}]}");

	assert_string_equal(s.template, "t");
	assert_string_equal(s.from_snapshot, "s");
	assert_int_equal(s.ttl_s, 60);
	assert_int_equal(s.idle_s, 5);
	assert_int_equal(s.auto_hibernate_s, 7);
	assert_true(s.persistent);
	assert_string_equal(json_string_value(json_object_get(s.metadata, "a")), "b");
	assert_string_equal(json_string_value(json_object_get(s.metadata, "name")), "n");
	assert_string_equal(json_string_value(json_object_get(s.env, "A_1")), "x");
	spec_fini(&s);
}

static void null_and_zero_mean_none(void **state)
{
	struct sandbox_spec s = good(
	    "{\"template\":null,\"ttl_seconds\":0,\"idle_seconds\":0,\"auto_hibernate_seconds\":0,"
	    "\"metadata\":null,\"volumes\":null,\"egress_allowlist\":null,\"persistent\":null}");

	assert_string_equal(s.template, "base");
	assert_int_equal(s.ttl_s, -1);
	assert_int_equal(s.idle_s, 0);
	assert_int_equal(s.auto_hibernate_s, -1);
	assert_null(s.egress);
	spec_fini(&s);
}

static void volume_is(const json_t *v, const char *name, const char *path, bool ro)
{
	assert_string_equal(json_string_value(json_object_get(v, "name")), name);
	assert_string_equal(json_string_value(json_object_get(v, "path")), path);
	assert_int_equal(json_is_true(json_object_get(v, "read_only")), ro);
}

static void volumes_have_many_spellings(void **state)
{
	struct sandbox_spec s = good(
	    "{\"volumes\":[{\"name\":\"a\"},{\"name\":\"b\",\"path\":\"/w\",\"read_only\":true},"
	    "{\"id\":\"c\",\"mount\":\"/x/y\",\"readonly\":true},\"d\"]}");

	assert_int_equal(json_array_size(s.volumes), 4);
	volume_is(json_array_get(s.volumes, 0), "a", "/mnt/a", false);
	volume_is(json_array_get(s.volumes, 1), "b", "/w", true);
	volume_is(json_array_get(s.volumes, 2), "c", "/x/y", true);
	volume_is(json_array_get(s.volumes, 3), "d", "/mnt/d", false);
	spec_fini(&s);
}

static void egress_is_a_list_or_a_word(void **state)
{
	struct sandbox_spec s = good("{\"egress\":\"off\"}");

	assert_int_equal(json_array_size(s.egress), 0);
	assert_non_null(s.egress);
	spec_fini(&s);
	s = good("{\"egress\":\"open\"}");
	assert_string_equal(json_string_value(s.egress), "open");
	spec_fini(&s);
	s = good("{\"egress_allowlist\":[]}");
	assert_non_null(s.egress);
	spec_fini(&s);
	s = good("{\"egress_allowlist\":[\"a.example\",\"*.b.example\",\"c.example:443\","
	         "\"192.0.2.1\",\"192.0.2.0/24\",\"[2001:db8::1]:443\"]}");
	assert_int_equal(json_array_size(s.egress), 6);
	spec_fini(&s);
}

static void limits_stand_beside_what_may_be_reached(void **state)
{
	struct sandbox_spec s = good("{\"egress_limits\":{\"connections\":5,\"up_kbit\":null,"
	                             "\"other\":\"x\"},\"egress_allowlist\":[\"a.example\"]}");
	json_t *body = json_loads("{\"egress_limits\":{\"down_kbit\":64}}", 0, NULL), *now;
	struct err e = {0};

	assert_int_equal(json_object_size(network_limits(s.egress)), 1);
	assert_int_equal(json_array_size(network_allow(s.egress)), 1);
	/* What a change does not name stays. */
	assert_int_equal(egress_parse(body, s.egress, &now, &e), 0);
	assert_int_equal(json_array_size(network_allow(now)), 1);
	assert_null(json_object_get(network_limits(now), "connections"));
	json_decref(body);
	spec_fini(&s);
	s.egress = now;
	body = json_loads("{\"egress\":\"open\"}", 0, NULL);
	assert_int_equal(egress_parse(body, s.egress, &now, &e), 0);
	assert_string_equal(json_string_value(network_allow(now)), "open");
	assert_int_equal(json_integer_value(json_object_get(network_limits(now), "down_kbit")), 64);
	json_decref(body);
	json_decref(s.egress);
	s.egress = now;
	body = json_loads("{\"egress_limits\":null,\"egress_allowlist\":null}", 0, NULL);
	assert_int_equal(egress_parse(body, s.egress, &now, &e), 0);
	assert_null(now);
	json_decref(body);
	json_decref(s.egress);
	s = good("{\"egress_limits\":{}}");
	assert_null(s.egress);
	spec_fini(&s);
}

static void what_is_wrong_is_named(void **state)
{
	static const char *const cases[][2] = {
	    {"{\"template\":5}", "'template'"},
	    {"{\"template\":"
	     "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
	     "'template'"},
	    {"{\"from_snapshot\":[]}", "'from_snapshot'"},
	    {"{\"ttl_seconds\":-1}", "'ttl_seconds'"},
	    {"{\"ttl_seconds\":1.5}", "'ttl_seconds'"},
	    {"{\"ttl_seconds\":\"60\"}", "'ttl_seconds'"},
	    {"{\"ttl_seconds\":1e300}", "'ttl_seconds'"},
	    {"{\"idle_seconds\":-3}", "'idle_seconds'"},
	    {"{\"auto_hibernate_seconds\":true}", "'auto_hibernate_seconds'"},
	    {"{\"snapshots_max_age_seconds\":-1}",
	     "'snapshots_max_age_seconds' must be a whole number of seconds from 0 to 315360000"},
	    {"{\"snapshots_keep\":-1}",
	     "'snapshots_keep' must be a number from 0 (all) to 1000000"},
	    {"{\"snapshots_keep\":1000001}", "'snapshots_keep'"},
	    {"{\"snapshots_keep\":true}", "'snapshots_keep'"},
	    {"{\"persistent\":\"yes\"}", "'persistent'"},
	    {"{\"cpu\":\"two\"}", "'cpu'"},
	    {"{\"metadata\":[]}", "'metadata'"},
	    {"{\"metadata\":{\"a\":1}}", "'a'"},
	    {"{\"metadata\":{\"\":\"x\"}}", "'metadata'"},
	    {"{\"name\":5}", "'name'"},
	    {"{\"env\":{\"1A\":\"x\"}}", "'1A'"},
	    {"{\"env\":{\"A=B\":\"x\"}}", "'A=B'"},
	    {"{\"env\":{\"A\":5}}", "'A'"},
	    {"{\"env\":\"A=B\"}", "'env'"},
	    {"{\"egress\":\"closed\"}", "'egress'"},
	    {"{\"egress\":\"off\",\"egress_allowlist\":[\"a\"]}", "'egress'"},
	    {"{\"egress_allowlist\":\"a\"}", "'egress_allowlist'"},
	    {"{\"egress_limits\":5}", "'egress_limits'"},
	    {"{\"egress_limits\":{\"up_kbit\":0}}", "up_kbit"},
	    {"{\"egress_limits\":{\"connections\":\"many\"}}", "connections"},
	    {"{\"egress_allowlist\":[\"a b\"]}", "element 0"},
	    {"{\"egress_allowlist\":[\"a\",\"\"]}", "element 1"},
	    {"{\"volumes\":{}}", "'volumes'"},
	    {"{\"volumes\":[5]}", "element 0"},
	    {"{\"volumes\":[\"a\",{\"path\":\"/x\"}]}", "element 1"},
	    {"{\"volumes\":[{\"name\":\"a\",\"path\":\"x\"}]}", "path of element 0"},
	    {"{\"volumes\":[{\"name\":\"a\",\"path\":\"/\"}]}", "path of element 0"},
	    {"{\"volumes\":[{\"name\":\"a\",\"path\":\"/a/../etc\"}]}", "path of element 0"},
	    {"{\"volumes\":[{\"name\":\"a\",\"path\":\"/a/..\"}]}", "path of element 0"},
	    {"{\"volumes\":[{\"name\":\"a\",\"path\":5}]}", "path of element 0"},
	    {"{\"volumes\":[{\"name\":\"a\",\"read_only\":\"no\"}]}", "element 0"},
	    {"{\"volumes\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", "'volumes'"},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		json_t *j = json_loads(cases[i][0], 0, NULL);
		struct sandbox_spec s;
		struct err e = {0};

		assert_non_null(j);
		if (spec_parse(j, &s, &e))
			fail_msg("%s was taken", cases[i][0]);
		assert_string_equal(e.kind, "bad_request");
		if (!strstr(e.text, cases[i][1]))
			fail_msg("%s: '%s' does not name %s", cases[i][0], e.text, cases[i][1]);
		json_decref(j);
	}
}

static int until_failure; /* allocations; 0: none fails */

static void *failing_malloc(size_t n)
{
	if (until_failure && --until_failure == 0)
		return NULL;
	return malloc(n);
}

static void no_memory_is_an_answer_at_every_point(void **state)
{
	json_t *j = json_loads("{\"name\":\"n\",\"metadata\":{\"a\":\"b\"},\"env\":{\"A\":\"x\"},"
	                       "\"egress\":\"off\",\"volumes\":[\"a\",{\"id\":\"b\"}]}",
	                       0, NULL);
	struct sandbox_spec s;
	struct err e;
	bool done = false;
	int nth = 1;

	assert_non_null(j);
	json_set_alloc_funcs(failing_malloc, free);
	for (; !done; nth++) {
		e = (struct err){0};
		until_failure = nth;
		if (spec_parse(j, &s, &e)) {
			done = until_failure > 0; /* nothing left to fail */
			spec_fini(&s);
		} else {
			assert_string_equal(e.kind, "no_memory");
		}
		until_failure = 0;
		assert_true(nth < 1000);
	}
	json_set_alloc_funcs(malloc, free);
	assert_true(nth > 10);
	json_decref(j);
}

static void there_are_limits(void **state)
{
	json_t *j = json_object(), *m = json_object();
	struct sandbox_spec s;
	struct err e;
	char key[16];

	for (int i = 0; i < 65; i++) {
		snprintf(key, sizeof(key), "k%d", i);
		json_object_set_new(m, key, json_string("v"));
	}
	json_object_set(j, "metadata", m);
	assert_false(spec_parse(j, &s, &e));
	json_object_del(m, "k0");
	assert_true(spec_parse(j, &s, &e));
	spec_fini(&s);
	json_decref(m);
	json_decref(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(nothing_is_enough),
	    cmocka_unit_test(all_fields_are_taken),
	    cmocka_unit_test(null_and_zero_mean_none),
	    cmocka_unit_test(volumes_have_many_spellings),
	    cmocka_unit_test(egress_is_a_list_or_a_word),
	    cmocka_unit_test(limits_stand_beside_what_may_be_reached),
	    cmocka_unit_test(what_is_wrong_is_named),
	    cmocka_unit_test(there_are_limits),
	    cmocka_unit_test(no_memory_is_an_answer_at_every_point),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
