#include "core/host_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "net/net.h"

enum {
	EVENTS_PER_SECOND = 20, /* of one sandbox, on record; the others are only counted */
};

static void on_event(void *arg, const struct net_event *ev)
{
	struct host *h = arg;
	struct sandbox *sb = ev->owner;
	uint64_t second = ev->time_ms / 1000;
	char address[INET_ADDRSTRLEN];

	if (!sb || ev->verdict == NET_CLOSED)
		return;
	if (sb->net_second != second) {
		sb->net_second = second;
		sb->net_events = 0;
	}
	if (++sb->net_events > EVENTS_PER_SECOND)
		return;
	inet_ntop(AF_INET, ev->addr, address, sizeof(address));
	event_emit(&h->events, sb->tenant, sb->id,
	           ev->verdict == NET_REFUSED ? "net.refused" : "net.allowed",
	           json_pack("{s:s, s:i, s:i, s:s, s:s*}", "address", address, "port",
	                     (int)ev->port, "proto", (int)ev->proto, "name",
	                     ev->name ? ev->name : "", "why", ev->why));
}

void network_open(struct host *h)
{
	struct net_config c = {.loop = h->loop,
	                       .pool = h->config.net_pool,
	                       .ready = h->config.prepare_ahead,
	                       .default_mode = h->config.egress_deny ? NET_OFF : NET_OPEN,
	                       .resolvers = h->config.resolvers,
	                       .n_resolvers = h->config.nresolvers,
	                       .wan = h->config.wan,
	                       .event = on_event,
	                       .arg = h};
	struct err e;

	if (h->config.network_off)
		return;
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
}

/* NULL in *ret: the host's default. */
static int policy_of(const json_t *egress, struct net_policy **ret, struct err *e)
{
	const char *entries[NET_POLICY_ENTRIES_MAX];
	const json_t *v;
	size_t i, n = 0;
	int r;

	*ret = NULL;
	if (!egress)
		return 0;
	json_array_foreach(egress, i, v)
	{
		if (n == NET_POLICY_ENTRIES_MAX || !json_is_string(v))
			return err_set(e, E2BIG, "bad_request",
			               "egress_allowlist: at most %d entries, all of them text",
			               NET_POLICY_ENTRIES_MAX);
		entries[n++] = json_string_value(v);
	}
	r = net_policy_new(n ? NET_LIST : NET_OFF, entries, n, ret, e);
	if (r < 0 && e)
		e->kind = "bad_request";
	return r;
}

int network_check(const json_t *egress, struct err *e)
{
	struct net_policy *p;
	int r = policy_of(egress, &p, e);

	if (r == 0)
		net_policy_unref(p);
	return r;
}

struct taking {
	struct net_wait wait;
	struct sandbox *sb; /* its operation waits for us: it cannot go away */
	void (*ready)(void *arg, const struct err *e);
	void *arg;
};

static int take_now(struct sandbox *sb, struct err *e)
{
	struct net_policy *p;
	int r = policy_of(sb->spec.egress, &p, e);

	if (r < 0)
		return r;
	r = net_take(sb->host->net, p, sb, &sb->slot, e);
	net_policy_unref(p);
	return r;
}

static void take_again(void *arg, int error)
{
	struct taking *t = arg;
	struct err e;
	int r = error < 0
	            ? err_set(&e, -error, "host_full",
	                      "no network could be made for the sandbox: %s", strerror(-error))
	            : take_now(t->sb, &e);

	if (r == -EAGAIN) {
		net_wait(t->sb->host->net, &t->wait);
		return;
	}
	t->ready(t->arg, r < 0 ? &e : NULL);
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
	r = take_now(sb, &e);
	if (r != -EAGAIN) {
		ready(arg, r < 0 ? &e : NULL);
		return;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		err_set(&e, ENOMEM, "no_memory", "no memory");
		ready(arg, &e);
		return;
	}
	*t = (struct taking){
	    .wait = {.fn = take_again, .arg = t}, .sb = sb, .ready = ready, .arg = arg};
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
	struct host *h = sb->host;
	autoclose int tap = -1;
	struct net_policy *p = NULL;
	struct err e;
	int r;

	if (!h->net)
		return;
	tap = pidfd_getfd(sb->pidfd, (int)h->engine->net_slot, 0);
	if (tap < 0)
		return; /* it never had a network */
	r = policy_of(sb->spec.egress, &p, &e);
	if (r == 0)
		r = net_adopt(h->net, tap, p, sb, &sb->slot, &e);
	net_policy_unref(p);
	if (r == 0)
		take_fd(&tap);
	else
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
	return r;
}

int host_set_egress(struct host *h, struct sandbox *sb, json_t *egress, struct err *e)
{
	json_t *had = sb->spec.egress;
	int r = network_check(egress, e);

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
	                         .refused = c.refused,
	                         .names = c.names,
	                         .names_refused = c.names_refused};
}
