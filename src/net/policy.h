/*
 * net/policy.h - what an egress policy says: its networks, and about a name
 * Pure: text in, judgement out. net/net.h has the public half.
 */
#pragma once
#include "net/net.h"

enum {
	POLICY_NAME_MAX = 253,
	POLICY_PORTS_MAX = 32, /* different ports for one name */
};

struct policy_net {
	uint32_t first, last;
	uint16_t port; /* 0: all */
};

struct policy_name {
	char *name; /* lower case, no dot at the end */
	bool below; /* *.name */
	uint16_t port;
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

/*
 * The ports a name (clean) may be reached at: 0 when it may not be resolved at all; otherwise how
 * many, and a 0 in ports[0] means all of them.
 */
size_t policy_ports(const struct net_policy *p, const char *name, uint16_t ports[POLICY_PORTS_MAX]);
bool policy_allows_name(const struct net_policy *p, const char *name, uint16_t port);
