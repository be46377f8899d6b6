/*
 * net/bucket.h - so much per second, and a reserve
 * Time comes from the caller, in ms. A zeroed bucket is full.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct bucket {
	uint64_t spent_milli; /* thousandths; falls by rate each ms */
	uint64_t at_ms;
};

/* True, and n are taken, when the bucket has them. */
static inline bool bucket_take(struct bucket *b, uint64_t now_ms, uint64_t per_s, uint64_t burst,
                               uint64_t n)
{
	uint64_t back = now_ms > b->at_ms ? (now_ms - b->at_ms) : 0;

	/* Whoever was away for long has it full again; this also keeps the product small. */
	if (back > 1000000 || back * per_s >= b->spent_milli)
		b->spent_milli = 0;
	else
		b->spent_milli -= back * per_s;
	b->at_ms = now_ms;
	if (b->spent_milli + n * 1000 > burst * 1000)
		return false;
	b->spent_milli += n * 1000;
	return true;
}
