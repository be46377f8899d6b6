/*
 * api/json_out.c: its bytes are jansson's, whatever the value and however small the pieces
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/json_out.h"
#include "base/macro.h"

/* The text of j, in pieces of n bytes; the caller frees. */
static char *in_pieces(json_t *j, size_t n)
{
	struct json_out *w = json_out_new(json_incref(j));
	char *all = NULL, *piece = malloc(n);
	size_t len = 0;
	ssize_t r;

	assert_non_null(w);
	while ((r = json_out_next(w, piece, n)) > 0) {
		assert_true((size_t)r <= n);
		all = realloc(all, len + (size_t)r + 1);
		memcpy(all + len, piece, (size_t)r);
		len += (size_t)r;
	}
	assert_int_equal(r, 0);
	all[len] = 0;
	json_out_free(w);
	free(piece);
	return all;
}

static void same(json_t *j)
{
	char *want = json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY);

	assert_non_null(want);
	for (size_t n = JSON_OUT_MIN; n < 4096; n = n * 3 / 2 + 1) {
		char *got = in_pieces(j, n);

		assert_string_equal(got, want);
		free(got);
	}
	free(want);
	json_decref(j);
}

static uint32_t dice = 1;

static uint32_t roll(uint32_t sides)
{
	dice = dice * 1664525u + 1013904223u;
	return (dice >> 8) % sides;
}

/* Control characters, quotes, backslashes, and characters of one to four bytes. */
static json_t *some_text(size_t most)
{
	static const char *const wide[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x90\xbc", "\x7f"};
	char *p = malloc(4 * most + 1);
	size_t n = 0, chars = roll((uint32_t)most + 1);
	json_t *j;

	for (size_t i = 0; i < chars; i++) {
		const char *w = wide[roll(ARRAY_LEN(wide))];

		switch (roll(4)) {
		case 0:
			p[n++] = (char)roll(32);
			break;
		case 1:
			p[n++] = "\"\\/"[roll(3)];
			break;
		case 2:
			memcpy(p + n, w, strlen(w));
			n += strlen(w);
			break;
		default:
			p[n++] = (char)(' ' + roll(95));
		}
	}
	j = json_stringn(p, n);
	assert_non_null(j);
	free(p);
	return j;
}

static json_t *some_value(unsigned depth)
{
	uint32_t kind = roll(depth ? 8 : 6), n = roll(5);
	json_t *j = kind == 6 ? json_array() : json_object();

	if (kind < 6)
		json_decref(j);
	switch (kind) {
	case 0:
		return json_null();
	case 1:
		return json_boolean(roll(2));
	case 2:
		return json_integer(((json_int_t)roll(1u << 24) << roll(30)) * (roll(2) ? -1 : 1));
	case 3:
		return json_real((double)roll(1000000) / (roll(999) + 1));
	case 4:
	case 5:
		return some_text(300);
	}
	for (uint32_t i = 0; i < n; i++) {
		char name[16];

		snprintf(name, sizeof(name), "%u\"\n%u", i, roll(100));
		if (kind == 6)
			json_array_append_new(j, some_value(depth - 1));
		else
			json_object_set_new(j, name, some_value(depth - 1));
	}
	return j;
}

static void any_value_is_written_as_jansson_does(void **state)
{
	for (unsigned i = 0; i < 500; i++)
		same(some_value(i % 6));
}

static void each_character_is_escaped_as_jansson_does(void **state)
{
	char all[0x80 + 1];

	for (int i = 0; i <= 0x80; i++)
		all[i] = (char)(i == 0x80 ? 'z' : i);
	same(json_stringn(all, sizeof(all)));
	same(json_stringn("", 0));
	same(json_pack("{s:[], s:{}, s:s}", "a", "b", "", ""));
	same(json_real(1e300));
	same(json_real(-4.9406564584124654e-324));
	same(json_integer(INT64_MIN));
}

static void a_deep_value_and_a_long_text_are_written(void **state)
{
	json_t *j = json_array(), *at = j;
	char *text = malloc(100000);

	for (unsigned i = 0; i < 1000; i++) {
		json_t *inner = i % 2 ? json_array() : json_object();

		if (json_is_array(at))
			json_array_append_new(at, inner);
		else
			json_object_set_new(at, "in", inner);
		at = inner;
	}
	same(j);
	memset(text, 1, 100000);
	same(json_stringn(text, 100000));
	free(text);
}

static void a_value_weighs_at_least_its_text(void **state)
{
	json_t *j = json_pack("{s:s, s:[i, i, i]}", "text", "0123456789", "list", 1, 2, 3);

	assert_true(json_weight(j) > 10 + 4 + 4 + 6 * 16);
	assert_true(json_weight(j) < 1000);
	json_decref(j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(any_value_is_written_as_jansson_does),
	    cmocka_unit_test(each_character_is_escaped_as_jansson_does),
	    cmocka_unit_test(a_deep_value_and_a_long_text_are_written),
	    cmocka_unit_test(a_value_weighs_at_least_its_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
