#include "net/nl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/neighbour.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <string.h>

#include "base/macro.h"
#include "net/nl_internal.h"

int nl_open(int bus, struct mnl_socket **ret)
{
	struct mnl_socket *s = mnl_socket_open2(bus, SOCK_CLOEXEC | SOCK_NONBLOCK);
	int r;

	if (!s)
		return -errno;
	if (mnl_socket_bind(s, 0, MNL_SOCKET_AUTOPID) < 0) {
		r = -errno;
		mnl_socket_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void nl_close(struct mnl_socket *s)
{
	if (s)
		mnl_socket_close(s);
}

int nl_talk(struct mnl_socket *s, struct nlmsghdr *h, mnl_cb_t cb, void *arg)
{
	static _Atomic uint32_t seq;
	char buf[NL_BUF] __attribute__((aligned(8)));
	uint32_t want = ++seq;
	ssize_t n;
	int r;

	h->nlmsg_seq = want;
	if (mnl_socket_sendto(s, h, h->nlmsg_len) < 0)
		return -errno;
	for (;;) {
		n = mnl_socket_recvfrom(s, buf, sizeof(buf));
		if (n < 0)
			return errno == EAGAIN ? -EPROTO : -errno;
		if (((struct nlmsghdr *)buf)->nlmsg_seq != want)
			continue; /* a late word about an earlier request that failed halfway */
		errno = 0;
		r = mnl_cb_run(buf, (size_t)n, want, mnl_socket_get_portid(s), cb, arg);
		if (r < 0)
			return errno ? -errno : -EIO;
		if (r == MNL_CB_STOP)
			return 0;
	}
}

static struct nlmsghdr *route_msg(char *buf, uint16_t type, uint16_t flags, size_t extra, void *ret)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);

	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	*(void **)ret = mnl_nlmsg_put_extra_header(h, extra);
	return h;
}

/* No address of its own there: a veth should say nothing by itself. */
static void put_no_v6(struct nlmsghdr *h)
{
	struct nlattr *spec = mnl_attr_nest_start(h, IFLA_AF_SPEC);
	struct nlattr *v6 = mnl_attr_nest_start(h, AF_INET6);

	mnl_attr_put_u8(h, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
	mnl_attr_nest_end(h, v6);
	mnl_attr_nest_end(h, spec);
}

int nl_veth(struct mnl_socket *s, const char *name, const char *peer, int peer_ns)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlattr *info, *data, *p;
	struct ifinfomsg *ifi;
	struct nlmsghdr *h;

	h = route_msg(buf, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, sizeof(*ifi), &ifi);
	mnl_attr_put_strz(h, IFLA_IFNAME, name);
	info = mnl_attr_nest_start(h, IFLA_LINKINFO);
	mnl_attr_put_str(h, IFLA_INFO_KIND, "veth");
	data = mnl_attr_nest_start(h, IFLA_INFO_DATA);
	p = mnl_attr_nest_start(h, VETH_INFO_PEER);
	mnl_nlmsg_put_extra_header(h, sizeof(*ifi));
	mnl_attr_put_strz(h, IFLA_IFNAME, peer);
	mnl_attr_put_u32(h, IFLA_NET_NS_FD, (uint32_t)peer_ns);
	mnl_attr_nest_end(h, p);
	mnl_attr_nest_end(h, data);
	mnl_attr_nest_end(h, info);
	return nl_talk(s, h, NULL, NULL);
}

static int link_index_cb(const struct nlmsghdr *h, void *arg)
{
	const struct ifinfomsg *ifi = mnl_nlmsg_get_payload(h);

	*(uint32_t *)arg = (uint32_t)ifi->ifi_index;
	return MNL_CB_OK;
}

int nl_link_index(struct mnl_socket *s, const char *name, uint32_t *ret)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct ifinfomsg *ifi;
	struct nlmsghdr *h;

	h = route_msg(buf, RTM_GETLINK, NLM_F_ACK, sizeof(*ifi), &ifi);
	mnl_attr_put_strz(h, IFLA_IFNAME, name);
	return nl_talk(s, h, link_index_cb, ret);
}

int nl_link_del(struct mnl_socket *s, uint32_t index)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct ifinfomsg *ifi;
	struct nlmsghdr *h;

	h = route_msg(buf, RTM_DELLINK, NLM_F_ACK, sizeof(*ifi), &ifi);
	ifi->ifi_index = (int)index;
	return nl_talk(s, h, NULL, NULL);
}

int nl_link_up(struct mnl_socket *s, uint32_t index, const struct nl_link *how)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlattr *spec, *v4, *conf;
	struct ifinfomsg *ifi;
	struct nlmsghdr *h;
	int r;

	if (how->forward) {
		/* A message of its own: the link must not carry anything before. */
		h = route_msg(buf, RTM_SETLINK, NLM_F_ACK, sizeof(*ifi), &ifi);
		ifi->ifi_index = (int)index;
		spec = mnl_attr_nest_start(h, IFLA_AF_SPEC);
		v4 = mnl_attr_nest_start(h, AF_INET);
		conf = mnl_attr_nest_start(h, IFLA_INET_CONF);
		mnl_attr_put_u32(h, IPV4_DEVCONF_FORWARDING, 1);
		mnl_attr_put_u32(h, IPV4_DEVCONF_RP_FILTER, 1);
		mnl_attr_nest_end(h, conf);
		mnl_attr_nest_end(h, v4);
		mnl_attr_nest_end(h, spec);
		r = nl_talk(s, h, NULL, NULL);
		if (r < 0)
			return r;
	}
	h = route_msg(buf, RTM_SETLINK, NLM_F_ACK, sizeof(*ifi), &ifi);
	ifi->ifi_index = (int)index;
	put_no_v6(h);
	r = nl_talk(s, h, NULL, NULL);
	if (r < 0 && r != -EAFNOSUPPORT && r != -EOPNOTSUPP)
		return r; /* these two: a kernel without IPv6 */

	h = route_msg(buf, RTM_SETLINK, NLM_F_ACK, sizeof(*ifi), &ifi);
	ifi->ifi_index = (int)index;
	ifi->ifi_flags = ifi->ifi_change = IFF_UP;
	if (how->mac)
		mnl_attr_put(h, IFLA_ADDRESS, 6, how->mac);
	if (how->mtu)
		mnl_attr_put_u32(h, IFLA_MTU, how->mtu);
	return nl_talk(s, h, NULL, NULL);
}

int nl_addr(struct mnl_socket *s, uint32_t index, uint32_t addr, unsigned prefix)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct ifaddrmsg *ifa;
	struct nlmsghdr *h;

	h = route_msg(buf, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, sizeof(*ifa), &ifa);
	ifa->ifa_family = AF_INET;
	ifa->ifa_prefixlen = (uint8_t)prefix;
	ifa->ifa_index = index;
	mnl_attr_put_u32(h, IFA_LOCAL, htonl(addr));
	mnl_attr_put_u32(h, IFA_ADDRESS, htonl(addr));
	return nl_talk(s, h, NULL, NULL);
}

struct addr_wanted {
	uint32_t index, addr;
	bool found;
};

static int addr_cb(const struct nlmsghdr *h, void *arg)
{
	const struct ifaddrmsg *ifa = mnl_nlmsg_get_payload(h);
	struct addr_wanted *w = arg;
	struct nlattr *a;

	if (ifa->ifa_index != w->index || w->found)
		return MNL_CB_OK;
	mnl_attr_for_each(a, h, sizeof(*ifa)) {
		if (mnl_attr_get_type(a) != IFA_LOCAL || mnl_attr_get_payload_len(a) != 4)
			continue;
		w->addr = ntohl(mnl_attr_get_u32(a));
		w->found = true;
	}
	return MNL_CB_OK;
}

int nl_addr_get(struct mnl_socket *s, uint32_t index, uint32_t *ret)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct addr_wanted w = {.index = index};
	struct ifaddrmsg *ifa;
	struct nlmsghdr *h;
	int r;

	h = route_msg(buf, RTM_GETADDR, NLM_F_DUMP, sizeof(*ifa), &ifa);
	ifa->ifa_family = AF_INET;
	r = nl_talk(s, h, addr_cb, &w);
	if (r < 0)
		return r;
	if (!w.found)
		return -ENOENT;
	*ret = w.addr;
	return 0;
}

int nl_route_default(struct mnl_socket *s, uint32_t via)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h;
	struct rtmsg *rt;

	h = route_msg(buf, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, sizeof(*rt), &rt);
	rt->rtm_family = AF_INET;
	rt->rtm_table = RT_TABLE_MAIN;
	rt->rtm_protocol = RTPROT_STATIC;
	rt->rtm_scope = RT_SCOPE_UNIVERSE;
	rt->rtm_type = RTN_UNICAST;
	mnl_attr_put_u32(h, RTA_GATEWAY, htonl(via));
	return nl_talk(s, h, NULL, NULL);
}

int nl_neighbour(struct mnl_socket *s, uint32_t index, uint32_t addr, const uint8_t mac[6])
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h;
	struct ndmsg *nd;

	h = route_msg(buf, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK, sizeof(*nd),
	              &nd);
	nd->ndm_family = AF_INET;
	nd->ndm_ifindex = (int)index;
	nd->ndm_state = NUD_PERMANENT;
	mnl_attr_put_u32(h, NDA_DST, htonl(addr));
	mnl_attr_put(h, NDA_LLADDR, 6, mac);
	return nl_talk(s, h, NULL, NULL);
}

int nl_shape(struct mnl_socket *s, uint32_t index, uint64_t kbit)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	uint64_t bytes_s = kbit * 125;
	/* A burst of 10 ms, but never less than two of the largest frames. */
	uint64_t ms10 = MIN(bytes_s / 100, 1ul << 30);
	uint32_t burst = (uint32_t)MAX(ms10, 131072ul);
	uint64_t waiting = MIN(bytes_s / 20, 1ul << 28); /* 50 ms of it */
	struct tc_tbf_qopt q = {
	    .rate = {.rate = bytes_s > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes_s,
	             .linklayer = TC_LINKLAYER_ETHERNET},
	    .limit = burst + (uint32_t)waiting,
	};
	struct nlattr *opt;
	struct nlmsghdr *h;
	struct tcmsg *tc;
	int r;

	h = route_msg(buf, kbit ? RTM_NEWQDISC : RTM_DELQDISC,
	              (kbit ? NLM_F_CREATE | NLM_F_REPLACE : 0) | NLM_F_ACK, sizeof(*tc), &tc);
	tc->tcm_family = AF_UNSPEC;
	tc->tcm_ifindex = (int)index;
	tc->tcm_handle = 1u << 16;
	tc->tcm_parent = TC_H_ROOT;
	if (!kbit) {
		r = nl_talk(s, h, NULL, NULL);
		return r == -ENOENT || r == -EINVAL ? 0 : r; /* there was none of ours */
	}
	mnl_attr_put_strz(h, TCA_KIND, "tbf");
	opt = mnl_attr_nest_start(h, TCA_OPTIONS);
	mnl_attr_put(h, TCA_TBF_PARMS, sizeof(q), &q);
	mnl_attr_put_u32(h, TCA_TBF_BURST, burst);
	if (bytes_s > UINT32_MAX)
		mnl_attr_put_u64(h, TCA_TBF_RATE64, bytes_s);
	mnl_attr_nest_end(h, opt);
	return nl_talk(s, h, NULL, NULL);
}

static int wan_cb(const struct nlmsghdr *h, void *arg)
{
	const struct rtmsg *rt = mnl_nlmsg_get_payload(h);
	uint32_t *ret = arg;
	struct nlattr *a;

	if (rt->rtm_dst_len != 0 || rt->rtm_type != RTN_UNICAST || rt->rtm_table != RT_TABLE_MAIN)
		return MNL_CB_OK;
	mnl_attr_for_each(a, h, sizeof(*rt)) {
		if (mnl_attr_get_type(a) == RTA_OIF && *ret == 0)
			*ret = mnl_attr_get_u32(a);
	}
	return MNL_CB_OK;
}

int nl_wan(struct mnl_socket *s, uint32_t *ret_index)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h;
	struct rtmsg *rt;
	uint32_t found = 0;
	int r;

	h = route_msg(buf, RTM_GETROUTE, NLM_F_DUMP, sizeof(*rt), &rt);
	rt->rtm_family = AF_INET;
	r = nl_talk(s, h, wan_cb, &found);
	if (r < 0)
		return r;
	if (!found)
		return -ENOENT;
	*ret_index = found;
	return 0;
}

struct link_count {
	const char *prefix;
	unsigned n;
};

static int count_cb(const struct nlmsghdr *h, void *arg)
{
	struct link_count *c = arg;
	struct nlattr *a;

	mnl_attr_for_each(a, h, sizeof(struct ifinfomsg)) {
		if (mnl_attr_get_type(a) == IFLA_IFNAME &&
		    strncmp(mnl_attr_get_str(a), c->prefix, strlen(c->prefix)) == 0)
			c->n++;
	}
	return MNL_CB_OK;
}

int nl_count_links(struct mnl_socket *s, const char *prefix, unsigned *ret)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct link_count c = {.prefix = prefix};
	struct ifinfomsg *ifi;
	struct nlmsghdr *h;
	int r;

	h = route_msg(buf, RTM_GETLINK, NLM_F_DUMP, sizeof(*ifi), &ifi);
	r = nl_talk(s, h, count_cb, &c);
	if (r < 0)
		return r;
	*ret = c.n;
	return 0;
}
