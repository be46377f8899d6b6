/*
 * net/prepare.c - slots are made before a sandbox wants them, and unmade on threads of their own
 */
#include <errno.h>
#include <string.h>

#include "base/loop.h"
#include "base/pool.h"
#include "net/make.h"
#include "net/net.h"
#include "net/net_internal.h"
#include "net/range.h"

enum {
	RETRY_MS = 2000,
	REFILL_MS = 30,
	BREAKERS = 2, /* closing a tap waits for the kernel, some 30 ms */
};

/*
 * What a thread does for a slot. The job comes back by the loop, maybe after net_free() has seen to
 * its slot: then slot is NULL and nothing is left to do. Or it is dropped with the loop.
 */
struct net_job {
	struct net *net;
	struct net_slot *slot;
	bool making;
	struct net_job *next, **prev;
};

static struct net_job *job_new(struct net *n, struct net_slot *s)
{
	struct net_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	j->net = n;
	j->slot = s;
	j->next = n->jobs;
	j->prev = &n->jobs;
	if (j->next)
		j->next->prev = &j->next;
	n->jobs = j;
	return j;
}

static void job_unlink(struct net_job *j)
{
	if (j->next)
		j->next->prev = j->prev;
	*j->prev = j->next;
}

/* Any thread. */
static void slot_unmake(struct net_slot *s)
{
	audit_last(s);
	make_undo(&s->plan, &s->kit);
}

static void job_undo(void *arg)
{
	slot_unmake(((struct net_job *)arg)->slot);
}

static void job_undone(void *arg)
{
	struct net_job *j = arg;

	if (j->slot) {
		job_unlink(j);
		range_put(j->net->range, j->slot->place);
		slot_free(j->slot);
		ahead_more(j->net);
	}
	free(j);
}

void slot_undo(struct net_slot *s)
{
	struct net *n = s->net;
	struct net_job *j = job_new(n, s);

	if (j && pool_submit(n->breaker, job_undo, job_undone, j) == 0)
		return;
	if (j) {
		job_unlink(j);
		free(j);
	}
	/* No memory for a note: then it is done here, and takes what it takes. */
	slot_unmake(s);
	range_put(n->range, s->place);
	slot_free(s);
}

static void job_make(void *arg)
{
	struct net_slot *s = ((struct net_job *)arg)->slot;

	s->error = make_slot(&s->plan, &s->kit, s->why);
}

static void tell_waiters(void *arg)
{
	struct net *n = arg;

	while (n->waits) {
		struct net_wait *w = n->waits;
		int error = 0;

		if (!n->n_ready) {
			if (n->n_making || range_used(n->range) < range_total(n->range)) {
				if (!n->last_error)
					return;
				error = n->last_error;
			} else {
				error = -ENOSPC;
			}
		}
		net_wait_cancel(n, w);
		w->fn(w->arg, error);
		if (error == 0 && n->n_ready)
			continue;
	}
}

static void job_made(void *arg)
{
	struct net_job *j = arg;
	struct net_slot *s = j->slot;
	struct net *n = j->net;

	if (!s) {
		free(j);
		return;
	}
	job_unlink(j);
	free(j);
	n->n_making--;
	if (s->error == 0) {
		n->last_error = 0;
		slot_link(&n->ready, s);
		n->n_ready++;
	} else {
		if (s->place_lost) {
			/* It was adopted meanwhile, and is nothing we could make. */
		} else if (s->error == -EEXIST) {
			/* Another program on this host sits there: the next is tried. */
			range_foreign(n->range, s->place);
		} else {
			range_put(n->range, s->place);
			n->last_error = s->error;
			memcpy(n->last_why, s->why, sizeof(n->last_why));
			n->retry_ms = loop_now_ms(n->loop) + RETRY_MS;
		}
		free(s);
	}
	loop_defer(n->loop, &n->tell);
	ahead_more(n);
}

static int make_one(struct net *n)
{
	struct net_slot *s = calloc(1, sizeof(*s));
	struct net_job *j;
	int r;

	if (!s)
		return -ENOMEM;
	s->net = n;
	s->kit = MAKE_KIT_NONE;
	r = range_get(n->range, &s->place);
	if (r < 0) {
		free(s);
		return r;
	}
	s->plan = (struct make_plan){.host_ns = n->host_ns,
	                             .nft = n->nft,
	                             .host = range_host(n->range, s->place),
	                             .inner = range_inner(n->range, s->place),
	                             .conns_max = n->config.conns_max,
	                             .up_kbit = n->config.up_kbit,
	                             .down_kbit = n->config.down_kbit,
	                             .closed = &n->closed,
	                             .own = &n->own};
	j = job_new(n, s);
	if (j)
		j->making = true;
	r = j ? pool_submit(n->maker, job_make, job_made, j) : -ENOMEM;
	if (r < 0) {
		if (j)
			job_unlink(j);
		free(j);
		range_put(n->range, s->place);
		free(s);
		return r;
	}
	n->n_making++;
	return 0;
}

static void on_retry(void *arg)
{
	ahead_more(arg);
}

void ahead_more(struct net *n)
{
	uint64_t now = loop_now_ms(n->loop);

	if (n->last_error && now < n->retry_ms) {
		loop_timer_set(n->loop, &n->retry, n->retry_ms);
		return;
	}
	while (n->n_ready + n->n_making < n->config.ready) {
		if (make_one(n) == 0)
			continue;
		/* All places are taken, or there is no memory: the next one that comes back asks
		 * again. Others on this host may have left theirs. */
		if (now < n->foreign_ms || !range_retry(n->range))
			break;
		n->foreign_ms = now + RETRY_MS;
	}
	if (now < n->foreign_ms && n->n_ready + n->n_making < n->config.ready)
		loop_timer_set(n->loop, &n->retry, n->foreign_ms);
}

void ahead_refill(struct net *n)
{
	if (n->n_ready + n->n_making > n->config.ready / 2)
		loop_timer_set(n->loop, &n->retry, loop_now_ms(n->loop) + REFILL_MS);
	else
		ahead_more(n);
}

void net_wait(struct net *n, struct net_wait *w)
{
	w->next = NULL;
	w->prev = n->waits_tail;
	*n->waits_tail = w;
	n->waits_tail = &w->next;
	ahead_more(n);
	loop_defer(n->loop, &n->tell);
}

void net_wait_cancel(struct net *n, struct net_wait *w)
{
	if (!w->prev)
		return;
	if (w->next)
		w->next->prev = w->prev;
	else
		n->waits_tail = w->prev;
	*w->prev = w->next;
	w->next = NULL;
	w->prev = NULL;
}

int ahead_claim(struct net *n, uint32_t place)
{
	struct net_job *j;
	int r = range_claim(n->range, place);

	if (r != -EBUSY)
		return r;
	for (j = n->jobs; j; j = j->next) {
		if (j->making && j->slot->place == place && !j->slot->place_lost) {
			j->slot->place_lost = true;
			return 0;
		}
	}
	return r;
}

int ahead_open(struct net *n)
{
	int r = pool_new(n->loop, 1, &n->maker);

	if (r == 0)
		r = pool_new(n->loop, BREAKERS, &n->breaker);
	if (r < 0)
		return r;
	pool_on_drop(n->maker, free);
	pool_on_drop(n->breaker, free);
	return 0;
}

void ahead_init(struct net *n)
{
	n->waits_tail = &n->waits;
	n->retry = (struct loop_timer){.fn = on_retry, .arg = n};
	n->tell = (struct loop_defer){.fn = tell_waiters, .arg = n};
}

void ahead_close(struct net *n)
{
	loop_timer_clear(n->loop, &n->retry);
	loop_defer_cancel(n->loop, &n->tell);
	while (n->ready) {
		struct net_slot *s = n->ready;

		slot_unlink(s);
		slot_undo(s);
	}
	/* All that was submitted has been worked on after this; whatever is still in the list is
	 * done or made. */
	pool_free(n->maker);
	pool_free(n->breaker);
	while (n->jobs) {
		struct net_job *j = n->jobs;

		job_unlink(j);
		if (j->slot->kit.ns >= 0)
			make_undo(&j->slot->plan, &j->slot->kit);
		slot_free(j->slot);
		j->slot = NULL; /* the loop still has the job */
	}
}
