/*
 * base/utf8.h - is this UTF-8, and bytes of programs made UTF-8
 * UTF-8 is what RFC 3629 says: no long spellings, no surrogates, nothing past U+10FFFF. What is not
 * becomes U+FFFD, one for each longest beginning of a character that goes nowhere (the Unicode
 * standard's "maximal subparts", as browsers and Python do it). A character that comes in pieces is
 * held back until it is whole, so the result does not depend on where a stream was cut. Pure; a
 * zeroed struct is the beginning of a stream.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct utf8 {
	uint8_t held[3]; /* the beginning of a character */
	uint8_t n;
};

/* Room for the text of n more bytes. */
#define UTF8_ROOM(n) (((n) + 3) * 3)

/* Returns the length of the text in out, which has UTF8_ROOM(n). */
size_t utf8_add(struct utf8 *u, const void *p, size_t n, char *out);
/* What was held back never became a character. out has UTF8_ROOM(0). */
size_t utf8_end(struct utf8 *u, char *out);

/* How many bytes from the beginning of p are whole characters of UTF-8. */
size_t utf8_valid(const void *p, size_t n);

static inline bool utf8_is_good(const void *p, size_t n)
{
	return utf8_valid(p, n) == n;
}
