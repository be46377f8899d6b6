/*
 * net/net.h - the network of sandboxes: a namespace each, a leash by name
 *
 *   guest ── tap fd ── tap0 172.31.255.1 ┊ wan0 10.200.n.2 ── veth ── pn0ac8nnnn 10.200.n.1 ── host
 *            (jail)    └──── namespace of the slot: nft rules ──┘          shared masquerade
 *
 * Every guest sees the same: 172.31.255.2/30, gateway and name server 172.31.255.1, MTU 1500,
 * MAC 06:00:ac:1f:ff:02, no IPv6. So a restored or forked guest needs nothing set anew, and
 * outside no two share an address.
 *
 * A slot lives as long as a process holds its fds: its namespace has no name and no mount, it ends
 * with the last of (ours, the tap in the machine's jail), and takes tap, veth, rules and
 * connections with it. So nothing of a slot is left whatever dies; a machine that outlives pandad
 * keeps its network (names do not resolve meanwhile), and net_adopt() takes it up by the tap fd.
 * Of the host itself we change: one nft table of ours, forwarding of our veths and of the
 * interface that leads out (docs/design/network.md).
 *
 * All calls belong to the loop's thread and none of them waits; namespaces are made and unmade on
 * a thread of our own. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN, and the program nft.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/loop.h"

#define NET_GUEST_ADDR    "172.31.255.2"
#define NET_GUEST_GATEWAY "172.31.255.1" /* and name server */
#define NET_GUEST_MAC     "06:00:ac:1f:ff:02"

enum {
	NET_GUEST_PREFIX = 30,
	NET_GUEST_MTU = 1500,
	/* Each frame on the tap has a struct virtio_net_hdr of this size in front
	 * (IFF_VNET_HDR). */
	NET_VNET_HDR_LEN = 10,
	/* With offloads a frame may be this long, its header not counted. */
	NET_FRAME_MAX = 65535 + 14,
	NET_POLICY_ENTRIES_MAX = 256,
	NET_READY_MAX = 256,
	NET_RESOLVERS_MAX = 3,
	NET_CLOSED_MAX = 64, /* networks that the operator closes */
};

struct net;
struct net_slot;
struct net_policy;

/* Policies: immutable, shared by reference. */

enum net_mode {
	NET_OFF,  /* nothing, and no name resolves */
	NET_OPEN, /* the public internet; never what is always closed */
	NET_LIST, /* the entries, and nothing else */
};

/* "off", "list" or "open". -EINVAL */
int net_mode_parse(const char *word, enum net_mode *ret);
/* Off is less than a list, a list is less than open. */
bool net_mode_within(enum net_mode mode, enum net_mode max);

/*
 * Entries of NET_LIST:
 *   name              TLS to that name on port 443, HTTP to that Host on port 80, nothing else
 *   *.name            the same for all names below it, at any depth, not for the name itself
 *   name:port         TCP to that port; TLS there is for a name of the list, or it ends
 *   name:port/udp     UDP to that port
 *   IPv4 address, CIDR, address:port
 * n = 0 is NET_OFF. Other modes take no entries. Entries are checked
 * here: "bad_egress" names the first one that cannot be, and says why. -EINVAL, -E2BIG, -ENOMEM.
 */
int net_policy_new(enum net_mode mode, const char *const *entries, size_t n,
                   struct net_policy **ret, struct err *e);
struct net_policy *net_policy_ref(struct net_policy *p);
void net_policy_unref(struct net_policy *p); /* accepts NULL */

/* Is there an entry in it that egress_closed closes? Such a policy holds, but the entry is of no
 * use. "bad_egress", -EINVAL. */
int net_check(const struct net *n, const struct net_policy *p, struct err *e);

/* What went where: one per new connection, refusal, end of a connection, and refused name. */

enum net_verdict {
	NET_ALLOWED, /* a connection began */
	NET_REFUSED, /* why says why */
	NET_CLOSED,  /* a connection ended, some seconds ago; bytes are known now */
};

struct net_event {
	uint64_t time_ms; /* wall clock, ms since 1970 */
	struct net_slot *slot;
	void *owner; /* as given to net_take() */
	enum net_verdict verdict;
	uint8_t proto;   /* IPPROTO_TCP, _UDP, _ICMP; for a name: 0 */
	uint8_t addr[4]; /* 0.0.0.0 for a name that got no address */
	uint16_t port;   /* 0 where there is none */
	const char
	    *name; /* last name the guest resolved to that address, or the TLS server name; NULL */
	/* Of a refusal, a stable word: "policy" (not on the list), "port" (name is on the list, but
	 * not with this port and protocol), "name" (asked for, and not on the list), "sni" and
	 * "host" (not on the list, asked for in TLS and in HTTP), "http" (on port 80, and no HTTP
	 * that can be judged), "closed_range", "rebind", "rate", "tunnel", "odd". */
	const char *why;
	uint64_t bytes_up, bytes_down;
};

struct net_config {
	struct loop *loop;
	const char *pool; /* addresses of the veths; NULL: "10.200.0.0/16". Prefix 8 to 28 */
	unsigned ready;   /* slots to keep ready; 0: 4 */
	bool egress_deny; /* net_take() without a policy: NET_OFF; else NET_OPEN */
	/* The operator's, and no policy overrides them. A policy that is more than egress_max
	 * ("off", "list", "open"; NULL: "open") is NET_OFF; egress_closed are networks and
	 * addresses with spaces between, as closed as the private ones; NULL: none. */
	const char *egress_max, *egress_closed;
	/* "address" or "address:port", with spaces between; NULL: those of resolv.conf. The first
	 * NET_RESOLVERS_MAX of them are asked. */
	const char *resolvers;
	const char
	    *wan; /* interface that leads out; NULL: that of the default route, if there is one */
	const char *nft; /* path of the program; NULL: /usr/sbin/nft */
	/* Connections of a slot at once: each has an entry in the host's table, too, which is one
	 * for all. */
	unsigned conns_max;
	uint64_t up_kbit, down_kbit; /* bandwidth of a slot; 0: unlimited */
	unsigned open_s;      /* an address that a name led to stays open so long at least, and a
	                         third of that longer than the answer is good; 0: 180 */
	unsigned names_per_s; /* questions of a slot per second; 0: 100, with a burst of five times
	                         that */

	/* On the loop. It must not call net_*() that changes slots. A slot says at most some
	 * hundred things a second; what was too much is counted in net_counters. NULL: no caller
	 * listens. */
	void (*event)(void *arg, const struct net_event *ev);
	/* No event names this owner any more; some ms after net_return(), or in net_free(). NULL:
	 * the caller does not want to know. */
	void (*gone)(void *arg, void *owner);
	void *arg;
};

/*
 * Puts our table into the host's namespace (the one the caller is in), and begins to prepare slots.
 * "net_unavailable" says what is missing: a right, the program nft, a kernel option.
 */
int net_new(const struct net_config *c, struct net **ret, struct err *e);

/*
 * Free slots go; those in use are let go of and live on with their machines, for net_adopt() of the
 * next process. Our table goes when no slot is left on this host. May wait for the thread (some
 * ms).
 */
void net_free(struct net *n);

/*
 * A prepared slot with this policy (NULL: the default), in some 20 us; owner is handed back in
 * events until gone() takes it back; on an error it was never taken. -EAGAIN: none is ready,
 * net_wait() tells when; -ENOSPC: all addresses are in use. Other errors: "net_failed".
 */
int net_take(struct net *n, struct net_policy *p, void *owner, struct net_slot **ret,
             struct err *e);

/* Once, on the loop, when a slot is ready or making them has failed; first come, first served. */
struct net_wait {
	void (*fn)(void *arg,
	           int error); /* 0: call net_take() now. -ENOSPC, or why slots cannot be made */
	void *arg;
	struct net_wait *next, **prev; /* prev is NULL: not waiting */
};

void net_wait(struct net *n, struct net_wait *w);
void net_wait_cancel(struct net *n, struct net_wait *w); /* idle is fine */

/*
 * A slot that an earlier process gave to a machine that still runs. tap: its tap fd, got from the
 * machine (pidfd_getfd); taken over on success. The policy is set anew. -ESTALE: not a tap of a
 * slot of this pool.
 */
int net_adopt(struct net *n, int tap, struct net_policy *p, void *owner, struct net_slot **ret,
              struct err *e);

/*
 * From now on this policy. Connections it does not allow are cut: the guest reads a reset, and what
 * was resolved is kept as far as it is still allowed. On an error the slot is shut (NET_OFF).
 */
int net_set_policy(struct net_slot *s, struct net_policy *p, struct err *e);

/* What one slot may have; 0: as net_config says, which is also the most it gets. */
struct net_limits {
	unsigned conns;
	uint64_t up_kbit, down_kbit;
};

/*
 * Connections beyond the limit are refused; those that are open when it changes stay, and are not
 * counted. Bandwidth cannot be changed on the loop, the kernel may let us wait: *ret says what is
 * left to do, for net_shape() on another thread. -EIO and the like: "net_failed".
 */
struct net_shape {
	int host_ns, ns; /* -1: nothing to do */
	uint64_t up_kbit, down_kbit;
};

int net_set_limits(struct net_slot *s, const struct net_limits *l, struct net_shape *ret,
                   struct err *e);
int net_shape(struct net_shape *sh); /* any thread, the slot may be gone; closes what is in it */

/*
 * The machine is gone (its process has ended: the tap must be closed there). Connections it still
 * had are told as closed, some ms later. Accepts NULL.
 */
void net_return(struct net_slot *s);

/*
 * To be handed into the jail; stays the slot's. Non-blocking, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR,
 * offloads CSUM and TSO4 set. The jail must not be able to ioctl() it.
 */
int net_slot_tap(const struct net_slot *s);
void net_slot_addr(const struct net_slot *s, char ret[16]); /* outside address: 10.200.n.2 */

struct net_counters {
	uint64_t up_bytes, up_packets, down_bytes, down_packets; /* forwarded */
	uint64_t refused; /* packets that the policy refused */
	uint64_t odd;     /* packets that were no business of a guest: spoofed, fragments, IPv6 */
	uint64_t names, names_refused, names_limited;
	uint64_t events_lost; /* things that happened too fast for net_config.event */
};

int net_slot_counters(struct net_slot *s, struct net_counters *ret);
