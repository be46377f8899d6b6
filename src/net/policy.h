/*
 * net/policy.h - what an egress policy says: its networks, and about a name
 * Pure: text in, judgement out. net/net.h has the public half.
 */
#pragma once
#include "net/net.h"

enum {
	POLICY_NAME_MAX = 253,
	POLICY_PORTS_MAX = 32, /* different ports for one name */
	POLICY_HTTP = 80,      /* the two ports that a name without a port opens */
	POLICY_TLS = 443,
};

struct policy_net {
	uint32_t first, last;
	uint16_t port; /* 0: all */
};

struct policy_name {
	char *name; /* lower case, no dot at the end */
	bool below; /* *.name */
	bool udp;
	uint16_t port; /* 0: the web, which is POLICY_HTTP and POLICY_TLS; never with udp */
};

struct net_policy {
	unsigned refs;
	enum net_mode mode;
	size_t n_nets, n_names;
	struct policy_net *nets;
	struct policy_name *names;
};

/* A number for what it says, odd: equal policies have equal ones, also in another process. */
uint32_t policy_mark(const struct net_policy *p);

/* A host name: letters, digits, '-' and '_' in labels of 1 to 63, at least two of them. Lower-cases
 * it. */
int policy_clean_name(const char *text, char ret[POLICY_NAME_MAX + 1]);

/* Where a name may be reached. */
struct policy_reach {
	bool web; /* TCP to POLICY_HTTP and POLICY_TLS */
	size_t n_tcp, n_udp;
	uint16_t tcp[POLICY_PORTS_MAX], udp[POLICY_PORTS_MAX];
};

/* Of a clean name. False: it may not be resolved at all. An open policy has no ports to tell. */
bool policy_reach(const struct net_policy *p, const char *name, struct policy_reach *ret);
bool policy_resolves(const struct net_policy *p, const char *name);
/* Over TCP. */
bool policy_allows_name(const struct net_policy *p, const char *name, uint16_t port);
