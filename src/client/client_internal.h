/*
 * client/client_internal.h - what the files of libpanda share
 */
#pragma once
#include <openssl/types.h>
#include <stdarg.h>

#include "client/panda.h"

enum {
	CLIENT_CONNECT_MS = 10 * 1000,
	CLIENT_REPLY_MS = 120 * 1000,
	CLIENT_IDLE_MS =
	    4 * 1000, /* a kept connection older than this is not trusted with a POST */
	CLIENT_BUF = 64 * 1024,
	CLIENT_CONFIG_MAX = 64 * 1024,
};

/* ---- error.c ---- */

/* Fills *e (may be NULL) with a finding of our own; returns -errnum. */
int perr_set(struct panda_error *e, int errnum, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int perr_nomem(struct panda_error *e);
/* What a status and its body mean; body need not be JSON. Returns the negative errno of it. */
int perr_reply(struct panda_error *e, int status, const char *body, size_t n);

/* ---- target.c: where a URL points ---- */

struct target {
	char *url;       /* normalised, for people and for panda_url() */
	char *host;      /* without brackets; of a unix socket, its path */
	char *prefix;    /* "" or "/pre" */
	char *authority; /* for the Host header: with brackets, with a port that is not the usual */
	int port;
	bool tls, unix_socket;
};

int target_parse(const char *url, struct target *ret, struct panda_error *e);
void target_fini(struct target *t);

/* ---- config.c ---- */

struct settings {
	char *url, *key; /* key may be NULL */
};

/* getenv-like, so that tests own the environment. */
typedef const char *(*env_fn)(const char *name);
int settings_load(const struct panda_config *c, env_fn env, struct settings *ret,
                  struct panda_error *e);
void settings_fini(struct settings *s);

/* ---- conn.c: a connection to the server, with deadlines ---- */

struct server_conn {
	int fd;
	SSL *ssl;
	bool wants_write; /* what TLS waits for before it can go on */
	char *rest;       /* came already and is read first: see reply_upgraded() */
	size_t rest_at, rest_len;
};

/* tls NULL: plain. */
int conn_open(const struct target *t, SSL_CTX *tls, struct server_conn *ret, struct panda_error *e);
void conn_close(struct server_conn *c);
/* Some bytes; 0 is the end; -EAGAIN when none came until the deadline (mono ms; 0: do not wait;
 * UINT64_MAX: for ever). */
ssize_t conn_read(struct server_conn *c, void *buf, size_t n, uint64_t deadline);
ssize_t conn_write(struct server_conn *c, const void *buf, size_t n, uint64_t deadline);
int conn_write_full(struct server_conn *c, const void *buf, size_t n, uint64_t deadline);
/* We send no more; they may. -EAGAIN: the goodbye of TLS did not fit, try again. */
int conn_end(struct server_conn *c);
enum { CONN_IN = 1, CONN_OUT = 2 };
int conn_wait(struct server_conn *c, int events, uint64_t deadline);
/* Nothing to read and not closed by the other side: it can be used again. */
bool conn_idle(struct server_conn *c);
int conn_errno(struct panda_error *e, int r, const char *what, const char *url);
uint64_t conn_deadline(int timeout_ms);

/* The context for a target; NULL when it needs none. */
int conn_tls_new(const char *ca_file, SSL_CTX **ret, struct panda_error *e);

struct panda {
	struct target target;
	char *key;
	SSL_CTX *tls;
	int timeout_ms;
	struct server_conn idle; /* fd -1: none */
	uint64_t idle_since;
};

/* ---- reply.c: one request on one connection ---- */

struct reply {
	struct server_conn conn;
	int status;
	char type[64]; /* content-type without parameters */
	char request_id[72];
	char ws_accept[64];
	struct reply_reader *st; /* the parser */
};

struct request {
	const char *method, *path;
	const char *accept, *type; /* type of the body, or NULL */
	const void *body;          /* for json and small bodies */
	int64_t length;            /* of the body; -1: chunked from source; 0: none */
	panda_source source;       /* when body is NULL and length != 0 */
	void *arg;
	const char *extra; /* more header lines, or NULL */
	bool own_conn;     /* streams and websockets: never a kept connection, no deadline */
};

/* Makes body (NULL: none) that of the request; *text, which the caller frees, holds it. */
int request_json(struct request *q, const json_t *body, char **text, struct panda_error *e);
/* Sends it and reads the head. Statuses are not judged. */
int reply_open(struct panda *p, const struct request *q, struct reply *ret, struct panda_error *e);
/* Body bytes; 0 at the end; -EAGAIN at the deadline; other negative errno with e set. */
ssize_t reply_read(struct reply *r, void *buf, size_t n, uint64_t deadline, struct panda_error *e);
/* Ends a 101: the connection is the caller's, with what came behind the head. */
int reply_upgraded(struct reply *r, struct server_conn *ret, struct panda_error *e);
/* Gives the connection back to p (may be NULL: closes) when it can be used again. */
void reply_close(struct reply *r, struct panda *p);
/* For a status >= 400: reads the body and maps it. */
int reply_error(struct reply *r, struct panda *p, struct panda_error *e);

/* ---- sse.c: bytes in, events out ---- */

struct sse_reader {
	char *buf; /* the line that is not finished, behind the data of the event so far */
	size_t len, cap;
	char *data;
	size_t data_len, data_cap;
	char name[64];
	bool has_data, done;
};

/*
 * Eats bytes of p until an event is complete or all are eaten; *used says how many. 1: an event,
 * 0: more bytes please, -EMSGSIZE past PANDA_EVENT_MAX, -ENOMEM.
 */
int sse_reader_feed(struct sse_reader *s, const char *p, size_t n, size_t *used,
                    struct panda_event *ret);
void sse_reader_fini(struct sse_reader *s);
