/*
 * engine/tenant.c - a machine that runs becomes its tenant's
 * The process of a machine was made before its tenant was known, or by a pandad that had no groups
 * of tenants. The kernel takes some ms to move it, so a thread of its own does that while requests
 * go on. Until then it shares one group with all others of its kind. A move that fails leaves it
 * there; the next pandad tries again.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engines_internal.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "machine/engine.h"

enum { MOVE_TIMEOUT_MS = 2000 };

struct tenant_move {
	struct tenant_move *next;
	char id[ENGINE_ID_MAX + 1];
	char tenant[];
};

/* Called with the lock held. NULL: there is none, and there will be none. */
static struct tenant_move *next_move(struct tenant_moves *t)
{
	struct tenant_move *m;

	while (!t->first && !t->ending)
		pthread_cond_wait(&t->more, &t->lock);
	m = t->ending ? NULL : t->first;
	if (m)
		t->first = m->next;
	return m;
}

static void *mover(void *arg)
{
	struct local_engines *local = arg;
	struct tenant_moves *t = &local->moves;
	struct tenant_move *m;

	pthread_mutex_lock(&t->lock);
	while ((m = next_move(t))) {
		t->at_work = m->id;
		pthread_mutex_unlock(&t->lock);
		(void)cg_move(jail_cgroups(local->jail), m->id, m->tenant, MOVE_TIMEOUT_MS);
		pthread_mutex_lock(&t->lock);
		t->at_work = NULL;
		pthread_cond_broadcast(&t->done);
		free(m);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

/* Signals are for the thread that expects them. */
static bool start_mover(struct local_engines *local)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&local->moves.thread, NULL, mover, local);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r == 0;
}

void local_belongs(struct engines *engines, const char *id, const char *tenant)
{
	struct local_engines *local = (struct local_engines *)engines;
	struct tenant_moves *t = &local->moves;
	struct tenant_move *m = malloc(sizeof(*m) + strlen(tenant) + 1), **at;

	if (!m)
		return;
	m->next = NULL;
	snprintf(m->id, sizeof(m->id), "%s", id);
	memcpy(m->tenant, tenant, strlen(tenant) + 1);
	pthread_mutex_lock(&t->lock);
	if (!t->running)
		t->running = start_mover(local);
	for (at = &t->first; *at;)
		at = &(*at)->next;
	if (t->running)
		*at = m;
	else
		free(m);
	pthread_cond_signal(&t->more);
	pthread_mutex_unlock(&t->lock);
}

void tenant_moves_forget(struct local_engines *local, const char *id)
{
	struct tenant_moves *t = &local->moves;

	pthread_mutex_lock(&t->lock);
	for (struct tenant_move **at = &t->first, *m; (m = *at);) {
		if (strcmp(m->id, id) != 0) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		free(m);
	}
	while (t->at_work && !strcmp(t->at_work, id))
		pthread_cond_wait(&t->done, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void tenant_moves_init(struct tenant_moves *t)
{
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->more, NULL);
	pthread_cond_init(&t->done, NULL);
}

void tenant_moves_fini(struct tenant_moves *t)
{
	pthread_mutex_lock(&t->lock);
	t->ending = true;
	pthread_cond_signal(&t->more);
	pthread_mutex_unlock(&t->lock);
	if (t->running)
		pthread_join(t->thread, NULL);
	for (struct tenant_move *m; (m = t->first);) {
		t->first = m->next;
		free(m);
	}
	pthread_cond_destroy(&t->more);
	pthread_cond_destroy(&t->done);
	pthread_mutex_destroy(&t->lock);
}
