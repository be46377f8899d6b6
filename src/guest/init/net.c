/*
 * guest/init/net.c - the guest's side of the network, which is the same in every machine
 * eth0 is there from the boot on, with or without a tap of the host's behind it: all that changes
 * in a later life is its carrier, which is the kernel's business. So this is done once, and a
 * restored machine costs nothing here.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "guest/init/agent.h"

/* As src/net/net.h has them; the gateway is name server too (/etc/resolv.conf of every image). */
#define GUEST_ADDR   "172.31.255.2"
#define GUEST_MASK   "255.255.255.252"
#define GATEWAY_ADDR "172.31.255.1"

static const unsigned char GATEWAY_MAC[6] = {0x06, 0x00, 0xac, 0x1f, 0xff, 0x01};

static void set_addr(struct sockaddr *to, const char *text)
{
	struct sockaddr_in in = {.sin_family = AF_INET};

	inet_pton(AF_INET, text, &in.sin_addr);
	memcpy(to, &in, sizeof(in));
}

static int link_up(int fd, const char *name)
{
	struct ifreq ifr = {0};

	strncpy(ifr.ifr_name, name, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFFLAGS, &ifr) < 0)
		return -errno;
	ifr.ifr_flags |= IFF_UP | IFF_RUNNING;
	return ioctl(fd, SIOCSIFFLAGS, &ifr) < 0 ? -errno : 0;
}

static int eth0_up(int fd)
{
	struct ifreq ifr = {.ifr_name = "eth0"};
	struct rtentry route = {.rt_dev = "eth0", .rt_flags = RTF_UP | RTF_GATEWAY};
	struct arpreq arp = {.arp_flags = ATF_PERM | ATF_COM, .arp_dev = "eth0"};
	int r;

	/* Before it is up, else it has an address and asks for routers. */
	sysctl_set("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "1");
	set_addr(&ifr.ifr_addr, GUEST_ADDR);
	if (ioctl(fd, SIOCSIFADDR, &ifr) < 0)
		return -errno;
	set_addr(&ifr.ifr_netmask, GUEST_MASK);
	if (ioctl(fd, SIOCSIFNETMASK, &ifr) < 0)
		return -errno;
	r = link_up(fd, "eth0");
	if (r < 0)
		return r;
	set_addr(&route.rt_dst, "0.0.0.0");
	set_addr(&route.rt_genmask, "0.0.0.0");
	set_addr(&route.rt_gateway, GATEWAY_ADDR);
	if (ioctl(fd, SIOCADDRT, &route) < 0)
		return -errno;
	/* The guest need not ask who the gateway is: it would be asked again and again, and a
	 * machine at rest would wake up to forget it. */
	set_addr(&arp.arp_pa, GATEWAY_ADDR);
	arp.arp_ha.sa_family = ARPHRD_ETHER;
	memcpy(arp.arp_ha.sa_data, GATEWAY_MAC, sizeof(GATEWAY_MAC));
	if (ioctl(fd, SIOCSARP, &arp) < 0)
		return -errno;
	/* Without a carrier, "network is unreachable" at once instead of a long silence. */
	sysctl_set("/proc/sys/net/ipv4/conf/eth0/ignore_routes_with_linkdown", "1");
	return 0;
}

void net_up(struct agent *a)
{
	autoclose int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return; /* a kernel without network */
	r = link_up(fd, "lo");
	if (r < 0)
		agent_log(a, "panda-init: cannot bring up lo error=%s\n", strerror(-r));
	r = if_nametoindex("eth0") ? eth0_up(fd) : 0;
	if (r < 0)
		agent_log(a, "panda-init: cannot bring up eth0 error=%s\n", strerror(-r));
}
