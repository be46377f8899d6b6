/*
 * api/token_store.c - the tokens there are
 * They are on record as SHA-256 of their text; all of them are in memory too, found by that hash,
 * so a request costs one hash and one look.
 */
#include <ctype.h>
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "base/account.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "db/tokens.h"
#include "host/host.h"
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
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:i}", "sandboxes", (json_int_t)q->sandboxes,
	                 "memory_mb", (json_int_t)q->memory_mb, "snapshots",
	                 (json_int_t)q->snapshots, "volumes", (json_int_t)q->volumes, "volumes_mb",
	                 (json_int_t)q->volumes_mb, "requests_per_s", (int)rate_per_s);
}

static uint64_t number(const json_t *j, const char *key)
{
	json_int_t n = json_integer_value(json_object_get(j, key));

	return n > 0 ? (uint64_t)n : 0;
}

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
	t->admin = strstr(row->scopes, "admin") != NULL;
	quota = json_loads(row->quota, 0, NULL);
	t->quota.sandboxes = number(quota, "sandboxes");
	t->quota.memory_mb = number(quota, "memory_mb");
	t->quota.snapshots = number(quota, "snapshots");
	t->quota.volumes = number(quota, "volumes");
	t->quota.volumes_mb = number(quota, "volumes_mb");
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

int token_add(struct api *a, const char *tenant, const char *label, bool admin,
              const struct quota *quota, unsigned rate_per_s, char text[TOKEN_TEXT + 1],
              struct token **ret, struct err *e)
{
	autofree struct token *t = calloc(1, sizeof(*t));
	autofree char *quota_text = NULL;
	json_t *j;
	int r;

	if (t)
		t->tenant = tenant_of(a, tenant);
	if (!t || !t->tenant)
		return err_set(e, ENOMEM, "no_memory", "no memory for a token");
	if (t->tenant->tokens >= TOKENS_PER_TENANT_MAX)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "there are %d tokens already: revoke some that are not used",
		               TOKENS_PER_TENANT_MAX);
	snprintf(t->label, sizeof(t->label), "%s", label);
	t->admin = admin;
	t->quota = *quota;
	t->rate_per_s = rate_per_s;
	t->created_ms = wall_ms();
	j = quota_json(quota, rate_per_s);
	quota_text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!quota_text)
		return err_set(e, ENOMEM, "no_memory", "no memory for a token");
	/* Prefixes are unique on record; 32 random bits meet twice now and then. */
	for (int attempt = 0; attempt < 8; attempt++) {
		if (token_text(text) < 0 || token_hash(text, t->hash) < 0)
			return err_set(e, EIO, "internal", "no entropy for a token");
		memcpy(t->prefix, text, TOKEN_PREFIX);
		if (!token_by_prefix(a, t->prefix))
			break;
	}
	r = db_token_insert(a->host->db,
	                    &(struct db_token){.hash = t->hash,
	                                       .prefix = t->prefix,
	                                       .tenant = tenant,
	                                       .label = t->label,
	                                       .scopes = admin ? "admin,sandbox" : "sandbox",
	                                       .quota = quota_text,
	                                       .created_ms = t->created_ms},
	                    e);
	if (r < 0)
		return r;
	*ret = take_ptr(t);
	token_insert(a, *ret);
	return 0;
}

int token_remove(struct api *a, struct token *t, struct err *e)
{
	struct token **at = &a->tokens[bucket_of(t->hash)];
	int r = db_token_delete(a->host->db, t->hash, e);

	if (r < 0)
		return r;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	t->tenant->tokens--;
	free(t);
	return 0;
}

int api_first_token(struct api *a, char ret[64], struct err *e)
{
	const struct quota none = {0};
	struct token *t = NULL;
	char text[TOKEN_TEXT + 1];
	int r;

	while ((t = token_next(a, t)))
		if (t->admin)
			return 0;
	r = token_add(a, "local", "first", true, &none, 0, text, &t, e);
	if (r < 0)
		return r;
	snprintf(ret, 64, "%s", text);
	return 1;
}
