#include "net/net.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "net/net_internal.h"

enum {
	READY_DEFAULT = 4,
	CONNS_DEFAULT = 512, /* each also has an entry in the host's table, which is one for all */
	NAMES_PER_S_DEFAULT = 100,
	OPEN_S_DEFAULT = 180,
	RETRY_MS = 2000,
	REFILL_MS = 30,
	BREAKERS = 2, /* closing a tap waits for the kernel, some 30 ms */
	RESOLV_CONF_MAX = 65536,
};

static void make_more(struct net *n);

static void slot_link(struct net_slot **list, struct net_slot *s)
{
	s->next = *list;
	s->prev = list;
	if (s->next)
		s->next->prev = &s->next;
	*list = s;
}

static void slot_unlink(struct net_slot *s)
{
	if (s->next)
		s->next->prev = s->prev;
	*s->prev = s->next;
	s->next = NULL;
	s->prev = NULL;
}

/*
 * What a thread does for a slot. The job comes back by the loop, maybe after net_free() has seen to
 * its slot: then slot is NULL and nothing is left to do. Or it is dropped with the loop.
 */
struct net_job {
	struct net *net;
	struct net_slot *slot;
	bool making;
	struct net_job *next, **prev;
};

static struct net_job *job_new(struct net *n, struct net_slot *s)
{
	struct net_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	j->net = n;
	j->slot = s;
	j->next = n->jobs;
	j->prev = &n->jobs;
	if (j->next)
		j->next->prev = &j->next;
	n->jobs = j;
	return j;
}

static void job_unlink(struct net_job *j)
{
	if (j->next)
		j->next->prev = j->prev;
	*j->prev = j->next;
}

/* Any thread. */
static void slot_unmake(struct net_slot *s)
{
	audit_last(s);
	make_undo(&s->plan, &s->kit);
}

/* The last of it, on the loop. */
static void slot_free(struct net_slot *s)
{
	const struct net_config *c = &s->net->config;

	audit_tell_last(s);
	seen_clear(s);
	if (s->owner && c->gone)
		c->gone(c->arg, s->owner);
	free(s);
}

static void job_undo(void *arg)
{
	slot_unmake(((struct net_job *)arg)->slot);
}

static void job_undone(void *arg)
{
	struct net_job *j = arg;

	if (j->slot) {
		job_unlink(j);
		range_put(j->net->range, j->slot->place);
		slot_free(j->slot);
		make_more(j->net);
	}
	free(j);
}

/* The slot is in no list and has nothing on the loop any more. */
static void slot_undo(struct net_slot *s)
{
	struct net *n = s->net;
	struct net_job *j = job_new(n, s);

	if (j && pool_submit(n->breaker, job_undo, job_undone, j) == 0)
		return;
	if (j) {
		job_unlink(j);
		free(j);
	}
	/* No memory for a note: then it is done here, and takes what it takes. */
	slot_unmake(s);
	range_put(n->range, s->place);
	slot_free(s);
}

static void job_make(void *arg)
{
	struct net_slot *s = ((struct net_job *)arg)->slot;

	s->error = make_slot(&s->plan, &s->kit, s->why);
}

static void tell_waiters(void *arg)
{
	struct net *n = arg;

	while (n->waits) {
		struct net_wait *w = n->waits;
		int error = 0;

		if (!n->n_ready) {
			if (n->n_making || range_used(n->range) < range_total(n->range)) {
				if (!n->last_error)
					return;
				error = n->last_error;
			} else {
				error = -ENOSPC;
			}
		}
		net_wait_cancel(n, w);
		w->fn(w->arg, error);
		if (error == 0 && n->n_ready)
			continue;
	}
}

static void job_made(void *arg)
{
	struct net_job *j = arg;
	struct net_slot *s = j->slot;
	struct net *n = j->net;

	if (!s) {
		free(j);
		return;
	}
	job_unlink(j);
	free(j);
	n->n_making--;
	if (s->error == 0) {
		n->last_error = 0;
		slot_link(&n->ready, s);
		n->n_ready++;
	} else {
		if (s->place_lost) {
			/* It was adopted meanwhile, and is nothing we could make. */
		} else if (s->error == -EEXIST) {
			/* Somebody else on this host sits there: the next is tried. */
			range_foreign(n->range, s->place);
		} else {
			range_put(n->range, s->place);
			n->last_error = s->error;
			memcpy(n->last_why, s->why, sizeof(n->last_why));
			n->retry_ms = loop_now_ms(n->loop) + RETRY_MS;
		}
		free(s);
	}
	loop_defer(n->loop, &n->tell);
	make_more(n);
}

static int make_one(struct net *n)
{
	struct net_slot *s = calloc(1, sizeof(*s));
	struct net_job *j;
	int r;

	if (!s)
		return -ENOMEM;
	s->net = n;
	s->kit = MAKE_KIT_NONE;
	r = range_get(n->range, &s->place);
	if (r < 0) {
		free(s);
		return r;
	}
	s->plan = (struct make_plan){.host_ns = n->host_ns,
	                             .nft = n->nft,
	                             .host = range_host(n->range, s->place),
	                             .inner = range_inner(n->range, s->place),
	                             .conns_max = n->config.conns_max,
	                             .up_kbit = n->config.up_kbit,
	                             .down_kbit = n->config.down_kbit,
	                             .own = &n->own};
	j = job_new(n, s);
	if (j)
		j->making = true;
	r = j ? pool_submit(n->maker, job_make, job_made, j) : -ENOMEM;
	if (r < 0) {
		if (j)
			job_unlink(j);
		free(j);
		range_put(n->range, s->place);
		free(s);
		return r;
	}
	n->n_making++;
	return 0;
}

static void on_retry(void *arg)
{
	make_more(arg);
}

/* Until as many are ready, or on their way, as shall be; after a failure not at once. */
static void make_more(struct net *n)
{
	uint64_t now = loop_now_ms(n->loop);

	if (n->last_error && now < n->retry_ms) {
		loop_timer_set(n->loop, &n->retry, n->retry_ms);
		return;
	}
	while (n->n_ready + n->n_making < n->config.ready) {
		if (make_one(n) == 0)
			continue;
		/* All places are taken, or there is no memory: the next one that comes back asks
		 * again. Others on this host may have left theirs. */
		if (now < n->foreign_ms || !range_retry(n->range))
			break;
		n->foreign_ms = now + RETRY_MS;
	}
	if (now < n->foreign_ms && n->n_ready + n->n_making < n->config.ready)
		loop_timer_set(n->loop, &n->retry, n->foreign_ms);
}

/* "nameserver" lines. What is not IPv4 is passed over: the host may have an IPv6 resolver beside
 * it. */
static size_t read_resolv_conf(struct upstream_server *ret, size_t max)
{
	autofree char *text = NULL;
	char *line, *save = NULL;
	size_t len, n = 0;

	if (io_read_file(AT_FDCWD, "/etc/resolv.conf", RESOLV_CONF_MAX, &text, &len) < 0)
		return 0;
	for (line = strtok_r(text, "\n", &save); line && n < max;
	     line = strtok_r(NULL, "\n", &save)) {
		char word[64];
		uint32_t addr;

		if (sscanf(line, " nameserver %63s", word) != 1 || addr_parse(word, &addr) < 0)
			continue;
		ret[n++] = (struct upstream_server){.addr = addr, .port = 53};
	}
	return n;
}

static int open_upstream(struct net *n, const struct net_config *c, struct err *e)
{
	struct upstream_server servers[NET_RESOLVERS_MAX];
	size_t count = 0;

	if (c->n_resolvers > NET_RESOLVERS_MAX)
		return err_set(e, EINVAL, "bad_config", "at most %d resolvers", NET_RESOLVERS_MAX);
	for (; count < c->n_resolvers; count++)
		if (addr_parse_port(c->resolvers[count], 53, &servers[count].addr,
		                    &servers[count].port) < 0)
			return err_set(e, EINVAL, "bad_config",
			               "resolver '%s' is not an IPv4 address or address:port",
			               c->resolvers[count]);
	if (!count)
		count = read_resolv_conf(servers, ARRAY_LEN(servers));
	if (upstream_new(n->loop, servers, count, &n->up) < 0)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	return 0;
}

static int open_all(struct net *n, const struct net_config *c, struct err *e)
{
	const char *pool = c->pool ? c->pool : "10.200.0.0/16";
	char why[MAKE_WHY] = "";
	uint32_t first, last;
	int r;

	r = range_new(pool, &n->range);
	if (r == -EINVAL)
		return err_set(
		    e, EINVAL, "bad_config",
		    "address pool '%s' is not a network like 10.200.0.0/16 (prefix %d to %d)", pool,
		    RANGE_PREFIX_MIN, RANGE_PREFIX_MAX);
	if (r < 0)
		return err_set(e, -r, "no_memory", "out of memory");
	first = range_base(n->range);
	last = first + 4 * (range_total(n->range) - 1) + 3;
	if (first <= (uint32_t)GUEST_ADDR && last >= (uint32_t)GATEWAY_ADDR)
		return err_set(e, EINVAL, "bad_config",
		               "address pool '%s' contains 172.31.255.0/30, which guests use",
		               pool);
	if (!addr_closed(first) || !addr_closed(last))
		return err_set(e, EINVAL, "bad_config",
		               "address pool '%s' must be private, for example 10.200.0.0/16",
		               pool);
	if (c->wan && strlen(c->wan) >= sizeof(n->host.wan))
		return err_set(e, EINVAL, "bad_config", "interface '%s' is no interface", c->wan);
	n->nft = strdup(c->nft ? c->nft : "/usr/sbin/nft");
	if (!n->nft || nl_batch_new(&n->batch) < 0)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	r = net_policy_new(c->default_mode == NET_OPEN ? NET_OPEN : NET_OFF, NULL, 0,
	                   &n->default_policy, e);
	if (r < 0)
		return r;
	n->host_ns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (n->host_ns < 0)
		return err_set(e, errno, "net_unavailable", "cannot open /proc/thread-self/ns/net");
	r = open_upstream(n, c, e);
	if (r < 0)
		return r;
	n->host.nft = n->nft;
	n->host.base = range_base(n->range);
	n->host.prefix = range_prefix(n->range);
	if (c->wan)
		memcpy(n->host.wan, c->wan, strlen(c->wan));
	n->host_opened = true; /* also half */
	r = net_host_open(&n->host, why);
	if (r < 0)
		return err_set(e, -r, "net_unavailable", "no network for sandboxes: %s", why);
	r = pool_new(n->loop, 1, &n->maker);
	if (r == 0)
		r = pool_new(n->loop, BREAKERS, &n->breaker);
	if (r < 0)
		return err_set(e, -r, "net_unavailable", "cannot start threads");
	pool_on_drop(n->maker, free);
	pool_on_drop(n->breaker, free);
	return 0;
}

int net_new(const struct net_config *c, struct net **ret, struct err *e)
{
	struct net *n = calloc(1, sizeof(*n));
	int r;

	if (!n)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	n->loop = c->loop;
	n->config = *c;
	n->config.pool = n->config.wan = n->config.nft = NULL; /* the caller's */
	n->config.resolvers = NULL;
	n->config.ready =
	    MIN(c->ready ? c->ready : (unsigned)READY_DEFAULT, (unsigned)NET_READY_MAX);
	n->config.conns_max = c->conns_max ? c->conns_max : CONNS_DEFAULT;
	n->config.open_s = c->open_s ? c->open_s : OPEN_S_DEFAULT;
	n->config.names_per_s = c->names_per_s ? c->names_per_s : NAMES_PER_S_DEFAULT;
	n->host_ns = -1;
	n->waits_tail = &n->waits;
	n->retry = (struct loop_timer){.fn = on_retry, .arg = n};
	n->tell = (struct loop_defer){.fn = tell_waiters, .arg = n};
	r = open_all(n, c, e);
	if (r < 0) {
		net_free(n);
		return r;
	}
	make_more(n);
	*ret = n;
	return 0;
}

/* Nothing of the slot is on the loop after this. */
static void slot_quiet(struct net_slot *s)
{
	names_stop(s);
	relay_stop(s);
	audit_stop(s);
	net_policy_unref(s->policy);
	s->policy = NULL;
}

void net_free(struct net *n)
{
	if (!n)
		return;
	loop_timer_clear(n->loop, &n->retry);
	loop_timer_clear(n->loop, &n->sweep);
	loop_defer_cancel(n->loop, &n->tell);
	while (n->used) {
		struct net_slot *s = n->used;

		slot_unlink(s);
		slot_quiet(s);
		make_close(&s->kit); /* the machine has the tap, too, and goes on */
		slot_free(s);
	}
	while (n->ready) {
		struct net_slot *s = n->ready;

		slot_unlink(s);
		slot_undo(s);
	}
	/* All that was submitted has been worked on after this; whatever is still in the list is
	 * done or made. */
	pool_free(n->maker);
	pool_free(n->breaker);
	while (n->jobs) {
		struct net_job *j = n->jobs;

		job_unlink(j);
		if (j->slot->kit.ns >= 0)
			make_undo(&j->slot->plan, &j->slot->kit);
		slot_free(j->slot);
		j->slot = NULL; /* the loop still has the job */
	}
	if (n->host_opened)
		net_host_close(&n->host);
	range_free(n->range);
	upstream_free(n->up);
	nl_batch_free(n->batch);
	net_policy_unref(n->default_policy);
	if (n->host_ns >= 0)
		close(n->host_ns);
	free(n->nft);
	free(n);
}

/*
 * The sets say what the policy says. SET_FRESH: they are empty. SET_SAME: an earlier process has
 * set this very policy, and resolved names under it that we do not know; they stay open as long as
 * they would have.
 */
enum set_how {
	SET_FRESH,
	SET_NEW,
	SET_SAME,
};

static int apply(struct net_slot *s, enum set_how how)
{
	static const char *const sets[] = {"nets", "nets_port", "gen",
	                                   "now",  "names",     "names_port"};
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP};
	const struct net_policy *p = s->policy;
	uint32_t mark = policy_mark(p);
	struct nl_batch *b = s->net->batch;
	struct policy_net merged[NET_POLICY_ENTRIES_MAX];
	size_t n = 0;

	for (size_t i = 0; i < (how == SET_NEW ? 6 : 4); i++)
		if (how != SET_FRESH || i >= 2)
			nl_flush_set(b, sets[i]);
	if (p->mode == NET_OPEN)
		nl_add_net(b, "nets", 0, UINT32_MAX);
	for (size_t i = 0; i < p->n_nets; i++) {
		struct policy_net add = p->nets[i];

		if (add.port) {
			nl_add_addr_port(b, "nets_port", add.first, add.port, 0);
			continue;
		}
		/* The set takes no overlaps: whatever touches the new one becomes part of it. */
		for (size_t k = 0; k < n;) {
			if (merged[k].first <= add.last && add.first <= merged[k].last) {
				add.first = MIN(add.first, merged[k].first);
				add.last = MAX(add.last, merged[k].last);
				merged[k] = merged[--n];
				k = 0;
			} else {
				k++;
			}
		}
		merged[n++] = add;
	}
	for (size_t i = 0; i < n; i++)
		nl_add_net(b, "nets", merged[i].first, merged[i].last);
	if (how == SET_NEW)
		seen_refill(s, b);
	/* Connections that carry another number are judged again; see rules.c. */
	nl_add_mark(b, "gen", mark);
	for (size_t i = 0; i < ARRAY_LEN(protos); i++)
		nl_add_proto_mark(b, "now", protos[i], mark);
	return nl_commit(b, s->kit.nf);
}

static int slot_begin(struct net_slot *s, struct net_policy *p, void *owner, bool adopted)
{
	enum set_how how = SET_FRESH;
	uint32_t mark = 0;
	int r;

	s->owner = owner;
	s->policy = net_policy_ref(p ? p : s->net->default_policy);
	if (adopted) {
		r = nl_get_mark(s->kit.nf, "gen", &mark);
		how = r == 0 && mark == policy_mark(s->policy) ? SET_SAME : SET_NEW;
	}
	r = apply(s, how);
	if (r == 0)
		r = names_listen(s);
	if (r == 0)
		r = relay_listen(s);
	if (r == 0)
		r = audit_listen(s);
	if (r < 0) {
		slot_quiet(s);
		s->owner = NULL;
		return r;
	}
	s->used = true;
	s->went_out = adopted;
	slot_link(&s->net->used, s);
	return 0;
}

/* Whoever takes one is about to start a machine, and the cpu is for that: what was taken is made
 * again a little later, while enough are left. */
static void refill(struct net *n)
{
	if (n->n_ready + n->n_making > n->config.ready / 2)
		loop_timer_set(n->loop, &n->retry, loop_now_ms(n->loop) + REFILL_MS);
	else
		make_more(n);
}

int net_take(struct net *n, struct net_policy *p, void *owner, struct net_slot **ret, struct err *e)
{
	struct net_slot *s = n->ready;
	int r;

	if (!s) {
		make_more(n);
		if (n->last_error)
			return err_set(e, EAGAIN, "net_not_ready",
			               "no network slot could be prepared: %s", n->last_why);
		if (!n->n_making && range_used(n->range) == range_total(n->range))
			return err_set(e, ENOSPC, "net_full",
			               "all %u network addresses of this host are in use",
			               range_total(n->range));
		return err_set(e, EAGAIN, "net_not_ready", "no network slot is ready yet");
	}
	slot_unlink(s);
	n->n_ready--;
	r = slot_begin(s, p, owner, false);
	refill(n);
	if (r < 0) {
		slot_undo(s);
		return err_set(e, -r, "net_failed",
		               "cannot set the egress policy of a new slot: %s", strerror(-r));
	}
	*ret = s;
	return 0;
}

void net_wait(struct net *n, struct net_wait *w)
{
	w->next = NULL;
	w->prev = n->waits_tail;
	*n->waits_tail = w;
	n->waits_tail = &w->next;
	make_more(n);
	loop_defer(n->loop, &n->tell);
}

void net_wait_cancel(struct net *n, struct net_wait *w)
{
	if (!w->prev)
		return;
	if (w->next)
		w->next->prev = w->prev;
	else
		n->waits_tail = w->prev;
	*w->prev = w->next;
	w->next = NULL;
	w->prev = NULL;
}

/* Who makes slots may be trying this very place: it will find that it is taken. */
static int claim(struct net *n, uint32_t place)
{
	struct net_job *j;
	int r = range_claim(n->range, place);

	if (r != -EBUSY)
		return r;
	for (j = n->jobs; j; j = j->next) {
		if (j->making && j->slot->place == place && !j->slot->place_lost) {
			j->slot->place_lost = true;
			return 0;
		}
	}
	return r;
}

int net_adopt(struct net *n, int tap, struct net_policy *p, void *owner, struct net_slot **ret,
              struct err *e)
{
	struct net_slot *s = calloc(1, sizeof(*s));
	char why[MAKE_WHY] = "";
	uint32_t inner;
	int r;

	if (!s)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	s->net = n;
	r = make_adopt(n->host_ns, tap, &s->kit, &inner, why);
	if (r < 0) {
		free(s);
		return err_set(e, ESTALE, "net_stale", "cannot take up a network slot: %s", why);
	}
	r = range_find(n->range, inner, &s->place);
	if (r == 0)
		r = claim(n, s->place);
	if (r < 0) {
		s->kit.tap = -1; /* still the caller's */
		make_close(&s->kit);
		free(s);
		return err_set(e, ESTALE, "net_stale",
		               "the network slot has an address that is %s this host's pool",
		               r == -EBUSY ? "taken in" : "not in");
	}
	s->plan = (struct make_plan){.host_ns = n->host_ns,
	                             .nft = n->nft,
	                             .host = range_host(n->range, s->place),
	                             .inner = inner,
	                             /* As somebody else left it. */
	                             .conns_max = 0,
	                             .up_kbit = UINT64_MAX};
	r = slot_begin(s, p, owner, true);
	if (r < 0) {
		s->kit.tap = -1;
		make_close(&s->kit);
		range_put(n->range, s->place);
		slot_free(s);
		return err_set(e, -r, "net_failed", "cannot set the egress policy: %s",
		               strerror(-r));
	}
	*ret = s;
	return 0;
}

int net_set_policy(struct net_slot *s, struct net_policy *p, struct err *e)
{
	struct net_policy *old = s->policy;
	int r;

	s->policy = net_policy_ref(p ? p : s->net->default_policy);
	net_policy_unref(old);
	r = apply(s, SET_NEW);
	if (r == 0) {
		relay_recheck(s);
		return 0;
	}
	/* Rather nothing than what nobody asked for. */
	err_set(e, -r, "net_failed",
	        "cannot set the egress policy, the network of this sandbox is off now: %s",
	        strerror(-r));
	if (net_policy_new(NET_OFF, NULL, 0, &p, NULL) == 0) {
		net_policy_unref(s->policy);
		s->policy = p;
		apply(s, SET_NEW);
		relay_recheck(s);
	}
	return r;
}

/* The host's limit is the most anybody gets; 0: it has none. */
static uint64_t capped(uint64_t want, uint64_t most)
{
	return want && (!most || want < most) ? want : most;
}

int net_set_limits(struct net_slot *s, const struct net_limits *l, struct net_shape *ret,
                   struct err *e)
{
	const struct net_config *c = &s->net->config;
	unsigned conns = (unsigned)capped(l->conns, c->conns_max);
	uint64_t up = capped(l->up_kbit, c->up_kbit), down = capped(l->down_kbit, c->down_kbit);
	struct nl_batch *b = s->net->batch;
	int r;

	*ret = (struct net_shape){.host_ns = -1, .ns = -1};
	if (conns != s->plan.conns_max) {
		nl_limit_conns(b, "count_out", conns);
		nl_limit_conns(b, "count_in", conns);
		r = nl_commit(b, s->kit.nf);
		if (r < 0)
			return err_set(e, -r, "net_failed", "cannot limit connections: %s",
			               strerror(-r));
		s->plan.conns_max = conns;
	}
	if (up == s->plan.up_kbit && down == s->plan.down_kbit)
		return 0;
	ret->host_ns = fcntl(s->net->host_ns, F_DUPFD_CLOEXEC, 0);
	ret->ns = fcntl(s->kit.ns, F_DUPFD_CLOEXEC, 0);
	if (ret->host_ns < 0 || ret->ns < 0) {
		r = errno;
		net_shape(ret);
		return err_set(e, r, "net_failed", "cannot limit the bandwidth: %s", strerror(r));
	}
	ret->up_kbit = s->plan.up_kbit = up;
	ret->down_kbit = s->plan.down_kbit = down;
	return 0;
}

int net_shape(struct net_shape *sh)
{
	int r = 0;

	if (sh->host_ns >= 0 && sh->ns >= 0)
		r = make_shape(sh->host_ns, sh->ns, sh->up_kbit, sh->down_kbit);
	if (sh->host_ns >= 0)
		close(sh->host_ns);
	if (sh->ns >= 0)
		close(sh->ns);
	*sh = (struct net_shape){.host_ns = -1, .ns = -1};
	return r;
}

void net_return(struct net_slot *s)
{
	if (!s)
		return;
	slot_unlink(s);
	s->used = false;
	slot_quiet(s);
	slot_undo(s);
}

int net_slot_tap(const struct net_slot *s)
{
	return s->kit.tap;
}

void net_slot_addr(const struct net_slot *s, char ret[16])
{
	addr_text(s->plan.inner, ret);
}

int net_slot_counters(struct net_slot *s, struct net_counters *ret)
{
	struct net_counters c = {.names = s->count_names,
	                         .names_refused = s->count_names_refused,
	                         .names_limited = s->count_names_limited,
	                         .events_lost = s->count_lost};
	struct mnl_socket *nf = s->kit.nf;
	int r;

	r = nl_counter(nf, NFPROTO_IPV4, "panda", "up", &c.up_packets, &c.up_bytes);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_IPV4, "panda", "down", &c.down_packets, &c.down_bytes);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_IPV4, "panda", "refused", &c.refused, NULL);
	if (r == 0)
		r = nl_counter(nf, NFPROTO_NETDEV, "panda", "odd", &c.odd, NULL);
	if (r == 0)
		*ret = c;
	return r;
}
