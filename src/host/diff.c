#include "host/diff.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/macro.h"
#include "base/pool.h"
#include "host/checkpoint.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "host/unified.h"
#include "host/upper.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "wire/guest.h"

enum {
	ASK_MS = 60 * 1000, /* a guest has so long to say what it has written */
	HASH_BYTES = 64,
};

/* The program panda-upper, made by meson from guest/upper/upper.c. */
extern const unsigned char panda_upper[];
extern const size_t panda_upper_len;

struct side {
	char id[SNAPSHOT_ID_MAX + 1]; /* as the caller knows it; "": the template */
	char sandbox[SANDBOX_ID + 1]; /* a running one: busy until we are done */
	char machine[SANDBOX_ID + 1];
	bool scratch, prepared, started; /* a machine of our own, from image or load */
	struct engine_image image;
	char load[SNAPSHOT_ID_MAX + 1];
	struct guest *guest;
	struct upper upper;
};

struct change {
	const char *path; /* into one of the uppers */
	enum upper_change change;
	struct upper_file from, to;
	bool conflict;
	char *text; /* unified */
};

struct diff {
	struct host *host;
	diff_done *done;
	void *arg;
	char tenant[TENANT_MAX + 1];
	struct side side[2]; /* from, to; of a merge: child, parent */
	bool unified, merge, theirs, dry, truncated;
	int64_t since_ns; /* merge: the fork */
	struct change *changes;
	size_t n, cap;
	uint64_t asked_ns;
	json_t *result;
	int r;
	struct err err;
};

/* --- asking a guest --------------------------------------------------------------------------- */

struct pile {
	char *p;
	size_t n, cap;
	bool full;
};

static void collect(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct pile *o = arg;

	if (chan != WIRE_OUT || o->full)
		return;
	if (o->n + n > o->cap) {
		size_t cap = MAX(2 * o->cap, o->n + n + 65536);
		char *bigger = cap > UPPER_BYTES_MAX ? NULL : realloc(o->p, cap);

		if (!bigger) {
			o->full = true;
			return;
		}
		o->p = bigger;
		o->cap = cap;
	}
	memcpy(o->p + o->n, p, n);
	o->n += n;
}

static void name_of_program(char ret[64])
{
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < panda_upper_len; i++)
		h = (h ^ panda_upper[i]) * 16777619u;
	snprintf(ret, 64, "/dev/.panda-upper-%08x", h);
}

/* Runs panda-upper, which is put there when it is missing: devices live in memory. */
static int ask(struct side *s, const char *verb, int in, struct pile *ret, struct err *e)
{
	char program[64];
	char *argv[] = {program, (char *)verb, NULL};
	struct guest_exec x = {.argv = argv,
	                       .output = collect,
	                       .arg = ret,
	                       .wait_output = true,
	                       .feed_stdin = in >= 0,
	                       .stdin_fd = in};
	struct guest_exit end;
	int r;

	name_of_program(program);
	guest_set_deadline(s->guest, ASK_MS);
	r = guest_exec_wait(s->guest, &x, &end, e);
	if (r == -ENOENT) {
		r = guest_write_file(s->guest, program, panda_upper, panda_upper_len, 0, 0700, e);
		if (r == 0)
			r = guest_exec_wait(s->guest, &x, &end, e);
	}
	if (r < 0)
		return err_prefix(e, "sandbox %s cannot say what it has written", s->id);
	if (end.signaled || end.code || ret->full)
		return err_set(e, EIO, "diff_failed", "sandbox %s cannot say what it has written%s",
		               s->id, end.code == 3 || ret->full ? ": it is too much" : "");
	return 0;
}

static int side_open(struct diff *d, struct side *s, struct err *e)
{
	struct machines *ms = &d->host->machines;
	struct engine_start start = {.id = s->machine,
	                             .tenant = d->tenant,
	                             .hostname = "diff",
	                             .image = &s->image,
	                             .cpu = -1,
	                             .prepared = s->prepared};
	struct pile pile = {0};
	int r = 0;

	if (!s->id[0])
		return 0;
	if (s->load[0])
		r = machine_load(ms, &d->host->store, s->load, false, &s->image, e);
	if (r == 0 && s->scratch)
		r = host_check_image(d->host, &s->image, e);
	if (r == 0 && s->scratch) {
		r = machine_start_guest(ms, &start, NULL, 1, NULL, &s->guest, e);
		s->started = r == 0;
		fault_at("diff.started");
	} else if (r == 0) {
		r = machine_guest(ms, s->machine, &s->guest, e);
	}
	if (r == 0)
		r = ask(s, "list", -1, &pile, e);
	if (r < 0) {
		free(pile.p);
		return r;
	}
	r = upper_parse(pile.p, pile.n, &s->upper);
	if (r < 0)
		return err_set(e, -r, "diff_failed", "sandbox %s does not say what it has written",
		               s->id);
	return 0;
}

static void side_close(struct diff *d, struct side *s)
{
	guest_free(s->guest);
	s->guest = NULL;
	if (s->scratch && (s->started || s->prepared))
		machine_remove(&d->host->machines, s->machine, NULL);
	engine_image_fini(&s->image);
}

/* --- comparing -------------------------------------------------------------------------------- */

static bool note(void *arg, const char *path, enum upper_change change,
                 const struct upper_file *from, const struct upper_file *to)
{
	struct diff *d = arg;

	if (d->n == d->cap) {
		size_t cap = d->cap ? 2 * d->cap : 64;
		void *p = d->n >= DIFF_CHANGES_MAX + DIFF_HASH_MAX
		              ? NULL
		              : reallocarray(d->changes, cap, sizeof(*d->changes));

		if (!p) {
			d->truncated = true;
			return false;
		}
		d->changes = p;
		d->cap = cap;
	}
	d->changes[d->n++] =
	    (struct change){.path = path, .change = change, .from = *from, .to = *to};
	return true;
}

/* The names of touched files, for panda-upper's stdin. */
static int write_names(const struct diff *d, struct err *e)
{
	autoclose int fd = memfd_create("diff", MFD_CLOEXEC);
	size_t asked = 0;
	int r = fd < 0 ? -errno : 0;

	for (size_t i = 0; r == 0 && i < d->n && asked < DIFF_HASH_MAX; i++)
		if (d->changes[i].change == UPPER_TOUCHED) {
			r = io_write_full(fd, d->changes[i].path, strlen(d->changes[i].path) + 1);
			asked++;
		}
	if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
		r = -errno;
	return r < 0 ? err_set(e, -r, "no_memory", "no memory") : take_fd(&fd);
}

static const char *next_hash(struct pile *p, size_t *at)
{
	const char *s = p->p + *at, *end = *at < p->n ? memchr(s, 0, p->n - *at) : NULL;

	if (!end)
		return NULL;
	*at += (size_t)(end + 1 - s);
	return s;
}

/* Same size, other time: what is in them? */
static int settle_touched(struct diff *d, struct err *e)
{
	struct pile pile[2] = {0};
	size_t at[2] = {0}, asked = 0, kept = 0;
	int r = 0;

	for (size_t i = 0; i < d->n; i++)
		asked += d->changes[i].change == UPPER_TOUCHED;
	if (!asked)
		return 0;
	for (int k = 0; r == 0 && k < 2; k++) {
		autoclose int names = -1;
		/* The template's own content can be read on the other side, if it was not touched;
		 * here it was, so against the template touched is changed. */
		if (!d->side[k].guest)
			continue;
		names = write_names(d, e);
		r = names < 0 ? names : ask(&d->side[k], "hash", names, &pile[k], e);
	}
	for (size_t i = 0; r == 0 && i < d->n; i++) {
		struct change *c = &d->changes[i];

		if (c->change == UPPER_TOUCHED) {
			const char *x = next_hash(&pile[0], &at[0]),
				   *y = next_hash(&pile[1], &at[1]);

			if (x && y && strlen(x) == HASH_BYTES && !strcmp(x, y))
				continue;
			c->change = UPPER_CHANGED;
		}
		d->changes[kept++] = *c;
	}
	if (r == 0)
		d->n = kept;
	free(pile[0].p);
	free(pile[1].p);
	return r;
}

static void add_text(struct diff *d, struct change *c)
{
	autofree char *a = NULL, *b = NULL;
	size_t na = 0, nb = 0;

	if (!d->side[0].guest || !d->side[1].guest || c->from.type != 'f' || c->to.type != 'f' ||
	    c->from.size > DIFF_TEXT_BYTES || c->to.size > DIFF_TEXT_BYTES)
		return;
	if (guest_read_file(d->side[0].guest, c->path, DIFF_TEXT_BYTES, &a, &na, NULL) == 0 &&
	    guest_read_file(d->side[1].guest, c->path, DIFF_TEXT_BYTES, &b, &nb, NULL) == 0)
		unified_diff(a, na, b, nb, &c->text);
}

/* --- telling ---------------------------------------------------------------------------------- */

static const char *word_of(char type)
{
	return type == 'f' ? "file" : type == 'l' ? "symlink" : type == 'd' ? "directory" : "other";
}

/* Names that are no UTF-8 are told with their bad bytes replaced. */
static json_t *path_json(const char *path)
{
	json_t *j = json_string(path);
	autofree char *copy = j ? NULL : strdup(path);

	for (char *p = copy; p && *p; p++)
		if ((unsigned char)*p >= 128)
			*p = '?';
	return j ? j : json_string(copy ? copy : "?");
}

static json_t *change_json(const struct change *c)
{
	const struct upper_file *f = c->change == UPPER_REMOVED ? &c->from : &c->to;
	char mode[16];
	json_t *j;

	snprintf(mode, sizeof(mode), "%04o", f->mode);
	j = json_pack("{s:o, s:s, s:I, s:s}", "path", path_json(c->path), "type", word_of(f->type),
	              "size", (json_int_t)f->size, "mode", mode);
	if (j && c->change == UPPER_CHANGED) {
		snprintf(mode, sizeof(mode), "%04o", c->from.mode);
		json_object_set_new(j, "was",
		                    json_pack("{s:s, s:I, s:s}", "type", word_of(c->from.type),
		                              "size", (json_int_t)c->from.size, "mode", mode));
		if (c->text)
			json_object_set_new(j, "unified",
			                    json_sprintf("--- a%s\n+++ b%s\n%s", c->path, c->path,
			                                 c->text));
	}
	return j;
}

static json_t *tell(struct diff *d)
{
	static const char *const names[] = {"added", "changed", "removed"};
	json_t *lists[3] = {json_array(), json_array(), json_array()};
	json_t *j;

	for (size_t i = 0; i < d->n; i++) {
		if (i >= DIFF_CHANGES_MAX) {
			d->truncated = true;
			break;
		}
		json_array_append_new(lists[d->changes[i].change], change_json(&d->changes[i]));
	}
	j = json_pack("{s:s, s:s, s:b, s:f}", "from", d->side[0].id, "to", d->side[1].id,
	              "truncated", d->truncated, "took_ms",
	              (double)(mono_ns() - d->asked_ns) / 1e6);
	for (int k = 0; k < 3; k++)
		json_object_set_new(j, names[k], lists[k]);
	return j;
}

/* --- the work --------------------------------------------------------------------------------- */

static int merge_changes(struct diff *d, struct err *e);

static void diff_work(void *arg)
{
	struct diff *d = arg;
	size_t texts = 0;
	int r = 0;

	for (int k = 0; r == 0 && k < 2; k++)
		r = side_open(d, &d->side[k], &d->err);
	if (r == 0) {
		upper_compare(&d->side[0].upper, &d->side[1].upper, note, d);
		r = settle_touched(d, &d->err);
	}
	for (size_t i = 0; r == 0 && d->unified && i < d->n && texts < DIFF_TEXTS_MAX; i++)
		if (d->changes[i].change == UPPER_CHANGED) {
			add_text(d, &d->changes[i]);
			texts++;
		}
	if (r == 0 && d->merge)
		r = merge_changes(d, &d->err);
	else if (r == 0)
		d->result = tell(d);
	if (r == 0 && !d->result)
		r = err_nomem(&d->err);
	for (int k = 0; k < 2; k++)
		side_close(d, &d->side[k]);
	d->r = r;
}

static void diff_free(struct diff *d)
{
	for (int k = 0; k < 2; k++) {
		upper_fini(&d->side[k].upper);
		engine_image_fini(&d->side[k].image);
	}
	for (size_t i = 0; i < d->n; i++)
		free(d->changes[i].text);
	free(d->changes);
	free(d);
}

static void diff_over(void *arg)
{
	struct diff *d = arg;

	for (int k = 0; k < 2; k++) {
		const char *id = d->side[k].sandbox;
		struct sandbox *sb = *id ? host_find(d->host, NULL, id) : NULL;

		if (sb)
			sb->diffs--;
		if (*id)
			host_idle(d->host, id);
	}
	d->done(d->arg, d->r < 0 ? &d->err : NULL, d->r < 0 ? NULL : d->result);
	diff_free(d);
}

/* Every side that sleeps is woken, one after the other, then the work begins. */
static void diff_next(void *arg, const struct err *e, struct sandbox *woken)
{
	struct diff *d = arg;
	int r = 0;

	if (e) {
		d->err = *e;
		d->r = -e->code;
		for (int k = 0; k < 2; k++) /* made ahead, and not needed */
			if (d->side[k].prepared)
				machine_remove(&d->host->machines, d->side[k].machine, NULL);
		diff_over(d);
		return;
	}
	for (int k = 0; r == 0 && k < 2; k++) {
		struct side *s = &d->side[k];
		struct sandbox *sb = s->sandbox[0] ? host_find(d->host, NULL, s->sandbox) : NULL;

		if (!s->sandbox[0])
			continue;
		if (!sb)
			r = err_set(&d->err, ENOENT, "sandbox_not_found", "there is no sandbox %s",
			            s->sandbox);
		else if (sb->state != SANDBOX_RUNNING && sb != woken) {
			host_wake(d->host, sb, diff_next, d);
			return;
		} else {
			r = sandbox_need_running(sb, &d->err);
			memcpy(s->machine, sb->machine, sizeof(s->machine));
		}
	}
	if (r == 0 && pool_submit_for(d->host->pool, d->tenant, diff_work, diff_over, d) < 0)
		r = err_nomem(&d->err);
	if (r < 0) {
		struct err mine = d->err;

		diff_next(d, &mine, NULL);
	}
}

static struct diff *diff_new(struct host *h, diff_done *done, void *arg)
{
	struct diff *d = calloc(1, sizeof(*d));
	struct err e;

	if (!d) {
		err_nomem(&e);
		done(arg, &e, NULL);
		return NULL;
	}
	d->host = h;
	d->done = done;
	d->arg = arg;
	d->asked_ns = mono_ns();
	for (int k = 0; k < 2; k++)
		d->side[k].image.state = -1;
	return d;
}

/* Each holds a thread for as long as its guests take to answer: there may be only so many. */
static int take_sandbox(struct diff *d, struct side *s, struct sandbox *sb, struct err *e)
{
	if (sb->diffs >= DIFFS_AT_ONCE)
		return err_set(
		    e, EAGAIN, "too_many",
		    "%d diffs and merges of sandbox %s are at work: wait for one of them",
		    DIFFS_AT_ONCE, sb->id);
	sb->diffs++;
	snprintf(s->id, sizeof(s->id), "%s", sb->id);
	memcpy(s->sandbox, sb->id, sizeof(s->sandbox));
	memcpy(d->tenant, sb->tenant, sizeof(d->tenant));
	host_busy(d->host, sb);
	return 0;
}

static int take_other(struct diff *d, struct side *s, struct sandbox *sb, const char *other,
                      struct err *e)
{
	struct sandbox *osb = host_find(d->host, sb->tenant, other);
	struct checkpoint *c = osb ? NULL : checkpoint_find(sb, other, 0, NULL);
	struct host_snapshot snap = {.id = ""};
	const char *template = sb->spec.template;

	if (osb) {
		template = osb->spec.template;
	} else if (!c) {
		if (host_snapshot_get(d->host, sb->tenant, other, &snap, e) < 0)
			return err_set(e, ENOENT, "not_found",
			               "there is no sandbox, no snapshot, and no checkpoint of "
			               "sandbox %s with the id '%.64s'",
			               sb->id, other);
		template = snap.template;
	}
	if (strcmp(template, sb->spec.template) != 0)
		return err_set(e, EBUSY, "conflict",
		               "%s is made from the template %s, sandbox %s from %s: only those of "
		               "the same template can be compared",
		               other, template, sb->id, sb->spec.template);
	if (osb)
		return take_sandbox(d, s, osb, e);
	snprintf(s->id, sizeof(s->id), "%s", c ? c->id : snap.id);
	if (c && engine_image_copy(&c->image, &s->image) < 0)
		return err_nomem(e);
	if (!c)
		snprintf(s->load, sizeof(s->load), "%s", snap.id);
	s->scratch = true;
	host_take_id(d->host, s->machine, &s->prepared);
	return 0;
}

void host_diff(struct host *h, struct sandbox *sb, const struct diff_options *o, diff_done *done,
               void *arg)
{
	struct diff *d = diff_new(h, done, arg);
	struct err e;
	int r;

	if (!d)
		return;
	d->unified = o->unified;
	r = take_sandbox(d, &d->side[o->to_other ? 0 : 1], sb, &e);
	if (r == 0 && o->other)
		r = take_other(d, &d->side[o->to_other ? 1 : 0], sb, o->other, &e);
	diff_next(d, r < 0 ? &e : NULL, NULL);
}

/* --- merge ------------------------------------------------------------------------------------ */

/* One file, link or directory of the child, as it is there. */
static int bring(struct diff *d, const struct change *c, struct err *e)
{
	struct guest *from = d->side[0].guest, *to = d->side[1].guest;
	const struct upper_entry *x = upper_find(&d->side[0].upper, c->path, strlen(c->path));
	autoclose int fd = -1;
	int r;

	if (c->from.type == '-') {
		r = guest_remove(to, c->path, true, e);
		return r == -ENOENT ? 0 : r; /* it went with its directory */
	}
	if (c->to.type != '-' && c->to.type != c->from.type) {
		r = guest_remove(to, c->path, true, e);
		if (r < 0)
			return r;
	}
	switch (c->from.type) {
	case 'd':
		r = guest_mkdir(to, c->path, c->from.mode, true, e);
		return r == -EEXIST ? 0 : r;
	case 'l':
		if (c->to.type == 'l')
			guest_remove(to, c->path, false, NULL);
		return guest_symlink(to, x ? x->target : "", c->path, e);
	case 'f':
		fd = memfd_create("merge", MFD_CLOEXEC);
		if (fd < 0)
			return err_set(e, errno, "no_memory", "no memory");
		r = guest_read_to_fd(from, c->path, fd, MERGE_FILE_BYTES, e);
		if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
			r = -errno;
		return r < 0 ? r
		             : guest_write_from_fd(to, c->path, fd, WIRE_WRITE_PARENTS,
		                                   c->from.mode, e);
	default:
		return 0; /* sockets and fifos are of no use elsewhere */
	}
}

/* Was it written there since the fork, by itself or with the directory above that went? */
static bool written_since(const struct upper *u, const char *path, int64_t since_ns)
{
	const struct upper_entry *x = upper_find(u, path, strlen(path));

	for (const char *p = strchr(path + 1, '/'); !x && p; p = strchr(p + 1, '/')) {
		x = upper_find(u, path, (size_t)(p - path));
		if (x && x->now.type == 'd')
			x = NULL;
	}
	return x && x->ctime_ns >= since_ns;
}

/*
 * What was never the template's leaves no trace when it goes: the parent has it still, as it was
 * at the fork. If the parent has changed it since, it counts as the parent's own and stays.
 */
static bool went_since(const struct diff *d, const struct change *c)
{
	const struct upper_entry *x = upper_find(&d->side[1].upper, c->path, strlen(c->path));

	return c->from.type == '-' && x && x->ctime_ns < d->since_ns;
}

/* from is the child, to the parent: what differs and was written in the child is to be brought. */
static int merge_changes(struct diff *d, struct err *e)
{
	json_t *lists[3] = {json_array(), json_array(), json_array()}, *conflicts = json_array();
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < d->n; i++) {
		struct change *c = &d->changes[i];

		if (!written_since(&d->side[0].upper, c->path, d->since_ns) && !went_since(d, c))
			continue; /* only the parent did something here */
		c->conflict = written_since(&d->side[1].upper, c->path, d->since_ns) &&
		              (c->from.type != 'd' || c->to.type != 'd');
		if (c->conflict)
			json_array_append_new(conflicts, path_json(c->path));
		if (c->from.type == 'f' && c->from.size > MERGE_FILE_BYTES)
			r = err_set(e, E2BIG, "too_large", "%.120s is larger than %d MiB", c->path,
			            MERGE_FILE_BYTES >> 20);
		d->changes[n++] = *c;
	}
	for (size_t i = n; i < d->n; i++)
		d->changes[i].text = NULL;
	d->n = n;
	if (r == 0 && (n > MERGE_FILES_MAX || d->truncated))
		r = err_set(e, E2BIG, "too_large",
		            "there are more than %d changes: copy them as an archive",
		            MERGE_FILES_MAX);
	d->dry = d->dry || (json_array_size(conflicts) && !d->theirs);
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct change *c = &d->changes[i];
		/* The diff is from child to parent: what the parent lacks is added there. */
		int list = c->from.type == '-' ? 2 : c->to.type == '-' ? 0 : 1;

		json_array_append_new(lists[list], path_json(c->path));
		if (!d->dry)
			r = bring(d, c, e);
		if (r < 0)
			err_prefix(e, "cannot bring %.80s over", c->path);
	}
	if (r == 0)
		d->result =
		    json_pack("{s:s, s:s, s:b, s:O, s:O, s:O, s:O}", "parent_id", d->side[1].id,
		              "child_id", d->side[0].id, "applied", !d->dry, "added", lists[0],
		              "changed", lists[1], "removed", lists[2], "conflicts", conflicts);
	for (int k = 0; k < 3; k++)
		json_decref(lists[k]);
	json_decref(conflicts);
	return r;
}

void host_merge(struct host *h, struct sandbox *parent, const char *child, bool theirs, bool dry,
                diff_done *done, void *arg)
{
	struct sandbox *sb = host_find(h, parent->tenant, child);
	struct diff *d;
	struct err e;
	int r;

	if (!sb || strcmp(sb->parent, parent->id) != 0) {
		err_set(&e, sb ? EBUSY : ENOENT, sb ? "conflict" : "sandbox_not_found",
		        "there is no child %.40s of sandbox %s", child, parent->id);
		done(arg, &e, NULL);
		return;
	}
	d = diff_new(h, done, arg);
	if (!d)
		return;
	d->merge = true;
	d->theirs = theirs;
	d->dry = dry;
	d->since_ns = (int64_t)sb->created_ms * 1000000;
	r = take_sandbox(d, &d->side[0], sb, &e);
	if (r == 0)
		r = take_sandbox(d, &d->side[1], parent, &e);
	diff_next(d, r < 0 ? &e : NULL, NULL);
}
