/*
 * base/loop_internal.h - posting without allocating, for callers that must not fail then
 */
#pragma once
#include "base/loop.h"

struct loop_post {
	struct loop_post *next;
	void (*fn)(struct loop_post *p);   /* on the loop; p is fn's from then on */
	void (*drop)(struct loop_post *p); /* instead of fn, when the loop is freed before */
};

/* From any thread. Never fails. */
void loop_post_node(struct loop *l, struct loop_post *p);
