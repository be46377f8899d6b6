/*
 * host/create.c - a new sandbox, from a template or a snapshot
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/macro.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/lifecycle_internal.h"
#include "host/network.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "host/volume.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "template/template.h"

static void count_boot(struct host *h, uint64_t us)
{
	size_t b = 0;

	while (b < ARRAY_LEN(h->stats.boot_bucket) - 1 && us > (uint64_t)1000 << b)
		b++;
	h->stats.boot_bucket[b]++;
	h->stats.boot_us_sum += us;
	h->stats.boot_us_count++;
}

static void create_undo(struct life *l, const struct err *e)
{
	struct sandbox *sb = l->op.sb;

	if (l->job.prepared) /* what was made ahead and never got a machine */
		machine_remove(&l->host->machines, sb->machine, NULL);
	if (record_delete(sb, NULL) < 0)
		log_error("a failed create stays on record until the next start sandbox=%s",
		          sb->id);
	log_warn("create failed, undone sandbox=%s template=%s why=\"%s\"", sb->id,
	         sb->spec.template, e->text);
	sb->state = SANDBOX_KILLING; /* it goes when its last operation has ended */
	life_end(l, e);
}

static void create_work(void *arg)
{
	struct life *l = arg;

	start_job_run(&l->job);
	fault_at("create.started");
}

static void create_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	struct host *h = l->host;
	struct err e;
	int r = l->r < 0 ? l->r : l->job.r;

	e = l->r < 0 ? l->err : l->job.err;
	if (r < 0 && l->job.load[0]) /* it may have been deleted while we read it: say that */
		host_snapshot_get(h, sb->tenant, l->job.load, &(struct host_snapshot){0}, &e);
	if (r == 0) {
		sb->generation = l->job.generation;
		if (l->job.disk_gb)
			sb->disk_gb = l->job.disk_gb;
		r = sandbox_watch(sb, l->job.pid, l->job.engine);
		if (r < 0)
			err_set(&e, -r, "machine_gone", "machine %s ended at once", sb->id);
		sb->boot_ms = (unsigned)((mono_ns() - l->asked_ns + 999999) / 1000000);
		if (r == 0)
			r = sandbox_enter(sb, SANDBOX_RUNNING, &e);
		if (r < 0) {
			sandbox_unwatch(sb);
			machine_remove(&h->machines, sb->machine, NULL);
		}
	}
	if (r < 0) {
		create_undo(l, &e);
		return;
	}
	link_take(h, sb, &l->job.guest);
	h->stats.creates++;
	count_boot(h, (mono_ns() - l->asked_ns) / 1000);
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.running",
	           json_pack("{s:i, s:s, s:s, s:i, s:s, s:{s:f}}", "pid", (int)sb->pid, "ip", "",
	                     "template", sb->spec.template, "boot_ms", (int)sb->boot_ms,
	                     "boot_mode", sb->boot_mode, "phases", "machine",
	                     (double)l->job.took_us / 1000));
	log_info("sandbox created sandbox=%s tenant=%s template=%s boot_ms=%u", sb->id, sb->tenant,
	         sb->spec.template, sb->boot_ms);
	life_end(l, NULL);
	host_fill_spare(h);
}

static void create_wired(void *arg, const struct err *e)
{
	struct life *l = arg;

	if (e) {
		create_undo(l, e);
		return;
	}
	l->job.net_fd = network_fd(l->op.sb);
	life_run(l, create_work, create_done);
}

static void create_with(void *arg, const struct err *e, struct template *t)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;
	struct err mine;

	if (e) {
		create_undo(l, e);
		return;
	}
	l->job.generation = t->generation + 1;
	if (engine_image_copy(&t->image, &l->job.image) < 0) {
		err_nomem(&mine);
		create_undo(l, &mine);
		return;
	}
	l->paths = json_incref(sb->spec.volumes);
	if (volume_open_all(l->host, sb->tenant, sb->id, l->paths, true, l->job.volumes, &mine) <
	    0) {
		create_undo(l, &mine);
		return;
	}
	network_take(sb, create_wired, l);
}

static void create_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct template *t;
	struct err e;

	start_job_name(&l->job, sb);
	fault_at("create.recorded");
	if (!sb->spec.from_snapshot[0] || sb->spec.disk_gb)
		l->job.disk_gb = sb->disk_gb;
	if (sb->spec.from_snapshot[0]) {
		snprintf(l->job.load, sizeof(l->job.load), "%s", sb->spec.from_snapshot);
		l->job.generation = sb->generation + 1;
		network_take(sb, create_wired, l);
		return;
	}
	t = template_find(l->host->depot.templates, sb->tenant, sb->spec.template, &e);
	if (!t) {
		create_undo(l, &e);
		return;
	}
	l->op.sb->boot_mode = "snapshot";
	template_ready(l->host->depot.templates, t, create_with, l);
}

/* Fills in what the template or the snapshot decides. */
static int resolve(struct host *h, struct sandbox *sb, struct err *e)
{
	struct host_snapshot snap;
	struct template *t;
	int r;

	if (sb->spec.from_snapshot[0]) {
		r = host_snapshot_get(h, sb->tenant, sb->spec.from_snapshot, &snap, e);
		if (r < 0)
			return r;
		r = snapshot_size(h, &snap, e);
		if (r < 0)
			return r;
		if (json_array_size(sb->spec.volumes))
			return err_set(
			    e, EINVAL, "bad_request",
			    "volumes cannot be given together with from_snapshot: attach them "
			    "when it runs (POST /v1/sandboxes/{id}/volumes)");
		snprintf(sb->spec.template, sizeof(sb->spec.template), "%s", snap.template);
		sb->generation = snap.generation;
		sb->memory_mb = snap.memory_mb;
		sb->disk_gb = snap.disk_gb;
	}
	t = template_find(h->depot.templates, sb->tenant, sb->spec.template, e);
	if (!t) {
		if (!sb->spec.from_snapshot[0])
			return -e->code;
		sb->cpu = 1; /* the template is gone, the snapshot is not */
		if (sb->spec.disk_gb)
			sb->disk_gb = sb->spec.disk_gb;
		return 0;
	}
	snprintf(sb->spec.template, sizeof(sb->spec.template), "%s", t->name);
	sb->cpu = t->cpu;
	if (!sb->spec.from_snapshot[0])
		sb->memory_mb = t->memory_mb;
	if (sb->spec.disk_gb)
		sb->disk_gb = MIN(sb->spec.disk_gb, t->disk_gb);
	else if (!sb->disk_gb)
		sb->disk_gb = t->disk_gb;
	sb->runner = t->runner;
	return 0;
}

void host_create(struct host *h, const char *tenant, const struct sandbox_spec *spec,
                 const struct quota *quota, host_done *done, void *arg)
{
	struct sandbox *sb = sandbox_new(h, tenant, spec);
	struct life *l;
	struct err e;
	int r;

	if (!sb) {
		err_nomem(&e);
		done(arg, &e, NULL);
		return;
	}
	r = resolve(h, sb, &e);
	if (r == 0)
		r = host_admit(h, tenant, 1, sb->memory_mb, quota, &e);
	if (r == 0)
		r = volume_check(h, tenant, sb->spec.volumes, &e);
	if (r == 0)
		r = network_check(h, sb->spec.egress, &e);
	l = r == 0 ? life_new(h, done, arg, create_begin) : NULL;
	if (!l) {
		if (r < 0)
			done(arg, &e, NULL);
		host_drop(h, sb);
		return;
	}
	host_take_id(h, sb->id, &l->job.prepared);
	memcpy(sb->machine, sb->id, sizeof(sb->machine));
	sb->state = SANDBOX_CREATING;
	r = record_insert(sb, &e);
	if (r == 0 && host_add(h, sb) < 0)
		r = err_nomem(&e);
	if (r < 0) {
		done(arg, &e, NULL);
		record_delete(sb, NULL);
		if (l->job.prepared)
			machine_remove(&h->machines, sb->machine, NULL);
		host_drop(h, sb);
		free(l);
		return;
	}
	op_queue(sb, "create", &l->op);
}
