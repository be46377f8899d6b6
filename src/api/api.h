/*
 * api/api.h - requests in, calls of the host out; nothing more happens here
 * Routes are declared once, in the table of api/routes.c: the router, /openapi.json and the
 * reference page come from it. A request that matched becomes a struct call. Loop thread only.
 */
#pragma once
#include <jansson.h>

#include "base/account.h"
#include "base/loop.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "http/server.h"
#include "template/depot.h"

enum {
	API_JSON_MAX = 4 << 20,
	API_PARAMS_MAX = 4,
	REQUEST_ID_MAX = HOST_REQUEST_MAX,
};

/*
 * What a route asks of a token. Each includes those below it: read, exec, own and sandbox, admin.
 * The first value is the answer to most questions: a route whose scope was forgotten is closed to
 * what is narrower than a tenant's whole token.
 */
enum api_scope {
	SCOPE_SANDBOX, /* what belongs to a tenant */
	SCOPE_NONE,    /* no token needed */
	SCOPE_READ,    /* looks, and changes nothing */
	SCOPE_EXEC,    /* does something inside of a sandbox */
	SCOPE_OWN,     /* as SCOPE_SANDBOX; also with a token that is for this sandbox alone */
	SCOPE_ADMIN,
};

enum api_body {
	BODY_NONE, /* whatever comes is thrown away */
	BODY_JSON, /* c->body is an object; an empty body is an empty one, whatever its type */
	BODY_RAW,  /* the handler pulls it */
};

struct api;
struct call;
struct json_out;

struct api_param {
	const char *name, *in, *type,
	    *what; /* in: "query"; path parameters come from the pattern */
};

struct route {
	const char *method; /* "*": any */
	const char *path;   /* "/v1/sandboxes/{id}/proxy/{port}/{rest...}" */
	enum api_scope scope;
	enum api_body body;
	void (*run)(struct call *c);
	bool sandbox; /* {id} is one of the caller's: c->sb is set, or it was answered with 404 */
	/* The token may stand in the query: for WebSocket and EventSource of browsers, which send
	 * no headers. Never where the answer is a guest's, whose page reads its own URL. */
	bool token_in_url;
	/* Not about one sandbox, but for tokens of one sandbox, too: the handler looks. */
	bool bound;
	bool own_pages; /* with a token, too, not for web pages of other origins */
	const char *tag, *summary;
	const char *request, *reply; /* names of schemas in api/schemas.c, or NULL */
	int status;                  /* of success */
	const struct api_param *params;
};

extern const struct route routes[];
extern const size_t nroutes;

struct call {
	struct api *api;
	struct host *host;
	struct http_req *req; /* NULL once the client is gone: replies go nowhere */
	const struct route *route;
	char request_id[REQUEST_ID_MAX + 1];
	char tenant[TENANT_MAX + 1];
	char token[16];          /* public prefix of the token; "" without one */
	struct account *account; /* of its tenant, for bytes that are held for it */
	bool known;              /* auth_check() let it in: tenant is the caller's */
	bool admin;
	char
	    only[SANDBOX_ID + 1]; /* the one sandbox that the token is for; "": all of the tenant */
	struct quota quota;
	char *param[API_PARAMS_MAX]; /* decoded, in order of the pattern; {rest...} is the last */
	struct sandbox *sb;          /* valid until the handler returns: keep its id, not this */
	json_t *body;
	unsigned refs;
	bool piped; /* after http_upgrade(), see call_on_gone() */

	/* call.c's own */
	void (*gone)(void *arg);
	void *gone_arg;
	struct call *next, **prevp; /* of endless ones */
	struct json_out *answer;    /* what is left of a long one */
	size_t answer_held;         /* bytes of it */
	bool sse;
	struct loop_timer ping;
	void (*room)(void *arg);
	void *room_arg;
};

/* A call for a request that no route is responsible for (preview host names). It is the request's
 * http_data() and its end callback: leave both alone. NULL: no memory, 500 was answered. */
struct call *call_new(struct api *a, struct http_req *r);
/* For what is answered without a call. */
void call_fresh_id(char ret[REQUEST_ID_MAX + 1]);

/* A call lives until its reply is complete and every hold has been dropped. Handlers that answer
 * later hold it. */
struct call *call_hold(struct call *c);
void call_drop(struct call *c);
/* Called once, when the client has gone before the reply was complete: stop working for it. After
 * http_upgrade() (then set piped) it is called however the connection ends. fn NULL clears it. */
void call_on_gone(struct call *c, void (*fn)(void *arg), void *arg);
/* The last of those that held it and listened: call_drop(), and neither gone nor room is told. */
void call_leave(struct call *c);

/* Answers. All do nothing when the client is gone or an answer was begun. */
void call_json(struct call *c, int status, json_t *j); /* takes the reference */
void call_empty(struct call *c, int status);
void call_text(struct call *c, int status, const char *type, const char *p, size_t n);
void call_error(struct call *c, const struct err *e); /* status from the table of kinds */
void call_fail(struct call *c, int code, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void call_nomem(struct call *c); /* as err_nomem() */
/* The HTTP status of a kind of error. */
int api_status_of(const char *kind);

/* SSE: begin answers the head, events go through call_event(). Data is one JSON value. */
void call_sse_begin(struct call *c);
void call_event(struct call *c, const char *name, json_t *data); /* takes the reference */
void call_sse_end(struct call *c);
/* Comments every 15 s keep the connection open through proxies; begins with call_sse_begin(). */

/* This stream has no end of its own: api_drain() ends it, with gone() first. */
void call_endless(struct call *c);

/* Flow: a handler that has more to send than fits stops while call_room() is false (the client is
 * slow; also once it is gone) and goes on in fn, called each time when there is room again. Stays
 * set; fn NULL clears it. */
bool call_room(struct call *c);
void call_on_room(struct call *c, void (*fn)(void *arg), void *arg);

/* Query values. call_query() NULL when absent; the caller frees. Bad numbers are answered with 400:
 * false then. */
char *call_query(struct call *c, const char *key);
bool call_query_int(struct call *c, const char *key, int64_t otherwise, int64_t min, int64_t max,
                    int64_t *ret);
bool call_query_flag(struct call *c, const char *key); /* 1, true, yes */

/* Fields of c->body: false when the answer (400, naming the field) has been given. */
bool call_str(struct call *c, const char *key, const char *otherwise, const char **ret);
bool call_int(struct call *c, const char *key, int64_t otherwise, int64_t min, int64_t max,
              int64_t *ret);
bool call_bool(struct call *c, const char *key, bool otherwise, bool *ret);

/* Objects as the API shows them. */
json_t *show_sandbox(struct host *h, const struct sandbox *sb);
json_t *json_time(uint64_t wall_ms); /* RFC 3339, UTC, ms */

enum preview_mode {
	PREVIEW_DECLARED, /* visitors without a token reach declared ports */
	PREVIEW_OFF,      /* none */
	PREVIEW_OPEN,     /* all, also by the id */
};

struct api_config {
	const char *preview_suffix;                 /* NULL: no preview host names */
	const char *preview;                        /* off, declared, open; NULL: declared */
	enum preview_mode preview_mode;             /* of it; api_new() sets it */
	const char *public_url;                     /* for links; NULL: from the request */
	unsigned rate_per_s, rate_burst;            /* per tenant; 0: no limit */
	unsigned failed_logins_per_minute;          /* per address; 0: no limit */
	uint64_t audit_kept, audit_kept_per_tenant; /* rows; 0: no limit */
	uint64_t held, held_per_tenant; /* bytes that are held for clients; 0: no limit */
	bool stub_auth;                 /* development: no token is admin of tenant "local" */
	bool metrics_token;             /* /metrics needs a token */
	const char *allowed_origins;    /* of web pages, with spaces; NULL: only our own */
};

int api_new(struct host *h, const struct api_config *c, struct api **ret, struct err *e);
void api_free(struct api *a);
/* We are about to end: ends the streams that would never do so themselves. */
void api_drain(struct api *a);
/* For http_config: those of the tenants are parts of it. */
struct account *api_account(struct api *a);
const struct api_config *api_config_of(const struct api *a);
enum {
	API_SECRET = 32,
};
/* Random, the same after a restart: the key of signed preview links. */
const unsigned char *api_secret(const struct api *a);
/* The handler and log of an http_config. */
void api_handle(void *api, struct http_req *r);
void api_refusal(void *api, const struct http_req *r, const char *code, const char *text,
                 char body[HTTP_REFUSAL_MAX], char lines[HTTP_REFUSAL_MAX]);
void api_logged(void *api, const struct http_req *r, int status, uint64_t bytes_out,
                uint64_t took_us, bool aborted);
/*
 * Makes the first admin token when there is none, and leaves its text in a file that only its owner
 * can read, before the token is on record. Returns 1 if made.
 */
int api_first_token(struct api *a, const char *path, struct err *e);

/* /openapi.json and the reference page, from the table. Caller owns. */
json_t *api_openapi(void);
char *api_reference(void);

/* A preview host name ("8000-<name>.<suffix>")? Then the proxy answers and true comes back. */
bool proxy_by_host(struct api *a, struct http_req *r);
