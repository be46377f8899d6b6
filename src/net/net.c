/*
 * net/net.c - opens and closes the network of a host
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/loop.h"
#include "base/macro.h"
#include "net/addr.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/nl.h"
#include "net/policy.h"
#include "net/range.h"
#include "net/upstream.h"

enum {
	READY_DEFAULT = 4,
	NAMES_PER_S_DEFAULT = 100,
	OPEN_S_DEFAULT = 180,
	RESOLV_CONF_MAX = 65536,
};

/* "nameserver" lines. What is not IPv4 is passed over: the host may have an IPv6 resolver beside
 * it. */
static size_t read_resolv_conf(struct upstream_server *ret, size_t max)
{
	autofree char *text = NULL;
	char *line, *save = NULL;
	size_t len, n = 0;

	if (io_read_file(AT_FDCWD, "/etc/resolv.conf", RESOLV_CONF_MAX, &text, &len) < 0)
		return 0;
	for (line = strtok_r(text, "\n", &save); line && n < max;
	     line = strtok_r(NULL, "\n", &save)) {
		char word[64];
		uint32_t addr;

		if (sscanf(line, " nameserver %63s", word) != 1 || addr_parse(word, &addr) < 0)
			continue;
		ret[n++] = (struct upstream_server){.addr = addr, .port = 53};
	}
	return n;
}

static int open_upstream(struct net *n, const struct net_config *c, struct err *e)
{
	struct upstream_server servers[NET_RESOLVERS_MAX];
	autofree char *text = strdup(c->resolvers ? c->resolvers : "");
	char *save = NULL, *one;
	size_t count = 0;

	if (!text)
		return err_nomem(e);
	for (one = strtok_r(text, " \t", &save); one && count < ARRAY_LEN(servers);
	     one = strtok_r(NULL, " \t", &save), count++)
		if (addr_parse_port(one, 53, &servers[count].addr, &servers[count].port) < 0)
			return err_set(e, EINVAL, "bad_config",
			               "resolver '%s' is not an IPv4 address or address:port", one);
	if (!count)
		count = read_resolv_conf(servers, ARRAY_LEN(servers));
	if (upstream_new(n->loop, servers, count, &n->up) < 0)
		return err_nomem(e);
	return 0;
}

bool net_closed(const struct net *n, uint32_t addr)
{
	for (size_t i = 0; i < n->closed.n; i++)
		if (addr >= n->closed.net[i].first && addr <= n->closed.net[i].last)
			return true;
	return addr_closed(addr) != NULL;
}

int net_check(const struct net *n, const struct net_policy *p, struct err *e)
{
	for (size_t i = 0; i < p->n_nets; i++) {
		const struct policy_net *net = &p->nets[i];

		for (size_t k = 0; k < n->closed.n; k++) {
			const struct addr_net *c = &n->closed.net[k];
			char first[ADDR_TEXT], closed[ADDR_TEXT];

			if (net->first < c->first || net->last > c->last)
				continue;
			addr_text(net->first, first);
			addr_text(c->first, closed);
			return err_set(
			    e, EINVAL, "bad_egress",
			    "egress entry that begins with %s: the operator of this host "
			    "has closed %s/%u to all sandboxes (egress_closed)",
			    first, closed, c->prefix);
		}
	}
	return 0;
}

/* What the operator alone says. */
static int read_limits(struct net *n, const struct net_config *c, struct err *e)
{
	autofree char *text = strdup(c->egress_closed ? c->egress_closed : "");
	char *save = NULL;

	n->max = NET_OPEN;
	if (c->egress_max && net_mode_parse(c->egress_max, &n->max) < 0)
		return err_set(e, EINVAL, "bad_config",
		               "egress_max '%.40s' is not off, list or open", c->egress_max);
	if (!text)
		return err_nomem(e);
	for (char *one = strtok_r(text, " \t,", &save); one; one = strtok_r(NULL, " \t,", &save)) {
		struct addr_net net = {.prefix = 32};

		if (n->closed.n == NET_CLOSED_MAX)
			return err_set(e, E2BIG, "bad_config", "egress_closed: at most %d networks",
			               NET_CLOSED_MAX);
		if (addr_parse(one, &net.first) == 0)
			net.last = net.first;
		else if (addr_parse_net(one, &net) < 0)
			return err_set(e, EINVAL, "bad_config",
			               "egress_closed '%.40s' is not an IPv4 network such as "
			               "192.0.2.0/24, with no bits behind its prefix",
			               one);
		n->closed.net[n->closed.n++] = net;
	}
	return 0;
}

static int open_all(struct net *n, const struct net_config *c, struct err *e)
{
	const char *pool = c->pool ? c->pool : "10.200.0.0/16";
	char why[MAKE_WHY] = "";
	uint32_t first, last;
	int r;

	r = range_new(pool, &n->range);
	if (r == -EINVAL)
		return err_set(
		    e, EINVAL, "bad_config",
		    "address pool '%s' is not a network like 10.200.0.0/16 (prefix %d to %d)", pool,
		    RANGE_PREFIX_MIN, RANGE_PREFIX_MAX);
	if (r < 0)
		return err_set(e, -r, "no_memory", "out of memory");
	first = range_base(n->range);
	last = first + 4 * (range_total(n->range) - 1) + 3;
	if (first <= (uint32_t)GUEST_ADDR && last >= (uint32_t)GATEWAY_ADDR)
		return err_set(e, EINVAL, "bad_config",
		               "address pool '%s' contains 172.31.255.0/30, which guests use",
		               pool);
	if (!addr_closed(first) || !addr_closed(last))
		return err_set(e, EINVAL, "bad_config",
		               "address pool '%s' must be private, for example 10.200.0.0/16",
		               pool);
	if (c->wan && strlen(c->wan) >= sizeof(n->host.wan))
		return err_set(e, EINVAL, "bad_config", "interface '%s' is no interface", c->wan);
	n->nft = strdup(c->nft ? c->nft : "/usr/sbin/nft");
	if (!n->nft || nl_batch_new(&n->batch) < 0)
		return err_nomem(e);
	r = net_policy_new(c->egress_deny ? NET_OFF : NET_OPEN, NULL, 0, &n->default_policy, e);
	if (r == 0)
		r = net_policy_new(NET_OFF, NULL, 0, &n->off, e);
	if (r == 0)
		r = read_limits(n, c, e);
	if (r < 0)
		return r;
	n->host_ns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (n->host_ns < 0)
		return err_set(e, errno, "net_unavailable", "cannot open /proc/thread-self/ns/net");
	r = open_upstream(n, c, e);
	if (r < 0)
		return r;
	n->host.nft = n->nft;
	n->host.closed = &n->closed;
	n->host.base = range_base(n->range);
	n->host.prefix = range_prefix(n->range);
	if (c->wan)
		memcpy(n->host.wan, c->wan, strlen(c->wan));
	n->host_opened = true; /* also half */
	r = wan_open(&n->host, why);
	if (r < 0)
		return err_set(e, -r, "net_unavailable", "no network for sandboxes: %s", why);
	r = ahead_open(n);
	if (r < 0)
		return err_set(e, -r, "net_unavailable", "cannot start threads");
	return 0;
}

int net_new(const struct net_config *c, struct net **ret, struct err *e)
{
	struct net *n = calloc(1, sizeof(*n));
	int r;

	if (!n)
		return err_nomem(e);
	n->loop = c->loop;
	n->config = *c;
	n->config.pool = n->config.wan = n->config.nft = NULL; /* the caller's */
	n->config.resolvers = n->config.egress_max = n->config.egress_closed = NULL;
	n->config.ready =
	    MIN(c->ready ? c->ready : (unsigned)READY_DEFAULT, (unsigned)NET_READY_MAX);
	n->config.open_s = c->open_s ? c->open_s : OPEN_S_DEFAULT;
	n->config.names_per_s = c->names_per_s ? c->names_per_s : NAMES_PER_S_DEFAULT;
	n->host_ns = -1;
	ahead_init(n);
	r = open_all(n, c, e);
	if (r < 0) {
		net_free(n);
		return r;
	}
	ahead_more(n);
	*ret = n;
	return 0;
}

void net_free(struct net *n)
{
	if (!n)
		return;
	loop_timer_clear(n->loop, &n->sweep);
	while (n->used) {
		struct net_slot *s = n->used;

		slot_unlink(s);
		slot_quiet(s);
		make_close(&s->kit); /* the machine has the tap, too, and goes on */
		slot_free(s);
	}
	ahead_close(n);
	if (n->host_opened)
		wan_close(&n->host);
	range_free(n->range);
	upstream_free(n->up);
	nl_batch_free(n->batch);
	net_policy_unref(n->default_policy);
	net_policy_unref(n->off);
	if (n->host_ns >= 0)
		close(n->host_ns);
	free(n->nft);
	free(n);
}
