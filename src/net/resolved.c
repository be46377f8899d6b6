#include <errno.h>
#include <string.h>

#include "base/loop.h"
#include "base/macro.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/nl.h"
#include "net/policy.h"

enum {
	/* For all ports of one address, and for what follows in the transaction. */
	REFILL_ROOM = 2 * POLICY_PORTS_MAX * 128 + 8192,
};

/* name NULL: any of that address, the one that lives longest. */
static struct seen *find(const struct net_slot *s, uint32_t addr, const char *name)
{
	struct seen *best = NULL;

	for (size_t i = 0; i < s->n_seen; i++) {
		struct seen *e = &s->seen[i];

		if (e->addr != addr || (name && strcmp(e->name, name) != 0))
			continue;
		if (!best || e->until_ms > best->until_ms)
			best = e;
	}
	return best;
}

const char *seen_name(const struct net_slot *s, uint32_t addr)
{
	struct seen *e = find(s, addr, NULL);

	return e ? e->name : NULL;
}

const char *seen_allowed(const struct net_slot *s, uint32_t addr, uint16_t port)
{
	uint64_t now = loop_now_ms(s->net->loop);

	for (size_t i = 0; i < s->n_seen; i++) {
		const struct seen *e = &s->seen[i];

		if (e->addr == addr && e->until_ms > now &&
		    policy_allows_name(s->policy, e->name, port))
			return e->name;
	}
	return NULL;
}

const char *seen_listed(const struct net_slot *s, uint32_t addr)
{
	for (size_t i = 0; i < s->n_seen; i++)
		if (s->seen[i].addr == addr && policy_resolves(s->policy, s->seen[i].name))
			return s->seen[i].name;
	return NULL;
}

/* A free place: of one that has ended, else of the one that ends first. */
static struct seen *place(struct net_slot *s, uint64_t now)
{
	struct seen *first = NULL;

	if (!s->seen) {
		s->seen = calloc(SEEN_MAX, sizeof(*s->seen));
		if (!s->seen)
			return NULL;
	}
	if (s->n_seen < SEEN_MAX)
		return &s->seen[s->n_seen++];
	for (size_t i = 0; i < s->n_seen; i++) {
		if (s->seen[i].until_ms <= now)
			return &s->seen[i];
		if (!first || s->seen[i].until_ms < first->until_ms)
			first = &s->seen[i];
	}
	return first;
}

static void put_ports(struct nl_batch *b, const char *set, uint32_t addr, const uint16_t *ports,
                      size_t n, bool renew, uint64_t ms)
{
	for (size_t i = 0; i < n; i++) {
		if (renew)
			nl_del_addr_port(b, set, addr, ports[i]);
		nl_add_addr_port(b, set, addr, ports[i], ms);
	}
}

static void put(struct nl_batch *b, uint32_t addr, const struct policy_reach *to, bool renew,
                uint64_t ms)
{
	if (to->web) {
		if (renew)
			nl_del_addr(b, "names", addr);
		nl_add_addr(b, "names", addr, ms);
	}
	put_ports(b, "names_port", addr, to->tcp, to->n_tcp, renew, ms);
	put_ports(b, "names_udp", addr, to->udp, to->n_udp, renew, ms);
}

/*
 * Kernels before 6.12 do not move the end of an element that is added again, so it is deleted in
 * the same transaction. Ours and the kernel's idea of what is there may differ by a moment: then
 * without deleting.
 */
static int open_addrs(struct net_slot *s, const char *name, const uint32_t *addrs, size_t n,
                      uint64_t ms, bool renew)
{
	uint64_t now = loop_now_ms(s->net->loop);
	struct policy_reach to;

	policy_reach(s->policy, name, &to);
	for (size_t i = 0; i < n; i++) {
		struct seen *e = find(s, addrs[i], NULL);
		bool there = e && e->until_ms > now;

		put(s->net->batch, addrs[i], &to, renew && there, ms);
	}
	return nl_commit(s->net->batch, s->kit.nf);
}

/* An address stays open so long after its answer has ended. */
static uint64_t grace_ms(const struct net_slot *s)
{
	return s->net->config.open_s * 1000ull / 3;
}

int seen_add(struct net_slot *s, const char *name, const uint32_t *addrs, size_t n, uint32_t ttl_s)
{
	uint64_t now = loop_now_ms(s->net->loop);
	uint64_t ms = MAX(ttl_s * 1000ull + grace_ms(s), s->net->config.open_s * 1000ull);
	int r;

	if (s->policy->mode == NET_LIST) {
		r = open_addrs(s, name, addrs, n, ms, true);
		if (r == -ENOENT)
			r = open_addrs(s, name, addrs, n, ms, false);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < n; i++) {
		struct seen *e = find(s, addrs[i], name);
		char *copy;

		if (e) {
			e->until_ms = now + ms;
			continue;
		}
		copy = strdup(name);
		e = copy ? place(s, now) : NULL;
		if (!copy || !e) {
			free(copy);
			return -ENOMEM;
		}
		free(e->name);
		*e = (struct seen){.addr = addrs[i], .until_ms = now + ms, .name = copy};
	}
	return 0;
}

void seen_refill(struct net_slot *s, struct nl_batch *b)
{
	uint64_t now = loop_now_ms(s->net->loop);

	/* What is not allowed any more is remembered all the same: its connections end now, and
	 * that is told with the name. */
	for (size_t i = 0; i < s->n_seen; i++) {
		struct seen *e = &s->seen[i];
		struct policy_reach to;

		policy_reach(s->policy, e->name, &to);
		/* A connection may be older than the answer it began with: it gets a moment to show
		 * itself. */
		e->until_ms = MAX(e->until_ms, now + grace_ms(s));
		/* One transaction has an end. What does not fit is shut until it is asked for
		 * again. */
		if (s->policy->mode == NET_LIST && nl_batch_room(b) > REFILL_ROOM)
			put(b, e->addr, &to, false, e->until_ms - now);
	}
}

void seen_clear(struct net_slot *s)
{
	for (size_t i = 0; i < s->n_seen; i++)
		free(s->seen[i].name);
	free(s->seen);
	s->seen = NULL;
	s->n_seen = 0;
}
