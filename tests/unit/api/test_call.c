/*
 * api/call.c: what needs no connection: kinds, times, fields
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"

static void every_kind_of_the_contract_has_its_status(void **state)
{
	static const struct {
		const char *kind;
		int status;
	} want[] = {
	    {"bad_request", 400},
	    {"bad_json", 400},
	    {"bad_path", 400},
	    {"unauthorized", 401},
	    {"forbidden", 403},
	    {"not_found", 404},
	    {"sandbox_not_found", 404},
	    {"snapshot_not_found", 404},
	    {"file_not_found", 404},
	    {"exec_not_found", 404},
	    {"volume_not_found", 404},
	    {"template_not_found", 404},
	    {"method_not_allowed", 405},
	    {"conflict", 409},
	    {"sandbox_paused", 409},
	    {"sandbox_failed", 409},
	    {"sandbox_busy", 409},
	    {"volume_busy", 409},
	    {"exists", 409},
	    {"too_large", 413},
	    {"quota_exceeded", 429},
	    {"rate_limited", 429},
	    {"internal", 500},
	    {"not_implemented", 501},
	    {"guest_gone", 502},
	    {"upstream", 502},
	    {"host_full", 503},
	    {"shutting_down", 503},
	    {"disk_full", 507},
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		if (api_status_of(want[i].kind) != want[i].status)
			fail_msg("%s is %d", want[i].kind, api_status_of(want[i].kind));
	/* What nobody thought of is our fault, not the client's. */
	assert_int_equal(api_status_of("never_heard_of"), 500);
	assert_int_equal(api_status_of(""), 500);
	assert_int_equal(api_status_of(NULL), 500);
}

static void shows(uint64_t ms, const char *text)
{
	json_t *j = json_time(ms);

	assert_string_equal(json_string_value(j), text);
	json_decref(j);
}

static void times_are_rfc_3339_in_utc_with_ms(void **state)
{
	shows(0, "1970-01-01T00:00:00.000Z");
	shows(1, "1970-01-01T00:00:00.001Z");
	shows(951782400999, "2000-02-29T00:00:00.999Z");
	shows(1794762090123, "2026-11-15T17:01:30.123Z");
}

static void since_is_a_time_or_seconds(void **state)
{
	uint64_t ms = 0;

	assert_true(parse_since("2026-11-15T17:01:30Z", &ms));
	assert_int_equal(ms, 1794762090000);
	assert_true(parse_since("2026-11-15T17:01:30.5Z", &ms));
	assert_true(parse_since("2026-11-15T17:01:30+00:00", &ms));
	assert_true(parse_since("1794762090", &ms));
	assert_int_equal(ms, 1794762090000);
	assert_false(parse_since("", &ms));
	assert_false(parse_since("yesterday", &ms));
	assert_false(parse_since("-5", &ms));
	assert_false(parse_since("12x", &ms));
	assert_false(parse_since("2026-11-15T17:01:30", &ms));
	assert_false(parse_since("99999999999999999999", &ms));
}

/* A call whose client has gone: answers go nowhere, so only the verdict is seen. */
static struct call with(const char *text)
{
	struct call c = {.body = json_loads(text, 0, NULL)};

	assert_non_null(c.body);
	return c;
}

static void whole_numbers_are_whole_and_within_bounds(void **state)
{
	struct call c =
	    with("{\"a\":5,\"f\":5.0,\"h\":5.5,\"s\":\"5\",\"n\":null,\"big\":1e30,\"neg\":-1}");
	int64_t n = 0;

	assert_true(call_int(&c, "a", 0, 0, 10, &n));
	assert_int_equal(n, 5);
	n = 0;
	assert_true(call_int(&c, "f", 0, 0, 10, &n));
	assert_int_equal(n, 5);
	assert_false(call_int(&c, "h", 0, 0, 10, &n));
	assert_false(call_int(&c, "s", 0, 0, 10, &n));
	assert_false(call_int(&c, "big", 0, 0, 10, &n));
	assert_false(call_int(&c, "neg", 0, 0, 10, &n));
	assert_false(call_int(&c, "a", 0, 6, 10, &n));
	assert_true(call_int(&c, "n", -7, 0, 10, &n));
	assert_int_equal(n, -7);
	assert_true(call_int(&c, "absent", -7, 0, 10, &n));
	assert_int_equal(n, -7);
	json_decref(c.body);
}

static void strings_and_booleans_are_what_they_are(void **state)
{
	struct call c = with("{\"s\":\"x\",\"b\":true,\"n\":null,\"i\":1}");
	const char *s = NULL;
	bool b = false;

	assert_true(call_str(&c, "s", NULL, &s));
	assert_string_equal(s, "x");
	assert_true(call_str(&c, "n", "other", &s));
	assert_string_equal(s, "other");
	assert_false(call_str(&c, "i", NULL, &s));
	assert_true(call_bool(&c, "b", false, &b));
	assert_true(b);
	assert_true(call_bool(&c, "n", true, &b));
	assert_false(call_bool(&c, "i", true, &b));
	assert_false(call_bool(&c, "s", true, &b));
	json_decref(c.body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_kind_of_the_contract_has_its_status),
	    cmocka_unit_test(times_are_rfc_3339_in_utc_with_ms),
	    cmocka_unit_test(since_is_a_time_or_seconds),
	    cmocka_unit_test(whole_numbers_are_whole_and_within_bounds),
	    cmocka_unit_test(strings_and_booleans_are_what_they_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
