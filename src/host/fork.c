/*
 * host/fork.c - one moment of a sandbox, as running children
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "db/db.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/network.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

struct child {
	struct op op; /* keeps others from the child until it runs */
	struct fork *fork;
	struct sandbox *sb;
	struct start_job job;
};

struct fork {
	struct op op;
	struct host *host;
	void (*done)(void *arg, const struct err *e, struct host_forked *f);
	void *arg;
	char parent[SANDBOX_ID + 1], tenant[TENANT_MAX + 1];
	char machine[SANDBOX_ID + 1];   /* of the parent, once its turn has come */
	json_t *volumes;                /* of the children */
	json_t *parents;                /* what that was made from */
	struct volume_sources *sources; /* NULL: no volume to be copied */
	struct engine_image image;
	struct child *children;
	size_t count, left;
	struct host_forked result;
	uint64_t asked_ns, stop_ns;
	atomic_bool stop; /* the parent is to be killed: it shall not wait for copies of volumes */
	int r;
	struct err err;
};

static void fork_free(struct fork *f)
{
	engine_image_fini(&f->image);
	for (size_t i = 0; f->children && i < f->count; i++)
		start_job_fini(&f->children[i].job);
	json_decref(f->volumes);
	json_decref(f->parents);
	free(f->sources);
	free(f->children);
	free(f->result.children);
	free(f->result.errors);
	free(f);
}

/* A child that came to nothing. */
static void undo_child(struct fork *f, size_t i, const struct err *e)
{
	struct sandbox *sb = f->children[i].sb;

	f->result.errors[i] = *e;
	f->result.children[i] = NULL;
	f->children[i].sb = NULL;
	volume_drop_clones(f->host, sb->id);
	if (f->children[i].job.prepared && f->children[i].job.r == 0)
		machine_remove(&f->host->machines, sb->machine, NULL);
	record_delete(sb, NULL);
	sb->state = SANDBOX_KILLING;
	op_end(&f->children[i].op);
}

/* The child's own operation is to wait for us. */
static void child_begin(struct op *op)
{
}

static void fork_over(struct fork *f)
{
	const struct err *first = NULL;
	struct host *h = f->host;
	size_t ok = 0;

	for (size_t i = 0; i < f->count; i++)
		if (f->result.children[i])
			ok++;
		else if (!first)
			first = &f->result.errors[i];
	if (ok)
		event_emit(&h->events, f->tenant, f->parent, "sandbox.forked",
		           json_pack("{s:I, s:f, s:f}", "children", (json_int_t)ok, "stop_ms",
		                     (double)f->stop_ns / 1e6, "took_ms",
		                     (double)(mono_ns() - f->asked_ns) / 1e6));
	h->stats.forks += ok;
	f->done(f->arg, ok ? NULL : first, &f->result);
	fork_free(f);
	host_fill_spare(h);
}

static void child_work(void *arg)
{
	struct child *c = arg;

	start_job_run(&c->job);
	fault_at("fork.started");
}

static void child_done(void *arg)
{
	struct child *c = arg;
	struct fork *f = c->fork;
	struct sandbox *sb = c->sb;
	size_t i = (size_t)(c - f->children);
	struct err e = c->job.err;
	int r = c->job.r;

	if (r == 0) {
		sb->generation = c->job.generation;
		sb->boot_ms = (unsigned)((mono_ns() - f->asked_ns + 999999) / 1000000);
		r = sandbox_watch(sb, c->job.pid, c->job.engine);
		if (r < 0)
			err_set(&e, -r, "machine_gone", "machine %s ended at once", sb->id);
		else
			r = sandbox_enter(sb, SANDBOX_RUNNING, &e);
		if (r < 0) {
			sandbox_unwatch(sb);
			machine_remove(&f->host->machines, sb->machine, NULL);
			c->job.prepared = false;
		}
	}
	if (r < 0) {
		undo_child(f, i, &e);
	} else {
		link_take(f->host, sb, &c->job.guest);
		event_emit(&f->host->events, sb->tenant, sb->id, "sandbox.running",
		           json_pack("{s:i, s:s, s:s, s:i, s:s, s:s}", "pid", (int)sb->pid, "ip",
		                     "", "template", sb->spec.template, "boot_ms", (int)sb->boot_ms,
		                     "boot_mode", "fork", "parent_id", sb->parent));
		log_info("sandbox forked sandbox=%s parent=%s boot_ms=%u", sb->id, sb->parent,
		         sb->boot_ms);
		op_end(&c->op);
	}
	if (--f->left == 0)
		fork_over(f);
}

struct sealing {
	struct fork *f;
	struct machine_copy *copy;
};

/* What is in no layer is copied for the children, as of the moment the parent stands still. */
static int clone_volumes(void *arg, const struct engine_machine *m, struct err *e)
{
	struct sealing *s = arg;

	return volume_clone_begin(s->f->host, s->f->sources, m, s->f->children[0].job.id, &s->copy,
	                          e);
}

static int seal_with_volumes(struct fork *f, struct engine_snapshot_info *info)
{
	struct sealing s = {.f = f};
	const char *first = f->children[0].job.id;
	int r = machine_snapshot_with(&f->host->machines, f->machine, clone_volumes, &s, &f->image,
	                              info, &f->err);

	if (r < 0)
		machine_copy_free(s.copy);
	else if (s.copy)
		r = machine_copy_finish(s.copy, &f->stop, &f->err);
	for (size_t i = 1; r == 0 && i < f->count; i++)
		r = volume_clone_again(f->host, f->sources, first, f->children[i].job.id, &f->err);
	return r;
}

static void seal_work(void *arg)
{
	struct fork *f = arg;
	struct engine_snapshot_info info = {0};

	f->r = f->sources
	           ? seal_with_volumes(f, &info)
	           : machine_snapshot(&f->host->machines, f->machine, &f->image, &info, &f->err);
	f->stop_ns = info.stop_ns;
	fault_at("fork.sealed");
}

/* Nothing was started. */
static void child_fails(struct child *c, const struct err *e)
{
	struct fork *f = c->fork;
	struct err why = *e;

	c->job.r = 0;
	undo_child(f, (size_t)(c - f->children), &why);
	if (--f->left == 0)
		fork_over(f);
}

static void child_wired(void *arg, const struct err *e)
{
	struct child *c = arg;
	struct err mine;

	if (!e) {
		c->job.net_fd = network_fd(c->sb);
		if (pool_submit_for(c->fork->host->pool, c->sb->tenant, child_work, child_done,
		                    c) == 0)
			return;
		err_nomem(&mine);
		e = &mine;
	}
	child_fails(c, e);
}

static void seal_done(void *arg)
{
	struct fork *f = arg;
	struct host *h = f->host;
	struct sandbox *parent = f->op.sb;
	uint64_t generation = parent->generation + 1;

	host_touch(h, parent);
	op_end(&f->op);         /* the parent is free for others; its children start beside it */
	f->left = f->count + 1; /* one is for this loop: it needs f to its end */
	for (size_t i = 0; i < f->count; i++) {
		struct child *c = &f->children[i];
		int r = f->r;

		c->job.err = f->err;
		c->job.generation = generation;
		if (r == 0 && engine_image_copy(&f->image, &c->job.image) < 0)
			r = err_nomem(&c->job.err);
		if (r == 0)
			r = volume_open_all(h, f->tenant, c->job.id, f->volumes, false,
			                    c->job.volumes, &c->job.err);
		if (r == 0)
			network_take(c->sb, child_wired, c);
		else
			child_fails(c, &c->job.err);
	}
	if (--f->left == 0)
		fork_over(f);
}

/* The children have what the parent has when its turn has come, not when it was asked. */
static int refresh_volumes(struct fork *f, const struct sandbox *parent, struct err *e)
{
	int r = 0;

	if (f->parents == parent->spec.volumes)
		return 0;
	json_decref(f->volumes);
	f->volumes = volume_list_of_child(parent->spec.volumes);
	for (size_t i = 0; r == 0 && i < f->count; i++)
		r = volume_list_set(f->children[i].sb,
		                    f->volumes ? json_incref(f->volumes) : json_array(), false, e);
	return r;
}

static void fork_cancel(struct op *op)
{
	atomic_store(&((struct fork *)op)->stop, true);
}

static void fork_begin(struct op *op)
{
	struct fork *f = (struct fork *)op;
	struct err e;

	if (sandbox_need_running(op->sb, &e) < 0) {
		f->r = -e.code;
		f->err = e;
		seal_done(f);
		return;
	}
	fault_at("fork.recorded");
	memcpy(f->machine, op->sb->machine, sizeof(f->machine));
	f->r = refresh_volumes(f, op->sb, &f->err);
	if (f->r == 0 && json_array_size(f->volumes)) {
		f->sources = malloc(sizeof(*f->sources));
		f->r = f->sources ? volume_sources(f->host, op->sb, f->sources, &f->err)
		                  : err_nomem(&f->err);
		if (f->r == 0)
			f->r = volume_room(f->host, f->count * f->sources->used, &f->err);
	}
	if (f->r < 0) {
		seal_done(f);
		return;
	}
	if (pool_submit_for(f->host->pool, op->sb->tenant, seal_work, seal_done, f) < 0) {
		f->r = err_nomem(&f->err);
		seal_done(f);
	}
}

/* Its spec is the parent's; who it comes from stands in its metadata, as clients know it. */
static struct sandbox *make_child(struct host *h, const struct sandbox *parent,
                                  const json_t *metadata, const char *tree, size_t index,
                                  bool *ret_prepared)
{
	struct sandbox *sb = sandbox_new(h, parent->tenant, &parent->spec);
	json_t *m;

	if (!sb)
		return NULL;
	if (!sb->spec.metadata)
		sb->spec.metadata = json_object();
	m = sb->spec.metadata;
	if (metadata)
		json_object_update(m, (json_t *)metadata);
	json_object_set_new(m, "parent_id", json_string(parent->id));
	json_object_set_new(m, "forked_from", json_string(parent->id));
	if (tree) {
		json_object_set_new(m, "fork_tree_id", json_string(tree));
		json_object_set_new(m, "fork_tree_role", json_string("child"));
		json_object_set_new(m, "fork_parent_id", json_string(parent->id));
		json_object_set_new(m, "fork_index", json_sprintf("%zu", index));
		snprintf(sb->tree, sizeof(sb->tree), "%s", tree);
	}
	memcpy(sb->parent, parent->id, sizeof(parent->id));
	sb->cpu = parent->cpu;
	sb->memory_mb = parent->memory_mb;
	sb->disk_gb = parent->disk_gb;
	sb->runner = parent->runner;
	sb->boot_mode = "fork";
	sb->state = SANDBOX_CREATING;
	sb->generation = parent->generation;
	host_take_id(h, sb->id, ret_prepared);
	memcpy(sb->machine, sb->id, sizeof(sb->machine));
	return sb;
}

/* All of them are on record, or none is: db/sandboxes.h. */
static int record_children(struct fork *f, struct err *e)
{
	struct db *db = f->host->db;
	int r = db_begin(db, e);

	for (size_t i = 0; r == 0 && i < f->count; i++)
		r = record_insert(f->children[i].sb, e);
	if (r == 0)
		r = db_commit(db, e);
	if (r < 0)
		db_rollback(db);
	return r;
}

static int make_children(struct fork *f, const struct sandbox *parent, const json_t *metadata,
                         const char *tree, struct err *e)
{
	struct host *h = f->host;
	size_t made = 0;
	int r = 0;

	for (size_t i = 0; i < f->count; i++) {
		struct child *c = &f->children[i];

		c->fork = f;
		c->job.parent = f->parent;
		c->sb = make_child(h, parent, metadata, tree, i, &c->job.prepared);
		if (c->sb && f->volumes) {
			json_decref(c->sb->spec.volumes);
			c->sb->spec.volumes = json_incref(f->volumes);
		}
		if (!c->sb || host_add(h, c->sb) < 0) {
			r = err_nomem(e);
			if (c->sb)
				host_drop(h, c->sb);
			break;
		}
		made++;
		start_job_name(&c->job, c->sb);
		f->result.children[i] = c->sb;
	}
	if (r == 0)
		r = record_children(f, e);
	for (size_t i = 0; r == 0 && i < f->count; i++) {
		f->children[i].op.begin = child_begin;
		op_queue(f->children[i].sb, "fork-child", &f->children[i].op);
	}
	if (r < 0) {
		for (size_t i = 0; i < made; i++) {
			if (f->children[i].job.prepared)
				machine_remove(&h->machines, f->children[i].sb->machine, NULL);
			host_drop(h, f->children[i].sb);
		}
	}
	return r;
}

void host_fork(struct host *h, struct sandbox *sb, size_t count, const json_t *metadata,
               const char *tree, const struct quota *quota,
               void (*done)(void *arg, const struct err *e, struct host_forked *f), void *arg)
{
	struct fork *f = calloc(1, sizeof(*f));
	struct err e;
	int r = 0;

	if (!f || count == 0 || count > FORK_MAX) {
		err_set(&e, f ? EINVAL : ENOMEM, f ? "bad_request" : "no_memory",
		        "1 to %d children can be forked at a time", FORK_MAX);
		free(f);
		done(arg, &e, NULL);
		return;
	}
	*f = (struct fork){.host = h,
	                   .done = done,
	                   .arg = arg,
	                   .count = count,
	                   .image = ENGINE_IMAGE_EMPTY,
	                   .volumes = volume_list_of_child(sb->spec.volumes),
	                   .parents = json_incref(sb->spec.volumes),
	                   .asked_ns = mono_ns(),
	                   .op.begin = fork_begin,
	                   .op.cancel = fork_cancel};
	memcpy(f->parent, sb->id, sizeof(f->parent));
	memcpy(f->tenant, sb->tenant, sizeof(f->tenant));
	uuid_new(f->result.snapshot_id);
	f->result.count = count;
	f->children = calloc(count, sizeof(*f->children));
	f->result.children = calloc(count, sizeof(struct sandbox *));
	f->result.errors = calloc(count, sizeof(struct err));
	for (size_t i = 0; f->children && i < count; i++)
		start_job_init(&f->children[i].job, h);
	if (!f->children || !f->result.children || !f->result.errors)
		r = err_nomem(&e);
	if (r == 0 && sb->state != SANDBOX_HIBERNATED)
		r = sandbox_need_running(sb, &e);
	if (r == 0)
		r = host_admit(h, sb->tenant, count, sb->memory_mb, quota, &e);
	if (r == 0)
		r = make_children(f, sb, metadata, tree, &e);
	if (r < 0) {
		done(arg, &e, NULL);
		fork_free(f);
		return;
	}
	/* A sleeping parent wakes up first; should it not, the children find out. */
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "fork", &f->op);
}
