#include "base/utf8.h"

#include <string.h>

static const char replacement[3] = {'\xef', '\xbf', '\xbd'}; /* U+FFFD */

/*
 * Length of the character at p when it is whole and good. 0: more bytes are needed. Negative: the
 * first -n bytes are no beginning of a character.
 */
static int look(const uint8_t *p, size_t n)
{
	uint8_t low = 0x80, high = 0xbf;
	int len;

	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return -1;
	len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	/* No long spellings, no surrogates, nothing beyond U+10FFFF: the second byte decides. */
	if (p[0] == 0xe0)
		low = 0xa0;
	else if (p[0] == 0xed)
		high = 0x9f;
	else if (p[0] == 0xf0)
		low = 0x90;
	else if (p[0] == 0xf4)
		high = 0x8f;
	for (int i = 1; i < len; i++) {
		if ((size_t)i == n)
			return 0;
		if (p[i] < low || p[i] > high)
			return -i;
		low = 0x80;
		high = 0xbf;
	}
	return len;
}

size_t utf8_valid(const void *bytes, size_t n)
{
	const uint8_t *p = bytes;
	size_t at = 0;

	while (at < n) {
		uint64_t eight;
		int len;

		while (n - at >= sizeof(eight)) { /* most output is ASCII */
			memcpy(&eight, p + at, sizeof(eight));
			if (eight & 0x8080808080808080u)
				break;
			at += sizeof(eight);
		}
		if (at == n)
			break;
		len = look(p + at, n - at);
		if (len <= 0)
			break;
		at += (size_t)len;
	}
	return at;
}

static size_t put_bad(char *out)
{
	memcpy(out, replacement, sizeof(replacement));
	return 3;
}

/* Finishes the character that was held back. Returns how many bytes of p it took. */
static size_t finish_held(struct utf8 *u, const uint8_t *p, size_t n, char *out, size_t *len)
{
	uint8_t buf[4];
	size_t have = u->n, took = 0;

	memcpy(buf, u->held, have);
	while (have < sizeof(buf)) {
		int r;

		if (took == n) {
			memcpy(u->held, buf, have);
			u->n = (uint8_t)have;
			return took;
		}
		buf[have++] = p[took++];
		r = look(buf, have);
		if (r > 0) {
			memcpy(out, buf, (size_t)r);
			*len = (size_t)r;
			break;
		}
		if (r < 0) { /* the last byte belongs to what follows */
			*len = put_bad(out);
			took--;
			break;
		}
	}
	u->n = 0;
	return took;
}

size_t utf8_add(struct utf8 *u, const void *bytes, size_t n, char *out)
{
	const uint8_t *p = bytes;
	size_t at = 0, len = 0;

	if (u->n)
		at = finish_held(u, p, n, out, &len);
	while (at < n) {
		size_t good = utf8_valid(p + at, n - at);
		int r;

		memcpy(out + len, p + at, good);
		len += good;
		at += good;
		if (at == n)
			break;
		r = look(p + at, n - at);
		if (r == 0) {
			u->n = (uint8_t)(n - at);
			memcpy(u->held, p + at, u->n);
			break;
		}
		len += put_bad(out + len);
		at += (size_t)-r;
	}
	return len;
}

size_t utf8_end(struct utf8 *u, char *out)
{
	if (!u->n)
		return 0;
	u->n = 0;
	return put_bad(out);
}
