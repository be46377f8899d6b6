/*
 * host/op.h - operations on one sandbox take turns
 * Loop thread only.
 */
#pragma once
#include "host/host.h"

struct sandbox;

/*
 * One operation on one sandbox; embedded as first member. begin() is called on the loop when its
 * turn has come, in whatever state the sandbox is then; op_end() says that it is over, and the next
 * one's turn comes. The operation frees itself after op_end().
 */
struct op {
	struct op *next;
	struct sandbox *sb;
	const char *name;                   /* for the log */
	char request[HOST_REQUEST_MAX + 1]; /* the API call that asked for it; "": none did */
	uint64_t asked_ms, began_ms;
	void (*begin)(struct op *op);
	void (*cancel)(struct op *op); /* it is at work, another cannot wait; may be NULL */
};

/* The name is a literal. At level debug the log shows when it begins and ends, and which request
 * asked. */
void op_queue(struct sandbox *sb, const char *name, struct op *op);
/* Behind the one at work. */
void op_queue_first(struct sandbox *sb, const char *name, struct op *op);
void op_end(struct op *op);
/* Asserts the rules of the queue: all are of this sandbox, and the first one alone has begun. */
void op_check(const struct sandbox *sb);
