#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net/addr.h"
#include "net/range.h"

static void all_16384_are_handed_out_and_come_back_and_again(void **state)
{
	static uint8_t seen[16384];
	struct range *r;
	uint32_t i;

	assert_int_equal(range_new("10.200.0.0/16", &r), 0);
	assert_int_equal(range_total(r), 16384);
	for (int round = 1; round <= 3; round++) {
		for (int n = 0; n < 16384; n++) {
			assert_int_equal(range_get(r, &i), 0);
			assert_true(i < 16384);
			assert_int_equal(seen[i], round - 1); /* nobody else has it */
			seen[i]++;
		}
		assert_int_equal(range_get(r, &i), -ENOSPC);
		assert_int_equal(range_used(r), 16384);
		for (uint32_t n = 0; n < 16384; n++)
			range_put(r, (n * 5 + 3) % 16384);
		assert_int_equal(range_used(r), 0);
	}
	range_free(r);
}

static void a_place_is_reused_as_late_as_possible(void **state)
{
	uint32_t a, b;
	struct range *r;

	assert_int_equal(range_new("10.200.0.0/24", &r), 0);
	assert_int_equal(range_get(r, &a), 0);
	range_put(r, a);
	for (int n = 0; n < 63; n++) {
		assert_int_equal(range_get(r, &b), 0);
		assert_int_not_equal(a, b);
	}
	assert_int_equal(range_get(r, &b), 0);
	assert_int_equal(a, b);
	range_free(r);
}

static void a_claimed_place_is_given_to_nobody_until_it_is_back(void **state)
{
	struct range *r;
	uint32_t i, n = 0;

	assert_int_equal(range_new("10.200.0.0/26", &r), 0);
	assert_int_equal(range_claim(r, 5), 0);
	assert_int_equal(range_claim(r, 5), -EBUSY);
	assert_int_equal(range_claim(r, 16), -ERANGE);
	while (range_get(r, &i) == 0) {
		assert_int_not_equal(i, 5);
		n++;
	}
	assert_int_equal(n, 15);
	range_put(r, 5);
	assert_int_equal(range_get(r, &i), 0);
	assert_int_equal(i, 5);
	/* Claimed and given back before its turn: still there once, not twice. */
	range_put(r, 5);
	assert_int_equal(range_claim(r, 5), 0);
	range_put(r, 5);
	assert_int_equal(range_get(r, &i), 0);
	assert_int_equal(range_get(r, &i), -ENOSPC);
	range_free(r);
}

static void a_place_of_others_can_be_claimed_or_tried_again(void **state)
{
	struct range *r;
	uint32_t i;

	assert_int_equal(range_new("10.200.0.0/28", &r), 0);
	for (uint32_t n = 0; n < 4; n++) {
		assert_int_equal(range_get(r, &i), 0);
		assert_int_equal(i, n);
	}
	range_foreign(r, 1);
	range_foreign(r, 2);
	assert_int_equal(range_get(r, &i), -ENOSPC);
	assert_int_equal(range_claim(r, 1), 0);
	assert_int_equal(range_claim(r, 1), -EBUSY);
	assert_int_equal(range_used(r), 4);
	assert_int_equal(range_retry(r), 1);
	assert_int_equal(range_retry(r), 0);
	assert_int_equal(range_get(r, &i), 0);
	assert_int_equal(i, 2);
	range_free(r);
}

static void addresses_of_a_place_lead_back_to_it(void **state)
{
	struct range *r;
	uint32_t i;

	assert_int_equal(range_new("10.200.0.0/16", &r), 0);
	for (uint32_t n = 0; n < 16384; n += 1021) {
		assert_int_equal(range_host(r, n), 0x0ac80001 + 4 * n);
		assert_int_equal(range_inner(r, n), 0x0ac80002 + 4 * n);
		assert_int_equal(range_find(r, range_inner(r, n), &i), 0);
		assert_int_equal(i, n);
		assert_int_equal(range_find(r, range_host(r, n), &i), -ERANGE);
	}
	assert_int_equal(range_find(r, 0x0ac70002, &i), -ERANGE);
	assert_int_equal(range_find(r, 0x0ac90002, &i), -ERANGE);
	range_free(r);
	range_free(NULL);
}

static void what_is_no_pool_is_refused(void **state)
{
	static const char *const bad[] = {"",
	                                  "10.200.0.0",
	                                  "10.200.0.0/7",
	                                  "10.200.0.0/29",
	                                  "10.200.0.1/16",
	                                  "10.200.0/16",
	                                  "10.200.0.0/16 ",
	                                  "x/16",
	                                  "010.0.0.0/8"};
	struct range *r;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(range_new(bad[i], &r), -EINVAL);
}

static void closed_ranges_are_closed_to_their_last_address(void **state)
{
	static const char *const closed[] = {
	    "0.0.0.0",         "0.255.255.255",   "10.0.0.0",        "10.255.255.255",
	    "100.64.0.0",      "100.127.255.255", "127.0.0.1",       "127.255.255.255",
	    "169.254.0.0",     "169.254.169.254", "172.16.0.0",      "172.31.255.255",
	    "192.0.0.1",       "192.0.2.1",       "192.88.99.1",     "192.168.0.0",
	    "192.168.255.255", "198.18.0.0",      "198.19.255.255",  "198.51.100.7",
	    "203.0.113.9",     "224.0.0.1",       "239.255.255.255", "240.0.0.0",
	    "255.255.255.255", "168.63.129.16"};
	static const char *const open[] = {"1.0.0.0",        "9.255.255.255",   "11.0.0.0",
	                                   "100.63.255.255", "100.128.0.0",     "126.255.255.255",
	                                   "128.0.0.0",      "169.253.255.255", "169.255.0.0",
	                                   "172.15.255.255", "172.32.0.0",      "192.0.1.1",
	                                   "192.0.3.0",      "192.167.255.255", "192.169.0.0",
	                                   "198.17.255.255", "198.20.0.0",      "198.51.99.255",
	                                   "203.0.112.255",  "203.0.114.0",     "223.255.255.255",
	                                   "8.8.8.8",        "168.63.129.17"};
	struct addr_net net;
	uint32_t a;

	for (size_t i = 0; i < addr_n_closed_ranges; i++)
		assert_int_equal(addr_parse_net(addr_closed_ranges[i].net, &net), 0);
	for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++) {
		assert_int_equal(addr_parse(closed[i], &a), 0);
		if (!addr_closed(a))
			fail_msg("%s is open", closed[i]);
	}
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
		assert_int_equal(addr_parse(open[i], &a), 0);
		if (addr_closed(a))
			fail_msg("%s is closed", open[i]);
	}
}

static void what_is_no_address_is_refused(void **state)
{
	static const char *const bad[] = {"",          "1",         "1.2.3",    "1.2.3.4.5",
	                                  "256.1.1.1", "1.2.3.04",  "1.2.3.4 ", " 1.2.3.4",
	                                  "1..2.3",    "0x1.2.3.4", "1.2.3.-4", "99999999999.1.1.1",
	                                  "127.1"};
	uint16_t port;
	uint32_t a;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(addr_parse(bad[i], &a), -EINVAL);
		assert_int_equal(addr_parse_port(bad[i], 53, &a, &port), -EINVAL);
	}
	assert_int_equal(addr_parse_port("1.2.3.4:70000", 53, &a, &port), -EINVAL);
	assert_int_equal(addr_parse_port("1.2.3.4:", 53, &a, &port), -EINVAL);
	assert_int_equal(addr_parse_port("1.2.3.4:0", 53, &a, &port), -EINVAL);
	assert_int_equal(addr_parse_port("1.2.3.4:5353", 53, &a, &port), 0);
	assert_int_equal(a, 0x01020304);
	assert_int_equal(port, 5353);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(all_16384_are_handed_out_and_come_back_and_again),
	    cmocka_unit_test(a_place_is_reused_as_late_as_possible),
	    cmocka_unit_test(a_claimed_place_is_given_to_nobody_until_it_is_back),
	    cmocka_unit_test(a_place_of_others_can_be_claimed_or_tried_again),
	    cmocka_unit_test(addresses_of_a_place_lead_back_to_it),
	    cmocka_unit_test(what_is_no_pool_is_refused),
	    cmocka_unit_test(closed_ranges_are_closed_to_their_last_address),
	    cmocka_unit_test(what_is_no_address_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
