/*
 * host/snapshot.c - one moment of a sandbox, on disk: taken, listed, deleted
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "db/snapshots.h"
#include "host/disk_use.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "layers/manifest.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

struct snap {
	struct op op;
	struct host *host;
	void (*done)(void *arg, const struct err *e, const struct host_snapshot *s);
	void *arg;
	struct host_snapshot s;
	char machine[SANDBOX_ID + 1];
	int r;
	struct err err;
};

static const char *const origins[] = {
    [SNAPSHOT_SIGNED] = "signed",
    [SNAPSHOT_UNSIGNED] = "unsigned",
    [SNAPSHOT_UNKNOWN_KEY] = "unknown_key",
};

const char *snapshot_origin_name(enum snapshot_origin o)
{
	return origins[o];
}

static enum snapshot_origin origin_parse(const char *name)
{
	for (size_t i = 0; name && i < ARRAY_LEN(origins); i++)
		if (origins[i] && !strcmp(origins[i], name))
			return (enum snapshot_origin)i;
	return SNAPSHOT_TAKEN;
}

json_t *snapshot_doc(const struct host_snapshot *s)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:i, s:i, s:I, s:s?}", "name", s->name, "template",
	                 s->template, "size_bytes", (json_int_t)s->size_bytes, "generation",
	                 (json_int_t)s->generation, "disk_gb", (int)s->disk_gb, "memory_mb",
	                 (int)s->memory_mb, "expires_ms", (json_int_t)s->expires_ms, "imported",
	                 snapshot_origin_name(s->origin));
}

void snapshot_size_of(struct host_snapshot *s, const struct manifest *m)
{
	uint64_t own = 0;

	for (size_t d = 0; d < m->ndisks; d++)
		if (!m->disks[d].read_only)
			own = MAX(own, m->disks[d].size);
	s->memory_mb = (unsigned)((m->memory_size + (1 << 20) - 1) >> 20);
	if (!s->disk_gb)
		s->disk_gb = (unsigned)((own + (1 << 30) - 1) >> 30);
}

int snapshot_size(struct host *h, struct host_snapshot *s, struct err *e)
{
	AUTO(manifest_fini) struct manifest m = {0};
	int r = s->memory_mb ? 0 : snapshot_manifest(&h->store, s->id, &m, e);

	if (r == 0 && !s->memory_mb)
		snapshot_size_of(s, &m);
	return r;
}

/* What its files take on disk, uncompressed; some of it may be shared with other snapshots. */
static void snap_work(void *arg)
{
	struct snap *s = arg;
	struct host *h = s->host;
	struct snapshot_store store = store_as(h, h->config.compress_snapshots);
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;

	s->r = machine_snapshot(&h->machines, s->machine, &image, NULL, &s->err);
	fault_at("snapshot.sealed");
	if (s->r == 0) {
		s->s.size_bytes = engine_image_bytes(&image);
		s->s.memory_mb = (unsigned)((image.memory_size + (1 << 20) - 1) >> 20);
		s->r = machine_save(&image, &store, s->s.id, s->s.sandbox_id, &s->err);
		if (s->r == 0)
			machine_saved(&h->machines, s->machine, &image);
	}
	fault_at("snapshot.saved");
}

static void snap_over(struct snap *s, const struct err *e)
{
	s->done(s->arg, e, e ? NULL : &s->s);
	op_end(&s->op);
	free(s);
}

static void snap_done(void *arg)
{
	struct snap *s = arg;
	struct host *h = s->host;
	AUTO(json_decrefp) json_t *doc = NULL;
	autofree char *text = NULL;

	if (s->r == 0) {
		doc = snapshot_doc(&s->s);
		text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
		s->r = text ? db_snapshot_ready(h->db, s->s.id, s->s.sandbox_id, text, &s->err)
		            : err_nomem(&s->err);
		if (s->r < 0)
			snapshot_delete(&h->store, s->s.id, NULL);
	}
	if (s->r < 0) {
		db_snapshot_delete(h->db, s->s.id, NULL);
		snap_over(s, &s->err);
		return;
	}
	event_emit(&h->events, s->s.tenant, s->s.sandbox_id, "sandbox.snapshotted",
	           json_pack("{s:s, s:I}", "snapshot_id", s->s.id, "size_bytes",
	                     (json_int_t)s->s.size_bytes));
	log_info("snapshot taken snapshot=%s sandbox=%s bytes=%llu", s->s.id, s->s.sandbox_id,
	         (unsigned long long)s->s.size_bytes);
	retain_after(h, &s->op.sb->spec, &s->s);
	snap_over(s, NULL);
}

/* On record before any of its files is. */
static int snap_insert(struct snap *s, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = snapshot_doc(&s->s);
	autofree char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

	if (!text)
		return err_nomem(e);
	return db_snapshot_insert(s->host->db,
	                          &(struct db_snapshot){.id = s->s.id,
	                                                .tenant = s->s.tenant,
	                                                .sandbox_id = s->s.sandbox_id,
	                                                .doc = text,
	                                                .created_ms = s->s.created_ms},
	                          e);
}

static void snap_begin(struct op *op)
{
	struct snap *s = (struct snap *)op;
	struct sandbox *sb = op->sb;
	struct host *h = s->host;
	int r;

	r = sb->state == SANDBOX_PAUSED ? 0 : sandbox_need_running(sb, &s->err);
	if (r == 0) {
		memcpy(s->machine, sb->machine, sizeof(s->machine));
		s->s.generation = sb->generation;
		s->s.disk_gb = sb->disk_gb;
		s->s.created_ms = wall_ms();
		s->s.expires_ms = retain_until(h, &sb->spec, s->s.name, s->s.created_ms);
		r = snap_insert(s, &s->err);
	}
	if (r == 0) {
		fault_at("snapshot.recorded");
		if (pool_submit_for(h->pool, sb->tenant, snap_work, snap_done, s) < 0) {
			s->r = err_nomem(&s->err);
			snap_done(s);
		}
		return;
	}
	snap_over(s, &s->err);
}

int snapshot_admit(struct host *h, const char *tenant, const struct quota *quota, struct err *e)
{
	uint64_t mine;
	int r = disk_use_admit(h, tenant, quota, e);

	if (r < 0 || !quota || !quota->snapshots)
		return r;
	r = db_snapshots_count(h->db, tenant, &mine, e);
	if (r == 0 && mine >= quota->snapshots)
		r = err_set(e, EDQUOT, "quota_exceeded",
		            "your quota is %llu snapshots: delete some first",
		            (unsigned long long)quota->snapshots);
	return r;
}

void host_snapshot(struct host *h, struct sandbox *sb, const char *name, const struct quota *quota,
                   void (*done)(void *arg, const struct err *e, const struct host_snapshot *s),
                   void *arg)
{
	struct snap *s = calloc(1, sizeof(*s));
	struct err e;
	int r = s ? snapshot_admit(h, sb->tenant, quota, &e) : err_nomem(&e);

	if (r < 0) {
		free(s);
		done(arg, &e, NULL);
		return;
	}
	*s = (struct snap){.host = h, .done = done, .arg = arg, .op.begin = snap_begin};
	uuid_new(s->s.id);
	memcpy(s->s.tenant, sb->tenant, sizeof(s->s.tenant));
	memcpy(s->s.sandbox_id, sb->id, sizeof(s->s.sandbox_id));
	snprintf(s->s.name, sizeof(s->s.name), "%s", name ? name : "");
	memcpy(s->s.template, sb->spec.template, sizeof(s->s.template));
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "snapshot", &s->op);
}

struct each {
	bool (*fn)(void *arg, const struct host_snapshot *s);
	void *arg;
};

static bool tell(void *arg, const struct db_snapshot *row)
{
	struct each *each = arg;
	AUTO(json_decrefp) json_t *doc = json_loads(row->doc, 0, NULL);
	const char *name = json_string_value(json_object_get(doc, "name"));
	const char *template = json_string_value(json_object_get(doc, "template"));
	struct host_snapshot s = {
	    .created_ms = row->created_ms,
	    .size_bytes = (uint64_t)json_integer_value(json_object_get(doc, "size_bytes")),
	    .expires_ms = (uint64_t)json_integer_value(json_object_get(doc, "expires_ms")),
	    .generation = (uint64_t)json_integer_value(json_object_get(doc, "generation")),
	    .disk_gb = (unsigned)json_integer_value(json_object_get(doc, "disk_gb")),
	    .memory_mb = (unsigned)json_integer_value(json_object_get(doc, "memory_mb")),
	    .origin = origin_parse(json_string_value(json_object_get(doc, "imported")))};

	snprintf(s.id, sizeof(s.id), "%s", row->id);
	snprintf(s.tenant, sizeof(s.tenant), "%s", row->tenant);
	snprintf(s.sandbox_id, sizeof(s.sandbox_id), "%s", row->sandbox_id);
	snprintf(s.name, sizeof(s.name), "%s", name ? name : "");
	snprintf(s.template, sizeof(s.template), "%s", template ? template : "");
	return each->fn(each->arg, &s);
}

int host_snapshots(struct host *h, const char *tenant, const char *sandbox_id,
                   bool (*fn)(void *arg, const struct host_snapshot *s), void *arg, struct err *e)
{
	struct each each = {.fn = fn, .arg = arg};

	return db_snapshots_each(h->db, tenant, sandbox_id, tell, &each, e);
}

static bool keep_one(void *arg, const struct host_snapshot *s)
{
	*(struct host_snapshot *)arg = *s;
	return false;
}

int host_snapshot_get(struct host *h, const char *tenant, const char *id, struct host_snapshot *ret,
                      struct err *e)
{
	struct host_snapshot s = {.id = ""};
	struct each each = {.fn = keep_one, .arg = &s};
	int r = db_snapshot_get(h->db, tenant, id, tell, &each, e);

	if (r == 0 && !s.id[0])
		r = err_set(e, ENOENT, "snapshot_not_found",
		            "there is no snapshot %.64s: GET /v1/snapshots lists those there are",
		            id);
	if (r == 0)
		*ret = s;
	return r;
}

struct forget {
	struct host *host;
	host_done *done;
	void *arg;
	char id[SANDBOX_ID + 1];
	int r;
	struct err err;
};

static void forget_work(void *arg)
{
	struct forget *f = arg;

	f->r = depot_drop_snapshot(&f->host->depot, f->id, &f->err);
	if (f->r == -ENOENT)
		f->r = 0;
	fault_at("forget.deleted");
}

static void forget_done(void *arg)
{
	struct forget *f = arg;

	if (f->r == 0)
		f->r = db_snapshot_delete(f->host->db, f->id, &f->err);
	disk_use_changed(f->host);
	f->done(f->arg, f->r < 0 ? &f->err : NULL, NULL);
	free(f);
}

void host_snapshot_delete(struct host *h, const char *tenant, const char *id, host_done *done,
                          void *arg)
{
	struct forget *f = calloc(1, sizeof(*f));
	struct host_snapshot s;
	struct err e;
	int r = f ? host_snapshot_get(h, tenant, id, &s, &e) : err_nomem(&e);

	if (r == 0) {
		*f = (struct forget){.host = h, .done = done, .arg = arg};
		memcpy(f->id, s.id, sizeof(f->id));
		/* No client finds it any more; should we die now, the next start deletes
		 * the rest. */
		r = db_snapshot_deleting(h->db, f->id, &e);
		if (r == -ENOSPC) /* how else would a full disk ever be less full? A record
		                     without files goes at the next start */
			r = 0;
	}
	if (r == 0)
		fault_at("forget.recorded");
	if (r == 0 && pool_submit(h->pool, forget_work, forget_done, f) < 0)
		r = err_nomem(&e);
	if (r < 0) {
		free(f);
		done(arg, &e, NULL);
	}
}
