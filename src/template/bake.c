/*
 * template/bake.c - from a template to a machine at rest, that sandboxes start from
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "layers/digest.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "template/template.h"
#include "template/template_internal.h"
#include "template/verified.h"
#include "wire/guest.h"

static const char *upper_of(const struct depot *depot, const json_t *doc)
{
	return text_of(doc, "upper", depot->upper_image ? depot->upper_image : "");
}

/* Everything a bake is made from: another image, kernel or description is another bake. */
int bake_name(struct depot *depot, const struct template *t, char ret[SNAPSHOT_ID_MAX + 1],
              struct err *e)
{
	const char *files[] = {text_of(t->doc, "image", ""), upper_of(depot, t->doc)};
	autofree char *doc = json_dumps(t->doc, JSON_COMPACT | JSON_SORT_KEYS);
	autofree char *all = NULL;
	char digest[DIGEST_TEXT], stamps[256] = "";
	const struct engine *engine;
	struct digest d;
	struct stat st;

	if (json_object_get(t->doc, "snapshot")) {
		snprintf(ret, SNAPSHOT_ID_MAX + 1, "%s", text_of(t->doc, "snapshot", ""));
		return 0;
	}
	engine = engine_find(depot->machines->engines, text_of(t->doc, "engine", ""), e);
	if (!engine)
		return err_prefix(e, "template %s", t->name);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		size_t n = strlen(stamps);

		if (stat(files[i], &st) < 0)
			return err_set(e, errno, "template_unusable",
			               "template %s: cannot open '%s': build it again "
			               "(tools/image --template %s)",
			               t->name, files[i], t->name);
		snprintf(stamps + n, sizeof(stamps) - n, " %lld %lld.%09ld", (long long)st.st_size,
		         (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	}
	if (!doc || asprintf(&all, "%s%s %s %s", doc, stamps, engine->name, engine->kernel) < 0) {
		all = NULL;
		return err_nomem(e);
	}
	if (digest_bytes(all, strlen(all), &d) < 0)
		return err_nomem(e);
	digest_text(&d, digest);
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "tpl-%.40s", digest);
	return 0;
}

struct bake {
	struct templates *templates;
	struct template *template;
	json_t *doc;
	char name[SNAPSHOT_ID_MAX + 1], machine[ENGINE_ID_MAX + 1];
	uint64_t memory_size, began_ms, warm_ms; /* warm_ms: of it, what the template asked for */
	struct engine_image image;
	bool made;
	bool old_agent; /* that this server cannot talk to */
	char
	    root_image[PATH_MAX]; /* of the template at its root, as it is now; "": there is none */
	char old[SNAPSHOT_ID_MAX + 1]; /* the bake it had before; "": it has the same */
	int r;
	struct err err;
};

static int make_bake(struct bake *b, struct err *e)
{
	struct depot *depot = b->templates->depot;
	AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
	AUTO(engine_image_fini) struct engine_image baked = ENGINE_IMAGE_EMPTY;
	struct engine_start s = {.id = b->machine, .image = &cold, .cpu = -1};
	int r;

	r = engine_image_cold(b->memory_size, text_of(b->doc, "image", ""), upper_of(depot, b->doc),
	                      &cold, e);
	if (r < 0)
		return r;
	cold.engine = engine_find(depot->machines->engines, text_of(b->doc, "engine", ""), e);
	if (!cold.engine)
		return -ENOTSUP;
	s.cpus = (unsigned)json_integer_value(json_object_get(b->doc, "cpu"));
	r = machine_start(depot->machines, &s, NULL, 1, NULL, e);
	if (r < 0)
		return r;
	fault_at("bake.booted");
	b->warm_ms = mono_ms();
	r = template_warm(depot, b->machine, b->doc, -1, 0, e); /* the operator's own */
	b->warm_ms = mono_ms() - b->warm_ms;
	if (r == 0)
		r = machine_bake(depot->machines, b->machine, &baked, e);
	fault_at("bake.sealed");
	if (r == 0)
		r = verified_save(depot, &baked, b->name, e);
	fault_at("bake.saved");
	machine_remove(depot->machines, b->machine, NULL);
	return r;
}

/* A disk in one layer: which of several has a block is known to a running kernel only. */
static int flatten(struct engine_disk *d, int dir, const char *name, struct err *e)
{
	struct set one = {.pages = d->layers.pages};
	struct map map = {0};
	struct layer *l = NULL;
	uint64_t deadline = 0;
	int fd = -1, r = layer_create_file(dir, name, one.pages, &fd);

	if (r == 0)
		r = set_export(&d->layers, fd);
	closep(&fd);
	if (r == 0)
		r = map_add(&map, 0, one.pages);
	/* A process that another thread is starting has our fds, this one too, until it runs. */
	while (r == 0 && !l) {
		r = layer_seal_file(dir, name, one.pages, &map, &l);
		if (layer_busy(r, &deadline))
			r = 0;
	}
	if (r == 0)
		r = set_push(&one, l);
	map_fini(&map);
	layer_unref(l);
	if (r < 0)
		return err_set(e, -r, r == -ENOSPC ? "disk_full" : "template_unusable",
		               "cannot make one file of its disk: %s", strerror(-r));
	set_fini(&d->layers);
	d->layers = one;
	return 0;
}

int template_cold(struct engine_image *image, uint64_t memory_size, int dir, const char *prefix,
                  struct err *e)
{
	char name[SNAPSHOT_ID_MAX + 32];
	int r = 0;

	for (size_t d = 0; r == 0 && d < image->ndisks; d++) {
		snprintf(name, sizeof(name), "%s%zu", prefix, d);
		if (!image->disks[d].read_only)
			r = flatten(&image->disks[d], dir, name, e);
	}
	if (r < 0)
		return r;
	image->memory_size = memory_size;
	set_fini(&image->memory);
	image->memory = (struct set){.pages = memory_size / MAP_PAGE};
	closep(&image->state);
	image->state = -1;
	return 0;
}

/* --- a bake that this server's kernel or agent cannot go on with
 * ------------------------------- */

/* What it boots from: its disk; and when its agent speaks an older language, the root image that
 * the template at its root has now. */
static int load_cold(struct bake *b, int dir, const char *prefix, struct engine_image *ret,
                     struct err *e)
{
	struct depot *depot = b->templates->depot;
	AUTO(engine_image_fini) struct engine_image old = ENGINE_IMAGE_EMPTY;
	AUTO(engine_image_fini) struct engine_image fresh = ENGINE_IMAGE_EMPTY;
	int r = machine_load_disks(depot->store, b->name, &old, e);

	if (r == 0 && b->old_agent) {
		r = b->root_image[0] ? engine_image_cold(b->memory_size, b->root_image,
		                                         upper_of(depot, b->doc), &fresh, e)
		                     : err_set(e, ENOENT, "template_unusable",
		                               "its agent is too old, and the template it was "
		                               "made from is gone");
		if (r == 0 && old.ndisks && fresh.ndisks) {
			struct engine_disk d = old.disks[0];

			old.disks[0] = fresh.disks[0];
			fresh.disks[0] = d;
		}
	}
	if (r == 0)
		r = template_cold(&old, b->memory_size, dir, prefix, e);
	if (r < 0)
		return r;
	old.engine = engine_find(depot->machines->engines, text_of(b->doc, "engine", ""), e);
	if (!old.engine)
		return -ENOTSUP;
	*ret = old;
	old = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

static int boot_again(struct bake *b, const struct engine_image *cold, json_t *doc,
                      const char *bake, struct err *e)
{
	struct depot *depot = b->templates->depot;
	AUTO(engine_image_fini) struct engine_image baked = ENGINE_IMAGE_EMPTY;
	struct engine_start s = {.id = b->machine,
	                         .image = cold,
	                         .cpu = -1,
	                         .stop_fd = depot->stop};
	uint64_t until_ms = mono_ms() + (uint64_t)depot->build_s * 1000;
	struct guest *g = NULL;
	char note[240] = "";
	struct err why;
	int r;

	s.cpus = (unsigned)json_integer_value(json_object_get(doc, "cpu"));
	r = machine_start_guest(depot->machines, &s, NULL, 1, NULL, &g, e);
	if (r < 0)
		return r;
	/* What a tenant has built stops neither this pandad nor a thread of it. */
	guest_set_stop(g, depot->stop, until_ms);
	fault_at("rebake.booted");
	/* It has been a template before: it does not fail now because a warm-up does. */
	if (template_warm(depot, b->machine, doc, depot->stop, until_ms, &why) < 0)
		log_warn("warming up failed, sandboxes start without it template=%s why=\"%s\"",
		         b->template->name, why.text);
	r = template_start(g, doc, NULL, note, sizeof(note), e);
	if (note[0])
		log_warn("a start command did not stay template=%s why=\"%s\"", b->template->name,
		         note);
	guest_free(g);
	if (r == 0)
		r = machine_bake(depot->machines, b->machine, &baked, e);
	if (r == 0)
		r = verified_save(depot, &baked, bake, e);
	machine_remove(depot->machines, b->machine, NULL);
	return r;
}

/*
 * What a tenant's template is in memory belongs to the kernel it was saved with; its disk does not.
 * So that is booted by the kernel there is now, and what comes of it takes the place of the old
 * bake: whole and on disk before the description names it. Programs that ran when it was saved do
 * not, but for its start command; "rebaked" in the description says so.
 */
static int rebake(struct bake *b, struct err *e)
{
	struct depot *depot = b->templates->depot;
	AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
	AUTO(json_decrefp) json_t *doc = json_deep_copy(b->doc);
	char path[PATH_MAX], bake[SNAPSHOT_ID_MAX + 1], prefix[SNAPSHOT_ID_MAX + 16], why[240];
	autoclose int dir = -1;
	int r;

	snprintf(why, sizeof(why), "%s", b->old_agent ? "its agent is too old" : e->text);
	template_new_bake(bake);
	snprintf(prefix, sizeof(prefix),
	         "."
	         "%s-disk",
	         bake); /* sweep() knows such names */
	snprintf(path, sizeof(path), "%s/templates", depot->data_dir);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!doc || dir < 0)
		return err_nomem(e);
	r = load_cold(b, dir, prefix, &cold, e);
	if (r == 0)
		r = boot_again(b, &cold, doc, bake, e);
	fault_at("rebake.saved");
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) { /* those that use them have them open */
		char name[SNAPSHOT_ID_MAX + 32];

		snprintf(name, sizeof(name), "%s%zu", prefix, d);
		unlinkat(dir, name, 0);
	}
	if (r == 0 && (json_object_set_new(doc, "snapshot", json_string(bake)) ||
	               json_object_set_new(doc, "generation", json_integer(1)) ||
	               json_object_set_new(doc, "wire", json_integer(WIRE_VERSION)) ||
	               json_object_set_new(doc, "rebaked",
	                                   json_pack("{s:I, s:s}", "at_ms", (json_int_t)wall_ms(),
	                                             "why", why))))
		r = err_nomem(e);
	if (r == 0)
		r = template_put(depot, doc, &(struct template_put){.instead = b->name}, b->old, e);
	fault_at("rebake.put");
	if (r == 0)
		r = verified_load(depot, bake, &b->image, e);
	if (r < 0) {
		if (!b->old[0]) /* no template has it */
			verified_drop(depot, bake, NULL);
		return r;
	}
	snprintf(b->name, sizeof(b->name), "%s", bake);
	json_decref(b->doc);
	b->doc = take_ptr(doc);
	return 0;
}

static void bake_work(void *arg)
{
	struct bake *b = arg;
	struct depot *depot = b->templates->depot;
	bool own = json_object_get(b->doc, "snapshot");

	b->r = b->old_agent ? -ESTALE : verified_load(depot, b->name, &b->image, &b->err);
	if (b->r == 0)
		return;
	if (own && (b->old_agent || !strcmp(b->err.kind, "snapshot_foreign"))) {
		b->r = rebake(b, &b->err);
	} else if (!own) { /* damaged or of another format: made anew */
		verified_drop(depot, b->name, NULL);
		b->made = true;
		b->r = make_bake(b, &b->err);
		if (b->r == 0)
			b->r = verified_load(depot, b->name, &b->image, &b->err);
	}
	if (b->r < 0 && own) {
		err_prefix(&b->err, "save or build it again");
		b->err.kind = "template_unusable";
	}
}

/* The description is another one now; so is what the old one said of the machine. */
static void tell_rebaked(struct bake *b)
{
	struct template *t = b->template;
	struct depot *depot = b->templates->depot;
	const char *why = text_of(json_object_get(b->doc, "rebaked"), "why", "");

	json_decref(t->doc);
	t->doc = json_incref(b->doc);
	t->generation = 1;
	log_warn("template baked again from its disk, what ran in it does not template=%s "
	         "tenant=%s bake=%s took_ms=%llu why=\"%s\"",
	         t->name, t->tenant, b->name, (unsigned long long)(mono_ms() - b->began_ms), why);
	depot->event(
	    depot->host, t->tenant, "template.rebaked",
	    json_pack("{s:s, s:s, s:s}", "template", t->name, "reason", why, "note",
	              "its disk is as it was; programs that ran when it was saved do not"));
}

static void bake_done(void *arg)
{
	struct bake *b = arg;
	struct template *t = b->template;
	struct template_waiter *w = t->waiters;
	struct depot *depot = b->templates->depot;

	t->baking = false;
	t->waiters = NULL;
	if (b->r == 0) {
		engine_image_fini(&t->image);
		t->image = b->image;
		t->loaded = true;
		snprintf(t->bake, sizeof(t->bake), "%s", b->name);
		if (b->old[0])
			tell_rebaked(b);
		if (b->made)
			log_info("template baked template=%s bake=%s took_ms=%llu warm_ms=%llu",
			         t->name, t->bake, (unsigned long long)(mono_ms() - b->began_ms),
			         (unsigned long long)b->warm_ms);
	} else {
		err_prefix(&b->err, "template %s cannot be baked", t->name);
		log_error("bake failed template=%s why=\"%s\"", t->name, b->err.text);
	}
	while (w) {
		struct template_waiter *next = w->next;

		w->done(w->arg, b->r < 0 ? &b->err : NULL, t);
		free(w);
		w = next;
	}
	if (b->old[0])
		template_settle(b->templates, b->name, b->old);
	if (b->templates->stale) {
		b->templates->stale = false;
		templates_reload(b->templates, NULL);
	}
	json_decref(b->doc);
	free(b);
	depot->baked(depot->host);
}

/* An agent is part of the root image; it and we must speak the same language. */
static void look_at_agent(struct templates *ts, struct bake *b)
{
	const json_t *wire = json_object_get(b->doc, "wire");
	const struct template *root =
	    template_find(ts, b->template->tenant, text_of(b->doc, "root", "base"), NULL);

	b->old_agent =
	    json_object_get(b->doc, "snapshot") && wire && json_integer_value(wire) != WIRE_VERSION;
	if (root)
		snprintf(b->root_image, sizeof(b->root_image), "%s",
		         text_of(root->doc, "image", ""));
}

void template_ready(struct templates *ts, struct template *t,
                    void (*done)(void *arg, const struct err *e, struct template *t), void *arg)
{
	struct template_waiter *w;
	struct bake *b;
	struct err e;
	int r;

	if (t->loaded) {
		done(arg, NULL, t);
		return;
	}
	w = malloc(sizeof(*w));
	b = t->baking ? NULL : calloc(1, sizeof(*b));
	if (!w || (!b && !t->baking)) {
		free(w);
		err_nomem(&e);
		done(arg, &e, t);
		return;
	}
	*w = (struct template_waiter){.next = t->waiters, .done = done, .arg = arg};
	t->waiters = w;
	if (t->baking)
		return;
	*b = (struct bake){.templates = ts,
	                   .template = t,
	                   .doc = json_incref(t->doc),
	                   .memory_size = (uint64_t)t->memory_mb << 20,
	                   .began_ms = mono_ms(),
	                   .image = ENGINE_IMAGE_EMPTY};
	machine_new_id(b->machine);
	memcpy(b->machine, "b_", 2);
	look_at_agent(ts, b);
	t->baking = true;
	r = bake_name(ts->depot, t, b->name, &b->err);
	if (r == 0 && pool_submit(ts->depot->pool, bake_work, bake_done, b) < 0)
		r = err_nomem(&b->err);
	if (r < 0) { /* otherwise b is the pool's now */
		b->r = r;
		bake_done(b);
	}
}
