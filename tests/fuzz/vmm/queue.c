/*
 * A virtqueue in memory that the input filled: 16 bytes of where and how large, the rest is guest
 * memory. Promise: every piece of every request lies inside memory, pieces and bytes are within
 * their bounds, and the walk ends.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "vmm/virtio/queue.h"

enum { MEMORY = 64 << 10 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree uint8_t *memory = aligned_alloc(4096, MEMORY); /* so a sanitizer sees the end */
	struct mem m = {.base = memory, .size = MEMORY};
	struct queue q = {.mem = &m, .max = QUEUE_SIZE_MAX, .ready = true};
	uint16_t where[8];
	struct chain c;

	if (size < sizeof(where) || !memory)
		return 0;
	memcpy(where, data, sizeof(where));
	memset(memory, 0, MEMORY);
	memcpy(memory, data + sizeof(where), MIN(size - sizeof(where), (size_t)MEMORY));
	q.size = where[0];
	q.desc = where[1];
	q.avail = where[2];
	q.used = where[3];
	q.next_avail = where[4];
	q.next_used = where[5];
	if (!queue_usable(&q))
		return 0;
	for (unsigned i = 0; i < 2u * QUEUE_SIZE_MAX && queue_pop(&q, &c) == 1; i++) {
		size_t in = 0, out = 0;

		assert(c.nout + c.nin >= 1 && c.nout + c.nin <= CHAIN_MAX);
		for (unsigned k = 0; k < c.nout + c.nin; k++) {
			const uint8_t *p = c.iov[k].iov_base;

			assert(p >= memory && c.iov[k].iov_len > 0 &&
			       c.iov[k].iov_len <= (size_t)(memory + MEMORY - p));
			*(k < c.nout ? &out : &in) += c.iov[k].iov_len;
		}
		assert(in == c.in_len && out == c.out_len);
		iov_copy_in(chain_in(&c), c.nin, 0, data, size);
		queue_push(&q, c.head, (uint32_t)in);
		queue_wants_interrupt(&q);
	}
	return 0;
}
