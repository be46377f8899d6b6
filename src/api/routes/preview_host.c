/*
 * api/routes/preview_host.c - who comes in by a host name of its own, "8000-<name>.<suffix>"
 * Such a name is an origin to a browser, and who learns it can ask. It is public as soon as a page
 * is opened there: in DNS, in certificates, in what pages tell each other. So a visitor without a
 * token or a signed link reaches declared ports only, by the random name only, and wakes nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/ports.h"
#include "api/routes/preview.h"
#include "api/routes/preview_cookie.h"
#include "api/routes/preview_link.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "host/host.h"
#include "host/preview.h"
#include "host/sandbox.h"
#include "http/server.h"

int preview_open(struct call *c, const char *token, struct preview *ret, struct sandbox **ret_sb,
                 struct err *e)
{
	struct preview p;
	struct sandbox *sb;
	int r = preview_check(api_secret(c->api), token, (uint64_t)time(NULL), &p, e);

	if (r < 0)
		return r;
	sb = host_find(c->host, p.tenant, p.sandbox);
	if (!sb)
		return err_set(e, ENOENT, "sandbox_not_found", "sandbox not found");
	if (p.epoch != sb->preview_epoch)
		return err_set(e, EKEYREVOKED, "unauthorized",
		               "this link was revoked: ask its owner for a new one");
	*ret = p;
	*ret_sb = sb;
	return 0;
}

/* ---- with a token or a link ---- */

static bool has_token(struct call *c, const struct sandbox *sb)
{
	const struct token *t = auth_token(c);

	return t && strcmp(t->tenant->name, sb->tenant) == 0 && t->rights.level >= LEVEL_EXEC &&
	       (!*t->rights.only || strcmp(t->rights.only, sb->id) == 0);
}

static bool has_link(struct call *c, const struct sandbox *sb, unsigned port)
{
	const char *cookies = http_header(c->req, "Cookie");
	char token[PREVIEW_TOKEN_MAX];
	struct sandbox *to;
	struct preview p;

	return cookies && cookie_get(cookies, PREVIEW_COOKIE, token, sizeof(token)) &&
	       preview_open(c, token, &p, &to, NULL) == 0 && to == sb && p.port == port &&
	       preview_allows(&p, http_path(c->req));
}

/* The same URL without the link. A path that begins with two slashes would be another server. */
static char *without_link(struct call *c)
{
	const char *path = http_path(c->req), *query = http_query(c->req);
	bool first = true;
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	fprintf(f, "/%s", path + strspn(path, "/\\"));
	while (*query) {
		size_t k = strcspn(query, "&");

		if (strncmp(query, PREVIEW_COOKIE "=", sizeof(PREVIEW_COOKIE)) != 0) {
			fprintf(f, "%c%.*s", first ? '?' : '&', (int)k, query);
			first = false;
		}
		query += k + (query[k] == '&');
	}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* A browser that opens the link keeps it as a cookie of this host name, and goes on without it in
 * its address. True: answered. */
static bool take_link(struct call *c, const struct sandbox *sb, unsigned port)
{
	const char *method = http_method(c->req), *url = api_config_of(c->api)->public_url;
	autofree char *token = NULL, *to = NULL, *cookie = NULL;
	struct sandbox *led;
	struct preview p;
	struct err e;

	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		return false;
	token = call_query(c, PREVIEW_COOKIE);
	if (!token)
		return false;
	if (preview_open(c, token, &p, &led, &e) < 0) {
		call_error(c, &e);
		return true;
	}
	if (led != sb || p.port != port) {
		call_fail(c, EACCES, "unauthorized", "this link is for another host name");
		return true;
	}
	to = without_link(c);
	if (!to ||
	    asprintf(&cookie, PREVIEW_COOKIE "=%s; Path=/; Max-Age=%llu; HttpOnly; SameSite=Lax%s",
	             token, (unsigned long long)(p.expires_s - (uint64_t)time(NULL)),
	             http_is_tls(c->req) || (url && strncmp(url, "https:", 6) == 0) ? "; Secure"
	                                                                            : "") < 0) {
		cookie = NULL;
		call_nomem(c);
		return true;
	}
	http_add_header(c->req, "Set-Cookie", cookie);
	http_add_header(c->req, "Location", to);
	http_add_header(c->req, "Referrer-Policy", "no-referrer");
	call_empty(c, 302);
	return true;
}

/* ---- without ---- */

/* False: answered. */
static bool stranger_may(struct call *c, const struct sandbox *sb, bool by_id, unsigned port)
{
	enum preview_mode mode = api_config_of(c->api)->preview_mode;

	/* Whether there is one of that id or not. */
	if (by_id && mode != PREVIEW_OPEN)
		call_fail(c, EACCES, "unauthorized",
		          "this host name needs a token or a signed link (POST .../preview-token); "
		          "the one for everyone is 'preview_url' in GET .../ports");
	else if (!sb || mode == PREVIEW_OFF)
		call_fail(c, ENOENT, "not_found",
		          "there is no such preview: ask its owner for the new name or a link");
	else if (mode == PREVIEW_DECLARED && !ports_declared(sb, port))
		call_fail(
		    c, EACCES, "forbidden",
		    "port %u is not open to visitors: its owner declares it with 'panda ports "
		    "ID --add %u' (POST .../ports), or gives a signed link",
		    port, port);
	else if (sb->state == SANDBOX_HIBERNATED || sb->state == SANDBOX_HIBERNATING)
		call_fail(c, EAGAIN, "sandbox_hibernated",
		          "the sandbox hibernates, and visitors do not wake it: its owner wakes it "
		          "or gives a signed link");
	else
		return true;
	return false;
}

static void visit(struct call *c, const char *name, unsigned port)
{
	bool by_id = !preview_name_valid(name);
	struct sandbox *sb = by_id ? host_find(c->host, NULL, name) : preview_find(c->host, name);

	if (sb && take_link(c, sb, port))
		return;
	if (!(sb && (has_token(c, sb) || has_link(c, sb, port))) &&
	    !stranger_may(c, sb, by_id, port))
		return;
	if (!sb) {
		call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found");
		return;
	}
	c->sb = sb;
	memcpy(c->tenant, sb->tenant, sizeof(c->tenant));
	proxy_run(c, port, http_path(c->req), NULL);
}

bool proxy_by_host(struct api *a, struct http_req *r)
{
	const char *host = http_header(r, "Host"), *suffix = api_config_of(a)->preview_suffix;
	char name[SANDBOX_ID + 1];
	unsigned port;
	struct call *c;

	if (!host || !suffix || !preview_host(host, suffix, &port, name))
		return false;
	c = call_new(a, r);
	if (!c)
		return true;
	call_hold(c); /* the answer may end it */
	visit(c, name, port);
	call_drop(c);
	return true;
}
