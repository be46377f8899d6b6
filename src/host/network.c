#include "host/host_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/pool.h"
#include "host/event.h"
#include "host/host.h"
#include "host/network.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "net/net.h"
#include "template/depot.h"

/* Of one sandbox, on record, of each kind: what was refused shall not hide what was allowed. The
 * others are only counted, and net.dropped tells how many. */
static const unsigned per_second[] = {[NET_ALLOWED] = 50, [NET_REFUSED] = 20, [NET_CLOSED] = 50};

enum {
	KEPT = 1000, /* of one sandbox and kind: it pushes out what is its own */
	TRIM_EVERY = 250,
	TELL_DROPPED_MS = 10000,
};

/* Whose network it is; some of it is told when the sandbox is no more. */
struct owner {
	char tenant[TENANT_MAX + 1], id[SANDBOX_ID + 1];
	uint64_t second;                      /* it was last heard of, */
	unsigned told[ARRAY_LEN(per_second)]; /* and how often in it */
	unsigned recorded[ARRAY_LEN(per_second)];
	struct host *host;
	uint64_t dropped; /* events, since the last that says so */
	struct loop_timer tell;
};

static void tell_dropped(void *arg)
{
	struct owner *o = arg;
	uint64_t n = o->dropped;

	o->dropped = 0;
	event_emit(&o->host->events, o->tenant, o->id, "net.dropped",
	           json_pack("{s:I}", "count", (json_int_t)n));
}

static struct owner *owner_new(const struct sandbox *sb)
{
	struct owner *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->host = sb->host;
	o->tell = (struct loop_timer){.fn = tell_dropped, .arg = o};
	memcpy(o->tenant, sb->tenant, sizeof(o->tenant));
	memcpy(o->id, sb->id, sizeof(o->id));
	return o;
}

/* It is counted, and some time later one event tells of all that were. */
static void drop(struct owner *o)
{
	struct loop *l = o->host->loop;

	if (!o->dropped++)
		(void)loop_timer_set(l, &o->tell, loop_now_ms(l) + TELL_DROPPED_MS);
}

static void on_gone(void *arg, void *owner)
{
	struct owner *o = owner;

	loop_timer_clear(o->host->loop, &o->tell);
	if (o->dropped)
		tell_dropped(o);
	free(o);
}

static void on_event(void *arg, const struct net_event *ev)
{
	struct host *h = arg;
	struct owner *o = ev->owner;
	static const char *const types[] = {[NET_ALLOWED] = "net.allowed",
	                                    [NET_REFUSED] = "net.refused",
	                                    [NET_CLOSED] = "net.closed"};
	uint64_t second = ev->time_ms / 1000;
	char address[INET_ADDRSTRLEN];
	json_t *j;

	if (!o)
		return;
	if (o->second != second) {
		o->second = second;
		memset(o->told, 0, sizeof(o->told));
	}
	if (++o->told[ev->verdict] > per_second[ev->verdict]) {
		drop(o);
		return;
	}
	inet_ntop(AF_INET, ev->addr, address, sizeof(address));
	j = json_pack("{s:s, s:i, s:i, s:s, s:s*}", "address", address, "port", (int)ev->port,
	              "proto", (int)ev->proto, "name", ev->name ? ev->name : "", "why", ev->why);
	if (ev->verdict == NET_CLOSED) {
		json_object_set_new(j, "up_bytes", json_integer((json_int_t)ev->bytes_up));
		json_object_set_new(j, "down_bytes", json_integer((json_int_t)ev->bytes_down));
	}
	if (!event_emit_net(&h->events, o->tenant, o->id, types[ev->verdict], j))
		drop(o);
	else if (++o->recorded[ev->verdict] % TRIM_EVERY == 0)
		events_trim(&h->events, o->tenant, o->id, types[ev->verdict], KEPT);
}

void network_open(struct host *h)
{
	struct net_config c = h->config.net;
	struct err e;

	if (!h->config.network)
		return;
	c.loop = h->loop;
	c.ready = h->config.prepare_ahead;
	c.event = on_event;
	c.gone = on_gone;
	c.arg = h;
	if (net_new(&c, &h->net, &e) < 0) {
		h->net = NULL;
		log_warn("sandboxes have no network on this host why=\"%s\"", e.text);
	}
}

void network_close(struct host *h)
{
	if (h->net)
		net_free(h->net);
	h->net = NULL;
	h->depot.net = NULL;
}

/* ---- what a spec says ---- */

const json_t *network_allow(const json_t *egress)
{
	const json_t *v = json_is_object(egress) ? json_object_get(egress, "allow") : egress;

	return json_is_null(v) ? NULL : v;
}

const json_t *network_limits(const json_t *egress)
{
	return json_is_object(egress) ? json_object_get(egress, "limits") : NULL;
}

int network_join(const json_t *allow, const json_t *limits, json_t **ret)
{
	*ret = limits ? json_pack("{s:O?, s:O}", "allow", allow, "limits", limits)
	              : json_incref((json_t *)allow);
	return *ret || !(allow || limits) ? 0 : -ENOMEM;
}

static enum net_mode mode_of(const struct host *h, const json_t *allow)
{
	if (!allow)
		return h->config.net.egress_deny ? NET_OFF : NET_OPEN;
	if (json_is_string(allow))
		return NET_OPEN;
	return json_array_size(allow) ? NET_LIST : NET_OFF;
}

static enum net_mode mode_max(const struct host *h)
{
	const char *word = h->config.net.egress_max;
	enum net_mode max = NET_OPEN;

	if (word && net_mode_parse(word, &max) < 0)
		return NET_OFF; /* net_new() has refused it */
	return max;
}

const char *network_mode(const struct host *h, const json_t *egress)
{
	enum net_mode mode = mode_of(h, network_allow(egress));

	if (mode == NET_OFF || !net_mode_within(mode, mode_max(h)))
		return "off";
	return mode == NET_LIST ? "list" : "open";
}

/* NULL in *ret: the host's default. */
static int policy_of(const json_t *egress, struct net_policy **ret, struct err *e)
{
	const json_t *v, *allow = network_allow(egress);
	const char *entries[NET_POLICY_ENTRIES_MAX];
	size_t i, n = 0;
	int r;

	*ret = NULL;
	if (!allow)
		return 0;
	json_array_foreach(allow, i, v) {
		if (n == NET_POLICY_ENTRIES_MAX || !json_is_string(v))
			return err_set(e, E2BIG, "bad_request",
			               "egress_allowlist: at most %d entries, all of them text",
			               NET_POLICY_ENTRIES_MAX);
		entries[n++] = json_string_value(v);
	}
	r = net_policy_new(json_is_string(allow) ? NET_OPEN
	                   : n                   ? NET_LIST
	                                         : NET_OFF,
	                   entries, n, ret, e);
	if (r < 0 && e)
		e->kind = "bad_request";
	return r;
}

int network_check(struct host *h, const json_t *egress, struct err *e)
{
	const json_t *allow = network_allow(egress);
	enum net_mode max = mode_max(h);
	struct net_policy *p;
	int r = policy_of(egress, &p, e);

	if (r < 0)
		return r;
	if (p && h->net)
		r = net_check(h->net, p, e);
	net_policy_unref(p);
	if (r < 0 && e)
		e->kind = "bad_request";
	if (r < 0 || !allow || net_mode_within(mode_of(h, allow), max))
		return r;
	if (max == NET_OFF)
		return err_set(e, EPERM, "forbidden",
		               "sandboxes of this host reach nothing (egress_max = off): leave out "
		               "egress and egress_allowlist");
	return err_set(e, EPERM, "forbidden",
	               "this host opens the whole internet to no sandbox (egress_max = list): name "
	               "what it shall reach in egress_allowlist");
}

/* ---- limits ---- */

static uint64_t limit_of(const json_t *egress, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(network_limits(egress), key));

	return v > 0 ? (uint64_t)v : 0;
}

/* Bandwidth is set by a thread: the kernel may let it wait. */
struct shaping {
	struct net_shape shape;
	int error;
	char id[SANDBOX_ID + 1];
	struct sandbox *sb; /* with ready: its operation waits for us, it cannot go away */
	void (*ready)(void *arg, const struct err *e);
	void *arg;
};

static void shape_work(void *arg)
{
	struct shaping *s = arg;

	s->error = net_shape(&s->shape);
}

static void shape_done(void *arg)
{
	struct shaping *s = arg;
	struct err e;

	if (s->error < 0) {
		err_set(&e, -s->error, "net_failed",
		        "cannot limit the bandwidth of the sandbox: %s (kernel option NET_SCH_TBF)",
		        strerror(-s->error));
		if (s->ready)
			network_return(s->sb);
		else
			log_warn("the bandwidth of a sandbox is as it was sandbox=%s why=\"%s\"",
			         s->id, e.text);
	}
	if (s->ready)
		s->ready(s->arg, s->error < 0 ? &e : NULL);
	free(s);
}

/* ready NULL: no caller waits. Else it is called, maybe at once. */
static int limit(struct sandbox *sb, void (*ready)(void *arg, const struct err *e), void *arg,
                 struct err *e)
{
	struct net_limits l = {.conns = (unsigned)limit_of(sb->spec.egress, "connections"),
	                       .up_kbit = limit_of(sb->spec.egress, "up_kbit"),
	                       .down_kbit = limit_of(sb->spec.egress, "down_kbit")};
	struct shaping *s = calloc(1, sizeof(*s));
	int r = s ? net_set_limits(sb->slot, &l, &s->shape, e) : err_nomem(e);

	if (r == 0 && s->shape.ns >= 0) {
		s->sb = sb;
		s->ready = ready;
		s->arg = arg;
		memcpy(s->id, sb->id, sizeof(s->id));
		r = pool_submit(sb->host->pool, shape_work, shape_done, s);
		if (r == 0)
			return 0;
		net_shape(&s->shape);
		err_set(e, -r, "no_memory", "no memory");
	}
	free(s);
	if (r == 0 && ready)
		ready(arg, NULL);
	return r;
}

struct taking {
	struct net_wait wait;
	struct sandbox *sb; /* its operation waits for us: it cannot go away */
	void (*ready)(void *arg, const struct err *e);
	void *arg;
};

/* tap -1: a fresh slot; else the one that this is the tap of, which takes it over. */
static int take_now(struct sandbox *sb, int tap, struct err *e)
{
	struct owner *o = owner_new(sb);
	struct net_policy *p = NULL;
	int r = o ? policy_of(sb->spec.egress, &p, e) : err_nomem(e);

	if (r == 0)
		r = tap < 0 ? net_take(sb->host->net, p, o, &sb->slot, e)
		            : net_adopt(sb->host->net, tap, p, o, &sb->slot, e);
	if (r < 0)
		free(o);
	net_policy_unref(p);
	return r;
}

/* What take_now() gave, with its limits; then the sandbox has its network. */
static void taken(struct sandbox *sb, int r, struct err *e,
                  void (*ready)(void *arg, const struct err *e), void *arg)
{
	if (r == 0)
		r = limit(sb, ready, arg, e);
	if (r == 0)
		return;
	network_return(sb);
	ready(arg, e);
}

static void take_again(void *arg, int error)
{
	struct taking *t = arg;
	struct err e;
	int r = error < 0
	            ? err_set(&e, -error, "host_full",
	                      "no network could be made for the sandbox: %s", strerror(-error))
	            : take_now(t->sb, -1, &e);

	if (r == -EAGAIN) {
		net_wait(t->sb->host->net, &t->wait);
		return;
	}
	taken(t->sb, r, &e, t->ready, t->arg);
	free(t);
}

void network_take(struct sandbox *sb, void (*ready)(void *arg, const struct err *e), void *arg)
{
	struct taking *t;
	struct err e;
	int r;

	if (!sb->host->net || sb->slot) {
		ready(arg, NULL);
		return;
	}
	r = take_now(sb, -1, &e);
	if (r != -EAGAIN) {
		taken(sb, r, &e, ready, arg);
		return;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		err_nomem(&e);
		ready(arg, &e);
		return;
	}
	*t = (struct taking){.wait = {.fn = take_again, .arg = t},
	                     .sb = sb,
	                     .ready = ready,
	                     .arg = arg};
	net_wait(sb->host->net, &t->wait);
}

int network_fd(const struct sandbox *sb)
{
	return sb->slot ? net_slot_tap(sb->slot) : -1;
}

void network_return(struct sandbox *sb)
{
	if (sb->slot)
		net_return(take_ptr(sb->slot));
}

void network_adopt(struct sandbox *sb)
{
	struct engine_machine m = {.pidfd = sb->pidfd, .net = true};
	struct host *h = sb->host;
	autoclose int tap = -1;
	struct err e;

	if (!h->net)
		return;
	if (machine_net_fd(&h->machines, &m, &tap, NULL) < 0)
		return; /* it never had a network */
	if (take_now(sb, tap, &e) == 0) {
		take_fd(&tap);
		return;
	}
	log_warn("the network of a sandbox cannot be taken up again, it has none now "
	         "sandbox=%s why=\"%s\"",
	         sb->id, e.text);
}

int network_apply(struct sandbox *sb, struct err *e)
{
	struct net_policy *p;
	int r = policy_of(sb->spec.egress, &p, e);

	if (r == 0 && sb->slot)
		r = net_set_policy(sb->slot, p, e);
	net_policy_unref(p);
	if (r == 0 && sb->slot)
		r = limit(sb, NULL, NULL, e);
	return r;
}

int host_set_egress(struct host *h, struct sandbox *sb, json_t *egress, struct err *e)
{
	json_t *had = sb->spec.egress;
	const json_t *allow = network_allow(egress);
	/* A change of its limits leaves alone what it may reach. */
	bool same = allow && json_equal(allow, network_allow(had));
	int r = same ? 0 : network_check(h, egress, e);

	if (r < 0) {
		json_decref(egress);
		return r;
	}
	sb->spec.egress = egress;
	r = record_update(sb, e);
	if (r == 0)
		r = network_apply(
		    sb, e); /* should that fail, it is shut, and on record as it shall be */
	else
		sb->spec.egress = had;
	json_decref(sb->spec.egress == had ? egress : had);
	return r;
}

void host_address(const struct sandbox *sb, char ret[16], const char **ret_mac)
{
	ret[0] = 0;
	*ret_mac = sb->slot ? NET_GUEST_MAC : "";
	if (sb->slot)
		net_slot_addr(sb->slot, ret);
}

void host_net(struct host *h, const struct sandbox *sb, struct host_net *ret)
{
	struct net_counters c = {0};

	*ret = (struct host_net){0};
	if (!sb->slot || net_slot_counters(sb->slot, &c) < 0)
		return;
	*ret = (struct host_net){.up_bytes = c.up_bytes,
	                         .down_bytes = c.down_bytes,
	                         .up_packets = c.up_packets,
	                         .down_packets = c.down_packets,
	                         .refused = c.refused,
	                         .odd = c.odd,
	                         .names = c.names,
	                         .names_refused = c.names_refused,
	                         .names_limited = c.names_limited,
	                         .events_lost = c.events_lost};
}
