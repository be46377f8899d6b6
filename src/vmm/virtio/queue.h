/*
 * vmm/virtio/queue.h - a split virtqueue, whose other side may lie
 * Everything in the rings is guest memory that the guest may rewrite at any moment: it is copied
 * once, judged, and only the copy is used. A lie is -EPROTO or -EFAULT, and its device is broken
 * from then on (mmio.h); nothing else happens.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

#include "vmm/mem.h"

enum {
	QUEUE_SIZE_MAX = 256,
	CHAIN_MAX = 260, /* pieces of one request: what block and net are told, and a few more */
};

struct queue {
	const struct mem *mem;
	uint16_t max; /* what the driver may ask for */
	uint16_t size;
	bool ready;
	uint64_t desc, avail, used;
	uint16_t next_avail, next_used;
};

/* One request: first what the device reads, then what it writes. */
struct chain {
	uint16_t head;
	unsigned nout, nin;
	size_t out_len, in_len; /* in total: below 4 GiB */
	struct iovec iov[CHAIN_MAX];
};

static inline struct iovec *chain_in(struct chain *c)
{
	return c->iov + c->nout;
}

/* Are the rings in guest memory, aligned, and of a possible size? Asked when it is made ready. */
bool queue_usable(const struct queue *q);

/* Has the driver made a request that was not popped? q->ready. */
bool queue_asked(const struct queue *q);

/* 1 and the next request; 0: there is none. q->ready. */
int queue_pop(struct queue *q, struct chain *ret);

/* Puts back the request that was popped last. */
void queue_unpop(struct queue *q);

/* Hands a request back, len bytes of it written by the device. Seen by the guest at once. */
void queue_push(struct queue *q, uint16_t head, uint32_t len);

/* The same for n requests at once: the guest sees all or none. */
void queue_push_many(struct queue *q, const uint16_t *heads, const uint32_t *lens, unsigned n);

/* Does the driver want an interrupt for what was pushed? */
bool queue_wants_interrupt(const struct queue *q);

/* Copies between a chain's pieces and a buffer: at most n bytes from byte off on. Returns how
 * many. */
size_t iov_copy_out(const struct iovec *iov, unsigned niov, size_t off, void *buf, size_t n);
size_t iov_copy_in(const struct iovec *iov, unsigned niov, size_t off, const void *buf, size_t n);

/*
 * The part of iov that is bytes off to off + n: at most max pieces into to. Returns their number,
 * or -EINVAL when there is less, -E2BIG when they do not fit.
 */
int iov_slice(const struct iovec *iov, unsigned niov, size_t off, size_t n, struct iovec *to,
              unsigned max);
