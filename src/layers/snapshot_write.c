/*
 * layers/snapshot_write.c - a snapshot becomes one: in a directory of its own, then by one rename
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/map.h"
#include "layers/set.h"
#include "layers/snapshot.h"
#include "layers/snapshot_internal.h"
#include "layers/sync.h"

/* -EAGAIN: a gc was quicker and has removed it, or is about to. */
static int lock_tmp(int fd)
{
	struct stat st;

	if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0)
		return -errno;
	return st.st_nlink ? 0 : -EAGAIN;
}

/*
 * A directory of our own, locked: the lock says to snapshot_gc() that its writer lives, and ends
 * with us, however we end. Between mkdir and flock a gc may take it for a left-over; then we
 * make another.
 */
static int make_tmp(const struct snapshot_store *st, const char *id, char name[SNAPSHOT_TMP_NAME])
{
	for (int i = 0; i < SNAPSHOT_TMP_TRIES; i++) {
		autoclose int fd = -1;
		int r;

		snprintf(name, SNAPSHOT_TMP_NAME, SNAPSHOT_TMP_PREFIX "%s-%d", id, i);
		if (mkdirat(st->snapshots, name, 0700) < 0) {
			if (errno == EEXIST)
				continue;
			return -errno;
		}
		fd = snapshot_open_dir(st->snapshots, name);
		r = fd < 0 ? fd : lock_tmp(fd);
		if (r == 0)
			return take_fd(&fd);
		if (r != -ENOENT && r != -EAGAIN) {
			unlinkat(st->snapshots, name, AT_REMOVEDIR);
			return r;
		}
	}
	return -EBUSY;
}

static int link_pair(int from, int to, const char *data, const char *map)
{
	int r;

	if (linkat(from, data, to, data, 0) < 0)
		return -errno;
	if (linkat(from, map, to, map, 0) == 0)
		return 0;
	r = -errno;
	unlinkat(to, data, 0);
	return r;
}

/*
 * What is being written. A layer that is new here gets its name in layers/ only when it is synced:
 * the next writer that finds it there counts on it.
 */
struct snapshot_writing {
	const struct snapshot_store *st;
	int dir;
	struct sync_list sync;
	const struct layer **fresh;
	size_t nfresh, room;
};

static void writing_fini(struct snapshot_writing *w)
{
	sync_fini(&w->sync);
	free(w->fresh);
	closep(&w->dir);
}

static int note_fresh(struct snapshot_writing *w, const struct layer *l)
{
	if (w->nfresh == w->room) {
		size_t room = w->room ? 2 * w->room : 8;
		void *bigger = realloc(w->fresh, room * sizeof(w->fresh[0]));

		if (!bigger)
			return -ENOMEM;
		w->fresh = bigger;
		w->room = room;
	}
	w->fresh[w->nfresh++] = l;
	return 0;
}

/* Links a layer, in whichever form it is there. -ENOENT: in none. */
static int link_layer(int from, int to, const struct digest *d)
{
	char data[LAYER_NAME], map[LAYER_NAME], squashed[LAYER_NAME];
	int r;

	layer_names(d, data, map);
	layer_squashed_name(d, squashed);
	r = link_pair(from, to, data, map);
	return r == -ENOENT ? link_pair(from, to, squashed, map) : r;
}

static void unlink_layer(int dir, const struct digest *d)
{
	char data[LAYER_NAME], map[LAYER_NAME], squashed[LAYER_NAME];

	layer_names(d, data, map);
	layer_squashed_name(d, squashed);
	unlinkat(dir, data, 0);
	unlinkat(dir, squashed, 0);
	unlinkat(dir, map, 0);
}

/* Makes the directory hold this layer: by a link when the store has it, else by writing it. */
static int place_layer(struct snapshot_writing *w, struct layer *l)
{
	char data[LAYER_NAME], map[LAYER_NAME];
	int r;

	if (l->has_digest) {
		layer_names(&l->digest, data, map);
		if (faccessat(w->dir, map, F_OK, 0) == 0) /* listed before, at another place */
			return 0;
		r = link_layer(w->st->layers, w->dir, &l->digest);
		if (r == 0)
			return 0;
		if (r == -EMLINK) /* as many names as a file can have: begin a second copy */
			unlink_layer(w->st->layers, &l->digest);
		else if (r != -ENOENT)
			return r;
	}
	r = note_fresh(w, l);
	return r < 0 ? r : layer_save(l, w->dir, w->st->form, &w->sync);
}

/* Where the next writer finds what was written here; all of it is synced. */
static int publish(const struct snapshot_writing *w)
{
	for (size_t i = 0; i < w->nfresh; i++) {
		char names[3][LAYER_NAME]; /* data in one form or the other, map */

		layer_names(&w->fresh[i]->digest, names[0], names[2]);
		layer_squashed_name(&w->fresh[i]->digest, names[1]);
		/*
		 * Another writer wrote the same: this snapshot keeps its own copy, which it knows
		 * to be good. Each file by itself: a collection may have left one of a pair.
		 */
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			if (linkat(w->dir, names[k], w->st->layers, names[k], 0) < 0 &&
			    errno != EEXIST && errno != ENOENT)
				return -errno;
	}
	return 0;
}

static int place_set(struct snapshot_writing *w, const struct set *s, struct manifest_layers *ret)
{
	struct manifest_layer *at = calloc(s->n + 1, sizeof(*at));
	int r;

	if (!at)
		return -ENOMEM;
	free(ret->at);
	*ret = (struct manifest_layers){.at = at, .n = s->n};
	for (size_t i = 0; i < s->n; i++) {
		if (i == 0 || s->at[i] != s->at[i - 1]) {
			r = place_layer(w, s->at[i]);
			if (r < 0)
				return r;
		}
		at[i].digest = s->at[i]->digest;
		at[i].pages = map_pages(&s->at[i]->map);
	}
	return 0;
}

static int create_in(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);

	return fd < 0 ? -errno : fd;
}

static int place_state(struct snapshot_writing *w, int state_fd, struct manifest *m)
{
	autoclose int fd = create_in(w->dir, SNAPSHOT_STATE);
	int r;

	if (fd < 0)
		return fd;
	r = snapshot_hash(state_fd, fd, SNAPSHOT_STATE_MAX, &m->state, &m->state_size);
	return r < 0 ? r : sync_add(&w->sync, &fd);
}

static int place_manifest(struct snapshot_writing *w, const struct manifest *m)
{
	autofree char *text = NULL;
	autoclose int fd = -1;
	size_t len;
	int r;

	r = manifest_print(m, &text, &len);
	if (r < 0)
		return r;
	fd = create_in(w->dir, SNAPSHOT_MANIFEST);
	if (fd < 0)
		return fd;
	r = io_write_full(fd, text, len);
	return r < 0 ? r : sync_add(&w->sync, &fd);
}

/* Fills the directory, and syncs it; *doing names what went on when it failed. */
static int place_all(struct snapshot_writing *w, struct manifest *m, const struct set *memory,
                     const struct set *disks, int state_fd, const char **doing)
{
	autoclose int dir = -1;
	int r;

	*doing = "writing the memory";
	r = place_set(w, memory, &m->memory);
	*doing = r < 0 ? *doing : "writing the disks";
	for (size_t i = 0; r == 0 && i < m->ndisks; i++)
		if (!m->disks[i].is_image)
			r = place_set(w, &disks[i], &m->disks[i].layers);
	if (r < 0)
		return r;
	*doing = "writing the state";
	r = place_state(w, state_fd, m);
	if (r < 0)
		return r;
	*doing = "writing the manifest";
	r = place_manifest(w, m);
	if (r < 0)
		return r;
	*doing = "syncing it";
	dir = fcntl(w->dir, F_DUPFD_CLOEXEC, 3);
	r = dir < 0 ? -errno : sync_add(&w->sync, &dir);
	if (r == 0)
		r = sync_all(&w->sync);
	return r < 0 ? r : publish(w);
}

static int check_parts(const struct manifest *m, const struct set *memory, const struct set *disks)
{
	if (memory->pages * MAP_PAGE != m->memory_size || m->ndisks > MANIFEST_DISKS_MAX)
		return -EINVAL;
	for (size_t i = 0; i < m->ndisks; i++)
		if (!m->disks[i].is_image && disks[i].pages * MAP_PAGE != m->disks[i].size)
			return -EINVAL;
	return 0;
}

int snapshot_write(const struct snapshot_store *st, const char *id, struct manifest *m,
                   const struct set *memory, const struct set *disks, int state_fd, struct err *e)
{
	AUTO(writing_fini) struct snapshot_writing w = {.st = st, .dir = -1};
	const char *doing = "making a directory";
	char tmp[SNAPSHOT_TMP_NAME];
	int r;

	r = snapshot_check_id(id, e);
	if (r < 0)
		return r;
	if (check_parts(m, memory, disks) < 0)
		return err_set(e, EINVAL, "snapshot_invalid",
		               "snapshot '%s': the layers do not have the sizes of the manifest",
		               id);
	if (faccessat(st->snapshots, id, F_OK, 0) == 0) /* before the work; rename decides */
		return snapshot_fail(e, -EEXIST, id, doing);
	w.dir = make_tmp(st, id, tmp);
	if (w.dir < 0)
		return snapshot_fail(e, w.dir, id, doing);
	r = place_all(&w, m, memory, disks, state_fd, &doing);
	if (r < 0) {
		snapshot_remove_dir(st->snapshots, tmp);
		return snapshot_fail(e, r == -EEXIST ? -EIO : r, id, doing);
	}
	doing = "moving it into place";
	if (renameat2(st->snapshots, tmp, st->snapshots, id, RENAME_NOREPLACE) < 0) {
		r = -errno;
		snapshot_remove_dir(st->snapshots, tmp);
		return snapshot_fail(e, r, id, doing);
	}
	if (fsync(st->snapshots) < 0) {
		r = -errno;
		snapshot_remove_dir(st->snapshots,
		                    id); /* it might be gone after a crash: so it is gone now */
		return snapshot_fail(e, r, id, doing);
	}
	return 0;
}
