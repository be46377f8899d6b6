/*
 * http/utf8.h - is this UTF-8, as RFC 3629 has it: no detours, no surrogates, not past U+10FFFF
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

static inline bool utf8_is_good(const char *text, size_t n)
{
	const unsigned char *p = (const unsigned char *)text, *end = p + n;

	while (p < end) {
		unsigned char c = *p++, low = 0x80, high = 0xbf;
		int more;

		if (c < 0x80)
			continue;
		if (c < 0xc2 || c > 0xf4)
			return false;
		more = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
		if (end - p < more)
			return false;
		/* The second byte is where detours, surrogates and what is past the end show. */
		if (c == 0xe0)
			low = 0xa0;
		else if (c == 0xed)
			high = 0x9f;
		else if (c == 0xf0)
			low = 0x90;
		else if (c == 0xf4)
			high = 0x8f;
		for (; more; more--, low = 0x80, high = 0xbf)
			if (*p < low || *p++ > high)
				return false;
	}
	return true;
}
