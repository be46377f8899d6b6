#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "net/dns.h"

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1
#define ASKED       "\x12\x34\x81\x80\x00\x01"
#define WEB           \
	"\x03web\x07" \
	"example\x00\x00\x01\x00\x01" /* at 12, example at 16 */
#define A(last) "\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x0b\x01\x01" last

static void a_question_is_read(void **state)
{
	struct dns_question q;

	assert_int_equal(
	    dns_parse_query(BYTES("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03wEb\x07"
	                          "eXample\x00\x00\x01\x00\x01"),
	                    &q),
	    0);
	assert_int_equal(q.id, 0x1234);
	assert_string_equal(q.name, "web.example");
	assert_int_equal(q.type, DNS_A);
	assert_true(q.rd);
	assert_false(q.edns);
	assert_int_equal(q.udp_max, 512);
	assert_int_equal(q.wire_len, 13);
	assert_memory_equal(q.wire, "\x03wEb", 4);
}

static void a_question_that_offers_more_room_is_believed_up_to_a_limit(void **state)
{
	struct dns_question q;

	assert_int_equal(dns_parse_query(BYTES(
					     "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01" WEB
					     "\x00\x00\x29\xff\xff\x00\x00\x80\x00\x00\x00"),
	                                 &q),
	                 0);
	assert_true(q.edns);
	assert_int_equal(q.udp_max, DNS_UDP_MAX);
}

static void questions_that_are_none(void **state)
{
	static const struct {
		int want;
		size_t n;
		const char *bytes;
	} bad[] = {
#define Q(want, text) {want, sizeof(text) - 1, text}
	    Q(-EBADMSG, ""),
	    Q(-EBADMSG, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00"),
	    Q(-EBADMSG, "\x12\x34\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00" WEB),    /* an answer */
	    Q(-DNS_NOTIMP, "\x12\x34\x29\x00\x00\x01\x00\x00\x00\x00\x00\x00" WEB), /* an update */
	    Q(-DNS_FORMERR, "\x12\x34\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"),    /* none */
	    Q(-DNS_FORMERR, "\x12\x34\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00" WEB WEB), /* two */
	    Q(-DNS_FORMERR,
	      "\x12\x34\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00" WEB), /* with an answer */
	    Q(-DNS_FORMERR,
	      "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" WEB "x"), /* and more */
	    Q(-DNS_FORMERR, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web"), /* cut */
	    Q(-DNS_FORMERR, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00"
	                    "\x01"), /* a
	                                pointer
	                              */
	    Q(-DNS_FORMERR,
	      "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03w b\x00\x00\x01\x00\x01"),
	    Q(-DNS_FORMERR,
	      "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03w.b\x00\x00\x01\x00\x01"),
	    Q(-DNS_FORMERR,
	      "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x40web\x00\x00\x01\x00\x01"),
#undef Q
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct dns_question q = {.id = 7};

		assert_int_equal(dns_parse_query((const uint8_t *)bad[i].bytes, bad[i].n, &q),
		                 bad[i].want);
		assert_int_equal(q.id, 7); /* untouched */
	}
}

static void a_name_of_255_bytes_is_the_longest(void **state)
{
	uint8_t buf[400] = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00";
	struct dns_question q;
	size_t n = 12;

	for (int i = 0; i < 4; i++) {
		size_t len = i < 3 ? 63 : 61;

		buf[n++] = (uint8_t)len;
		memset(buf + n, 'a', len);
		n += len;
	}
	buf[n++] = 0;
	memcpy(buf + n, "\x00\x01\x00\x01", 4);
	assert_int_equal(dns_parse_query(buf, n + 4, &q), 0);
	assert_int_equal(strlen(q.name), 253);
	assert_int_equal(q.wire_len, 255);
	/* One more in the last label. */
	buf[12 + 3 * 64] = 62;
	buf[n - 1] = 'a';
	buf[n] = 0;
	memcpy(buf + n + 1, "\x00\x01\x00\x01", 4);
	assert_int_equal(dns_parse_query(buf, n + 5, &q), -DNS_FORMERR);
}

static void addresses_are_those_of_the_last_name_in_the_chain(void **state)
{
	struct dns_answer a;

	/* In no order: an address of somebody else, the CNAME's address, the CNAME. */
	assert_int_equal(
	    dns_parse_answer(
		BYTES(ASKED "\x00\x03\x00\x00\x00\x00" WEB "\x05other\xc0\x10" A(
		    "\x09") "\x03"
	                    "cdn\xc0\x10" A(
				"\x03") "\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x1e\x00\x06\x03"
	                                "cdn\xc0\x10"),
		0x1234, "web.example", DNS_A, &a),
	    0);
	assert_int_equal(a.n_chain, 1);
	assert_string_equal(a.chain[0], "cdn.example");
	assert_int_equal(a.n_addrs, 1);
	assert_int_equal(a.addrs[0], 0x0b010103);
	assert_int_equal(a.ttl_s, 30);
	assert_int_equal(a.n_answers, 3);
}

static void answers_to_something_else_are_not_answers(void **state)
{
	static const char good[] = ASKED "\x00\x01\x00\x00\x00\x00" WEB "\xc0\x0c" A("\x01");
	struct dns_answer a;

	assert_int_equal(dns_parse_answer(BYTES(good), 0x1234, "web.example", DNS_A, &a), 0);
	assert_int_equal(a.addrs[0], 0x0b010101);
	assert_int_equal(dns_parse_answer(BYTES(good), 0x1235, "web.example", DNS_A, &a), -EBADMSG);
	assert_int_equal(dns_parse_answer(BYTES(good), 0x1234, "xeb.example", DNS_A, &a), -EBADMSG);
	assert_int_equal(dns_parse_answer(BYTES(good), 0x1234, "web.example", DNS_TXT, &a),
	                 -EBADMSG);
	/* Cut anywhere it is no answer. */
	for (size_t n = 0; n < sizeof(good) - 1; n++) {
		uint8_t *exact = malloc(n ? n : 1);

		memcpy(exact, good, n);
		assert_true(dns_parse_answer(exact, n, 0x1234, "web.example", DNS_A, &a) < 0);
		free(exact);
	}
}

static void circles_and_pointers_forward_end(void **state)
{
	struct dns_answer a;

	assert_int_equal(
	    dns_parse_answer(BYTES(ASKED
	                           "\x00\x01\x00\x00\x00\x00" WEB
	                           "\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x1e\x00\x02\xc0\x0c"),
	                     0x1234, "web.example", DNS_A, &a),
	    -ELOOP);
	assert_int_equal(dns_parse_answer(BYTES(ASKED "\x00\x01\x00\x00\x00\x00" WEB
	                                              "\xc0\x1d" A("\x01")),
	                                  0x1234, "web.example", DNS_A, &a),
	                 -EPROTO);
	assert_int_equal(dns_parse_answer(BYTES(ASKED "\x00\x01\x00\x00\x00\x00" WEB
	                                              "\xc0\x40" A("\x01")),
	                                  0x1234, "web.example", DNS_A, &a),
	                 -EPROTO);
	/* An address of five bytes, a CNAME that ends early. */
	assert_int_equal(
	    dns_parse_answer(
		BYTES(ASKED "\x00\x01\x00\x00\x00\x00" WEB
	                    "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x05\x01\x02\x03\x04\x05"),
		0x1234, "web.example", DNS_A, &a),
	    -EPROTO);
	assert_int_equal(
	    dns_parse_answer(BYTES(ASKED
	                           "\x00\x01\x00\x00\x00\x00" WEB
	                           "\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x3c\x00\x03\xc0\x10\x00"),
	                     0x1234, "web.example", DNS_A, &a),
	    -EPROTO);
}

static struct dns_question ask(const char *name, uint16_t type, bool edns)
{
	uint8_t buf[300];
	struct dns_question q;
	size_t n = dns_build_query(77, name, type, buf);

	assert_int_equal(dns_parse_query(buf, n, &q), 0);
	assert_true(q.edns);
	q.edns = edns;
	q.udp_max = edns ? DNS_UDP_MAX : DNS_UDP_MIN;
	return q;
}

static void what_we_say_can_be_read_again(void **state)
{
	struct dns_question q = ask("web.example", DNS_A, true);
	struct dns_answer a = {.n_chain = 2,
	                       .chain = {"a.cdn.example", "b.cdn.example"},
	                       .n_addrs = 3,
	                       .addrs = {1, 2, 3}},
			  back;
	uint8_t buf[512];
	size_t n = dns_build_reply(&q, &a, 60, buf, sizeof(buf));

	assert_int_equal(dns_parse_answer(buf, n, 77, "web.example", DNS_A, &back), 0);
	assert_int_equal(back.n_chain, 2);
	assert_string_equal(back.chain[1], "b.cdn.example");
	assert_int_equal(back.n_addrs, 3);
	assert_int_equal(back.addrs[2], 3);
	assert_int_equal(back.ttl_s, 60);
	assert_false(back.truncated);
}

static void what_does_not_fit_is_left_out_and_said(void **state)
{
	struct dns_question q = ask("web.example", DNS_A, false);
	struct dns_answer a = {.n_addrs = DNS_ADDRS_MAX, .n_chain = 3}, back;
	uint8_t buf[512];
	size_t n;

	for (int i = 0; i < 3; i++)
		snprintf(a.chain[i], sizeof(a.chain[i]), "%061d.%061d.c%d.example", i, i, i);
	n = dns_build_reply(&q, &a, 60, buf, sizeof(buf));
	assert_true(n <= sizeof(buf));
	assert_int_equal(dns_parse_answer(buf, n, 77, "web.example", DNS_A, &back), 0);
	assert_true(back.truncated);
	assert_int_equal(back.n_chain, 3);
	assert_in_range(back.n_addrs, 1, 10);
}

static void other_answers_go_on_without_their_glue(void **state)
{
	static const char mx[] =
	    "\x00\x4d\x81\x80\x00\x01\x00\x01\x00\x00\x00\x01\x03web\x07"
	    "example\x00\x00\x0f\x00\x01"
	    "\xc0\x0c\x00\x0f\x00\x01\x00\x00\x00\x3c\x00\x09\x00\x0a\x04mail\xc0\x10"
	    "\xc0\x2b" A("\x05");
	struct dns_question q = ask("web.example", DNS_MX, false);
	struct dns_answer a, back;
	uint8_t buf[512];
	int n;

	assert_int_equal(dns_parse_answer(BYTES(mx), 77, "web.example", DNS_MX, &a), 0);
	assert_false(a.has_other_addrs);
	n = dns_copy_answers(&q, &a, (const uint8_t *)mx, buf, sizeof(buf));
	assert_int_equal(n, sizeof(mx) - 1 - 16);
	assert_int_equal(dns_parse_answer(buf, (size_t)n, 77, "web.example", DNS_MX, &back), 0);
	assert_int_equal(back.n_answers, 1);
	assert_int_equal(dns_copy_answers(&q, &a, (const uint8_t *)mx, buf, 40), -EMSGSIZE);
}

static void names_that_carry_data_weigh_more(void **state)
{
	assert_int_equal(dns_weight("example.com"), 0);
	assert_in_range(dns_weight("www.example.com"), 5, 30);
	assert_in_range(dns_weight("d111111abcdef8.cloudfront.net"), 40, 80);
	assert_in_range(
	    dns_weight("mfrggzdfmztwq2lknnwg23tpobyxe43uov3ho6dzpiydcmrtgq2tmnzy.t.example.com"),
	    280, 400);
	/* One letter, and all is told by where the dots are. */
	assert_in_range(
	    dns_weight("a.aa.a.aa.aaa.a.aaaa.aaa.aa.a.aaa.a.aa.aaa.aa.aaaa.a.aa.t.example.com"), 50,
	    200);
}

/* Of all names of one length: the sum of 2^-weight is at most 1, as for every code. */
static void no_way_to_write_tells_more_than_it_weighs(void **state)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
	size_t n = strlen(letters);
	double sum = 0;

	assert_int_equal(n, 39);
	for (size_t i = 0; i < n * n * n; i++) {
		char name[] = "xxx.example.com";

		name[0] = letters[i % n];
		name[1] = letters[i / n % n];
		name[2] = letters[i / n / n];
		sum += ldexp(1, -(int)dns_weight(name));
	}
	assert_true(sum <= 1);
	assert_true(sum > 1e-6); /* not by weighing everything too high */
	sum = 0;
	for (unsigned i = 0; i < 1u << 16; i++) {
		char name[] = "xxxxxxxxxxxxxxxx.example.com";

		for (int k = 0; k < 16; k++)
			name[k] = i >> k & 1 ? '.' : 'a';
		sum += ldexp(1, -(int)dns_weight(name));
	}
	assert_true(sum <= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_question_is_read),
	    cmocka_unit_test(a_question_that_offers_more_room_is_believed_up_to_a_limit),
	    cmocka_unit_test(questions_that_are_none),
	    cmocka_unit_test(a_name_of_255_bytes_is_the_longest),
	    cmocka_unit_test(addresses_are_those_of_the_last_name_in_the_chain),
	    cmocka_unit_test(answers_to_something_else_are_not_answers),
	    cmocka_unit_test(circles_and_pointers_forward_end),
	    cmocka_unit_test(what_we_say_can_be_read_again),
	    cmocka_unit_test(what_does_not_fit_is_left_out_and_said),
	    cmocka_unit_test(other_answers_go_on_without_their_glue),
	    cmocka_unit_test(names_that_carry_data_weigh_more),
	    cmocka_unit_test(no_way_to_write_tells_more_than_it_weighs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
