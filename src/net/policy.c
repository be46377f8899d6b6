#include "net/policy.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/macro.h"
#include "net/addr.h"
#include "net/net.h"

int policy_clean_name(const char *text, char ret[POLICY_NAME_MAX + 1])
{
	size_t n = strlen(text), label = 0, labels = 1;
	bool digits = true;

	if (n && text[n - 1] == '.')
		n--;
	if (n == 0 || n > POLICY_NAME_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		char c = text[i];

		if (c == '.') {
			if (label == 0 || text[i - 1] == '-')
				return -EINVAL;
			labels++;
			label = 0;
			digits = true;
			ret[i] = c;
			continue;
		}
		if (c >= 'A' && c <= 'Z')
			c = (char)(c - 'A' + 'a');
		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-') ||
		    (c == '-' && label == 0) || ++label > 63)
			return -EINVAL;
		if (c < '0' || c > '9')
			digits = false;
		ret[i] = c;
	}
	/* A last label of digits would be a mistyped address. */
	if (label == 0 || text[n - 1] == '-' || digits)
		return -EINVAL;
	ret[n] = '\0';
	return (int)labels;
}

static int bad(struct err *e, const char *entry, const char *why)
{
	char shown[80];
	size_t i;

	/* The client sent it: only what is harmless to print is repeated. */
	for (i = 0; i < sizeof(shown) - 1 && entry[i]; i++)
		shown[i] = entry[i] > ' ' && entry[i] < 127 && entry[i] != '"' ? entry[i] : '?';
	shown[i] = '\0';
	return err_set(e, EINVAL, "bad_egress", "egress entry \"%s\": %s", shown, why);
}

static int add_net(struct net_policy *p, const char *entry, uint32_t first, uint32_t last,
                   uint16_t port, struct err *e)
{
	struct addr_net closed;

	/* One that is open nowhere is a mistake; the closed part of a larger one stays closed. */
	for (size_t i = 0; i < addr_n_closed_ranges; i++) {
		char why[100];

		if (addr_parse_net(addr_closed_ranges[i].net, &closed) < 0 ||
		    first < closed.first || last > closed.last)
			continue;
		snprintf(why, sizeof(why), "%s (%s) is closed to all sandboxes",
		         addr_closed_ranges[i].net, addr_closed_ranges[i].what);
		return bad(e, entry, why);
	}
	p->nets[p->n_nets++] = (struct policy_net){.first = first, .last = last, .port = port};
	return 0;
}

static int add_name(struct net_policy *p, const char *entry, struct err *e)
{
	char clean[POLICY_NAME_MAX + 1], host[POLICY_NAME_MAX + 2];
	const char *text = entry, *colon;
	bool below = false, udp = false;
	struct policy_name *n;
	char number[16] = "";
	uint16_t port = 0;
	size_t len;

	if (strcmp(text, "*") == 0)
		return bad(e, entry, "for all of the public internet give no list at all");
	if (strncmp(text, "*.", 2) == 0) {
		below = true;
		text += 2;
	}
	if (strchr(text, '*'))
		return bad(e, entry, "a star stands only in front: *.example.com");
	colon = strchr(text, ':');
	len = colon ? (size_t)(colon - text) : strlen(text);
	if (colon && strlen(colon + 1) < sizeof(number)) {
		char *slash;

		memcpy(number, colon + 1, strlen(colon + 1) + 1);
		slash = strchr(number, '/');
		udp = slash && strcmp(slash, "/udp") == 0;
		if (udp || (slash && strcmp(slash, "/tcp") == 0))
			*slash = '\0';
	}
	if (colon ? strchr(number, '/') || strstr(colon, "//") : strchr(text, '/') != NULL)
		return bad(
		    e, entry,
		    "write the name alone, without https:// and path, or a network as 1.2.3.0/24; "
		    "UDP is name:port/udp");
	if (colon && strchr(colon + 1, ':'))
		return bad(e, entry, "IPv6 is off in sandboxes; list names or IPv4 addresses");
	if (colon && addr_parse_number16(number, &port) < 0)
		return bad(e, entry, "the port behind ':' must be 1 to 65535");
	if (len >= sizeof(host))
		return bad(e, entry, "longer than a host name can be (253)");
	memcpy(host, text, len);
	host[len] = '\0';
	switch (policy_clean_name(host, clean)) {
	case -EINVAL:
		return bad(
		    e, entry,
		    "not a host name, *.name, name:port, name:port/udp, IPv4 address or network; "
		    "names with other letters are written as xn--");
	case 1:
		if (!below)
			return bad(e, entry, "a public name has a dot");
	}
	n = &p->names[p->n_names];
	n->name = strdup(clean);
	if (!n->name)
		return err_nomem(e);
	n->below = below;
	n->udp = udp;
	n->port = port;
	p->n_names++;
	return 0;
}

static int add_entry(struct net_policy *p, const char *entry, struct err *e)
{
	struct addr_net net;
	uint16_t port;
	uint32_t a;

	if (addr_parse_port(entry, 0, &a, &port) == 0)
		return add_net(p, entry, a, a, port, e);
	if (addr_parse_net(entry, &net) == 0)
		return add_net(p, entry, net.first, net.last, 0, e);
	return add_name(p, entry, e);
}

int net_policy_new(enum net_mode mode, const char *const *entries, size_t n,
                   struct net_policy **ret, struct err *e)
{
	struct net_policy *p;
	int r;

	if (n > NET_POLICY_ENTRIES_MAX)
		return err_set(e, E2BIG, "bad_egress",
		               "an egress list has at most %d entries, this one has %zu",
		               NET_POLICY_ENTRIES_MAX, n);
	if (mode != NET_LIST && n)
		return err_set(e, EINVAL, "bad_egress", "only an egress list has entries");
	p = calloc(1, sizeof(*p));
	if (!p)
		return err_nomem(e);
	p->refs = 1;
	p->mode = n || mode != NET_LIST ? mode : NET_OFF;
	if (n) {
		p->nets = calloc(n, sizeof(*p->nets));
		p->names = calloc(n, sizeof(*p->names));
		if (!p->nets || !p->names) {
			net_policy_unref(p);
			return err_nomem(e);
		}
	}
	for (size_t i = 0; i < n; i++) {
		r = add_entry(p, entries[i], e);
		if (r < 0) {
			net_policy_unref(p);
			return r;
		}
	}
	*ret = p;
	return 0;
}

struct net_policy *net_policy_ref(struct net_policy *p)
{
	if (p)
		p->refs++;
	return p;
}

void net_policy_unref(struct net_policy *p)
{
	if (!p || --p->refs)
		return;
	for (size_t i = 0; i < p->n_names; i++)
		free(p->names[i].name);
	free(p->names);
	free(p->nets);
	free(p);
}

static uint64_t mix(uint64_t h, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	while (n--)
		h = (h ^ *p++) * 1099511628211u; /* FNV-1a */
	return h;
}

uint32_t policy_mark(const struct net_policy *p)
{
	uint64_t h = 14695981039346656037u;
	uint8_t mode = (uint8_t)p->mode;

	h = mix(h, &mode, sizeof(mode));
	for (size_t i = 0; i < p->n_nets; i++) {
		h = mix(h, &p->nets[i].first, sizeof(p->nets[i].first));
		h = mix(h, &p->nets[i].last, sizeof(p->nets[i].last));
		h = mix(h, &p->nets[i].port, sizeof(p->nets[i].port));
	}
	for (size_t i = 0; i < p->n_names; i++) {
		h = mix(h, p->names[i].name, strlen(p->names[i].name) + 1);
		h = mix(h, &p->names[i].below, 1);
		h = mix(h, &p->names[i].udp, 1);
		h = mix(h, &p->names[i].port, sizeof(p->names[i].port));
	}
	return (uint32_t)(h ^ h >> 32) | 1;
}

static bool name_matches(const struct policy_name *n, const char *name)
{
	size_t len, have;

	if (!n->below)
		return strcmp(n->name, name) == 0;
	len = strlen(n->name);
	have = strlen(name);
	return have > len + 1 && name[have - len - 1] == '.' &&
	       strcmp(name + have - len, n->name) == 0;
}

static void add_port(uint16_t ports[POLICY_PORTS_MAX], size_t *n, uint16_t port)
{
	for (size_t i = 0; i < *n; i++)
		if (ports[i] == port)
			return;
	if (*n < POLICY_PORTS_MAX)
		ports[(*n)++] = port;
}

bool policy_reach(const struct net_policy *p, const char *name, struct policy_reach *ret)
{
	struct policy_reach r = {0};
	bool any = p->mode == NET_OPEN;

	for (size_t i = 0; p->mode == NET_LIST && i < p->n_names; i++) {
		const struct policy_name *n = &p->names[i];

		if (!name_matches(n, name))
			continue;
		any = true;
		if (n->port == 0)
			r.web = true;
		else if (n->udp)
			add_port(r.udp, &r.n_udp, n->port);
		else
			add_port(r.tcp, &r.n_tcp, n->port);
	}
	*ret = r;
	return any;
}

bool policy_resolves(const struct net_policy *p, const char *name)
{
	struct policy_reach r;

	return policy_reach(p, name, &r);
}

bool policy_allows_name(const struct net_policy *p, const char *name, uint16_t port)
{
	bool web = port == POLICY_HTTP || port == POLICY_TLS;

	if (p->mode != NET_LIST)
		return p->mode == NET_OPEN;
	for (size_t i = 0; i < p->n_names; i++) {
		const struct policy_name *n = &p->names[i];

		if (!n->udp && (n->port ? n->port == port : web) && name_matches(n, name))
			return true;
	}
	return false;
}

bool net_mode_within(enum net_mode mode, enum net_mode max)
{
	static const int order[] = {[NET_OFF] = 0, [NET_LIST] = 1, [NET_OPEN] = 2};

	return order[mode] <= order[max];
}

int net_mode_parse(const char *word, enum net_mode *ret)
{
	static const char *const words[] = {
	    [NET_OFF] = "off", [NET_OPEN] = "open", [NET_LIST] = "list"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		if (strcmp(word, words[i]) == 0) {
			*ret = (enum net_mode)i;
			return 0;
		}
	}
	return -EINVAL;
}
