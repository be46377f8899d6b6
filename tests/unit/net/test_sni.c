#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "net/sni.h"

/* Writes hellos as a client might, and as it should not. */
struct hello {
	uint8_t buf[20000];
	size_t n;
};

static void put(struct hello *h, const void *bytes, size_t n)
{
	memcpy(h->buf + h->n, bytes, n);
	h->n += n;
}

static void put_number(struct hello *h, size_t v, int bytes)
{
	while (bytes--)
		h->buf[h->n++] = (uint8_t)(v >> (8 * bytes));
}

static void put_name(struct hello *h, const char *name, size_t n, int type)
{
	put_number(h, 0, 2);
	put_number(h, n + 5, 2);
	put_number(h, n + 3, 2);
	put_number(h, (size_t)type, 1);
	put_number(h, n, 2);
	put(h, name, n);
}

/* A handshake message, with these extensions, without records. */
static struct hello handshake(const struct hello *exts)
{
	static struct hello h;

	h.n = 0;
	put_number(&h, 1, 1);
	put_number(&h, 2 + 32 + 1 + 2 + 2 + 2 + (exts ? 2 + exts->n : 0), 3);
	put_number(&h, 0x0303, 2);
	for (int i = 0; i < 32; i++)
		put_number(&h, 0xaa, 1);
	put_number(&h, 0, 1);
	put_number(&h, 2, 2);
	put_number(&h, 0x1301, 2);
	put_number(&h, 1, 1);
	put_number(&h, 0, 1);
	if (exts) {
		put_number(&h, exts->n, 2);
		put(&h, exts->buf, exts->n);
	}
	return h;
}

/* In records of at most so many bytes. */
static struct hello records(const struct hello *msg, size_t max)
{
	static struct hello h;

	h.n = 0;
	for (size_t at = 0; at < msg->n; at += max) {
		size_t n = MIN(max, msg->n - at);

		put_number(&h, 22, 1);
		put_number(&h, 0x0301, 2);
		put_number(&h, n, 2);
		put(&h, msg->buf + at, n);
	}
	return h;
}

static int parse_named(const char *name, size_t n, size_t record, char *ret)
{
	static struct hello exts, msg, h;

	exts.n = 0;
	put_number(&exts, 0x0a0a, 2); /* something else first */
	put_number(&exts, 1, 2);
	put_number(&exts, 0, 1);
	put_name(&exts, name, n, 0);
	msg = handshake(&exts);
	h = records(&msg, record);
	return sni_parse(h.buf, h.n, ret);
}

static void the_name_is_found_however_the_hello_is_cut_into_records(void **state)
{
	char name[SNI_NAME_MAX + 1];

	for (size_t record = 1; record < 140; record += 6) {
		assert_int_equal(parse_named("Web.Example", 11, record, name), 0);
		assert_string_equal(name, "web.example");
	}
}

static void every_piece_of_a_hello_asks_for_more(void **state)
{
	static struct hello exts, msg, h;
	char name[SNI_NAME_MAX + 1] = "untouched";

	exts.n = 0;
	put_name(&exts, "web.example", 11, 0);
	msg = handshake(&exts);
	h = records(&msg, 50);
	for (size_t n = 0; n < h.n; n++) {
		uint8_t *exact = malloc(n ? n : 1);

		memcpy(exact, h.buf, n);
		assert_int_equal(sni_parse(exact, n, name), -EAGAIN);
		free(exact);
	}
	assert_string_equal(name, "untouched");
	put(&h, "early data", 10);
	assert_int_equal(sni_parse(h.buf, h.n, name), 0);
}

static void what_is_no_hello_is_refused_at_its_first_byte(void **state)
{
	char name[SNI_NAME_MAX + 1];

	assert_int_equal(sni_parse((const uint8_t *)"GET / HTTP/1.0\r\n", 16, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"G", 1, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"\x16\x02", 2, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"\x16\x03\x01\x00\x00", 5, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"\x16\x03\x01\xff\xff", 5, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"\x16\x03\x01\x00\x04\x02", 6, name), -EPROTO);
	assert_int_equal(sni_parse((const uint8_t *)"\x16\x03\x01\x00\x04\x01\xff\xff\xff", 9,
	                           name),
	                 -EPROTO);
}

static void a_hello_without_a_name_is_told_apart(void **state)
{
	static struct hello exts, msg, h;
	char name[SNI_NAME_MAX + 1];

	msg = handshake(NULL);
	h = records(&msg, 16384);
	assert_int_equal(sni_parse(h.buf, h.n, name), -ENOENT);
	exts.n = 0;
	msg = handshake(&exts);
	h = records(&msg, 16384);
	assert_int_equal(sni_parse(h.buf, h.n, name), -ENOENT);
}

static void two_names_are_one_too_many(void **state)
{
	static struct hello exts, msg, h;
	char name[SNI_NAME_MAX + 1];

	exts.n = 0;
	put_name(&exts, "good.example", 12, 0);
	put_name(&exts, "evil.example", 12, 0);
	msg = handshake(&exts);
	h = records(&msg, 16384);
	assert_int_equal(sni_parse(h.buf, h.n, name), -EPROTO);
	/* Two in one list. */
	exts.n = 0;
	put_number(&exts, 0, 2);
	put_number(&exts, 2 + 2 * (3 + 6), 2);
	put_number(&exts, 2 * (3 + 6), 2);
	for (int i = 0; i < 2; i++) {
		put_number(&exts, 0, 1);
		put_number(&exts, 6, 2);
		put(&exts, "a.good", 6);
	}
	msg = handshake(&exts);
	h = records(&msg, 16384);
	assert_int_equal(sni_parse(h.buf, h.n, name), -EPROTO);
}

static void a_name_with_other_bytes_is_none(void **state)
{
	char name[SNI_NAME_MAX + 1], longest[300];

	assert_int_equal(parse_named("web.example\0.evil", 17, 500, name), -EPROTO);
	assert_int_equal(parse_named("web example", 11, 500, name), -EPROTO);
	assert_int_equal(parse_named("", 0, 500, name), -EPROTO);
	assert_int_equal(parse_named(".", 1, 500, name), -EPROTO);
	memset(longest, 'a', sizeof(longest));
	assert_int_equal(parse_named(longest, 253, 500, name), 0);
	assert_int_equal(strlen(name), 253);
	assert_int_equal(parse_named(longest, 254, 500, name), -EPROTO);
}

static void lengths_that_lie_are_refused(void **state)
{
	static struct hello exts, msg, h;
	char name[SNI_NAME_MAX + 1];
	unsigned fine = 0;

	exts.n = 0;
	put_name(&exts, "web.example", 11, 0);
	msg = handshake(&exts);
	/* Every byte of every length, one off: no reading past the end, and no other name than the
	 * right one. */
	for (size_t i = 0; i < msg.n; i++) {
		for (int d = -1; d <= 1; d += 2) {
			struct hello *bent = malloc(sizeof(*bent));
			uint8_t *exact;

			*bent = msg;
			bent->buf[i] = (uint8_t)(bent->buf[i] + d);
			h = records(bent, 16384);
			exact = malloc(h.n);
			memcpy(exact, h.buf, h.n);
			if (sni_parse(exact, h.n, name) == 0) {
				fine++;
				assert_int_equal(strlen(name), 11);
			}
			free(exact);
			free(bent);
		}
	}
	assert_in_range(fine, 60,
	                110); /* random, version, cipher, and letters of the name may change */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_name_is_found_however_the_hello_is_cut_into_records),
	    cmocka_unit_test(every_piece_of_a_hello_asks_for_more),
	    cmocka_unit_test(what_is_no_hello_is_refused_at_its_first_byte),
	    cmocka_unit_test(a_hello_without_a_name_is_told_apart),
	    cmocka_unit_test(two_names_are_one_too_many),
	    cmocka_unit_test(a_name_with_other_bytes_is_none),
	    cmocka_unit_test(lengths_that_lie_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
