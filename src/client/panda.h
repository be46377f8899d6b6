/*
 * panda.h - libpanda, a C client for pandad
 * Blocking and small: one struct panda per thread, one connection kept open between calls. Streams
 * and terminals have a connection of their own and an fd to poll, so one thread can serve a
 * terminal, a stream and its own input at the same time.
 *
 * What can fail returns 0 (or a count) or a negative errno value, and fills a struct panda_error,
 * which may be NULL. Outputs stay untouched on failure. JSON is jansson's: a json_t that comes out
 * is the caller's to json_decref(), one that goes in is only borrowed. No signal is ever raised: a
 * server that goes away is an error like any other.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PANDA_API __attribute__((visibility("default")))

enum {
	PANDA_EVENT_MAX = 8 << 20,    /* one event of a stream */
	PANDA_JSON_MAX = 128 << 20,   /* one JSON reply: two outputs of 16 MiB, escaped, fit */
	PANDA_MESSAGE_MAX = 16 << 20, /* one message of a WebSocket */
};

struct panda;
struct panda_stream;
struct panda_ws;
struct panda_pipe;

struct panda_error {
	int status;     /* what the server answered; 0 when it is our own finding */
	char code[48];  /* the server's stable word ("sandbox_not_found"), or one of ours: connect,
	                   tls, timeout, protocol, bad_argument, bad_config, no_memory, stopped */
	char text[512]; /* one sentence, with the next step where we know one */
	char request_id[72]; /* for the server's log; "" when there is none */
};

struct panda_config {
	const char *url;     /* "http://host:port[/prefix]" or https. NULL: see panda_new() */
	const char *key;     /* bearer token. NULL: see panda_new(); "": send none */
	const char *ca_file; /* trust these certificates (PEM) and no others. NULL: the system's */
	int timeout_ms;      /* how long a reply may let us wait. 0: 120 s; -1: for ever */
};

/*
 * config may be NULL. The key is config's, else PANDASTACK_API_KEY, else PANDASTACK_TOKEN, else
 * token, apiKey or api_key in ~/.config/pandastack/config.json (XDG_CONFIG_HOME is honoured). The
 * URL is config's, else PANDASTACK_API, else apiUrl or api_url there, else http://127.0.0.1:8080.
 * Does not connect yet. Codes: bad_config, no_memory.
 */
PANDA_API int panda_new(const struct panda_config *config, struct panda **ret,
                        struct panda_error *e);
PANDA_API void panda_free(struct panda *p); /* NULL is fine; streams and terminals live on */
PANDA_API const char *panda_url(const struct panda *p); /* without a '/' or "/v1" at its end */
PANDA_API bool panda_has_key(const struct panda *p);
PANDA_API void panda_set_timeout(struct panda *p, int timeout_ms);

/*
 * A path from a format: %s is percent-encoded, so that any text is one segment or one value; %d an
 * int, %% a percent sign, nothing else. Caller frees; NULL when there is no memory.
 */
PANDA_API char *panda_path(const char *fmt, ...);

/* ---- any call ---- */

/*
 * One request, one JSON reply. body may be NULL; ret may be NULL; without a body in the reply *ret
 * is JSON null. Any status from 400 on is an error: -ENOENT 404, -EACCES 401 and 403, -EEXIST 409,
 * -EAGAIN 429 and 503, -EINVAL other 4xx, -EIO 5xx. -ECONNREFUSED and friends when no server
 * answers.
 */
PANDA_API int panda_call(struct panda *p, const char *method, const char *path, json_t *body,
                         json_t **ret, struct panda_error *e);

/* The reply's body as it comes. A sink that returns non-zero ends it; that is returned. */
typedef int (*panda_sink)(void *arg, const void *data, size_t n);
PANDA_API int panda_download(struct panda *p, const char *path, panda_sink sink, void *arg,
                             struct panda_error *e);

/* Puts up to n bytes into buf: how many, 0 at the end, negative errno. */
typedef ssize_t (*panda_source)(void *arg, void *buf, size_t n);
/* A raw body. length -1: not known, sent chunked. A source that ends early is -EIO. */
PANDA_API int panda_upload(struct panda *p, const char *method, const char *path, int64_t length,
                           panda_source source, void *arg, json_t **ret, struct panda_error *e);
/* The same with a type of its own: forms. */
PANDA_API int panda_upload_as(struct panda *p, const char *method, const char *path,
                              const char *type, int64_t length, panda_source source, void *arg,
                              json_t **ret, struct panda_error *e);

/* ---- streams of events (SSE) ---- */

struct panda_event {
	const char *name; /* "message" when the server gave none */
	const char *data; /* NUL-terminated; lines joined by LF */
	size_t len;
};

/* Sends the request and waits for the head of the reply. Caller owns *ret. */
PANDA_API int panda_stream_open(struct panda *p, const char *method, const char *path, json_t *body,
                                struct panda_stream **ret, struct panda_error *e);
/*
 * The next event: 1 and *ret (valid until the next call), 0 when the stream ended, -EAGAIN when
 * none came within timeout_ms (0: only what is there, -1: for ever).
 */
PANDA_API int panda_stream_next(struct panda_stream *s, int timeout_ms, struct panda_event *ret,
                                struct panda_error *e);
/*
 * To poll for POLLIN. Take events until -EAGAIN before you poll: the fd does not know of what has
 * been read ahead.
 */
PANDA_API int panda_stream_fd(const struct panda_stream *s);
PANDA_API void panda_stream_close(struct panda_stream *s);

/* All of a stream, one call per event. A callback that returns non-zero ends it; that is
 * returned. */
typedef int (*panda_event_fn)(void *arg, const struct panda_event *ev);
PANDA_API int panda_events(struct panda *p, const char *method, const char *path, json_t *body,
                           panda_event_fn fn, void *arg, struct panda_error *e);

/* ---- WebSocket ---- */

struct panda_message {
	bool text;
	const void *data;
	size_t len;
};

PANDA_API int panda_ws_open(struct panda *p, const char *path, struct panda_ws **ret,
                            struct panda_error *e);
/* Queues a message and sends what the socket takes; never waits. -EPIPE once closed. */
PANDA_API int panda_ws_send(struct panda_ws *w, bool text, const void *data, size_t n,
                            struct panda_error *e);
/* Queued and not sent. While it is not 0, poll for POLLOUT too; while it is large, send no more. */
PANDA_API size_t panda_ws_queued(const struct panda_ws *w);
/* As panda_stream_next(); sends what is queued on the way. Pings are answered inside. */
PANDA_API int panda_ws_recv(struct panda_ws *w, int timeout_ms, struct panda_message *ret,
                            struct panda_error *e);
PANDA_API int panda_ws_fd(const struct panda_ws *w);
PANDA_API void panda_ws_close(struct panda_ws *w); /* says goodbye, if that needs no waiting */

/* ---- tunnels ---- */

/* path: .../ports/PORT/tunnel or .../ssh/tunnel. 0 when the other end inside is connected. */
PANDA_API int panda_pipe_open(struct panda *p, const char *path, struct panda_pipe **ret,
                              struct panda_error *e);
/* Some bytes; 0 when the other end has ended its half; -EAGAIN as panda_stream_next(). */
PANDA_API ssize_t panda_pipe_recv(struct panda_pipe *w, void *buf, size_t n, int timeout_ms,
                                  struct panda_error *e);
/* How many were taken. -EAGAIN: none within timeout_ms; poll for POLLOUT. */
PANDA_API ssize_t panda_pipe_send(struct panda_pipe *w, const void *data, size_t n, int timeout_ms,
                                  struct panda_error *e);
/* Our half has ended; the other one goes on. -EAGAIN: try again. */
PANDA_API int panda_pipe_end(struct panda_pipe *w, struct panda_error *e);
PANDA_API int panda_pipe_fd(const struct panda_pipe *w);
PANDA_API void panda_pipe_close(struct panda_pipe *w); /* NULL is fine */

/* ---- the common calls ---- */

/* options: fields of POST /v1/sandboxes ("ttl_seconds", "metadata", ...), or NULL. */
PANDA_API int panda_create(struct panda *p, const char *template_name, json_t *options,
                           json_t **ret, struct panda_error *e);
PANDA_API int panda_list(struct panda *p, json_t **ret, struct panda_error *e);
PANDA_API int panda_get(struct panda *p, const char *id, json_t **ret, struct panda_error *e);
PANDA_API int panda_kill(struct panda *p, const char *id, struct panda_error *e);
PANDA_API int panda_pause(struct panda *p, const char *id, struct panda_error *e);
PANDA_API int panda_resume(struct panda *p, const char *id, struct panda_error *e);
PANDA_API int panda_hibernate(struct panda *p, const char *id, struct panda_error *e);
PANDA_API int panda_wake(struct panda *p, const char *id, struct panda_error *e);
/* count children; *ret is an array of their sandbox objects. */
PANDA_API int panda_fork(struct panda *p, const char *id, int count, json_t **ret,
                         struct panda_error *e);
PANDA_API int panda_snapshot(struct panda *p, const char *id, const char *name, json_t **ret,
                             struct panda_error *e);

struct panda_exec {
	char *out, *err; /* NUL-terminated; invalid UTF-8 has been replaced by the server */
	size_t out_len, err_len;
	int exit_code; /* 124 after a timeout, 128 and the number after a signal */
	int duration_ms;
	bool timed_out, truncated;
};

/* cmd is for a shell. timeout_s 0: the server's default (60 s). */
PANDA_API int panda_exec(struct panda *p, const char *id, const char *cmd, int timeout_s,
                         struct panda_exec *ret, struct panda_error *e);
PANDA_API void panda_exec_fini(struct panda_exec *x);

/* A whole file. NUL behind its last byte; -EFBIG past max. Caller frees *ret. */
PANDA_API int panda_file_read(struct panda *p, const char *id, const char *path, size_t max,
                              char **ret, size_t *ret_len, struct panda_error *e);
/* Replaces it, atomically. mode 0: as the server likes it (0644). */
PANDA_API int panda_file_write(struct panda *p, const char *id, const char *path, const void *data,
                               size_t n, unsigned mode, struct panda_error *e);

#ifdef __cplusplus
}
#endif
