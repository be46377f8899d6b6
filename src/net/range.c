#include "net/range.h"

#include <assert.h>
#include <errno.h>

#include "net/addr.h"

enum {
	USED = 1,
	QUEUED = 2,  /* is in the ring; a claimed place stays there until it comes up */
	FOREIGN = 4, /* and USED */
};

struct range {
	uint32_t base;
	unsigned prefix;
	uint32_t total, used;
	uint32_t head, queued; /* ring of free places */
	uint32_t *ring;
	uint8_t *state;
};

int range_new(const char *text, struct range **ret)
{
	struct range *r;
	struct addr_net net;

	if (addr_parse_net(text, &net) < 0 || net.prefix < RANGE_PREFIX_MIN ||
	    net.prefix > RANGE_PREFIX_MAX)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->base = net.first;
	r->prefix = net.prefix;
	r->total = 1u << (30 - net.prefix);
	r->ring = calloc(r->total, sizeof(*r->ring));
	r->state = calloc(r->total, sizeof(*r->state));
	if (!r->ring || !r->state) {
		range_free(r);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < r->total; i++) {
		r->ring[i] = i;
		r->state[i] = QUEUED;
	}
	r->queued = r->total;
	*ret = r;
	return 0;
}

void range_free(struct range *r)
{
	if (!r)
		return;
	free(r->ring);
	free(r->state);
	free(r);
}

int range_get(struct range *r, uint32_t *ret)
{
	while (r->queued) {
		uint32_t i = r->ring[r->head];

		r->head = (r->head + 1) % r->total;
		r->queued--;
		r->state[i] &= (uint8_t)~QUEUED;
		if (r->state[i] & USED)
			continue; /* was claimed meanwhile */
		r->state[i] |= USED;
		r->used++;
		*ret = i;
		return 0;
	}
	return -ENOSPC;
}

int range_claim(struct range *r, uint32_t i)
{
	if (i >= r->total)
		return -ERANGE;
	if (r->state[i] & FOREIGN) {
		r->state[i] &= (uint8_t)~FOREIGN;
		return 0;
	}
	if (r->state[i] & USED)
		return -EBUSY;
	r->state[i] |= USED;
	r->used++;
	return 0;
}

void range_foreign(struct range *r, uint32_t i)
{
	assert(i < r->total && r->state[i] & USED);
	r->state[i] |= FOREIGN;
}

uint32_t range_retry(struct range *r)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->total; i++) {
		if (!(r->state[i] & FOREIGN))
			continue;
		r->state[i] &= (uint8_t)~FOREIGN;
		range_put(r, i);
		n++;
	}
	return n;
}

void range_put(struct range *r, uint32_t i)
{
	assert(i < r->total && r->state[i] & USED);
	r->state[i] &= (uint8_t)~USED;
	r->used--;
	if (r->state[i] & QUEUED)
		return;
	r->state[i] |= QUEUED;
	r->ring[(r->head + r->queued++) % r->total] = i;
}

uint32_t range_total(const struct range *r)
{
	return r->total;
}

uint32_t range_used(const struct range *r)
{
	return r->used;
}

uint32_t range_base(const struct range *r)
{
	return r->base;
}

unsigned range_prefix(const struct range *r)
{
	return r->prefix;
}

uint32_t range_host(const struct range *r, uint32_t i)
{
	return r->base + 4 * i + 1;
}

uint32_t range_inner(const struct range *r, uint32_t i)
{
	return r->base + 4 * i + 2;
}

int range_find(const struct range *r, uint32_t inner, uint32_t *ret)
{
	uint32_t off = inner - r->base;

	if (inner < r->base || off / 4 >= r->total || off % 4 != 2)
		return -ERANGE;
	*ret = off / 4;
	return 0;
}
