/*
 * net/make.h - namespaces: made, taken up again, unmade; and what we change on the host
 * These calls block (a child process, the kernel's own locks); all but make_adopt() and the
 * host_*() belong on a thread that does nothing else. A thread comes back in the namespace it was
 * in, or not at all.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "net/addr.h"
#include "net/net.h"

#define TAP_NAME    "tap0"
#define WAN_NAME    "wan0"
#define HOST_PREFIX "pn" /* then the host's address in hex: no two can have the same name */

enum {
	MAKE_WHY = 200,
	MAKE_OWN_MAX = 64,
	SNI_PORT = 8443, /* where the rules send connections whose server name is looked at */
	LOG_GROUP = 1,
	RELAY_MARK = 0x70616e64, /* on packets of our own that may leave a slot */
	GUEST_ADDR = (int)0xac1fff02u,
	GATEWAY_ADDR = (int)0xac1fff01u,
};

/* Networks that the operator closes. */
struct make_closed {
	struct addr_net net[NET_CLOSED_MAX];
	size_t n;
};

/* Addresses of the host that are not closed anyway. For the thread that makes slots. */
struct make_own {
	uint64_t at_ms; /* when we looked; 0: never */
	uint32_t addr[MAKE_OWN_MAX];
	size_t n;
};

/* What the place in the pool and the configuration say. */
struct make_plan {
	int host_ns;
	const char *nft;
	uint32_t host, inner; /* addresses of the veth */
	unsigned conns_max;
	uint64_t up_kbit, down_kbit;
	const struct make_closed *closed;
	struct make_own *own; /* kept up to date by make_slot() */
};

/* What a slot is made of; all fds, so it ends with the process. */
struct make_kit {
	int ns, tap;
	int dns_udp, dns_tcp, sni;   /* listening inside */
	struct mnl_socket *nf, *log; /* requests; what happens */
};

#define MAKE_KIT_NONE                     \
	((struct make_kit){.ns = -1,      \
	                   .tap = -1,     \
	                   .dns_udp = -1, \
	                   .dns_tcp = -1, \
	                   .sni = -1,     \
	                   .nf = NULL,    \
	                   .log = NULL})

/* why gets a sentence on failure. -EEXIST: another program on this host has that place. */
int make_slot(const struct make_plan *p, struct make_kit *ret, char why[MAKE_WHY]);

/* From the tap of a living slot; the addresses tell its place. Takes tap on success. */
int make_adopt(int host_ns, int tap, struct make_kit *ret, uint32_t *ret_inner, char why[MAKE_WHY]);

/* A living slot gets the rules of this program, with empty sets; it waits for nft. */
int make_rules(const struct make_plan *p, int ns, char why[MAKE_WHY]);

/* Closes all; when it returns the host has no link and no connections of that slot any more. */
void make_undo(const struct make_plan *p, struct make_kit *k);
void make_close(struct make_kit *k); /* only closes */

/* Other limits for a slot that is there; 0: none. It waits for a lock that the kernel has one
 * of. */
int make_shape(int host_ns, int ns, uint64_t up_kbit, uint64_t down_kbit);

/* A socket in another namespace, from any thread. */
int make_socket(int host_ns, int ns, int type, int *ret);

/* nft -f - in the namespace of the calling thread. */
int make_nft(const char *nft, const char *text, char why[MAKE_WHY]);

/* Host: our tables, and forwarding of wan. */
struct wan {
	const char *nft;
	uint32_t base;
	unsigned prefix;
	const struct make_closed *closed;
	char wan[16];      /* empty: none */
	bool forward_ours; /* forwarding of wan was off before us */
};

int wan_open(struct wan *h, char why[MAKE_WHY]);
void wan_close(const struct wan *h); /* when no slot of any pandad is left on this host */

/* Texts for nft; the caller frees. NULL: no memory. */
char *rules_slot(const struct make_plan *p);
char *rules_again(const struct make_plan *p); /* of a slot that has some */
/* A number for them, in the set "rules" of the slot: other rules, or other closed networks, have
 * another. */
uint32_t rules_mark(const struct make_plan *p);
char *rules_wan(const struct wan *h);
extern const char rules_wan_gone[];
