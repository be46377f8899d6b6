/*
 * Map runs as a machine process writes them: 8 bytes of size, then runs. Promise: what is accepted
 * is sorted and inside the size, holds exactly the pages that were named, and comes back the same
 * from its own encoding.
 */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/pages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(map_fini) struct map m = {0}, again = {0};
	uint64_t pages, named = 0, end = 0;
	size_t nr;
	int r;

	if (size < sizeof(pages))
		return 0;
	memcpy(&pages, data, sizeof(pages));
	data += sizeof(pages);
	nr = (size - sizeof(pages)) / RUN_LEN;
	if (runs_add(&m, data, nr, pages) < 0)
		return 0;
	for (size_t i = 0; i < m.n; i++) {
		assert(m.runs[i].n > 0 && (i == 0 || m.runs[i].start > end));
		end = m.runs[i].start + m.runs[i].n;
		assert(end > m.runs[i].start && end <= pages);
	}
	for (size_t i = 0; i < nr; i++) {
		struct map_run run;
		uint64_t same;

		memcpy(&run, data + i * RUN_LEN, sizeof(run));
		assert(map_has(&m, run.start, &same) && same >= run.n);
		named += run.n;
	}
	assert(map_pages(&m) == named);
	r = runs_add(&again, m.runs, m.n, pages);
	assert(r == 0 && map_equal(&m, &again));
	return 0;
}
