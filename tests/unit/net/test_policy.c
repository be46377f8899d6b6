#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "net/policy.h"

static struct net_policy *list(size_t n, const char *const *entries)
{
	struct net_policy *p;
	struct err e = {0};

	if (net_policy_new(NET_LIST, entries, n, &p, &e) < 0)
		fail_msg("%s", e.text);
	return p;
}

#define LIST(...) \
	list(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

static void names_match_as_they_are_written(void **state)
{
	struct net_policy *p =
	    LIST("api.example.com", "*.wild.example", "Mixed.Example.", "port.example:8443");

	assert_true(policy_allows_name(p, "api.example.com", 443));
	assert_true(policy_allows_name(p, "api.example.com", 80));
	assert_false(policy_allows_name(p, "api.example.com", 8443));
	assert_false(policy_allows_name(p, "xapi.example.com", 443));
	assert_false(policy_allows_name(p, "api.example.com.evil.example", 443));
	assert_false(policy_allows_name(p, "example.com", 443));
	assert_false(policy_allows_name(p, "a.api.example.com", 443));
	assert_true(policy_allows_name(p, "a.wild.example", 443));
	assert_true(policy_allows_name(p, "a.b.wild.example", 443));
	assert_false(policy_allows_name(p, "wild.example", 443));
	assert_false(policy_allows_name(p, ".wild.example", 443));
	assert_false(policy_allows_name(p, "xwild.example", 443));
	assert_true(policy_allows_name(p, "mixed.example", 443));
	assert_true(policy_allows_name(p, "port.example", 8443));
	assert_false(policy_allows_name(p, "port.example", 443));
	net_policy_unref(p);
}

static void ports_of_a_name_are_collected(void **state)
{
	struct net_policy *p = LIST("a.example:80", "*.example:22/tcp", "b.example", "b.example:1",
	                            "a.example:22", "a.example:443/udp", "c.example:9/udp");
	struct policy_reach to;

	assert_true(policy_reach(p, "a.example", &to));
	assert_false(to.web);
	assert_int_equal(to.n_tcp, 2);
	assert_int_equal(to.tcp[0], 80);
	assert_int_equal(to.tcp[1], 22);
	assert_int_equal(to.n_udp, 1);
	assert_int_equal(to.udp[0], 443);
	assert_true(policy_reach(p, "b.example", &to));
	assert_true(to.web);
	assert_int_equal(to.n_tcp, 2);
	assert_int_equal(to.n_udp, 0);
	assert_false(policy_reach(p, "example", &to));
	/* UDP is no TCP. */
	assert_true(policy_resolves(p, "c.example"));
	assert_false(policy_allows_name(p, "c.example", 9));
	assert_false(policy_allows_name(p, "a.example", 443));
	net_policy_unref(p);
}

/* The rules and the relay are told that a policy is the same by this number. */
static void what_says_something_else_has_another_mark(void **state)
{
	struct net_policy *p = LIST("a.example:9"), *q = LIST("a.example:9/udp"),
			  *r = LIST("a.example:9/tcp");

	assert_int_not_equal(policy_mark(p), policy_mark(q));
	assert_int_equal(policy_mark(p), policy_mark(r));
	net_policy_unref(p);
	net_policy_unref(q);
	net_policy_unref(r);
}

static void a_list_is_less_than_open(void **state)
{
	enum net_mode mode;

	assert_true(net_mode_within(NET_OFF, NET_OFF));
	assert_true(net_mode_within(NET_OFF, NET_LIST));
	assert_true(net_mode_within(NET_LIST, NET_LIST));
	assert_true(net_mode_within(NET_LIST, NET_OPEN));
	assert_false(net_mode_within(NET_LIST, NET_OFF));
	assert_false(net_mode_within(NET_OPEN, NET_LIST));
	assert_int_equal(net_mode_parse("list", &mode), 0);
	assert_int_equal(mode, NET_LIST);
	assert_int_equal(net_mode_parse("lists", &mode), -EINVAL);
}

static void assert_net(const struct policy_net *n, uint32_t first, uint32_t last, uint16_t port)
{
	assert_int_equal(n->first, first);
	assert_int_equal(n->last, last);
	assert_int_equal(n->port, port);
}

/* The rules of the kernel are made from these; what is always closed it judges before them. */
static void addresses_and_networks_are_ranges(void **state)
{
	struct net_policy *p = LIST("11.1.1.1", "11.2.0.0/16", "12.1.1.1:22", "0.0.0.0/0");

	assert_int_equal(p->n_nets, 4);
	assert_int_equal(p->n_names, 0);
	assert_net(&p->nets[0], 0x0b010101, 0x0b010101, 0);
	assert_net(&p->nets[1], 0x0b020000, 0x0b02ffff, 0);
	assert_net(&p->nets[2], 0x0c010101, 0x0c010101, 22);
	assert_net(&p->nets[3], 0, UINT32_MAX, 0);
	net_policy_unref(p);
}

static void modes_without_a_list(void **state)
{
	struct net_policy *p;

	assert_int_equal(net_policy_new(NET_OFF, NULL, 0, &p, NULL), 0);
	assert_false(policy_allows_name(p, "a.example", 80));
	assert_false(policy_resolves(p, "a.example"));
	net_policy_unref(p);
	assert_int_equal(net_policy_new(NET_OPEN, NULL, 0, &p, NULL), 0);
	assert_true(policy_allows_name(p, "a.example", 80));
	net_policy_unref(p);
	/* An empty list is nothing at all, not everything. */
	assert_int_equal(net_policy_new(NET_LIST, NULL, 0, &p, NULL), 0);
	assert_int_equal(p->mode, NET_OFF);
	net_policy_unref(p);
}

static void what_cannot_be_is_refused_with_its_reason(void **state)
{
	static const struct {
		const char *entry, *says;
	} bad[] = {
	    {"", "not a host name"},
	    {"*", "no list at all"},
	    {"*.", "not a host name"},
	    {"a.*.example", "in front"},
	    {"**.example", "in front"},
	    {"http://a.example", "name alone"},
	    {"a.example/path", "name alone"},
	    {"1.2.3.0/33", "name alone"},
	    {"1.2.3.4/24", "name alone"},
	    {"10.0.0.0/8", "closed to all"},
	    {"10.1.0.0/16", "10.0.0.0/8 (private)"},
	    {"169.254.169.254", "metadata"},
	    {"127.0.0.1:80", "loopback"},
	    {"2001:db8::1", "IPv6"},
	    {"[::1]:80", "IPv6"},
	    {"a.example:", "1 to 65535"},
	    {"a.example:0", "1 to 65535"},
	    {"a.example:65536", "1 to 65535"},
	    {"a.example:80x", "1 to 65535"},
	    {"a.example:80/path", "name alone"},
	    {"a.example:80/sctp", "name:port/udp"},
	    {"a.example/udp", "name alone"},
	    {"a.example:/udp", "1 to 65535"},
	    {"1.2.3.4:53/udp", "not a host name"},
	    {"localhost", "has a dot"},
	    {"-a.example", "not a host name"},
	    {"a-.example", "not a host name"},
	    {"a..example", "not a host name"},
	    {"a b.example", "not a host name"},
	    {"a\nb.example", "a?b.example"},
	    {"1.2.3.4.5", "not a host name"},
	    {"999.1.1.1", "not a host name"},
	};
	char label[70], name[300];

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct net_policy *p = NULL;
		struct err e = {0};

		assert_int_equal(net_policy_new(NET_LIST, &bad[i].entry, 1, &p, &e), -EINVAL);
		assert_string_equal(e.kind, "bad_egress");
		assert_null(p);
		if (!strstr(e.text, bad[i].says))
			fail_msg("\"%s\" says: %s", bad[i].entry, e.text);
	}
	memset(label, 'a', sizeof(label));
	snprintf(name, sizeof(name), "%.63s.example", label);
	net_policy_unref(LIST(name));
	snprintf(name, sizeof(name), "%.64s.example", label);
	assert_int_equal(policy_clean_name(name, (char[POLICY_NAME_MAX + 1]){0}), -EINVAL);
}

static void a_list_has_an_end(void **state)
{
	static const char *many[NET_POLICY_ENTRIES_MAX + 1];
	struct net_policy *p;
	struct err e = {0};

	for (size_t i = 0; i < ARRAY_LEN(many); i++)
		many[i] = "a.example";
	assert_int_equal(net_policy_new(NET_LIST, many, NET_POLICY_ENTRIES_MAX, &p, &e), 0);
	net_policy_unref(p);
	assert_int_equal(net_policy_new(NET_LIST, many, NET_POLICY_ENTRIES_MAX + 1, &p, &e),
	                 -E2BIG);
	assert_int_equal(net_policy_new(NET_OPEN, many, 1, &p, &e), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(names_match_as_they_are_written),
	    cmocka_unit_test(ports_of_a_name_are_collected),
	    cmocka_unit_test(what_says_something_else_has_another_mark),
	    cmocka_unit_test(a_list_is_less_than_open),
	    cmocka_unit_test(addresses_and_networks_are_ranges),
	    cmocka_unit_test(modes_without_a_list),
	    cmocka_unit_test(what_cannot_be_is_refused_with_its_reason),
	    cmocka_unit_test(a_list_has_an_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
