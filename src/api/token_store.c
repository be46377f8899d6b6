/*
 * api/token_store.c - the tokens there are
 * They are on record as SHA-256 of their text; all of them are in memory too, found by that hash,
 * so a request costs one hash and one look.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "base/account.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "db/db.h"
#include "db/tokens.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "template/depot.h"

bool token_well_formed(const char *text)
{
	if (strncmp(text, "pds_", 4) != 0 || strlen(text) != TOKEN_TEXT)
		return false;
	return strspn(text + 4, "0123456789abcdef") == TOKEN_TEXT - 4;
}

bool tenant_name_valid(const char *name)
{
	size_t n = strlen(name);

	return n >= 1 && n <= TENANT_MAX && isalnum((unsigned char)name[0]) &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@") ==
	           n;
}

static void hex(const unsigned char *p, size_t n, char *ret)
{
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		ret[2 * i] = digit[p[i] >> 4];
		ret[2 * i + 1] = digit[p[i] & 15];
	}
	ret[2 * n] = 0;
}

int token_hash(const char *text, char ret[TOKEN_HASH + 1])
{
	unsigned char md[32];
	unsigned n = 0;

	if (!EVP_Digest(text, strlen(text), md, &n, EVP_sha256(), NULL) || n != sizeof(md))
		return -EIO;
	hex(md, n, ret);
	return 0;
}

int token_text(char ret[TOKEN_TEXT + 1])
{
	unsigned char random[16];

	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(ret, TOKEN_TEXT + 1, "pds_");
	hex(random, sizeof(random), ret + 4);
	return 0;
}

static unsigned bucket_of(const char *hash)
{
	char first[5] = {hash[0], hash[1], hash[2], hash[3], 0};

	return (unsigned)strtoul(first, NULL, 16) % TOKEN_BUCKETS;
}

struct tenant *tenant_of(struct api *a, const char *name)
{
	struct tenant *t;

	for (t = a->tenants; t; t = t->next)
		if (strcmp(t->name, name) == 0)
			return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->held = (struct account){.above = &a->held, .max = a->config.held_per_tenant};
	t->next = a->tenants;
	a->tenants = t;
	return t;
}

struct token *token_by_hash(struct api *a, const char *hash)
{
	struct token *t;

	for (t = a->tokens[bucket_of(hash)]; t; t = t->next)
		if (strcmp(t->hash, hash) == 0)
			return t;
	return NULL;
}

struct token *token_by_prefix(struct api *a, const char *prefix)
{
	struct token *t = NULL;

	while ((t = token_next(a, t)))
		if (strcmp(t->prefix, prefix) == 0)
			return t;
	return NULL;
}

struct token *token_next(struct api *a, struct token *after)
{
	unsigned i = 0;

	if (after && after->next)
		return after->next;
	if (after)
		i = bucket_of(after->hash) + 1;
	for (; i < TOKEN_BUCKETS; i++)
		if (a->tokens[i])
			return a->tokens[i];
	return NULL;
}

static void token_insert(struct api *a, struct token *t)
{
	struct token **at = &a->tokens[bucket_of(t->hash)];

	t->next = *at;
	*at = t;
	t->tenant->tokens++;
}

json_t *quota_json(const struct quota *q, unsigned rate_per_s)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "sandboxes",
	                 (json_int_t)q->sandboxes, "memory_mb", (json_int_t)q->memory_mb,
	                 "snapshots", (json_int_t)q->snapshots, "volumes", (json_int_t)q->volumes,
	                 "volumes_mb", (json_int_t)q->volumes_mb, "disk_mb", (json_int_t)q->disk_mb,
	                 "requests_per_s", (int)rate_per_s);
}

static uint64_t number(const json_t *j, const char *key)
{
	json_int_t n = json_integer_value(json_object_get(j, key));

	return n > 0 ? (uint64_t)n : 0;
}

/* ---- rights ---- */

static const char *const levels[] = {[LEVEL_READ] = "read",
                                     [LEVEL_EXEC] = "exec",
                                     [LEVEL_SANDBOX] = "sandbox",
                                     [LEVEL_ADMIN] = "admin"};

void rights_print(const struct rights *r, char ret[SCOPES_MAX])
{
	const char *word = levels[r->level];

	if (r->level == LEVEL_ADMIN)
		snprintf(ret, SCOPES_MAX, "admin,sandbox");
	else if (!*r->only)
		snprintf(ret, SCOPES_MAX, "%s", word);
	else if (r->level == LEVEL_SANDBOX)
		snprintf(ret, SCOPES_MAX, "sandbox:%s", r->only);
	else
		snprintf(ret, SCOPES_MAX, "%s,sandbox:%s", word, r->only);
}

bool rights_word(const char *word, struct rights *ret)
{
	if (strncmp(word, "sandbox:", 8) == 0) {
		if (!word[8] || strlen(word + 8) > SANDBOX_ID ||
		    (*ret->only && strcmp(ret->only, word + 8) != 0))
			return false;
		snprintf(ret->only, sizeof(ret->only), "%s", word + 8);
		return true;
	}
	for (size_t i = 0; i < ARRAY_LEN(levels); i++)
		if (strcmp(word, levels[i]) == 0) {
			ret->level = MAX(ret->level, (enum level)i);
			return true;
		}
	return false;
}

bool rights_within(const struct rights *a, const struct rights *b)
{
	return a->level <= b->level && (!*b->only || strcmp(a->only, b->only) == 0) &&
	       (!b->expires_ms || (a->expires_ms && a->expires_ms <= b->expires_ms));
}

bool rights_reach(const struct rights *r, const struct route *route)
{
	static const enum level needs[] = {
	    [SCOPE_SANDBOX] = LEVEL_SANDBOX, [SCOPE_NONE] = LEVEL_READ,
	    [SCOPE_READ] = LEVEL_READ,       [SCOPE_EXEC] = LEVEL_EXEC,
	    [SCOPE_OWN] = LEVEL_SANDBOX,     [SCOPE_ADMIN] = LEVEL_ADMIN};

	if (r->level < needs[route->scope])
		return false;
	return !*r->only || route->bound || route->scope == SCOPE_NONE ||
	       (route->sandbox && route->scope != SCOPE_SANDBOX);
}

/* Of a record. One that says nothing we know may look, and no more. */
static void rights_parse(const char *words, struct rights *ret)
{
	bool level = false;
	char word[SCOPES_MAX];

	while (*words) {
		size_t n = strcspn(words, ",");

		snprintf(word, sizeof(word), "%.*s", (int)n, words);
		if (rights_word(word, ret))
			level |= strncmp(word, "sandbox:", 8) != 0;
		words += n + (words[n] == ',');
	}
	if (*ret->only && !level)
		ret->level = LEVEL_SANDBOX;
}

/* ---- on record, and in memory ---- */

struct loading {
	struct api *api;
	bool no_memory;
};

static bool load(void *arg, const struct db_token *row)
{
	struct loading *l = arg;
	struct token *t = calloc(1, sizeof(*t));
	json_t *quota;

	if (t)
		t->tenant = tenant_of(l->api, row->tenant);
	if (!t || !t->tenant) {
		free(t);
		l->no_memory = true;
		return false;
	}
	snprintf(t->hash, sizeof(t->hash), "%s", row->hash);
	snprintf(t->prefix, sizeof(t->prefix), "%s", row->prefix);
	snprintf(t->label, sizeof(t->label), "%s", row->label);
	snprintf(t->maker, sizeof(t->maker), "%s", row->maker);
	rights_parse(row->scopes, &t->rights);
	t->rights.expires_ms = row->expires_ms;
	quota = json_loads(row->quota, 0, NULL);
	t->quota.sandboxes = number(quota, "sandboxes");
	t->quota.memory_mb = number(quota, "memory_mb");
	t->quota.snapshots = number(quota, "snapshots");
	t->quota.volumes = number(quota, "volumes");
	t->quota.volumes_mb = number(quota, "volumes_mb");
	t->quota.disk_mb = number(quota, "disk_mb");
	t->rate_per_s = (unsigned)number(quota, "requests_per_s");
	json_decref(quota);
	t->created_ms = row->created_ms;
	token_insert(l->api, t);
	return true;
}

int tokens_open(struct api *a, struct err *e)
{
	struct loading l = {.api = a};
	int r = db_tokens_each(a->host->db, load, &l, e);

	if (r == 0 && l.no_memory)
		r = err_set(e, ENOMEM, "no_memory", "no memory for the tokens on record");
	return r;
}

void tokens_close(struct api *a)
{
	for (size_t i = 0; i < TOKEN_BUCKETS; i++)
		while (a->tokens[i]) {
			struct token *t = a->tokens[i];

			a->tokens[i] = t->next;
			free(t);
		}
	while (a->tenants) {
		struct tenant *t = a->tenants;

		a->tenants = t->next;
		free(t);
	}
}

bool token_expired(const struct token *t)
{
	return t->rights.expires_ms && wall_ms() >= t->rights.expires_ms;
}

bool token_descends(struct api *a, const struct token *t, const char *prefix)
{
	/* A chain of makers has no ring: a maker was there before what it made. Damaged records may
	 * say otherwise. */
	for (int i = 0; t && i < TOKENS_PER_TENANT_MAX; i++) {
		if (strcmp(t->prefix, prefix) == 0)
			return true;
		t = *t->maker ? token_by_prefix(a, t->maker) : NULL;
	}
	return false;
}

static void token_take_out(struct api *a, struct token *t)
{
	struct token **at = &a->tokens[bucket_of(t->hash)];

	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	t->tenant->tokens--;
}

/* Of this tenant, those that open nothing any more: their time or their sandbox is over. */
static void tokens_sweep(struct api *a, const struct tenant *tenant)
{
	struct token *t = token_next(a, NULL), *next;

	for (; t; t = next) {
		next = token_next(a, t);
		if (t->tenant != tenant ||
		    (!token_expired(t) &&
		     !(*t->rights.only && !host_find(a->host, tenant->name, t->rights.only))))
			continue;
		if (db_token_delete(a->host->db, t->hash, NULL) < 0)
			continue; /* another time */
		token_take_out(a, t);
		free(t);
	}
}

/* Prefixes are unique on record; 32 random bits meet twice now and then. */
static int new_text(struct api *a, char text[TOKEN_TEXT + 1], char hash[TOKEN_HASH + 1],
                    char prefix[TOKEN_PREFIX + 1], struct err *e)
{
	for (int attempt = 0; attempt < 8; attempt++) {
		if (token_text(text) < 0 || token_hash(text, hash) < 0)
			return err_set(e, EIO, "internal", "no entropy for a token");
		snprintf(prefix, TOKEN_PREFIX + 1, "%.*s", TOKEN_PREFIX, text);
		if (!token_by_prefix(a, prefix))
			break;
	}
	return 0;
}

int token_add(struct api *a, const char *tenant, const char *label, const char *maker,
              const struct rights *rights, const struct quota *quota, unsigned rate_per_s,
              char text[TOKEN_TEXT + 1], struct token **ret, struct err *e)
{
	autofree struct token *t = calloc(1, sizeof(*t));
	autofree char *quota_text = NULL;
	char scopes[SCOPES_MAX];
	json_t *j;
	int r;

	if (t)
		t->tenant = tenant_of(a, tenant);
	if (!t || !t->tenant)
		return err_set(e, ENOMEM, "no_memory", "no memory for a token");
	if (t->tenant->tokens >= TOKENS_PER_TENANT_MAX)
		tokens_sweep(a, t->tenant);
	if (t->tenant->tokens >= TOKENS_PER_TENANT_MAX)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "there are %d tokens already: revoke some that are not used",
		               TOKENS_PER_TENANT_MAX);
	snprintf(t->label, sizeof(t->label), "%s", label);
	snprintf(t->maker, sizeof(t->maker), "%s", maker);
	t->rights = *rights;
	t->quota = *quota;
	t->rate_per_s = rate_per_s;
	t->created_ms = wall_ms();
	rights_print(rights, scopes);
	j = quota_json(quota, rate_per_s);
	quota_text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!quota_text)
		return err_set(e, ENOMEM, "no_memory", "no memory for a token");
	r = new_text(a, text, t->hash, t->prefix, e);
	if (r == 0)
		r = db_token_insert(a->host->db,
		                    &(struct db_token){.hash = t->hash,
		                                       .prefix = t->prefix,
		                                       .tenant = tenant,
		                                       .label = t->label,
		                                       .scopes = scopes,
		                                       .quota = quota_text,
		                                       .maker = t->maker,
		                                       .created_ms = t->created_ms,
		                                       .expires_ms = rights->expires_ms},
		                    e);
	if (r < 0)
		return r;
	*ret = take_ptr(t);
	token_insert(a, *ret);
	return 0;
}

int token_remove(struct api *a, struct token *t, bool cascade, struct err *e)
{
	struct token *o = NULL, *next, *gone = NULL;
	char prefix[TOKEN_PREFIX + 1];
	int r = db_begin(a->host->db, e);

	memcpy(prefix, t->prefix, sizeof(prefix));
	if (r < 0)
		return r;
	while (r == 0 && (o = token_next(a, o)))
		if (o == t || (cascade && token_descends(a, o, prefix)))
			r = db_token_delete(a->host->db, o->hash, e);
	if (r == 0 && !cascade)
		r = db_token_orphan(a->host->db, prefix, e);
	if (r == 0)
		r = db_commit(a->host->db, e);
	else
		db_rollback(a->host->db);
	if (r < 0)
		return r;
	/* All are found before the first goes: the chain of makers leads through them. */
	for (o = token_next(a, NULL); o; o = next) {
		next = token_next(a, o);
		o->doomed = o == t || (cascade && token_descends(a, o, prefix));
		if (!cascade && strcmp(o->maker, prefix) == 0)
			o->maker[0] = 0;
	}
	for (o = token_next(a, NULL); o; o = next) {
		next = token_next(a, o);
		if (!o->doomed)
			continue;
		token_take_out(a, o);
		o->next = gone;
		gone = o;
	}
	for (; gone; gone = next) {
		next = gone->next;
		free(gone);
	}
	return 0;
}

int token_rotate(struct api *a, struct token *t, char text[TOKEN_TEXT + 1], struct err *e)
{
	char hash[TOKEN_HASH + 1], prefix[TOKEN_PREFIX + 1];
	struct token *o = NULL;
	int r = new_text(a, text, hash, prefix, e);

	if (r == 0)
		r = db_token_rotate(a->host->db, t->hash, t->prefix, hash, prefix, e);
	if (r < 0)
		return r;
	while ((o = token_next(a, o)))
		if (strcmp(o->maker, t->prefix) == 0)
			memcpy(o->maker, prefix, sizeof(o->maker));
	token_take_out(a, t);
	memcpy(t->hash, hash, sizeof(hash));
	memcpy(t->prefix, prefix, sizeof(prefix));
	token_insert(a, t);
	return 0;
}

int api_first_token(struct api *a, const char *path, struct err *e)
{
	const struct rights admin = {.level = LEVEL_ADMIN};
	const struct quota none = {0};
	struct db *db = a->host->db;
	struct token *t = NULL;
	char text[TOKEN_TEXT + 2];
	int r;

	while ((t = token_next(a, t)))
		if (t->rights.level == LEVEL_ADMIN && !t->rights.expires_ms)
			return 0;
	r = db_begin(db, e);
	if (r < 0)
		return r;
	r = token_add(a, "local", "first", "", &admin, &none, 0, text, &t, e);
	if (r == 0) {
		text[TOKEN_TEXT] = '\n';
		text[TOKEN_TEXT + 1] = '\0';
		r = io_replace_file(AT_FDCWD, path, text, strlen(text), 0600, true);
		if (r < 0)
			err_set(e, -r, "key_unwritten", "cannot write the first API key to %s: %s",
			        path, strerror(-r));
	}
	if (r < 0)
		db_rollback(db);
	else
		r = db_commit(db, e);
	return r < 0 ? r : 1;
}
