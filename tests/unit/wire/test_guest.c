#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "wire/guest.h"

static void a_header_survives_the_way(void **state)
{
	struct wire_header h = {.length = 65536,
	                        .type = WIRE_DATA,
	                        .chan = 2,
	                        .stream = 0xdeadbeef};
	struct wire_header back;
	uint8_t b[WIRE_HEADER];

	wire_header_encode(&h, b);
	assert_int_equal(wire_header_decode(b, &back), 0);
	assert_int_equal(back.length, 65536);
	assert_int_equal(back.type, WIRE_DATA);
	assert_int_equal(back.chan, 2);
	assert_int_equal(back.stream, 0xdeadbeef);
	assert_memory_equal(b + 8, "\xef\xbe\xad\xde", 4); /* little endian on every machine */
}

static void a_foreign_header_is_refused(void **state)
{
	struct wire_header h = {.length = 1, .type = WIRE_DATA}, back = {.length = 77};
	uint8_t good[WIRE_HEADER], b[WIRE_HEADER];

	wire_header_encode(&h, good);
	memcpy(b, good, sizeof(b));
	b[4] ^= 1; /* version */
	assert_int_equal(wire_header_decode(b, &back), -EPROTO);
	memcpy(b, good, sizeof(b));
	b[7] = 1; /* reserved */
	assert_int_equal(wire_header_decode(b, &back), -EPROTO);
	memcpy(b, "\x01\x00\x01\x00", 4); /* 65537 */
	b[7] = 0;
	assert_int_equal(wire_header_decode(b, &back), -EPROTO);
	assert_int_equal(back.length, 77);
}

static void an_exec_carries_its_lists(void **state)
{
	char *const argv[] = {(char *)"printf", (char *)"%s", (char *)"", NULL};
	struct wire_exec m = {.flags = WIRE_EXEC_STDIN, .timeout_ms = 1ull << 40}, back;
	uint8_t list[256], b[512];
	const char *s;
	uint32_t pos = 0;
	ssize_t n;

	m.cwd = wire_str("/tmp");
	m.user = wire_str("");
	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	n = wire_exec_encode(&m, b, sizeof(b));
	assert_true(n > 0);
	assert_int_equal(wire_exec_decode(b, (size_t)n, &back), 0);
	assert_int_equal(back.flags, WIRE_EXEC_STDIN);
	assert_int_equal(back.timeout_ms, 1ull << 40);
	assert_string_equal(back.cwd.p, "/tmp");
	assert_int_equal(back.user.len, 0);
	assert_int_equal(back.argv.count, 3);
	assert_int_equal(back.env.count, 0);
	for (int i = 0; i < 3; i++) {
		s = wire_list_next(&back.argv, &pos);
		assert_non_null(s);
		assert_string_equal(s, argv[i]);
	}
	assert_null(wire_list_next(&back.argv, &pos));
}

static void every_shorter_message_is_refused_and_leaves_the_struct_alone(void **state)
{
	char *const env[] = {(char *)"A=b", (char *)"C=d", NULL};
	struct wire_reborn m = {.generation = 9, .hostname = wire_str("box")};
	struct wire_reborn back, before;
	uint8_t list[64], b[256];
	ssize_t n;

	m.machine_id = wire_str("0123456789abcdef0123456789abcdef");
	m.entropy = (struct wire_bytes){.p = (const uint8_t *)"\x01\x00\xff", .len = 3};
	assert_int_equal(wire_list_build(env, list, sizeof(list), &m.env), 0);
	n = wire_reborn_encode(&m, b, sizeof(b));
	assert_true(n > 0);
	memset(&before, 0x5a, sizeof(before));
	for (ssize_t cut = 0; cut < n; cut++) {
		autofree uint8_t *exact = malloc(cut ? (size_t)cut : 1);

		memcpy(exact, b, (size_t)cut);
		back = before;
		assert_int_equal(wire_reborn_decode(exact, (size_t)cut, &back), -EPROTO);
		assert_memory_equal(&back, &before, sizeof(back));
		assert_int_equal(wire_reborn_encode(&m, exact, (size_t)cut), -EMSGSIZE);
	}
	assert_int_equal(wire_reborn_decode(b, (size_t)n + 1, &back), -EPROTO);
	assert_int_equal(wire_reborn_decode(b, (size_t)n, &back), 0);
	assert_int_equal(back.entropy.len, 3);
	assert_memory_equal(back.entropy.p, "\x01\x00\xff", 3);
}

static void strings_end_where_they_say(void **state)
{
	struct wire_path m;

	assert_int_equal(wire_path_decode("\x02\0\0\0ab\0", 7, &m), 0);
	assert_int_equal(wire_path_decode("\x02\0\0\0abc", 7, &m), -EPROTO);
	assert_int_equal(wire_path_decode("\x02\0\0\0a\0\0", 7, &m), -EPROTO);
	assert_int_equal(wire_path_decode("\xff\xff\xff\xff"
	                                  "ab",
	                                  6, &m),
	                 -EPROTO);
}

static void a_row_is_taken_one_by_one(void **state)
{
	struct wire_event a = {.what = 1, .path = wire_str("one")};
	struct wire_event b = {.what = 2, .path = wire_str("two")}, back;
	uint8_t buf[64];
	ssize_t n = wire_event_encode(&a, buf, sizeof(buf));
	ssize_t m = wire_event_encode(&b, buf + n, sizeof(buf) - (size_t)n);

	assert_int_equal(wire_event_take(buf, (size_t)(n + m), &back), n);
	assert_string_equal(back.path.p, "one");
	assert_int_equal(wire_event_take(buf + n, (size_t)m, &back), m);
	assert_string_equal(back.path.p, "two");
	assert_int_equal(wire_event_take(buf + n, (size_t)m - 1, &back), -EPROTO);
}

static void nothing_larger_than_a_frame_is_built(void **state)
{
	static char big[WIRE_PAYLOAD_MAX + 2];
	static uint8_t out[2 * WIRE_FRAME_MAX];
	char *const argv[] = {big, NULL};
	struct wire_list l;
	struct wire_path m;

	memset(big, 'x', sizeof(big) - 1);
	m.path = wire_str(big);
	assert_int_equal(wire_path_encode(&m, out, sizeof(out)), -EMSGSIZE);
	assert_int_equal(wire_list_build(argv, out, sizeof(out), &l), -E2BIG);
}

static void a_mount_says_which_volume_goes_where(void **state)
{
	/* As other implementations of the protocol must write it. */
	static const char bytes[] = "\x02\0\0\0\x01\0\0\0\x05\0\0\0/work\0\0\0\0\0";
	struct wire_mount m = {.volume = 2,
	                       .flags = WIRE_MOUNT_RO,
	                       .path = wire_str("/work"),
	                       .fstype = wire_str("")};
	struct wire_mount back;
	uint8_t b[64];

	assert_int_equal(wire_mount_encode(&m, b, sizeof(b)), sizeof(bytes));
	assert_memory_equal(b, bytes, sizeof(bytes));
	assert_int_equal(wire_decode(wire_desc_of(WIRE_MOUNT), b, sizeof(bytes), &back), 0);
	assert_int_equal(back.volume, 2);
	assert_int_equal(back.flags, WIRE_MOUNT_RO);
	assert_string_equal(back.path.p, "/work");
	assert_int_equal(back.fstype.len, 0);
	assert_int_equal(wire_mount_decode(b, sizeof(bytes) - 1, &back), -EPROTO);
}

static void an_end_has_a_reason_or_looks_as_it_did_before_there_were_any(void **state)
{
	static const char old[] = "\x02\0\0\0\x02\0\0\0no"; /* as agents of 0.1.0 write it */
	static const char new[] = "\x02\0\0\0\x02\0\0\0no\0\x01\0\0";
	static const char zero[] = "\x02\0\0\0\x02\0\0\0no\0\0\0\0";
	struct wire_end m = {.err = 2, .text = wire_str("no")}, back = {.reason = 77};
	uint8_t b[64];

	assert_int_equal(wire_end_encode(&m, b, sizeof(b)), sizeof(old));
	assert_memory_equal(b, old, sizeof(old));
	assert_int_equal(wire_end_decode(b, sizeof(old), &back), 0);
	assert_int_equal(back.reason, WIRE_REASON_NONE);
	m.reason = WIRE_REASON_DIRECTORY;
	assert_int_equal(wire_end_encode(&m, b, sizeof(b)), sizeof(new));
	assert_memory_equal(b, new, sizeof(new));
	assert_int_equal(wire_end_decode(b, sizeof(new), &back), 0);
	assert_int_equal(back.reason, WIRE_REASON_DIRECTORY);
	for (size_t cut = sizeof(old) + 1; cut < sizeof(new); cut++)
		assert_int_equal(wire_end_decode(b, cut, &back), -EPROTO);
	assert_int_equal(wire_end_decode(zero, sizeof(zero), &back), -EPROTO);
	assert_int_equal(back.reason, WIRE_REASON_DIRECTORY);
}

static void a_name_is_one_name(void **state)
{
	static const char *const good[] = {"a", "...", "..a", ".b", "with space", "\xff"};
	static const char *const bad[] = {"", ".", "..", "/", "a/b", "../../etc", "/x", "a/"};
	struct wire_str s;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		s = wire_str(good[i]);
		assert_true(wire_is_name(&s));
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		s = wire_str(bad[i]);
		assert_false(wire_is_name(&s));
	}
}

static void only_the_types_that_are_named_are_known(void **state)
{
	unsigned known = 0;

	for (unsigned t = 0; t < 256; t++) {
		known += wire_type_known((uint8_t)t);
		assert_true(wire_type_known((uint8_t)t) || !wire_desc_of((uint8_t)t));
	}
	assert_int_equal(known, WIRE_STATS_REPLY - WIRE_DATA + 1 + WIRE_THAW - WIRE_EXEC + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_header_survives_the_way),
	    cmocka_unit_test(a_foreign_header_is_refused),
	    cmocka_unit_test(an_exec_carries_its_lists),
	    cmocka_unit_test(every_shorter_message_is_refused_and_leaves_the_struct_alone),
	    cmocka_unit_test(strings_end_where_they_say),
	    cmocka_unit_test(a_row_is_taken_one_by_one),
	    cmocka_unit_test(nothing_larger_than_a_frame_is_built),
	    cmocka_unit_test(a_mount_says_which_volume_goes_where),
	    cmocka_unit_test(an_end_has_a_reason_or_looks_as_it_did_before_there_were_any),
	    cmocka_unit_test(a_name_is_one_name),
	    cmocka_unit_test(only_the_types_that_are_named_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
