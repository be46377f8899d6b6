/*
 * host/volume_change.c - volumes of sandboxes that run: attached, detached, grown
 * The record always names at least what the machine has: a volume is on record before the machine
 * gets it, and until the machine has let go of it. While they may differ, volumes_pending is on
 * record too, and the next pandad gives the machine what it lacks (recover.c).
 *
 *   attach:  on record, pending  ->  machine, guest  ->  on record     (fails: off the record)
 *   detach:  pending  ->  guest, machine  ->  off the record           (fails: as it was)
 *   grow:    file, on record, pending  ->  machine, guest  ->  not pending
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "db/volumes.h"
#include "host/checkpoint.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "host/volume_internal.h"
#include "host/volume_use.h"
#include "machine/machine.h"
#include "template/depot.h"

struct change {
	struct op op;
	struct host *host;
	host_done *done;
	void *arg;
	char name[VOLUME_NAME_MAX + 1];
	char machine[SANDBOX_ID + 1];
	json_t *item;   /* attach */
	json_t *before; /* attach: the list until now */
	bool force;     /* detach */
	size_t which;   /* detach: its place in the list */
	struct volume_wants wants;
	int r;
	struct err err;
};

static struct change *change_new(struct host *h, const char *name, host_done *done, void *arg,
                                 void (*begin)(struct op *op))
{
	struct change *c = calloc(1, sizeof(*c));
	struct err e;

	if (!c) {
		err_nomem(&e);
		done(arg, &e, NULL);
		return NULL;
	}
	c->host = h;
	c->done = done;
	c->arg = arg;
	c->op.begin = begin;
	snprintf(c->name, sizeof(c->name), "%s", name);
	return c;
}

static void change_end(struct change *c, const struct err *e)
{
	struct sandbox *sb = c->op.sb;

	c->done(c->arg, e, e ? NULL : sb);
	op_end(&c->op);
	volume_wants_fini(&c->wants);
	json_decref(c->item);
	json_decref(c->before);
	free(c);
}

/* A guest that does not answer keeps a thread waiting; it must not have all of them. */
static int take_thread(struct host *h, struct err *e)
{
	if (h->volume_changes >= VOLUME_CHANGES_MAX)
		return err_set(e, EAGAIN, "host_full",
		               "volumes of %u sandboxes are being changed: try again in a moment",
		               h->volume_changes);
	h->volume_changes++;
	return 0;
}

static void change_queue(struct host *h, struct sandbox *sb, const char *name, struct op *op)
{
	host_touch(h, sb);
	history_touch(sb);
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, name, op);
}

static void tell(struct change *c, const char *event)
{
	struct sandbox *sb = c->op.sb;

	event_emit(&c->host->events, sb->tenant, sb->id, event,
	           json_pack("{s:s}", "volume", c->name));
	log_info("%s sandbox=%s volume=%s", event, sb->id, c->name);
}

static void settle_work(void *arg)
{
	struct change *c = arg;

	fault_at("attach.recorded");
	c->r = machine_volumes_settle(&c->host->machines, c->machine, c->wants.v, c->wants.n, false,
	                              &c->err);
	fault_at("attach.done");
}

/* --- attach ----------------------------------------------------------------------------------- */

static void attach_done(void *arg)
{
	struct change *c = arg;
	struct sandbox *sb = c->op.sb;

	c->host->volume_changes--;
	if (c->r < 0) {
		struct err e;

		if (volume_list_set(sb, take_ptr(c->before), false, &e) < 0)
			log_error("cannot record sandbox=%s why=\"%s\"", sb->id, e.text);
		change_end(c, &c->err);
		return;
	}
	volume_settled(sb, &c->wants);
	tell(c, "sandbox.volume_attached");
	change_end(c, NULL);
}

static unsigned free_slot(const json_t *list)
{
	unsigned used = 0, slot = 0;
	const json_t *item;
	size_t i;

	json_array_foreach(list, i, item)
		used |= 1u << volume_slot(item, i);
	while (used >> slot & 1)
		slot++;
	return slot;
}

static int attach_prepare(struct change *c, struct sandbox *sb, struct err *e)
{
	json_t *list;
	int r = sandbox_need_running(sb, e);

	if (r < 0)
		return r;
	list = volume_list_with_slots(sb->spec.volumes, NULL);
	if (!list || json_object_set_new(c->item, "slot", json_integer(free_slot(list))) < 0 ||
	    json_array_append(list, c->item) < 0)
		r = err_nomem(e);
	if (r == 0)
		r = volume_check_one(c->host, sb->tenant, list, json_array_size(list) - 1, sb, e);
	if (r == 0)
		r = take_thread(c->host, e);
	if (r < 0) {
		json_decref(list);
		return r;
	}
	c->before = sb->spec.volumes ? json_incref(sb->spec.volumes) : json_array();
	memcpy(c->machine, sb->machine, sizeof(c->machine));
	r = volume_list_set(sb, list, true, e);
	if (r == 0)
		r = volume_want_all(c->host, sb, &c->wants, e);
	if (r == 0 && pool_submit_for(c->host->pool, sb->tenant, settle_work, attach_done, c) < 0)
		r = err_nomem(e);
	if (r < 0) {
		c->host->volume_changes--;
		volume_list_set(sb, take_ptr(c->before), false, NULL);
	}
	return r;
}

static void attach_begin(struct op *op)
{
	struct change *c = (struct change *)op;
	struct err e;

	if (attach_prepare(c, op->sb, &e) < 0)
		change_end(c, &e);
}

void volume_attach(struct host *h, struct sandbox *sb, const json_t *item, host_done *done,
                   void *arg)
{
	const char *name = json_string_value(json_object_get(item, "name"));
	struct change *c = change_new(h, name ? name : "", done, arg, attach_begin);

	if (!c)
		return;
	c->item = json_deep_copy(item);
	change_queue(h, sb, "attach-volume", &c->op);
}

/* --- detach ----------------------------------------------------------------------------------- */

static void detach_work(void *arg)
{
	struct change *c = arg;

	fault_at("detach.recorded");
	c->r = machine_volume_take(&c->host->machines, c->machine, &c->wants.v[c->which], c->force,
	                           &c->err);
	fault_at("detach.done");
}

/* Off the record: others may have it from here on. */
static int drop_item(struct change *c, struct sandbox *sb, struct err *e)
{
	json_t *list = volume_list_with_slots(sb->spec.volumes, NULL);
	const json_t *copy = json_object_get(json_array_get(list, c->which), "copy");
	json_int_t n = json_is_integer(copy) ? json_integer_value(copy) : -1;
	int r;

	json_array_remove(list, c->which);
	r = volume_list_set(sb, list, false, e);
	if (r == 0 && n >= 0)
		volume_drop_copy(c->host, sb->id, n);
	return r;
}

static void detach_end(struct change *c)
{
	struct sandbox *sb = c->op.sb;

	if (c->r == -EBUSY && !c->force)
		err_set(&c->err, EBUSY, "volume_busy",
		        "volume '%s' is in use in sandbox %s (a process has a file open there or "
		        "works there): end it, or detach with force",
		        c->name, sb->id);
	if (c->r == 0)
		c->r = drop_item(c, sb, &c->err);
	if (c->r < 0)
		volume_list_set(sb, json_incref(sb->spec.volumes), false, NULL);
	else
		tell(c, "sandbox.volume_detached");
	change_end(c, c->r < 0 ? &c->err : NULL);
}

static void detach_done(void *arg)
{
	struct change *c = arg;

	c->host->volume_changes--;
	detach_end(c);
}

static int detach_prepare(struct change *c, struct sandbox *sb, struct err *e)
{
	const json_t *item;
	size_t i;
	int r;

	c->which = json_array_size(sb->spec.volumes);
	json_array_foreach(sb->spec.volumes, i, item) {
		const char *has = json_string_value(json_object_get(item, "name"));

		if (has && !strcmp(has, c->name))
			c->which = i;
	}
	if (c->which == json_array_size(sb->spec.volumes))
		return err_set(e, ENOENT, "volume_not_found",
		               "sandbox %s has no volume '%.64s': GET /v1/sandboxes/%s shows those "
		               "it has",
		               sb->id, c->name, sb->id);
	if (sb->state == SANDBOX_FAILED) { /* there is no machine to be asked */
		detach_end(c);
		return 0;
	}
	memcpy(c->machine, sb->machine, sizeof(c->machine));
	r = sandbox_need_running(sb, e);
	if (r == 0)
		r = volume_want_all(c->host, sb, &c->wants, e);
	if (r == 0)
		r = take_thread(c->host, e);
	if (r < 0)
		return r;
	r = volume_list_set(sb, json_incref(sb->spec.volumes), true, e);
	if (r == 0 && pool_submit_for(c->host->pool, sb->tenant, detach_work, detach_done, c) < 0) {
		volume_list_set(sb, json_incref(sb->spec.volumes), false, NULL);
		r = err_nomem(e);
	}
	if (r < 0)
		c->host->volume_changes--;
	return r;
}

static void detach_begin(struct op *op)
{
	struct change *c = (struct change *)op;
	struct err e;

	if (detach_prepare(c, op->sb, &e) < 0)
		change_end(c, &e);
}

void volume_detach(struct host *h, struct sandbox *sb, const char *name, bool force,
                   host_done *done, void *arg)
{
	struct change *c = change_new(h, name, done, arg, detach_begin);

	if (!c)
		return;
	c->force = force;
	change_queue(h, sb, "detach-volume", &c->op);
}

/* --- grow ------------------------------------------------------------------------------------- */

struct grow {
	struct op op; /* of the sandbox that writes it, if there is one */
	struct host *host;
	volume_done *done;
	void *arg;
	char tenant[TENANT_MAX + 1], name[VOLUME_NAME_MAX + 1], machine[SANDBOX_ID + 1];
	char path[PATH_MAX];
	uint64_t size;
	struct volume_wants wants;
	int r;
	struct err err;
};

static void grow_end(struct grow *g)
{
	struct volume_info info;

	if (g->machine[0])
		g->host->volume_changes--;
	if (g->r == 0)
		g->r = volume_get(g->host, g->tenant, g->name, &info, &g->err);
	g->done(g->arg, g->r < 0 ? &g->err : NULL, g->r < 0 ? NULL : &info);
	if (g->op.sb)
		op_end(&g->op);
	volume_wants_fini(&g->wants);
	free(g);
}

static void grow_done(void *arg)
{
	struct grow *g = arg;

	if (g->op.sb) {
		volume_settled(g->op.sb, &g->wants);
		if (g->r < 0)
			err_prefix(&g->err,
			           "volume '%s' has grown, but not its file system in sandbox %s; "
			           "it does when it is attached next",
			           g->name, g->op.sb->id);
	}
	grow_end(g);
}

static void grow_work(void *arg)
{
	struct grow *g = arg;
	autoclose int fd = open(g->path, O_RDWR | O_CLOEXEC);

	fault_at("resize.recorded");
	if (fd < 0 || fsync(fd) < 0)
		g->r = err_set(&g->err, errno, "disk_full", "cannot sync %s: %s", g->path,
		               strerror(errno));
	if (g->r == 0 && g->op.sb)
		g->r = machine_volumes_settle(&g->host->machines, g->machine, g->wants.v,
		                              g->wants.n, false, &g->err);
	fault_at("resize.done");
}

/*
 * A hole at its end, and the record, in one turn of the loop: no caller sees one without the other.
 * A power cut may leave one of them; then the record counts (volumes_recover()).
 */
static int grow_file(struct grow *g, struct err *e)
{
	autoclose int fd = open(g->path, O_RDWR | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0 ||
	    ((uint64_t)st.st_size < g->size && ftruncate(fd, (off_t)g->size) < 0))
		return err_set(e, errno, "disk_full", "cannot let %s grow: %s", g->path,
		               strerror(errno));
	fault_at("resize.grown");
	r = db_volume_grow(g->host->db, g->tenant, g->name, g->size, e);
	if (r == 0)
		log_info("volume grown tenant=%s volume=%s bytes=%llu", g->tenant, g->name,
		         (unsigned long long)g->size);
	return r;
}

static void grow_run(struct grow *g)
{
	struct sandbox *sb = g->op.sb;

	g->r = grow_file(g, &g->err);
	if (g->r == 0 && sb)
		g->r = volume_list_set(sb, json_incref(sb->spec.volumes), true, &g->err);
	if (g->r == 0 && sb)
		g->r = volume_want_all(g->host, sb, &g->wants, &g->err);
	if (g->r == 0 && pool_submit_for(g->host->pool, g->tenant, grow_work, grow_done, g) == 0)
		return;
	if (g->r == 0)
		g->r = err_nomem(&g->err);
	if (sb && sb->volumes_pending)
		volume_list_set(sb, json_incref(sb->spec.volumes), false, NULL);
	grow_end(g);
}

static void grow_begin(struct op *op)
{
	struct grow *g = (struct grow *)op;

	g->r = sandbox_need_running(op->sb, &g->err);
	if (g->r == 0)
		g->r = take_thread(g->host, &g->err);
	if (g->r < 0) {
		grow_end(g);
		return;
	}
	memcpy(g->machine, op->sb->machine, sizeof(g->machine));
	grow_run(g);
}

static int may_grow(struct host *h, const char *tenant, const struct volume_info *v,
                    uint64_t size_mb, const struct quota *quota, struct err *e)
{
	if (v->snapshot)
		return err_set(e, EBUSY, "conflict",
		               "'%s' is a snapshot and stays as it is: make a volume from it",
		               v->name);
	if (size_mb > VOLUME_MB_MAX)
		return err_set(e, EINVAL, "bad_request", "size_mb must be up to %d", VOLUME_MB_MAX);
	if (size_mb << 20 < v->size_bytes)
		return err_set(e, EINVAL, "bad_request",
		               "volume '%s' has %llu MiB and cannot become smaller: make a smaller "
		               "one and copy what is in it",
		               v->name, (unsigned long long)(v->size_bytes >> 20));
	return volume_admit(h, tenant, size_mb - (v->size_bytes >> 20), false, 0, quota, e);
}

void volume_resize(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota, volume_done *done, void *arg)
{
	struct grow *g = calloc(1, sizeof(*g));
	struct volume_row row;
	struct sandbox *sb;
	struct err e;
	int r = g ? volume_find(h, tenant, name, &row, &e) : err_nomem(&e);

	if (r == 0)
		r = may_grow(h, tenant, &row.info, size_mb, quota, &e);
	if (r < 0 || size_mb << 20 == row.info.size_bytes) {
		free(g);
		done(arg, r < 0 ? &e : NULL, r < 0 ? NULL : &row.info);
		return;
	}
	*g = (struct grow){.host = h, .done = done, .arg = arg, .size = size_mb << 20};
	snprintf(g->tenant, sizeof(g->tenant), "%s", tenant);
	snprintf(g->name, sizeof(g->name), "%s", row.info.name);
	volume_path(h, row.file, g->path);
	sb = volume_holder(h, tenant, name, true, NULL);
	if (!sb) {
		grow_run(g);
		return;
	}
	g->op.begin = grow_begin;
	change_queue(h, sb, "grow-volume", &g->op);
}
