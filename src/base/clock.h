/*
 * base/clock.h - time, always with its unit in the name
 */
#pragma once
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t mono_ms(void)
{
	return mono_ns() / 1000000u;
}

/* Since 1970, as records and clients have it. */
static inline uint64_t wall_ms(void)
{
	return clock_ns(CLOCK_REALTIME) / 1000000u;
}
