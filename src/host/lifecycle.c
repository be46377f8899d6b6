#include "host/lifecycle_internal.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/pool.h"
#include "host/host.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"

struct life *life_new(struct host *h, host_done *done, void *arg, void (*begin)(struct op *op))
{
	struct life *l = calloc(1, sizeof(*l));
	struct err e;

	if (!l) {
		err_nomem(&e);
		if (done)
			done(arg, &e, NULL);
		return NULL;
	}
	l->host = h;
	l->done = done;
	l->arg = arg;
	l->op.begin = begin;
	l->asked_ns = mono_ns();
	start_job_init(&l->job, h);
	return l;
}

void life_queue(struct host *h, struct sandbox *sb, const char *name, void (*begin)(struct op *op),
                host_done *done, void *arg)
{
	struct life *l = life_new(h, done, arg, begin);

	if (l)
		op_queue(sb, name, &l->op);
}

void life_end(struct life *l, const struct err *e)
{
	struct sandbox *sb = l->op.sb;

	if (l->done)
		l->done(l->arg, e, e || sb->state == SANDBOX_KILLING ? NULL : sb);
	op_end(&l->op);
	start_job_fini(&l->job);
	json_decref(l->paths);
	free(l->sources);
	free(l);
}

void life_run(struct life *l, void (*work)(void *arg), void (*done)(void *arg))
{
	if (pool_submit_for(l->host->pool, l->op.sb->tenant, work, done, l) < 0) {
		l->r = err_nomem(&l->err);
		done(l);
	}
}
