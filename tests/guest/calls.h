/*
 * calls.h - what tests/e2e/jail/test_filters.c asks jail-child to try: an array on its fd 5
 */
#pragma once
#include <stdint.h>

enum {
	CALLS_FD = 5,
	CALL_UNTRIED = 0,
	CALL_BEGUN, /* neither it nor the process came back: it was let through, or killed */
	CALL_DONE,
};

struct call {
	uint64_t nr;
	uint64_t args[6];
	uint32_t by_int80;
	uint32_t state; /* CALL_* */
	int64_t result; /* as the kernel returns it: -errno */
};
