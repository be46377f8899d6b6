/*
 * layers/pass.h - one pass over the data of a layer: hashed, and copied where it shall go
 * A big layer is worked on by several threads, chunk by chunk: one hashes while another writes, and
 * the disk begins with the first chunks while the last ones are still to be read.
 */
#pragma once
#include "layers/index.h"

struct layer;

enum {
	PASS_WRITE_BACK = 4 << 20 /* bytes that are written before the disk is told to begin */
};

enum pass_form {
	PASS_PLAIN,  /* the mapped pages that are not zero, at the same places: sparse.h */
	PASS_SQUASH, /* a compressed stream: squash.h */
};

/*
 * Appends every chunk with a non-zero byte in a mapped page to ret->chunks, ascending. With to >= 0
 * they are written there, in this form; for a plain one the file has its size and is all holes.
 * Nothing is synced.
 */
int pass_run(const struct layer *l, int to, enum pass_form form, struct index *ret);
