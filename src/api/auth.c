/*
 * api/auth.c - who is asking, what may they do, and how often
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
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

static void unauthorized(struct call *c, const char *detail)
{
	http_add_header(c->req, "WWW-Authenticate", "Bearer");
	call_json(c, 401,
	          json_pack("{s:s, s:s, s:s, s:s}", "error", "unauthorized", "detail", detail,
	                    "code", "unauthorized", "request_id", c->request_id));
}

/* *detail stays NULL when the request has none. */
static struct token *token_of(struct call *c, const char **detail)
{
	const char *text = auth_bearer(http_header(c->req, "Authorization"));
	autofree char *from_query = NULL;
	char hash[TOKEN_HASH + 1];

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
	if (!token_well_formed(text) || token_hash(text, hash) < 0)
		return NULL;
	return token_by_hash(c->api, hash);
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
	const char *detail = NULL;
	struct token *t = token_of(c, &detail);
	unsigned rate = config->rate_per_s, burst = config->rate_burst, retry_s = 1;
	bool ok = true;

	if (t) {
		tenant = t->tenant;
		memcpy(c->token, t->prefix, sizeof(t->prefix));
		c->admin = t->admin;
		c->quota = t->quota;
		if (t->rate_per_s) {
			rate = t->rate_per_s;
			burst = 2 * rate;
		}
	} else if (config->stub_auth && !detail) {
		tenant = tenant_of(c->api, "local");
		c->admin = true;
	} else {
		unauthorized(c, detail ? detail : "missing bearer token");
		return false;
	}
	if (!tenant) {
		call_nomem(c);
		return false;
	}
	snprintf(c->tenant, sizeof(c->tenant), "%s", tenant->name);
	ok = tenant_may_ask(tenant, rate, burst, loop_now_ms(c->host->loop), &retry_s);
	if (!ok) {
		char text[16];

		snprintf(text, sizeof(text), "%u", retry_s);
		http_add_header(c->req, "Retry-After", text);
		call_fail(c, EAGAIN, "rate_limited",
		          "more than %u requests per second: try again in %u s", rate, retry_s);
	} else if (c->route->scope == SCOPE_ADMIN && !c->admin) {
		ok = false;
		call_fail(c, EPERM, "forbidden", "this needs a token with scope admin");
	}
	return ok;
}
