#include "host/checkpoint.h"

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
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "layers/layer.h"
#include "layers/set.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

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

static void checkpoints_free(void *arg)
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

static void checkpoints_freed(void *arg)
{
}

/* Closing a layer frees its pages, maybe many: not on the loop. */
static void checkpoints_free_later(struct host *h, struct checkpoint *list)
{
	for (struct checkpoint *c = list; c; c = c->older)
		h->checkpoints--;
	if (list && (h->depot.closing ||
	             pool_submit(h->pool, checkpoints_free, checkpoints_freed, list) < 0))
		checkpoints_free(list);
}

static void history_cut(struct history *y, struct checkpoint **p, struct checkpoint **list)
{
	struct checkpoint *c = *p;

	*p = c->older;
	y->n--;
	y->bytes -= c->bytes;
	c->older = *list;
	*list = c;
}

/* The oldest one without a name, or the oldest of all. */
static struct checkpoint **history_oldest(struct history *y)
{
	struct checkpoint **found = NULL, **p;

	for (p = &y->newest; *p; p = &(*p)->older)
		if (!(*p)->name[0] || !found)
			found = p;
	return found;
}

static void history_thin(struct host *h, struct history *y)
{
	struct checkpoint *list = NULL, **p = &y->newest;

	while (*p)
		if (!(*p)->name[0] && checkpoint_thinned(y->serial, (*p)->serial))
			history_cut(y, p, &list);
		else
			p = &(*p)->older;
	while (y->n > CHECKPOINTS_MAX || (y->n > 1 && y->bytes > CHECKPOINT_BYTES_MAX))
		history_cut(y, history_oldest(y), &list);
	checkpoints_free_later(h, list);
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
	checkpoints_free_later(sb->host, y->newest);
	free(y);
}

void history_rewound(struct sandbox *sb, const char *id)
{
	struct history *y = sb->history;
	struct checkpoint *list = NULL;

	while (strcmp(y->newest->id, id) != 0)
		history_cut(y, &y->newest, &list);
	checkpoints_free_later(sb->host, list);
	y->untouched = true;
	history_check(y);
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
	history_cut(sb->history, p, &list);
	checkpoints_free_later(h, list);
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
	const struct engine_image *older; /* of the list: no other code changes it in our turn */
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
	checkpoints_free(t->c);
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
	history_thin(h, y);
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
	if (pool_submit_for(t->host->pool, sb->tenant, take_work, take_done, t) < 0) {
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
