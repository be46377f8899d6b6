#include "host/rewind.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/uuid.h"
#include "host/host_internal.h"

/* --- the list --------------------------------------------------------------------------------- */

bool checkpoint_thinned(uint64_t newest, uint64_t serial)
{
	uint64_t age = newest - serial, every = 1;

	for (uint64_t reach = CHECKPOINTS_RECENT; age >= reach && every < (uint64_t)1 << 32;
	     reach *= 2)
		every *= 2;
	return serial % every != 0;
}

void history_check(const struct history *y)
{
	uint64_t bytes = 0, serial = y->serial + 1;
	size_t n = 0, named = 0;

	for (const struct checkpoint *c = y->newest; c; c = c->older, n++) {
		assert(c->serial > 0 && c->serial < serial);
		assert(c->image.state >= 0 && c->image.engine);
		serial = c->serial;
		bytes += c->bytes;
		named += c->name[0] != 0;
	}
	assert(n == y->n && bytes == y->bytes);
	assert(n <= CHECKPOINTS_MAX && named <= CHECKPOINTS_NAMED_MAX);
	assert(!y->untouched || y->newest);
}

static void free_list(void *arg)
{
	struct checkpoint *c = arg;

	while (c) {
		struct checkpoint *older = c->older;

		engine_image_fini(&c->image);
		json_decref(c->volumes);
		free(c);
		c = older;
	}
}

static void freed(void *arg)
{
}

/* Closing a layer frees its pages, maybe many: not on the loop. */
static void free_later(struct host *h, struct checkpoint *list)
{
	for (struct checkpoint *c = list; c; c = c->older)
		h->checkpoints--;
	if (list && (h->depot.closing || pool_submit(h->pool, free_list, freed, list) < 0))
		free_list(list);
}

static void cut(struct history *y, struct checkpoint **p, struct checkpoint **list)
{
	struct checkpoint *c = *p;

	*p = c->older;
	y->n--;
	y->bytes -= c->bytes;
	c->older = *list;
	*list = c;
}

/* The oldest one without a name, or the oldest of all. */
static struct checkpoint **oldest(struct history *y)
{
	struct checkpoint **found = NULL, **p;

	for (p = &y->newest; *p; p = &(*p)->older)
		if (!(*p)->name[0] || !found)
			found = p;
	return found;
}

static void thin(struct host *h, struct history *y)
{
	struct checkpoint *list = NULL, **p = &y->newest;

	while (*p)
		if (!(*p)->name[0] && checkpoint_thinned(y->serial, (*p)->serial))
			cut(y, p, &list);
		else
			p = &(*p)->older;
	while (y->n > CHECKPOINTS_MAX || (y->n > 1 && y->bytes > CHECKPOINT_BYTES_MAX))
		cut(y, oldest(y), &list);
	free_later(h, list);
	history_check(y);
}

void history_drop(struct sandbox *sb, const char *lost)
{
	struct history *y = sb->history;

	sb->history = NULL;
	if (!y)
		return;
	if (y->n)
		sb->history_lost = lost;
	free_later(sb->host, y->newest);
	free(y);
}

void history_touch(struct sandbox *sb)
{
	if (sb->history)
		sb->history->untouched = false;
}

struct checkpoint *checkpoint_find(struct sandbox *sb, const char *to, unsigned steps,
                                   struct err *e)
{
	struct checkpoint *c = sb->history ? sb->history->newest : NULL;
	bool any = c != NULL;

	if (to) {
		while (c && strcmp(c->id, to) != 0 && strcmp(c->name, to) != 0)
			c = c->older;
	} else {
		/* Where it has just been put back to is no step. */
		if (c && sb->history->untouched)
			c = c->older;
		while (c && --steps)
			c = c->older;
	}
	if (c)
		return c;
	if (!any && sb->history_lost)
		err_set(e, ENOENT, "checkpoint_not_found",
		        "sandbox %s has no checkpoints any more: they were dropped when %s", sb->id,
		        sb->history_lost);
	else if (!any)
		err_set(e, ENOENT, "checkpoint_not_found",
		        "sandbox %s has no checkpoints: take one (POST .../checkpoints), or have "
		        "them taken (\"checkpoints\": \"auto\")",
		        sb->id);
	else if (to)
		err_set(e, ENOENT, "checkpoint_not_found",
		        "sandbox %s has no checkpoint '%.64s': GET .../checkpoints lists those "
		        "there are",
		        sb->id, to);
	else
		err_set(e, ENOENT, "checkpoint_not_found",
		        "sandbox %s has no checkpoint so many steps back: GET .../checkpoints "
		        "lists those there are",
		        sb->id);
	return NULL;
}

int host_checkpoint_delete(struct host *h, struct sandbox *sb, const char *id, struct err *e)
{
	struct checkpoint *c = checkpoint_find(sb, id, 0, e), **p, *list = NULL;

	if (!c)
		return -e->code;
	if (sb->ops) /* it may be read right now */
		return err_set(e, EBUSY, "sandbox_busy",
		               "sandbox %s is being worked on: try again in a moment", sb->id);
	for (p = &sb->history->newest; *p != c; p = &(*p)->older)
		;
	if (c == sb->history->newest)
		sb->history->untouched = false;
	cut(sb->history, p, &list);
	free_later(h, list);
	history_check(sb->history);
	return 0;
}

int host_set_checkpoints(struct host *h, struct sandbox *sb, bool automatic, struct err *e)
{
	bool had = sb->spec.checkpoints;
	int r;

	sb->spec.checkpoints = automatic;
	r = record_update(sb, e);
	if (r < 0)
		sb->spec.checkpoints = had;
	return r;
}

/* --- taking one ------------------------------------------------------------------------------- */

struct taking {
	struct op op;
	struct host *host;
	checkpoint_taken *done; /* by hand */
	void (*go)(void *arg);  /* before a command */
	void *arg;
	char machine[SANDBOX_ID + 1];
	struct checkpoint *c;             /* ours until it is in the list */
	const struct engine_image *older; /* of the list: nobody changes it in our turn */
	int r;
	struct err err;
};

static uint64_t bytes_of(const struct layer *l)
{
	struct stat st;

	return fstat(l->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Layers that both have are kept once: each costs a file. Returns the bytes of the others. */
static uint64_t share_layers(struct set *mine, const struct set *older)
{
	struct {
		dev_t dev;
		ino_t ino;
	} have[ENGINE_LAYERS_MAX];
	size_t n = older ? MIN(older->n, (size_t)ENGINE_LAYERS_MAX) : 0;
	uint64_t bytes = 0;
	struct stat st;

	for (size_t i = 0; i < n; i++) {
		bool ok = fstat(older->at[i]->fd, &st) == 0;

		have[i].dev = ok ? st.st_dev : 0;
		have[i].ino = ok ? st.st_ino : 0;
	}
	for (size_t i = 0; i < mine->n; i++) {
		size_t k = 0;

		if (fstat(mine->at[i]->fd, &st) < 0)
			continue;
		while (k < n && (have[k].ino != st.st_ino || have[k].dev != st.st_dev))
			k++;
		if (k < n) {
			layer_unref(mine->at[i]);
			mine->at[i] = layer_ref(older->at[k]);
		} else if (older || (i > 0 && i == mine->n - 1)) {
			bytes += bytes_of(mine->at[i]); /* the first one's base is the template's */
		}
	}
	return bytes;
}

static void take_work(void *arg)
{
	struct taking *t = arg;
	struct checkpoint *c = t->c;
	struct engine_snapshot_info info = {0};

	t->r = machine_snapshot(&t->host->machines, t->machine, &c->image, &info, &t->err);
	fault_at("checkpoint.sealed");
	if (t->r < 0)
		return;
	c->stop_ns = info.stop_ns;
	c->bytes = share_layers(&c->image.memory, t->older ? &t->older->memory : NULL);
	for (size_t d = 0; d < c->image.ndisks; d++) {
		const struct set *older =
		    t->older && d < t->older->ndisks ? &t->older->disks[d].layers : NULL;
		uint64_t bytes = share_layers(&c->image.disks[d].layers, older);

		c->bytes += c->image.disks[d].read_only ? 0 : bytes;
	}
}

static void take_over(struct taking *t, const struct err *e)
{
	if (t->done)
		t->done(t->arg, e, e ? NULL : t->op.sb->history->newest);
	op_end(&t->op);
	if (t->go)
		t->go(t->arg);
	free_list(t->c);
	free(t);
}

static void take_done(void *arg)
{
	struct taking *t = arg;
	struct sandbox *sb = t->op.sb;
	struct host *h = t->host;
	struct history *y = sb->history;

	if (t->r < 0) {
		if (t->go)
			log_warn("no checkpoint before a command sandbox=%s why=\"%s\"", sb->id,
			         t->err.text);
		take_over(t, &t->err);
		return;
	}
	t->c->serial = ++y->serial;
	t->c->created_ms = wall_ms();
	t->c->generation = sb->generation;
	t->c->volumes = json_incref(sb->spec.volumes);
	t->c->older = y->newest;
	y->newest = take_ptr(t->c);
	y->n++;
	y->bytes += y->newest->bytes;
	y->untouched = false;
	h->checkpoints++;
	h->stats.checkpoints++;
	thin(h, y);
	take_over(t, NULL);
}

/* The next pandad shall know that there were some. */
static int note_first(struct sandbox *sb, struct err *e)
{
	int r = 0;

	if (!sb->checkpointed) {
		sb->checkpointed = true;
		r = record_update(sb, e);
		if (r < 0)
			sb->checkpointed = false;
	}
	return r;
}

static int may_take(struct taking *t, struct sandbox *sb, struct err *e)
{
	struct host *h = t->host;
	size_t named = 0;
	int r = sandbox_need_running(sb, e);

	if (r == 0)
		r = host_admit(h, sb->tenant, 0, sb->memory_mb, NULL, e);
	if (r == 0 && h->checkpoints >= HOST_CHECKPOINTS_MAX)
		r = err_set(e, EAGAIN, "host_full",
		            "this host has %zu checkpoints and takes no more: hibernate or kill "
		            "some sandboxes",
		            h->checkpoints);
	if (r < 0)
		return r;
	if (!sb->history)
		sb->history = calloc(1, sizeof(*sb->history));
	if (!sb->history)
		return err_nomem(e);
	for (struct checkpoint *c = sb->history->newest; c; c = c->older)
		named += c->name[0] != 0;
	if (t->c->name[0] && named >= CHECKPOINTS_NAMED_MAX)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "a sandbox has up to %d checkpoints with a name: delete some first",
		               CHECKPOINTS_NAMED_MAX);
	return note_first(sb, e);
}

static void take_begin(struct op *op)
{
	struct taking *t = (struct taking *)op;
	struct sandbox *sb = op->sb;

	if (t->go && sb->history && sb->history->untouched) {
		take_over(t, NULL); /* the one it was put back to stands for this moment */
		return;
	}
	t->r = may_take(t, sb, &t->err);
	if (t->r < 0) {
		take_done(t);
		return;
	}
	memcpy(t->machine, sb->machine, sizeof(t->machine));
	if (sb->history->newest)
		t->older = &sb->history->newest->image;
	if (pool_submit(t->host->pool, take_work, take_done, t) < 0) {
		t->r = err_nomem(&t->err);
		take_done(t);
	}
}

static struct taking *taking_new(struct host *h, const char *name, void *arg)
{
	struct taking *t = calloc(1, sizeof(*t));
	struct checkpoint *c = t ? calloc(1, sizeof(*c)) : NULL;

	if (!c) {
		free(t);
		return NULL;
	}
	c->image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	uuid_new(c->id);
	snprintf(c->name, sizeof(c->name), "%s", name);
	*t = (struct taking){.host = h, .arg = arg, .c = c, .op.begin = take_begin};
	return t;
}

void host_checkpoint(struct host *h, struct sandbox *sb, const char *name, checkpoint_taken *done,
                     void *arg)
{
	struct taking *t = taking_new(h, name, arg);
	struct err e;

	if (!t) {
		err_nomem(&e);
		done(arg, &e, NULL);
		return;
	}
	t->done = done;
	host_touch(h, sb);
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "checkpoint", &t->op);
}

bool host_checkpoint_before(struct host *h, struct sandbox *sb, void (*go)(void *arg), void *arg)
{
	struct taking *t = sb->spec.checkpoints ? taking_new(h, "", arg) : NULL;

	if (!t)
		return false;
	t->go = go;
	t->c->automatic = true;
	host_touch(h, sb);
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "checkpoint", &t->op);
	return true;
}

/* --- going back ------------------------------------------------------------------------------- */

struct rewind {
	struct op op;
	struct host *host;
	host_done *done;
	void *arg;
	char *to;
	unsigned steps;
	char checkpoint[SANDBOX_ID + 1];
	struct start_job job;
	enum sandbox_state had;
	char old[SANDBOX_ID + 1]; /* its machine until now */
	int old_pidfd;            /* -1: it is not our child, or has ended */
	bool volumes_anew;        /* mounted once more, as they are now */
	struct volume_wants wants;
	uint64_t asked_ns;
	int r;
	struct err err;
};

static void rewind_free(struct rewind *w)
{
	start_job_fini(&w->job);
	closep(&w->old_pidfd);
	volume_wants_fini(&w->wants);
	free(w->to);
	free(w);
}

static void rewind_end(struct rewind *w, const struct err *e)
{
	if (w->done)
		w->done(w->arg, e, e ? NULL : w->op.sb);
	op_end(&w->op);
	rewind_free(w);
}

static void clean_work(void *arg)
{
	struct rewind *w = arg;
	siginfo_t si;
	struct err e;

	if (w->volumes_anew && w->had == SANDBOX_RUNNING)
		volume_freeze_all(w->host, w->old, w->wants.list);
	if (machine_remove(&w->host->machines, w->old, &e) < 0)
		log_error("a machine is left until the next start machine=%s why=\"%s\"", w->old,
		          e.text);
	if (w->old_pidfd >= 0)
		waitid(P_PIDFD, (id_t)w->old_pidfd, &si, WEXITED | WNOHANG);
	fault_at("rewind.stopped");
	/* The old machine had them until now. */
	if (w->volumes_anew)
		w->r = machine_volumes_settle(&w->host->machines, w->job.machine, w->wants.v,
		                              w->wants.n, false, &w->err);
	fault_at("rewind.cleaned");
}

static void clean_done(void *arg)
{
	struct rewind *w = arg;
	struct sandbox *sb = w->op.sb;
	struct host *h = w->host;

	if (w->volumes_anew) {
		sb->state = SANDBOX_RUNNING;
		volume_settled(sb, &w->wants);
		if (sb->pid == 0)
			sandbox_died(sb); /* meanwhile */
	}
	if (w->r < 0) {
		err_prefix(&w->err, "sandbox %s was put back, but has lost a volume", sb->id);
		log_warn("a rewound sandbox has lost a volume sandbox=%s why=\"%s\"", sb->id,
		         w->err.text);
	}
	rewind_end(w, w->r < 0 ? &w->err : NULL);
	host_fill_spare(h);
}

static void start_work(void *arg)
{
	struct rewind *w = arg;

	fault_at("rewind.begun");
	start_job_run(&w->job);
	fault_at("rewind.started");
}

/* It stays what it was. */
static void rewind_undo(struct rewind *w, const struct err *e)
{
	struct sandbox *sb = w->op.sb;

	log_warn("rewind failed, undone sandbox=%s why=\"%s\"", sb->id, e->text);
	sb->state = w->had;
	if (sb->pid == 0 && w->had != SANDBOX_FAILED)
		sandbox_died(sb); /* meanwhile */
	rewind_end(w, e);
}

/* The sandbox is the new machine from here on, on record first. */
static int change_over(struct rewind *w, struct err *e)
{
	struct sandbox *sb = w->op.sb;
	uint64_t generation = sb->generation;
	pid_t old = sb->pid;
	char end[sizeof(sb->end)];
	int r;

	w->old_pidfd = sb->pidfd >= 0 ? fcntl(sb->pidfd, F_DUPFD_CLOEXEC, 3) : -1;
	memcpy(end, sb->end, sizeof(end));
	sandbox_unwatch(sb);
	r = sandbox_watch(sb, w->job.pid, w->job.engine);
	if (r < 0)
		err_set(e, -r, "machine_gone", "machine %s ended at once", w->job.machine);
	if (r == 0) {
		memcpy(sb->machine, w->job.machine, sizeof(sb->machine));
		sb->generation = w->job.generation;
		sb->end[0] = 0;
		sb->volumes_pending = w->volumes_anew;
		r = sandbox_enter(sb, SANDBOX_RUNNING, e);
	}
	if (r == 0)
		return 0;
	sb->volumes_pending = false;
	sandbox_unwatch(sb);
	memcpy(sb->machine, w->old, sizeof(sb->machine));
	memcpy(sb->end, end, sizeof(end));
	sb->generation = generation;
	if (old > 0)
		sandbox_watch(sb, old, NULL); /* should that fail, it counts as dead */
	machine_remove(&w->host->machines, w->job.machine, NULL);
	return r;
}

static void start_done(void *arg)
{
	struct rewind *w = arg;
	struct sandbox *sb = w->op.sb;
	struct host *h = w->host;
	struct history *y = sb->history;
	struct checkpoint *list = NULL;
	struct err e = w->job.err;
	double ms;

	if (w->job.r < 0 || change_over(w, &e) < 0) {
		rewind_undo(w, &e);
		return;
	}
	fault_at("rewind.recorded");
	while (strcmp(y->newest->id, w->checkpoint) != 0)
		cut(y, &y->newest, &list);
	free_later(h, list);
	link_take(h, sb, &w->job.guest);
	y->untouched = true;
	history_check(y);
	host_touch(h, sb);
	h->stats.rewinds++;
	ms = (double)(mono_ns() - w->asked_ns) / 1e6;
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.rewound",
	           json_pack("{s:s, s:I, s:f}", "checkpoint_id", w->checkpoint, "generation",
	                     (json_int_t)sb->generation, "took_ms", ms));
	log_info("sandbox rewound sandbox=%s checkpoint=%s machine=%s took_ms=%.1f", sb->id,
	         w->checkpoint, sb->machine, ms);
	/* The old machine goes while the new one is at work already; but not while it has volumes
	 * that the new one needs. */
	if (w->volumes_anew)
		sb->state = SANDBOX_REWINDING;
	else if (w->done)
		w->done(w->arg, NULL, sb);
	if (!w->volumes_anew)
		w->done = NULL;
	if (pool_submit(h->pool, clean_work, clean_done, w) < 0) {
		clean_work(w);
		clean_done(w);
	}
}

/*
 * Volumes do not go back. What the guest of a checkpoint remembers of one that was written, or is
 * another one now, is wrong: it does not get that file again, what it had mounted from it is
 * unmounted, and the volume is mounted anew, as it is now.
 */
static bool volumes_differ(const struct checkpoint *c, const struct sandbox *sb)
{
	const json_t *item;
	size_t i;

	json_array_foreach(sb->spec.volumes, i, item) {
		if (!json_is_true(json_object_get(item, "read_only")))
			return true;
	}
	return json_array_size(sb->spec.volumes) && c->volumes != sb->spec.volumes;
}

static int rewind_prepare(struct rewind *w, struct sandbox *sb, struct err *e)
{
	struct host *h = w->host;
	struct checkpoint *c;
	int r = 0;

	if (sb->state != SANDBOX_PAUSED && sb->state != SANDBOX_FAILED &&
	    sb->state != SANDBOX_HIBERNATED)
		r = sandbox_need_running(sb, e);
	if (r < 0)
		return r;
	c = checkpoint_find(sb, w->to, w->steps, e);
	if (!c)
		return -e->code;
	memcpy(w->checkpoint, c->id, sizeof(w->checkpoint));
	w->volumes_anew = volumes_differ(c, sb);
	r = volume_check_again(h, sb, e);
	if (r == 0 && w->volumes_anew)
		r = volume_want_all(h, sb, &w->wants, e);
	else if (r == 0)
		r = volume_open_all(h, sb->tenant, sb->id, sb->spec.volumes, false, w->job.volumes,
		                    e);
	if (r < 0)
		return r;
	if (engine_image_copy(&c->image, &w->job.image) < 0)
		return err_nomem(e);
	return 0;
}

static void rewind_begin(struct op *op)
{
	struct rewind *w = (struct rewind *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (rewind_prepare(w, sb, &e) < 0) {
		rewind_end(w, &e);
		return;
	}
	memcpy(w->old, sb->machine, sizeof(w->old));
	memcpy(w->job.id, sb->id, sizeof(w->job.id));
	host_take_id(w->host, w->job.machine, &w->job.prepared);
	w->job.parent = w->old;
	w->job.generation = sb->generation + 1;
	w->job.net_fd = network_fd(sb); /* it stays the sandbox's */
	w->had = sb->state;
	sb->state = SANDBOX_REWINDING; /* in memory only: the record is right until the change */
	link_drop(sb);                 /* what is asked from now on waits for its turn */
	if (pool_submit(w->host->pool, start_work, start_done, w) < 0) {
		err_nomem(&e);
		if (w->job.prepared)
			machine_remove(&w->host->machines, w->job.machine, NULL);
		rewind_undo(w, &e);
	}
}

void host_rewind(struct host *h, struct sandbox *sb, const char *to, unsigned steps,
                 host_done *done, void *arg)
{
	struct rewind *w = calloc(1, sizeof(*w));
	struct err e;

	if (w && to)
		w->to = strdup(to);
	if (!w || (to && !w->to)) {
		free(w);
		err_nomem(&e);
		done(arg, &e, NULL);
		return;
	}
	w->op.begin = rewind_begin;
	w->host = h;
	w->done = done;
	w->arg = arg;
	w->steps = steps;
	w->old_pidfd = -1;
	w->asked_ns = mono_ns();
	start_job_init(&w->job, h);
	op_queue(sb, "rewind", &w->op);
}
