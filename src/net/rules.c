#include <arpa/inet.h>
#include <stdarg.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/addr.h"
#include "net/make.h"

/*
 * The rules of a slot never change under one program: a policy is what is in five sets.
 *   nets, nets_port    from the policy: addresses and networks; all of IPv4 when it is open
 *   names              put there by the resolver, for as long as the answer is good: ports 80 and
 *                      443 of these addresses lead to the relay, which looks at names
 *   names_port         the same for a TCP port of its own
 *   names_udp          UDP that the policy names
 * A packet that belongs to a connection costs one lookup of its state; all else is for the first
 * one.
 */
static const char SLOT[] =
    "table netdev panda {\n"
    "	counter odd { }\n"
    "	chain guest {\n"
    "		type filter hook ingress device \"" TAP_NAME "\" priority -500; policy drop;\n"
    "		ether saddr 06:00:ac:1f:ff:02 ether daddr 06:00:ac:1f:ff:01 ether type ip"
    " ip saddr 172.31.255.2 ip hdrlength 5 ip frag-off & 0x3fff == 0 ip protocol { tcp, udp }"
    " accept\n"
    "		ether saddr 06:00:ac:1f:ff:02 ether daddr 06:00:ac:1f:ff:01 ether type ip"
    " ip saddr 172.31.255.2 ip hdrlength 5 ip frag-off & 0x3fff == 0 icmp type echo-request"
    " accept\n"
    /* A guest that asks for the gateway gets an answer; we never ask, so we believe nothing. */
    "		ether saddr 06:00:ac:1f:ff:02 ether type arp arp operation request"
    " arp saddr ether 06:00:ac:1f:ff:02 arp saddr ip 172.31.255.2 arp daddr ip 172.31.255.1"
    " limit rate 50/second burst 50 packets accept\n"
    /* What every kernel says when a link comes up is dropped, but no news. */
    "		ether type ip6 counter name \"odd\" drop\n"
    "		ether type arp counter name \"odd\" drop\n"
    "		limit rate 5/second burst 20 packets log group 1 prefix \"odd\" snaplen 64\n"
    "		counter name \"odd\" drop\n"
    "	}\n"
    "}\n"
    "table ip panda {\n"
    "	counter up { }\n"
    "	counter down { }\n"
    "	counter refused { }\n"
    "	set closed { type ipv4_addr; flags interval; auto-merge; elements = { %s } }\n"
    "	set rules { type mark; elements = { %u } }\n"
    "	set nets { type ipv4_addr; flags interval; }\n"
    "	set nets_port { type ipv4_addr . inet_service; }\n"
    "	set names { type ipv4_addr; size 8192; flags timeout; }\n"
    "	set names_port { type ipv4_addr . inet_service; size 8192; flags timeout; }\n"
    "	set names_udp { type ipv4_addr . inet_service; size 8192; flags timeout; }\n"
    /* The number of the policy: connections carry that of the one they were last judged by. */
    "	set gen { type mark; elements = { 1 } }\n"
    "	map now { type inet_proto : mark; elements = { tcp : 1, udp : 1, icmp : 1 } }\n"
    /* Questions to us leave no trace in the table of connections: a guest that asks from another
     * port each time would fill it. */
    "	chain ask {\n"
    "		type filter hook prerouting priority raw; policy accept;\n"
    "		iifname \"" TAP_NAME "\" ip daddr 172.31.255.1 udp dport 53 notrack\n"
    "	}\n"
    "	chain answer {\n"
    "		type filter hook output priority raw; policy accept;\n"
    "		oifname \"" TAP_NAME "\" ip saddr 172.31.255.1 udp sport 53 notrack\n"
    "	}\n"
    "	chain pre {\n"
    "		type nat hook prerouting priority dstnat; policy accept;\n"
    "		iifname != \"" TAP_NAME "\" accept\n"
    "		tcp dport { 53, 853 } accept\n"
    "		ip daddr @nets accept\n"
    "		ip daddr . tcp dport @nets_port accept\n"
    "		tcp dport { 80, 443 } ip daddr @names redirect to :8443\n"
    "		meta l4proto tcp ip daddr . tcp dport @names_port redirect to :8443\n"
    "	}\n"
    "	chain post {\n"
    "		type nat hook postrouting priority srcnat; policy accept;\n"
    "		oifname \"" WAN_NAME "\" ip saddr 172.31.255.2 snat to %s\n"
    "	}\n"
    "	chain forward {\n"
    "		type filter hook forward priority filter; policy drop;\n"
    /* Something may end now: see audit.c. */
    "		tcp flags & (fin | rst) != 0x0 limit rate 1/second burst 5 packets"
    " log group 1 prefix \"end\" snaplen 64\n"
    "		iifname \"" WAN_NAME "\" oifname \"" TAP_NAME "\" goto in\n"
    "		iifname \"" TAP_NAME "\" oifname \"" WAN_NAME "\" goto out\n"
    "	}\n"
    "	chain in {\n"
    "		ct state established,related ct mark @gen counter name \"down\" accept\n"
    "		ct state != { established, related } drop\n"
    /* From before a change of policy: judged once, by where it was opened to. */
    "		ct original ip daddr @closed drop\n"
    "		ct original ip daddr @nets goto in_again\n"
    "		meta l4proto { tcp, udp } ct original ip daddr . ct original proto-dst @nets_port"
    " goto in_again\n"
    "		meta l4proto udp ct original ip daddr . ct original proto-dst @names_udp"
    " goto in_again\n"
    "	}\n"
    "	chain in_again {\n"
    "		ct mark set meta l4proto map @now counter name \"down\" accept\n"
    "	}\n"
    /*
     * For a limit of the slot's own: nl_limit_conns() puts one rule into each. A new rule begins to
     * count at none, so the host's own limit stands beside them and never changes.
     */
    "	chain count_out {\n"
    "	}\n"
    "	chain count_in {\n"
    "	}\n"
    "	chain out {\n"
    "		ct state established ct mark @gen counter name \"up\" accept\n"
    /* A connection from an earlier life, or one that was cut: it ends here and now. */
    "		ct state invalid meta l4proto tcp counter name \"refused\" reject with tcp reset\n"
    "		ct state != { new, established } counter name \"refused\" drop\n"
    "		ip daddr @closed goto closed_range\n"
    /* Names come from our resolver alone. */
    "		meta l4proto { tcp, udp } th dport { 53, 853 } goto refuse\n"
    "		ct state new ct count over %u goto too_many\n"
    "		ct state new jump count_out\n"
    "		ip daddr @nets goto allow\n"
    "		meta l4proto { tcp, udp } ip daddr . th dport @nets_port goto allow\n"
    /*
     * What is TCP by name here began under another policy, and the relay has not looked at it: new
     * connections go to the relay.
     */
    "		ip daddr . udp dport @names_udp goto allow\n"
    "		goto refuse\n"
    "	}\n"
    "	chain allow {\n"
    "		ct mark set meta l4proto map @now\n"
    "		ct state new limit rate 50/second burst 100 packets log group 1 prefix \"allow\" "
    "snaplen 64\n"
    "		counter name \"up\" accept\n"
    "	}\n"
    "	chain refuse {\n"
    "		limit rate 20/second burst 100 packets log group 1 prefix \"policy\" snaplen 64\n"
    "		goto say_no\n"
    "	}\n"
    "	chain closed_range {\n"
    "		limit rate 20/second burst 100 packets log group 1 prefix \"closed_range\" snaplen "
    "64\n"
    "		goto say_no\n"
    "	}\n"
    "	chain too_many {\n"
    "		limit rate 10/second burst 20 packets log group 1 prefix \"rate\" snaplen 64\n"
    "		goto say_no\n"
    "	}\n"
    "	chain say_no {\n"
    "		counter name \"refused\"\n"
    "		meta l4proto tcp reject with tcp reset\n"
    "		limit rate 50/second burst 50 packets reject with icmp type admin-prohibited\n"
    "		drop\n"
    "	}\n"
    "	chain input {\n"
    "		type filter hook input priority filter; policy drop;\n"
    "		iifname \"" WAN_NAME "\" ct state established counter name \"down\" accept\n"
    "		iifname \"" WAN_NAME "\" ct state related accept\n"
    "		iifname != \"" TAP_NAME "\" drop\n"
    "		ip daddr != 172.31.255.1 goto closed_range\n"
    "		udp dport 53 limit rate 300/second burst 1000 packets accept\n"
    "		udp dport 53 drop\n"
    "		ct state established accept\n"
    "		ct state invalid meta l4proto tcp reject with tcp reset\n"
    "		ct state != new drop\n"
    "		icmp type echo-request limit rate 20/second burst 20 packets accept\n"
    "		icmp type echo-request drop\n"
    "		ct count over %u goto too_many\n"
    "		jump count_in\n"
    "		tcp dport 53 accept\n"
    "		tcp dport 8443 ct status dnat accept\n"
    "		goto closed_range\n"
    "	}\n"
    "	chain output {\n"
    "		type filter hook output priority filter; policy drop;\n"
    "		oifname \"" TAP_NAME "\" ip daddr 172.31.255.2 accept\n"
    "		oifname != \"" WAN_NAME "\" drop\n"
    "		ip daddr @closed drop\n"
    "		ct state established counter name \"up\" accept\n"
    "		meta mark 0x70616e64 counter name \"up\" accept\n"
    "	}\n"
    "}\n";

/*
 * Of the host: what comes from a slot may go out to public addresses, nowhere else, and not to the
 * host. The second fence: the first is in the slot's own namespace.
 */
static const char HOST[] =
    "table inet panda_net\n"
    "delete table inet panda_net\n"
    "table inet panda_net {\n"
    "	set closed { type ipv4_addr; flags interval; auto-merge; elements = { %s } }\n"
    "	chain forward {\n"
    "		type filter hook forward priority -10; policy accept;\n"
    /* The way out may carry less than the 1500 a guest believes in. */
    "		iifname \"" HOST_PREFIX "*\" tcp flags syn tcp option maxseg size set rt mtu\n"
    "		oifname \"" HOST_PREFIX "*\" tcp flags syn tcp option maxseg size set rt mtu\n"
    "		iifname \"" HOST_PREFIX "*\" goto from_slot\n"
    "		oifname \"" HOST_PREFIX "*\" ct state established,related accept\n"
    "		oifname \"" HOST_PREFIX "*\" drop\n"
    "	}\n"
    "	chain from_slot {\n"
    "		meta nfproto != ipv4 drop\n"
    "		oifname \"" HOST_PREFIX "*\" drop\n"
    "		ip daddr @closed drop\n"
    "		accept\n"
    "	}\n"
    "	chain input {\n"
    "		type filter hook input priority -10; policy accept;\n"
    "		iifname \"" HOST_PREFIX "*\" drop\n"
    "	}\n"
    "}\n"
    /* One table for all pools on this host: the last one to go takes it away. */
    "table ip panda_nat {\n"
    "	set ranges { type ipv4_addr; flags interval; auto-merge; }\n"
    "	chain post { type nat hook postrouting priority srcnat; policy accept; }\n"
    "}\n"
    "flush chain ip panda_nat post\n"
    "add rule ip panda_nat post ip saddr @ranges oifname != \"" HOST_PREFIX "*\" masquerade\n"
    "add element ip panda_nat ranges { %s/%u }\n";

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static char *format(const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : text;
}

static const struct make_closed NONE;

/* And the addresses the host has itself: its own fence would drop what goes there, but here it is
 * refused and told. */
static char *closed_list(const struct make_closed *closed, const struct make_own *own)
{
	char *list = strdup("");

	for (size_t i = 0; i < addr_n_closed_ranges && list; i++) {
		autofree char *old = list;

		list = format("%s%s%s", old, i ? ", " : "", addr_closed_ranges[i].net);
	}
	for (size_t i = 0; i < closed->n && list; i++) {
		autofree char *old = list;
		char text[ADDR_TEXT];

		addr_text(closed->net[i].first, text);
		list = format("%s, %s/%u", old, text, closed->net[i].prefix);
	}
	for (size_t i = 0; own && i < own->n && list; i++) {
		autofree char *old = list;
		char text[ADDR_TEXT];

		addr_text(own->addr[i], text);
		list = format("%s, %s", old, text);
	}
	return list;
}

static uint32_t mix(uint32_t h, const void *bytes, size_t n)
{
	for (const uint8_t *p = bytes; n--; p++)
		h = (h ^ *p) * 16777619u; /* FNV-1a */
	return h;
}

uint32_t rules_mark(const struct make_plan *p)
{
	const struct make_closed *c = p->closed ? p->closed : &NONE;
	uint32_t h = mix(2166136261u, SLOT, sizeof(SLOT));

	for (size_t i = 0; i < addr_n_closed_ranges; i++)
		h = mix(h, addr_closed_ranges[i].net, strlen(addr_closed_ranges[i].net) + 1);
	for (size_t i = 0; i < c->n; i++) {
		h = mix(h, &c->net[i].first, sizeof(c->net[i].first));
		h = mix(h, &c->net[i].last, sizeof(c->net[i].last));
	}
	return h | 1;
}

char *rules_slot(const struct make_plan *p)
{
	autofree char *closed = closed_list(p->closed ? p->closed : &NONE, p->own);
	char inner[ADDR_TEXT];

	if (!closed)
		return NULL;
	addr_text(p->inner, inner);
	return format(SLOT, closed, rules_mark(p), inner, p->conns_max, p->conns_max);
}

char *rules_again(const struct make_plan *p)
{
	autofree char *rules = rules_slot(p);

	return rules ? format("table netdev panda\ndelete table netdev panda\n"
	                      "table ip panda\ndelete table ip panda\n%s",
	                      rules)
	             : NULL;
}

char *rules_wan(const struct wan *h)
{
	autofree char *closed = closed_list(h->closed ? h->closed : &NONE, NULL);
	char base[ADDR_TEXT];

	if (!closed)
		return NULL;
	addr_text(h->base, base);
	return format(HOST, closed, base, h->prefix);
}

/* Named first, so that deleting never fails. */
const char rules_wan_gone[] = "table inet panda_net\ndelete table inet panda_net\n"
			      "table ip panda_nat\ndelete table ip panda_nat\n"
			      "table inet panda_fwd\ndelete table inet panda_fwd\n";
