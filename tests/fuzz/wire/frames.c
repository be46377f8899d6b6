/*
 * A connection's bytes: what decodes as a frame encodes to the same bytes, header and payload.
 */
#include <assert.h>
#include <string.h>

#include "wire/guest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t again[WIRE_FRAME_MAX];

	while (size >= WIRE_HEADER) {
		uint64_t msg[16]; /* aligned room for any message */
		const struct wire_desc *d;
		struct wire_header h;

		if (wire_header_decode(data, &h) < 0)
			break;
		wire_header_encode(&h, again);
		assert(memcmp(again, data, WIRE_HEADER) == 0);
		if (size - WIRE_HEADER < h.length)
			break;
		d = wire_desc_of(h.type);
		assert(!d || wire_type_known(h.type));
		if (d && wire_decode(d, data + WIRE_HEADER, h.length, msg) == 0) {
			ssize_t n = wire_frame(&h, d, msg, again, sizeof(again));

			assert(n == (ssize_t)(WIRE_HEADER + h.length));
			assert(memcmp(again, data, (size_t)n) == 0);
		}
		data += WIRE_HEADER + h.length;
		size -= WIRE_HEADER + h.length;
	}
	return 0;
}
