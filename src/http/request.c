#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <strings.h>

#include "base/account.h"
#include "base/clock.h"
#include "base/macro.h"
#include "http/parse.h"
#include "http/server.h"
#include "http/server_internal.h"

const char *http_reason(int status)
{
	static const struct {
		int status;
		const char *text;
	} all[] = {
	    {100, "Continue"},
	    {101, "Switching Protocols"},
	    {200, "OK"},
	    {201, "Created"},
	    {202, "Accepted"},
	    {204, "No Content"},
	    {206, "Partial Content"},
	    {301, "Moved Permanently"},
	    {302, "Found"},
	    {303, "See Other"},
	    {304, "Not Modified"},
	    {307, "Temporary Redirect"},
	    {308, "Permanent Redirect"},
	    {400, "Bad Request"},
	    {401, "Unauthorized"},
	    {402, "Payment Required"},
	    {403, "Forbidden"},
	    {404, "Not Found"},
	    {405, "Method Not Allowed"},
	    {406, "Not Acceptable"},
	    {408, "Request Timeout"},
	    {409, "Conflict"},
	    {410, "Gone"},
	    {411, "Length Required"},
	    {412, "Precondition Failed"},
	    {413, "Content Too Large"},
	    {415, "Unsupported Media Type"},
	    {416, "Range Not Satisfiable"},
	    {417, "Expectation Failed"},
	    {422, "Unprocessable Content"},
	    {423, "Locked"},
	    {425, "Too Early"},
	    {426, "Upgrade Required"},
	    {429, "Too Many Requests"},
	    {431, "Request Header Fields Too Large"},
	    {500, "Internal Server Error"},
	    {501, "Not Implemented"},
	    {502, "Bad Gateway"},
	    {503, "Service Unavailable"},
	    {504, "Gateway Timeout"},
	    {505, "HTTP Version Not Supported"},
	    {507, "Insufficient Storage"},
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (all[i].status == status)
			return all[i].text;
	return "Status";
}

/* ---- life ---- */

/* The same place in the copy of a text. */
static const char *moved(const char *p, const char *from, const char *to)
{
	return to + (p - from);
}

struct http_req *req_new(struct http_conn *c, const struct http_head *h, const char *text, size_t n)
{
	size_t fields = h->n * sizeof(struct http_field);
	struct http_req *r = malloc(sizeof(*r) + fields + n);
	char *copy;

	if (!r)
		return NULL;
	*r = (struct http_req){
	    .c = c,
	    .minor = h->minor,
	    .keep_alive = h->keep_alive,
	    .upgrade = h->upgrade,
	    .expect = h->expect_continue,
	    .is_head = strcmp(h->method, "HEAD") == 0,
	    .body_length = h->body == HTTP_BODY_CHUNKED ? -1 : (int64_t)h->length,
	    .start_ns = mono_ns(),
	    .left = -1,
	    .n = h->n,
	};
	copy = (char *)r->field + fields;
	memcpy(copy, text, n);
	r->method = moved(h->method, text, copy);
	r->path = moved(h->path, text, copy);
	r->query = moved(h->query, text, copy);
	for (size_t i = 0; i < h->n; i++) {
		r->field[i].name = moved(h->field[i].name, text, copy);
		r->field[i].value = moved(h->field[i].value, text, copy);
	}
	return r;
}

void req_end(struct http_req *r, bool aborted)
{
	const struct http_config *conf = &r->c->s->conf;

	if (conf->logged)
		conf->logged(conf->arg, r, r->status, r->bytes_out,
		             (mono_ns() - r->start_ns) / 1000,
		             aborted && (!r->failed || r->c->dead));
	while (r->nends) {
		r->nends--;
		r->end[r->nends].fn(r->end[r->nends].arg, r, aborted);
	}
	free(r->collect);
	free(r->extra);
	free(r);
}

/* The server answers in the handler's place; for the handler the request is over. */
void req_fail(struct http_req *r, int status, const char *code, const char *text)
{
	char body[HTTP_REFUSAL_MAX], lines[HTTP_REFUSAL_MAX];

	r->failed = true;
	r->want = false;
	r->c->keep = false;
	if (r->reply != REPLY_NONE) {
		http_cut(r);
		return;
	}
	server_refusal(r->c->s, r, code, text, body, lines);
	http_reply(r, status, "application/json", body, strlen(body));
}

/* ---- what was asked ---- */

const char *http_method(const struct http_req *r)
{
	return r->method;
}

const char *http_path(const struct http_req *r)
{
	return r->path;
}

const char *http_query(const struct http_req *r)
{
	return r->query;
}

const char *http_header(const struct http_req *r, const char *name)
{
	for (size_t i = 0; i < r->n; i++)
		if (strcasecmp(r->field[i].name, name) == 0)
			return r->field[i].value;
	return NULL;
}

bool http_header_at(const struct http_req *r, size_t i, const char **name, const char **value)
{
	if (i >= r->n)
		return false;
	*name = r->field[i].name;
	*value = r->field[i].value;
	return true;
}

const char *http_peer(const struct http_req *r)
{
	return r->c->peer;
}

const uint8_t *http_peer_key(const struct http_req *r)
{
	return r->c->addr->counted ? r->c->addr->key : NULL;
}

struct http_stats http_server_stats(const struct http_req *r)
{
	struct http_stats s = r->c->s->stats;

	s.conns = r->c->s->n;
	return s;
}

bool http_is_tls(const struct http_req *r)
{
	return r->c->ssl;
}

int64_t http_body_length(const struct http_req *r)
{
	return r->body_length;
}

bool http_wants_upgrade(const struct http_req *r, const char *protocol)
{
	return r->upgrade && r->minor == 1 && http_list_has(http_header(r, "upgrade"), protocol);
}

void http_set_account(struct http_req *r, struct account *a)
{
	conn_account(r->c, a);
}

void http_set_data(struct http_req *r, void *p)
{
	r->data = p;
}

void *http_data(const struct http_req *r)
{
	return r->data;
}

void http_on_end(struct http_req *r, void (*fn)(void *arg, struct http_req *r, bool aborted),
                 void *arg)
{
	assert(r->nends < ARRAY_LEN(r->end));
	r->end[r->nends].fn = fn;
	r->end[r->nends++].arg = arg;
}

/* ---- its body ---- */

static void too_large(struct http_req *r)
{
	char text[100];

	snprintf(text, sizeof(text), "the body of this request may have %zu bytes", r->collect_max);
	req_fail(r, 413, "too_large", text);
}

void http_body_collect(struct http_req *r, size_t max,
                       void (*fn)(void *arg, struct http_req *r, char *p, size_t n), void *arg)
{
	assert(r->mode == BODY_UNASKED);
	r->mode = BODY_COLLECT;
	r->collected = fn;
	r->collect_max = max;
	r->ops_arg = arg;
	if (r->body_length > 0 && (uint64_t)r->body_length > max) {
		too_large(r); /* before the client has sent it all */
		return;
	}
	r->want = true;
	conn_kick(r->c);
}

void http_body_stream(struct http_req *r, const struct http_body_ops *ops, void *arg)
{
	assert(r->mode == BODY_UNASKED);
	r->mode = BODY_STREAM;
	r->ops = *ops;
	r->ops_arg = arg;
	r->want = true;
	conn_kick(r->c);
}

void http_body_more(struct http_req *r)
{
	if (r->mode != BODY_STREAM || !r->piece || r->failed)
		return;
	r->piece = false;
	r->want = true;
	conn_kick(r->c);
}

void http_pipe_more(struct http_req *r)
{
	http_body_more(r);
}

static void no_account(struct http_req *r, const struct account *full)
{
	http_add_header(r, "Retry-After", "1");
	if (full->above)
		req_fail(r, 429, "too_many",
		         "other requests of yours hold as many bytes as one tenant may: try again "
		         "when they have ended");
	else
		req_fail(
		    r, 503, "host_full",
		    "other requests hold as many bytes as this server has for clients: try again "
		    "later");
}

/* False: it was refused. */
static bool collect(struct http_req *r, const char *p, size_t n)
{
	size_t need = r->collect_len + n;

	if (r->collect_cap < need + 1) {
		size_t cap = MAX(2 * r->collect_cap, need + 1);
		struct account *full;
		char *more;

		/* The announced length, if that is not much for a client that may send nothing. */
		if (r->body_length > 0 && r->body_length < HTTP_OUT_HIGH)
			cap = MAX(cap, (size_t)r->body_length + 1);
		cap = MIN(cap, r->collect_max + 1); /* need is no more than that */
		if ((full = conn_full(r->c, cap - r->collect_cap))) {
			no_account(r, full);
			return false;
		}
		more = realloc(r->collect, cap);
		if (!more) {
			req_fail(r, 503, "no_memory", "no memory for the body of this request");
			return false;
		}
		r->collect = more;
		r->collect_cap = cap;
		conn_charge(r->c);
	}
	memcpy(r->collect + r->collect_len, p, n);
	r->collect_len = need;
	r->collect[need] = 0;
	return true;
}

void req_body_piece(struct http_req *r, const char *p, size_t n)
{
	if (r->mode == BODY_STREAM) {
		r->piece = true;
		r->want = false;
		r->ops.data(r->ops_arg, r, p, n);
		return;
	}
	if (n > r->collect_max - r->collect_len)
		too_large(r);
	else
		(void)collect(r, p, n);
}

void req_body_end(struct http_req *r)
{
	r->want = false;
	if (r->mode == BODY_STREAM)
		r->ops.end(r->ops_arg, r);
	else if (collect(r, "", 0)) /* an empty one has its NUL, too */
		r->collected(r->ops_arg, r, r->collect, r->collect_len);
}

/* ---- the reply ---- */

static bool add_extra(struct http_req *r, const char *p, size_t n)
{
	if (r->extra_cap - r->extra_len < n + 1) {
		size_t cap = MAX(2 * r->extra_cap, r->extra_len + n + 1);
		char *extra = realloc(r->extra, cap);

		if (!extra)
			return false;
		r->extra = extra;
		r->extra_cap = cap;
	}
	memcpy(r->extra + r->extra_len, p, n);
	r->extra_len += n;
	r->extra[r->extra_len] = 0;
	return true;
}

void http_add_header(struct http_req *r, const char *name, const char *value)
{
	size_t from = r->extra_len, n = strlen(value);
	char *copy;

	/* How long the reply is, is said by http_begin(), and only once. */
	if (r->reply != REPLY_NONE || strcasecmp(name, "content-length") == 0 ||
	    strcasecmp(name, "transfer-encoding") == 0)
		return;
	for (const char *p = name; *p; p++)
		if (!http_is_token((unsigned char)*p))
			return;
	if (!*name || !add_extra(r, name, strlen(name)) || !add_extra(r, ": ", 2) ||
	    !add_extra(r, value, n) || !add_extra(r, "\r\n", 2)) {
		r->extra_len = from; /* half a line would be worse than none */
		if (r->extra)
			r->extra[from] = 0;
		return;
	}
	/* Values may come from people: none of them gets to begin a new line. */
	copy = r->extra + r->extra_len - 2 - n;
	for (size_t i = 0; i < n; i++)
		if (((unsigned char)copy[i] < ' ' && copy[i] != '\t') || copy[i] == 0x7f)
			copy[i] = '?';
}

/* Can this connection take another request when the reply is out? */
static bool may_keep(const struct http_req *r)
{
	const struct http_conn *c = r->c;

	if (!c->keep || c->s->draining)
		return false;
	if (c->body.done)
		return true;
	/* A client that waits for 100 may send its body now or not: we cannot tell what comes. */
	if (r->expect)
		return false;
	if (r->mode == BODY_STREAM)
		return true;
	return c->body.kind == HTTP_BODY_CHUNKED || c->body.left <= CONN_DRAIN_MAX;
}

/* Is there such a header among these lines? name has its colon. */
static bool has_line(const char *headers, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = headers; p && *p;) {
		if (strncasecmp(p, name, n) == 0)
			return true;
		p = strchr(p, '\n');
		p += p != NULL;
	}
	return false;
}

void http_begin(struct http_req *r, int status, const char *type, int64_t length)
{
	struct http_conn *c = r->c;
	bool bodiless = status < 200 || status == 204 || status == 304;
	char line[160];

	if (r->reply != REPLY_NONE || c->dead)
		return;
	if (r->expect && r->mode == BODY_STREAM && status < 400) {
		/* The reply begins, and the rest of the body is wanted all the same. */
		r->expect = false;
		conn_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
	}
	if (type)
		http_add_header(r, "Content-Type", type);
	c->keep = may_keep(r);
	r->reply = REPLY_BEGUN;
	r->status = status;
	snprintf(line, sizeof(line), "HTTP/1.1 %d %s\r\n", status, http_reason(status));
	conn_text(c, line);
	if (!has_line(r->extra, "date:")) {
		snprintf(line, sizeof(line), "Date: %s\r\n", server_date(c->s));
		conn_text(c, line);
	}
	if (!bodiless && length >= 0) {
		snprintf(line, sizeof(line), "Content-Length: %" PRIi64 "\r\n", length);
		conn_text(c, line);
	} else if (!bodiless && r->minor == 1) {
		conn_text(c, "Transfer-Encoding: chunked\r\n");
		r->chunked = true;
	} else if (!bodiless) {
		c->keep = false; /* HTTP/1.0: the end of the connection is the end of the reply */
	}
	if (!c->keep)
		conn_text(c, "Connection: close\r\n");
	else if (r->minor == 0)
		conn_text(c, "Connection: keep-alive\r\n");
	if (r->extra_len)
		conn_text(c, r->extra);
	conn_text(c, "\r\n");
	if (bodiless)
		r->is_head = true;
	r->left = r->is_head ? -1 : length;
	conn_kick(c);
}

void http_send(struct http_req *r, const void *p, size_t n)
{
	struct http_conn *c = r->c;
	struct iovec iov[3];
	size_t k = 0;
	char size[24];

	if (r->reply != REPLY_BEGUN || r->is_head || !n || c->dead)
		return;
	if (r->left >= 0 && (uint64_t)r->left < n) {
		http_cut(
		    r); /* more than was promised: the client would take it for the next reply */
		return;
	}
	if (conn_pending(c) >= HTTP_OUT_MAX && !c->asked) {
		c->s->stats.cut++;
		http_cut(r);
		return;
	}
	c->asked = false;
	if (r->chunked)
		iov[k++] =
		    (struct iovec){.iov_base = size,
		                   .iov_len = (size_t)snprintf(size, sizeof(size), "%zx\r\n", n)};
	iov[k++] = (struct iovec){.iov_base = (void *)p, .iov_len = n};
	if (r->chunked)
		iov[k++] = (struct iovec){.iov_base = "\r\n", .iov_len = 2};
	conn_send(c, iov, k);
	if (r->left >= 0)
		r->left -= (int64_t)n;
	r->bytes_out += n;
	if (conn_pending(c) >= conn_high(c))
		r->no_room = true;
}

size_t http_room(const struct http_req *r)
{
	size_t pending = conn_pending(r->c), high = conn_high(r->c);

	r->c->asked = true;
	if (r->c->dead || r->reply == REPLY_FINISHED)
		return 0;
	if (pending >= high)
		((struct http_req *)r)->no_room = true; /* it may have become tight since */
	return pending < high ? high - pending : 0;
}

void http_on_writable(struct http_req *r, void (*fn)(void *arg, struct http_req *r), void *arg)
{
	r->writable = fn;
	r->writable_arg = arg;
}

void req_writable(struct http_req *r)
{
	r->no_room = false;
	if (r->writable)
		r->writable(r->writable_arg, r);
}

void http_finish(struct http_req *r)
{
	if (r->reply != REPLY_BEGUN)
		return;
	if (r->left > 0) {
		http_cut(r);
		return;
	}
	if (r->chunked && !r->is_head)
		conn_text(r->c, "0\r\n\r\n");
	r->reply = REPLY_FINISHED;
	conn_kick(r->c);
}

void http_reply(struct http_req *r, int status, const char *type, const void *p, size_t n)
{
	if (r->reply != REPLY_NONE)
		return;
	http_begin(r, status, type, (int64_t)n);
	http_send(r, p, n);
	http_finish(r);
}

bool http_begun(const struct http_req *r)
{
	return r->reply != REPLY_NONE;
}

void http_cut(struct http_req *r)
{
	r->c->dead = r->c->reset = true;
	conn_kick(r->c);
}

/* ---- pipes ---- */

int http_upgrade(struct http_req *r, const char *headers, const struct http_body_ops *ops,
                 void *arg)
{
	struct http_conn *c = r->c;
	const char *protocol = http_header(r, "upgrade");

	if (r->reply != REPLY_NONE || r->mode != BODY_UNASKED || !c->body.done || !protocol)
		return -EINVAL;
	r->pipe = true;
	r->mode = BODY_STREAM;
	r->ops = *ops;
	r->ops_arg = arg;
	r->want = true;
	r->is_head = false; /* what is sent now is no reply */
	r->reply = REPLY_BEGUN;
	r->status = 101;
	c->body = (struct body){.kind = HTTP_BODY_EOF};
	conn_text(c, "HTTP/1.1 101 Switching Protocols\r\n");
	if (!has_line(headers, "connection:"))
		conn_text(c, "Connection: Upgrade\r\n");
	if (!has_line(headers, "upgrade:")) {
		size_t n = strcspn(protocol, ", \t");
		char line[64];

		snprintf(line, sizeof(line), "Upgrade: %.*s\r\n", (int)MIN(n, (size_t)40),
		         protocol);
		conn_text(c, line);
	}
	if (headers)
		conn_text(c, headers);
	conn_text(c, "\r\n");
	conn_kick(c);
	return 0;
}
