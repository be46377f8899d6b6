#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "base/utf8.h"

/* All of it in pieces of the given size, and the end. */
static char *in_pieces(const char *p, size_t n, size_t piece)
{
	static char out[4096];
	struct utf8 u = {0};
	size_t len = 0;

	for (size_t at = 0; at < n; at += piece)
		len += utf8_add(&u, p + at, MIN(piece, n - at), out + len);
	len += utf8_end(&u, out + len);
	out[len] = 0;
	return out;
}

static void good_text_stays_as_it_is_wherever_it_is_cut(void **state)
{
	static const char text[] = "ascii, grüße, €uro, 𝄞 and 日本語; \x7f\x01 \xf4\x8f\xbf\xbf";

	assert_int_equal(utf8_valid(text, strlen(text)), strlen(text));
	assert_true(utf8_is_good(text, strlen(text)));
	for (size_t piece = 1; piece <= strlen(text); piece++)
		assert_string_equal(in_pieces(text, strlen(text), piece), text);
}

static void what_is_not_text_is_replaced(void **state)
{
#define BAD "\xef\xbf\xbd"
	static const struct {
		const char *in, *out;
	} cases[] = {
	    {"\xff", BAD},
	    {"a\x80z", "a" BAD "z"},
	    {"\xc3", BAD},          /* begun and not finished */
	    {"\xe2\x82", BAD},      /* one for all that was begun */
	    {"\xe2\x82z", BAD "z"}, /* and what follows is itself */
	    {"\xe2\x82\xe2\x82\xac", BAD "€"},
	    {"\xc0\xaf", BAD BAD},                 /* a long way to say '/' */
	    {"\xe0\x80\xaf", BAD BAD BAD},         /* a longer one */
	    {"\xed\xa0\x80", BAD BAD BAD},         /* half a surrogate pair */
	    {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* beyond the last character */
	    {"\xf0\x9d\x84", BAD},
	    {"\xf0\x9d\x84\xf0\x9d\x84\x9e", BAD "𝄞"},
	    {"\xfe\xff", BAD BAD},
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		size_t n = strlen(cases[i].in);

		assert_true(utf8_valid(cases[i].in, n) < n);
		assert_false(utf8_is_good(cases[i].in, n));
		for (size_t piece = 1; piece <= n; piece++)
			assert_string_equal(in_pieces(cases[i].in, n, piece), cases[i].out);
	}
}

static void a_character_is_held_back_until_it_is_whole(void **state)
{
	struct utf8 u = {0};
	char out[UTF8_ROOM(4)];

	assert_int_equal(utf8_add(&u, "\xf0\x9d", 2, out), 0);
	assert_int_equal(utf8_add(&u, "\x84", 1, out), 0);
	assert_int_equal(utf8_add(&u, "\x9e", 1, out), 4);
	assert_memory_equal(out, "\xf0\x9d\x84\x9e", 4);
	assert_int_equal(utf8_end(&u, out), 0);
}

static void nul_is_a_character(void **state)
{
	struct utf8 u = {0};
	char out[UTF8_ROOM(3)];

	assert_int_equal(utf8_add(&u, "a\0b", 3, out), 3);
	assert_memory_equal(out, "a\0b", 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(good_text_stays_as_it_is_wherever_it_is_cut),
	    cmocka_unit_test(what_is_not_text_is_replaced),
	    cmocka_unit_test(a_character_is_held_back_until_it_is_whole),
	    cmocka_unit_test(nul_is_a_character),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
