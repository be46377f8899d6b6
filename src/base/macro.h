/*
 * base/macro.h - the smaller, the larger, and how many elements an array has
 * MIN and MAX evaluate each argument once.
 */
#pragma once

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)                   \
	({                          \
		typeof(a) a_ = (a); \
		typeof(b) b_ = (b); \
		a_ < b_ ? a_ : b_;  \
	})
#define MAX(a, b)                   \
	({                          \
		typeof(a) a_ = (a); \
		typeof(b) b_ = (b); \
		a_ > b_ ? a_ : b_;  \
	})
