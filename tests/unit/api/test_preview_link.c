#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/routes/ports.h"
#include "api/routes/preview_link.h"
#include "base/macro.h"

static const unsigned char key[PREVIEW_KEY] = "thirty-two bytes of a secret key";
static const struct preview signed_link = {.sandbox = "0f8fad5b-d9cb-469f-a165-70867728950e",
                                           .tenant = "local",
                                           .port = 8000,
                                           .expires_s = 2000,
                                           .paths = "/api,/static/"};

static void a_link_says_what_was_signed(void **state)
{
	char token[PREVIEW_TOKEN_MAX];
	struct preview got;
	struct err e;

	assert_int_equal(preview_sign(key, &signed_link, token), 0);
	assert_int_equal(preview_check(key, token, 1999, &got, &e), 0);
	assert_string_equal(got.sandbox, signed_link.sandbox);
	assert_string_equal(got.tenant, signed_link.tenant);
	assert_string_equal(got.paths, signed_link.paths);
	assert_int_equal(got.port, 8000);
	assert_int_equal(got.expires_s, 2000);
}

static void a_link_ends_and_cannot_be_changed(void **state)
{
	unsigned char other[PREVIEW_KEY] = {1};
	char token[PREVIEW_TOKEN_MAX];
	struct preview got;
	struct err e;

	assert_int_equal(preview_sign(key, &signed_link, token), 0);
	assert_true(preview_check(key, token, 2000, &got, &e) < 0);
	assert_string_equal(e.kind, "unauthorized");
	assert_non_null(strstr(e.text, "expired"));
	assert_true(preview_check(other, token, 1000, &got, &e) < 0);
	for (size_t i = 0; token[i]; i++) { /* also the last letter, which has spare bits */
		char was = token[i];

		token[i] = was == 'A' ? 'B' : 'A';
		assert_true(preview_check(key, token, 1000, &got, &e) < 0);
		token[i] = (char)(was ^ 1);
		assert_true(preview_check(key, token, 1000, &got, &e) < 0);
		token[i] = was;
	}
	for (size_t n = strlen(token); n-- > 0;) {
		token[n] = 0;
		assert_true(preview_check(key, token, 1000, &got, &e) < 0);
	}
}

/* Links of 0.1.0 say none: that is the first one. */
static void a_link_is_of_an_epoch(void **state)
{
	static const char *const paths[] = {"", "/api,/static/"};
	struct preview p = signed_link, got;
	char token[PREVIEW_TOKEN_MAX], first[PREVIEW_TOKEN_MAX];
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		snprintf(p.paths, sizeof(p.paths), "%s", paths[i]);
		p.epoch = 0;
		assert_int_equal(preview_sign(key, &p, first), 0);
		assert_int_equal(preview_check(key, first, 1000, &got, &e), 0);
		assert_int_equal(got.epoch, 0);
		p.epoch = 7;
		assert_int_equal(preview_sign(key, &p, token), 0);
		assert_string_not_equal(token, first);
		assert_int_equal(preview_check(key, token, 1000, &got, &e), 0);
		assert_int_equal(got.epoch, 7);
		assert_string_equal(got.paths, paths[i]);
	}
}

static void a_tenant_cannot_smuggle_a_field(void **state)
{
	struct preview p = signed_link;
	char token[PREVIEW_TOKEN_MAX];

	snprintf(p.tenant, sizeof(p.tenant), "a|/");
	assert_int_equal(preview_sign(key, &p, token), -EINVAL);
}

static void paths_are_whole_segments_without_a_way_out(void **state)
{
	static const char *const in[] = {"/api", "/api/", "/api/x", "/static/a.css"};
	static const char *const out[] = {"/",         "/apis",         "/static",
	                                  "/api/../x", "/api/%2E%2e/x", "/static//etc",
	                                  "/api/..",   "/api/..%2fetc", "/static/\\..\\x"};
	struct preview all = signed_link;

	for (size_t i = 0; i < ARRAY_LEN(in); i++)
		assert_true(preview_allows(&signed_link, in[i]));
	for (size_t i = 0; i < ARRAY_LEN(out); i++)
		assert_false(preview_allows(&signed_link, out[i]));
	all.paths[0] = 0;
	assert_true(preview_allows(&all, "/api/../x"));
}

static void host_names_of_previews(void **state)
{
	static const char id[] = "0f8fad5b-d9cb-469f-a165-70867728950e";
	static const char *const not_ours[] = {
	    "localhost",
	    "8000.localhost",
	    "-8000-x.localhost",
	    "0-x.localhost",
	    "65536-x.localhost",
	    "123456-x.localhost",
	    "8000-.localhost",
	    "8000-a_b.localhost",
	    "8000-x.y.localhost",
	    "8000-x.localhost.evil",
	    "8000-xlocalhost",
	    "8000-0f8fad5b-d9cb-469f-a165-70867728950e-longer.localhost",
	    "",
	};
	char got[SANDBOX_ID + 1], host[128];
	unsigned port;

	snprintf(host, sizeof(host), "8000-%s.localhost", id);
	assert_true(preview_host(host, "localhost", &port, got));
	assert_int_equal(port, 8000);
	assert_string_equal(got, id);
	assert_true(preview_host(host, ".localhost", &port, got));
	assert_false(preview_host(host, "host", &port, got));
	snprintf(host, sizeof(host), "1-%s.LocalHost:8080", id);
	assert_true(preview_host(host, "localhost", &port, got));
	for (size_t i = 0; i < ARRAY_LEN(not_ours); i++)
		assert_false(preview_host(not_ours[i], "localhost", &port, got));
}

static void listeners_are_found_in_proc(void **state)
{
	static const char table[] =
	    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
	    "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
	    "   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n"
	    "   2: 0100007F:1F91 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0\n"
	    "   3: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0a "
	    "x\n"
	    "   4: 0100007F:12345 00000000:0000 0A\n"
	    "nonsense\n::::\n\n   5: 0100007F:\n"
	    "   6: 0100007F:2710 00000000:0000 0A"; /* not a whole line */
	struct port_set s = {0};
	unsigned n = 0;

	ports_parse(table, strlen(table), &s);
	for (unsigned p = 0; p <= 0xffff; p++)
		n += ports_has(&s, p);
	assert_int_equal(n, 3);
	assert_true(ports_has(&s, 8080) && ports_has(&s, 22) && ports_has(&s, 3000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_link_says_what_was_signed),
	    cmocka_unit_test(a_link_ends_and_cannot_be_changed),
	    cmocka_unit_test(a_link_is_of_an_epoch),
	    cmocka_unit_test(a_tenant_cannot_smuggle_a_field),
	    cmocka_unit_test(paths_are_whole_segments_without_a_way_out),
	    cmocka_unit_test(host_names_of_previews),
	    cmocka_unit_test(listeners_are_found_in_proc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
