/*
 * api/routes/builds.c, as clients see it: the form that orders a build, its state and its log
 */
#include "bed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"

/* Posts a form of name, value pairs up to a NULL; "file:NAME" is a file of that name. */
static void post_form(const char *first, ...) __attribute__((sentinel));
static void post_form(const char *first, ...)
{
	autofree char *body = NULL;
	va_list ap;
	size_t n;
	FILE *f = open_memstream(&body, &n);

	va_start(ap, first);
	for (const char *name = first; name; name = va_arg(ap, const char *)) {
		const char *value = va_arg(ap, const char *);

		fprintf(f, "--XX\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n%s\r\n",
		        strncmp(name, "file:", 5) ? name : name + 5,
		        strncmp(name, "file:", 5) ? "" : "; filename=\"x\"", value);
	}
	va_end(ap);
	fprintf(f, "--XX--\r\n");
	fclose(f);
	with("Content-Type: multipart/form-data; boundary=XX");
	ask_bytes(body, n, "POST /v1/templates/build");
}

static void a_form_that_is_none_is_refused(void **state)
{
	static const char *const types[] = {"application/json", "multipart/form-data",
	                                    "multipart/form-data; boundary=",
	                                    "multipart/mixed; boundary=XX"};
	static const char *const bodies[] = {"no boundary", "--XX\r\nContent-Type: a\r\n\r\nx"};

	bad(400, "bad_request", "multipart/form-data", "{}", "POST /v1/templates/build");
	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		with("Content-Type: %s", types[i]);
		bad(400, "bad_request", "multipart/form-data", "{}", "POST /v1/templates/build");
	}
	for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
		with("Content-Type: multipart/form-data; boundary=XX");
		bad(400, "bad_request", "", bodies[i], "POST /v1/templates/build");
	}
	with("Content-Type: multipart/form-data; boundary=XX");
	ask("--XX\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nab",
	    "POST /v1/templates/build");
	refused(400, "bad_request", "before its last boundary");
	with("Content-Type: multipart/form-data; boundary=XX");
	ask(NULL, "POST /v1/templates/build");
	refused(400, "bad_request", "before its last boundary");
}

static void fields_of_a_form_are_refused_by_name(void **state)
{
	static const char *const wrong[][3] = {
	    {"name", "a b", "name"},
	    {"name", "../x", "name"},
	    {"size_mb", "0", "size_mb"},
	    {"size_mb", "x", "size_mb"},
	    {"size_mb", "16385", "size_mb"},
	    {"cpu", "65", "cpu"},
	    {"cpu", "", "cpu"},
	    {"memory_mb", "64", "memory_mb"},
	    {"memory_mb", "-1", "memory_mb"},
	    {"build_args", "[]", "build_args"},
	    {"build_args", "{", "build_args"},
	    {"build_args", "{\"A\":1}", "'A'"},
	    {"image_ref", "UPPER CASE", "image_ref"},
	    {"colour", "blue", "colour"},
	    {"file:../up", "x", "up"},
	};
	autofree char *large = malloc((2 << 20) + 1);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		post_form("name", "good", wrong[i][0], wrong[i][1], "dockerfile", "FROM base\n",
		          NULL);
		refused(400, "bad_request", wrong[i][2]);
	}
	memset(large, '#', 2 << 20);
	large[2 << 20] = 0;
	post_form("name", "good", "dockerfile", large, NULL);
	refused(413, "too_large", "dockerfile");
	good(200, NULL, "GET /v1/templates/builds");
	body_is("[]");
}

static void an_order_names_what_to_build_from(void **state)
{
	post_form("dockerfile", "FROM base\n", NULL);
	refused(400, "bad_request", "name");
	post_form("name", "good", NULL);
	refused(400, "bad_request", "dockerfile");
	post_form("name", "good", "dockerfile", "FROM base\n", "image_ref", "alpine:3.20", NULL);
	refused(400, "bad_request", "");
	post_form("name", "good", "dockerfile", "FROM nowhere\n", NULL);
	assert_in_range(bed.status, 400, 404);
	assert_non_null(strstr(text_of("error"), "nowhere"));
	post_form("name", "good", "dockerfile", "FROM base\nDANCE\n", NULL);
	refused(400, "bad_request", "DANCE");
	post_form("name", "base", "dockerfile", "FROM base\n", NULL);
	assert_in_range(bed.status, 403, 409);
	good(200, NULL, "GET /v1/templates/builds");
	body_is("[]");
}

static void a_build_is_ordered_looked_at_and_its_log_followed(void **state)
{
	struct client *c;
	char id[64];

	post_form("name", "mine", "dockerfile", "FROM base\nENV A=b\nRUN true\n", "size_mb", "64",
	          "cpu", "1", "memory_mb", "128", "build_args", "{\"X\":\"y\"}", "kernel", "any",
	          "replace", "true", "file:a/b.txt", "content", NULL);
	status_is(202);
	has("{'name':'mine','size_mb':64,'cpu':1,'memory_mb':128,'owner_workspace':'t'}");
	snprintf(id, sizeof(id), "%s", text_of("id"));
	good(200, NULL, "GET /v1/templates/builds/%s", id);
	has("{'id':'%s','name':'mine'}", id);
	as(bed.other);
	bad(404, "build_not_found", id, NULL, "GET /v1/templates/builds/%s", id);
	as(bed.other);
	bad(404, "build_not_found", id, NULL, "GET /v1/templates/builds/%s/logs", id);
	as(bed.other);
	bad(404, "build_not_found", id, NULL, "DELETE /v1/templates/builds/%s", id);
	as(bed.other);
	good(200, NULL, "GET /v1/templates/builds");
	body_is("[]");
	client_leave(stream(200, NULL, "GET /v1/templates/builds/%s/logs?follow=1", id));
	c = stream(200, NULL, "GET /v1/templates/builds/%s/logs?follow=1", id);
	while (strcmp(event_any(c), "log") == 0)
		assert_true(json_is_string(json_object_get(c->data, "line")));
	assert_string_equal(c->name, "done");
	good(200, NULL, "GET /v1/templates/builds/%s", id);
	json_has(c->data, "{'status':'%s'}", text_of("status"));
	assert_true(strlen(text_of("ended_at")) > 10);
	good(200, NULL, "GET /v1/templates/builds");
	has("[{'id':'%s'}]", id);
	/* The log is there afterwards, too. */
	client_leave(c);
	c = stream(200, NULL, "GET /v1/templates/builds/%s/logs", id);
	while (strcmp(event_any(c), "log") == 0)
		;
	assert_string_equal(c->name, "done");
	assert_string_equal(event_any(c), "");
	bad(404, "build_not_found", "none", NULL, "GET /v1/templates/builds/none");
	bad(404, "build_not_found", "none", NULL, "GET /v1/templates/builds/none/logs");
	bad(404, "build_not_found", "none", NULL, "DELETE /v1/templates/builds/none");
}

static void a_build_is_stopped(void **state)
{
	struct client *c;
	char id[64];

	fake_close(bed.on.fake, FAKE_CALL_START); /* its machine does not come */
	fake_close(bed.on.fake, FAKE_CALL_ADOPT);
	post_form("name", "mine", "dockerfile", "FROM base\nRUN true\n", NULL);
	status_is(202);
	snprintf(id, sizeof(id), "%s", text_of("id"));
	good(204, NULL, "DELETE /v1/templates/builds/%s", id);
	fake_open(bed.on.fake, FAKE_CALL_START);
	fake_open(bed.on.fake, FAKE_CALL_ADOPT);
	c = stream(200, NULL, "GET /v1/templates/builds/%s/logs?follow=1", id);
	while (strcmp(event_any(c), "log") == 0)
		;
	json_has(c->data, "{'status':'failed'}");
	good(200, NULL, "GET /v1/templates/builds/%s", id);
	has("{'status':'failed'}");
	assert_true(strlen(text_of("error")) > 5);
	bad(404, "template_not_found", "mine", NULL, "GET /v1/templates/mine");
}

static void an_upload_that_is_given_up_leaves_nothing(void **state)
{
	static const char head[] = "--XX\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nab"
				   "\r\n--XX\r\nContent-Disposition: form-data; name=\"f\"; "
				   "filename=\"f\"\r\n\r\nhalf of a fi";
	struct client *c;

	for (int i = 0; i < 3; i++) {
		with("Content-Type: multipart/form-data; boundary=XX");
		with("Content-Length: 100000");
		c = begin(NULL, "POST /v1/templates/build");
		client_send(c, head, i ? sizeof(head) - 1 : 20);
		if (i < 2)
			good(200, NULL, "GET /v1/templates/builds");
		client_leave(c);
	}
	bed_until(&bed.on, http_server_conns(bed.server) == 0 && !pool_busy(bed.on.host->pool));
	good(200, NULL, "GET /v1/templates/builds");
	body_is("[]");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_form_that_is_none_is_refused),
	    api_test(fields_of_a_form_are_refused_by_name),
	    api_test(an_order_names_what_to_build_from),
	    api_test(a_build_is_ordered_looked_at_and_its_log_followed),
	    api_test(a_build_is_stopped),
	    api_test(an_upload_that_is_given_up_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
