/*
 * host/kill.c - the end of a sandbox
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/lifecycle_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "host/volume_use.h"
#include "machine/machine.h"

static void kill_work(void *arg)
{
	struct life *l = arg;
	struct host *h = l->host;
	struct machine_info info;

	if (l->settle)
		volume_freeze_all(h, l->job.machine, l->paths);
	if (machine_look(&h->machines, l->job.machine, &info, NULL) == 0)
		l->r = machine_remove(&h->machines, l->job.machine, &l->err);
	fault_at("kill.stopped");
	if (l->r == 0)
		drop_sleep(h, l->job.id); /* mostly there is nothing */
	volume_drop_clones(h, l->job.id);
	fault_at("kill.cleaned");
}

static void kill_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	struct host *h = l->host;
	struct err e;

	sandbox_unwatch(sb);
	if (l->r < 0) /* on record as being killed: the next pandad tries again */
		log_error("cannot end a machine sandbox=%s why=\"%s\"", sb->id, l->err.text);
	else if (record_delete(sb, &e) < 0)
		log_error(
		    "a killed sandbox stays on record until the next start sandbox=%s why=\"%s\"",
		    sb->id, e.text);
	h->stats.kills++;
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.deleted",
	           json_pack("{s:s}", "reason", l->why));
	log_info("sandbox killed sandbox=%s why=%s", sb->id, l->why);
	life_end(l, l->r < 0 ? &l->err : NULL);
}

static void kill_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_KILLING) {
		life_end(l, NULL);
		return;
	}
	link_drop(sb);
	l->settle = sb->state == SANDBOX_RUNNING;
	l->paths = json_incref(sb->spec.volumes);
	sb->end[0] = 0;
	sb->state = SANDBOX_KILLING;
	loop_timer_clear(l->host->loop, &sb->timer);
	if (record_update(sb, &e) < 0) /* a full disk must not keep machines alive */
		log_error("killing without a record of it sandbox=%s why=\"%s\"", sb->id, e.text);
	fault_at("kill.recorded");
	start_job_name(&l->job, sb);
	life_run(l, kill_work, kill_done);
}

void host_kill(struct host *h, struct sandbox *sb, const char *why, host_done *done, void *arg)
{
	struct life *l = life_new(h, done, arg, kill_begin);

	if (!l)
		return;
	l->why = why;
	op_queue_first(sb, "kill", &l->op);
}
