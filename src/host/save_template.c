/*
 * host/save_template.c - a template from a running sandbox
 * Shape as in host/lifecycle_internal.h: a thread of the pool seals and saves the machine; the
 * description comes last.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "template/template.h"
#include "template/verified.h"

enum {
	SYNC_MS = 20000,
};

struct save {
	struct op op;
	struct host *host;
	void (*done)(void *arg, const struct err *e, struct template *t);
	void *arg;
	char sandbox[SANDBOX_ID + 1], machine[SANDBOX_ID + 1], tenant[TENANT_MAX + 1],
	    name[TEMPLATE_NAME_MAX + 1];
	char bake[SNAPSHOT_ID_MAX + 1], old[SNAPSHOT_ID_MAX + 1];
	bool replace, paused;
	json_t *doc;
	int r;
	struct err err;
};

static void save_over(struct save *s, const struct err *e, struct template *t)
{
	s->done(s->arg, e, t);
	op_end(&s->op);
	json_decref(s->doc);
	free(s);
}

/* What programs have written is in memory yet. One day only the disk is left: see bake.c. A machine
 * that is paused cannot be asked. */
static void write_back(struct save *s)
{
	struct guest *g = NULL;

	if (s->paused || machine_guest(&s->host->machines, s->machine, &g, NULL) < 0)
		return;
	guest_set_deadline(g, SYNC_MS);
	(void)guest_sync(g, NULL);
	guest_free(g);
}

static void save_work(void *arg)
{
	struct save *s = arg;
	struct host *h = s->host;
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;

	write_back(s);
	s->r = machine_snapshot(&h->machines, s->machine, &image, NULL, &s->err);
	fault_at("save.sealed");
	if (s->r == 0) {
		json_object_set_new(s->doc, "size_bytes",
		                    json_integer((json_int_t)engine_image_bytes(&image)));
		s->r = verified_save(&h->depot, &image, s->bake, &s->err);
	}
	fault_at("save.saved");
	if (s->r == 0) {
		s->r = template_put(&h->depot, s->doc,
		                    &(struct template_put){.replace = s->replace}, s->old, &s->err);
		if (s->r < 0)
			verified_drop(&h->depot, s->bake, NULL);
	}
}

static void save_done(void *arg)
{
	struct save *s = arg;
	struct templates *ts = s->host->depot.templates;
	struct template *t = NULL;

	if (s->r == 0) {
		template_settle(ts, s->bake, s->old);
		t = template_find(ts, s->tenant, s->name, &s->err);
		if (!t) /* deleted again in the meantime */
			s->r = -s->err.code;
	}
	if (s->r == 0)
		log_info("template saved template=%s tenant=%s sandbox=%s bake=%s", s->name,
		         s->tenant, s->sandbox, s->bake);
	save_over(s, s->r < 0 ? &s->err : NULL, t);
}

static void save_begin(struct op *op)
{
	struct save *s = (struct save *)op;
	struct sandbox *sb = op->sb;
	struct host *h = s->host;
	struct template *from;
	int r = sb->state == SANDBOX_PAUSED ? 0 : sandbox_need_running(sb, &s->err);

	s->paused = sb->state == SANDBOX_PAUSED;
	memcpy(s->machine, sb->machine, sizeof(s->machine));
	if (r == 0)
		r = template_may_put(h->depot.templates, s->tenant, s->name, s->replace, &s->err);
	if (r == 0) {
		from = template_find(h->depot.templates, s->tenant, sb->spec.template, NULL);
		s->doc = template_heir(from, s->tenant, s->name, s->bake, sb->generation);
		if (!s->doc)
			r = err_nomem(&s->err);
	}
	if (r == 0) {
		json_object_set_new(s->doc, "cpu", json_integer(sb->cpu));
		if (sb->memory_mb)
			json_object_set_new(s->doc, "memory_mb", json_integer(sb->memory_mb));
		if (sb->disk_gb)
			json_object_set_new(s->doc, "disk_gb", json_integer(sb->disk_gb));
		json_object_set_new(s->doc, "runner",
		                    json_string(sb->runner ? sb->runner : "shell"));
		json_object_set_new(s->doc, "description",
		                    json_sprintf("saved from sandbox %s", sb->id));
		if (pool_submit_for(h->pool, s->tenant, save_work, save_done, s) == 0)
			return;
		err_nomem(&s->err);
	}
	save_over(s, &s->err, NULL);
}

void host_save_template(struct host *h, struct sandbox *sb, const char *name, bool replace,
                        void (*done)(void *arg, const struct err *e, struct template *t), void *arg)
{
	struct save *s = calloc(1, sizeof(*s));
	struct err e;
	int r =
	    s ? template_may_put(h->depot.templates, sb->tenant, name, replace, &e) : err_nomem(&e);

	if (r == 0)
		r = host_admit(h, sb->tenant, 0, 0, NULL, &e); /* room on the disk */
	if (r == 0 && json_array_size(sb->spec.volumes))
		r = err_set(&e, EINVAL, "bad_request",
		            "a sandbox with volumes cannot become a template: sandboxes made from "
		            "it would not have them. Copy what it needs into a sandbox without");
	if (r < 0) {
		free(s);
		done(arg, &e, NULL);
		return;
	}
	*s = (struct save){
	    .host = h, .done = done, .arg = arg, .replace = replace, .op.begin = save_begin};
	memcpy(s->sandbox, sb->id, sizeof(s->sandbox));
	memcpy(s->tenant, sb->tenant, sizeof(s->tenant));
	snprintf(s->name, sizeof(s->name), "%s", name);
	template_new_bake(s->bake);
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "save-template", &s->op);
}
