/*
 * A server for one connection: bytes in, all at once or cut in two, and all it says.
 */
#pragma once
#include <stdint.h>

#include "http/server.h"

enum {
	RIG_INPUT_MAX = 16 * 1024, /* fits into a socket buffer */
	RIG_OUTPUT_MAX = 1 << 20,
};

/* How many bytes of out it said; Date headers are blanked. cut in [0, n]. */
size_t rig_exchange(void (*handler)(void *arg, struct http_req *r), const uint8_t *p, size_t n,
                    size_t cut, char *out);
