/*
 * base/bucket.h - so much per second, and a reserve for a burst
 * Time comes from the caller, in monotonic ms; a clock that goes back gives nothing. A zeroed
 * bucket is full. The rate and the burst come with each call, so that they may change.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/macro.h"

struct bucket {
	uint64_t spent_milli; /* thousandths; falls by the rate each ms */
	uint64_t at_ms;
};

/* True, and n are taken, when the bucket has them. */
static inline bool bucket_take(struct bucket *b, uint64_t now_ms, uint64_t per_s, uint64_t burst,
                               uint64_t n)
{
	uint64_t back = now_ms > b->at_ms ? (now_ms - b->at_ms) : 0;

	/* After 1000 seconds it is full at any rate; this also keeps the product small. */
	if (back > 1000000 || back * per_s >= b->spent_milli)
		b->spent_milli = 0;
	else
		b->spent_milli -= back * per_s;
	b->at_ms = MAX(b->at_ms, now_ms);
	if (b->spent_milli + n * 1000 > burst * 1000)
		return false;
	b->spent_milli += n * 1000;
	return true;
}

/*
 * After bucket_take() said no: in how many ms the bucket has n again, when nothing else is taken.
 * n is at most burst, and per_s is not 0.
 */
static inline uint64_t bucket_wait_ms(const struct bucket *b, uint64_t per_s, uint64_t burst,
                                      uint64_t n)
{
	uint64_t room = (burst - n) * 1000;

	return b->spent_milli > room ? (b->spent_milli - room + per_s - 1) / per_s : 0;
}
