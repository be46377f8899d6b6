/*
 * api/api_internal.h - what the files of this room share and no other room needs
 * Loop thread only.
 */
#pragma once
#include "api/api.h"
#include "base/account.h"
#include "base/bucket.h"
#include "base/loop.h"
#include "base/shares.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "template/depot.h"

#ifndef PANDA_VERSION
#define PANDA_VERSION "0.0.0"
#endif
#ifndef PANDA_COMMIT
#define PANDA_COMMIT "unknown"
#endif

enum {
	TOKEN_HASH = 64,   /* hex digits of SHA-256 */
	TOKEN_PREFIX = 12, /* "pds_" and 8 hex digits: public */
	TOKEN_TEXT = 36,   /* "pds_" and 32 hex digits: secret, shown once */
	TOKEN_LABEL_MAX = 128,
	TOKENS_PER_TENANT_MAX = 256,
	TOKEN_BUCKETS = 1024,

	AUDIT_QUEUE_MAX = 1024,
	AUDIT_PATH_MAX = 256,
	AUDIT_ADDRESS_MAX = 45,
	AUDIT_STRANGERS = 64, /* addresses and statuses told apart in a minute; the rest is one */

	STATUSES_MAX = 32, /* different ones in the metrics */
	DURATIONS = 12,
	MCP_CALLS_PER_S = 1,
	MCP_CALLS_BURST = 60,
};

/* ---- router.c ---- */

struct route_match {
	const struct route *route;
	char *param[API_PARAMS_MAX];
	char allow[80]; /* of 405 */
};

/* 0: found. -ENOENT: no such path. -EPERM: not with this method (allow says which). -EBADMSG: the
 * path is not well encoded. -ENOMEM. Give what was found back with match_fini(). */
int route_find(const char *method, const char *path, struct route_match *ret);
void match_fini(struct route_match *m);

/* The scope that a token must have for it, in a word: "none", "read", "exec", "sandbox:<id>" (as is
 * "sandbox"), "sandbox", "admin". */
const char *route_scope(const struct route *r);

/* ---- token_store.c ---- */

struct tenant {
	char name[TENANT_MAX + 1];
	struct bucket requests, mcp;
	struct account held;
	size_t tokens;
	struct tenant *next;
};

/* What a token may do; each of them includes those before it. */
enum level {
	LEVEL_READ,
	LEVEL_EXEC,
	LEVEL_SANDBOX,
	LEVEL_ADMIN,
};

struct rights {
	enum level level;
	char only[SANDBOX_ID + 1]; /* one sandbox; "": all of the tenant */
	uint64_t expires_ms;       /* wall clock; 0: never */
};

enum {
	SCOPES_MAX = 64, /* of rights in words */
};

/* In words with commas between them: "read,sandbox:<id>". */
void rights_print(const struct rights *r, char ret[SCOPES_MAX]);
/* One of these words. A word that is none is no right: false. */
bool rights_word(const char *word, struct rights *ret);
/* Does a have nothing that b has not? */
bool rights_within(const struct rights *a, const struct rights *b);
/* May a token of these rights use the route? What is about one sandbox: its id, else NULL. */
bool rights_reach(const struct rights *r, const struct route *route);

struct token {
	char hash[TOKEN_HASH + 1], prefix[TOKEN_PREFIX + 1], label[TOKEN_LABEL_MAX + 1];
	char maker[TOKEN_PREFIX +
	           1]; /* prefix of the token it was made with; "": none that is known */
	struct tenant *tenant;
	struct rights rights;
	struct quota quota;
	unsigned rate_per_s; /* 0: the host's */
	uint64_t created_ms;
	bool doomed; /* token_remove()'s own */
	struct token *next;
};

bool token_well_formed(const char *text);
int token_hash(const char *text, char ret[TOKEN_HASH + 1]);
bool tenant_name_valid(const char *name);
/* Text of a new token, from the kernel's entropy. */
int token_text(char ret[TOKEN_TEXT + 1]);

/* Reads all tokens on record; what is on record and in memory stays the same from then on. */
int tokens_open(struct api *a, struct err *e);
void tokens_close(struct api *a);
struct tenant *tenant_of(struct api *a, const char *name); /* made when new; NULL: no memory */
/* hash, prefix and created_ms are made here. text is what the caller will never see again. */
int token_add(struct api *a, const char *tenant, const char *label, const char *maker,
              const struct rights *rights, const struct quota *quota, unsigned rate_per_s,
              char text[TOKEN_TEXT + 1], struct token **ret, struct err *e);
/* Is it t, or was it made with t, or with one that was? */
bool token_descends(struct api *a, const struct token *t, const char *prefix);
/* With all that descend from it; or those stay, made by none. All of it or nothing. */
int token_remove(struct api *a, struct token *t, bool cascade, struct err *e);
/* Another text for the same token. */
int token_rotate(struct api *a, struct token *t, char text[TOKEN_TEXT + 1], struct err *e);
bool token_expired(const struct token *t);
struct token *token_by_hash(struct api *a, const char *hash); /* NULL: none */
struct token *token_by_prefix(struct api *a, const char *prefix);
struct token *token_next(struct api *a, struct token *after);
json_t *quota_json(const struct quota *q, unsigned rate_per_s);

/* ---- auth.c ---- */

struct logins;

/* The token of an Authorization header ("bearer  pds_..."), or NULL when it has none. Points into
 * it. */
const char *auth_bearer(const char *header);
/* Of the header alone; NULL: there is none, or it is not one of ours. */
struct token *auth_token(struct call *c);
/* Takes one request of the tenant's. False: the next one is due in *retry_s. rate 0: no limit. */
bool tenant_may_ask(struct tenant *t, unsigned rate_per_s, unsigned burst, uint64_t now_ms,
                    unsigned *retry_s);
/* Is this Host header a name of ours: of this machine's loopback, or that of public_url (may be
 * NULL)? A name that a stranger's DNS leads to us is none. */
bool host_is_ours(const char *host, const char *public_url);
/* May a page of this origin ask with what its browser adds by itself? Origin NULL: it is no page's
 * request. Ours are those of the Host header, of public_url and of allowed (either may be NULL). */
bool origin_is_ours(const char *origin, const char *host, const char *public_url,
                    const char *allowed);
/* Who is it? Sets tenant, token, admin, quota. False: 401, 403 or 429 was answered. */
bool auth_check(struct call *c);

/* ---- audit.c ---- */

struct audit_entry {
	char tenant[TENANT_MAX + 1], actor[16], request_id[REQUEST_ID_MAX + 1], method[8];
	char path[AUDIT_PATH_MAX + 1], address[AUDIT_ADDRESS_MAX + 1];
	int status;
	uint64_t at_ms, count;
};

struct audit {
	struct audit_entry *queue; /* AUDIT_QUEUE_MAX of them */
	size_t n;
	struct audit_entry *strangers; /* AUDIT_STRANGERS of them, of this minute */
	size_t nstrangers;
	uint64_t minute_ms;   /* loop's time at which they are written */
	struct shares shares; /* rows of each tenant */
	struct loop_timer timer;
};

int audit_open(struct api *a, struct err *e);
void audit_close(struct api *a);
void audit_note(struct api *a, const struct call *c, const struct http_req *r, int status);
/* What no token vouches for: one row for all of an address, a status and a minute. */
void audit_stranger(struct api *a, const struct call *c, const struct http_req *r, int status);
/* All of it is on record then. */
void audit_flush(struct api *a);

/* ---- meta.c ---- */

struct route_stats {
	uint64_t status[STATUSES_MAX];
	uint64_t bucket[DURATIONS], sum_us, count;
};

void stats_note(struct api *a, const struct route *route, int status, uint64_t took_us);

/* ---- what it is all in ---- */

struct api {
	struct host *host;
	struct api_config config;
	char *preview_suffix, *public_url, *allowed_origins;
	unsigned char secret[API_SECRET];
	struct token *tokens[TOKEN_BUCKETS];
	struct tenant *tenants;
	struct account held; /* bytes, for clients */
	struct audit audit;
	struct logins *logins;
	struct call *endless;
	struct route_stats *stats; /* nroutes, and one for what matched none */
	char *openapi, *reference;
	size_t openapi_len, reference_len;
	uint64_t started_ms; /* monotonic */
};

/* ---- shared by handlers ---- */

/* A host_done for a held call: an error, the state when the route has a reply, or 204. */
void call_stepped(void *arg, const struct err *e, struct sandbox *sb);
/* As call_error(), with a status of its own. */
void call_error_as(struct call *c, int status, const struct err *e);
/* What a create request says. False: e names the field. Give it back with spec_fini(). */
bool spec_parse(const json_t *body, struct sandbox_spec *ret, struct err *e);
/* The field 'checkpoints' of a body; *ret stays when there is none. False: e names it. */
bool checkpoints_parse(const json_t *body, bool *ret, struct err *e);
/* The field 'metadata' of a body; a new reference, or untouched when it has none. */
int metadata_parse(const json_t *body, json_t **ret, struct err *e);
/* One element of the list of volumes: a new reference, or NULL and e says what is wrong. */
json_t *volume_mount_parse(const json_t *v, struct err *e);
/* The volumes of a sandbox as the API shows them. */
json_t *volume_mounts_json(const json_t *list);
/* A snapshot as the API shows it. */
json_t *snapshot_json(const struct host_snapshot *s);
/* The caller's sandboxes that this query wants. */
json_t *sandboxes_json(struct call *c, const char *query);
json_t *templates_json(struct call *c);
/* RFC 3339 in UTC, or Unix seconds. False: neither. */
bool parse_since(const char *text, uint64_t *ret_ms);

/* egress_allowlist, egress and egress_limits of a body, in the form of host/network.h; what the
 * body does not name stays as it is now (may be NULL). *ret NULL: the host's default. Caller
 * owns. */
int egress_parse(const json_t *body, const json_t *now, json_t **ret, struct err *e);
json_t *egress_list(const json_t *egress); /* a new reference; null when there is no list */
