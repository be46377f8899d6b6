#include "host/disk_use.h"

#include <dirent.h>
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
#include "base/io.h"
#include "base/macro.h"
#include "base/pool.h"
#include "db/snapshots.h"
#include "db/volumes.h"
#include "host/disk.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "template/build.h"
#include "template/depot.h"
#include "template/template.h"

enum {
	TALLY_MS = 10000,
	CHANGED_MS = 1000, /* after a change */
	COST_SHARE = 100,  /* one of so many moments is spent on counting */
	PATH_BYTES = 128,
};

/* A directory whose files are this tenant's, a file, or what a machine holds without a name. */
struct owned {
	char path[PATH_BYTES]; /* in the data directory */
	char tenant[TENANT_MAX + 1];
	pid_t pid; /* of a machine; 0: of none */
};

struct counted {
	const char *tenant;
	dev_t dev;
	ino_t ino;
	uint64_t bytes;
};

struct tally {
	struct host *host;
	struct owned *at;
	size_t n, room;
	struct counted *files;
	size_t nfiles, files_room;
	bool no_memory;
	uint64_t took_ns;
	struct disk_use *uses;
	size_t nuses;
};

/* ---- what there is, on the loop ---- */

static bool grow(void **at, size_t n, size_t *room, size_t size)
{
	size_t more = *room ? 2 * *room : 64;
	void *p;

	if (n < *room)
		return true;
	p = reallocarray(*at, more, size);
	if (!p)
		return false;
	*at = p;
	*room = more;
	return true;
}

static struct owned *own(struct tally *t, const char *tenant, const char *dir, const char *name)
{
	struct owned *o;

	if (t->no_memory || !grow((void **)&t->at, t->n, &t->room, sizeof(*t->at))) {
		t->no_memory = true;
		return NULL;
	}
	o = &t->at[t->n++];
	*o = (struct owned){.pid = 0};
	snprintf(o->path, sizeof(o->path), "%s/%s", dir, name);
	snprintf(o->tenant, sizeof(o->tenant), "%s", tenant);
	return o;
}

static void own_sandbox(struct tally *t, const struct sandbox *sb)
{
	char name[PATH_BYTES - 32];
	struct owned *o;

	if (sb->pid > 0 && (o = own(t, sb->tenant, "disks", sb->machine)))
		o->pid = sb->pid;
	else
		own(t, sb->tenant, "disks", sb->machine);
	hibernate_id(sb->id, name);
	own(t, sb->tenant, "store/snapshots", name);
	slept_id(sb->id, name);
	own(t, sb->tenant, "store/snapshots", name);
	for (int i = 0; i < SANDBOX_VOLUMES_MAX && json_array_size(sb->spec.volumes); i++) {
		snprintf(name, sizeof(name), "clone-%s-%d.img", sb->id, i);
		own(t, sb->tenant, "volumes", name);
	}
}

static bool own_snapshot(void *arg, const struct db_snapshot *row)
{
	return own(arg, row->tenant, "store/snapshots", row->id) != NULL;
}

static bool own_volume(void *arg, const struct db_volume *row)
{
	char name[PATH_BYTES - 32];

	snprintf(name, sizeof(name), "%.64s.img", row->file);
	return own(arg, row->tenant, "volumes", name) != NULL;
}

static bool own_build(void *arg, const struct build_info *i)
{
	return own(arg, i->tenant, "builds", i->id) != NULL;
}

static struct tally *tally_new(struct host *h)
{
	const struct disk_uses *u = &h->uses;
	uint64_t began = mono_ns(), since = mono_ms() - u->counted_ms, wait = TALLY_MS;
	struct tally *t;

	if (u->changed)
		wait = CHANGED_MS;
	if (u->counted_ms && since < MAX(wait, u->rest_ms))
		return NULL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->host = h;
	for (const struct sandbox *sb = h->newest; sb; sb = sb->next)
		own_sandbox(t, sb);
	db_snapshots_owners(h->db, own_snapshot, t, NULL);
	db_volumes_after(h->db, "", UINT_MAX, own_volume, t, NULL);
	for (struct template *x = template_next(h->depot.templates, NULL, NULL); x;
	     x = template_next(h->depot.templates, NULL, x))
		if (x->tenant[0] && x->bake[0])
			own(t, x->tenant, "store/snapshots", x->bake);
	build_each(templates_builds(h->depot.templates), NULL, own_build, t);
	t->took_ns = mono_ns() - began;
	h->uses.changed = false;
	h->uses.counted_ms = mono_ms();
	return t;
}

/* ---- what it takes, on a thread ---- */

static void count(struct tally *t, const char *tenant, const struct stat *st)
{
	if (!S_ISREG(st->st_mode) || t->no_memory)
		return;
	if (!grow((void **)&t->files, t->nfiles, &t->files_room, sizeof(*t->files))) {
		t->no_memory = true;
		return;
	}
	t->files[t->nfiles++] = (struct counted){.tenant = tenant,
	                                         .dev = st->st_dev,
	                                         .ino = st->st_ino,
	                                         .bytes = (uint64_t)st->st_blocks * 512};
}

/* Layers that it shares with one that is no more: files without a name. */
static void count_nameless(struct tally *t, const struct owned *o)
{
	for (unsigned d = 0; d < ENGINE_DISKS_MAX; d++)
		for (unsigned i = 0; i < ENGINE_LAYERS_MAX; i++) {
			char path[64];
			struct stat st;

			snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)o->pid,
			         t->host->engines->disk_slot + d * ENGINE_LAYERS_MAX + i);
			if (stat(path, &st) < 0)
				break;
			if (st.st_nlink == 0)
				count(t, o->tenant, &st);
		}
}

static void count_owned(struct tally *t, int data, const struct owned *o)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	struct stat st;

	if (fstatat(data, o->path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		d = io_opendir(data, o->path, O_NOFOLLOW);
	else if (st.st_nlink)
		count(t, o->tenant, &st);
	while (d && (de = readdir(d)))
		if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			count(t, o->tenant, &st);
	if (o->pid > 0)
		count_nameless(t, o);
}

static int by_tenant_and_file(const void *a, const void *b)
{
	const struct counted *x = a, *y = b;
	int r = strcmp(x->tenant, y->tenant);

	if (r == 0)
		r = (x->dev > y->dev) - (x->dev < y->dev);
	return r ? r : (x->ino > y->ino) - (x->ino < y->ino);
}

static void add_up(struct tally *t)
{
	size_t room = 0;

	if (t->nfiles)
		qsort(t->files, t->nfiles, sizeof(*t->files), by_tenant_and_file);
	for (size_t i = 0; i < t->nfiles && !t->no_memory; i++) {
		const struct counted *f = &t->files[i];
		struct disk_use *u = t->nuses ? &t->uses[t->nuses - 1] : NULL;

		if (i && by_tenant_and_file(f, f - 1) == 0)
			continue;
		if (!u || strcmp(u->tenant, f->tenant) != 0) {
			if (!grow((void **)&t->uses, t->nuses, &room, sizeof(*t->uses))) {
				t->no_memory = true;
				return;
			}
			u = &t->uses[t->nuses++];
			*u = (struct disk_use){.bytes = 0};
			snprintf(u->tenant, sizeof(u->tenant), "%s", f->tenant);
		}
		u->bytes += f->bytes;
	}
}

static void tally_work(void *arg)
{
	struct tally *t = arg;
	uint64_t began = mono_ns();
	autoclose int data = open(t->host->config.data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	for (size_t i = 0; i < t->n && data >= 0; i++)
		count_owned(t, data, &t->at[i]);
	t->no_memory |= data < 0;
	add_up(t);
	t->took_ns += mono_ns() - began;
}

static void tally_free(struct tally *t)
{
	free(t->at);
	free(t->files);
	free(t->uses);
	free(t);
}

static void tally_done(void *arg)
{
	struct tally *t = arg;
	struct host *h = t->host;

	h->uses.busy = false;
	h->uses.rest_ms = t->took_ns / 1000000 * COST_SHARE;
	if (!t->no_memory) { /* else what was counted last still counts */
		free(h->uses.at);
		h->uses.at = take_ptr(t->uses);
		h->uses.n = t->nuses;
	}
	tally_free(t);
}

void disk_use_look(struct host *h)
{
	struct tally *t = h->uses.busy ? NULL : tally_new(h);

	if (!t)
		return;
	h->uses.busy = pool_submit(h->pool, tally_work, tally_done, t) == 0;
	if (!h->uses.busy)
		tally_free(t);
}

void disk_use_fini(struct host *h)
{
	free(h->uses.at);
	h->uses = (struct disk_uses){.at = NULL};
}

/* ---- what may be taken ---- */

void disk_use_changed(struct host *h)
{
	h->uses.changed = true;
}

uint64_t disk_use_of(const struct host *h, const char *tenant)
{
	for (size_t i = 0; i < h->uses.n; i++)
		if (!strcmp(h->uses.at[i].tenant, tenant))
			return h->uses.at[i].bytes;
	return 0;
}

uint64_t disk_use_max(const struct host *h, const struct quota *quota)
{
	return quota && quota->disk_mb ? quota->disk_mb << 20
	                               : h->disk.total_bytes / 100 * h->config.tenant_disk_percent;
}

int disk_use_admit(const struct host *h, const char *tenant, const struct quota *quota,
                   struct err *e)
{
	uint64_t max = disk_use_max(h, quota), mine = disk_use_of(h, tenant);

	if (!max || mine < max)
		return 0;
	return err_set(e, EDQUOT, "quota_exceeded",
	               "your quota is %llu MiB of this host's disk and you take %llu: delete "
	               "snapshots, volumes, templates or sandboxes",
	               (unsigned long long)(max >> 20), (unsigned long long)(mine >> 20));
}
