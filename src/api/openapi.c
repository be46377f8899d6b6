/*
 * api/openapi.c - /openapi.json, from the table of routes
 */
#include <ctype.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/schemas.h"
#include "base/macro.h"

static bool ends(const char *s, size_t n, const char *tail)
{
	size_t k = strlen(tail);

	return n > k && memcmp(s + n - k, tail, k) == 0;
}

/* A type as JSON Schema. */
static json_t *type_of(const char *t, size_t n)
{
	char word[64];

	if (ends(t, n, "?"))
		return json_pack("{s:[o, {s:s}]}", "anyOf", type_of(t, n - 1), "type", "null");
	if (ends(t, n, "[]"))
		return json_pack("{s:s, s:o}", "type", "array", "items", type_of(t, n - 2));
	if (schema_find(t, n)) {
		snprintf(word, sizeof(word), "#/components/schemas/%.*s", (int)n, t);
		return json_pack("{s:s}", "$ref", word);
	}
	snprintf(word, sizeof(word), "%.*s", (int)n, t);
	if (strcmp(word, "map") == 0)
		return json_pack("{s:s, s:{s:s}}", "type", "object", "additionalProperties", "type",
		                 "string");
	if (strcmp(word, "object") == 0)
		return json_object(); /* anything */
	return json_pack("{s:s}", "type", word);
}

static json_t *described(json_t *schema, const char *what)
{
	json_object_set_new(schema, "description", json_string(what));
	return schema;
}

static json_t *schema_json(const struct schema *s)
{
	json_t *properties = json_object(), *required = json_array(), *j;

	for (const struct field *f = s->fields; f->name; f++) {
		size_t n = strlen(f->name);
		bool must = f->name[n - 1] == '!';
		char name[64];

		snprintf(name, sizeof(name), "%.*s", (int)(n - must), f->name);
		json_object_set_new(properties, name,
		                    described(type_of(f->type, strlen(f->type)), f->what));
		if (must)
			json_array_append_new(required, json_string(name));
	}
	j = json_pack("{s:s, s:s, s:o}", "type", "object", "description", s->what, "properties",
	              properties);
	if (json_array_size(required))
		json_object_set(j, "required", required);
	json_decref(required);
	return j;
}

/* What travels: media type and schema. */
static json_t *content(const char *name)
{
	static const struct {
		const char *name, *media;
	} plain[] = {{"bytes", "application/octet-stream"},
	             {"text", "text/plain"},
	             {"html", "text/html"},
	             {"stream", "text/event-stream"},
	             {"multipart", "multipart/form-data"}};

	for (size_t i = 0; i < ARRAY_LEN(plain); i++)
		if (strcmp(plain[i].name, name) == 0)
			return json_pack("{s:{s:{s:s}}}", plain[i].media, "schema", "type",
			                 "string");
	return json_pack("{s:{s:o}}", "application/json", "schema", type_of(name, strlen(name)));
}

static void path_params(const char *path, json_t *params)
{
	for (const char *p = path; (p = strchr(p, '{')); p++) {
		size_t n = strcspn(p + 1, ".}");
		char name[32];

		snprintf(name, sizeof(name), "%.*s", (int)n, p + 1);
		json_array_append_new(params,
		                      json_pack("{s:s, s:s, s:b, s:{s:s}}", "name", name, "in",
		                                "path", "required", 1, "schema", "type",
		                                strcmp(name, "port") ? "string" : "integer"));
	}
}

static json_t *error_ref(void)
{
	return json_pack("{s:s}", "$ref", "#/components/responses/Error");
}

static json_t *responses(const struct route *r)
{
	json_t *all = json_object(), *good = json_object();
	char status[8];

	json_object_set_new(good, "description",
	                    json_string(r->status == 101
	                                    ? (r->reply ? "the connection is a WebSocket now"
	                                                : "the connection is a pipe of bytes now")
	                                : r->reply ? "the body is the answer"
	                                           : "the request was carried out"));
	if (r->reply && strcmp(r->reply, "ws") != 0)
		json_object_set_new(good, "content", content(r->reply));
	snprintf(status, sizeof(status), "%d", r->status);
	json_object_set_new(all, status, good);
	if (r->request)
		json_object_set_new(all, "400", error_ref());
	if (r->scope != SCOPE_NONE) {
		json_object_set_new(all, "401", error_ref());
		json_object_set_new(all, "429", error_ref());
	}
	if (r->scope != SCOPE_NONE && r->scope != SCOPE_READ)
		json_object_set_new(all, "403", error_ref());
	if (strchr(r->path, '{'))
		json_object_set_new(all, "404", error_ref());
	json_object_set_new(all, "default", error_ref());
	return all;
}

/* get_v1_sandboxes_id_fs */
static json_t *operation_id(const char *method, const char *path)
{
	char id[160];
	size_t n = (size_t)snprintf(id, sizeof(id), "%s", method);

	for (; *path && n < sizeof(id) - 1; path++)
		if (isalnum((unsigned char)*path))
			id[n++] = *path;
		else if (id[n - 1] != '_' && path[1])
			id[n++] = '_';
	while (n && id[n - 1] == '_')
		n--;
	id[n] = 0;
	return json_string(id);
}

static json_t *operation(const struct route *r, const char *method)
{
	json_t *params = json_array();
	json_t *op = json_pack("{s:[s], s:s, s:o}", "tags", r->tag, "summary", r->summary,
	                       "operationId", operation_id(method, r->path));

	path_params(r->path, params);
	for (const struct api_param *p = r->params; p && p->name; p++)
		json_array_append_new(params, json_pack("{s:s, s:s, s:s, s:{s:s}}", "name", p->name,
		                                        "in", p->in, "description", p->what,
		                                        "schema", "type", p->type));
	if (json_array_size(params))
		json_object_set(op, "parameters", params);
	json_decref(params);
	if (r->request && strcmp(method, "get") != 0)
		json_object_set_new(op, "requestBody",
		                    json_pack("{s:o}", "content", content(r->request)));
	json_object_set_new(op, "responses", responses(r));
	json_object_set_new(op, "x-scope", json_string(route_scope(r)));
	if (r->scope == SCOPE_NONE)
		json_object_set_new(op, "security", json_array());
	else if (r->token_in_url)
		json_object_set_new(op, "security",
		                    json_pack("[{s:[]}, {s:[]}]", "bearer", "query"));
	return op;
}

static void add_route(json_t *paths, const struct route *r)
{
	static const char *const any[] = {"get", "post", "put", "patch", "delete"};
	const char *dots = strstr(r->path, "...");
	char path[160], method[8];
	json_t *item;

	if (dots)
		snprintf(path, sizeof(path), "%.*s}", (int)(dots - r->path), r->path);
	else
		snprintf(path, sizeof(path), "%s", r->path);
	item = json_object_get(paths, path);
	if (!item) {
		item = json_object();
		json_object_set_new(paths, path, item);
	}
	if (strcmp(r->method, "*") == 0) {
		for (size_t i = 0; i < ARRAY_LEN(any); i++)
			json_object_set_new(item, any[i], operation(r, any[i]));
		return;
	}
	snprintf(method, sizeof(method), "%s", r->method);
	for (char *p = method; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	json_object_set_new(item, method, operation(r, method));
}

json_t *api_openapi(void)
{
	json_t *paths = json_object(), *all = json_object(), *tags = json_array();
	const char *last = "";

	for (size_t i = 0; i < nroutes; i++) {
		add_route(paths, &routes[i]);
		if (strcmp(last, routes[i].tag) != 0)
			json_array_append_new(tags, json_pack("{s:s}", "name", routes[i].tag));
		last = routes[i].tag;
	}
	for (size_t i = 0; i < nschemas; i++)
		json_object_set_new(all, schemas[i].name, schema_json(&schemas[i]));
	return json_pack(
	    "{s:s, s:{s:s, s:s, s:s}, s:[{s:[]}], s:o, s:o, s:{s:o, s:{s:{s:s, s:o}},"
	    " s:{s:{s:s, s:s}, s:{s:s, s:s, s:s}}}}",
	    "openapi", "3.1.0", "info", "title", "PandaStack", "version", PANDA_VERSION,
	    "description",
	    "Sandboxes with a kernel of their own: created in milliseconds, forked while they run.",
	    "security", "bearer", "tags", tags, "paths", paths, "components", "schemas", all,
	    "responses", "Error", "description", "the request failed; the body says why", "content",
	    content("Error"), "securitySchemes", "bearer", "type", "http", "scheme", "bearer",
	    "query", "type", "apiKey", "in", "query", "name", "access_token");
}
