/*
 * net/wan.c - what slots share on the host: our tables, and forwarding of the way out
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "net/make.h"
#include "net/nl.h"

static void forward_path(const struct wan *h, char ret[80])
{
	snprintf(ret, 80, "/proc/sys/net/ipv4/conf/%s/forwarding", h->wan);
}

static int find_wan(struct wan *h, char why[MAKE_WHY])
{
	struct mnl_socket *s;
	uint32_t index;
	int r;

	r = nl_open(NETLINK_ROUTE, &s);
	if (r < 0) {
		snprintf(why, MAKE_WHY, "netlink: %s", strerror(-r));
		return r;
	}
	if (h->wan[0]) {
		r = nl_link_index(s, h->wan, &index);
		if (r < 0)
			snprintf(why, MAKE_WHY, "there is no interface %s", h->wan);
	} else if (nl_wan(s, &index) < 0 || !if_indextoname(index, h->wan)) {
		h->wan[0] = '\0'; /* a host without a way out: slots work, they lead nowhere */
	}
	nl_close(s);
	return r;
}

/*
 * Answers come in on wan and must be forwarded. Where that was off we turn it on for this interface
 * alone, and a table beside it says that all else which comes in there is still not forwarded. That
 * table is also the note, for the pandad that closes, that it was us.
 */
static int open_wan(struct wan *h, char why[MAKE_WHY])
{
	autofree char *now = NULL, *rules = NULL;
	char path[80];
	size_t n;
	int r;

	forward_path(h, path);
	r = io_read_file(AT_FDCWD, path, 16, &now, &n);
	if (r < 0) {
		snprintf(why, MAKE_WHY, "cannot read %s: %s", path, strerror(-r));
		return r;
	}
	if (now[0] == '1') {
		h->forward_ours = make_nft(h->nft, "list table inet panda_fwd\n", why) == 0;
		return 0;
	}
	if (asprintf(&rules,
	             "table inet panda_fwd\ndelete table inet panda_fwd\ntable inet panda_fwd {\n"
	             "	chain forward {\n"
	             "		type filter hook forward priority -10; policy accept;\n"
	             "		iifname \"%s\" oifname != \"" HOST_PREFIX "*\" drop\n"
	             "	}\n"
	             "}\n",
	             h->wan) < 0) {
		rules = NULL;
		return -ENOMEM;
	}
	r = make_nft(h->nft, rules, why);
	if (r < 0)
		return r;
	r = io_write_file(AT_FDCWD, path, "1");
	if (r < 0) {
		snprintf(why, MAKE_WHY, "cannot write %s: %s", path, strerror(-r));
		return r;
	}
	h->forward_ours = true;
	return 0;
}

int wan_open(struct wan *h, char why[MAKE_WHY])
{
	autofree char *rules = NULL;
	int r;

	r = find_wan(h, why);
	if (r < 0)
		return r;
	rules = rules_wan(h);
	if (!rules)
		return -ENOMEM;
	r = make_nft(h->nft, rules, why);
	if (r < 0)
		return r;
	return h->wan[0] ? open_wan(h, why) : 0;
}

void wan_close(const struct wan *h)
{
	char why[MAKE_WHY], path[80];
	struct mnl_socket *s;
	unsigned left = 1;

	if (nl_open(NETLINK_ROUTE, &s) < 0)
		return;
	if (nl_count_links(s, HOST_PREFIX, &left) < 0)
		left = 1;
	nl_close(s);
	if (left)
		return; /* of machines that live on, or of another pandad: they still need all of
			 * it */
	if (h->forward_ours) {
		forward_path(h, path);
		io_write_file(AT_FDCWD, path, "0");
	}
	make_nft(h->nft, rules_wan_gone, why);
}
