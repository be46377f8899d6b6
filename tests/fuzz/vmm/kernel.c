/*
 * A file that says it is a kernel. Promise: what is accepted has its entry inside memory and above
 * the first MiB, and that MiB was not touched.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "vmm/x86/load.h"

enum { MEMORY = 4 << 20, FIRST = 1 << 20 };

struct file {
	const uint8_t *data;
	size_t size;
};

static int read_file(void *arg, void *buf, size_t n, uint64_t off)
{
	const struct file *f = arg;

	if (off > f->size || n > f->size - off)
		return -ENODATA;
	memcpy(buf, f->data + off, n);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree uint8_t *memory = calloc(1, MEMORY);
	struct mem m = {.base = memory, .size = MEMORY};
	struct file f = {data, size};
	struct loaded k;
	int r;

	if (!memory)
		return 0;
	r = load_kernel(&m, &(struct load_source){read_file, &f}, &k);
	if (r == 0) {
		assert(k.entry >= FIRST && k.entry < MEMORY);
		assert(k.code_len <= MEMORY && k.code <= MEMORY - k.code_len);
	}
	for (size_t i = 0; i < FIRST; i += 64)
		assert(memory[i] == 0);
	return 0;
}
