/*
 * calls.h - what tests/e2e/jail/test_filters.c asks jail-child to try: an array on its fd 5
 */
#pragma once
#include <stdint.h>

enum {
	CALLS_FD = 5,
	CALL_UNTRIED = 0,
	CALL_BEGUN, /* it did not come back, nor did the process: the filter let it through, or killed it */
	CALL_DONE,
};

struct call {
	uint64_t nr;
	uint64_t args[6];
	uint32_t by_int80;
	uint32_t state; /* CALL_* */
	int64_t result; /* as the kernel returns it: -errno */
};
