#include "base/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/loop_internal.h"
#include "base/macro.h"

enum {
	BATCH = 128, /* events taken from the kernel at once */
};

struct loop {
	int epoll, wake;
	struct loop_io wake_io;
	uint64_t now_ms;
	atomic_bool stopping;

	/* What the kernel has told, with no callback run for it yet: events[next..count). */
	struct epoll_event events[BATCH];
	int next, count;

	struct loop_timer **heap; /* from 1: the children of i are 2i and 2i+1 */
	size_t timers, heap_cap;

	struct loop_defer *deferred, **deferred_tail;

	pthread_mutex_t lock; /* guards posts */
	struct loop_post *posts, **posts_tail;
};

/* ---- posts ---- */

static void wake(struct loop *l)
{
	uint64_t one = 1;
	int saved = errno; /* a signal handler may be calling */

	/* Fails only when the counter is full, and then the loop is awake already. */
	if (write(l->wake, &one, sizeof(one)) < 0)
		errno = saved;
}

void loop_post_node(struct loop *l, struct loop_post *p)
{
	bool first;

	p->next = NULL;
	pthread_mutex_lock(&l->lock);
	first = !l->posts;
	*l->posts_tail = p;
	l->posts_tail = &p->next;
	pthread_mutex_unlock(&l->lock);
	if (first)
		wake(l);
}

static struct loop_post *take_posts(struct loop *l)
{
	struct loop_post *p;

	pthread_mutex_lock(&l->lock);
	p = take_ptr(l->posts);
	l->posts_tail = &l->posts;
	pthread_mutex_unlock(&l->lock);
	return p;
}

static void on_wake(void *arg, uint32_t events)
{
	struct loop *l = arg;
	struct loop_post *p;
	uint64_t count;

	/* Before the list is taken: a thread that posts after that wakes us again. */
	if (read(l->wake, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return;
	for (p = take_posts(l); p;) {
		struct loop_post *next = p->next;

		p->fn(p);
		p = next;
	}
}

struct posted_call {
	struct loop_post post;
	void (*fn)(void *arg);
	void *arg;
};

static void call_drop(struct loop_post *p)
{
	free(p);
}

static void call_run(struct loop_post *p)
{
	struct posted_call c = *(struct posted_call *)p;

	free(p);
	c.fn(c.arg);
}

int loop_post(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct posted_call *c = malloc(sizeof(*c));

	if (!c)
		return -ENOMEM;
	*c =
	    (struct posted_call){.post = {.fn = call_run, .drop = call_drop}, .fn = fn, .arg = arg};
	loop_post_node(l, &c->post);
	return 0;
}

void loop_stop(struct loop *l)
{
	atomic_store(&l->stopping, true);
	wake(l);
}

/* ---- life ---- */

int loop_new(struct loop **ret)
{
	struct loop *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	l->posts_tail = &l->posts;
	l->deferred_tail = &l->deferred;
	l->now_ms = mono_ms();
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->wake = l->epoll < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = l->wake < 0 ? -errno : 0;
	if (r == 0) {
		l->wake_io.fn = on_wake;
		l->wake_io.arg = l;
		r = loop_io_add(l, &l->wake_io, l->wake, EPOLLIN);
	}
	if (r < 0) {
		loop_free(l);
		return r;
	}
	*ret = l;
	return 0;
}

void loop_free(struct loop *l)
{
	struct loop_post *p;

	if (!l)
		return;
	for (p = take_posts(l); p;) {
		struct loop_post *next = p->next;

		p->drop(p);
		p = next;
	}
	while (l->deferred)
		loop_defer_cancel(l, l->deferred);
	for (size_t i = 1; i <= l->timers; i++)
		l->heap[i]->slot = 0;
	free(l->heap);
	if (l->wake >= 0)
		close(l->wake);
	if (l->epoll >= 0)
		close(l->epoll);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

uint64_t loop_now_ms(const struct loop *l)
{
	return l->now_ms;
}

/* ---- fds ---- */

int loop_io_add(struct loop *l, struct loop_io *io, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = io};

	assert(!io->added);
	if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) < 0)
		return -errno;
	io->fd = fd;
	io->events = events;
	io->added = true;
	return 0;
}

int loop_io_set(struct loop *l, struct loop_io *io, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = io};

	assert(io->added);
	if (io->events == events)
		return 0;
	if (epoll_ctl(l->epoll, EPOLL_CTL_MOD, io->fd, &ev) < 0)
		return -errno;
	io->events = events;
	return 0;
}

void loop_io_del(struct loop *l, struct loop_io *io)
{
	if (!io->added)
		return;
	epoll_ctl(l->epoll, EPOLL_CTL_DEL, io->fd, NULL);
	io->added = false;
	/* The kernel may have told of it in this round already. */
	for (int i = l->next; i < l->count; i++)
		if (l->events[i].data.ptr == io)
			l->events[i].data.ptr = NULL;
}

/* ---- times ---- */

static void place(struct loop *l, size_t i, struct loop_timer *t)
{
	l->heap[i] = t;
	t->slot = i;
}

static void sift_up(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap[i];

	for (; i > 1 && t->at_ms < l->heap[i / 2]->at_ms; i /= 2)
		place(l, i, l->heap[i / 2]);
	place(l, i, t);
}

static void sift_down(struct loop *l, size_t i)
{
	struct loop_timer *t = l->heap[i];

	for (;;) {
		size_t child = 2 * i;

		if (child > l->timers)
			break;
		if (child < l->timers && l->heap[child + 1]->at_ms < l->heap[child]->at_ms)
			child++;
		if (t->at_ms <= l->heap[child]->at_ms)
			break;
		place(l, i, l->heap[child]);
		i = child;
	}
	place(l, i, t);
}

int loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ms)
{
	uint64_t before = t->at_ms;

	if (!t->slot) {
		if (l->timers + 1 >= l->heap_cap) {
			size_t cap = l->heap_cap ? 2 * l->heap_cap : 64;
			struct loop_timer **heap =
			    realloc(l->heap, cap * sizeof(struct loop_timer *));

			if (!heap)
				return -ENOMEM;
			l->heap = heap;
			l->heap_cap = cap;
		}
		t->at_ms = at_ms;
		l->heap[++l->timers] = t;
		sift_up(l, l->timers);
		return 0;
	}
	t->at_ms = at_ms;
	if (at_ms < before)
		sift_up(l, t->slot);
	else
		sift_down(l, t->slot);
	return 0;
}

void loop_timer_clear(struct loop *l, struct loop_timer *t)
{
	size_t i = t->slot;
	struct loop_timer *last;

	if (!i)
		return;
	t->slot = 0;
	last = l->heap[l->timers--];
	if (last == t)
		return;
	place(l, i, last);
	sift_up(l, i);
	sift_down(l, last->slot);
}

static void run_timers(struct loop *l)
{
	/* As many as there are now: one that sets itself again for the past must not hold us. */
	for (size_t n = l->timers; n && l->timers && l->heap[1]->at_ms <= l->now_ms; n--) {
		struct loop_timer *t = l->heap[1];

		loop_timer_clear(l, t);
		t->fn(t->arg);
	}
}

/* ---- the round ---- */

void loop_defer(struct loop *l, struct loop_defer *d)
{
	if (d->prev)
		return;
	d->next = NULL;
	d->prev = l->deferred_tail;
	*l->deferred_tail = d;
	l->deferred_tail = &d->next;
}

void loop_defer_cancel(struct loop *l, struct loop_defer *d)
{
	if (!d->prev)
		return;
	*d->prev = d->next;
	if (d->next)
		d->next->prev = d->prev;
	else
		l->deferred_tail = d->prev;
	d->prev = NULL;
}

static void run_deferred(struct loop *l)
{
	struct loop_defer end = {0};

	if (!l->deferred)
		return;
	/* Up to here: what is deferred from now on belongs to the next round. */
	loop_defer(l, &end);
	while (l->deferred != &end) {
		struct loop_defer *d = l->deferred;

		loop_defer_cancel(l, d);
		d->fn(d->arg);
	}
	loop_defer_cancel(l, &end);
}

static int timeout_of(const struct loop *l)
{
	uint64_t now;

	if (l->deferred)
		return 0;
	if (!l->timers)
		return -1;
	now = mono_ms();
	if (l->heap[1]->at_ms <= now)
		return 0;
	return (int)MIN(l->heap[1]->at_ms - now, (uint64_t)INT_MAX);
}

int loop_run(struct loop *l)
{
	while (!atomic_load(&l->stopping)) {
		int n = epoll_wait(l->epoll, l->events, BATCH, timeout_of(l));

		if (n < 0 && errno != EINTR)
			return -errno;
		l->now_ms = mono_ms();
		l->count = MAX(n, 0);
		for (l->next = 0; l->next < l->count;) {
			struct epoll_event *ev = &l->events[l->next++];
			struct loop_io *io = ev->data.ptr;

			if (io)
				io->fn(io->arg, ev->events);
		}
		l->next = l->count = 0;
		run_timers(l);
		run_deferred(l);
	}
	atomic_store(&l->stopping, false);
	return 0;
}
