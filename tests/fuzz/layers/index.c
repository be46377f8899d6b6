/*
 * A layer's map file. Its table is checked by a digest in its head, which no fuzzer would guess:
 * it is set right here first. Promise: what is accepted is printed again byte by byte, but for
 * runs that touch.
 */
#include <assert.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "layers/bytes.h"
#include "layers/index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(index_fini) struct index x = {0};
	autofree unsigned char *copy = NULL, *out = NULL;
	size_t head, table, len;
	struct digest d, layer;
	uint64_t pages;

	if (size < INDEX_FIXED_LEN + MAP_HEAD_LEN || index_lengths(data, &head, &table) < 0 ||
	    head > size || table != size - head)
		return 0;
	copy = malloc(size);
	if (!copy)
		return 0;
	memcpy(copy, data, size);
	if (digest_bytes(copy + head, table, &d) < 0)
		return 0;
	memcpy(copy + 16, d.b, DIGEST_LEN);
	pages = get_le64(copy + INDEX_FIXED_LEN + 16);
	if (index_parse_head(copy, head, pages, &x) < 0 ||
	    index_parse_table(&x, copy + head, table, pages) < 0)
		return 0;
	for (size_t i = 0; i < x.nchunks; i++)
		assert(x.chunks[i].number * INDEX_CHUNK_PAGES < pages &&
		       (i == 0 || x.chunks[i].number > x.chunks[i - 1].number));
	layer = x.digest;
	if (index_encode(&x, pages, &out, &len) < 0)
		return 0;
	assert(len <= size);
	if (len == size)
		assert(memcmp(copy, out, len) == 0 && digest_equal(&layer, &x.digest));
	return 0;
}
