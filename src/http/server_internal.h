/*
 * http/server_internal.h - what server.c, conn.c, request.c and transport.c share
 *
 *   accepted             head whole                 reply out
 *   ───┬──► CONN_HEAD ───────────────► CONN_REQUEST ─────────────► CONN_HEAD
 *      │        │ bad head                │       │ reply out, body not read
 *      │refused │                         │       └──────────────► CONN_DRAIN ──► CONN_HEAD
 *      ▼        ▼      last words out     ▼ body not worth draining    │ too much
 *      CONN_FLUSH ──────────────────► CONN_LINGER ◄────────────────────┘
 *
 * Nothing is read, parsed or freed inside a call of the API: those only note what is wanted, and
 * conn_run() does it, from an event of the loop or at the end of its round. So a callback may call
 * anything, and a struct http_req is never gone under the caller's feet.
 *
 * A connection gets one request served when the loop comes to it. One that has sent more already
 * waits in a queue of connections, and SERVER_TURN of those are served in each round: a client that
 * sends a thousand requests at once slows down itself.
 */
#pragma once
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/uio.h>

#include "base/loop.h"
#include "http/address.h"
#include "http/parse.h"
#include "http/server.h"

enum {
	CONN_BUF = HTTP_CHUNK,       /* one read from a socket */
	CONN_BURST = 1 << 20,        /* bytes one connection moves before others get their turn */
	SERVER_TURN = 8,             /* requests that waited, served in one round of the loop */
	CONN_DIRECT_MIN = 16384,     /* pieces of at least that size are written without a copy */
	CONN_DRAIN_MAX = 256 * 1024, /* of an unread body, to keep the connection */
	CONN_LINGER_MAX = 16 << 20,  /* dropped bytes while the peer reads our last words */
	CONN_LINGER_MS = 2000,
	CONN_DRAIN_MS = 5000,
	RATE_WINDOW_MS = 10000,
	REFUSED_MAX = 64, /* connections above the cap that are told so; more are just closed */
};

enum conn_state {
	CONN_HEAD,
	CONN_REQUEST,
	CONN_DRAIN,
	CONN_FLUSH,  /* the last words are in the queue */
	CONN_LINGER, /* they are out: wait until the peer has closed, so that no reset eats them */
};

/* A body as it is decoded; RAW has no end but that of the connection. */
struct body {
	enum http_body_kind kind; /* HTTP_BODY_EOF: a pipe */
	bool done;
	uint64_t left;
	struct http_chunked chunked;
};

/* Clients that limits count as one. Those of unix sockets are one, too, without an address. */
struct addr {
	struct addr *next;
	unsigned refs, conns;                /* conns: without those that are refused */
	bool counted;                        /* else a unix socket or a proxy */
	struct http_conn *idle, **idle_tail; /* without a request; idle for longest first */
	uint8_t key[ADDRESS];
};

struct http_conn {
	struct http_server *s;
	struct http_conn *next, **prev;
	struct http_req *req;
	SSL *ssl;
	struct addr *addr;
	struct loop_io io;
	struct loop_timer timer; /* at the deadline or earlier; then we look again */
	struct loop_defer kick;
	struct http_conn *turn_next, **turn_prev; /* turn_prev NULL: it does not wait */
	struct http_conn *idle_next, **idle_prev; /* idle_prev NULL: it is not idle */

	enum conn_state state;
	bool running : 1;
	bool served : 1;   /* a request, in this conn_run() */
	bool dead : 1;     /* conn_run() destroys it when it is done */
	bool reset : 1;    /* close so that the peer sees an error */
	bool readable : 1; /* as far as we know */
	bool blocked : 1;  /* the socket takes no more */
	bool saw_in : 1;   /* there is input, and no handler wants it now */
	bool hup : 1;      /* a pipe's peer has ended its side, or all */
	bool fin_sent : 1;
	bool refused : 1;
	bool recv_wants_out : 1, send_wants_in : 1; /* TLS may need the other direction */
	bool rate_on : 1;
	bool keep : 1;  /* another request may come */
	bool asked : 1; /* http_room(), since the last http_send() */

	char *in; /* [in_off, in_len) is not consumed */
	size_t in_off, in_len, in_cap, scanned;
	struct account *account;
	size_t charged; /* to it: of in, out and the body, what is above HTTP_HELD_FREE */
	char *out;      /* [out_off, out_len) is not written */
	size_t out_off, out_len, out_cap;
	size_t burst;
	struct body body;
	uint64_t dropped;     /* bytes, in CONN_DRAIN and CONN_LINGER */
	uint64_t deadline_ms; /* of the state, where it has a fixed one */
	uint64_t progress_ms; /* when the peer last took something */
	uint64_t rate_since_ms, rate_waited_ms, rate_bytes;
	char peer[INET6_ADDRSTRLEN];
};

enum body_mode {
	BODY_UNASKED,
	BODY_COLLECT,
	BODY_STREAM, /* pipes, too */
};

enum reply_state {
	REPLY_NONE,
	REPLY_BEGUN,
	REPLY_FINISHED,
};

struct http_req {
	struct http_conn *c;
	void *data;
	struct {
		void (*fn)(void *arg, struct http_req *r, bool aborted);
		void *arg;
	} end[HTTP_ENDS_MAX];
	unsigned nends;
	void (*writable)(void *arg, struct http_req *r);
	void *writable_arg;

	enum body_mode mode;
	bool want : 1;    /* the next piece of the body, or its end */
	bool piece : 1;   /* the handler has one and is not done with it */
	bool pipe : 1;    /* upgraded */
	bool failed : 1;  /* for the handler it ended badly, whatever the client was told */
	bool no_room : 1; /* the queue was full: call writable */
	bool is_head : 1; /* or another reply without a body */
	bool chunked : 1;
	bool expect : 1; /* the client waits for 100 Continue */
	struct http_body_ops ops;
	void *ops_arg;
	void (*collected)(void *arg, struct http_req *r, char *p, size_t n);
	char *collect;
	size_t collect_len, collect_cap, collect_max;

	enum reply_state reply;
	int status;
	int64_t left; /* promised and not sent; -1: no promise */
	uint64_t bytes_out;
	uint64_t start_ns;
	char *extra; /* headers for the reply */
	size_t extra_len, extra_cap;

	const char *method, *path, *query;
	int minor;
	bool keep_alive, upgrade;
	int64_t body_length;
	size_t n;
	struct http_field field[]; /* and behind them the text of the head */
};

struct listener {
	struct listener *next;
	struct http_server *s;
	struct loop_io io;
};

enum { ADDR_BUCKETS = 1024 };

struct http_server {
	struct loop *loop;
	struct http_config conf;
	SSL_CTX *tls;
	struct listener *listeners;
	struct http_conn *conns;
	unsigned n, refused;
	struct http_stats stats;
	struct addr **addrs; /* ADDR_BUCKETS lists */
	struct address_range proxies[ADDRESS_RANGES_MAX];
	size_t nproxies;
	char *spare;  /* a read buffer of CONN_BUF bytes that no connection uses right now */
	int spare_fd; /* given up for a moment when there are no fds left */
	struct http_conn *turns, **turns_tail; /* whose next request waits for its turn */
	struct loop_defer turn;
	struct loop_timer retry;
	bool draining;
	void (*drained)(void *arg);
	void *drained_arg;
	struct loop_defer drained_call;
	time_t date_s;
	char date[32];
};

/* conn.c */
int conn_new(struct http_server *s, int fd, const char *peer, struct addr *a,
             struct http_conn **ret); /* takes fd and the address on success only */
void conn_refuse(struct http_conn *c, int status, const char *code, const char *text);
void conn_run(struct http_conn *c);
void conn_kick(struct http_conn *c); /* conn_run() at the end of the round */
void conn_kill(struct http_conn *c); /* now; end callbacks run */
/* Into the queue, or straight out when it is much. Errors kill the connection, later. */
void conn_send(struct http_conn *c, const struct iovec *iov, size_t n);
void conn_text(struct http_conn *c, const char *text);
size_t conn_pending(const struct http_conn *c);
size_t conn_high(const struct http_conn *c); /* pending bytes at which there is no room */
/* May it hold so many bytes more? NULL: yes; else the account that is full. */
struct account *conn_full(struct http_conn *c, size_t more);
void conn_charge(struct http_conn *c); /* after it came to hold more or less */
void conn_account(struct http_conn *c, struct account *a);

/* request.c */
struct http_req *req_new(struct http_conn *c, const struct http_head *h, const char *text,
                         size_t n);
void req_end(struct http_req *r, bool aborted); /* callbacks, and away with it */
void req_fail(struct http_req *r, int status, const char *code, const char *text);
void req_body_piece(struct http_req *r, const char *p, size_t n);
void req_body_end(struct http_req *r);
void req_writable(struct http_req *r);
const char *http_reason(int status);

/* server.c */
void server_wait_turn(struct http_conn *c); /* conn_run() when its turn comes */
void server_leave_turns(struct http_conn *c);
void server_conn_gone(struct http_server *s, struct addr *a, bool refused);
void server_idle(struct http_conn *c); /* it waits for a request, from now on */
void server_busy(struct http_conn *c);
/* Cuts the connection for which most is held, if that is more than so much. */
bool server_cut_largest(struct http_server *s, size_t than);
const char *server_date(struct http_server *s);
/* As http_config.refusal. */
void server_refusal(struct http_server *s, const struct http_req *r, const char *code,
                    const char *text, char body[HTTP_REFUSAL_MAX], char lines[HTTP_REFUSAL_MAX]);

/* transport.c: plain sockets or TLS. Counts, 0 for the end, or -EAGAIN or another errno. */
int transport_config(struct http_server *s, struct err *e);
int transport_start(struct http_conn *c);
ssize_t transport_recv(struct http_conn *c, void *p, size_t n);
ssize_t transport_send(struct http_conn *c, const struct iovec *iov, size_t n);
void transport_fin(struct http_conn *c); /* nothing will be sent any more */
