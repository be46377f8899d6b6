/*
 * api/routes/ports.c - ports of a sandbox: those a client declared, and those a program listens on
 */
#include "api/routes/ports.h"
#include "api/routes/routes.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "api/routes/preview.h"
#include "api/routes/preview_link.h"
#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/host.h"
#include "host/preview.h"
#include "host/sandbox.h"
#include "http/server.h"
#include "wire/guest.h"

enum {
	DECLARED_MAX = 32,
	LABEL_MAX = 128,
	TABLE_MAX = 1 << 20, /* of /proc/net/tcp that we look at */
	SSH = 22,            /* not shown */
	TTL_DEFAULT_S = 3600,
	TTL_MAX_S = 604800,
	PATHS_MAX = 16,
};

/* One line: "  0: 0100007F:1F90 00000000:0000 0A ...". */
static void look_at_line(const char *p, const char *end, struct port_set *ret)
{
	const char *colon, *at;
	unsigned port = 0, state = 0;

	colon = memchr(p, ':', (size_t)(end - p)); /* behind the number of the line */
	colon = colon ? memchr(colon + 1, ':', (size_t)(end - colon - 1)) : NULL;
	if (!colon)
		return;
	for (at = colon + 1; at < end && isxdigit((unsigned char)*at) && port <= 0xffff; at++)
		port = port << 4 |
		       (unsigned)(isdigit((unsigned char)*at) ? *at - '0' : (*at | 32) - 'a' + 10);
	at = memchr(at, ':', (size_t)(end - at)); /* the far end */
	if (!at)
		return;
	for (at++; at < end && isxdigit((unsigned char)*at); at++)
		;
	while (at < end && *at == ' ')
		at++;
	if (end - at < 2)
		return;
	state = (unsigned)(at[0] == '0' && (at[1] | 32) == 'a');
	if (state && port && port <= 0xffff)
		ret->bits[port / 8] |= (uint8_t)(1u << port % 8);
}

void ports_parse(const char *table, size_t n, struct port_set *ret)
{
	const char *end = table + n;

	while (table < end) {
		const char *line = memchr(table, '\n', (size_t)(end - table));

		if (!line)
			return; /* not whole */
		look_at_line(table, line, ret);
		table = line + 1;
	}
}

bool ports_has(const struct port_set *s, unsigned port)
{
	return port <= 0xffff && (s->bits[port / 8] >> port % 8 & 1);
}

bool port_param(struct call *c, const char *text, unsigned *ret)
{
	char *end;
	unsigned long port = strtoul(text, &end, 10);

	if (!isdigit((unsigned char)*text) || *end || !port || port > 65535) {
		call_fail(c, EINVAL, "bad_request", "the port must be a number from 1 to 65535");
		return false;
	}
	*ret = (unsigned)port;
	return true;
}

static void base_url(struct call *c, char *ret, size_t n)
{
	const char *host = http_header(c->req, "Host"), *conf = api_config_of(c->api)->public_url;
	size_t len;

	if (conf)
		snprintf(ret, n, "%s", conf);
	else
		snprintf(ret, n, "http%s://%s", http_is_tls(c->req) ? "s" : "",
		         host && *host ? host : "localhost");
	len = strlen(ret);
	while (len && ret[len - 1] == '/')
		ret[--len] = 0;
}

/* Where a browser finds the port under this name; null without host names. */
static json_t *host_url(struct call *c, const char *name, unsigned port, const char *link)
{
	const char *suffix = api_config_of(c->api)->preview_suffix, *host, *colon;
	char base[512];

	if (!suffix)
		return json_null();
	base_url(c, base, sizeof(base));
	host = strstr(base, "://");
	host = host ? host + 3 : base;
	colon = strrchr(host, ':');
	if (colon && strspn(colon + 1, "0123456789") != strlen(colon + 1))
		colon = NULL; /* in an IPv6 address */
	return json_sprintf("%.*s%u-%s.%s%s/%s%s", (int)(host - base), base, port, name,
	                    suffix + (*suffix == '.'), colon ? colon : "",
	                    link ? "?" PREVIEW_COOKIE "=" : "", link ? link : "");
}

static json_t *show_port(struct call *c, const struct sandbox *sb, unsigned port, const char *label,
                         bool listening)
{
	enum preview_mode mode = api_config_of(c->api)->preview_mode;
	bool open = mode == PREVIEW_OPEN || (mode == PREVIEW_DECLARED && label);
	char url[SANDBOX_ID + 64];
	json_t *j = json_object();

	snprintf(url, sizeof(url), "/v1/sandboxes/%s/proxy/%u/", sb->id, port);
	json_object_set_new(j, "port", json_integer(port));
	if (label)
		json_object_set_new(j, "label", json_string(label));
	json_object_set_new(j, "listening", json_boolean(listening));
	json_object_set_new(j, "source", json_string(label ? "user" : "detected"));
	json_object_set_new(j, "proxy_url", json_string(url));
	json_object_set_new(j, "preview_url",
	                    open ? host_url(c, sb->preview, port, NULL) : json_null());
	return j;
}

static const char *label_of(const json_t *metadata, unsigned port)
{
	char key[16];

	snprintf(key, sizeof(key), "port.%u", port);
	return json_string_value(json_object_get(metadata, key));
}

bool ports_declared(const struct sandbox *sb, unsigned port)
{
	return label_of(sb->spec.metadata, port);
}

static json_t *show_ports(struct call *c, const struct sandbox *sb,
                          const struct port_set *listening)
{
	struct port_set shown = *listening;
	json_t *list = json_array();
	const json_t *v;
	const char *key;

	json_object_foreach(sb->spec.metadata, key, v) {
		unsigned long p = strncmp(key, "port.", 5) == 0 ? strtoul(key + 5, NULL, 10) : 0;

		if (p && p <= 0xffff && label_of(sb->spec.metadata, (unsigned)p))
			shown.bits[p / 8] |= (uint8_t)(1u << p % 8);
	}
	for (unsigned p = 1; p <= 0xffff; p++)
		if (p != SSH && ports_has(&shown, p))
			json_array_append_new(list,
			                      show_port(c, sb, p, label_of(sb->spec.metadata, p),
			                                ports_has(listening, p)));
	return list;
}

/* ---- list ---- */

struct looking {
	struct call *c;
	struct job *j;
	int table; /* which one is being read */
	char *text;
	size_t n;
	struct port_set listening;
};

static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};

static void looking_free(struct looking *l)
{
	call_leave(l->c);
	free(l->text);
	free(l);
}

static void look_at_next(struct looking *l, struct sandbox *sb);

static void looking_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct looking *l = arg;
	size_t take = MIN(n, TABLE_MAX - l->n);

	memcpy(l->text + l->n, p, take);
	l->n += take;
	job_credit(j, chan, n);
	if (l->n == TABLE_MAX)
		job_cancel(j);
}

static void looking_end(void *arg, struct job *j, const struct job_end *end)
{
	struct looking *l = arg;
	struct call *c = l->c;
	struct sandbox *sb = host_find(c->host, c->tenant, c->param[0]);

	l->j = NULL;
	if (end->e || !sb) { /* a table that is not there is an empty one */
		if (end->e)
			call_error(c, end->e);
		else
			call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found");
		looking_free(l);
		return;
	}
	ports_parse(l->text, l->n, &l->listening);
	l->n = 0;
	l->table++;
	look_at_next(l, sb);
}

static void look_at_next(struct looking *l, struct sandbox *sb)
{
	static const struct job_ops ops = {.data = looking_data, .end = looking_end};
	struct err e;

	if (l->table == ARRAY_LEN(tables)) {
		call_json(l->c, 200, show_ports(l->c, sb, &l->listening));
		looking_free(l);
		return;
	}
	l->j = job_start(l->c->host, sb, WIRE_READ,
	                 &(struct wire_read){.path = wire_str(tables[l->table]),
	                                     .length = UINT64_MAX,
	                                     .window = EXEC_WINDOW},
	                 &ops, l, &e);
	if (!l->j) {
		call_error(l->c, &e);
		looking_free(l);
	}
}

static void looking_gone(void *arg)
{
	struct looking *l = arg;

	job_abandon(l->j);
	looking_free(l);
}

void ports_list(struct call *c)
{
	struct looking *l;

	/* A look does not wake a sandbox up. */
	if (c->sb->state != SANDBOX_RUNNING) {
		call_json(c, 200, show_ports(c, c->sb, &(struct port_set){0}));
		return;
	}
	l = calloc(1, sizeof(*l));
	if (l)
		l->text = malloc(TABLE_MAX);
	if (!l || !l->text) {
		free(l);
		call_nomem(c);
		return;
	}
	l->c = call_hold(c);
	call_on_gone(c, looking_gone, l);
	look_at_next(l, c->sb);
}

/* ---- declare ---- */

static unsigned declared(const json_t *metadata)
{
	const json_t *v;
	const char *key;
	unsigned n = 0;

	json_object_foreach((json_t *)metadata, key, v)
		n += strncmp(key, "port.", 5) == 0;
	return n;
}

void ports_declare(struct call *c)
{
	const char *label;
	json_t *metadata;
	int64_t port;
	struct err e;
	char key[16];

	if (!json_is_integer(json_object_get(c->body, "port"))) {
		call_fail(c, EINVAL, "bad_request", "port required: a number from 1 to 65535");
		return;
	}
	if (!call_int(c, "port", 0, 1, 65535, &port) || !call_str(c, "label", "service", &label))
		return;
	if (port == SSH || strlen(label) > LABEL_MAX) {
		call_fail(c, EINVAL, "bad_request",
		          port == SSH ? "port 22 is not for previews"
		                      : "label may have 128 characters");
		return;
	}
	if (!label_of(c->sb->spec.metadata, (unsigned)port) &&
	    declared(c->sb->spec.metadata) >= DECLARED_MAX) {
		call_fail(c, ENOSPC, "too_many", "a sandbox may have %d declared ports: delete one",
		          DECLARED_MAX);
		return;
	}
	metadata = c->sb->spec.metadata ? json_deep_copy(c->sb->spec.metadata) : json_object();
	snprintf(key, sizeof(key), "port.%u", (unsigned)port);
	if (!metadata || json_object_set_new(metadata, key, json_string(label)) < 0) {
		json_decref(metadata);
		call_nomem(c);
		return;
	}
	if (host_set_metadata(c->host, c->sb, metadata, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 201, show_port(c, c->sb, (unsigned)port, label, false));
}

void ports_remove(struct call *c)
{
	json_t *metadata;
	struct err e;
	char key[32];

	snprintf(key, sizeof(key), "port.%.20s", c->param[1]);
	if (!json_object_get(c->sb->spec.metadata, key)) {
		call_fail(c, ENOENT, "not_found",
		          "this port is not declared: GET .../ports lists those that are");
		return;
	}
	metadata = json_deep_copy(c->sb->spec.metadata);
	if (!metadata) {
		call_nomem(c);
		return;
	}
	json_object_del(metadata, key);
	if (host_set_metadata(c->host, c->sb, metadata, &e) < 0)
		call_error(c, &e);
	else
		call_empty(c, 204);
}

/* ---- signed links ---- */

/* Joins the prefixes with commas. False: answered. */
static bool take_paths(struct call *c, struct preview *p)
{
	const json_t *v, *list = json_object_get(c->body, "paths");
	size_t i, n = 0;

	if (!list || json_is_null(list))
		return true;
	if (!json_is_array(list) || json_array_size(list) > PATHS_MAX) {
		call_fail(c, EINVAL, "bad_request", "paths must be a list of up to %d prefixes",
		          PATHS_MAX);
		return false;
	}
	json_array_foreach(list, i, v) {
		const char *s = json_string_value(v);

		if (!s || *s != '/' || strpbrk(s, ",|") || n + strlen(s) + 1 > PREVIEW_PATHS_MAX) {
			call_fail(c, EINVAL, "bad_request",
			          "paths[%zu] must be a prefix like \"/api/\", without ',' and '|'",
			          i);
			return false;
		}
		n += (size_t)snprintf(p->paths + n, sizeof(p->paths) - n, "%s%s", n ? "," : "", s);
	}
	return true;
}

void preview_new_name(struct call *c)
{
	struct err e;

	if (preview_rotate(c->host, c->sb, &e) < 0)
		call_error(c, &e);
	else
		call_json(c, 200, json_pack("{s:s}", "preview_name", c->sb->preview));
}

void preview_token(struct call *c)
{
	struct preview p = {0};
	char token[PREVIEW_TOKEN_MAX], base[512];
	json_t *paths = json_object_get(c->body, "paths"), *j;
	int64_t port, ttl;

	if (!json_is_integer(json_object_get(c->body, "port"))) {
		call_fail(c, EINVAL, "bad_request", "port required: a number from 1 to 65535");
		return;
	}
	if (!call_int(c, "port", 0, 1, 65535, &port) ||
	    !call_int(c, "ttl_seconds", TTL_DEFAULT_S, 1, TTL_MAX_S, &ttl) || !take_paths(c, &p))
		return;
	memcpy(p.sandbox, c->sb->id, sizeof(p.sandbox));
	memcpy(p.tenant, c->sb->tenant, sizeof(p.tenant));
	p.port = (unsigned)port;
	p.epoch = c->sb->preview_epoch;
	p.expires_s = (uint64_t)time(NULL) + (uint64_t)ttl;
	if (preview_sign(api_secret(c->api), &p, token) < 0) {
		call_fail(c, EINVAL, "internal", "this tenant's name cannot be signed");
		return;
	}
	base_url(c, base, sizeof(base));
	j = json_object();
	json_object_set_new(j, "url", json_sprintf("%s/v1/p/%s/", base, token));
	json_object_set_new(j, "host_url", host_url(c, c->sb->preview, p.port, token));
	json_object_set_new(j, "token", json_string(token));
	json_object_set_new(j, "sandbox_id", json_string(p.sandbox));
	json_object_set_new(j, "port", json_integer(port));
	json_object_set(j, "paths", json_is_array(paths) ? paths : json_null());
	json_object_set_new(j, "expires_at", json_time(p.expires_s * 1000));
	call_json(c, 200, j);
}
