#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/sandbox.h"

static void a_record_comes_back_as_it_was(void **state)
{
	struct sandbox a = {.cpu = 2,
	                    .memory_mb = 512,
	                    .disk_gb = 8,
	                    .boot_ms = 7,
	                    .boot_mode = "fork",
	                    .runner = "python",
	                    .generation = 5,
	                    .end = "why",
	                    .spec = {.ttl_s = 60,
	                             .idle_s = -1,
	                             .auto_hibernate_s = 30,
	                             .persistent = true,
	                             .template = "base",
	                             .from_snapshot = "s"}};
	struct sandbox b = {0};
	json_t *doc, *again;

	a.spec.metadata = json_pack("{s:s}", "k", "v");
	a.spec.volumes = json_pack("[{s:s}]", "name", "v");
	uuid_new(a.parent);
	doc = sandbox_to_doc(&a);
	assert_non_null(doc);
	sandbox_from_doc(&b, doc);
	again = sandbox_to_doc(&b);
	assert_true(json_equal(doc, again));
	assert_string_equal(b.boot_mode, "fork");
	assert_string_equal(b.parent, a.parent);
	json_decref(doc);
	json_decref(again);
	spec_fini(&a.spec);
	spec_fini(&b.spec);
}

/* Also the one that the next change adds. */
static void every_number_of_a_spec_is_recorded(void **state)
{
	struct sandbox a = {.boot_mode = "cold", .runner = "shell", .generation = 1}, b = {0};
	int64_t value = 1;
	json_t *doc;

	spec_init(&a.spec);
	for (const struct spec_number *n = spec_numbers; n->key; n++) {
		assert_int_equal(*spec_number(&a.spec, n), -1);
		*spec_number(&a.spec, n) = value++;
	}
	assert_int_equal(a.spec.ttl_s, 1);
	doc = sandbox_to_doc(&a);
	assert_int_equal(json_integer_value(json_object_get(doc, "auto_hibernate_s")),
	                 a.spec.auto_hibernate_s);
	sandbox_from_doc(&b, doc);
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		assert_int_equal(*spec_number(&b.spec, n), *spec_number(&a.spec, n));
	json_decref(doc);
	spec_fini(&b.spec);
}

static void a_record_with_nothing_in_it_is_harmless(void **state)
{
	struct sandbox b = {0};
	json_t *doc =
	    json_pack("{s:i, s:s, s:s}", "template", 5, "boot_mode", "strange", "cpu", "x");

	sandbox_from_doc(&b, doc);
	assert_string_equal(b.spec.template, "");
	assert_string_equal(b.boot_mode, "snapshot");
	assert_int_equal(b.cpu, 1);
	assert_int_equal(b.spec.ttl_s, -1);
	json_decref(doc);
}

static void every_state_has_a_word_that_is_read_back(void **state)
{
	enum sandbox_state got;

	for (int s = 0; s < SANDBOX_STATES; s++) {
		assert_true(sandbox_state_parse(sandbox_state_record(s), &got));
		assert_int_equal(got, s);
		assert_non_null(sandbox_state_name(s));
	}
	assert_false(sandbox_state_parse("nonsense", &got));
}

static void a_spec_is_copied_deeply(void **state)
{
	struct sandbox_spec a = {.metadata = json_pack("{s:s}", "k", "v")}, b;

	assert_int_equal(spec_copy(&a, &b), 0);
	json_object_set_new(b.metadata, "k", json_string("other"));
	assert_string_equal(json_string_value(json_object_get(a.metadata, "k")), "v");
	spec_fini(&a);
	spec_fini(&b);
}

static void uuids_are_of_version_4_and_differ(void **state)
{
	char a[SANDBOX_ID + 1], b[SANDBOX_ID + 1];

	uuid_new(a);
	uuid_new(b);
	assert_string_not_equal(a, b);
	assert_int_equal(strlen(a), SANDBOX_ID);
	assert_int_equal(a[14], '4');
	assert_non_null(strchr("89ab", a[19]));
}

static void ttl_counts_from_creation(void **state)
{
	struct sandbox sb = {.created_ms = 1000, .spec.ttl_s = 5};

	assert_int_equal(sandbox_expires_ms(&sb), 6000);
	sb.spec.ttl_s = -1;
	assert_int_equal(sandbox_expires_ms(&sb), 0);
}

/* The drawing of sandbox.h, read once more. */
static void states_are_entered_along_the_arrows_only(void **state)
{
	static const struct {
		enum sandbox_state from;
		const char
		    *to; /* R(unning), P(aused), h(ibernating), H(ibernated), W(aking), F(ailed) */
	} arrows[] = {
	    {SANDBOX_CREATING, "R"},    {SANDBOX_RUNNING, "PhF"},  {SANDBOX_PAUSED, "RhF"},
	    {SANDBOX_HIBERNATING, "H"}, {SANDBOX_HIBERNATED, "W"}, {SANDBOX_WAKING, "R"},
	    {SANDBOX_KILLING, ""},      {SANDBOX_FAILED, ""},      {SANDBOX_REWINDING, "R"},
	};
	static const char letters[SANDBOX_STATES + 1] = "CRPhHWKFr";

	assert_int_equal(ARRAY_LEN(arrows), SANDBOX_STATES);
	for (size_t i = 0; i < ARRAY_LEN(arrows); i++)
		for (int to = 0; to < SANDBOX_STATES; to++)
			assert_int_equal(sandbox_may_go(arrows[i].from, (enum sandbox_state)to),
			                 strchr(arrows[i].to, letters[to]) != NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_record_comes_back_as_it_was),
	    cmocka_unit_test(every_number_of_a_spec_is_recorded),
	    cmocka_unit_test(a_record_with_nothing_in_it_is_harmless),
	    cmocka_unit_test(every_state_has_a_word_that_is_read_back),
	    cmocka_unit_test(a_spec_is_copied_deeply),
	    cmocka_unit_test(uuids_are_of_version_4_and_differ),
	    cmocka_unit_test(ttl_counts_from_creation),
	    cmocka_unit_test(states_are_entered_along_the_arrows_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
