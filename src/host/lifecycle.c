/*
 * host/lifecycle.c - create, pause, resume, kill
 * Each operation has the same shape: on record, then done on the pool, then on record again. What a
 * crash leaves at any point between is what host/recover.c reads.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/macro.h"
#include "host/lifecycle_internal.h"

enum {
	LIMIT_MS = 10000, /* to say how large the disk of a new machine is */
	SETTLE_MS = 2000, /* what a guest gets to write down what its volumes miss */
};

/* --- starting a machine ----------------------------------------------------------------------- */

void start_job_init(struct start_job *j, struct host *h)
{
	*j = (struct start_job){.host = h, .image = ENGINE_IMAGE_EMPTY};
	for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++)
		j->volumes[i].fd = -1;
}

void start_job_name(struct start_job *j, const struct sandbox *sb)
{
	memcpy(j->id, sb->id, sizeof(j->id));
	memcpy(j->machine, sb->machine, sizeof(j->machine));
}

/*
 * The disk is as large as its image, and its file system is mounted already when the machine wakes
 * up. But ext4 can be told how much to keep back, from root too, and then says so in df: that is
 * memory of the guest's kernel, so forks and all that was saved have the same limit. What is
 * deleted becomes a hole in its layers (the agent mounts with discard), so they take no more than
 * that either. A guest that sets it back meets the size of the disk (largest_file() of the engine).
 */
static int limit_disk(struct start_job *j)
{
	autofree char *link = NULL;
	char device[32], path[96], text[32];
	const char *name = device + strlen("/dev/");
	uint64_t size, limit = (uint64_t)j->disk_gb << 30;
	struct wire_stats st;
	size_t d = 0;
	int n, r;

	while (d < j->image.ndisks && j->image.disks[d].read_only)
		d++;
	if (d == j->image.ndisks)
		return 0;
	size = j->image.disks[d].size;
	if (limit >= size) {
		j->disk_gb = (unsigned)((size + (1 << 30) - 1) >> 30);
		return 0;
	}
	snprintf(device, sizeof(device), "/dev/pblk%zu", d);
	guest_set_deadline(j->guest, LIMIT_MS);
	if (guest_readlink(j->guest, device, &link, NULL) == 0) /* another name for it */
		name = strrchr(link, '/') ? strrchr(link, '/') + 1 : link;
	snprintf(path, sizeof(path), "/sys/fs/ext4/%.40s/reserved_clusters", name);
	r = guest_stats(j->guest, &st, &j->err);
	if (r == 0 && st.disk_total > limit && st.disk_total <= size) {
		n = snprintf(text, sizeof(text), "%llu",
		             (unsigned long long)((st.disk_total - limit) / MAP_PAGE));
		r = guest_write_file(j->guest, path, text, (size_t)n, WIRE_WRITE_APPEND, 0,
		                     &j->err);
	}
	guest_set_deadline(j->guest, 0);
	return r;
}

void start_job_run(struct start_job *j)
{
	struct host *h = j->host;
	struct engine_start s = {.id = j->machine,
	                         .hostname = j->id,
	                         .image = &j->image,
	                         .cpu = -1,
	                         .net_fd = j->net_fd,
	                         .umount_lost = true,
	                         .prepared = j->prepared};
	struct machine_info info;
	uint64_t began = mono_ns();

	if (j->load[0]) {
		j->r = machine_load(&h->machines, &h->store, j->load, false, &j->image, &j->err);
		if (j->r < 0)
			goto out;
	}
	memcpy(s.volumes, j->volumes, sizeof(s.volumes));
	j->r = machine_start_guest(&h->machines, &s, j->parent, j->generation, &info, &j->guest,
	                           &j->err);
	if (j->r == 0 && j->disk_gb) {
		j->r = limit_disk(j);
		if (j->r < 0)
			machine_remove(&h->machines, j->machine, NULL);
	}
	if (j->r == 0) {
		j->pid = info.pid;
		j->engine = info.engine;
	}
out:
	if (j->r < 0 && j->prepared)
		machine_remove(&h->machines, j->machine, NULL); /* what was made ahead */
	j->took_us = (mono_ns() - began) / 1000;
}

void start_job_fini(struct start_job *j)
{
	engine_image_fini(&j->image);
	volume_close_all(j->volumes);
	guest_free(j->guest);
}

static void count_boot(struct host *h, uint64_t us)
{
	size_t b = 0;

	while (b < ARRAY_LEN(h->stats.boot_bucket) - 1 && us > (uint64_t)1000 << b)
		b++;
	h->stats.boot_bucket[b]++;
	h->stats.boot_us_sum += us;
	h->stats.boot_us_count++;
}

/* --- one operation of life ------------------------------------------------------------------- */

/* NULL: no memory, and done was told. */
static struct life *life_new(struct host *h, host_done *done, void *arg,
                             void (*begin)(struct op *op))
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
	if (pool_submit(l->host->pool, work, done, l) < 0) {
		l->r = err_nomem(&l->err);
		done(l);
	}
}

/* --- create ----------------------------------------------------------------------------------- */

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
		if (json_array_size(sb->spec.volumes))
			return err_set(
			    e, EINVAL, "bad_request",
			    "volumes cannot be given together with from_snapshot: attach them "
			    "when it runs (POST /v1/sandboxes/{id}/volumes)");
		snprintf(sb->spec.template, sizeof(sb->spec.template), "%s", snap.template);
		sb->generation = snap.generation;
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
		r = network_check(sb->spec.egress, &e);
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

/* --- pause, resume ---------------------------------------------------------------------------- */

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

static void pause_done(void *arg)
{
	struct life *l = arg;
	struct sandbox *sb = l->op.sb;

	if (l->r < 0) {
		if (sb->state == SANDBOX_PAUSED && sandbox_enter(sb, SANDBOX_RUNNING, NULL) < 0)
			sb->state = SANDBOX_RUNNING;
		life_end(l, &l->err);
		return;
	}
	event_emit(&l->host->events, sb->tenant, sb->id, "sandbox.paused", NULL);
	life_end(l, NULL);
}

static void pause_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_PAUSED) {
		life_end(l, NULL);
		return;
	}
	if (sb->state == SANDBOX_HIBERNATED)
		err_set(&e, EBUSY, "conflict", "sandbox %s is hibernated: it runs nothing to pause",
		        sb->id);
	else if (sandbox_need_running(sb, &e) == 0 && sandbox_enter(sb, SANDBOX_PAUSED, &e) == 0) {
		start_job_name(&l->job, sb);
		life_run(l, pause_work, pause_done);
		return;
	}
	life_end(l, &e);
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

	if (l->r == 0 && sb->state == SANDBOX_PAUSED)
		l->r = sandbox_enter(sb, SANDBOX_RUNNING, &l->err);
	else if (l->r == 0)
		l->r = sandbox_need_running(sb, &l->err); /* it died meanwhile */
	if (l->r == 0)
		event_emit(&l->host->events, sb->tenant, sb->id, "sandbox.resumed", NULL);
	host_touch(l->host, sb);
	life_end(l, l->r < 0 ? &l->err : NULL);
}

static void resume_begin(struct op *op)
{
	struct life *l = (struct life *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (sb->state == SANDBOX_PAUSED) {
		start_job_name(&l->job, sb);
		life_run(l, resume_work, resume_done);
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

/* --- kill ------------------------------------------------------------------------------------- */

void volume_freeze_all(struct host *h, const char *machine, const json_t *list)
{
	struct guest *g = NULL;
	const json_t *item;
	size_t i;

	if (json_array_size(list) == 0 || machine_guest(&h->machines, machine, &g, NULL) < 0)
		return;
	guest_set_deadline(g, SETTLE_MS);
	guest_sync(g, NULL); /* also where there is no fsfreeze */
	json_array_foreach(list, i, item) {
		const char *path = json_string_value(json_object_get(item, "path"));
		char *argv[] = {"fsfreeze", "-f", (char *)path, NULL};
		struct guest_exec x = {.argv = argv};
		struct guest_exit end;

		if (!json_is_true(json_object_get(item, "read_only")) &&
		    guest_exec_wait(g, &x, &end, NULL) < 0)
			break;
	}
	guest_free(g);
}

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
