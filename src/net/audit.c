/*
 * What the kernel tells about a slot: packets of rules with "log" (the first of a connection, and
 * refused ones; limited there), and connections that ended, with their bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/bucket.h"
#include "base/clock.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/pool.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/nl.h"
#include "net/policy.h"

enum {
	READS_PER_TURN = 16,
	READ_BYTES = 32768,
	LAST_MAX = 1024, /* more than the connections most hosts give to one */
};

static void put_addr(struct net_event *ev, uint32_t a)
{
	for (int i = 0; i < 4; i++)
		ev->addr[i] = (uint8_t)(a >> (24 - 8 * i));
}

static void tell(struct net_slot *s, struct net_event *ev)
{
	const struct net_config *c = &s->net->config;

	ev->time_ms = wall_ms();
	ev->slot = s;
	ev->owner = s->owner;
	if (c->event)
		c->event(c->arg, ev);
}

void audit_tell(struct net_slot *s, struct net_event *ev)
{
	if (bucket_take(&s->events, loop_now_ms(s->net->loop), EVENTS_PER_S, EVENTS_BURST, 1))
		tell(s, ev);
	else
		s->count_lost++;
}

void audit_refused_name(struct net_slot *s, const char *name, const char *why, uint32_t addr)
{
	struct net_event ev = {.verdict = NET_REFUSED, .name = name, .why = why};

	put_addr(&ev, addr);
	audit_tell(s, &ev);
}

/* ---- ends ---- */

static void sweep_work(void *arg)
{
	struct mnl_socket *nf;

	if (nl_open(NETLINK_NETFILTER, &nf) < 0)
		return; /* then it takes a minute */
	nl_flow_sweep(nf);
	nl_close(nf);
}

static void sweep_done(void *arg)
{
}

static void sweep_due(void *arg)
{
	struct net *n = arg;

	if (n->sweeps && pool_submit(n->breaker, sweep_work, sweep_done, NULL) == 0 && --n->sweeps)
		loop_timer_set(n->loop, &n->sweep, loop_now_ms(n->loop) + SWEEP_MS);
}

/* Something has begun, so something will end: see to it that we hear of that. */
static void sweep_soon(struct net *n)
{
	n->sweeps = SWEEPS;
	if (n->sweep.slot)
		return;
	n->sweep.fn = sweep_due;
	n->sweep.arg = n;
	loop_timer_set(n->loop, &n->sweep, loop_now_ms(n->loop) + SWEEP_MS);
}

/* ---- packets ---- */

/* The packet, as far as it was copied: who it was for. */
static void read_packet(const uint8_t *p, size_t n, struct net_event *ev)
{
	size_t head;

	if (n < 20 || p[0] >> 4 != 4)
		return;
	head = (size_t)(p[0] & 15) * 4;
	ev->proto = p[9];
	memcpy(ev->addr, p + 16, 4);
	if (head >= 20 && n >= head + 4 && (ev->proto == IPPROTO_TCP || ev->proto == IPPROTO_UDP))
		ev->port = (uint16_t)(p[head + 2] << 8 | p[head + 3]);
}

static void on_packet(struct net_slot *s, const struct nlmsghdr *h)
{
	/* The prefixes of our rules; the words are those of net.h. */
	static const char *const words[] = {"policy", "closed_range", "rate", "odd"};
	struct net_event ev = {.verdict = NET_REFUSED, .why = "odd"};
	struct nlattr *a;
	uint32_t addr;

	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg)) {
		const char *text = mnl_attr_get_payload(a);
		size_t n = mnl_attr_get_payload_len(a);

		if (mnl_attr_get_type(a) == NFULA_PREFIX && n && text[n - 1] == '\0') {
			if (strcmp(text, "end") == 0) {
				sweep_soon(s->net);
				return;
			}
			if (strcmp(text, "allow") == 0) {
				ev.verdict = NET_ALLOWED;
				ev.why = NULL;
			}
			for (size_t i = 0; i < ARRAY_LEN(words); i++)
				if (strcmp(text, words[i]) == 0)
					ev.why = words[i];
		} else if (mnl_attr_get_type(a) == NFULA_PAYLOAD) {
			read_packet(mnl_attr_get_payload(a), n, &ev);
		}
	}
	memcpy(&addr, ev.addr, 4);
	ev.name = seen_name(s, ntohl(addr));
	/* Its name may go somewhere, but not there. */
	if (ev.why && strcmp(ev.why, "policy") == 0 && s->policy->mode == NET_LIST &&
	    seen_listed(s, ntohl(addr))) {
		ev.name = seen_listed(s, ntohl(addr));
		ev.why = "port";
	}
	tell(s, &ev);
	if (ev.verdict == NET_ALLOWED) {
		s->went_out = true;
		sweep_soon(s->net);
	}
}

/* Questions to us, and connections that went through our hands, are told by others. */
static bool is_ours(const struct nl_flow *f)
{
	return f->src == (uint32_t)GUEST_ADDR && f->dst != (uint32_t)GATEWAY_ADDR &&
	       f->reply_src == f->dst;
}

static void tell_end(struct net_slot *s, const struct nl_flow *f)
{
	struct net_event ev = {.verdict = NET_CLOSED,
	                       .proto = f->proto,
	                       .port = f->dport,
	                       .name = seen_name(s, f->dst),
	                       .bytes_up = f->bytes_up,
	                       .bytes_down = f->bytes_down};

	put_addr(&ev, f->dst);
	tell(s, &ev);
}

static void on_end(struct net_slot *s, const struct nlmsghdr *h)
{
	struct nl_flow f;

	if (nl_parse_flow(h, &f) == 0 && is_ours(&f))
		tell_end(s, &f);
}

/* ---- those that live to the end ---- */

static void keep(void *arg, const struct nl_flow *f)
{
	struct net_slot *s = arg;

	if (is_ours(f) && s->n_last < LAST_MAX)
		s->last[s->n_last++] = *f;
}

/* The connection that carried most is told first: the listener may not take all. */
static int by_bytes(const void *a, const void *b)
{
	const struct nl_flow *x = a, *y = b;
	uint64_t m = x->bytes_up + x->bytes_down, n = y->bytes_up + y->bytes_down;

	return m < n ? 1 : m > n ? -1 : 0;
}

void audit_last(struct net_slot *s)
{
	if (!s->went_out || !(s->last = calloc(LAST_MAX, sizeof(*s->last))))
		return;
	if (nl_flow_each(s->kit.nf, keep, s) == 0)
		qsort(s->last, s->n_last, sizeof(*s->last), by_bytes);
}

void audit_tell_last(struct net_slot *s)
{
	for (size_t i = 0; i < s->n_last; i++)
		tell_end(s, &s->last[i]);
	free(s->last);
	s->last = NULL;
	s->n_last = 0;
}

static void on_log(void *arg, uint32_t events)
{
	struct net_slot *s = arg;

	for (int i = 0; i < READS_PER_TURN; i++) {
		char buf[READ_BYTES] __attribute__((aligned(8)));
		ssize_t n = mnl_socket_recvfrom(s->kit.log, buf, sizeof(buf));
		struct nlmsghdr *h = (struct nlmsghdr *)buf;
		int left;

		if (n < 0) {
			if (errno == ENOBUFS) {
				s->count_lost++; /* one or many; the kernel does not say */
				continue;
			}
			return;
		}
		left = (int)n;
		for (; mnl_nlmsg_ok(h, left); h = mnl_nlmsg_next(h, &left)) {
			if (h->nlmsg_type == (NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET))
				on_packet(s, h);
			else if (h->nlmsg_type ==
			         (NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE))
				on_end(s, h);
		}
	}
}

int audit_listen(struct net_slot *s)
{
	s->log_io = (struct loop_io){.fn = on_log, .arg = s};
	return loop_io_add(s->net->loop, &s->log_io, mnl_socket_get_fd(s->kit.log), EPOLLIN);
}

void audit_stop(struct net_slot *s)
{
	/* What the kernel said before the end is still told. */
	if (s->log_io.added)
		on_log(s, EPOLLIN);
	loop_io_del(s->net->loop, &s->log_io);
}
