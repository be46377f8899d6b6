/*
 * vmm/copy.h - the machine's part of a copy of a volume as of one moment, while it is written
 * Another process copies the file, chunk by chunk. Before a chunk changes for the first time, its
 * old content goes into another file and the chunk is marked; the copier reads a chunk, then looks
 * at its mark, and leaves marked ones alone. A copy that fails does so alone: the guest goes on.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { COPY_CHUNK = 65536 }; /* ENGINE_COPY_CHUNK of the host */

struct copy {
	bool on;
	int to, marks; /* slots of control.h, ours while it is on */
	uint64_t size;
	int error; /* the first one; nothing is kept after it */
};

void copy_begin(struct copy *c, int to, int marks, uint64_t size);
/* [off, off + len) of `from` is about to change; inside its size. */
void copy_before(struct copy *c, int from, uint64_t off, uint64_t len);
/* Closes both files. Returns what went wrong meanwhile. */
int copy_end(struct copy *c);
