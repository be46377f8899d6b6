/*
 * net/nl.h - the netlink messages we need, over libmnl
 * A socket speaks to the namespace it was opened in, wherever its thread is later. The kernel
 * answers these requests before send returns, so nothing here waits. Negative errno.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mnl_socket;

/* bus: NETLINK_ROUTE or NETLINK_NETFILTER. Close-on-exec. */
int nl_open(int bus, struct mnl_socket **ret);
void nl_close(struct mnl_socket *s); /* accepts NULL */

/* Links. Addresses in host byte order. */
int nl_veth(struct mnl_socket *s, const char *name, const char *peer, int peer_ns);
int nl_link_del(struct mnl_socket *s, uint32_t index);
int nl_link_index(struct mnl_socket *s, const char *name, uint32_t *ret);
struct nl_link {
	const uint8_t *mac; /* NULL: as it is */
	uint32_t mtu;       /* 0: as it is */
	bool forward;       /* IPv4 forwarding of what comes in here */
};
int nl_link_up(struct mnl_socket *s, uint32_t index, const struct nl_link *how);
int nl_addr(struct mnl_socket *s, uint32_t index, uint32_t addr, unsigned prefix);
int nl_addr_get(struct mnl_socket *s, uint32_t index, uint32_t *ret); /* its first; -ENOENT */
int nl_route_default(struct mnl_socket *s, uint32_t via);
int nl_neighbour(struct mnl_socket *s, uint32_t index, uint32_t addr, const uint8_t mac[6]);
/* What leaves there; 0: as much as it likes. */
int nl_shape(struct mnl_socket *s, uint32_t index, uint64_t kbit);
int nl_wan(struct mnl_socket *s, uint32_t *ret_index); /* of the default route; -ENOENT */

/* How many links have a name that begins so. */
int nl_count_links(struct mnl_socket *s, const char *prefix, unsigned *ret);

/*
 * Changes of sets in table "ip panda", collected and sent as one transaction: all or nothing.
 * Adding an element with a timeout that is there already moves its end (del_first; it must be there
 * then).
 */
struct nl_batch;

int nl_batch_new(struct nl_batch **ret);
void nl_batch_free(struct nl_batch *b);
void nl_flush_set(struct nl_batch *b, const char *set);
void nl_add_net(struct nl_batch *b, const char *set, uint32_t first, uint32_t last);
void nl_add_addr(struct nl_batch *b, const char *set, uint32_t addr, uint64_t timeout_ms);
void nl_add_addr_port(struct nl_batch *b, const char *set, uint32_t addr, uint16_t port,
                      uint64_t timeout_ms);
void nl_del_addr(struct nl_batch *b, const char *set, uint32_t addr);
void nl_del_addr_port(struct nl_batch *b, const char *set, uint32_t addr, uint16_t port);
void nl_add_mark(struct nl_batch *b, const char *set, uint32_t mark);
void nl_add_proto_mark(struct nl_batch *b, const char *map, uint8_t proto, uint32_t mark);
/* The one rule of a chain: the connections counted there go to too_many beyond max. */
void nl_limit_conns(struct nl_batch *b, const char *chain, uint32_t max);
size_t nl_batch_room(const struct nl_batch *b); /* bytes; an element takes up to 40 */
/* Empties the batch, whatever happens. -E2BIG: it grew too large and was not sent. */
int nl_commit(struct nl_batch *b, struct mnl_socket *nf);

/* The one element of a set of marks. -ENOENT. */
int nl_get_mark(struct mnl_socket *nf, const char *set, uint32_t *ret);

/* Counter objects of a table. -ENOENT. */
int nl_counter(struct mnl_socket *nf, uint8_t family, const char *table, const char *name,
               uint64_t *ret_packets, uint64_t *ret_bytes);

/* Connection tracking of the namespace of nf. */
struct nl_flow {
	uint8_t proto;
	uint32_t src, dst;             /* of the first packet */
	uint16_t sport, dport;         /* of an ICMP echo: its id, and 0 */
	uint32_t reply_src;            /* who answers: differs from dst when redirected */
	uint64_t bytes_up, bytes_down; /* when counted */
};

/* A message of the conntrack subsystem as a flow. -EBADMSG */
struct nlmsghdr;
int nl_parse_flow(const struct nlmsghdr *h, struct nl_flow *ret);

int nl_flow_each(struct mnl_socket *nf, void (*fn)(void *arg, const struct nl_flow *f), void *arg);

/* Deletes those for which cut() is true; how many, or a negative errno. */
int nl_flow_cut(struct mnl_socket *nf, bool (*cut)(void *arg, const struct nl_flow *f), void *arg);

/*
 * Lets the kernel notice connections whose time is over, of all namespaces; otherwise that takes up
 * to a minute. Walks its whole table, some 10 ms.
 */
int nl_flow_sweep(struct mnl_socket *nf);

/* Packets of nft rules with "log group", and the ends of connections, arrive on this socket from
 * now on. */
int nl_listen(struct mnl_socket *nf, uint16_t group);
