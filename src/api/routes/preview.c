/*
 * api/routes/preview.c - HTTP to a port inside a sandbox, through its agent
 * Each request has a stream of its own to the port. Heads are read and written anew: what is said
 * about a connection is about that connection, and no credential of ours goes into the guest.
 * Bodies pass in both directions at the pace of the slower side. An upgrade becomes a tunnel.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/ports.h"
#include "api/routes/preview.h"
#include "api/routes/preview_cookie.h"
#include "api/routes/preview_link.h"
#include "api/routes/routes.h"
#include "api/streams/credit.h"
#include "api/streams/job.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/sandbox.h"
#include "http/parse.h"
#include "http/server.h"
#include "machine/guest.h"
#include "wire/guest.h"

enum {
	PROXY_WINDOW = GUEST_WINDOW,
	PIECES = 3, /* a chunk's size, its bytes, its end */
};

enum phase {
	HEAD,   /* waiting for the head of the answer */
	BODY,   /* it is being passed on */
	TUNNEL, /* after an upgrade */
	OVER,
};

struct preview_piece {
	const char *p;
	size_t n;
};

struct proxy {
	struct call *c;
	struct job *j;
	unsigned port;
	enum phase phase;
	/* The path of ours that leads to the port, so that its answers are of our origin; NULL: it
	 * has a host name of its own. */
	char *prefix;
	bool upgrade, chunked_out, has_body, reading, piece_in, all_in;

	/* to the guest */
	char *request;
	char size[24];
	struct preview_piece out[PIECES];
	size_t n_out;

	/* from the guest */
	char *head;
	size_t head_len, scanned;
	enum http_body_kind kind;
	uint64_t left;
	struct http_chunked chunked;
	struct credit credit;
};

static void proxy_free(struct proxy *x)
{
	call_leave(x->c);
	free(x->prefix);
	free(x->request);
	free(x->head);
	free(x);
}

/* The answer is complete, or will never be. */
static void proxy_over(struct proxy *x)
{
	job_abandon(x->j);
	proxy_free(x);
}

static void proxy_fail(struct proxy *x, const char *why)
{
	if (x->phase == HEAD)
		call_fail(x->c, EPROTO, "upstream", "upstream: port %u of the sandbox: %s", x->port,
		          why);
	else if (x->c->req)
		http_cut(x->c->req);
	proxy_over(x);
}

/* ---- to the guest ---- */

static void on_body(void *arg, struct http_req *r, const void *p, size_t n);
static void on_body_end(void *arg, struct http_req *r);
static const struct http_body_ops body_ops = {.data = on_body, .end = on_body_end};

static void proxy_push(struct proxy *x)
{
	if (!x->j)
		x->n_out = 0; /* the client is gone */
	while (x->n_out) {
		size_t n = job_send(x->j, x->out[0].p, x->out[0].n);

		x->out[0].p += n;
		x->out[0].n -= n;
		if (x->out[0].n)
			return;
		memmove(x->out, x->out + 1, --x->n_out * sizeof(x->out[0]));
	}
	if (!x->c->req)
		return;
	if (x->has_body && !x->reading) {
		x->reading = true;
		http_body_stream(x->c->req, &body_ops, x);
	} else if (x->piece_in) {
		x->piece_in = false;
		http_body_more(x->c->req);
	}
}

static void proxy_put(struct proxy *x, const char *p, size_t n)
{
	x->out[x->n_out++] = (struct preview_piece){p, n};
}

static void on_body(void *arg, struct http_req *r, const void *p, size_t n)
{
	struct proxy *x = arg;

	x->piece_in = true;
	if (x->chunked_out) {
		proxy_put(x, x->size, (size_t)snprintf(x->size, sizeof(x->size), "%zx\r\n", n));
		proxy_put(x, p, n);
		proxy_put(x, "\r\n", 2);
	} else {
		proxy_put(x, p, n);
	}
	proxy_push(x);
}

static void on_body_end(void *arg, struct http_req *r)
{
	struct proxy *x = arg;

	x->all_in = true;
	if (!x->j)
		return;
	if (x->phase == TUNNEL) {
		job_send_eof(x->j);
	} else if (x->chunked_out) {
		proxy_put(x, "0\r\n\r\n", 5);
		proxy_push(x);
	}
}

static bool one_of(const char *name, const char *const *list)
{
	for (; *list; list++)
		if (strcasecmp(name, *list) == 0)
			return true;
	return false;
}

/* Said about a connection, not about what is carried. */
static const char *const hop[] = {"Connection",
                                  "Keep-Alive",
                                  "Proxy-Connection",
                                  "Proxy-Authenticate",
                                  "Proxy-Authorization",
                                  "TE",
                                  "Trailer",
                                  "Transfer-Encoding",
                                  "Upgrade",
                                  "Content-Length",
                                  NULL};

static bool hides(const char *connection, const char *name)
{
	return one_of(name, hop) || (connection && http_list_has(connection, name));
}

/* What a web server between us and others takes as an order: where to find the answer, or who asks.
 * Neither guests nor clients give it orders. */
static bool is_order(const char *name)
{
	static const char *const prefix[] = {"X-Accel-", "X-Sendfile", "X-Lighttpd-Send",
	                                     "X-LiteSpeed-", "X-Reproxy-"};

	for (size_t i = 0; i < ARRAY_LEN(prefix); i++)
		if (strncasecmp(name, prefix[i], strlen(prefix[i])) == 0)
			return true;
	return false;
}

/* Below our own paths, a page's URL names a sandbox or is a signed link; elsewhere it may hold
 * one of our tokens. */
static bool referer_tells(const char *value, bool ours)
{
	return ours || strstr(value, "access_token=pds_") || strstr(value, "/v1/p/") ||
	       strstr(value, PREVIEW_COOKIE "=");
}

/* A token or a link of ours? Below our paths each access_token is meant for us. */
static bool is_credential(const char *word, bool ours)
{
	static const char key[] = "access_token=";

	if (strncmp(word, PREVIEW_COOKIE "=", sizeof(PREVIEW_COOKIE)) == 0)
		return true;
	return strncmp(word, key, sizeof(key) - 1) == 0 &&
	       (ours || strncmp(word + sizeof(key) - 1, "pds_", 4) == 0);
}

static void put_query(FILE *f, const char *query, bool ours)
{
	bool first = true;

	while (*query) {
		size_t n = strcspn(query, "&");

		if (!is_credential(query, ours)) {
			fprintf(f, "%c%.*s", first ? '?' : '&', (int)n, query);
			first = false;
		}
		query += n + (query[n] == '&');
	}
}

static void put_header(FILE *f, const struct proxy *x, const char *name, const char *value)
{
	if (strcasecmp(name, "Cookie") == 0) {
		autofree char *theirs = cookie_without(value, PREVIEW_COOKIE);

		if (theirs && *theirs)
			fprintf(f, "Cookie: %s\r\n", theirs);
		return;
	}
	if (strcasecmp(name, "Authorization") == 0) {
		const char *token = auth_bearer(value);

		if (x->prefix || (token && token_well_formed(token)))
			return;
	}
	if (strcasecmp(name, "Referer") == 0 && referer_tells(value, x->prefix))
		return;
	fprintf(f, "%s: %s\r\n", name, value);
}

/* The request as the guest gets it. NULL: no memory. */
static char *request_head(struct proxy *x, const char *path, size_t *len)
{
	static const char *const drop[] = {"Expect", "Forwarded", "X-Real-IP", "X-Fcs-Sandbox",
	                                   NULL};
	struct http_req *r = x->c->req;
	const char *connection = http_header(r, "Connection"), *host = http_header(r, "Host");
	const char *name, *value;
	char *text = NULL;
	FILE *f = open_memstream(&text, len);

	if (!f)
		return NULL;
	fprintf(f, "%s %s%s", http_method(r), *path == '/' ? "" : "/", path);
	put_query(f, http_query(r), x->prefix);
	fprintf(f, " HTTP/1.1\r\n");
	for (size_t i = 0; http_header_at(r, i, &name, &value); i++)
		if (!hides(connection, name) && !one_of(name, drop) && !is_order(name) &&
		    strncasecmp(name, "X-Forwarded-", 12) != 0)
			put_header(f, x, name, value);
	fprintf(f, "X-Forwarded-For: %s\r\nX-Forwarded-Host: %s\r\nX-Forwarded-Proto: http%s\r\n",
	        http_peer(r), host ? host : "", http_is_tls(r) ? "s" : "");
	if (http_body_length(r) > 0)
		fprintf(f, "Content-Length: %lld\r\n", (long long)http_body_length(r));
	else if (x->chunked_out)
		fprintf(f, "Transfer-Encoding: chunked\r\n");
	else if (strcmp(http_method(r), "POST") == 0 || strcmp(http_method(r), "PUT") == 0)
		fprintf(f, "Content-Length: 0\r\n");
	if (x->upgrade)
		fprintf(f, "Connection: Upgrade\r\nUpgrade: %s\r\n", http_header(r, "Upgrade"));
	else
		fprintf(f, "Connection: close\r\n");
	fprintf(f, "\r\n");
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- from the guest ---- */

static void proxy_finish(struct proxy *x)
{
	x->phase = OVER;
	if (x->c->req)
		http_finish(x->c->req);
	proxy_over(x);
}

/* Returns false when x is gone. */
static bool take_body(struct proxy *x, const char *p, size_t n)
{
	if (!x->c->req)
		return true; /* gone() is on its way */
	if (x->phase == TUNNEL || x->kind == HTTP_BODY_EOF) {
		http_send(x->c->req, p, n);
		return true;
	}
	if (x->kind == HTTP_BODY_LENGTH) {
		n = (size_t)MIN((uint64_t)n, x->left);
		http_send(x->c->req, p, n);
		x->left -= n;
		if (x->left)
			return true;
		proxy_finish(x);
		return false;
	}
	while (n && !x->chunked.done) {
		const char *data;
		size_t len = 0;
		ssize_t ate = http_chunked_eat(&x->chunked, p, n, &data, &len);

		if (ate < 0) {
			proxy_fail(x, "its answer is not chunked as it says");
			return false;
		}
		if (len)
			http_send(x->c->req, data, len);
		p += ate;
		n -= (size_t)ate;
	}
	if (!x->chunked.done)
		return true;
	proxy_finish(x);
	return false;
}

static int64_t announced(const struct http_head *h)
{
	const char *text = http_head_field(h, "Content-Length");

	return text && isdigit((unsigned char)*text) ? strtoll(text, NULL, 10) : -1;
}

/* As clients get it, or NULL: they do not. *mem is what the caller has to free. */
static const char *value_for(const struct proxy *x, const char *name, const char *value, char **mem)
{
	*mem = NULL;
	if (strcasecmp(name, "Set-Cookie") == 0)
		return *mem = cookie_narrow(value, x->prefix);
	/* The URL of a page opens it: other sites are not to be told. */
	if (strcasecmp(name, "Referrer-Policy") == 0)
		return strcmp(value, "no-referrer") == 0 ? value : NULL;
	return value;
}

/* Returns false when x is gone. */
static bool begin_tunnel(struct proxy *x, const struct http_head *h)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	const char *connection = http_head_field(h, "Connection");
	int r = -ENOMEM;

	for (size_t i = 0; f && i < h->n; i++) {
		const char *name = h->field[i].name;
		autofree char *mem = NULL;
		const char *value = value_for(x, name, h->field[i].value, &mem);

		if (value && (strcasecmp(name, "Upgrade") == 0 ||
		              (!hides(connection, name) && !is_order(name))))
			fprintf(f, "%s: %s\r\n", name, value);
	}
	if (f && fclose(f) == 0) {
		x->phase = TUNNEL;
		x->chunked_out = x->has_body = false;
		x->c->piped = true;
		r = http_upgrade(x->c->req, text, &body_ops, x);
	}
	free(text);
	if (r < 0) {
		x->phase = HEAD;
		x->c->piped = false;
		proxy_fail(x, "the upgrade failed");
	}
	return r >= 0;
}

/* The head of the answer is here. Returns false when x is gone. */
static bool answer(struct proxy *x, const struct http_head *h)
{
	static const char *const drop[] = {"Date", "X-Request-Id", NULL};
	/* What a browser would believe about all of an origin, and other sandboxes share ours. */
	static const char *const origin[] = {"Service-Worker-Allowed",
	                                     "Clear-Site-Data",
	                                     "Alt-Svc",
	                                     "Strict-Transport-Security",
	                                     "NEL",
	                                     "Report-To",
	                                     "Reporting-Endpoints",
	                                     "Origin-Agent-Cluster",
	                                     NULL};
	struct http_req *r = x->c->req;
	const char *connection = http_head_field(h, "Connection");
	const char *type = http_head_field(h, "Content-Type");
	int64_t length = -1;

	if (h->status == 101 && x->upgrade)
		return begin_tunnel(x, h);
	if (h->status < 200 || h->status > 999) {
		proxy_fail(x, "its answer makes no sense");
		return false;
	}
	/* One that says more is later, and counts. */
	http_add_header(r, "Referrer-Policy", "same-origin");
	/* A page below our paths is of no origin: it reads nothing of ours, nor of another page's.
	 * What it says of its own comes on top. */
	if (x->prefix)
		http_add_header(r, "Content-Security-Policy",
		                "sandbox allow-scripts allow-forms allow-popups allow-downloads");
	for (size_t i = 0; i < h->n; i++) {
		const char *name = h->field[i].name;
		autofree char *mem = NULL;
		const char *value = value_for(x, name, h->field[i].value, &mem);

		if (value && !hides(connection, name) && !one_of(name, drop) && !is_order(name) &&
		    !(x->prefix && one_of(name, origin)))
			http_add_header(r, name, value);
	}
	if (type && strncasecmp(type, "text/event-stream", 17) == 0)
		http_add_header(r, "X-Accel-Buffering", "no");
	x->kind = h->body;
	x->left = h->length;
	if (h->body == HTTP_BODY_LENGTH)
		length = (int64_t)h->length;
	else if (h->body == HTTP_BODY_NONE)
		length = strcmp(http_method(r), "HEAD") == 0 ? announced(h) : 0;
	x->phase = BODY;
	http_begin(r, h->status, NULL, length);
	if (h->body == HTTP_BODY_NONE) {
		proxy_finish(x);
		return false;
	}
	return true;
}

/* Looks for heads in what has come; the first final one is the answer. */
static bool take_head(struct proxy *x, const char *p, size_t n)
{
	while (x->phase == HEAD) {
		size_t take = MIN(n, HTTP_HEAD_MAX - x->head_len);
		struct http_head h;
		const char *why;
		ssize_t end;
		size_t behind;

		memcpy(x->head + x->head_len, p, take);
		x->head_len += take;
		p += take;
		n -= take;
		end = http_head_end(x->head, x->head_len, &x->scanned);
		if (end == 0 && x->head_len < HTTP_HEAD_MAX)
			return true;
		if (end <= 0 || http_parse_response(x->head, (size_t)end, http_method(x->c->req),
		                                    &h, &why) < 0) {
			proxy_fail(x, "it does not answer in HTTP");
			return false;
		}
		behind = x->head_len - (size_t)end;
		if (h.status < 200 && h.status != 101) { /* 100, 103: the real one follows */
			memmove(x->head, x->head + end, behind);
			x->head_len = behind;
			x->scanned = 0;
			continue;
		}
		if (!answer(x, &h) || (behind && !take_body(x, x->head + end, behind)))
			return false;
	}
	return !n || take_body(x, p, n);
}

static void on_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct proxy *x = arg;

	if (!x->c->req)
		return;
	if (x->phase == HEAD ? !take_head(x, p, n) : !take_body(x, p, n))
		return;
	credit_owe(&x->credit, 0, n, call_room(x->c));
}

/* The service has said all it will say. Returns false when x is gone. */
static bool said_all(struct proxy *x)
{
	if (x->phase == TUNNEL) {
		if (x->c->req)
			http_finish(x->c->req); /* half of it; gone() tells when all is over */
		return true;
	}
	if (x->phase == BODY && x->kind == HTTP_BODY_EOF)
		proxy_finish(x);
	else
		proxy_fail(x, x->phase == HEAD ? "it closed the connection without an answer"
		                               : "its answer was cut");
	return false;
}

static void on_eof(void *arg, struct job *j, uint8_t chan)
{
	said_all(arg);
}

static void on_writable(void *arg, struct job *j)
{
	proxy_push(arg);
}

static void on_end(void *arg, struct job *j, const struct job_end *end)
{
	struct proxy *x = arg;

	x->j = NULL;
	if (x->phase == TUNNEL) {
		if (end->e || end->guest) {
			if (x->c->req)
				http_cut(x->c->req);
		} else {
			said_all(x);
		}
		x->phase = OVER; /* gone() frees it */
	} else if (end->e && x->phase == HEAD) {
		call_error(x->c, end->e);
		proxy_free(x);
	} else if (end->guest == ECONNREFUSED && x->phase == HEAD) {
		proxy_fail(x, "nothing listens there");
	} else if (end->e || end->guest) {
		proxy_fail(x, strerror(end->guest ? end->guest : end->e->code));
	} else {
		said_all(x);
	}
}

static void on_gone(void *arg)
{
	proxy_over(arg);
}

/* ---- the ways in ---- */

void proxy_run(struct call *c, unsigned port, const char *path, const char *prefix)
{
	static const struct job_ops ops = {.data = on_data,
	                                   .eof = on_eof,
	                                   .writable = on_writable,
	                                   .end = on_end};
	const char *up = http_header(c->req, "Upgrade");
	struct proxy *x = calloc(1, sizeof(*x));
	struct err e = {0};
	size_t n;

	if (x) {
		x->c = call_hold(c);
		x->port = port;
		x->prefix = prefix ? strdup(prefix) : NULL;
		x->credit = (struct credit){.give = credit_to_job, .arg = &x->j};
		x->upgrade = up && *up && !strpbrk(up, ", ") && http_wants_upgrade(c->req, up);
		x->chunked_out = http_body_length(c->req) < 0;
		x->has_body = http_body_length(c->req) != 0;
		x->head = malloc(HTTP_HEAD_MAX);
		x->request = request_head(x, path, &n);
	}
	if (!x || !x->head || !x->request || (prefix && !x->prefix))
		err_nomem(&e);
	else
		x->j = job_start(c->host, c->sb, WIRE_CONNECT,
		                 &(struct wire_connect){.port = port, .window = PROXY_WINDOW}, &ops,
		                 x, &e);
	if (e.code) {
		call_error(c, &e);
		if (x)
			proxy_free(x);
		return;
	}
	call_on_room(c, credit_pay, &x->credit);
	call_on_gone(c, on_gone, x);
	proxy_put(x, x->request, n);
	proxy_push(x);
}

void proxy_port(struct call *c)
{
	char prefix[SANDBOX_ID + 64];
	unsigned port;

	if (!port_param(c, c->param[1], &port))
		return;
	snprintf(prefix, sizeof(prefix), "/v1/sandboxes/%s/proxy/%s", c->sb->id, c->param[1]);
	proxy_run(c, port, c->param[2] ? c->param[2] : "", prefix);
}

void proxy_signed(struct call *c)
{
	const char *rest = c->param[1] ? c->param[1] : "";
	autofree char *path = NULL;
	char prefix[PREVIEW_TOKEN_MAX + 8];
	struct sandbox *sb;
	struct preview p;
	struct err e;

	if (preview_open(c, c->param[0], &p, &sb, &e) < 0) {
		call_error(c, &e);
		return;
	}
	if (asprintf(&path, "%s%s", *rest == '/' ? "" : "/", rest) < 0) {
		path = NULL;
		call_nomem(c);
		return;
	}
	if (!preview_allows(&p, path)) {
		call_fail(c, EACCES, "forbidden", "this link is not for this path");
		return;
	}
	c->sb = sb;
	snprintf(prefix, sizeof(prefix), "/v1/p/%s", c->param[0]);
	proxy_run(c, p.port, path, prefix);
}
