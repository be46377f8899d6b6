/*
 * layers/crew.h - a few threads for one piece of work, gone when it is done
 */
#pragma once
#include <stdint.h>

enum { CREW_MAX = 16 };

/*
 * Runs fn(arg) n times at once, once by the caller, and returns when all have. fn shares the work
 * out: fewer threads than wished for, down to the caller alone, only take longer.
 */
void crew_run(unsigned n, void *(*fn)(void *arg), void *arg);

/* How many for so many pages: one for each 4 MiB, but not more than cpus, and than 4. */
unsigned crew_for(uint64_t pages);
