/*
 * api/router.c over the real table
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"

/* "/v1/sandboxes/{id}/proxy/{port}/{rest...}" becomes "/v1/sandboxes/X/proxy/X/X/X" */
static void sample(const char *pattern, char *ret, size_t n)
{
	size_t at = 0;

	while (*pattern) {
		if (*pattern == '{') {
			const char *end = strchr(pattern, '}');
			const char *with = end[-1] == '.' ? "X/X" : "X";

			at += (size_t)snprintf(ret + at, n - at, "%s", with);
			pattern = end + 1;
		} else {
			ret[at++] = *pattern++;
			ret[at] = 0;
		}
		assert_true(at < n - 8);
	}
}

static size_t params_of(const char *pattern)
{
	size_t n = 0;

	for (; *pattern; pattern++)
		n += *pattern == '{';
	return n;
}

static void every_route_is_found_by_a_path_of_its_own(void **state)
{
	for (size_t i = 0; i < nroutes; i++) {
		const char *method = strcmp(routes[i].method, "*") ? routes[i].method : "PUT";
		char path[200];
		struct route_match m;

		sample(routes[i].path, path, sizeof(path));
		if (route_find(method, path, &m) != 0 || m.route != &routes[i])
			fail_msg("%s %s is taken by another route", method, routes[i].path);
		for (size_t k = 0; k < API_PARAMS_MAX; k++)
			assert_int_equal(m.param[k] != NULL, k < params_of(routes[i].path));
		match_fini(&m);
	}
}

static void no_two_routes_are_the_same(void **state)
{
	for (size_t i = 0; i < nroutes; i++)
		for (size_t k = i + 1; k < nroutes; k++)
			if (!strcmp(routes[i].path, routes[k].path) &&
			    !strcmp(routes[i].method, routes[k].method))
				fail_msg("%s %s is there twice", routes[i].method, routes[i].path);
}

static void routes_are_well_formed(void **state)
{
	for (size_t i = 0; i < nroutes; i++) {
		const struct route *r = &routes[i];

		assert_int_equal(r->path[0], '/');
		assert_true(params_of(r->path) <= API_PARAMS_MAX);
		assert_non_null(r->run);
		assert_true(r->tag[0] && r->summary[0]);
		assert_true(r->status >= 101 && r->status < 300);
		/* run() takes the first parameter for the sandbox. */
		assert_int_equal(r->sandbox, strncmp(r->path, "/v1/sandboxes/{id}", 18) == 0);
		if (r->sandbox)
			assert_int_not_equal(r->scope, SCOPE_NONE);
		assert_false(r->body == BODY_NONE && r->request);
		assert_false(r->body != BODY_NONE && !r->request);
		/* 204 has no body */
		assert_false(r->status == 204 && r->reply);
	}
}

static void only_these_need_no_token(void **state)
{
	static const char *const open[] = {
	    "/v1/p/{token}/{rest...}", "/healthz", "/version", "/v1/version", "/metrics",
	    "/openapi.json",           "/docs"};

	for (size_t i = 0; i < nroutes; i++) {
		bool expected = false;

		for (size_t k = 0; k < sizeof(open) / sizeof(open[0]); k++)
			expected |= strcmp(open[k], routes[i].path) == 0;
		assert_int_equal(routes[i].scope == SCOPE_NONE, expected);
	}
}

static void finds(const char *method, const char *path, const char *pattern, const char *p0,
                  const char *p1, const char *p2)
{
	const char *want[API_PARAMS_MAX] = {p0, p1, p2};
	struct route_match m;

	if (route_find(method, path, &m) != 0)
		fail_msg("%s %s is not found", method, path);
	assert_string_equal(m.route->path, pattern);
	for (size_t i = 0; i < 3; i++)
		if (want[i])
			assert_string_equal(m.param[i], want[i]);
		else
			assert_null(m.param[i]);
	match_fini(&m);
}

static void parameters_are_decoded_and_what_is_for_the_guest_is_not(void **state)
{
	finds("GET", "/v1/sandboxes/a%20b", "/v1/sandboxes/{id}", "a b", NULL, NULL);
	finds("GET", "/v1/volumes/a%2Fb", "/v1/volumes/{name}", "a/b", NULL, NULL);
	finds("GET", "/v1/volumes/a+b", "/v1/volumes/{name}", "a+b", NULL, NULL);
	finds("POST", "/v1/sandboxes/i/proxy/80/a%20b//c",
	      "/v1/sandboxes/{id}/proxy/{port}/{rest...}", "i", "80", "a%20b//c");
	finds("GET", "/v1/sandboxes/i/proxy/80/", "/v1/sandboxes/{id}/proxy/{port}/{rest...}", "i",
	      "80", "");
	finds("GET", "/v1/sandboxes/i/proxy/80", "/v1/sandboxes/{id}/proxy/{port}/{rest...}", "i",
	      "80", "");
	finds("DELETE", "/v1/p/t", "/v1/p/{token}/{rest...}", "t", "", NULL);
}

static void literal_segments_win_and_a_last_slash_is_nothing(void **state)
{
	finds("GET", "/v1/templates/builds", "/v1/templates/builds", NULL, NULL, NULL);
	finds("GET", "/v1/templates/base", "/v1/templates/{name}", "base", NULL, NULL);
	finds("GET", "/v1/sandboxes/", "/v1/sandboxes", NULL, NULL, NULL);
	finds("GET", "/v1/sandboxes/i/fs/", "/v1/sandboxes/{id}/fs", "i", NULL, NULL);
}

static void what_is_not_there_is_not_found(void **state)
{
	static const char *const paths[] = {"/",
	                                    "/v1",
	                                    "/v2/sandboxes",
	                                    "//v1/sandboxes",
	                                    "/v1//sandboxes",
	                                    "/v1/sandbox",
	                                    "/v1/sandboxes/i/nope",
	                                    "/v1/sandboxes//fs",
	                                    "/healthz/x",
	                                    "/V1/sandboxes",
	                                    "*",
	                                    "",
	                                    "/v1/sandboxes/i//",
	                                    "/v1/sandboxes/i/fs/dir/x"};
	struct route_match m;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		assert_int_equal(route_find("GET", paths[i], &m), -ENOENT);
}

static void a_wrong_method_is_told_the_right_ones(void **state)
{
	struct route_match m;

	assert_int_equal(route_find("PUT", "/v1/sandboxes", &m), -EPERM);
	assert_string_equal(m.allow, "POST, GET");
	assert_int_equal(route_find("GET", "/mcp", &m), -EPERM);
	assert_string_equal(m.allow, "POST");
	assert_int_equal(route_find("POST", "/v1/sandboxes/i/fs", &m), -EPERM);
	assert_string_equal(m.allow, "GET, HEAD, PUT, DELETE");
	/* Streams have no end: HEAD would wait for it. */
	assert_int_equal(route_find("HEAD", "/v1/sandboxes/i/logs", &m), -EPERM);
	finds("HEAD", "/healthz", "/healthz", NULL, NULL, NULL);
}

static void bad_encodings_are_refused(void **state)
{
	static const char *const paths[] = {"/v1/volumes/%", "/v1/volumes/%2", "/v1/volumes/%zz",
	                                    "/v1/volumes/a%00b", "/v1/volumes/%ff"};
	struct route_match m;

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		assert_int_equal(route_find("GET", paths[i], &m), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_route_is_found_by_a_path_of_its_own),
	    cmocka_unit_test(no_two_routes_are_the_same),
	    cmocka_unit_test(routes_are_well_formed),
	    cmocka_unit_test(only_these_need_no_token),
	    cmocka_unit_test(parameters_are_decoded_and_what_is_for_the_guest_is_not),
	    cmocka_unit_test(literal_segments_win_and_a_last_slash_is_nothing),
	    cmocka_unit_test(what_is_not_there_is_not_found),
	    cmocka_unit_test(a_wrong_method_is_told_the_right_ones),
	    cmocka_unit_test(bad_encodings_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
