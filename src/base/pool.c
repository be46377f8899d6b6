#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/cleanup.h"
#include "base/loop_internal.h"

struct job {
	struct loop_post post; /* first: the loop hands it back */
	struct job *next;
	struct pool *pool;
	void (*work)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

struct pool {
	struct loop *loop;
	unsigned busy;    /* loop thread only */
	atomic_uint refs; /* the owner's, and one per job: done may be called after pool_free() */

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t more;
	struct job *jobs, **jobs_tail;
	bool ending;

	unsigned threads;
	pthread_t thread[];
};

static void unref(struct pool *p)
{
	if (atomic_fetch_sub(&p->refs, 1) != 1)
		return;
	pthread_cond_destroy(&p->more);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static void job_drop(struct loop_post *post)
{
	struct job *j = (struct job *)post;

	unref(j->pool);
	free(j);
}

static void job_done(struct loop_post *post)
{
	struct job j = *(struct job *)post;

	j.pool->busy--; /* before: the last one may want to see that nothing is left */
	job_drop(post);
	j.done(j.arg);
}

static void *worker(void *arg)
{
	struct pool *p = arg;

	for (;;) {
		struct job *j;

		pthread_mutex_lock(&p->lock);
		while (!p->jobs && !p->ending)
			pthread_cond_wait(&p->more, &p->lock);
		j = p->jobs;
		if (j) {
			p->jobs = j->next;
			if (!p->jobs)
				p->jobs_tail = &p->jobs;
		}
		pthread_mutex_unlock(&p->lock);
		if (!j)
			return NULL;
		j->work(j->arg);
		loop_post_node(p->loop, &j->post);
	}
}

int pool_new(struct loop *l, unsigned threads, struct pool **ret)
{
	struct pool *p;
	sigset_t all, before;
	int r = 0;

	if (!threads)
		return -EINVAL;
	p = calloc(1, sizeof(*p) + threads * sizeof(pthread_t));
	if (!p)
		return -ENOMEM;
	p->loop = l;
	p->jobs_tail = &p->jobs;
	atomic_init(&p->refs, 1);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	/* Signals are for the thread that expects them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (p->threads < threads && r == 0) {
		r = pthread_create(&p->thread[p->threads], NULL, worker, p);
		if (r == 0)
			p->threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r) {
		pool_free(p);
		return -r;
	}
	*ret = p;
	return 0;
}

int pool_submit(struct pool *p, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	struct job *j = malloc(sizeof(*j));

	if (!j)
		return -ENOMEM;
	*j = (struct job){.post = {.fn = job_done, .drop = job_drop},
	                  .pool = p,
	                  .work = work,
	                  .done = done,
	                  .arg = arg};
	p->busy++;
	atomic_fetch_add(&p->refs, 1);
	pthread_mutex_lock(&p->lock);
	*p->jobs_tail = j;
	p->jobs_tail = &j->next;
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

unsigned pool_busy(const struct pool *p)
{
	return p->busy;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->ending = true; /* what is queued is still worked off: that was the promise */
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->threads; i++)
		pthread_join(p->thread[i], NULL);
	unref(p);
}
