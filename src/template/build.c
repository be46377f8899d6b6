/*
 * template/build.c - the books of builds: orders, turns, records, ends
 */
#include "template/build.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "machine/engine.h"
#include "net/net.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/template.h"

static const char *const status_names[] = {"queued", "running", "baking", "done", "failed"};

const char *build_status_name(enum build_status s)
{
	return status_names[s];
}

static bool over(const struct build *b)
{
	return b->status == BUILD_DONE || b->status == BUILD_FAILED;
}

/* --- on disk ---------------------------------------------------------------------------------- */

/* All files of a build, or but for its record and its log. */
void build_clean_dir(int builds, const char *id, bool all)
{
	autoclosedir DIR *d = io_opendir(builds, id, O_NOFOLLOW);
	struct dirent *de;

	while (d && (de = readdir(d)))
		if (all ||
		    (strcmp(de->d_name, "build.json") != 0 && strcmp(de->d_name, "log") != 0))
			unlinkat(dirfd(d), de->d_name, 0);
	if (all)
		unlinkat(builds, id, AT_REMOVEDIR);
}

static void write_record(struct builds *bs, const struct build *b)
{
	const struct build_info *i = &b->info;
	char path[BUILD_ID + 16];
	AUTO(json_decrefp)
	json_t *j =
	    json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:I}", "id", i->id,
	              "tenant", i->tenant, "name", i->name, "status",
	              build_status_name((enum build_status)b->status), "error", i->error,
	              "started_ms", (json_int_t)i->started_ms, "ended_ms", (json_int_t)i->ended_ms,
	              "size_mb", (int)i->size_mb, "cpu", (int)i->cpu, "memory_mb",
	              (int)i->memory_mb, "bytes", (json_int_t)i->bytes);
	autofree char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL;

	snprintf(path, sizeof(path), "%s/build.json", i->id);
	if (!text || io_replace_file(bs->dir, path, text, strlen(text), 0600, false) < 0)
		log_warn("a build's record is not on disk build=%s", i->id);
}

static void copy_text(const json_t *j, const char *key, char *ret, size_t n)
{
	const char *s = json_string_value(json_object_get(j, key));

	snprintf(ret, n, "%s", s ? s : "");
}

static void add_sorted(struct builds *bs, struct build *b)
{
	struct build **at = &bs->newest;

	while (*at && (*at)->info.started_ms > b->info.started_ms)
		at = &(*at)->next;
	b->next = *at;
	*at = b;
}

/* One that another pandad had. */
static void read_record(struct builds *bs, const char *id)
{
	char path[BUILD_ID + 16], status[16];
	autofree char *text = NULL;
	AUTO(json_decrefp) json_t *j = NULL;
	struct build *b;
	size_t n;

	snprintf(path, sizeof(path), "%.16s/build.json", id);
	if (io_read_file(bs->dir, path, 64 << 10, &text, &n) == 0)
		j = json_loadb(text, n, 0, NULL);
	b = json_is_object(j) ? calloc(1, sizeof(*b)) : NULL;
	if (!b) {
		build_clean_dir(bs->dir, id, true); /* its order was not complete */
		return;
	}
	b->log = b->wake = -1;
	snprintf(b->info.id, sizeof(b->info.id), "%s", id);
	copy_text(j, "tenant", b->info.tenant, sizeof(b->info.tenant));
	copy_text(j, "name", b->info.name, sizeof(b->info.name));
	copy_text(j, "error", b->info.error, sizeof(b->info.error));
	copy_text(j, "status", status, sizeof(status));
	b->info.started_ms = (uint64_t)json_integer_value(json_object_get(j, "started_ms"));
	b->info.ended_ms = (uint64_t)json_integer_value(json_object_get(j, "ended_ms"));
	b->info.size_mb = (unsigned)json_integer_value(json_object_get(j, "size_mb"));
	b->info.cpu = (unsigned)json_integer_value(json_object_get(j, "cpu"));
	b->info.memory_mb = (unsigned)json_integer_value(json_object_get(j, "memory_mb"));
	b->info.bytes = (uint64_t)json_integer_value(json_object_get(j, "bytes"));
	b->status = strcmp(status, "done") ? BUILD_FAILED : BUILD_DONE;
	add_sorted(bs, b);
	if (!b->info.ended_ms) {
		b->info.ended_ms = wall_ms();
		snprintf(b->info.error, sizeof(b->info.error),
		         "the server ended while this was being built: build it again");
		build_clean_dir(bs->dir, id, false);
		write_record(bs, b);
		log_info("a build did not survive the last end build=%s", id);
	}
}

static void build_free(struct build *b)
{
	build_order_free(b->order);
	dockerfile_free(b->file);
	for (size_t i = 0; i < ARRAY_LEN(b->stages); i++) {
		if (b->stages[i].needed)
			engine_image_fini(&b->stages[i].image);
		json_decref(b->stages[i].doc);
		json_decref(b->stages[i].said);
	}
	json_decref(b->doc);
	json_decref(b->globals);
	closep(&b->log);
	closep(&b->wake);
	free(b);
}

/* The oldest that are over go when there are too many. */
static void forget_old(struct builds *bs)
{
	size_t n = 0;
	struct build **at = &bs->newest;

	while (*at) {
		struct build *b = *at;

		if (++n <= BUILDS_KEPT || !over(b)) {
			at = &b->next;
			continue;
		}
		*at = b->next;
		build_clean_dir(bs->dir, b->info.id, true);
		build_free(b);
	}
}

int builds_open(struct depot *depot, struct builds **ret, struct err *e)
{
	struct builds *bs = calloc(1, sizeof(*bs));
	char path[PATH_MAX];
	DIR *d;
	struct dirent *de;
	int r;

	if (!bs)
		return err_nomem(e);
	bs->depot = depot;
	snprintf(path, sizeof(path), "%s/builds", depot->data_dir);
	mkdir(path, 0700);
	bs->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = bs->dir < 0 ? NULL : opendir(path);
	if (!d) {
		r = err_set(e, errno, "data_dir", "cannot use %s: %s", path, strerror(errno));
		builds_close(bs);
		return r;
	}
	while ((de = readdir(d)))
		if (strlen(de->d_name) == BUILD_ID)
			read_record(bs, de->d_name);
	closedir(d);
	forget_old(bs);
	if (pool_new(depot->loop, BUILDS_AT_ONCE, &bs->pool) < 0) {
		builds_close(bs);
		return err_set(e, ENOMEM, "no_memory", "cannot start threads for builds");
	}
	*ret = bs;
	return 0;
}

void builds_close(struct builds *bs)
{
	if (!bs)
		return;
	bs->closing = true;
	for (struct build *b = bs->newest; b; b = b->next)
		if (!over(b)) {
			b->stop = true;
			if (b->wake >= 0)
				eventfd_write(b->wake, 1);
		}
	if (bs->pool)
		pool_free(bs->pool);
	while (bs->newest) {
		struct build *b = bs->newest;

		bs->newest = b->next;
		if (b->order) { /* its record stays: the next start says what became of it */
			closep(&b->order->dir);
			b->order->dir = -1;
		}
		build_free(b);
	}
	closep(&bs->dir);
	free(bs);
}

static size_t unfinished_of(const struct builds *bs, const char *tenant)
{
	size_t n = 0;

	for (const struct build *b = bs->newest; b; b = b->next)
		n += !over(b) && !strcmp(b->info.tenant, tenant);
	return n;
}

int builds_too_many(const struct builds *bs, const char *tenant, struct err *e)
{
	if (unfinished_of(bs, tenant) >= BUILDS_WAITING_MAX)
		return err_set(e, EAGAIN, "too_many",
		               "%d builds are waiting or at work already: wait for one to end",
		               BUILDS_WAITING_MAX);
	return 0;
}

/* --- turns ------------------------------------------------------------------------------------ */

static void next_turn(struct builds *bs);

static void end_build(struct build *b)
{
	struct builds *bs = templates_builds(b->order->depot->templates);
	bool failed = b->r < 0;

	b->info.ended_ms = wall_ms();
	b->info.bytes = b->bytes;
	if (failed)
		snprintf(b->info.error, sizeof(b->info.error), "%s", b->err.text);
	build_say(b, "%s%s", failed ? "failed: " : "done", failed ? b->err.text : "");
	b->status = failed ? BUILD_FAILED : BUILD_DONE;
	write_record(bs, b);
	log_info("build over build=%s tenant=%s template=%s status=%s took_ms=%llu why=\"%s\"",
	         b->info.id, b->info.tenant, b->info.name, build_status_name(b->info.status),
	         (unsigned long long)(b->info.ended_ms - b->info.started_ms), b->info.error);
	template_settle(bs->depot->templates, b->bake, b->old);
	net_return(take_ptr(b->net)); /* no machine of it is left */
	/* What is left of it is its record and its log. */
	closep(&b->order->dir);
	b->order->dir = -1;
	build_clean_dir(bs->dir, b->info.id, false);
	build_order_free(take_ptr(b->order));
	dockerfile_free(take_ptr(b->file));
	for (size_t i = 0; i < ARRAY_LEN(b->stages); i++) {
		if (b->stages[i].needed)
			engine_image_fini(&b->stages[i].image);
		json_decref(b->stages[i].doc);
		json_decref(b->stages[i].said);
		b->stages[i] = (struct build_stage){.needed = false};
	}
	json_decref(take_ptr(b->doc));
	json_decref(take_ptr(b->globals));
	closep(&b->log);
	closep(&b->wake);
	b->log = b->wake = -1;
	forget_old(bs);
	next_turn(bs);
}

static void work(void *arg)
{
	build_work(arg);
}

static void work_done(void *arg)
{
	end_build(arg);
}

static void fail(struct build *b, const struct err *e)
{
	b->err = *e;
	b->r = -e->code;
	end_build(b);
}

static void begin(struct build *b)
{
	struct err e;

	if (pool_submit(templates_builds(b->order->depot->templates)->pool, work, work_done, b) <
	    0) {
		err_nomem(&e);
		fail(b, &e);
	}
}

static void take_network(struct build *b);

static void network_ready(void *arg, int error)
{
	struct build *b = arg;

	if (error == 0) {
		take_network(b);
		return;
	}
	build_say(b, "there is no network for this build: %s", strerror(-error));
	begin(b);
}

/* A place in the network, by the host's default rules: what a sandbox without an egress list
 * has. */
static void take_network(struct build *b)
{
	struct depot *depot = b->order->depot;
	struct err e;
	int r = depot->net ? net_take(depot->net, NULL, NULL, &b->net, &e) : 0;

	if (r == -EAGAIN) {
		b->net_wait = (struct net_wait){.fn = network_ready, .arg = b};
		net_wait(depot->net, &b->net_wait);
		return;
	}
	if (r < 0)
		build_say(b, "there is no network for this build: %s", e.text);
	begin(b);
}

static void prepare_stage(struct build *b);

static void stage_ready(void *arg, const struct err *e, struct template *t)
{
	struct build *b = arg;
	struct build_stage *s = &b->stages[b->preparing];
	struct err mine;

	if (e) {
		fail(b, e);
		return;
	}
	s->doc = json_deep_copy(t->doc);
	snprintf(s->key, sizeof(s->key), "%s", t->bake);
	if (b->preparing == build_root_of(b->file))
		b->doc = s->root == BUILD_ROOT_TEMPLATE
		             ? template_heir(t, b->info.tenant, b->info.name, b->bake, 2)
		             : template_fresh(t, b->info.tenant, b->info.name, b->bake,
		                              b->info.memory_mb);
	if (!s->doc || (b->preparing == build_root_of(b->file) && !b->doc) ||
	    engine_image_copy(&t->image, &s->image) < 0) {
		err_nomem(&mine);
		fail(b, &mine);
		return;
	}
	b->preparing++;
	prepare_stage(b);
}

/* Loads (or bakes) what the stages begin with, one after the other. */
static void prepare_stage(struct build *b)
{
	struct dockerfile *f = b->file;

	for (; b->preparing < f->nstages; b->preparing++) {
		struct build_stage *s = &b->stages[b->preparing];
		autofree char *name = NULL;
		struct template *t;
		struct err e;

		if (!s->needed)
			continue;
		if (f->stages[b->preparing].from >= 0)
			continue;
		t = build_base_of(b, b->preparing, &name, &e);
		if (!t) {
			fail(b, &e);
			return;
		}
		if (!b->order->made_up)
			build_say(b, "%s %s",
			          f->stages[b->preparing].implied ? "COPY --from" : "FROM", name);
		template_ready(b->order->depot->templates, t, stage_ready, b);
		return;
	}
	take_network(b);
}

/* The oldest that may begin does. */
static void next_turn(struct builds *bs)
{
	struct build *next = NULL;
	size_t all = 0;

	if (bs->closing || bs->depot->closing)
		return;
	for (struct build *b = bs->newest; b; b = b->next) {
		size_t of_tenant = 0;

		all += b->begun && !over(b);
		if (b->begun || over(b))
			continue;
		for (struct build *o = bs->newest; o; o = o->next)
			of_tenant +=
			    o->begun && !over(o) && !strcmp(o->info.tenant, b->info.tenant);
		if (of_tenant < BUILDS_OF_TENANT)
			next = b; /* the last one found is the oldest */
	}
	if (!next || all >= BUILDS_AT_ONCE)
		return;
	next->begun = true;
	next->status = BUILD_RUNNING;
	next->deadline_ms = mono_ms() + (uint64_t)bs->depot->build_s * 1000;
	write_record(bs, next);
	prepare_stage(next); /* may end it, and so come here again */
}

/* What the last stage uses, and so on. */
static void mark_needed(struct build *b, size_t i)
{
	struct dockerfile *f = b->file;

	if (b->stages[i].needed)
		return;
	b->stages[i].needed = true;
	b->stages[i].image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	if (f->stages[i].from >= 0)
		mark_needed(b, (size_t)f->stages[i].from);
	for (size_t k = f->stages[i].first; k < f->stages[i].end; k++) {
		const struct docker_step *s = &f->steps[k];

		if (s->from >= 0)
			mark_needed(b, (size_t)s->from);
		for (size_t m = 0; m < s->nmounts; m++)
			if (s->mounts[m].from >= 0)
				mark_needed(b, (size_t)s->mounts[m].from);
	}
}

/* All that can be said at once. */
static int check(struct build *b, struct err *e)
{
	struct build_order *o = b->order;
	struct depot *depot = o->depot;
	unsigned memory_mb = o->info.memory_mb;
	int r = builds_too_many(templates_builds(depot->templates), o->info.tenant, e);

	if (r == 0)
		r = template_may_put(depot->templates, o->info.tenant, o->info.name, o->replace, e);
	if (r == 0)
		r = dockerfile_parse(o->dockerfile, o->dockerfile_len, &b->file, e);
	if (r == 0)
		r = build_globals(b, e);
	if (r < 0)
		return r;
	mark_needed(b, b->file->nstages - 1);
	for (size_t i = 0; i < b->file->nstages; i++) {
		autofree char *name = NULL;
		struct template *t;

		if (!b->stages[i].needed || b->file->stages[i].from >= 0)
			continue;
		t = build_base_of(b, i, &name, e);
		if (!t)
			return -e->code;
		memory_mb = memory_mb > t->memory_mb ? memory_mb : t->memory_mb;
		if (i != build_root_of(b->file))
			continue;
		b->info.memory_mb = o->info.memory_mb ? o->info.memory_mb : t->memory_mb;
		/* A machine that goes on has the size it had; another one needs a fresh boot. */
		b->reboot =
		    b->stages[i].root == BUILD_ROOT_TEMPLATE && b->info.memory_mb != t->memory_mb;
		b->info.cpu = t->cpu;
	}
	return depot->admit(depot->host, o->info.tenant, memory_mb, e);
}

int build_submit(struct build_order *o, struct build_info *ret, struct err *e)
{
	struct builds *bs = templates_builds(o->depot->templates);
	struct build *b = calloc(1, sizeof(*b));
	int r;

	if (!b) {
		build_order_free(o);
		return err_nomem(e);
	}
	b->order = o;
	b->info = o->info;
	b->log = b->wake = -1;
	b->info.started_ms = wall_ms();
	r = check(b, e);
	if (r == 0) {
		b->log = openat(o->dir, "log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (b->log < 0 || b->wake < 0)
			r = err_set(e, errno, "disk_full", "no place for a log: %s",
			            strerror(errno));
	}
	if (r < 0) {
		build_free(b);
		return r;
	}
	template_new_bake(b->bake);
	b->status = BUILD_QUEUED;
	if (o->info.memory_mb && o->info.memory_mb != b->info.memory_mb)
		build_say(b, "memory is that of the base: %u MiB", b->info.memory_mb);
	write_record(bs, b);
	b->next = bs->newest;
	bs->newest = b;
	*ret = b->info;
	ret->status = BUILD_QUEUED;
	next_turn(bs);
	return 0;
}

/* --- looking ---------------------------------------------------------------------------------- */

static struct build_info look(const struct build *b)
{
	struct build_info i = b->info;

	i.status = (enum build_status)b->status;
	return i;
}

void build_each(struct builds *bs, const char *tenant,
                bool (*fn)(void *arg, const struct build_info *b), void *arg)
{
	for (struct build *b = bs->newest; b; b = b->next) {
		struct build_info i = look(b);

		if ((!tenant || !strcmp(tenant, i.tenant)) && !fn(arg, &i))
			return;
	}
}

bool build_get(struct builds *bs, const char *tenant, const char *id, struct build_info *ret)
{
	for (struct build *b = bs->newest; b; b = b->next)
		if (!strcmp(b->info.id, id) && (!tenant || !strcmp(tenant, b->info.tenant))) {
			*ret = look(b);
			return true;
		}
	return false;
}

bool build_cancel(struct builds *bs, const char *tenant, const char *id)
{
	struct build *b = bs->newest;
	struct err e;

	while (b && (strcmp(b->info.id, id) != 0 || strcmp(b->info.tenant, tenant) != 0))
		b = b->next;
	if (!b)
		return false;
	if (over(b))
		return true;
	b->cancelled = true;
	if (b->begun) { /* the thread that works at it sees that */
		eventfd_write(b->wake, 1);
	} else {
		err_set(&e, ECANCELED, "build_failed", "the build was stopped by request");
		fail(b, &e);
	}
	return true;
}

int build_log(struct builds *bs, const char *id)
{
	char path[BUILD_ID + 16];

	snprintf(path, sizeof(path), "%.16s/log", id);
	return openat(bs->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}
