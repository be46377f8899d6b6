/*
 * host/pause.c - a machine stands still, and goes on
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "host/disk.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/lifecycle_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "machine/engine.h"
#include "machine/machine.h"

int machine_control(struct host *h, const char *id, bool pause, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	int r = machine_adopt(&h->machines, id, &m, e);

	if (r == 0)
		r = (pause ? h->engines->pause : h->engines->resume)(h->engines, &m, e);
	return r;
}

static void pause_work(void *arg)
{
	struct life *l = arg;

	l->r = machine_control(l->host, l->job.machine, true, &l->err);
	fault_at("pause.done");
}

/* The payload of an event; NULL: a client's wish needs none. */
static json_t *why(enum sandbox_hold hold)
{
	return hold ? json_pack("{s:s}", "reason", sandbox_hold_name(hold)) : NULL;
}

static void pause_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;

	if (l->r < 0) {
		if (sb->state == SANDBOX_PAUSED && sandbox_enter(sb, SANDBOX_RUNNING, NULL) < 0) {
			sb->state = SANDBOX_RUNNING;
			sb->hold = HOLD_NONE;
		}
		life_end(l, &l->err);
		return;
	}
	event_emit(&l->host->events, sb->tenant, sb->id, "sandbox.paused", why(l->hold));
	life_end(l, NULL);
}

/* Paused already, by another: from now on for this reason. */
static void pause_again(struct life *l)
{
	struct sandbox *sb = l->op.sb;
	enum sandbox_hold had = sb->hold;
	struct err e = {0};
	int r = 0;

	/* Who holds more than may be stays held, whoever else asks. */
	if (had != l->hold && had != HOLD_OVERRUN) {
		sb->hold = l->hold;
		r = record_update(sb, &e);
	}
	if (r < 0)
		sb->hold = had;
	life_end(l, r < 0 ? &e : NULL);
}

static void pause_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_PAUSED) {
		pause_again(l);
		return;
	}
	if (sb->state == SANDBOX_HIBERNATED)
		err_set(&e, EBUSY, "conflict", "sandbox %s is hibernated: it runs nothing to pause",
		        sb->id);
	else if (sandbox_need_running(sb, &e) == 0) {
		sb->hold = l->hold;
		if (sandbox_enter(sb, SANDBOX_PAUSED, &e) == 0) {
			start_job_name(&l->job, sb);
			life_run(l, pause_work, pause_done);
			return;
		}
		sb->hold = HOLD_NONE;
	}
	life_end(l, &e);
}

void host_hold(struct host *h, struct sandbox *sb, enum sandbox_hold hold, host_done *done,
               void *arg)
{
	struct life *l = life_new(h, done, arg, pause_begin);

	if (!l)
		return;
	l->hold = hold;
	op_queue(sb, "hold", &l->op);
}

void host_pause(struct host *h, struct sandbox *sb, host_done *done, void *arg)
{
	life_queue(h, sb, "pause", pause_begin, done, arg);
}

static void resume_work(void *arg)
{
	struct life *l = arg;

	l->r = machine_control(l->host, l->job.machine, false, &l->err);
	fault_at("resume.done");
}

static void resume_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	enum sandbox_hold held = sb->hold;

	if (l->r == 0 && sb->state == SANDBOX_PAUSED)
		l->r = sandbox_enter(sb, SANDBOX_RUNNING, &l->err);
	else if (l->r == 0)
		l->r = sandbox_need_running(sb, &l->err); /* it died meanwhile */
	if (l->r == 0)
		event_emit(&l->host->events, sb->tenant, sb->id, "sandbox.resumed", why(held));
	host_touch(l->host, sb);
	life_end(l, l->r < 0 ? &l->err : NULL);
}

static void resume_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_PAUSED && disk_may_resume(sb, &e) == 0) {
		start_job_name(&l->job, sb);
		life_run(l, resume_work, resume_done);
	} else if (sb->state == SANDBOX_PAUSED) {
		life_end(l, &e);
	} else if (sb->state == SANDBOX_HIBERNATED) {
		err_set(&e, EBUSY, "conflict", "sandbox %s is hibernated, not paused: wake it",
		        sb->id);
		life_end(l, &e);
	} else {
		life_end(l, sandbox_need_running(sb, &e) < 0 ? &e : NULL);
	}
}

void host_resume(struct host *h, struct sandbox *sb, host_done *done, void *arg)
{
	life_queue(h, sb, "resume", resume_begin, done, arg);
}
