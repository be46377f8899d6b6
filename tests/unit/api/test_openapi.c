/*
 * api/openapi.c, api/reference.c, api/schemas.c: the description is whole
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "api/schemas.h"
#include "base/cleanup.h"
#include "base/macro.h"
#include "common/phrase.h"

static json_t *doc;

static int make(void **state)
{
	doc = api_openapi();
	return doc ? 0 : -1;
}

static int drop(void **state)
{
	json_decref(doc);
	return 0;
}

/* "#/components/schemas/X" */
static const json_t *resolve(const char *ref)
{
	const json_t *at = doc;

	assert_int_equal(strncmp(ref, "#/", 2), 0);
	for (ref += 2; at && *ref;) {
		size_t n = strcspn(ref, "/");
		char key[64];

		snprintf(key, sizeof(key), "%.*s", (int)n, ref);
		at = json_object_get(at, key);
		ref += n + (ref[n] == '/');
	}
	return at;
}

static size_t refs;

static void walk(const json_t *j)
{
	const char *key;
	json_t *v;
	size_t i;

	json_object_foreach((json_t *)j, key, v) {
		if (!strcmp(key, "$ref")) {
			refs++;
			if (!resolve(json_string_value(v)))
				fail_msg("%s leads nowhere", json_string_value(v));
		} else if (!strcmp(key, "type") && json_is_string(v)) {
			static const char *const known[] = {"string",  "integer", "number",
			                                    "boolean", "object",  "array",
			                                    "null",    "http",    "apiKey"};
			bool ok = false;

			for (size_t k = 0; k < ARRAY_LEN(known); k++)
				ok |= !strcmp(known[k], json_string_value(v));
			if (!ok)
				fail_msg("'%s' is no type: a schema is missing",
				         json_string_value(v));
		}
		walk(v);
	}
	json_array_foreach(j, i, v)
		walk(v);
}

static void every_reference_resolves_and_every_type_is_one(void **state)
{
	refs = 0;
	walk(doc);
	assert_true(refs > 200);
	assert_string_equal(json_string_value(json_object_get(doc, "openapi")), "3.1.0");
}

static void every_route_is_there_with_its_parameters(void **state)
{
	const json_t *paths = json_object_get(doc, "paths"), *op, *v;

	for (size_t i = 0; i < nroutes; i++) {
		const struct route *r = &routes[i];
		const char *dots = strstr(r->path, "...");
		char path[200], method[8] = "put", status[8];
		size_t want = 0, k, have = 0;

		snprintf(path, sizeof(path), "%.*s%s", dots ? (int)(dots - r->path) : 200, r->path,
		         dots ? "}" : "");
		if (strcmp(r->method, "*"))
			for (k = 0; k <= strlen(r->method); k++)
				method[k] = (char)tolower((unsigned char)r->method[k]);
		op = json_object_get(json_object_get(paths, path), method);
		if (!op)
			fail_msg("%s %s is missing", method, path);
		for (const char *p = r->path; *p; p++)
			want += *p == '{';
		json_array_foreach(json_object_get(op, "parameters"), k, v)
			have += !strcmp(json_string_value(json_object_get(v, "in")), "path");
		assert_int_equal(have, want);
		snprintf(status, sizeof(status), "%d", r->status);
		assert_non_null(json_object_get(json_object_get(op, "responses"), status));
		assert_non_null(json_object_get(json_object_get(op, "responses"), "default"));
		/* No token needed: an empty list. One may stand in the URL: both ways. */
		assert_int_equal(json_object_get(op, "security") != NULL,
		                 r->scope == SCOPE_NONE || r->token_in_url);
		assert_int_equal(json_array_size(json_object_get(op, "security")),
		                 r->token_in_url ? 2 : 0);
		/* What a guest answers is a page that reads its own URL. */
		assert_false(r->token_in_url && strcmp(r->method, "GET") != 0);
	}
}

static void operation_ids_are_unique(void **state)
{
	json_t *seen = json_object(), *item, *op;
	const char *path, *method;

	json_object_foreach(json_object_get(doc, "paths"), path, item) {
		json_object_foreach(item, method, op) {
			const char *id = json_string_value(json_object_get(op, "operationId"));

			assert_non_null(id);
			if (json_object_get(seen, id))
				fail_msg("%s is there twice", id);
			json_object_set_new(seen, id, json_true());
		}
	}
	json_decref(seen);
}

/* Named by a route or by another schema. */
static bool used(const char *name)
{
	size_t n = strlen(name);
	bool found = !strcmp(name, "Error");

	for (size_t i = 0; i < nroutes; i++) {
		const char *both[] = {routes[i].request, routes[i].reply};

		for (size_t k = 0; k < 2; k++)
			found |= both[k] && !strncmp(both[k], name, n) && strchr("[", both[k][n]);
	}
	for (size_t i = 0; i < nschemas; i++)
		for (const struct field *f = schemas[i].fields; f->name; f++)
			found |= !strncmp(f->type, name, n) && strchr("[?", f->type[n]);
	return found;
}

static void no_schema_is_there_for_nothing(void **state)
{
	for (size_t i = 0; i < nschemas; i++) {
		if (!used(schemas[i].name))
			fail_msg("nobody speaks of %s", schemas[i].name);
		for (size_t k = i + 1; k < nschemas; k++)
			assert_string_not_equal(schemas[i].name, schemas[k].name);
	}
}

static void the_page_names_every_route_and_object(void **state)
{
	autofree char *page = api_reference();

	assert_non_null(page);
	for (size_t i = 0; i < nroutes; i++)
		if (!strstr(page, routes[i].path))
			fail_msg("%s is missing", routes[i].path);
	for (size_t i = 0; i < nschemas; i++)
		if (!strstr(page, schemas[i].name))
			fail_msg("%s is missing", schemas[i].name);
	/* Nothing from elsewhere, nothing that runs. */
	assert_null(strstr(page, "<script"));
	assert_null(strstr(page, "https://"));
	assert_null(strstr(page, "src="));
	assert_non_null(strstr(page, "metadata.&lt;key&gt;"));
}

static size_t texts;

/* Every description and summary below j; where is the key that the message names. */
static void read_texts(const json_t *j, const char *where)
{
	const char *key;
	json_t *v;
	size_t i;

	json_object_foreach((json_t *)j, key, v) {
		bool text = !strcmp(key, "description") || !strcmp(key, "summary");

		if (text && json_is_string(v)) {
			const char *why = phrase_fault(json_string_value(v));

			texts++;
			if (why)
				fail_msg("%s: '%s' %s", where, json_string_value(v), why);
		}
		read_texts(v, key);
	}
	json_array_foreach(j, i, v)
		read_texts(v, json_is_object(v) && json_object_get(v, "name")
		                  ? json_string_value(json_object_get(v, "name"))
		                  : where);
}

static void every_text_stands_alone(void **state)
{
	texts = 0;
	read_texts(doc, "openapi.json");
	assert_true(texts > 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_reference_resolves_and_every_type_is_one),
	    cmocka_unit_test(every_route_is_there_with_its_parameters),
	    cmocka_unit_test(operation_ids_are_unique),
	    cmocka_unit_test(no_schema_is_there_for_nothing),
	    cmocka_unit_test(the_page_names_every_route_and_object),
	    cmocka_unit_test(every_text_stands_alone),
	};

	return cmocka_run_group_tests(tests, make, drop);
}
