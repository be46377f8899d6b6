/*
 * Whatever bytes come, in whatever pieces: the text is UTF-8 (jansson says so, too), the same as of
 * one piece, good bytes stay as they are, and never more room is needed than UTF8_ROOM() says.
 */
#include <assert.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *fix(const uint8_t *p, size_t n, size_t piece, size_t *len)
{
	char *out = malloc(UTF8_ROOM(n) + UTF8_ROOM(0));
	struct utf8 u = {0};

	*len = 0;
	for (size_t at = 0; at < n; at += piece) {
		size_t part = n - at < piece ? n - at : piece;
		char *exact = malloc(UTF8_ROOM(part)); /* the sanitizer watches its end */
		size_t got = utf8_add(&u, p + at, part, exact);

		assert(got <= UTF8_ROOM(part));
		memcpy(out + *len, exact, got);
		*len += got;
		free(exact);
	}
	*len += utf8_end(&u, out + *len);
	assert(!u.n);
	return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t n, m, good;
	char *whole, *pieces;
	json_t *j;

	if (size < 1)
		return 0;
	whole = fix(data + 1, size - 1, size, &n);
	pieces = fix(data + 1, size - 1, data[0] % 7 + 1u, &m);
	assert(n == m && memcmp(whole, pieces, n) == 0);
	assert(utf8_valid(whole, n) == n);
	j = json_stringn(whole, n); /* refuses what is not UTF-8 */
	assert(j);
	json_decref(j);
	good = utf8_valid(data + 1, size - 1);
	assert(n >= good && memcmp(whole, data + 1, good) == 0);
	j = json_stringn((const char *)data + 1, size - 1);
	assert((j != NULL) == (good == size - 1));
	json_decref(j);
	free(whole);
	free(pieces);
	return 0;
}
