/*
 * net/slot.c - a slot in use: taken or adopted, its policy, its limits, its end
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/macro.h"
#include "net/addr.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/nl.h"
#include "net/policy.h"
#include "net/range.h"

void slot_link(struct net_slot **list, struct net_slot *s)
{
	s->next = *list;
	s->prev = list;
	if (s->next)
		s->next->prev = &s->next;
	*list = s;
}

void slot_unlink(struct net_slot *s)
{
	if (s->next)
		s->next->prev = s->prev;
	*s->prev = s->next;
	s->next = NULL;
	s->prev = NULL;
}

void slot_free(struct net_slot *s)
{
	const struct net_config *c = &s->net->config;

	audit_tell_last(s);
	seen_clear(s);
	if (s->owner && c->gone)
		c->gone(c->arg, s->owner);
	free(s);
}

void slot_quiet(struct net_slot *s)
{
	names_stop(s);
	relay_stop(s);
	audit_stop(s);
	net_policy_unref(s->policy);
	s->policy = NULL;
}

/*
 * The sets say what the policy says. SET_FRESH: they are empty. SET_SAME: an earlier process has
 * set this very policy, and resolved names under it that we do not know; they stay open as long as
 * they would have.
 */
enum set_how {
	SET_FRESH,
	SET_NEW,
	SET_SAME,
};

/* What connections were judged by: the policy, and the rules around it. Odd. */
static uint32_t slot_mark(const struct net_slot *s)
{
	return (policy_mark(s->policy) ^ rules_mark(&s->plan)) | 1;
}

static int apply(struct net_slot *s, enum set_how how)
{
	static const char *const sets[] = {"nets",  "nets_port",  "gen",      "now",
	                                   "names", "names_port", "names_udp"};
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP};
	const struct net_policy *p = s->policy;
	uint32_t mark = slot_mark(s);
	struct nl_batch *b = s->net->batch;
	struct policy_net merged[NET_POLICY_ENTRIES_MAX];
	size_t n = 0;

	for (size_t i = 0; i < (how == SET_NEW ? ARRAY_LEN(sets) : 4); i++)
		if (how != SET_FRESH || i >= 2)
			nl_flush_set(b, sets[i]);
	if (p->mode == NET_OPEN)
		nl_add_net(b, "nets", 0, UINT32_MAX);
	for (size_t i = 0; i < p->n_nets; i++) {
		struct policy_net add = p->nets[i];

		if (add.port) {
			nl_add_addr_port(b, "nets_port", add.first, add.port, 0);
			continue;
		}
		/* The set takes no overlaps: whatever touches the new one becomes part of it. */
		for (size_t k = 0; k < n;) {
			if (merged[k].first <= add.last && add.first <= merged[k].last) {
				add.first = MIN(add.first, merged[k].first);
				add.last = MAX(add.last, merged[k].last);
				merged[k] = merged[--n];
				k = 0;
			} else {
				k++;
			}
		}
		merged[n++] = add;
	}
	for (size_t i = 0; i < n; i++)
		nl_add_net(b, "nets", merged[i].first, merged[i].last);
	if (how == SET_NEW)
		seen_refill(s, b);
	/* Connections that carry another number are judged again; see rules.c. */
	nl_add_mark(b, "gen", mark);
	for (size_t i = 0; i < ARRAY_LEN(protos); i++)
		nl_add_proto_mark(b, "now", protos[i], mark);
	return nl_commit(b, s->kit.nf);
}

/* NULL: the host's. One that is more than the operator lets be is nothing. */
static struct net_policy *policy_within(struct net *n, struct net_policy *p)
{
	if (!p)
		p = n->default_policy;
	return net_mode_within(p->mode, n->max) ? p : n->off;
}

static int slot_begin(struct net_slot *s, struct net_policy *p, void *owner, bool adopted)
{
	enum set_how how = SET_FRESH;
	uint32_t mark = 0;
	int r;

	s->owner = owner;
	s->policy = net_policy_ref(policy_within(s->net, p));
	if (adopted) {
		r = nl_get_mark(s->kit.nf, "gen", &mark);
		how = r == 0 && mark == slot_mark(s) ? SET_SAME : SET_NEW;
	}
	s->inherited = how == SET_SAME;
	r = apply(s, how);
	if (r == 0)
		r = names_listen(s);
	if (r == 0)
		r = relay_listen(s);
	if (r == 0)
		r = audit_listen(s);
	if (r < 0) {
		slot_quiet(s);
		s->owner = NULL;
		return r;
	}
	s->used = true;
	s->went_out = adopted;
	slot_link(&s->net->used, s);
	return 0;
}

int net_take(struct net *n, struct net_policy *p, void *owner, struct net_slot **ret, struct err *e)
{
	struct net_slot *s = n->ready;
	int r;

	if (!s) {
		ahead_more(n);
		if (n->last_error)
			return err_set(e, EAGAIN, "net_not_ready",
			               "no network slot could be prepared: %s", n->last_why);
		if (!n->n_making && range_used(n->range) == range_total(n->range))
			return err_set(e, ENOSPC, "net_full",
			               "all %u network addresses of this host are in use",
			               range_total(n->range));
		return err_set(e, EAGAIN, "net_not_ready", "no network slot is ready yet");
	}
	slot_unlink(s);
	n->n_ready--;
	r = slot_begin(s, p, owner, false);
	ahead_refill(n);
	if (r < 0) {
		slot_undo(s);
		return err_set(e, -r, "net_failed",
		               "cannot set the egress policy of a new slot: %s", strerror(-r));
	}
	*ret = s;
	return 0;
}

/*
 * The slot was made by another program, or closed networks have changed since: it gets our rules,
 * which takes some ms. Its sets are empty then: names must be asked for again.
 */
static int rules_renew(struct net_slot *s, char why[MAKE_WHY])
{
	struct make_plan p = s->plan;
	uint32_t mark;

	if (nl_get_mark(s->kit.nf, "rules", &mark) == 0 && mark == rules_mark(&p))
		return 0;
	p.conns_max = s->net->config.conns_max;
	return make_rules(&p, s->kit.ns, why);
}

int net_adopt(struct net *n, int tap, struct net_policy *p, void *owner, struct net_slot **ret,
              struct err *e)
{
	struct net_slot *s = calloc(1, sizeof(*s));
	char why[MAKE_WHY] = "";
	uint32_t inner;
	int r;

	if (!s)
		return err_nomem(e);
	s->net = n;
	r = make_adopt(n->host_ns, tap, &s->kit, &inner, why);
	if (r < 0) {
		free(s);
		return err_set(e, ESTALE, "net_stale", "cannot take up a network slot: %s", why);
	}
	r = range_find(n->range, inner, &s->place);
	if (r == 0)
		r = ahead_claim(n, s->place);
	if (r < 0) {
		s->kit.tap = -1; /* still the caller's */
		make_close(&s->kit);
		free(s);
		return err_set(e, ESTALE, "net_stale",
		               "the network slot has an address that is %s this host's pool",
		               r == -EBUSY ? "taken in" : "not in");
	}
	s->plan = (struct make_plan){.host_ns = n->host_ns,
	                             .nft = n->nft,
	                             .host = range_host(n->range, s->place),
	                             .inner = inner,
	                             /* As an earlier program left it. */
	                             .conns_max = 0,
	                             .up_kbit = UINT64_MAX,
	                             .closed = &n->closed};
	r = rules_renew(s, why);
	if (r < 0) {
		s->kit.tap = -1;
		make_close(&s->kit);
		range_put(n->range, s->place);
		free(s);
		return err_set(e, -r, "net_failed", "cannot set the rules of the network: %s", why);
	}
	r = slot_begin(s, p, owner, true);
	if (r < 0) {
		s->kit.tap = -1;
		make_close(&s->kit);
		range_put(n->range, s->place);
		slot_free(s);
		return err_set(e, -r, "net_failed", "cannot set the egress policy: %s",
		               strerror(-r));
	}
	*ret = s;
	return 0;
}

int net_set_policy(struct net_slot *s, struct net_policy *p, struct err *e)
{
	struct net_policy *old = s->policy;
	int r;

	s->policy = net_policy_ref(policy_within(s->net, p));
	s->inherited = false;
	net_policy_unref(old);
	r = apply(s, SET_NEW);
	if (r == 0) {
		relay_recheck(s);
		return 0;
	}
	/* Rather nothing than what no caller asked for. */
	err_set(e, -r, "net_failed",
	        "cannot set the egress policy, the network of this sandbox is off now: %s",
	        strerror(-r));
	if (net_policy_new(NET_OFF, NULL, 0, &p, NULL) == 0) {
		net_policy_unref(s->policy);
		s->policy = p;
		apply(s, SET_NEW);
		relay_recheck(s);
	}
	return r;
}

/* The host's limit is the most a sandbox gets; 0: it has none. */
static uint64_t capped(uint64_t want, uint64_t most)
{
	return want && (!most || want < most) ? want : most;
}

int net_set_limits(struct net_slot *s, const struct net_limits *l, struct net_shape *ret,
                   struct err *e)
{
	const struct net_config *c = &s->net->config;
	unsigned conns = (unsigned)capped(l->conns, c->conns_max);
	uint64_t up = capped(l->up_kbit, c->up_kbit), down = capped(l->down_kbit, c->down_kbit);
	struct nl_batch *b = s->net->batch;
	int r;

	*ret = (struct net_shape){.host_ns = -1, .ns = -1};
	if (conns != s->plan.conns_max) {
		nl_limit_conns(b, "count_out", conns);
		nl_limit_conns(b, "count_in", conns);
		r = nl_commit(b, s->kit.nf);
		if (r < 0)
			return err_set(e, -r, "net_failed", "cannot limit connections: %s",
			               strerror(-r));
		s->plan.conns_max = conns;
	}
	if (up == s->plan.up_kbit && down == s->plan.down_kbit)
		return 0;
	ret->host_ns = fcntl(s->net->host_ns, F_DUPFD_CLOEXEC, 0);
	ret->ns = fcntl(s->kit.ns, F_DUPFD_CLOEXEC, 0);
	if (ret->host_ns < 0 || ret->ns < 0) {
		r = errno;
		net_shape(ret);
		return err_set(e, r, "net_failed", "cannot limit the bandwidth: %s", strerror(r));
	}
	ret->up_kbit = s->plan.up_kbit = up;
	ret->down_kbit = s->plan.down_kbit = down;
	return 0;
}

int net_shape(struct net_shape *sh)
{
	int r = 0;

	if (sh->host_ns >= 0 && sh->ns >= 0)
		r = make_shape(sh->host_ns, sh->ns, sh->up_kbit, sh->down_kbit);
	if (sh->host_ns >= 0)
		close(sh->host_ns);
	if (sh->ns >= 0)
		close(sh->ns);
	*sh = (struct net_shape){.host_ns = -1, .ns = -1};
	return r;
}

void net_return(struct net_slot *s)
{
	if (!s)
		return;
	slot_unlink(s);
	s->used = false;
	slot_quiet(s);
	slot_undo(s);
}

int net_slot_tap(const struct net_slot *s)
{
	return s->kit.tap;
}

void net_slot_addr(const struct net_slot *s, char ret[16])
{
	addr_text(s->plan.inner, ret);
}

int net_slot_counters(struct net_slot *s, struct net_counters *ret)
{
	struct net_counters c = {.names = s->count_names,
	                         .names_refused = s->count_names_refused,
	                         .names_limited = s->count_names_limited,
	                         .events_lost = s->count_lost};
	struct mnl_socket *nf = s->kit.nf;
	int r;

	r = nl_counter(nf, NFPROTO_IPV4, "panda", "up", &c.up_packets, &c.up_bytes);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_IPV4, "panda", "down", &c.down_packets, &c.down_bytes);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_IPV4, "panda", "refused", &c.refused, NULL);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_NETDEV, "panda", "odd", &c.odd, NULL);
	if (r == 0)
		*ret = c;
	return r;
}
