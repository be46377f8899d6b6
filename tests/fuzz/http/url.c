/*
 * What decodes can be encoded and decodes to the same; a query finds what it should.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "http/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = malloc(size + 1), *value = NULL;

	for (int plus = 0; plus < 2; plus++) {
		autofree char *once = NULL, *coded = NULL, *twice = NULL;

		if (url_decode((const char *)data, size, plus, &once) < 0)
			continue;
		assert(strlen(once) <= size && utf8_is_good(once, strlen(once)));
		assert(url_encode(once, &coded) == 0);
		assert(url_decode(coded, strlen(coded), plus, &twice) == 0);
		assert(strcmp(once, twice) == 0);
	}
	memcpy(text, data, size);
	text[size] = 0;
	if (url_query(text, "a", &value) == 0) {
		autofree char *coded = NULL, *query = NULL, *again = NULL;

		assert(url_encode(value, &coded) == 0);
		assert(asprintf(&query, "b=1&a=%s", coded) > 0);
		assert(url_query(query, "a", &again) == 0);
		assert(strcmp(value, again) == 0);
	}
	return 0;
}
