/*
 * layers/pass.h - one pass over the data of a layer: hashed, and copied where it shall go
 * A big layer is worked on by several threads, chunk by chunk: one hashes while another writes, and
 * the disk begins with the first chunks while the last ones are still to be read.
 */
#pragma once
#include "layers/index.h"

struct layer;

enum {
	PASS_THREADS_MAX = 4,      /* for one layer; never more than there are cpus */
	PASS_THREAD_PAGES = 1024,  /* 4 MiB: less is not worth another thread */
	PASS_WRITE_BACK = 4 << 20, /* bytes that are copied before the disk is told to begin */
};

/*
 * Appends every chunk with a non-zero byte in a mapped page to ret->chunks, ascending. With to >= 0
 * the mapped pages that are not zero are written there, at the same places; it must be all holes.
 * Nothing is synced. Fewer threads than wished for are no error.
 */
int pass_run(const struct layer *l, int to, struct index *ret);
