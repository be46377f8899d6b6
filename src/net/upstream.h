/*
 * net/upstream.h - questions to the host's own resolvers, and what they said last time
 * One for all slots: a bounded cache, and one question on the wire for all callers that wait for
 * the same. Each goes out from a socket of its own (a random port) with a random id. Loop thread
 * only.
 */
#pragma once
#include "base/loop.h"
#include "net/dns.h"

enum {
	UPSTREAM_CACHE_MAX = 2048,
	UPSTREAM_QUERIES_MAX = 512,
	UPSTREAM_TTL_MAX_S = 3600,
	UPSTREAM_TTL_NONE_S = 30, /* how long we remember that there is nothing */
	UPSTREAM_TRY_MS = 1500,
	UPSTREAM_TRIES = 4,
};

struct upstream;

struct upstream_server {
	uint32_t addr;
	uint16_t port;
};

/* n = 0: every question fails. */
int upstream_new(struct loop *l, const struct upstream_server *servers, size_t n,
                 struct upstream **ret);
void upstream_free(struct upstream *u); /* waiting lookups are forgotten, not called */

/* What was found. raw: the whole message, for other types than A. Valid during the call. */
struct upstream_found {
	const struct dns_answer *answer; /* NULL: no server answered */
	uint32_t ttl_s;
	const uint8_t *raw;
};

struct upstream_lookup {
	void (*fn)(void *arg, const struct upstream_found *f);
	void *arg;
	struct upstream_lookup *next, **prev; /* prev is NULL: idle */
};

/* 1: *ret is the answer, valid until the next call. */
int upstream_cached(struct upstream *u, const char *name, uint16_t type,
                    struct upstream_found *ret);

/* l->fn later, never from here. -EAGAIN: too many are under way. -ENOMEM. */
int upstream_ask(struct upstream *u, const char *name, uint16_t type, struct upstream_lookup *l);
void upstream_cancel(struct upstream_lookup *l);  /* idle is fine */
unsigned upstream_left(const struct upstream *u); /* how many more may be asked now */
/* Names it knows, UPSTREAM_CACHE_MAX at most. */
unsigned upstream_entries(const struct upstream *u);
