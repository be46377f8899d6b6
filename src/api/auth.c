/*
 * api/auth.c - who is asking, what may they do, and how often
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/logins.h"
#include "base/bucket.h"
#include "base/cleanup.h"
#include "base/loop.h"
#include "base/macro.h"
#include "host/host.h"
#include "http/server.h"

const char *auth_bearer(const char *header)
{
	if (!header || strncasecmp(header, "bearer", 6) != 0 ||
	    (header[6] != ' ' && header[6] != '\t'))
		return NULL;
	header += 6;
	header += strspn(header, " \t");
	return *header ? header : NULL;
}

/* ---- where from ---- */

/* Of "name:port" or "[::1]:port": the name. */
static size_t name_length(const char *host)
{
	return *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
}

/* Behind "http://", or all of it when there is none. */
static const char *behind_scheme(const char *url)
{
	const char *at = strstr(url, "://");

	return at ? at + 3 : url;
}

static bool is_loopback(const char *name, size_t n)
{
	return (n == 9 && strncasecmp(name, "localhost", n) == 0) ||
	       (n == 5 && memcmp(name, "[::1]", n) == 0) ||
	       (n > 4 && memcmp(name, "127.", 4) == 0 && strspn(name, "0123456789.") == n);
}

bool host_is_ours(const char *host, const char *public_url)
{
	size_t n = host ? name_length(host) : 0;
	const char *own = public_url ? behind_scheme(public_url) : "";

	return n &&
	       (is_loopback(host, n) || (n == name_length(own) && strncasecmp(host, own, n) == 0));
}

/* Up to the path, and a '/' at the end does not matter. */
static bool same_origin(const char *a, const char *b, size_t n)
{
	size_t scheme = (size_t)(behind_scheme(b) - b);

	n = MIN(n, scheme + strcspn(b + scheme, "/"));
	return strlen(a) == n && strncasecmp(a, b, n) == 0;
}

bool origin_is_ours(const char *origin, const char *host, const char *public_url,
                    const char *allowed)
{
	if (!origin)
		return true;
	if (host && strstr(origin, "://") && strcasecmp(behind_scheme(origin), host) == 0)
		return true;
	if (public_url && same_origin(origin, public_url, strlen(public_url)))
		return true;
	while (allowed && *allowed) {
		size_t n = strcspn(allowed, " ");

		if (n && same_origin(origin, allowed, n))
			return true;
		allowed += n + (allowed[n] == ' ');
	}
	return false;
}

/* Without a token a browser asks for every page it shows. False: answered. */
static bool asked_from_here(struct call *c, bool stub)
{
	const struct api_config *config = &c->api->config;
	const char *host = http_header(c->req, "Host");

	if (stub && !host_is_ours(host, config->public_url)) {
		call_fail(
		    c, EPERM, "forbidden",
		    "with stub_auth, '%.80s' is no name of this server: use localhost, or set "
		    "public_url",
		    host ? host : "");
		return false;
	}
	if ((stub || c->route->own_pages) &&
	    !origin_is_ours(http_header(c->req, "Origin"), host, config->public_url,
	                    config->allowed_origins)) {
		call_fail(c, EPERM, "forbidden",
		          "this is not for pages of '%.80s': the key allowed_origins names pages "
		          "that may ask",
		          http_header(c->req, "Origin"));
		return false;
	}
	return true;
}

/* ---- who ---- */

static void unauthorized(struct call *c, const char *detail)
{
	http_add_header(c->req, "WWW-Authenticate", "Bearer");
	call_json(c, 401,
	          json_pack("{s:s, s:s, s:s, s:s}", "error", "unauthorized", "detail", detail,
	                    "code", "unauthorized", "request_id", c->request_id));
}

static void retry_after(struct call *c, unsigned s)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", s);
	http_add_header(c->req, "Retry-After", text);
}

static void failed_too_often(struct call *c, unsigned retry_s)
{
	retry_after(c, retry_s);
	call_fail(c, EAGAIN, "rate_limited",
	          "more than %u requests per minute from your address had no valid token: check "
	          "the token, then try again in %u s",
	          c->api->config.failed_logins_per_minute, retry_s);
}

static struct token *token_named(struct api *a, const char *text)
{
	char hash[TOKEN_HASH + 1];

	return token_well_formed(text) && token_hash(text, hash) == 0 ? token_by_hash(a, hash)
	                                                              : NULL;
}

struct token *auth_token(struct call *c)
{
	const char *text = auth_bearer(http_header(c->req, "Authorization"));

	struct token *t = text ? token_named(c->api, text) : NULL;

	return t && !token_expired(t) ? t : NULL;
}

/* *detail stays NULL when the request has none. */
static struct token *token_of(struct call *c, const char **detail)
{
	const char *text = auth_bearer(http_header(c->req, "Authorization"));
	autofree char *from_query = NULL;
	struct token *t;

	if (!text)
		text = from_query = call_query(c, "access_token");
	if (!text)
		return NULL;
	*detail = "invalid api token";
	if (from_query && !c->route->token_in_url) {
		*detail = "a token in the URL is for WebSockets and event streams only: send it "
			  "in the header Authorization";
		return NULL;
	}
	t = token_named(c->api, text);
	if (t && token_expired(t)) {
		*detail = "this token has expired: ask its maker for a new one";
		return NULL;
	}
	return t;
}

static void out_of_scope(struct call *c, const struct rights *r)
{
	static const char *const words[] = {
	    [SCOPE_SANDBOX] = "sandbox", [SCOPE_NONE] = "read",   [SCOPE_READ] = "read",
	    [SCOPE_EXEC] = "exec",       [SCOPE_OWN] = "sandbox", [SCOPE_ADMIN] = "admin"};
	char have[SCOPES_MAX];

	rights_print(r, have);
	call_fail(c, EPERM, "forbidden", "this needs a token with scope %s%s; yours has '%s'",
	          words[c->route->scope],
	          *r->only && r->level >= LEVEL_SANDBOX ? " of all sandboxes" : "", have);
}

bool tenant_may_ask(struct tenant *t, unsigned rate_per_s, unsigned burst, uint64_t now_ms,
                    unsigned *retry_s)
{
	burst = MAX(burst, 1u);
	if (rate_per_s == 0 || bucket_take(&t->requests, now_ms, rate_per_s, burst, 1))
		return true;
	*retry_s = (unsigned)((bucket_wait_ms(&t->requests, rate_per_s, burst, 1) + 999) / 1000);
	return false;
}

bool auth_check(struct call *c)
{
	const struct api_config *config = &c->api->config;
	struct tenant *tenant;
	const uint8_t *peer = http_peer_key(c->req);
	uint64_t now_ms = loop_now_ms(c->host->loop);
	unsigned rate = config->rate_per_s, burst = config->rate_burst, retry_s = 1;
	const char *detail = NULL;
	struct token *t;
	bool ok = true;

	if (!login_begins(c->api->logins, peer, now_ms, &retry_s)) {
		failed_too_often(c, retry_s);
		return false;
	}
	t = token_of(c, &detail);
	if (t) {
		login_worked(c->api->logins, peer, now_ms);
		tenant = t->tenant;
		memcpy(c->token, t->prefix, sizeof(t->prefix));
		memcpy(c->only, t->rights.only, sizeof(c->only));
		c->admin = t->rights.level == LEVEL_ADMIN;
		c->quota = t->quota;
		if (t->rate_per_s) {
			rate = t->rate_per_s;
			burst = 2 * rate;
		}
	} else if (config->stub_auth && !detail) {
		tenant = tenant_of(c->api, "local");
		c->admin = true;
	} else {
		if (login_failed(c->api->logins, peer, now_ms, &retry_s))
			unauthorized(c, detail ? detail : "missing bearer token");
		else
			failed_too_often(c, retry_s);
		return false;
	}
	if (!tenant) {
		call_nomem(c);
		return false;
	}
	if (!asked_from_here(c, !t))
		return false;
	snprintf(c->tenant, sizeof(c->tenant), "%s", tenant->name);
	c->known = true;
	c->account = &tenant->held;
	http_set_account(c->req, c->account);
	ok = tenant_may_ask(tenant, rate, burst, now_ms, &retry_s);
	if (!ok) {
		retry_after(c, retry_s);
		call_fail(c, EAGAIN, "rate_limited",
		          "more than %u requests per second: try again in %u s", rate, retry_s);
	} else if (t && !rights_reach(&t->rights, c->route)) {
		ok = false;
		out_of_scope(c, &t->rights);
	}
	return ok;
}
