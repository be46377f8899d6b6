/*
 * base/pool.h - threads for what blocks, with the answer back on the loop
 * Work runs on as many threads as there are; done runs on the loop. Work for the same key, such as
 * a tenant, begins in order of submission, and keys take turns.
 */
#pragma once
#include "base/loop.h"

struct pool;

int pool_new(struct loop *l, unsigned threads, struct pool **ret);

/*
 * Work that waits for others may never end, and then no other job begins. So when something has
 * waited for POOL_PATIENCE_MS and nothing ended meanwhile, as many threads as there were at first
 * are added, again and again, up to max in all. They end when nothing waits any more.
 */
enum { POOL_PATIENCE_MS = 250 };
void pool_may_grow(struct pool *p, unsigned max);

/*
 * work(arg) on some thread, then done(arg) on the loop. The pool allocates before it returns:
 * after a 0 both will run, whatever happens. -ENOMEM.
 */
int pool_submit(struct pool *p, void (*work)(void *arg), void (*done)(void *arg), void *arg);

/*
 * The same, for a key, which is copied. A key has at most three quarters of the threads that the
 * others leave it, but one in any case: there is a thread for the next key, however many of this
 * one's wait for something that never comes. NULL: as pool_submit(), without a limit.
 */
int pool_submit_for(struct pool *p, const char *key, void (*work)(void *arg),
                    void (*done)(void *arg), void *arg);

/*
 * What becomes of arg when the loop goes before it has called done: drop(arg) then, on the thread
 * that frees the loop. Without it nothing does, and arg is lost.
 */
void pool_on_drop(struct pool *p, void (*drop)(void *arg));

/* idle(arg) on the loop, each time when all that was submitted is done, and told. NULL: no more. */
void pool_on_idle(struct pool *p, void (*idle)(void *arg), void *arg);

/* How many were submitted and are not done. */
unsigned pool_busy(const struct pool *p);

/* Waits for running work; done callbacks that are due have been posted, the caller runs the loop
 * once more or drops them. */
void pool_free(struct pool *p);
