#include "net/make.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <libmnl/libmnl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"
#include "net/addr.h"
#include "net/net.h"
#include "net/nl.h"

enum {
	DNS_PORT = 53,
	TCP_BACKLOG = 16,
	SNI_BACKLOG = 64,
	DNS_RCVBUF = 64 * 1024,
	OWN_MS = 10 * 1000, /* with thousands of slots on the host a look costs milliseconds */
};

static const uint8_t GUEST_MAC[6] = {0x06, 0x00, 0xac, 0x1f, 0xff, 0x02};
/* The same in all slots: a guest that was restored remembers it. */
static const uint8_t GATEWAY_MAC[6] = {0x06, 0x00, 0xac, 0x1f, 0xff, 0x01};

static int fail(char why[MAKE_WHY], int r, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(char why[MAKE_WHY], int r, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	vsnprintf(why, MAKE_WHY, fmt, ap);
	va_end(ap);
	n = strlen(why);
	snprintf(why + n, MAKE_WHY - n, ": %s", strerror(-r));
	return r;
}

/* The process ends: a thread in the wrong namespace would do harm with all that it does next. */
static void come_back(int host_ns)
{
	if (setns(host_ns, CLONE_NEWNET) < 0)
		abort();
}

void make_close(struct make_kit *k)
{
	int *fds[] = {&k->dns_udp, &k->dns_tcp, &k->sni, &k->tap, &k->ns};

	nl_close(k->nf);
	nl_close(k->log);
	for (size_t i = 0; i < ARRAY_LEN(fds); i++)
		if (*fds[i] >= 0)
			close(*fds[i]);
	*k = MAKE_KIT_NONE;
}

static int open_tap(int *ret)
{
	autoclose int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	struct ifreq ifr = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int size = NET_VNET_HDR_LEN;

	_Static_assert(sizeof(struct virtio_net_hdr) == NET_VNET_HDR_LEN, "as net.h says");
	if (fd < 0)
		return -errno;
	memcpy(ifr.ifr_name, TAP_NAME, sizeof(TAP_NAME));
	if (ioctl(fd, TUNSETIFF, &ifr) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &size) < 0 ||
	    ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
		return -errno;
	*ret = take_fd(&fd);
	return 0;
}

static int listener(int type, uint16_t port, int backlog, int *ret)
{
	autoclose int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_in sin = {.sin_family = AF_INET,
	                          .sin_port = htons(port),
	                          .sin_addr.s_addr = htonl((uint32_t)GATEWAY_ADDR)};
	int on = 1, size = DNS_RCVBUF;

	if (fd < 0)
		return -errno;
	/* A process before us may have left connections in TIME_WAIT. */
	if (type == SOCK_STREAM && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
		return -errno;
	if (type == SOCK_DGRAM && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&sin, sizeof(sin)) < 0)
		return -errno;
	if (type == SOCK_STREAM && listen(fd, backlog) < 0)
		return -errno;
	*ret = take_fd(&fd);
	return 0;
}

/* Inside the slot's namespace: everything pandad listens on there. */
static int open_ears(struct make_kit *k, char why[MAKE_WHY])
{
	int r;

	r = listener(SOCK_DGRAM, DNS_PORT, 0, &k->dns_udp);
	if (r == 0)
		r = listener(SOCK_STREAM, DNS_PORT, TCP_BACKLOG, &k->dns_tcp);
	if (r == 0)
		r = listener(SOCK_STREAM, SNI_PORT, SNI_BACKLOG, &k->sni);
	if (r < 0)
		return fail(why, r, "cannot listen at the gateway's address");
	r = nl_open(NETLINK_NETFILTER, &k->nf);
	if (r == 0)
		r = nl_open(NETLINK_NETFILTER, &k->log);
	if (r == 0)
		r = nl_listen(k->log, LOG_GROUP);
	if (r < 0)
		return fail(why, r, "cannot reach netfilter (nfnetlink_log, nf_conntrack_netlink)");
	return 0;
}

static int set_sysctls(char why[MAKE_WHY])
{
	static const struct {
		const char *path, *value;
		bool must;
	} list[] = {
	    {"/proc/sys/net/ipv6/conf/all/disable_ipv6", "1",
	     false}, /* not there: no IPv6 at all */
	    {"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", false},
	    {"/proc/sys/net/ipv4/conf/all/send_redirects", "0", true},
	    {"/proc/sys/net/ipv4/conf/default/send_redirects", "0", true},
	    {"/proc/sys/net/ipv4/conf/all/rp_filter", "1", true},
	    {"/proc/sys/net/ipv4/ip_forward", "1", true},
	    /* What does not begin with a SYN is no new connection: it is answered with a reset. */
	    {"/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0", true},
	    {"/proc/sys/net/netfilter/nf_conntrack_acct", "1", true},
	    {"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "86400", false},
	    /* Ended ones are told, and their places free, after seconds rather than minutes. */
	    {"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", "5", false},
	    {"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", "5", false},
	    /* What a connection through our hands may hold in memory when one side does not
	     * read. */
	    {"/proc/sys/net/ipv4/tcp_rmem", "4096 65536 524288", true},
	    {"/proc/sys/net/ipv4/tcp_wmem", "4096 65536 524288", true},
	    /* Refusals are limited by our rules; the kernel's own limit would make guests wait. */
	    {"/proc/sys/net/ipv4/icmp_ratelimit", "0", false},
	};

	for (size_t i = 0; i < ARRAY_LEN(list); i++) {
		int r = io_write_file(AT_FDCWD, list[i].path, list[i].value);

		if (r < 0 && list[i].must)
			return fail(why, r, "cannot set %s", list[i].path);
	}
	return 0;
}

static void host_name(const struct make_plan *p, char ret[IFNAMSIZ])
{
	snprintf(ret, IFNAMSIZ, HOST_PREFIX "%08x", p->host);
}

/* Links and addresses, with rt in the slot's namespace and host_rt in the host's. */
static int plumb(const struct make_plan *p, struct mnl_socket *rt, struct mnl_socket *host_rt,
                 char why[MAKE_WHY])
{
	struct nl_link tap_how = {.mac = GATEWAY_MAC, .mtu = NET_GUEST_MTU};
	struct nl_link wan_how = {0}, host_how = {.forward = true};
	char peer[IFNAMSIZ];
	uint32_t tap, wan, host;
	int r;

	host_name(p, peer);
	r = nl_veth(rt, WAN_NAME, peer, p->host_ns);
	if (r < 0)
		return fail(why, r, "cannot make the veth pair with %s on the host", peer);
	if ((r = nl_link_index(rt, TAP_NAME, &tap)) < 0 ||
	    (r = nl_link_index(rt, WAN_NAME, &wan)) < 0 ||
	    (r = nl_link_index(host_rt, peer, &host)) < 0)
		return fail(why, r, "a link that was just made is gone");
	if ((r = nl_addr(rt, tap, (uint32_t)GATEWAY_ADDR, NET_GUEST_PREFIX)) < 0 ||
	    (r = nl_link_up(rt, tap, &tap_how)) < 0 ||
	    (r = nl_neighbour(rt, tap, (uint32_t)GUEST_ADDR, GUEST_MAC)) < 0)
		return fail(why, r, "cannot set up the tap");
	if ((r = nl_addr(rt, wan, p->inner, 30)) < 0 || (r = nl_link_up(rt, wan, &wan_how)) < 0 ||
	    (r = nl_addr(host_rt, host, p->host, 30)) < 0 ||
	    (r = nl_link_up(host_rt, host, &host_how)) < 0 ||
	    (r = nl_route_default(rt, p->host)) < 0)
		return fail(why, r, "cannot set up the veth pair");
	if ((p->up_kbit && (r = nl_shape(rt, wan, p->up_kbit)) < 0) ||
	    (p->down_kbit && (r = nl_shape(rt, tap, p->down_kbit)) < 0))
		return fail(why, r, "cannot limit the bandwidth (kernel option NET_SCH_TBF)");
	return 0;
}

static int build(const struct make_plan *p, struct mnl_socket *host_rt, struct make_kit *k,
                 char why[MAKE_WHY])
{
	struct mnl_socket *rt = NULL;
	autofree char *rules = NULL;
	int r;

	k->ns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (k->ns < 0)
		return fail(why, -errno, "cannot open the new namespace");
	r = set_sysctls(why);
	if (r < 0)
		return r;
	r = open_tap(&k->tap);
	if (r < 0)
		return fail(why, r, "cannot make a tap (/dev/net/tun)");
	/* The rules first: from its first moment nothing passes that they do not let pass. */
	rules = rules_slot(p);
	if (!rules)
		return fail(why, -ENOMEM, "rules");
	r = make_nft(p->nft, rules, why);
	if (r < 0)
		return r;
	r = nl_open(NETLINK_ROUTE, &rt);
	if (r < 0)
		return fail(why, r, "netlink");
	r = plumb(p, rt, host_rt, why);
	nl_close(rt);
	return r < 0 ? r : open_ears(k, why);
}

/* In the host's namespace. A failure leaves what was known. */
static void look_at_own(struct make_own *own)
{
	uint64_t now = mono_ms();
	struct ifaddrs *list;

	if ((own->at_ms && now - own->at_ms < OWN_MS) || getifaddrs(&list) < 0)
		return;
	own->at_ms = now;
	own->n = 0;
	for (const struct ifaddrs *i = list; i && own->n < MAKE_OWN_MAX; i = i->ifa_next) {
		struct sockaddr_in sin;
		bool twice = false;
		uint32_t addr;

		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET)
			continue;
		memcpy(&sin, i->ifa_addr, sizeof(sin));
		addr = ntohl(sin.sin_addr.s_addr);
		for (size_t k = 0; k < own->n; k++)
			twice |= own->addr[k] == addr;
		if (!twice && !addr_closed(addr))
			own->addr[own->n++] = addr;
	}
	freeifaddrs(list);
}

int make_slot(const struct make_plan *p, struct make_kit *ret, char why[MAKE_WHY])
{
	struct make_kit k = MAKE_KIT_NONE;
	struct mnl_socket *host_rt;
	int r;

	look_at_own(p->own);
	r = nl_open(NETLINK_ROUTE, &host_rt);
	if (r < 0)
		return fail(why, r, "netlink");
	if (unshare(CLONE_NEWNET) < 0) {
		r = fail(why, -errno, "cannot make a network namespace (CAP_SYS_ADMIN)");
		nl_close(host_rt);
		return r;
	}
	r = build(p, host_rt, &k, why);
	come_back(p->host_ns);
	nl_close(host_rt);
	if (r < 0)
		make_close(&k);
	else
		*ret = k;
	return r;
}

int make_adopt(int host_ns, int tap, struct make_kit *ret, uint32_t *ret_inner, char why[MAKE_WHY])
{
	struct make_kit k = MAKE_KIT_NONE;
	struct mnl_socket *rt = NULL;
	uint32_t wan;
	int r;

	k.ns = ioctl(tap, TUNGETDEVNETNS);
	if (k.ns < 0)
		return fail(why, -errno, "not a tap, or its device is gone");
	if (fcntl(k.ns, F_SETFD, FD_CLOEXEC) < 0 || setns(k.ns, CLONE_NEWNET) < 0) {
		r = fail(why, -errno, "cannot enter its namespace");
		make_close(&k);
		return r;
	}
	r = nl_open(NETLINK_ROUTE, &rt);
	if (r == 0)
		r = nl_link_index(rt, WAN_NAME, &wan);
	if (r == 0)
		r = nl_addr_get(rt, wan, ret_inner);
	nl_close(rt);
	if (r < 0)
		fail(why, r, "its namespace has no address");
	else
		r = open_ears(&k, why);
	come_back(host_ns);
	if (r < 0) {
		make_close(&k);
		return r;
	}
	k.tap = tap;
	*ret = k;
	return 0;
}

int make_rules(const struct make_plan *p, int ns, char why[MAKE_WHY])
{
	struct make_plan plan = *p;
	struct make_own own = {0};
	autofree char *rules = NULL;
	int r;

	look_at_own(&own);
	plan.own = &own;
	rules = rules_again(&plan);
	if (!rules)
		return fail(why, -ENOMEM, "rules");
	if (setns(ns, CLONE_NEWNET) < 0)
		return fail(why, -errno, "cannot enter the namespace");
	r = make_nft(p->nft, rules, why);
	come_back(p->host_ns);
	return r;
}

static bool flow_of(void *arg, const struct nl_flow *f)
{
	return f->src == ((const struct make_plan *)arg)->inner;
}

void make_undo(const struct make_plan *p, struct make_kit *k)
{
	struct mnl_socket *s;
	char peer[IFNAMSIZ];
	uint32_t index;

	make_close(k);
	/* The kernel ends a namespace when it finds the time; the sandbox that gets this place next
	 * shall not meet the link of the last one, nor inherit its connections. */
	host_name(p, peer);
	if (nl_open(NETLINK_ROUTE, &s) == 0) {
		if (nl_link_index(s, peer, &index) == 0)
			nl_link_del(s, index);
		nl_close(s);
	}
	if (nl_open(NETLINK_NETFILTER, &s) == 0) {
		nl_flow_cut(s, flow_of, (void *)p);
		nl_close(s);
	}
}

int make_shape(int host_ns, int ns, uint64_t up_kbit, uint64_t down_kbit)
{
	struct mnl_socket *rt = NULL;
	uint32_t tap, wan;
	int r;

	if (setns(ns, CLONE_NEWNET) < 0)
		return -errno;
	r = nl_open(NETLINK_ROUTE, &rt);
	if (r == 0 && (r = nl_link_index(rt, WAN_NAME, &wan)) == 0 &&
	    (r = nl_link_index(rt, TAP_NAME, &tap)) == 0 && (r = nl_shape(rt, wan, up_kbit)) == 0)
		r = nl_shape(rt, tap, down_kbit);
	nl_close(rt);
	come_back(host_ns);
	return r;
}

int make_socket(int host_ns, int ns, int type, int *ret)
{
	int fd, r = 0;

	if (setns(ns, CLONE_NEWNET) < 0)
		return -errno;
	fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		r = -errno;
	come_back(host_ns);
	if (r == 0)
		*ret = fd;
	return r;
}
