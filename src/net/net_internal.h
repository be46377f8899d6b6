/*
 * net/net_internal.h - what the files of this room share: the slot, and who does what to it
 */
#pragma once
#include "base/bucket.h"
#include "base/loop.h"
#include "base/pool.h"
#include "net/make.h"
#include "net/net.h"
#include "net/policy.h"
#include "net/range.h"
#include "net/upstream.h"

enum {
	SWEEP_MS = 5000, /* after connections began: so often the kernel is asked what has ended */
	SWEEPS = 3,
	SEEN_MAX = 1024,      /* addresses a slot has resolved and may reach by name */
	TTL_TOLD_MAX_S = 300, /* guests ask again after this, so that we see what they use */
	ASKS_MAX = 64,        /* questions of a slot under way */
	DNS_CONNS_MAX = 8,    /* of a slot, over TCP */
	RELAYS_MAX = 128,     /* of a slot; up to 1 MiB of socket buffers each (make.c) */
	EVENTS_PER_S = 50,    /* of a slot, besides those the kernel limits */
	EVENTS_BURST = 200,
	/* What a slot's questions may carry outside: bits of names that were not in the cache. An
	   ordinary name has 25 to 100. */
	NAME_BITS_PER_S = 1000,
	NAME_BITS_BURST = 32768,
	NAME_BITS_MORE = 8, /* for how long it is and of which type */
};

/* An address the guest got for a name. In list mode its element in the sets ends at until_ms. */
struct seen {
	uint32_t addr;
	uint64_t until_ms;
	char *name;
};

struct ask;
struct net_job;
struct dns_conn;
struct relay;

struct net_slot {
	struct net *net;
	struct net_slot *next, **prev; /* ready or used */
	uint32_t place;
	bool place_lost; /* adopted while we tried to make it: no longer ours */
	struct make_plan plan;
	struct make_kit kit;
	char why[MAKE_WHY];
	int error;

	/* From here on: while it is used. */
	bool used;
	struct net_policy *policy;
	bool inherited; /* an earlier process set it, and resolved names that we do not know */
	void *owner;
	struct loop_io udp_io, tcp_io, sni_io, log_io;
	size_t n_seen;
	struct seen *seen;
	struct ask *asks;
	unsigned n_asks;
	struct dns_conn *dns_conns;
	unsigned n_dns_conns;
	struct relay *relays;
	unsigned n_relays;
	bool went_out;        /* a connection was allowed: there may be some at the end */
	struct nl_flow *last; /* those that lived then */
	size_t n_last;
	struct bucket names, bits, events;
	uint64_t count_names, count_names_refused, count_names_limited, count_lost;
};

struct net {
	struct loop *loop;
	struct net_config config;
	char *nft;
	struct range *range;
	struct wan host;
	int host_ns;
	struct make_own own; /* the maker's */
	struct make_closed closed;
	enum net_mode max;
	struct pool *maker, *breaker;
	struct upstream *up;
	struct nl_batch *batch;
	struct net_policy *default_policy, *off;
	struct net_slot *ready, *used;
	unsigned n_ready, n_making;
	struct net_job *jobs;
	int last_error;
	char last_why[MAKE_WHY];
	uint64_t retry_ms;   /* after a failure nothing is made before this */
	uint64_t foreign_ms; /* places of others are not tried again before this */
	struct loop_timer retry;
	struct loop_defer tell;
	struct net_wait *waits, **waits_tail;
	struct loop_timer sweep;
	unsigned sweeps; /* still to do */
	bool host_opened;
};

/* net.c: closed to all sandboxes of this host. */
bool net_closed(const struct net *n, uint32_t addr);

/* prepare.c: slots made before a sandbox wants them, and unmade. */
void ahead_init(struct net *n);
int ahead_open(struct net *n); /* -errno: no threads */
/* Free slots are unmade, jobs waited for. Also after a failed ahead_open(). */
void ahead_close(struct net *n);
/* Until as many are ready, or on their way, as shall be; after a failure not at once. */
void ahead_more(struct net *n);
/*
 * One was taken. The caller that took it is about to start a machine, and the cpu is for that: what
 * was taken is made again a little later, while enough are left.
 */
void ahead_refill(struct net *n);
/* The place is the caller's. Who makes slots may be trying this very place: it will find that it is
 * taken. -EBUSY: another program has it. */
int ahead_claim(struct net *n, uint32_t place);

/* slot.c */
void slot_link(struct net_slot **list, struct net_slot *s);
void slot_unlink(struct net_slot *s);
void slot_quiet(struct net_slot *s); /* nothing of the slot is on the loop after this */
void slot_free(struct net_slot *s);  /* the last of it, on the loop */
/* prepare.c: unmakes it on a thread. The slot is in no list and has nothing on the loop. */
void slot_undo(struct net_slot *s);

/* resolver.c: the resolver's ear in each slot. */
int names_listen(struct net_slot *s);
void names_stop(struct net_slot *s);

/* The name an address was resolved from, or NULL. */
const char *seen_name(const struct net_slot *s, uint32_t addr);
/* One of its names for which the policy opens that TCP port now, or NULL. */
const char *seen_allowed(const struct net_slot *s, uint32_t addr, uint16_t port);
/* One of its names that the policy has, with whatever port, or NULL. */
const char *seen_listed(const struct net_slot *s, uint32_t addr);
/* Opens the address for the ports and remembers it. The caller's policy is a list. */
int seen_add(struct net_slot *s, const char *name, const uint32_t *addrs, size_t n, uint32_t ttl_s);
/* Puts what is still allowed into the batch; the sets were flushed in it. */
void seen_refill(struct net_slot *s, struct nl_batch *b);
void seen_clear(struct net_slot *s);

/* relay.c: TCP connections by name; what they say is looked at. */
int relay_listen(struct net_slot *s);
void relay_stop(struct net_slot *s);
void relay_recheck(struct net_slot *s); /* ends what the policy does not allow any more */

/* audit.c: what the kernel tells. */
int audit_listen(struct net_slot *s);
void audit_stop(struct net_slot *s);
/* Fills in time, slot and owner; limited per slot. */
void audit_tell(struct net_slot *s, struct net_event *ev);
/* The machine is gone; any thread: takes note of the connections it still had. */
void audit_last(struct net_slot *s);
void audit_tell_last(struct net_slot *s);
/* Limited or not at all. */
void audit_refused_name(struct net_slot *s, const char *name, const char *why, uint32_t addr);
