/*
 * net/range.h - which /30 of the pool belongs to whom
 * Place i has four addresses at base + 4i; .1 of them is the host's, .2 the slot's. Places are
 * handed out in the order they came back, so one is reused as late as possible: what the world
 * still sends to an earlier user finds no sandbox. One thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
	RANGE_PREFIX_MIN = 8,
	RANGE_PREFIX_MAX = 28,
};

struct range;

/* text: "10.200.0.0/16". -EINVAL: not an IPv4 network of an allowed size, -ENOMEM. */
int range_new(const char *text, struct range **ret);
void range_free(struct range *r);

/* -ENOSPC when all are in use. */
int range_get(struct range *r, uint32_t *ret);
int range_claim(struct range *r, uint32_t i); /* this one: -EBUSY, -ERANGE */
void range_put(struct range *r, uint32_t i);  /* must be in use */

/*
 * In use here, but by another program on this host: it is not handed out, but it can be claimed (a
 * slot that will be adopted is such a one). range_retry() puts all of them back, and says how many.
 */
void range_foreign(struct range *r, uint32_t i);
uint32_t range_retry(struct range *r);

uint32_t range_total(const struct range *r);
uint32_t range_used(const struct range *r);
uint32_t range_base(const struct range *r); /* host byte order */
unsigned range_prefix(const struct range *r);
uint32_t range_host(const struct range *r, uint32_t i); /* base + 4i + 1, host byte order */
uint32_t range_inner(const struct range *r, uint32_t i);

/* The place whose inner address this is; -ERANGE. */
int range_find(const struct range *r, uint32_t inner, uint32_t *ret);
