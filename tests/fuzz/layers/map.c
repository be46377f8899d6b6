/*
 * Map bytes as a machine process sends them. Promise: what is accepted has sorted runs inside the
 * size, and comes back the same from its own encoding.
 */
#include <assert.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "layers/bytes.h"
#include "layers/map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(map_fini) struct map m = {0}, again = {0};
	autofree unsigned char *buf = NULL;
	uint64_t pages = 1024, end = 0;
	size_t len;
	int r;

	if (size >= MAP_HEAD_LEN && get_le64(data + 16) <= MAP_PAGES_MAX)
		pages = get_le64(data + 16);
	if (map_parse(data, size, pages, &m) < 0)
		return 0;
	for (size_t i = 0; i < m.n; i++) {
		assert(m.runs[i].n > 0 && (i == 0 || m.runs[i].start > end));
		end = m.runs[i].start + m.runs[i].n;
		assert(end <= pages);
		assert(map_has(&m, end - 1, NULL) && !map_has(&m, end, NULL));
	}
	r = map_encode(&m, pages, &buf, &len);
	assert(r == 0 && len <= size);
	r = map_parse(buf, len, pages, &again);
	assert(r == 0 && map_equal(&m, &again));
	return 0;
}
