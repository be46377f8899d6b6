/*
 * base/loop.h - one thread that waits for many things: fds, times, other threads
 * Level-triggered epoll. All calls but loop_post() and loop_stop() belong to the loop's thread.
 * The structs are embedded by their owners; a zeroed one is idle. Removing an io or a timer is
 * allowed at any moment, inside any callback, its own too: it is not called again.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

struct loop_io {
	void (*fn)(void *arg, uint32_t events); /* EPOLLIN, EPOLLOUT, EPOLLRDHUP, ... */
	void *arg;
	int fd;
	uint32_t events;
	bool added;
};

struct loop_timer {
	void (*fn)(void *arg);
	void *arg;
	uint64_t at_ms; /* monotonic */
	size_t slot;    /* place in the heap, from 1; 0: not set */
};

struct loop_defer {
	void (*fn)(void *arg);
	void *arg;
	struct loop_defer *next, **prev; /* prev is NULL: not set */
};

int loop_new(struct loop **ret);
void loop_free(struct loop *l);

/* Runs callbacks until loop_stop(). Negative errno when epoll itself fails. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l); /* from any thread, and from a signal handler */

/* Monotonic ms at the start of this round: cheap, and equal for all callbacks of it. */
uint64_t loop_now_ms(const struct loop *l);

/* fd stays the caller's. io->fn and io->arg are set by the caller before. */
int loop_io_add(struct loop *l, struct loop_io *io, int fd, uint32_t events);
int loop_io_set(struct loop *l, struct loop_io *io, uint32_t events);
void loop_io_del(struct loop *l, struct loop_io *io); /* before the fd is closed; idle is fine */

/* Once, at that time or as soon after as possible. Setting a set one moves it. -ENOMEM. */
int loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ms);
void loop_timer_clear(struct loop *l, struct loop_timer *t);

/* Once, when all other callbacks of this round have run; it cannot fail. A set one stays as it
 * is. */
void loop_defer(struct loop *l, struct loop_defer *d);
void loop_defer_cancel(struct loop *l, struct loop_defer *d); /* idle is fine */

/* From any thread: fn(arg) runs on the loop, in order of posting. -ENOMEM. */
int loop_post(struct loop *l, void (*fn)(void *arg), void *arg);
