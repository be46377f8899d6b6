#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"
#include "base/loop_internal.h"
#include "base/macro.h"

/* The work of one key. It is there as long as it has some. */
struct pool_turn {
	struct pool_turn *next;
	struct pool_job *jobs, **tail;
	unsigned running;
	char key[];
};

struct pool_job {
	struct loop_post post; /* first: the loop hands it back */
	struct pool_job *next;
	struct pool_turn *turn;
	struct pool *pool;
	void (*work)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

struct pool {
	struct loop *loop;
	unsigned busy; /* loop thread only, as is what lets it grow: */
	unsigned max;
	void (*drop)(void *arg);
	void (*idle)(void *arg);
	void *idle_arg;
	struct loop_timer patience;
	uint64_t ended_then; /* how many had ended when we last looked */
	atomic_uint refs; /* the owner's, and one per job: done may be called after pool_free() */

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t more;
	pthread_cond_t fewer;    /* an extra thread has ended */
	struct pool_turn *turns; /* whose turn is next comes first */
	struct pool_turn *own;   /* of no key: it is one of them, always */
	unsigned waiting, running;
	uint64_t ended; /* jobs */
	unsigned extra; /* threads beyond the first ones; no thread joins them */
	bool ending;

	unsigned threads;
	pthread_t thread[];
};

static void unref(struct pool *p)
{
	if (atomic_fetch_sub(&p->refs, 1) != 1)
		return;
	pthread_cond_destroy(&p->more);
	pthread_cond_destroy(&p->fewer);
	pthread_mutex_destroy(&p->lock);
	free(p->own);
	free(p);
}

static void job_drop(struct loop_post *post)
{
	struct pool_job *j = (struct pool_job *)post;

	if (j->pool->drop)
		j->pool->drop(j->arg);
	unref(j->pool);
	free(j);
}

static void job_done(struct loop_post *post)
{
	struct pool_job j = *(struct pool_job *)post;

	j.pool->busy--; /* before: the last one may want to see that nothing is left */
	free(post);
	j.done(j.arg);
	if (!j.pool->busy && j.pool->idle)
		j.pool->idle(j.pool->idle_arg);
	unref(j.pool);
}

/* ---- turns: all of it with the lock held ---- */

static struct pool_turn *turn_new(const char *key)
{
	struct pool_turn *t = malloc(sizeof(*t) + strlen(key) + 1);

	if (t) {
		*t = (struct pool_turn){.tail = &t->jobs};
		memcpy(t->key, key, strlen(key) + 1);
	}
	return t;
}

static void turn_last(struct pool *p, struct pool_turn *t)
{
	struct pool_turn **at = &p->turns;

	while (*at)
		at = &(*at)->next;
	t->next = NULL;
	*at = t;
}

static struct pool_turn *turn_of(struct pool *p, const char *key)
{
	struct pool_turn *t = key ? p->turns : p->own;

	while (key && t && (t == p->own || strcmp(t->key, key) != 0))
		t = t->next;
	if (!t && (t = turn_new(key)))
		turn_last(p, t);
	return t;
}

/* May one more of its jobs run, if there are so many threads? */
static bool turn_may(const struct pool *p, const struct pool_turn *t, unsigned threads)
{
	unsigned others = p->running - t->running, left = threads > others ? threads - others : 0;

	return t == p->own || p->ending || t->running < MAX(left * 3 / 4, 1u);
}

static struct pool_turn **turn_next(struct pool *p, unsigned threads)
{
	for (struct pool_turn **at = &p->turns; *at; at = &(*at)->next)
		if ((*at)->jobs && turn_may(p, *at, threads))
			return at;
	return NULL;
}

static void turn_ended(struct pool *p, struct pool_turn *t)
{
	struct pool_turn **at = &p->turns;

	p->running--;
	if (--t->running || t->jobs || t == p->own)
		return;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	free(t);
}

/* The next job, once there is one; NULL: this thread is not needed. */
static struct pool_job *next_job(struct pool *p, bool extra)
{
	struct pool_turn **at, *t;
	struct pool_job *j;

	while (!(at = turn_next(p, p->threads + p->extra))) {
		if (p->ending || extra)
			return NULL;
		pthread_cond_wait(&p->more, &p->lock);
	}
	t = *at;
	*at = t->next;
	turn_last(p, t);
	j = t->jobs;
	t->jobs = j->next;
	if (!t->jobs)
		t->tail = &t->jobs;
	t->running++;
	p->waiting--;
	p->running++;
	return j;
}

/* ---- threads ---- */

static void run(struct pool *p, bool extra)
{
	struct pool_job *j;

	pthread_mutex_lock(&p->lock);
	while ((j = next_job(p, extra))) {
		struct pool_turn *t = j->turn;

		pthread_mutex_unlock(&p->lock);
		j->work(j->arg);
		loop_post_node(p->loop, &j->post);
		pthread_mutex_lock(&p->lock);
		turn_ended(p, t);
		p->ended++;
	}
	if (extra) {
		p->extra--;
		pthread_cond_signal(&p->fewer);
	}
	pthread_mutex_unlock(&p->lock); /* an extra one touches p no more */
}

static void *worker(void *arg)
{
	run(arg, false);
	return NULL;
}

static void *extra_worker(void *arg)
{
	run(arg, true);
	return NULL;
}

/* Signals are for the thread that expects them. */
static int start_thread(pthread_t *t, void *(*fn)(void *arg), struct pool *p)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(t, NULL, fn, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r;
}

/* ---- growing ---- */

static void look_later(struct pool *p)
{
	p->ended_then = p->ended;
	loop_timer_set(p->loop, &p->patience, loop_now_ms(p->loop) + POOL_PATIENCE_MS);
}

static void grow(void *arg)
{
	struct pool *p = arg;
	pthread_t t;

	pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; p->ended == p->ended_then && i < p->threads &&
	                     p->threads + p->extra < p->max && turn_next(p, p->max);
	     i++) {
		if (start_thread(&t, extra_worker, p) != 0)
			break; /* those there are will do it */
		pthread_detach(t);
		p->extra++;
	}
	if (p->waiting)
		look_later(p);
	pthread_mutex_unlock(&p->lock);
}

void pool_may_grow(struct pool *p, unsigned max)
{
	p->max = max;
}

void pool_on_drop(struct pool *p, void (*drop)(void *arg))
{
	p->drop = drop;
}

int pool_new(struct loop *l, unsigned threads, struct pool **ret)
{
	struct pool *p;
	int r = 0;

	if (!threads)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + threads * sizeof(pthread_t));
	if (!p)
		return -ENOMEM;
	p->loop = l;
	p->own = p->turns = turn_new("");
	if (!p->own) {
		free(p);
		return -ENOMEM;
	}
	atomic_init(&p->refs, 1);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	pthread_cond_init(&p->fewer, NULL);
	p->patience = (struct loop_timer){.fn = grow, .arg = p};
	pthread_mutex_lock(&p->lock); /* the first ones look how many there are */
	while (p->threads < threads && r == 0) {
		r = start_thread(&p->thread[p->threads], worker, p);
		if (r == 0)
			p->threads++;
	}
	pthread_mutex_unlock(&p->lock);
	if (r) {
		pool_free(p);
		return -r;
	}
	*ret = p;
	return 0;
}

int pool_submit(struct pool *p, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	return pool_submit_for(p, NULL, work, done, arg);
}

int pool_submit_for(struct pool *p, const char *key, void (*work)(void *arg),
                    void (*done)(void *arg), void *arg)
{
	struct pool_job *j = malloc(sizeof(*j));

	if (!j)
		return -ENOMEM;
	*j = (struct pool_job){.post = {.fn = job_done, .drop = job_drop},
	                       .pool = p,
	                       .work = work,
	                       .done = done,
	                       .arg = arg};
	pthread_mutex_lock(&p->lock);
	j->turn = turn_of(p, key);
	if (!j->turn) {
		pthread_mutex_unlock(&p->lock);
		free(j);
		return -ENOMEM;
	}
	p->busy++;
	atomic_fetch_add(&p->refs, 1);
	/* A key may wait while there are threads. */
	if (p->max > p->threads && !p->patience.slot && p->busy > p->threads - p->threads / 4)
		look_later(p);
	*j->turn->tail = j;
	j->turn->tail = &j->next;
	p->waiting++;
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

void pool_on_idle(struct pool *p, void (*idle)(void *arg), void *arg)
{
	p->idle = idle;
	p->idle_arg = arg;
}

unsigned pool_busy(const struct pool *p)
{
	return p->busy;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	loop_timer_clear(p->loop, &p->patience);
	p->idle = NULL;
	pthread_mutex_lock(&p->lock);
	p->ending = true; /* what is queued is still worked off: that was the promise */
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->threads; i++)
		pthread_join(p->thread[i], NULL);
	pthread_mutex_lock(&p->lock);
	while (p->extra)
		pthread_cond_wait(&p->fewer, &p->lock);
	pthread_mutex_unlock(&p->lock);
	unref(p);
}
