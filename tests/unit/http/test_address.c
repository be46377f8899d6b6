/*
 * http/address.h: which clients are one, and which are not counted.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "http/address.h"

static void address(const char *text, uint8_t ret[ADDRESS])
{
	struct sockaddr_storage sa = {.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET};
	void *at = sa.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&sa)->sin_addr
	                                   : (void *)&((struct sockaddr_in6 *)&sa)->sin6_addr;

	assert_int_equal(inet_pton(sa.ss_family, text, at), 1);
	assert_true(address_of(&sa, ret));
}

static bool are_one(const char *x, const char *y)
{
	uint8_t a[ADDRESS], b[ADDRESS];

	address(x, a);
	address(y, b);
	address_group(a);
	address_group(b);
	return memcmp(a, b, ADDRESS) == 0;
}

static void a_customer_has_one_address_of_ipv4_or_64_bits_of_ipv6(void **state)
{
	assert_true(are_one("192.0.2.1", "192.0.2.1"));
	assert_false(are_one("192.0.2.1", "192.0.2.2"));
	assert_true(are_one("192.0.2.1", "::ffff:192.0.2.1"));
	assert_false(are_one("::ffff:192.0.2.1", "::ffff:192.0.2.2"));
	assert_true(are_one("2001:db8:1:2::1", "2001:db8:1:2:ffff::2"));
	assert_false(are_one("2001:db8:1:2::1", "2001:db8:1:3::1"));
}

static void a_unix_socket_has_no_address(void **state)
{
	struct sockaddr_storage sa = {.ss_family = AF_UNIX};
	uint8_t a[ADDRESS];

	assert_false(address_of(&sa, a));
}

static bool is_in(const char *text, const char *ranges)
{
	struct address_range r[ADDRESS_RANGES_MAX];
	uint8_t a[ADDRESS];
	size_t n;

	address(text, a);
	assert_int_equal(address_ranges_parse(ranges, r, &n, NULL), 0);
	return address_in(a, r, n);
}

static void ranges_hold_what_they_say(void **state)
{
	static const char usual[] = "127.0.0.0/8 ::1";

	assert_true(is_in("127.0.0.1", usual));
	assert_true(is_in("127.255.255.255", usual));
	assert_true(is_in("::ffff:127.0.0.2", usual));
	assert_true(is_in("::1", usual));
	assert_false(is_in("128.0.0.1", usual));
	assert_false(is_in("126.255.255.255", usual));
	assert_false(is_in("::2", usual));
	assert_false(is_in("10.0.0.1", ""));
	assert_true(is_in("10.0.0.1", "\t 10.0.0.1 "));
	assert_false(is_in("10.0.0.2", "10.0.0.1"));
	assert_true(is_in("10.0.0.3", "192.0.2.1 10.0.0.2/31"));
	assert_false(is_in("10.0.0.4", "10.0.0.2/31"));
	assert_true(is_in("8.8.8.8", "0.0.0.0/0"));
	assert_false(is_in("2001:db8::1", "0.0.0.0/0"));
	assert_true(is_in("8.8.8.8", "::/0"));
	assert_true(is_in("2001:db8::1", "2001:db8::/33"));
	assert_false(is_in("2001:db8:8000::1", "2001:db8::/33"));
}

static void nonsense_is_refused_and_named(void **state)
{
	static const char *const bad[] = {"localhost",      "10.0.0.0/33", "10.0.0.0/",
	                                  "10.0.0/8",       "::1/129",     "::1/-1",
	                                  "10.0.0.0/8,::1", "10.0.0.0/+8", "10.0.0.0/1 x"};
	struct address_range r[ADDRESS_RANGES_MAX];
	char many[12 * (ADDRESS_RANGES_MAX + 1) + 1] = "";
	struct err e;
	size_t n;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_true(address_ranges_parse(bad[i], r, &n, &e) < 0);
		assert_string_equal(e.kind, "bad_config");
		assert_non_null(strstr(e.text, "proxies: '"));
	}
	for (int i = 0; i <= ADDRESS_RANGES_MAX; i++)
		memcpy(many + 11 * i, "10.10.10.1 ", 12);
	assert_true(address_ranges_parse(many, r, &n, &e) < 0);
	assert_non_null(strstr(e.text, "at most 32"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_customer_has_one_address_of_ipv4_or_64_bits_of_ipv6),
	    cmocka_unit_test(a_unix_socket_has_no_address),
	    cmocka_unit_test(ranges_hold_what_they_say),
	    cmocka_unit_test(nonsense_is_refused_and_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
