/*
 * host/hibernate.c - hibernate and wake
 * Shape as in host/lifecycle_internal.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "host/checkpoint.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/lifecycle_internal.h"
#include "host/network.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "host/volume_use.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

void hibernate_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1])
{
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "hib-%s", sandbox_id);
}

void slept_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1])
{
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "was-%s", sandbox_id);
}

static void drop_slept(struct host *h, const char *sandbox_id)
{
	char id[SNAPSHOT_ID_MAX + 1];

	slept_id(sandbox_id, id);
	depot_drop_snapshot(&h->depot, id, NULL);
}

void drop_sleep(struct host *h, const char *sandbox_id)
{
	char id[SNAPSHOT_ID_MAX + 1];

	hibernate_id(sandbox_id, id);
	depot_drop_snapshot(&h->depot, id, NULL);
	drop_slept(h, sandbox_id);
}

/* It is awake: what it slept in is no more what it comes back to. */
static void keep_slept(struct host *h, const char *sandbox_id)
{
	char id[SNAPSHOT_ID_MAX + 1], was[SNAPSHOT_ID_MAX + 1];

	hibernate_id(sandbox_id, id);
	slept_id(sandbox_id, was);
	if (snapshot_rename(&h->store, id, was, NULL) == -EEXIST) { /* a crash left that */
		depot_drop_snapshot(&h->depot, was, NULL);
		snapshot_rename(&h->store, id, was, NULL);
	}
}

struct forget {
	struct host *host;
	char id[SANDBOX_ID + 1];
};

static void forget_work(void *arg)
{
	struct forget *f = arg;

	drop_slept(f->host, f->id);
}

/*
 * It sleeps in a new one. No operation of the sandbox: the next one, mostly a wake, shall not wait
 * for it. If that is quicker, only the next hibernation has more to write.
 */
static void forget_slept(struct host *h, const char *sandbox_id)
{
	struct forget *f = calloc(1, sizeof(*f));

	if (!f)
		return; /* it goes with the sandbox */
	f->host = h;
	memcpy(f->id, sandbox_id, sizeof(f->id));
	if (pool_submit(h->pool, forget_work, free, f) < 0)
		free(f);
}

/* Until the snapshot is on disk under its name, the machine can go on; from then on it may go. */
static void hibernate_work(void *arg)
{
	struct life *l = arg;
	struct host *h = l->host;
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct snapshot_store store = store_as(h, h->config.compress_hibernated);
	char id[SNAPSHOT_ID_MAX + 1];
	int r;

	hibernate_id(l->job.id, id);
	r = machine_control(h, l->job.machine, true, &l->err);
	fault_at("hibernate.paused");
	if (r == 0)
		r = machine_snapshot(&h->machines, l->job.machine, &image, NULL, &l->err);
	fault_at("hibernate.sealed");
	if (r == 0 && l->sources)
		r = volume_sync_all(l->sources, &l->err);
	if (r == 0)
		r = machine_save(&image, &store, id, l->job.id, &l->err);
	fault_at("hibernate.saved");
	if (r == 0) {
		r = machine_remove(&h->machines, l->job.machine, &l->err);
		fault_at("hibernate.stopped");
		if (r < 0) /* it is there still: so let it live */
			snapshot_delete(&h->store, id, NULL);
	}
	if (r < 0)
		machine_control(h, l->job.machine, false, NULL);
	l->r = r;
}

static void hibernate_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	struct host *h = l->host;
	struct err e;

	if (l->r < 0) {
		if (sb->pid == 0) { /* it ended before it could be saved */
			snprintf(sb->end, sizeof(sb->end), "ended while it was being hibernated");
			sb->state = SANDBOX_FAILED;
		} else {
			sb->state = SANDBOX_RUNNING;
		}
		if (record_update(sb, &e) < 0)
			log_error("cannot record sandbox=%s why=\"%s\"", sb->id, e.text);
		sandbox_schedule(sb);
		life_end(l, &l->err);
		return;
	}
	sandbox_unwatch(sb);
	network_return(sb);
	history_drop(sb, "it was hibernated"); /* they are memory, and it shall use none */
	if (sandbox_enter(sb, SANDBOX_HIBERNATED, &e) < 0) {
		/* HIBERNATING with a saved snapshot means the same to the next pandad. */
		log_error("cannot record sandbox=%s why=\"%s\"", sb->id, e.text);
		sb->state = SANDBOX_HIBERNATED;
	}
	h->stats.hibernations++;
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.hibernated", NULL);
	log_info("sandbox hibernated sandbox=%s took_ms=%llu", sb->id,
	         (unsigned long long)((mono_ns() - l->asked_ns) / 1000000));
	forget_slept(h, sb->id);
	life_end(l, NULL);
}

static void hibernate_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_HIBERNATED) {
		life_end(l, NULL);
		return;
	}
	if (sb->state != SANDBOX_PAUSED && sandbox_need_running(sb, &e) < 0) {
		life_end(l, &e);
		return;
	}
	if (sandbox_enter(sb, SANDBOX_HIBERNATING, &e) < 0) {
		life_end(l, &e);
		return;
	}
	fault_at("hibernate.recorded");
	/* What sleeps on disk counts on its volumes as they are. */
	if (json_array_size(sb->spec.volumes) > 0) {
		l->sources = malloc(sizeof(*l->sources));
		if (l->sources && volume_sources(l->host, sb, l->sources, NULL) < 0)
			l->sources->n = 0;
	}
	link_drop(sb); /* its calls end here: they could not be carried over */
	start_job_name(&l->job, sb);
	life_run(l, hibernate_work, hibernate_done);
}

void host_hibernate(struct host *h, struct sandbox *sb, host_done *done, void *arg)
{
	life_queue(h, sb, "hibernate", hibernate_begin, done, arg);
}

static void wake_work(void *arg)
{
	struct life *l = arg;

	start_job_run(&l->job);
	fault_at("wake.started");
}

static void keep_slept_work(void *arg)
{
	struct life *l = arg;

	keep_slept(l->host, l->job.id);
	fault_at("wake.kept");
}

static void wake_over(void *arg)
{
	life_end(arg, NULL);
}

static void wake_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	struct host *h = l->host;
	struct err e;
	int r = l->r < 0 ? l->r : l->job.r;

	e = l->r < 0 ? l->err : l->job.err;
	if (r == 0) {
		r = sandbox_watch(sb, l->job.pid, l->job.engine);
		if (r < 0)
			err_set(&e, -r, "machine_gone", "machine %s ended at once", sb->id);
	}
	if (r == 0) {
		sb->generation = l->job.generation;
		r = sandbox_enter(sb, SANDBOX_RUNNING, &e);
		if (r < 0) {
			sandbox_unwatch(sb);
			machine_remove(&h->machines, sb->machine, NULL);
		}
	}
	if (r < 0) {
		network_return(sb);
		sb->state = SANDBOX_HIBERNATED; /* it sleeps on; nothing is lost */
		record_update(sb, NULL);
		err_prefix(&e, "auto-wake: sandbox %s could not be woken", sb->id);
		log_error("wake failed sandbox=%s why=\"%s\"", sb->id, e.text);
		life_end(l, &e);
		return;
	}
	fault_at("wake.running");
	link_take(h, sb, &l->job.guest);
	h->stats.wakes++;
	host_touch(h, sb);
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.woken",
	           json_pack("{s:f}", "wake_ms", (double)(mono_ns() - l->asked_ns) / 1e6));
	log_info("sandbox woken sandbox=%s took_ms=%llu", sb->id,
	         (unsigned long long)((mono_ns() - l->asked_ns) / 1000000));
	if (l->done) /* the caller does not wait for the rest */
		l->done(l->arg, NULL, sb);
	l->done = NULL;
	life_run(l, keep_slept_work, wake_over);
}

static void wake_wired(void *arg, const struct err *e)
{
	struct life *l = arg;

	if (e) {
		l->err = *e;
		l->r = -e->code;
		wake_done(l);
		return;
	}
	l->job.net_fd = network_fd(l->op.sb);
	life_run(l, wake_work, wake_done);
}

static void wake_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state != SANDBOX_HIBERNATED) {
		life_end(l, sandbox_need_running(sb, &e) < 0 ? &e : NULL);
		return;
	}
	if (host_admit(l->host, sb->tenant, 0, sb->memory_mb, NULL, &e) < 0 ||
	    volume_open_all(l->host, sb->tenant, sb->id, sb->spec.volumes, false, l->job.volumes,
	                    &e) < 0 ||
	    sandbox_enter(sb, SANDBOX_WAKING, &e) < 0) {
		life_end(l, &e);
		return;
	}
	fault_at("wake.recorded");
	start_job_name(&l->job, sb);
	hibernate_id(sb->id, l->job.load);
	l->job.generation = sb->generation + 1;
	network_take(sb, wake_wired, l);
}

void host_wake(struct host *h, struct sandbox *sb, host_done *done, void *arg)
{
	life_queue(h, sb, "wake", wake_begin, done, arg);
}
