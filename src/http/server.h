/*
 * http/server.h - a strict HTTP/1.1 server on a loop; it has never heard of sandboxes
 * One request at a time per connection (keep-alive, no pipelined work: the next head is looked at
 * when the reply has been written). The body is pulled: as long as the handler does not want it,
 * nothing is read and the client waits. The reply is a queue with a high mark: a handler that has
 * more looks at http_room() and goes on in its writable callback. No slow client makes memory grow.
 *
 * A struct http_req lives from the call of the handler until its end callback returns (or, if none
 * was set, until the reply is out). Loop thread only. Text pointers live as long as the request.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/account.h"
#include "base/err.h"
#include "base/loop.h"

enum {
	HTTP_OUT_HIGH = 256 * 1024, /* queued reply bytes at which http_room() is 0 */
	HTTP_OUT_TIGHT = 64 * 1024, /* the same, when the account is more than half full */
	HTTP_OUT_MAX =
	    4 << 20, /* who sends on above that, and did not look at http_room(), is cut */
	HTTP_HELD_FREE = 160 * 1024, /* bytes of each connection that no account counts */
	HTTP_CHUNK = 64 * 1024,      /* the most one body callback gets */
	HTTP_ENDS_MAX = 2,
	HTTP_REFUSAL_MAX = 400, /* bytes of an error's body, and of its header lines */
};

struct http_server;
struct http_req;

struct http_config {
	/* When all of conns_max are there, a new one takes the place of an idle one, of the address
	 * that has most. An address is one of IPv4, or 64 bits of IPv6. 0: 4096; unlimited */
	unsigned conns_max, conns_per_addr_max;
	/* Counts what is held for clients: bodies that are collected, replies that are not read.
	 * When it is full, the connection for which most is held is cut. NULL: no limit. */
	struct account *account;
	const char *proxies; /* addresses and ranges that are not limited; unix sockets never are */
	unsigned head_ms;    /* the whole head must be here by then. 0: 10 s */
	unsigned idle_ms;    /* between requests. 0: 75 s (clients drop theirs after 4 s) */
	unsigned body_min_rate; /* bytes/s a wanted body must come with, over any 10 s. 0: 256 */
	unsigned stall_ms;      /* a reader that takes nothing for so long is cut. 0: 30 s */
	const char *tls_cert, *tls_key; /* PEM files; both or none */

	/* The head is here. The handler may reply at once or later. */
	void (*handler)(void *arg, struct http_req *r);
	/* Called when a reply is complete or the client is gone: for logs and metrics. May be
	 * NULL. */
	void (*logged)(void *arg, const struct http_req *r, int status, uint64_t bytes_out,
	               uint64_t took_us, bool aborted);
	/*
	 * How errors look that the server answers itself: what is malformed, too large, too slow or
	 * too much. r NULL: there is no request, only a connection. Writes the body (JSON), and the
	 * header lines that go with it when there is no request to add them to; each with its CR
	 * LF. code and text need no escaping. NULL: {"error", "code"} and no more.
	 */
	void (*refusal)(void *arg, const struct http_req *r, const char *code, const char *text,
	                char body[HTTP_REFUSAL_MAX], char lines[HTTP_REFUSAL_MAX]);
	void *arg;
};

/* Kinds: bad_config (certificate, key), no_memory. Copies the config. */
int http_server_new(struct loop *l, const struct http_config *c, struct http_server **ret,
                    struct err *e);
/* A bound, listening, non-blocking socket (tcp or unix); taken. May be called several times. */
int http_server_listen(struct http_server *s, int fd);
/* No new connections or requests; open ones may end. done() when the last is gone. */
void http_server_drain(struct http_server *s, void (*done)(void *arg), void *arg);
/* Cuts what is left; end callbacks run with aborted. Not from inside a callback of a request. */
void http_server_free(struct http_server *s);

unsigned http_server_conns(const struct http_server *s);

struct http_stats {
	unsigned conns;       /* now */
	uint64_t refused;     /* connections, for want of a place */
	uint64_t cut;         /* connections for which too much was held */
	uint64_t closed_idle; /* to make a place for another */
	uint64_t waited;      /* requests, behind others of their connection */
};

/* ---- the request ---- */

const char *http_method(const struct http_req *r);
const char *http_path(const struct http_req *r);  /* as sent, begins with '/', without query */
const char *http_query(const struct http_req *r); /* as sent, without '?'; "" when there is none */
const char *http_header(const struct http_req *r, const char *name); /* the first one, or NULL */
/* i-th header, false past the end: for proxies. */
bool http_header_at(const struct http_req *r, size_t i, const char **name, const char **value);
const char *http_peer(const struct http_req *r); /* "127.0.0.1", "unix", "::1" */
/* Whom limits count as one client: 16 bytes. NULL: they do not count it (unix socket, proxy). */
const uint8_t *http_peer_key(const struct http_req *r);
struct http_stats http_server_stats(const struct http_req *r); /* of the server it came to */
bool http_is_tls(const struct http_req *r);
/* -1: chunked, not known; 0: there is none. */
int64_t http_body_length(const struct http_req *r);
bool http_wants_upgrade(const struct http_req *r, const char *protocol); /* "websocket" */

/* Until the request ends, what its connection holds is counted there. A body that finds no room in
 * it is refused: with 429, or with 503 when it is the server's account that is full. A reply that
 * finds none is cut. */
void http_set_account(struct http_req *r, struct account *a);

/* Whatever the owner of the request wants to find again. */
void http_set_data(struct http_req *r, void *p);
void *http_data(const struct http_req *r);

/*
 * Once, as the last thing about this request: the reply is out, or the client is gone, or we cut
 * it. r is still readable inside. May be called HTTP_ENDS_MAX times (a handler, and the WebSocket
 * it opened): the newest is told first.
 */
void http_on_end(struct http_req *r, void (*fn)(void *arg, struct http_req *r, bool aborted),
                 void *arg);

/* Whole body in memory, then fn once; NUL behind it; it lives as long as the request. Longer than
 * max: 413 is answered, fn not called (the end callback is, with aborted; the same for a body that
 * is malformed, 400, or comes too slowly, 408). */
void http_body_collect(struct http_req *r, size_t max,
                       void (*fn)(void *arg, struct http_req *r, char *p, size_t n), void *arg);

/* Or in pieces. data() is called again only after http_body_more(); it starts wanted. p stays as it
 * is until then, or until the end of the request, which may come at any moment: another thread gets
 * a copy. end() once, when the last piece has been dealt with (after http_body_more()). */
struct http_body_ops {
	void (*data)(void *arg, struct http_req *r, const void *p, size_t n);
	void (*end)(void *arg, struct http_req *r);
};
void http_body_stream(struct http_req *r, const struct http_body_ops *ops, void *arg);
void http_body_more(struct http_req *r); /* the piece is dealt with: the next one, please */

/* ---- the reply ---- */

/* Before http_reply or http_begin. Copied. Control characters in the value become '?'; a bad name,
 * and Content-Length and Transfer-Encoding, which are http_begin's, are dropped. */
void http_add_header(struct http_req *r, const char *name, const char *value);

/* All of it. Copied. type NULL: no body type. An unread body is drained or the connection
 * closed. */
void http_reply(struct http_req *r, int status, const char *type, const void *p, size_t n);

/* In pieces: length -1 is sent chunked. Then http_send() as often as wanted, and http_finish(). */
void http_begin(struct http_req *r, int status, const char *type, int64_t length);
/* Copied into the queue. Small writes are put together until the loop's round is over. */
void http_send(struct http_req *r, const void *p, size_t n);
size_t http_room(const struct http_req *r); /* bytes until the high mark */
/* fn when room is there again after there was none. */
void http_on_writable(struct http_req *r, void (*fn)(void *arg, struct http_req *r), void *arg);
void http_finish(struct http_req *r);
bool http_begun(const struct http_req *r); /* a head has been queued */
/* Something failed in the middle of a reply: cut, so that the client does not take it for whole. */
void http_cut(struct http_req *r);

/*
 * The connection becomes a pipe of bytes (after a 101 with these extra headers, "Name:
 * value\r\n"...; Connection and Upgrade are added unless they are among them). Bytes that came
 * behind the head are delivered first. Same rules of flow as above: data() again only after
 * http_pipe_more(); http_send()/http_room()/http_on_writable()/http_finish() send; end() says that
 * the peer has ended its side. The end callback comes when the pipe is closed: both sides have
 * ended, or the peer did not within stall_ms after http_finish(). -EINVAL: it was answered already,
 * or has a body.
 */
int http_upgrade(struct http_req *r, const char *headers, const struct http_body_ops *ops,
                 void *arg);
void http_pipe_more(struct http_req *r);
