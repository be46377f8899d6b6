/*
 * manifest.json behind its own digest, which is put in front here: no fuzzer would guess it.
 * Promise: what is accepted is printed again byte by byte.
 */
#include <assert.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "layers/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(manifest_fini) struct manifest m = {0};
	autofree char *text = NULL, *again = NULL;
	char hex[DIGEST_TEXT];
	struct err e = {0};
	struct digest d;
	size_t len;
	int r;

	text = malloc(size + 128);
	if (!text || digest_bytes(data, size, &d) < 0)
		return 0;
	digest_text(&d, hex);
	len = (size_t)snprintf(text, 128, "{\"sha256\":\"%s\",", hex);
	memcpy(text + len, data, size);
	len += size;
	if (manifest_parse(text, len, &m, &e) < 0) {
		assert(e.code > 0 && e.kind && e.text[0]);
		return 0;
	}
	r = manifest_print(&m, &again, &size);
	assert(r == 0 && size == len && memcmp(text, again, len) == 0);
	return 0;
}
