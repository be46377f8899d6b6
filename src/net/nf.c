#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <netinet/in.h>
#include <string.h>

#include "net/nl.h"
#include "net/nl_internal.h"

enum {
	BATCH_BYTES = 192 * 1024, /* a socket sends no more than 208 KiB at once */
	BATCH_SLACK = 512,        /* more than one message needs */
	LIST_BYTES = 60000,       /* of one message: an attribute's length has 16 bits */
	/* A burst of refusals is summed up, not hoarded. */
	LOG_RCVBUF = 128 * 1024,
	LOG_COPY = 64,      /* bytes of each packet: both headers */
	LOG_WAIT_10MS = 5,  /* the kernel collects for so long */
	LOG_THRESHOLD = 32, /* or until there are so many */
};

static const char TABLE[] = "panda";

struct nl_batch {
	size_t n;
	unsigned messages;
	bool full;
	struct nlmsghdr *last; /* elements for the same set go into the message before; or NULL */
	struct nlattr *list;
	const char *set;
	char buf[BATCH_BYTES] __attribute__((aligned(8)));
};

int nl_batch_new(struct nl_batch **ret)
{
	struct nl_batch *b = malloc(sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->n = b->messages = 0;
	b->full = false;
	b->last = NULL;
	*ret = b;
	return 0;
}

void nl_batch_free(struct nl_batch *b)
{
	free(b);
}

static struct nlmsghdr *nf_msg(char *buf, uint16_t type, uint16_t flags, uint8_t family,
                               uint16_t res)
{
	struct nlmsghdr *h = mnl_nlmsg_put_header(buf);
	struct nfgenmsg *g;

	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->nfgen_family = family;
	g->version = NFNETLINK_V0;
	g->res_id = htons(res);
	return h;
}

static struct nlmsghdr *batch_msg(struct nl_batch *b, uint16_t type, uint16_t flags,
                                  const char *set)
{
	struct nlmsghdr *h;

	if (b->n == 0) {
		h = nf_msg(b->buf, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
		b->n = h->nlmsg_len;
	}
	if (sizeof(b->buf) - b->n < 2 * BATCH_SLACK) {
		b->full = true;
		return NULL;
	}
	h = nf_msg(b->buf + b->n, NFNL_SUBSYS_NFTABLES << 8 | type, flags, AF_INET, 0);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_TABLE, TABLE);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_SET, set);
	return h;
}

static void batch_end(struct nl_batch *b, struct nlmsghdr *h)
{
	b->messages++;
	h->nlmsg_seq = b->messages;
	b->n += mnl_nlmsg_size(h->nlmsg_len - MNL_NLMSG_HDRLEN);
	b->last = NULL;
}

void nl_flush_set(struct nl_batch *b, const char *set)
{
	struct nlmsghdr *h = batch_msg(b, NFT_MSG_DELSETELEM, 0, set);

	if (h)
		batch_end(b, h);
}

static void put_elem(struct nlmsghdr *h, const void *key, uint16_t key_len, uint32_t flags,
                     uint64_t timeout_ms)
{
	struct nlattr *e = mnl_attr_nest_start(h, NFTA_LIST_ELEM);
	struct nlattr *k = mnl_attr_nest_start(h, NFTA_SET_ELEM_KEY);

	mnl_attr_put(h, NFTA_DATA_VALUE, key_len, key);
	mnl_attr_nest_end(h, k);
	if (flags)
		mnl_attr_put_u32(h, NFTA_SET_ELEM_FLAGS, htonl(flags));
	if (timeout_ms)
		mnl_attr_put_u64(h, NFTA_SET_ELEM_TIMEOUT, htobe64(timeout_ms));
	mnl_attr_nest_end(h, e);
}

/* A message with a list of elements of that set: the one before, or a new one. NULL: full. */
static struct nlmsghdr *list_begin(struct nl_batch *b, bool add, const char *set)
{
	uint16_t type = add ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM;
	struct nlmsghdr *h = b->last;

	if (h && (h->nlmsg_type & 0xff) == type && strcmp(b->set, set) == 0 &&
	    b->list->nla_len < LIST_BYTES && sizeof(b->buf) - b->n >= 2 * BATCH_SLACK) {
		b->n = (size_t)((char *)h - b->buf);
		b->messages--;
		return h;
	}
	h = batch_msg(b, type, add ? NLM_F_CREATE : 0, set);
	if (h)
		b->list = mnl_attr_nest_start(h, NFTA_SET_ELEM_LIST_ELEMENTS);
	return h;
}

static void list_end(struct nl_batch *b, struct nlmsghdr *h, const char *set)
{
	mnl_attr_nest_end(h, b->list);
	batch_end(b, h);
	b->last = h;
	b->set = set;
}

static void change(struct nl_batch *b, bool add, const char *set, const void *key, uint16_t key_len,
                   uint64_t timeout_ms)
{
	struct nlmsghdr *h = list_begin(b, add, set);

	if (!h)
		return;
	put_elem(h, key, key_len, 0, timeout_ms);
	list_end(b, h, set);
}

void nl_add_net(struct nl_batch *b, const char *set, uint32_t first, uint32_t last)
{
	struct nlmsghdr *h = list_begin(b, true, set);
	uint32_t key;

	if (!h)
		return;
	key = htonl(first);
	put_elem(h, &key, sizeof(key), 0, 0);
	if (last != UINT32_MAX) { /* one that goes to the end has no end */
		key = htonl(last + 1);
		put_elem(h, &key, sizeof(key), NFT_SET_ELEM_INTERVAL_END, 0);
	}
	list_end(b, h, set);
}

struct key_port {
	uint32_t addr;
	uint16_t port, pad; /* each part of a joined key fills four bytes */
};

void nl_add_addr(struct nl_batch *b, const char *set, uint32_t addr, uint64_t timeout_ms)
{
	uint32_t key = htonl(addr);

	change(b, true, set, &key, sizeof(key), timeout_ms);
}

void nl_add_addr_port(struct nl_batch *b, const char *set, uint32_t addr, uint16_t port,
                      uint64_t timeout_ms)
{
	struct key_port key = {.addr = htonl(addr), .port = htons(port)};

	change(b, true, set, &key, sizeof(key), timeout_ms);
}

void nl_del_addr(struct nl_batch *b, const char *set, uint32_t addr)
{
	uint32_t key = htonl(addr);

	change(b, false, set, &key, sizeof(key), 0);
}

void nl_del_addr_port(struct nl_batch *b, const char *set, uint32_t addr, uint16_t port)
{
	struct key_port key = {.addr = htonl(addr), .port = htons(port)};

	change(b, false, set, &key, sizeof(key), 0);
}

void nl_add_mark(struct nl_batch *b, const char *set, uint32_t mark)
{
	change(b, true, set, &mark, sizeof(mark), 0); /* marks are in the host's byte order */
}

void nl_add_proto_mark(struct nl_batch *b, const char *map, uint8_t proto, uint32_t mark)
{
	struct nlmsghdr *h = batch_msg(b, NFT_MSG_NEWSETELEM, NLM_F_CREATE, map);
	struct nlattr *list, *e, *part;

	if (!h)
		return;
	list = mnl_attr_nest_start(h, NFTA_SET_ELEM_LIST_ELEMENTS);
	e = mnl_attr_nest_start(h, NFTA_LIST_ELEM);
	part = mnl_attr_nest_start(h, NFTA_SET_ELEM_KEY);
	mnl_attr_put(h, NFTA_DATA_VALUE, sizeof(proto), &proto);
	mnl_attr_nest_end(h, part);
	part = mnl_attr_nest_start(h, NFTA_SET_ELEM_DATA);
	mnl_attr_put(h, NFTA_DATA_VALUE, sizeof(mark), &mark);
	mnl_attr_nest_end(h, part);
	mnl_attr_nest_end(h, e);
	mnl_attr_nest_end(h, list);
	batch_end(b, h);
}

static struct nlattr *expr_begin(struct nlmsghdr *h, const char *name, struct nlattr **data)
{
	struct nlattr *e = mnl_attr_nest_start(h, NFTA_LIST_ELEM);

	mnl_attr_put_strz(h, NFTA_EXPR_NAME, name);
	*data = mnl_attr_nest_start(h, NFTA_EXPR_DATA);
	return e;
}

static void expr_end(struct nlmsghdr *h, struct nlattr *e, struct nlattr *data)
{
	mnl_attr_nest_end(h, data);
	mnl_attr_nest_end(h, e);
}

/* As nft writes "ct count over MAX goto too_many". */
void nl_limit_conns(struct nl_batch *b, const char *chain, uint32_t max)
{
	struct nlattr *list, *e, *data, *value, *verdict;
	struct nlmsghdr *h;

	_Static_assert((int)NFTA_RULE_TABLE == (int)NFTA_SET_ELEM_LIST_TABLE &&
	                   (int)NFTA_RULE_CHAIN == (int)NFTA_SET_ELEM_LIST_SET,
	               "batch_msg() names a chain as it names a set");
	h = batch_msg(b, NFT_MSG_DELRULE, 0, chain); /* no handle: all of them */
	if (h)
		batch_end(b, h);
	h = batch_msg(b, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, chain);
	if (!h)
		return;
	list = mnl_attr_nest_start(h, NFTA_RULE_EXPRESSIONS);
	e = expr_begin(h, "connlimit", &data);
	mnl_attr_put_u32(h, NFTA_CONNLIMIT_COUNT, htonl(max));
	mnl_attr_put_u32(h, NFTA_CONNLIMIT_FLAGS, htonl(NFT_CONNLIMIT_F_INV));
	expr_end(h, e, data);
	e = expr_begin(h, "immediate", &data);
	mnl_attr_put_u32(h, NFTA_IMMEDIATE_DREG, htonl(NFT_REG_VERDICT));
	value = mnl_attr_nest_start(h, NFTA_IMMEDIATE_DATA);
	verdict = mnl_attr_nest_start(h, NFTA_DATA_VERDICT);
	mnl_attr_put_u32(h, NFTA_VERDICT_CODE, htonl((uint32_t)NFT_GOTO));
	mnl_attr_put_strz(h, NFTA_VERDICT_CHAIN, "too_many");
	mnl_attr_nest_end(h, verdict);
	mnl_attr_nest_end(h, value);
	expr_end(h, e, data);
	mnl_attr_nest_end(h, list);
	batch_end(b, h);
}

size_t nl_batch_room(const struct nl_batch *b)
{
	return sizeof(b->buf) - b->n;
}

/* What the kernel had to say about the batch is there when send returns; without a word it went
 * well. */
static int batch_result(struct mnl_socket *nf)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	int first = 0;

	for (;;) {
		ssize_t n = mnl_socket_recvfrom(nf, buf, sizeof(buf));
		struct nlmsghdr *h = (struct nlmsghdr *)buf;
		int left;

		if (n < 0) {
			if (errno == EAGAIN)
				return first;
			if (errno == EINTR)
				continue;
			return first ? first : -errno;
		}
		left = (int)n;
		for (; mnl_nlmsg_ok(h, left); h = mnl_nlmsg_next(h, &left)) {
			const struct nlmsgerr *err = mnl_nlmsg_get_payload(h);

			if (h->nlmsg_type == NLMSG_ERROR && err->error && !first)
				first = err->error;
		}
	}
}

int nl_commit(struct nl_batch *b, struct mnl_socket *nf)
{
	struct nlmsghdr *h;
	int r = 0;

	if (b->full) {
		r = -E2BIG;
	} else if (b->messages) {
		h = nf_msg(b->buf + b->n, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
		b->n += h->nlmsg_len;
		r = mnl_socket_sendto(nf, b->buf, b->n) < 0 ? -errno : batch_result(nf);
	}
	b->n = b->messages = 0;
	b->full = false;
	b->last = NULL;
	return r;
}

static int mark_cb(const struct nlmsghdr *h, void *arg)
{
	struct nlattr *list, *e, *k, *v;

	/* Elements, each with a key, each with a value: the innermost four bytes are it. */
	mnl_attr_for_each(list, h, sizeof(struct nfgenmsg)) {
		if (mnl_attr_get_type(list) != NFTA_SET_ELEM_LIST_ELEMENTS)
			continue;
		mnl_attr_for_each_nested(e, list) {
			mnl_attr_for_each_nested(k, e) {
				if (mnl_attr_get_type(k) != NFTA_SET_ELEM_KEY)
					continue;
				mnl_attr_for_each_nested(v, k) {
					if (mnl_attr_get_payload_len(v) == 4)
						*(uint32_t *)arg = mnl_attr_get_u32(v);
				}
			}
		}
	}
	return MNL_CB_OK;
}

int nl_get_mark(struct mnl_socket *nf, const char *set, uint32_t *ret)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h;
	uint32_t mark = 0;
	int r;

	h = nf_msg(buf, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM, NLM_F_DUMP, AF_INET, 0);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_TABLE, TABLE);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_SET, set);
	r = nl_talk(nf, h, mark_cb, &mark);
	if (r < 0)
		return r;
	if (!mark)
		return -ENOENT;
	*ret = mark;
	return 0;
}

struct counter {
	uint64_t packets, bytes;
	bool found;
};

static int counter_cb(const struct nlmsghdr *h, void *arg)
{
	struct counter *c = arg;
	struct nlattr *a, *d;

	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg)) {
		if (mnl_attr_get_type(a) != NFTA_OBJ_DATA)
			continue;
		mnl_attr_for_each_nested(d, a) {
			if (mnl_attr_get_payload_len(d) != 8)
				continue;
			if (mnl_attr_get_type(d) == NFTA_COUNTER_BYTES)
				c->bytes = be64toh(mnl_attr_get_u64(d));
			if (mnl_attr_get_type(d) == NFTA_COUNTER_PACKETS)
				c->packets = be64toh(mnl_attr_get_u64(d));
		}
		c->found = true;
	}
	return MNL_CB_OK;
}

int nl_counter(struct mnl_socket *nf, uint8_t family, const char *table, const char *name,
               uint64_t *ret_packets, uint64_t *ret_bytes)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct counter c = {0};
	struct nlmsghdr *h;
	int r;

	h = nf_msg(buf, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ, NLM_F_ACK, family, 0);
	mnl_attr_put_strz(h, NFTA_OBJ_TABLE, table);
	mnl_attr_put_strz(h, NFTA_OBJ_NAME, name);
	mnl_attr_put_u32(h, NFTA_OBJ_TYPE, htonl(NFT_OBJECT_COUNTER));
	r = nl_talk(nf, h, counter_cb, &c);
	if (r < 0)
		return r;
	if (!c.found)
		return -ENOENT;
	if (ret_packets)
		*ret_packets = c.packets;
	if (ret_bytes)
		*ret_bytes = c.bytes;
	return 0;
}

static void parse_tuple(const struct nlattr *tuple, uint32_t *src, uint32_t *dst, uint8_t *proto,
                        uint16_t *sport, uint16_t *dport)
{
	struct nlattr *a, *b;

	mnl_attr_for_each_nested(a, tuple) {
		mnl_attr_for_each_nested(b, a) {
			unsigned type = mnl_attr_get_type(b), len = mnl_attr_get_payload_len(b);

			if (mnl_attr_get_type(a) == CTA_TUPLE_IP && len == 4) {
				if (type == CTA_IP_V4_SRC)
					*src = ntohl(mnl_attr_get_u32(b));
				else if (type == CTA_IP_V4_DST)
					*dst = ntohl(mnl_attr_get_u32(b));
			} else if (mnl_attr_get_type(a) == CTA_TUPLE_PROTO) {
				if (type == CTA_PROTO_NUM && len == 1)
					*proto = mnl_attr_get_u8(b);
				else if ((type == CTA_PROTO_SRC_PORT ||
				          type == CTA_PROTO_ICMP_ID) &&
				         len == 2)
					*sport = ntohs(mnl_attr_get_u16(b));
				else if (type == CTA_PROTO_DST_PORT && len == 2)
					*dport = ntohs(mnl_attr_get_u16(b));
			}
		}
	}
}

static uint64_t parse_bytes(const struct nlattr *counters)
{
	struct nlattr *a;

	mnl_attr_for_each_nested(a, counters) {
		if (mnl_attr_get_type(a) == CTA_COUNTERS_BYTES && mnl_attr_get_payload_len(a) == 8)
			return be64toh(mnl_attr_get_u64(a));
	}
	return 0;
}

int nl_parse_flow(const struct nlmsghdr *h, struct nl_flow *ret)
{
	struct nl_flow f = {0};
	uint32_t reply_dst;
	uint16_t rs, rd;
	uint8_t proto = 0;
	struct nlattr *a;

	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg)) {
		switch (mnl_attr_get_type(a)) {
		case CTA_TUPLE_ORIG:
			parse_tuple(a, &f.src, &f.dst, &f.proto, &f.sport, &f.dport);
			break;
		case CTA_TUPLE_REPLY:
			parse_tuple(a, &f.reply_src, &reply_dst, &proto, &rs, &rd);
			break;
		case CTA_COUNTERS_ORIG:
			f.bytes_up = parse_bytes(a);
			break;
		case CTA_COUNTERS_REPLY:
			f.bytes_down = parse_bytes(a);
			break;
		}
	}
	if (!f.proto || !f.dst)
		return -EBADMSG;
	*ret = f;
	return 0;
}

struct cutter {
	bool (*cut)(void *arg, const struct nl_flow *f);
	void *arg;
	size_t n, max;
	struct nlattr **tuples;
	int error;
};

static int cut_cb(const struct nlmsghdr *h, void *arg)
{
	struct cutter *c = arg;
	struct nl_flow f;
	struct nlattr *a;

	if (c->error || nl_parse_flow(h, &f) < 0 || !c->cut(c->arg, &f))
		return MNL_CB_OK;
	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg)) {
		struct nlattr *copy;

		if (mnl_attr_get_type(a) != CTA_TUPLE_ORIG)
			continue;
		if (c->n == c->max) {
			size_t max = c->max ? 2 * c->max : 64;
			struct nlattr **p = reallocarray(c->tuples, max, sizeof(*p));

			if (!p) {
				c->error = -ENOMEM;
				break;
			}
			c->tuples = p;
			c->max = max;
		}
		copy = malloc(a->nla_len);
		if (!copy) {
			c->error = -ENOMEM;
			break;
		}
		memcpy(copy, a, a->nla_len);
		c->tuples[c->n++] = copy;
		break;
	}
	return MNL_CB_OK;
}

static int flow_dump(struct mnl_socket *nf, mnl_cb_t fn, void *arg)
{
	char buf[NL_BUF] __attribute__((aligned(8)));

	return nl_talk(nf,
	               nf_msg(buf, NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET, NLM_F_DUMP,
	                      AF_INET, 0),
	               fn, arg);
}

int nl_flow_cut(struct mnl_socket *nf, bool (*cut)(void *arg, const struct nl_flow *f), void *arg)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct cutter c = {.cut = cut, .arg = arg};
	struct nlmsghdr *h;
	int r;

	r = flow_dump(nf, cut_cb, &c);
	if (r == 0)
		r = c.error;
	for (size_t i = 0; i < c.n; i++) {
		int d;

		if (r == 0) {
			h = nf_msg(buf, NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE,
			           NLM_F_ACK, AF_INET, 0);
			mnl_attr_put(h, CTA_TUPLE_ORIG | NLA_F_NESTED,
			             mnl_attr_get_payload_len(c.tuples[i]),
			             mnl_attr_get_payload(c.tuples[i]));
			d = nl_talk(nf, h, NULL, NULL);
			if (d < 0 && d != -ENOENT) /* it may have ended by itself */
				r = d;
		}
		free(c.tuples[i]);
	}
	free(c.tuples);
	return r < 0 ? r : (int)c.n;
}

struct nf_each {
	void (*fn)(void *arg, const struct nl_flow *f);
	void *arg;
};

static int each_cb(const struct nlmsghdr *h, void *arg)
{
	const struct nf_each *e = arg;
	struct nl_flow f;

	if (nl_parse_flow(h, &f) == 0)
		e->fn(e->arg, &f);
	return MNL_CB_OK;
}

int nl_flow_each(struct mnl_socket *nf, void (*fn)(void *arg, const struct nl_flow *f), void *arg)
{
	struct nf_each e = {.fn = fn, .arg = arg};

	return flow_dump(nf, each_cb, &e);
}

int nl_flow_sweep(struct mnl_socket *nf)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h =
	    nf_msg(buf, NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET, NLM_F_DUMP, AF_INET, 0);

	/* A connection that is looked at and is over goes; no connection has this mark, so none
	 * need be told. */
	mnl_attr_put_u32(h, CTA_MARK, htonl(UINT32_MAX));
	mnl_attr_put_u32(h, CTA_MARK_MASK, htonl(UINT32_MAX));
	return nl_talk(nf, h, NULL, NULL);
}

static int log_config(struct mnl_socket *nf, uint16_t group, uint8_t family,
                      const struct nfulnl_msg_config_cmd *cmd,
                      const struct nfulnl_msg_config_mode *mode)
{
	char buf[NL_BUF] __attribute__((aligned(8)));
	struct nlmsghdr *h =
	    nf_msg(buf, NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG, NLM_F_ACK, family, group);

	if (cmd)
		mnl_attr_put(h, NFULA_CFG_CMD, sizeof(*cmd), cmd);
	if (mode) {
		mnl_attr_put(h, NFULA_CFG_MODE, sizeof(*mode), mode);
		mnl_attr_put_u32(h, NFULA_CFG_TIMEOUT, htonl(LOG_WAIT_10MS));
		mnl_attr_put_u32(h, NFULA_CFG_QTHRESH, htonl(LOG_THRESHOLD));
	}
	return nl_talk(nf, h, NULL, NULL);
}

int nl_listen(struct mnl_socket *nf, uint16_t group)
{
	struct nfulnl_msg_config_cmd bind = {.command = NFULNL_CFG_CMD_BIND};
	struct nfulnl_msg_config_mode mode = {.copy_range = htonl(LOG_COPY),
	                                      .copy_mode = NFULNL_COPY_PACKET};
	int fd = mnl_socket_get_fd(nf), size = LOG_RCVBUF, destroy = NFNLGRP_CONNTRACK_DESTROY, r;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size,
	           sizeof(size)); /* what it is now would do, too */
	r = log_config(nf, group, AF_UNSPEC, &bind, NULL);
	if (r < 0)
		return r;
	r = log_config(nf, group, AF_UNSPEC, NULL, &mode);
	if (r < 0)
		return r;
	if (mnl_socket_setsockopt(nf, NETLINK_ADD_MEMBERSHIP, &destroy, sizeof(destroy)) < 0)
		return -errno;
	return 0;
}
