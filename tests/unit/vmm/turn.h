/*
 * What is due in a loop is done once, and no more: devices under test have no thread of their own.
 */
#pragma once
#include <assert.h>

#include "base/loop.h"

static inline void turn_over(void *arg)
{
	loop_stop(arg);
}

static inline void turn(struct loop *l)
{
	struct loop_defer d = {.fn = turn_over, .arg = l};
	int r;

	loop_defer(l, &d);
	r = loop_run(l);
	assert(r == 0);
}
