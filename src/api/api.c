/*
 * api/api.c - from the head of a request to its handler
 */
#include "api/api.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "api/api_internal.h"
#include "api/json_in.h"
#include "api/logins.h"
#include "api/routes/routes.h"
#include "base/account.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/macro.h"
#include "db/settings.h"
#include "host/host.h"
#include "http/server.h"

/* ---- what lives as long as the server ---- */

static int new_secret(struct api *a, struct err *e)
{
	char hex[2 * API_SECRET + 1];

	if (getrandom(a->secret, API_SECRET, 0) != API_SECRET)
		return err_set(e, EIO, "internal", "no entropy for a secret");
	for (size_t i = 0; i < API_SECRET; i++)
		snprintf(hex + 2 * i, 3, "%02x", a->secret[i]);
	return db_setting_set(a->host->db, "preview_secret", hex, e);
}

static bool parse_secret(const char *hex, unsigned char ret[API_SECRET])
{
	if (strlen(hex) != 2 * API_SECRET || strspn(hex, "0123456789abcdef") != 2 * API_SECRET)
		return false;
	for (size_t i = 0; i < API_SECRET; i++) {
		char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};

		ret[i] = (unsigned char)strtoul(byte, NULL, 16);
	}
	return true;
}

/* With a damaged one, a stranger could sign links: it is replaced. */
static int open_secret(struct api *a, struct err *e)
{
	char hex[2 * API_SECRET + 1] = "";
	int r = db_setting_get(a->host->db, "preview_secret", hex, sizeof(hex), e);

	if (r < 0 && r != -E2BIG)
		return r;
	if (r == 0 && parse_secret(hex, a->secret))
		return 0;
	if (r == -E2BIG || hex[0])
		log_warn("the secret of preview links was damaged, we made a new one: links from "
		         "before are no longer valid");
	return new_secret(a, e);
}

/* Both pages come from the table and never change while we run. */
static int render(struct api *a, struct err *e)
{
	json_t *j = api_openapi();

	a->openapi = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	a->reference = api_reference();
	if (!a->openapi || !a->reference)
		return err_set(e, ENOMEM, "no_memory", "no memory for the API reference");
	a->openapi_len = strlen(a->openapi);
	a->reference_len = strlen(a->reference);
	return 0;
}

static int parse_mode(const char *text, enum preview_mode *ret, struct err *e)
{
	static const char *const words[] = {
	    [PREVIEW_DECLARED] = "declared", [PREVIEW_OFF] = "off", [PREVIEW_OPEN] = "open"};

	for (size_t i = 0; text && i < ARRAY_LEN(words); i++)
		if (strcmp(text, words[i]) == 0) {
			*ret = (enum preview_mode)i;
			return 0;
		}
	return text ? err_set(e, EINVAL, "bad_config",
	                      "preview: '%.40s' is neither off, declared nor open", text)
	            : 0;
}

int api_new(struct host *h, const struct api_config *c, struct api **ret, struct err *e)
{
	struct api *a = calloc(1, sizeof(*a));
	int r;

	if (!a)
		return err_set(e, ENOMEM, "no_memory", "no memory for the API");
	a->host = h;
	a->config = *c;
	a->held.max = c->held;
	a->started_ms = mono_ms();
	a->stats = calloc(nroutes + 1, sizeof(*a->stats));
	a->logins = calloc(1, sizeof(*a->logins));
	a->preview_suffix = c->preview_suffix ? strdup(c->preview_suffix) : NULL;
	a->public_url = c->public_url ? strdup(c->public_url) : NULL;
	a->allowed_origins = c->allowed_origins ? strdup(c->allowed_origins) : NULL;
	a->config.allowed_origins = a->allowed_origins;
	a->config.preview_suffix = a->preview_suffix;
	a->config.public_url = a->public_url;
	a->config.preview = NULL; /* the caller's text; the mode says it */
	r = a->stats && a->logins ? 0 : err_set(e, ENOMEM, "no_memory", "no memory for the API");
	if (r == 0)
		r = logins_open(a->logins, c->failed_logins_per_minute, e);
	if (r == 0)
		r = audit_open(a, e);
	if (r == 0)
		r = parse_mode(c->preview, &a->config.preview_mode, e);
	if (r == 0)
		r = tokens_open(a, e);
	if (r == 0)
		r = open_secret(a, e);
	if (r == 0)
		r = render(a, e);
	if (r < 0) {
		api_free(a);
		return r;
	}
	*ret = a;
	return 0;
}

void api_free(struct api *a)
{
	if (!a)
		return;
	audit_close(a);
	tokens_close(a);
	free(a->preview_suffix);
	free(a->public_url);
	free(a->allowed_origins);
	free(a->openapi);
	free(a->reference);
	free(a->stats);
	free(a->logins);
	free(a);
}

struct account *api_account(struct api *a)
{
	return &a->held;
}

const struct api_config *api_config_of(const struct api *a)
{
	return &a->config;
}

const unsigned char *api_secret(const struct api *a)
{
	return a->secret;
}

/* ---- a request ---- */

/* Looking at a sandbox is no reason to keep it alive; asking something of it is. */
static bool only_looks(const struct route *r)
{
	return strcmp(r->method, "GET") == 0 &&
	       (strcmp(r->tag, "Sandboxes") == 0 || strcmp(r->tag, "Logs and events") == 0);
}

/* "-": the path names none. */
static const char *sandbox_of(const struct call *c)
{
	return c->route && c->route->sandbox && c->param[0] ? c->param[0] : "-";
}

static void call_run(struct call *c)
{
	const char *outer = c->host->request; /* of a call that makes this one (mcp) */

	log_debug("request begins request=%s sandbox=%s tenant=%s method=%s route=%s",
	          c->request_id, sandbox_of(c), c->tenant, c->route->method, c->route->path);
	if (c->route->sandbox) {
		/* Another one than the token's does not exist, as another tenant's does not. */
		if (!*c->only || strcmp(c->only, c->param[0]) == 0)
			c->sb = host_find(c->host, c->tenant, c->param[0]);
		if (!c->sb) {
			call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found: %.64s",
			          c->param[0]);
			return;
		}
		if (!only_looks(c->route))
			host_touch(c->host, c->sb);
	}
	c->host->request = c->request_id;
	c->route->run(c);
	c->host->request = outer;
	c->sb = NULL;
}

static bool blank(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strchr(" \t\r\n", p[i]) || p[i] == 0)
			return false;
	return true;
}

static void have_body(void *arg, struct http_req *r, char *p, size_t n)
{
	struct call *c = arg;
	json_error_t why;

	(void)r;
	call_hold(c);
	c->body = blank(p, n) ? json_object() : json_in(p, n, &why);
	if (json_is_object(c->body))
		call_run(c);
	else if (c->body)
		call_fail(c, EINVAL, "bad_json", "the body must be a JSON object: {...}");
	else
		call_fail(c, EINVAL, "bad_json",
		          "the body is not valid JSON: %s (line %d, column %d)", why.text, why.line,
		          why.column);
	call_drop(c);
}

#define EXPOSED "X-Request-Id, Retry-After"

static void cors(struct http_req *r)
{
	http_add_header(r, "Access-Control-Allow-Origin", "*");
	http_add_header(r, "Access-Control-Expose-Headers", EXPOSED);
}

static void preflight(struct call *c)
{
	cors(c->req);
	http_add_header(c->req, "Access-Control-Allow-Methods",
	                "GET, POST, PUT, PATCH, DELETE, OPTIONS");
	http_add_header(c->req, "Access-Control-Allow-Headers",
	                "Authorization, Content-Type, Accept, Range, X-Request-Id");
	http_add_header(c->req, "Access-Control-Max-Age", "600");
	call_empty(c, 204);
}

static bool needs_token(const struct call *c)
{
	return c->route->scope != SCOPE_NONE ||
	       (c->route->run == meta_metrics && c->api->config.metrics_token);
}

static void dispatch(struct call *c)
{
	const char *method = http_method(c->req);
	struct route_match m;
	int r = route_find(method, http_path(c->req), &m);

	if (strcmp(method, "OPTIONS") == 0 && (r < 0 || m.route->scope != SCOPE_NONE)) {
		if (r == 0)
			match_fini(&m);
		preflight(c);
		return;
	}
	if (r == 0) {
		c->route = m.route;
		memcpy(c->param, m.param, sizeof(c->param));
	}
	/* What a guest answers has headers of its own. What needs no token would tell any page that
	 * a user visits which version runs here, and how busy it is. */
	if (r < 0 || (m.route->run != proxy_port && m.route->scope != SCOPE_NONE))
		cors(c->req);
	if (r == -EPERM) {
		http_add_header(c->req, "Allow", m.allow);
		call_fail(c, EPERM, "method_not_allowed", "%s is not for this path, but %s is",
		          method, m.allow);
	} else if (r == -EBADMSG) {
		call_fail(c, EINVAL, "bad_path", "the path is not well percent-encoded UTF-8");
	} else if (r == -ENOENT) {
		call_fail(c, ENOENT, "not_found",
		          "there is no such path; /docs lists those there are");
	} else if (r < 0) {
		call_fail(c, -r, "no_memory", "no memory");
	} else if (needs_token(c) && !auth_check(c)) {
		return; /* answered */
	} else if (c->route->body == BODY_JSON && http_body_length(c->req) > API_JSON_MAX) {
		call_fail(c, E2BIG, "too_large", "the body is longer than %d bytes", API_JSON_MAX);
	} else if (c->route->body == BODY_JSON) {
		http_body_collect(c->req, API_JSON_MAX, have_body, c);
	} else {
		call_run(c);
	}
}

void api_handle(void *api, struct http_req *r)
{
	struct api *a = api;
	struct call *c;

	if (a->preview_suffix && proxy_by_host(a, r))
		return;
	c = call_new(a, r);
	if (!c)
		return;
	call_hold(c); /* the answer may end it */
	dispatch(c);
	call_drop(c);
}

void api_refusal(void *api, const struct http_req *r, const char *code, const char *text,
                 char body[HTTP_REFUSAL_MAX], char lines[HTTP_REFUSAL_MAX])
{
	const struct call *c = r ? http_data(r) : NULL;
	char fresh[REQUEST_ID_MAX + 1];

	if (!c)
		call_fresh_id(fresh);
	snprintf(body, HTTP_REFUSAL_MAX, "{\"error\":\"%s\",\"code\":\"%s\",\"request_id\":\"%s\"}",
	         text, code, c ? c->request_id : fresh);
	if (!r) /* a call has added its own */
		snprintf(lines, HTTP_REFUSAL_MAX,
		         "X-Request-Id: %s\r\nAccess-Control-Allow-Origin: *\r\n"
		         "Access-Control-Expose-Headers: " EXPOSED "\r\n",
		         fresh);
}

void api_logged(void *api, const struct http_req *r, int status, uint64_t bytes_out,
                uint64_t took_us, bool aborted)
{
	struct api *a = api;
	struct call *c = http_data(r);
	const char *method = http_method(r);

	if (!c)
		return; /* no request came to be of it */
	if (aborted && status < 400)
		status = 499; /* the client went away */
	stats_note(a, c->route, status, took_us);
	/* Looking is not on record; a terminal or a tunnel does not only look. */
	if ((strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 &&
	     strcmp(method, "OPTIONS") != 0) ||
	    (c->route && c->route->status == 101) || status == 401)
		(c->known ? audit_note : audit_stranger)(a, c, r, status);
	if (status >= 500)
		log_warn("request failed request=%s sandbox=%s method=%s route=%s status=%d "
		         "took_us=%llu",
		         c->request_id, sandbox_of(c), method, c->route ? c->route->path : "-",
		         status, (unsigned long long)took_us);
	else
		log_debug("request ended request=%s sandbox=%s tenant=%s method=%s route=%s "
		          "status=%d bytes=%llu took_us=%llu",
		          c->request_id, sandbox_of(c), c->tenant, method,
		          c->route ? c->route->path : "-", status, (unsigned long long)bytes_out,
		          (unsigned long long)took_us);
}
