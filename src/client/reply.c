/*
 * client/reply.c - one request on one connection, and its reply as it comes
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "client/client_internal.h"
#include "http/parse.h"

struct reply_reader {
	struct http_head head;
	struct http_chunked chunked;
	uint64_t left; /* HTTP_BODY_LENGTH */
	bool done, keep;
	char url[200]; /* for what we say when it breaks */
	char *at;      /* what has been read and not been given */
	size_t len;
	char buf[CLIENT_BUF];
};

/* ---- sending ---- */

static int send_head(struct panda *p, const struct request *q, struct server_conn *c,
                     uint64_t deadline, struct panda_error *e)
{
	autofree char *text = NULL;
	char length[64] = "";
	bool bodied = strcmp(q->method, "GET") != 0 && strcmp(q->method, "DELETE") != 0;
	int n, r;

	if (strpbrk(q->path, " \r\n") || q->path[0] != '/')
		return perr_set(e, EINVAL, "bad_argument", "'%.100s' is no path of a request",
		                q->path);
	if (q->length < 0)
		snprintf(length, sizeof(length), "Transfer-Encoding: chunked\r\n");
	else if (q->length || bodied)
		snprintf(length, sizeof(length), "Content-Length: %lld\r\n", (long long)q->length);
	n = asprintf(
	    &text,
	    "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: libpanda\r\n%s%s%s%s%s%s%s%s%s%s\r\n",
	    q->method, p->target.prefix, q->path, p->target.authority,
	    p->key ? "Authorization: Bearer " : "", p->key ? p->key : "", p->key ? "\r\n" : "",
	    q->accept ? "Accept: " : "", q->accept ? q->accept : "", q->accept ? "\r\n" : "",
	    q->type ? "Content-Type: " : "", q->type ? q->type : "", q->type ? "\r\n" : "", length);
	if (n < 0) {
		text = NULL;
		return perr_nomem(e);
	}
	r = conn_write_full(c, text, (size_t)n - (q->extra ? 2 : 0), deadline);
	if (r == 0 && q->extra)
		r = conn_write_full(c, q->extra, strlen(q->extra), deadline);
	if (r == 0 && q->extra)
		r = conn_write_full(c, "\r\n", 2, deadline);
	return r;
}

/* A server that has answered already wants no more of the body. */
static bool answered(struct server_conn *c)
{
	return !conn_idle(c);
}

static int send_source(struct panda *p, const struct request *q, struct server_conn *c,
                       struct panda_error *e)
{
	autofree char *buf = malloc(CLIENT_BUF + 16);
	uint64_t left = (uint64_t)q->length;
	char size[16];
	ssize_t n;
	int k, r;

	if (!buf)
		return perr_nomem(e);
	while (q->length < 0 || left) {
		size_t want = q->length < 0 ? CLIENT_BUF : MIN(left, (uint64_t)CLIENT_BUF);

		n = q->source(q->arg, buf + 10, want);
		if (n < 0)
			return perr_set(e, (int)-n, "stopped", "cannot read what is to be sent: %s",
			                strerror((int)-n));
		if (n == 0 && q->length >= 0)
			return perr_set(e, EIO, "stopped",
			                "what is to be sent ended %llu bytes too early",
			                (unsigned long long)left);
		if (answered(c))
			return 1;
		if (q->length < 0) { /* the size in front, the line end behind: one write */
			k = snprintf(size, sizeof(size), "%zx\r\n", (size_t)n);
			memcpy(buf + 10 - k, size, (size_t)k);
			buf[10 + n] = '\r';
			buf[11 + n] = '\n';
			r = conn_write_full(c, buf + 10 - k, (size_t)(n + k + 2),
			                    conn_deadline(p->timeout_ms));
		} else {
			r = conn_write_full(c, buf + 10, (size_t)n, conn_deadline(p->timeout_ms));
		}
		if (r == -EPIPE || r == -ECONNRESET)
			return 1; /* perhaps it said why before it left */
		if (r < 0)
			return conn_errno(e, r, "while sending", p->target.url);
		if (n == 0)
			return 0;
		left -= (uint64_t)n;
	}
	return 0;
}

/* ---- receiving ---- */

/* The head of the answer itself, past any 100. -EPIPE: the connection ended before a byte came. */
static int read_head(const struct request *q, struct reply *ret, uint64_t deadline,
                     const char **why)
{
	struct reply_reader *st = ret->st;
	size_t scanned = 0;
	ssize_t n, end;
	bool any = false;

	st->at = st->buf;
	for (;;) {
		end = http_head_end(st->at, st->len, &scanned);
		if (end < 0) {
			*why = "a line of its head ends in a bare LF";
			return -EBADMSG;
		}
		if (end > 0) {
			if (http_parse_response(st->at, (size_t)end, q->method, &st->head, why) < 0)
				return -EBADMSG;
			st->at += end;
			st->len -= (size_t)end;
			if (st->head.status >= 200 || st->head.status == 101)
				return 0;
			/* 100 and friends: the real one follows. Nothing points into buf any
			 * more. */
			memmove(st->buf, st->at, st->len);
			st->at = st->buf;
			scanned = 0;
			continue;
		}
		if (st->len >= HTTP_HEAD_MAX) {
			*why = "its head is too long";
			return -EBADMSG;
		}
		n = conn_read(&ret->conn, st->buf + st->len, sizeof(st->buf) - st->len, deadline);
		if (n == 0 || n == -ECONNRESET)
			return any ? -ECONNRESET : -EPIPE;
		if (n < 0)
			return (int)n;
		any = true;
		st->len += (size_t)n;
	}
}

static void keep_field(const struct http_head *h, const char *name, char *buf, size_t n)
{
	const char *v = http_head_field(h, name);

	snprintf(buf, n, "%s", v ? v : "");
}

static void take_head(struct reply *r)
{
	struct reply_reader *st = r->st;
	const struct http_head *h = &st->head;

	r->status = h->status;
	keep_field(h, "content-type", r->type, sizeof(r->type));
	r->type[strcspn(r->type, "; ")] = 0;
	keep_field(h, "x-request-id", r->request_id, sizeof(r->request_id));
	keep_field(h, "sec-websocket-accept", r->ws_accept, sizeof(r->ws_accept));
	st->keep = h->keep_alive;
	st->left = h->body == HTTP_BODY_LENGTH ? h->length : 0;
	st->done = h->body == HTTP_BODY_NONE;
}

/* One attempt on ret->conn. 1: the kept connection was closed under us, nothing happened. */
static int attempt(struct panda *p, const struct request *q, bool kept, struct reply *ret,
                   struct panda_error *e)
{
	uint64_t deadline = conn_deadline(p->timeout_ms);
	const char *why = "";
	bool cut = false;
	int r;

	r = send_head(p, q, &ret->conn, deadline, e);
	if (r == 0 && q->body)
		r = conn_write_full(&ret->conn, q->body, (size_t)q->length, deadline);
	if (r == 0 && q->source) {
		r = send_source(p, q, &ret->conn, e);
		if (r < 0)
			return r;
		cut = r;
	} else if (r == -EPIPE || r == -ECONNRESET) {
		if (kept)
			return 1;
		cut = true;
	} else if (r == -EINVAL || r == -ENOMEM) {
		return r; /* said */
	} else if (r < 0) {
		return conn_errno(e, r, "while sending", p->target.url);
	}
	r = read_head(q, ret,
	              conn_deadline(q->own_conn ? MAX(p->timeout_ms, CLIENT_REPLY_MS)
	                                        : p->timeout_ms),
	              &why);
	if (r == -EPIPE && kept && !q->source)
		return 1;
	if (r == -EBADMSG)
		return perr_set(e, EPROTO, "protocol", "%s answered nonsense: %s", p->target.url,
		                why);
	if (r == -EPIPE)
		r = -ECONNRESET;
	if (r < 0)
		return conn_errno(e, r, "before an answer came", p->target.url);
	take_head(ret);
	if (!cut)
		return 0;
	ret->st->keep = false;
	/* Whatever it thanks us for, it is not what we wanted to send. */
	if (ret->status < 400)
		return perr_set(e, EIO, "stopped",
		                "%s answered %d before it had all that is to be sent",
		                p->target.url, ret->status);
	return 0;
}

int reply_open(struct panda *p, const struct request *q, struct reply *ret, struct panda_error *e)
{
	/* Done twice, these do the same as done once. */
	bool again =
	    !strcmp(q->method, "GET") || !strcmp(q->method, "DELETE") || !strcmp(q->method, "PUT");
	bool kept = false;
	int r;

	*ret = (struct reply){.conn.fd = -1};
	ret->st = calloc(1, sizeof(*ret->st));
	if (!ret->st)
		return perr_nomem(e);
	snprintf(ret->st->url, sizeof(ret->st->url), "%s", p->target.url);
	if (!q->own_conn && conn_idle(&p->idle) &&
	    (again || mono_ms() - p->idle_since < CLIENT_IDLE_MS)) {
		ret->conn = p->idle;
		p->idle = (struct server_conn){.fd = -1};
		kept = true;
	} else if (!q->own_conn) {
		conn_close(&p->idle);
	}
	for (;;) {
		r = kept ? 0 : conn_open(&p->target, p->tls, &ret->conn, e);
		if (r == 0)
			r = attempt(p, q, kept && again, ret, e);
		if (r <= 0)
			break;
		conn_close(&ret->conn);
		ret->st->len = 0;
		kept = false;
	}
	if (r < 0)
		reply_close(ret, NULL);
	return r;
}

/* Fills buf's start with what comes next from the server. */
static ssize_t refill(struct reply *r, uint64_t deadline, struct panda_error *e)
{
	struct reply_reader *st = r->st;
	ssize_t n = conn_read(&r->conn, st->buf, sizeof(st->buf), deadline);

	if (n == -EAGAIN)
		return n;
	if (n == 0 && st->head.body == HTTP_BODY_EOF) {
		st->done = true;
		return 0;
	}
	if (n <= 0) {
		st->keep = false;
		return conn_errno(e, n == 0 ? -ECONNRESET : (int)n, "in the middle of a reply",
		                  st->url);
	}
	st->at = st->buf;
	st->len = (size_t)n;
	return n;
}

/* Decodes from what has been read. How much came out; 0: nothing yet, or done. */
static ssize_t decode(struct reply *r, void *buf, size_t n, struct panda_error *e)
{
	struct reply_reader *st = r->st;
	const char *data = st->at;
	size_t len = 0;
	ssize_t eaten;

	if (st->head.body != HTTP_BODY_CHUNKED) {
		len = MIN(n, st->len);
		if (st->head.body == HTTP_BODY_LENGTH)
			len = MIN(len, st->left);
		eaten = (ssize_t)len;
	} else {
		eaten = http_chunked_eat(&st->chunked, st->at, MIN(n, st->len), &data, &len);
		if (eaten < 0) {
			st->keep = false;
			return perr_set(e, EPROTO, "protocol", "%s sent a broken chunked body",
			                st->url);
		}
		st->done = st->chunked.done;
	}
	if (len)
		memcpy(buf, data, len);
	st->at += eaten;
	st->len -= (size_t)eaten;
	if (st->head.body == HTTP_BODY_LENGTH) {
		st->left -= len;
		st->done = !st->left;
	}
	return (ssize_t)len;
}

ssize_t reply_read(struct reply *r, void *buf, size_t n, uint64_t deadline, struct panda_error *e)
{
	struct reply_reader *st = r->st;
	ssize_t got;

	for (;;) {
		while (!st->done && st->len) {
			got = decode(r, buf, n, e);
			if (got)
				return got;
		}
		if (st->done)
			return 0;
		got = refill(r, deadline, e);
		if (got < 0)
			return got;
	}
}

int reply_upgraded(struct reply *r, struct server_conn *ret, struct panda_error *e)
{
	char *rest = NULL;

	if (r->st->len) {
		rest = malloc(r->st->len);
		if (!rest) {
			reply_close(r, NULL);
			return perr_nomem(e);
		}
		memcpy(rest, r->st->at, r->st->len);
	}
	*ret = r->conn;
	ret->rest = rest;
	ret->rest_at = 0;
	ret->rest_len = r->st->len;
	r->conn = (struct server_conn){.fd = -1};
	reply_close(r, NULL);
	return 0;
}

void reply_close(struct reply *r, struct panda *p)
{
	struct reply_reader *st = r->st;

	if (p && st && st->done && st->keep && !st->len && r->conn.fd >= 0) {
		conn_close(&p->idle);
		p->idle = r->conn;
		p->idle_since = mono_ms();
		r->conn = (struct server_conn){.fd = -1};
	}
	conn_close(&r->conn);
	free(st);
	r->st = NULL;
}
