/*
 * The compressed data of a layer. Promise: whatever is accepted, nothing is written to a page that
 * the layer does not have, and nothing behind its end.
 */
#include <assert.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "layers/map.h"
#include "layers/squash.h"

enum { PAGES = 37 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned char zeros[MAP_PAGE];
	autoclose int from = memfd_create("from", MFD_CLOEXEC),
		      to = memfd_create("to", MFD_CLOEXEC);
	AUTO(map_fini) struct map map = {0};
	unsigned char page[MAP_PAGE];
	struct stat st;
	int r;

	if (from < 0 || to < 0 || map_add(&map, 0, 20) < 0 || map_add(&map, 30, 7) < 0 ||
	    io_write_full(from, data, size) < 0 || ftruncate(to, PAGES * MAP_PAGE) < 0)
		return 0;
	r = squash_unpack(from, PAGES, &map, to);
	assert(r == 0 || r == -EBADMSG || r == -ENOMEM);
	assert(fstat(to, &st) == 0 && st.st_size == PAGES * MAP_PAGE);
	for (uint64_t i = 20; i < 30; i++) {
		assert(io_pread_full(to, page, MAP_PAGE, (off_t)(i * MAP_PAGE)) == 0);
		assert(memcmp(page, zeros, MAP_PAGE) == 0);
	}
	return 0;
}
