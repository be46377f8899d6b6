/*
 * api/routes.c: what holds for each route of the table, whatever it does
 */
#include "bed.h"

#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"

#include "base/macro.h"

/* A path that this route takes: of that sandbox, and of things that are not there. */
static void path_of(const struct route *r, const char *id, char *ret, size_t size)
{
	size_t n = 0;

	for (const char *p = r->path; *p; p++) {
		const char *word = NULL;

		if (*p != '{') {
			ret[n++] = *p;
		} else {
			word = !strncmp(p, "{id}", 4) ? id : !strncmp(p, "{port}", 6) ? "80" : "7";
			n += (size_t)snprintf(ret + n, size - n, "%s", word);
			p = strchr(p, '}');
		}
		assert_true(n + 1 < size);
	}
	ret[n] = 0;
}

static const char *method_of(const struct route *r)
{
	return *r->method == '*' ? "GET" : r->method;
}

/* The path of a HEAD has no body in its answer: GET on the same path says the same. */
static const char *telling(const struct route *r)
{
	return strcmp(r->method, "HEAD") ? method_of(r) : "GET";
}

static const char *body_of(const struct route *r)
{
	return r->body == BODY_NONE ? NULL : "{}";
}

static void without_a_token_every_route_but_the_open_ones_is_401(void **state)
{
	const char *id = sandbox_made(NULL);
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		path_of(&routes[i], id, path, sizeof(path));
		if (routes[i].scope == SCOPE_NONE)
			continue;
		as("");
		bad(401, "unauthorized", "unauthorized", body_of(&routes[i]), "%s %s",
		    telling(&routes[i]), path);
		has("{'detail':'missing bearer token'}");
		assert_string_equal(header("WWW-Authenticate"), "Bearer");
	}
	good(200, NULL, "GET /v1/sandboxes/%s", id);
}

static void with_a_token_that_is_none_every_route_is_401(void **state)
{
	const char *id = sandbox_made(NULL);
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		path_of(&routes[i], id, path, sizeof(path));
		if (routes[i].scope == SCOPE_NONE)
			continue;
		as(i % 2 ? "pds_00000000000000000000000000000000" : "of nobody");
		bad(401, "unauthorized", "unauthorized", body_of(&routes[i]), "%s %s",
		    telling(&routes[i]), path);
		has("{'detail':'invalid api token'}");
	}
}

static void a_sandbox_of_another_tenant_is_not_there(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = 0;
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		if (!routes[i].sandbox)
			continue;
		n++;
		path_of(&routes[i], id, path, sizeof(path));
		as(bed.other);
		bad(404, "sandbox_not_found", id, body_of(&routes[i]), "%s %s", telling(&routes[i]),
		    path);
		as(bed.admin); /* an admin's sandboxes are those of the admin's tenant */
		bad(404, "sandbox_not_found", id, body_of(&routes[i]), "%s %s", telling(&routes[i]),
		    path);
	}
	assert_true(n > 60);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'running'}");
}

static void a_method_that_is_not_for_a_path_is_405_with_those_that_are(void **state)
{
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		if (*routes[i].method == '*')
			continue;
		path_of(&routes[i], "x", path, sizeof(path));
		bad(405, "method_not_allowed", "PROPFIND", NULL, "PROPFIND %s", path);
		if (!strstr(header("Allow"), routes[i].method))
			fail_msg("%s: Allow is '%s', without %s", path, header("Allow"),
			         routes[i].method);
	}
}

static void a_body_that_is_no_json_object_is_400(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = 0;
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		if (routes[i].body != BODY_JSON)
			continue;
		n++;
		path_of(&routes[i], id, path, sizeof(path));
		bad(400, "bad_json", "line 1", "{'a':", "%s %s", routes[i].method, path);
		bad(400, "bad_json", "object", "[1]", "%s %s", routes[i].method, path);
		bad(400, "bad_json", "line 1", "'text'", "%s %s", routes[i].method, path);
		bad(400, "bad_json", "", "{'a':1} x", "%s %s", routes[i].method, path);
	}
	assert_true(n > 30);
}

static void a_body_that_is_too_long_is_413_before_it_is_read(void **state)
{
	struct client *c;
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		if (routes[i].body != BODY_JSON || routes[i].sandbox)
			continue;
		path_of(&routes[i], "x", path, sizeof(path));
		with("Content-Length: %d", API_JSON_MAX + 1);
		c = begin(NULL, "%s %s", routes[i].method, path);
		client_answer(c);
		refused(413, "too_large", "4194304 bytes");
		client_leave(c);
	}
}

static void a_chunked_body_that_grows_too_long_is_413(void **state)
{
	static char piece[64 << 10];
	struct client *c;

	memset(piece, ' ', sizeof(piece));
	with("Transfer-Encoding: chunked");
	c = begin(NULL, "POST /v1/volumes");
	for (size_t sent = 0; sent <= API_JSON_MAX && !c->over; sent += sizeof(piece)) {
		client_send(c, "10000\r\n", 7);
		client_send(c, piece, sizeof(piece));
		client_send(c, "\r\n", 2);
	}
	client_answer(c);
	refused(413, "too_large", "");
}

static void fields_that_are_not_known_are_ignored(void **state)
{
	good(201, "{'color':'blue','deep':{'er':[1,2]},'template':null}", "POST /v1/sandboxes");
	good(201, "{'name':'v','shape':'round'}", "POST /v1/volumes");
	good(200, "{'label':'x','cake':true}", "POST /v1/me/tokens");
}

static void a_blank_body_is_an_empty_object(void **state)
{
	good(201, "", "POST /v1/sandboxes");
	good(201, " \t\r\n ", "POST /v1/sandboxes");
	good(201, NULL, "POST /v1/sandboxes");
}

static void paths_that_are_none_are_404(void **state)
{
	static const char *const paths[] = {"/",
	                                    "/v1",
	                                    "/v1/",
	                                    "/v2/sandboxes",
	                                    "/v1/sandboxe",
	                                    "/v1/sandboxes/x/y",
	                                    "/favicon.ico",
	                                    "//v1/sandboxes"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		bad(404, "not_found", "/docs", NULL, "GET %s", paths[i]);
	bad(400, "bad_request", "percent escape", NULL, "GET /v1/sandboxes/%%zz");
	bad(400, "bad_path", "percent-encoded", NULL, "GET /v1/sandboxes/%%ff");
	bad(404, "sandbox_not_found", "a/b", NULL, "GET /v1/sandboxes/a%%2fb");
}

static void a_browser_may_ask_first(void **state)
{
	char path[200];

	for (size_t i = 0; i < nroutes; i++) {
		if (routes[i].scope == SCOPE_NONE)
			continue;
		path_of(&routes[i], "x", path, sizeof(path));
		as("");
		with("Origin: https://example.com");
		with("Access-Control-Request-Method: %s", routes[i].method);
		good(204, NULL, "OPTIONS %s", path);
		assert_string_equal(header("Access-Control-Allow-Origin"), "*");
		assert_non_null(strstr(header("Access-Control-Allow-Headers"), "Authorization"));
		assert_non_null(strstr(header("Access-Control-Allow-Methods"), "PATCH"));
	}
}

static void what_needs_no_token_is_not_for_other_pages(void **state)
{
	static const char *const paths[] = {"/healthz", "/version", "/metrics", "/openapi.json",
	                                    "/docs"};

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		as("");
		with("Origin: https://example.com");
		good(200, NULL, "GET %s", paths[i]);
		assert_string_equal(header("Access-Control-Allow-Origin"), "");
	}
	bed_api_close();
	bed.config.metrics_token = true;
	bed_api_open();
	as("");
	bad(401, "unauthorized", "", NULL, "GET /metrics");
	good(200, NULL, "GET /metrics");
	as("");
	good(200, NULL, "GET /healthz");
}

static void a_decent_request_id_is_the_clients(void **state)
{
	with("X-Request-Id: mine-17");
	good(200, NULL, "GET /v1/me");
	assert_string_equal(header("X-Request-Id"), "mine-17");
	with("X-Request-Id: with space");
	good(200, NULL, "GET /v1/me");
	assert_int_equal(strlen(header("X-Request-Id")), 16);
	with("X-Request-Id: quote\"d");
	bad(404, "sandbox_not_found", "x", NULL, "GET /v1/sandboxes/x");
	assert_int_equal(strlen(header("X-Request-Id")), 16);
	with("X-Request-Id: %0200d", 0);
	good(200, NULL, "GET /v1/me");
	assert_int_equal(strlen(header("X-Request-Id")), 16);
	assert_non_null(strstr(header("Access-Control-Expose-Headers"), "X-Request-Id"));
}

static void a_token_may_stand_in_the_query_of_a_stream_alone(void **state)
{
	const char *id = sandbox_made(NULL);

	as("");
	good(200, NULL, "GET /v1/sandboxes/%s/events?access_token=%s", id, bed.mine);
	as("");
	bad(404, "sandbox_not_found", "", NULL, "GET /v1/sandboxes/%s/events?access_token=%s", id,
	    bed.other);
	as("");
	bad(401, "unauthorized", "", NULL, "GET /v1/events?access_token=");
	/* What stands in the head counts. */
	good(200, NULL, "GET /v1/sandboxes/%s/events?access_token=%s", id, bed.other);
	as("pds_00000000000000000000000000000000");
	bad(401, "unauthorized", "", NULL, "GET /v1/sandboxes/%s/events?access_token=%s", id,
	    bed.mine);
	/* Elsewhere it would end in logs, histories, and in a guest's page. */
	as("");
	bad(401, "unauthorized", "", NULL, "GET /v1/me?access_token=%s", bed.mine);
	has("{'detail':'a token in the URL is for WebSockets and event streams only: send it in "
	    "the header Authorization'}");
	as("");
	bad(401, "unauthorized", "", NULL, "DELETE /v1/sandboxes/%s?access_token=%s", id, bed.mine);
	as("");
	bad(401, "unauthorized", "", NULL, "GET /v1/sandboxes/%s/proxy/80/?access_token=%s", id,
	    bed.mine);
}

static void what_is_no_http_is_answered_in_our_words(void **state)
{
	struct client *c = client_new();

	client_send(c, "NONSENSE\r\n\r\n", 12);
	client_answer(c);
	refused(400, "bad_request", "");
	client_end(c);
	c = client_new();
	client_send(c, "GET /v1/me HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 41);
	client_answer(c);
	refused(400, "bad_request", "");
}

static void a_connection_serves_one_request_after_another(void **state)
{
	struct client *c = client_new();
	char text[400];
	size_t n = (size_t)snprintf(text, sizeof(text),
	                            "GET /v1/repl/languages HTTP/1.1\r\nHost: x\r\n"
	                            "Authorization: bearer  %s\r\n\r\n"
	                            "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	                            bed.mine);

	client_send(c, text, n);
	client_end(c);
	assert_int_equal(strncmp(c->in, "HTTP/1.1 200", 12), 0);
	assert_non_null(strstr(c->in, "\"javascript\""));
	assert_non_null(strstr(client_body(c), "HTTP/1.1 200"));
	assert_non_null(strstr(client_body(c), "\"status\":\"ok\""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(without_a_token_every_route_but_the_open_ones_is_401),
	    api_test(with_a_token_that_is_none_every_route_is_401),
	    api_test(a_sandbox_of_another_tenant_is_not_there),
	    api_test(a_method_that_is_not_for_a_path_is_405_with_those_that_are),
	    api_test(a_body_that_is_no_json_object_is_400),
	    api_test(a_body_that_is_too_long_is_413_before_it_is_read),
	    api_test(a_chunked_body_that_grows_too_long_is_413),
	    api_test(fields_that_are_not_known_are_ignored),
	    api_test(a_blank_body_is_an_empty_object),
	    api_test(paths_that_are_none_are_404),
	    api_test(a_browser_may_ask_first),
	    api_test(what_needs_no_token_is_not_for_other_pages),
	    api_test(a_decent_request_id_is_the_clients),
	    api_test(a_token_may_stand_in_the_query_of_a_stream_alone),
	    api_test(what_is_no_http_is_answered_in_our_words),
	    api_test(a_connection_serves_one_request_after_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
