/*
 * core/bake.c - from a template to a machine at rest, that sandboxes start from
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "core/tail.h"
#include "core/template_internal.h"
#include "layers/digest.h"

enum {
	WARM_MS = 10 * 60 * 1000, /* one command of a warm-up */
	READY_MS = 60 * 1000,
	PRELUDE_MAX = 32 * 1024, /* fits into a pipe */
};

static const char *upper_of(const struct host *h, const json_t *doc)
{
	return text_of(doc, "upper", h->config.upper_image ? h->config.upper_image : "");
}

/* Everything a bake is made from: another image, kernel or description is another bake. */
int bake_name(struct host *h, const struct template *t, char ret[SNAPSHOT_ID_MAX + 1],
              struct err *e)
{
	const char *files[] = {text_of(t->doc, "image", ""), upper_of(h, t->doc)};
	autofree char *doc = json_dumps(t->doc, JSON_COMPACT | JSON_SORT_KEYS);
	autofree char *all = NULL;
	char digest[DIGEST_TEXT], stamps[256] = "";
	const struct engine_kind *kind;
	struct digest d;
	struct stat st;

	if (json_object_get(t->doc, "snapshot")) {
		snprintf(ret, SNAPSHOT_ID_MAX + 1, "%s", text_of(t->doc, "snapshot", ""));
		return 0;
	}
	kind = engine_kind(h->engine, text_of(t->doc, "engine", ""), e);
	if (!kind)
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
	if (!doc || asprintf(&all, "%s%s %s %s", doc, stamps, kind->name, kind->kernel) < 0) {
		all = NULL;
		return err_set(e, ENOMEM, "no_memory", "no memory");
	}
	if (digest_bytes(all, strlen(all), &d) < 0)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	digest_text(&d, digest);
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "tpl-%.40s", digest);
	return 0;
}

struct bake {
	struct templates *templates;
	struct template *template;
	json_t *doc;
	char name[SNAPSHOT_ID_MAX + 1], machine[ENGINE_ID_MAX + 1];
	uint64_t memory_size, began_ms;
	struct engine_image image;
	bool made;
	int r;
	struct err err;
};

static void keep_tail(void *arg, uint8_t chan, const void *p, size_t n)
{
	(void)chan;
	tail_keep(arg, p, n);
}

static int run_in(struct guest *g, const char *script, const char *cwd, uint64_t timeout_ms,
                  struct err *e)
{
	struct tail tail = {.n = 0};
	struct guest_exec x = {.script = script,
	                       .cwd = cwd,
	                       .timeout_ms = timeout_ms,
	                       .output = keep_tail,
	                       .arg = &tail};
	struct guest_exit end;
	int r = guest_exec_wait(g, &x, &end, e);

	if (r < 0 || (!end.signaled && !end.timed_out && end.code == 0))
		return r;
	return err_set(e, EIO, "template_unusable", "'%.60s' %s %d: %s", script,
	               end.timed_out  ? "took too long, signal"
	               : end.signaled ? "was ended by signal"
	                              : "failed with",
	               end.code, tail_text(&tail));
}

/* Watches for the end of a cell. */
struct cell {
	int said; /* eventfd */
	char line[256];
	size_t n;
};

static void watch_cell(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct cell *c = arg;

	for (const char *s = p; chan == WIRE_OUT && n; s++, n--) {
		if (*s != '\n') {
			if (c->n < sizeof(c->line) - 1)
				c->line[c->n++] = *s;
			continue;
		}
		c->line[c->n] = 0;
		c->n = 0;
		if (strstr(c->line, "\"done\""))
			eventfd_write(c->said, 1);
	}
}

static void leave_cell(void *arg, struct guest_call *call)
{
	guest_cancel(call); /* only our attachment: it runs on */
}

/*
 * The resident interpreter of a template whose commands are cells: it has run the prelude when the
 * machine is frozen, so every sandbox begins with it. Its stdin stays open.
 */
static int start_session(struct guest *g, const json_t *doc, struct err *e)
{
	AUTO(json_decrefp)
	json_t *cell = json_pack("{s:s, s:s, s:b}", "id", "prelude", "code",
	                         text_of(doc, "prelude", ""), "bake", 1);
	autofree char *text = cell ? json_dumps(cell, JSON_COMPACT) : NULL, *frame = NULL;
	char *argv[] = {"python3", "/usr/lib/panda/repl.py", "--session", "default", NULL};
	autoclose int said = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), in = -1, out = -1;
	struct cell watch = {.said = said};
	struct guest_exec x = {.argv = argv,
	                       .cwd = text_of(doc, "workdir", "/"),
	                       .feed_stdin = true,
	                       .output = watch_cell,
	                       .wakeable = true,
	                       .wake = leave_cell,
	                       .wake_fd = said,
	                       .arg = &watch};
	struct guest_attach at = {0};
	struct guest_exit end;
	int pipe_fds[2], r;

	if (!text || said < 0 || asprintf(&frame, "%zu\n%s", strlen(text), text) < 0 ||
	    pipe2(pipe_fds, O_CLOEXEC) < 0)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	in = pipe_fds[0];
	out = pipe_fds[1]; /* open until we are done: its end would be the interpreter's */
	if (strlen(frame) > PRELUDE_MAX)
		return err_set(e, E2BIG, "template_unusable", "its prelude is longer than %d bytes",
		               PRELUDE_MAX);
	r = io_write_full(out, frame, strlen(frame));
	if (r < 0)
		return err_set(e, -r, "no_memory", "cannot write to a pipe");
	x.stdin_fd = in;
	r = guest_exec_start(g, &x, &at.id, e);
	if (r < 0)
		return r;
	guest_set_deadline(g, WARM_MS);
	r = guest_exec_attach(g, &at, &x, &end, e);
	guest_set_deadline(g, 0);
	if (r == -ECANCELED)
		return 0;
	return r < 0 ? r
	             : err_set(e, EIO, "template_unusable", "its interpreter ended with %d",
	                       end.code);
}

int template_warm(struct host *h, const char *machine, const json_t *doc, struct err *e)
{
	struct guest *g = NULL;
	const json_t *warm;
	const char *cwd = text_of(doc, "workdir", "/"), *ready = text_of(doc, "ready", NULL);
	struct wire_file f;
	size_t i;
	int r = machine_guest(&h->machines, machine, &g, e);

	if (r < 0)
		return r;
	guest_set_deadline(g, READY_MS);
	r = guest_mkdir(g, "/workspace", 0755, true, e);
	/* A shell that has run once is in memory for all that come after. An image may have none.
	 */
	if (r == 0 && guest_stat(g, "/bin/sh", true, &f, NULL) == 0)
		r = run_in(g, "true", "/", READY_MS, e);
	guest_set_deadline(g, 0); /* warming up takes as long as it takes */
	json_array_foreach(json_object_get(doc, "warm"), i,
	                   warm) if (r == 0 && json_is_string(warm)) r =
	    run_in(g, json_string_value(warm), cwd, WARM_MS, e);
	if (r == 0 && !strcmp(text_of(doc, "runner", "shell"), "python"))
		r = start_session(g, doc, e);
	if (r == 0 && ready && ready[0])
		r = run_in(g, ready, cwd, READY_MS, e);
	if (r == 0)
		r = guest_sync(g, e);
	guest_free(g);
	return r;
}

static int make_bake(struct bake *b, struct err *e)
{
	struct host *h = b->templates->host;
	AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
	AUTO(engine_image_fini) struct engine_image baked = ENGINE_IMAGE_EMPTY;
	struct engine_start s = {.id = b->machine, .image = &cold, .cpu = -1};
	int r;

	r = engine_image_cold(b->memory_size, text_of(b->doc, "image", ""), upper_of(h, b->doc),
	                      &cold, e);
	if (r < 0)
		return r;
	cold.kind = engine_kind(h->engine, text_of(b->doc, "engine", ""), e);
	if (!cold.kind)
		return -ENOTSUP;
	s.cpus = (unsigned)json_integer_value(json_object_get(b->doc, "cpu"));
	r = machine_start(&h->machines, &s, NULL, 1, NULL, e);
	if (r < 0)
		return r;
	fault_at("bake.booted");
	r = template_warm(h, b->machine, b->doc, e);
	if (r == 0)
		r = machine_snapshot(&h->machines, b->machine, &baked, NULL, e);
	fault_at("bake.sealed");
	if (r == 0)
		r = machine_save(&h->machines, &baked, &h->store, b->name, NULL, e);
	fault_at("bake.saved");
	machine_remove(&h->machines, b->machine, NULL);
	return r;
}

static void bake_work(void *arg)
{
	struct bake *b = arg;
	struct host *h = b->templates->host;

	b->r = machine_load(&h->machines, &h->store, b->name, false, &b->image, &b->err);
	if (b->r < 0 && json_object_get(b->doc, "snapshot")) {
		err_prefix(&b->err, "save or build it again");
		b->err.kind = "template_unusable";
	} else if (b->r < 0) { /* damaged or of another format: made anew */
		snapshot_delete(&h->store, b->name, NULL);
		b->made = true;
		b->r = make_bake(b, &b->err);
		if (b->r == 0)
			b->r = machine_load(&h->machines, &h->store, b->name, false, &b->image,
			                    &b->err);
	}
}

static void bake_done(void *arg)
{
	struct bake *b = arg;
	struct template *t = b->template;
	struct template_waiter *w = t->waiters;
	struct host *h = b->templates->host;

	t->baking = false;
	t->waiters = NULL;
	if (b->r == 0) {
		engine_image_fini(&t->image);
		t->image = b->image;
		t->loaded = true;
		snprintf(t->bake, sizeof(t->bake), "%s", b->name);
		if (b->made)
			log_info("template baked template=%s bake=%s took_ms=%llu", t->name,
			         t->bake, (unsigned long long)(mono_ms() - b->began_ms));
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
	if (b->templates->stale) {
		b->templates->stale = false;
		templates_reload(b->templates, NULL);
	}
	json_decref(b->doc);
	free(b);
	host_fill_spare(h);
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
		err_set(&e, ENOMEM, "no_memory", "no memory");
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
	t->baking = true;
	r = bake_name(ts->host, t, b->name, &b->err);
	if (r == 0 && pool_submit(ts->host->pool, bake_work, bake_done, b) < 0)
		r = err_set(&b->err, ENOMEM, "no_memory", "no memory");
	if (r < 0) { /* otherwise b is the pool's now */
		b->r = r;
		bake_done(b);
	}
}
