#include "layers/snapshot.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/io.h"

#define TMP_PREFIX ".tmp-"

static const char manifest_name[] = "manifest.json", state_name[] = "state";

enum {
	TMP_NAME = sizeof(TMP_PREFIX) + SNAPSHOT_ID_MAX + 12,
	TMP_TRIES = 10000, /* that many left-overs of one id means that gc never runs */
	STATE_BUF = 1 << 16,
};

static int fail(struct err *e, int r, const char *id, const char *doing)
{
	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "snapshot '%s': no memory for %s", id,
		               doing);
	if (r == -ENOSPC || r == -EDQUOT)
		return err_set(
		    e, -r, "snapshot_no_space",
		    "snapshot '%s': no space left for %s; delete snapshots you do not need", id,
		    doing);
	if (r == -EEXIST)
		return err_set(e, EEXIST, "snapshot_exists",
		               "snapshot '%s' exists; delete it first or choose another name", id);
	if (r == -EINVAL)
		return err_set(e, EINVAL, "snapshot_invalid",
		               "snapshot '%s': a field of the manifest has a value it cannot have",
		               id);
	if (r == -EUCLEAN)
		return err_set(
		    e, EBADMSG, "snapshot_corrupt",
		    "snapshot '%s': a layer of this machine has changed on disk since it was "
		    "loaded; check the disk",
		    id);
	return err_set(e, -r, "snapshot_io", "snapshot '%s': %s: %s", id, doing, strerror(-r));
}

static int no_snapshot(const char *id, struct err *e)
{
	return err_set(e, ENOENT, "snapshot_not_found", "there is no snapshot '%s'", id);
}

static bool valid_id(const char *id)
{
	size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n > 0 && n <= SNAPSHOT_ID_MAX && !id[n] && id[0] != '-';
}

static int check_id(const char *id, struct err *e)
{
	if (valid_id(id))
		return 0;
	return err_set(
	    e, EINVAL, "snapshot_invalid",
	    "a snapshot's name has 1 to %d characters of a-z, 0-9, '_' and '-', and does "
	    "not begin with '-'",
	    SNAPSHOT_ID_MAX);
}

static int open_dir(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int make_dir(int dirfd, const char *name)
{
	if (mkdirat(dirfd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	return open_dir(dirfd, name);
}

int snapshot_store_open(int dirfd, struct snapshot_store *ret)
{
	struct snapshot_store st = {.root = -1, .layers = -1, .snapshots = -1};
	int r = 0;

	st.root = open_dir(dirfd, ".");
	if (st.root >= 0)
		st.layers = make_dir(st.root, "layers");
	if (st.layers >= 0)
		st.snapshots = make_dir(st.root, "snapshots");
	if (st.snapshots >= 0 && fsync(st.root) < 0)
		r = -errno;
	if (st.snapshots < 0)
		r = st.root < 0 ? st.root : st.layers < 0 ? st.layers : st.snapshots;
	if (r < 0) {
		snapshot_store_close(&st);
		return r;
	}
	*ret = st;
	return 0;
}

void snapshot_store_close(struct snapshot_store *st)
{
	closep(&st->root);
	closep(&st->layers);
	closep(&st->snapshots);
	*st = (struct snapshot_store){.root = -1, .layers = -1, .snapshots = -1};
}

/* Snapshots are flat: files only. Others may be removing the same one. */
static int remove_dir(int parent, const char *name)
{
	autoclosedir DIR *d = NULL;
	autoclose int fd = open_dir(parent, name);
	struct dirent *de;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	d = fdopendir(fd);
	if (!d)
		return -errno;
	take_fd(&fd);
	while ((errno = 0, de = readdir(d))) {
		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		if (unlinkat(dirfd(d), de->d_name, 0) < 0 && errno != ENOENT)
			return -errno;
	}
	if (errno)
		return -errno;
	if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return -errno;
	return 0;
}

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
static int make_tmp(const struct snapshot_store *st, const char *id, char name[TMP_NAME])
{
	for (int i = 0; i < TMP_TRIES; i++) {
		autoclose int fd = -1;
		int r;

		snprintf(name, TMP_NAME, TMP_PREFIX "%s-%d", id, i);
		if (mkdirat(st->snapshots, name, 0700) < 0) {
			if (errno == EEXIST)
				continue;
			return -errno;
		}
		fd = open_dir(st->snapshots, name);
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
 * the next writer who finds it there counts on it.
 */
struct writing {
	const struct snapshot_store *st;
	int dir;
	struct sync_list sync;
	const struct layer **fresh;
	size_t nfresh, room;
};

static void writing_fini(struct writing *w)
{
	sync_fini(&w->sync);
	free(w->fresh);
	closep(&w->dir);
}

static int note_fresh(struct writing *w, const struct layer *l)
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
static int place_layer(struct writing *w, struct layer *l)
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
static int publish(const struct writing *w)
{
	for (size_t i = 0; i < w->nfresh; i++) {
		char names[3][LAYER_NAME]; /* data in one form or the other, map */

		layer_names(&w->fresh[i]->digest, names[0], names[2]);
		layer_squashed_name(&w->fresh[i]->digest, names[1]);
		/*
		 * Somebody else wrote the same: this snapshot keeps its own copy, which it knows to
		 * be good. Each file by itself: a collection may have left one of a pair.
		 */
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			if (linkat(w->dir, names[k], w->st->layers, names[k], 0) < 0 &&
			    errno != EEXIST && errno != ENOENT)
				return -errno;
	}
	return 0;
}

static int place_set(struct writing *w, const struct set *s, struct manifest_layers *ret)
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

/* Hashes fd up to its end and copies it to another one, unless that is -1. */
static int hash_file(int fd, int to, uint64_t max, struct digest *ret, uint64_t *ret_size)
{
	AUTO(sha_freep) struct sha *sha = NULL;
	autofree char *buf = malloc(STATE_BUF);
	uint64_t off = 0;
	int r;

	if (!buf)
		return -ENOMEM;
	r = sha_new(&sha);
	if (r < 0)
		return r;
	for (;;) {
		ssize_t n = pread(fd, buf, STATE_BUF, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		off += (uint64_t)n;
		if (off > max)
			return -EFBIG;
		r = sha_add(sha, buf, (size_t)n);
		if (r == 0 && to >= 0)
			r = io_write_full(to, buf, (size_t)n);
		if (r < 0)
			return r;
	}
	*ret_size = off;
	return sha_done(sha, ret);
}

static int create_in(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);

	return fd < 0 ? -errno : fd;
}

static int place_state(struct writing *w, int state_fd, struct manifest *m)
{
	autoclose int fd = create_in(w->dir, state_name);
	int r;

	if (fd < 0)
		return fd;
	r = hash_file(state_fd, fd, SNAPSHOT_STATE_MAX, &m->state, &m->state_size);
	return r < 0 ? r : sync_add(&w->sync, &fd);
}

static int place_manifest(struct writing *w, const struct manifest *m)
{
	autofree char *text = NULL;
	autoclose int fd = -1;
	size_t len;
	int r;

	r = manifest_print(m, &text, &len);
	if (r < 0)
		return r;
	fd = create_in(w->dir, manifest_name);
	if (fd < 0)
		return fd;
	r = io_write_full(fd, text, len);
	return r < 0 ? r : sync_add(&w->sync, &fd);
}

/* Fills the directory, and syncs it; *doing names what went on when it failed. */
static int place_all(struct writing *w, struct manifest *m, const struct set *memory,
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
	AUTO(writing_fini) struct writing w = {.st = st, .dir = -1};
	const char *doing = "making a directory";
	char tmp[TMP_NAME];
	int r;

	r = check_id(id, e);
	if (r < 0)
		return r;
	if (check_parts(m, memory, disks) < 0)
		return err_set(e, EINVAL, "snapshot_invalid",
		               "snapshot '%s': the layers do not have the sizes of the manifest",
		               id);
	if (faccessat(st->snapshots, id, F_OK, 0) == 0) /* before the work; rename decides */
		return fail(e, -EEXIST, id, doing);
	w.dir = make_tmp(st, id, tmp);
	if (w.dir < 0)
		return fail(e, w.dir, id, doing);
	r = place_all(&w, m, memory, disks, state_fd, &doing);
	if (r < 0) {
		remove_dir(st->snapshots, tmp);
		return fail(e, r == -EEXIST ? -EIO : r, id, doing);
	}
	doing = "moving it into place";
	if (renameat2(st->snapshots, tmp, st->snapshots, id, RENAME_NOREPLACE) < 0) {
		r = -errno;
		remove_dir(st->snapshots, tmp);
		return fail(e, r, id, doing);
	}
	if (fsync(st->snapshots) < 0) {
		r = -errno;
		remove_dir(st->snapshots,
		           id); /* it might be gone after a crash: so it is gone now */
		return fail(e, r, id, doing);
	}
	return 0;
}

void snapshot_free(struct snapshot *s)
{
	if (!s)
		return;
	manifest_fini(&s->manifest);
	set_fini(&s->memory);
	for (size_t i = 0; i < MANIFEST_DISKS_MAX; i++) {
		set_fini(&s->disks[i]);
		closep(&s->images[i]);
	}
	closep(&s->state);
	free(s);
}

void snapshot_freep(struct snapshot **s)
{
	snapshot_free(*s);
}

static int load_manifest(int dir, struct manifest *ret, struct err *e)
{
	autofree char *text = NULL;
	size_t len;
	int r;

	r = io_read_file(dir, manifest_name, MANIFEST_BYTES_MAX, &text, &len);
	if (r == -ENOENT)
		return err_set(e, ENOENT, "snapshot_incomplete",
		               "%s is missing; delete the snapshot and take it again",
		               manifest_name);
	if (r == -EFBIG)
		return err_set(e, EBADMSG, "snapshot_corrupt", "%s is too long", manifest_name);
	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "no memory to read %s", manifest_name);
	if (r < 0)
		return err_set(e, -r, "snapshot_io", "cannot read %s: %s", manifest_name,
		               strerror(-r));
	return manifest_parse(text, len, ret, e);
}

static int load_set(int dir, const struct manifest_layers *layers, uint64_t size, struct set *s,
                    struct err *e)
{
	int r = 0;

	s->pages = size / MAP_PAGE;
	for (size_t i = 0; r == 0 && i < layers->n; i++) {
		const struct manifest_layer *want = &layers->at[i];
		AUTO(layer_unrefp) struct layer *l = NULL;

		for (size_t k = i; !l && k-- > 0;)
			if (digest_equal(&s->at[k]->digest, &want->digest))
				l = layer_ref(s->at[k]);
		if (!l) {
			r = layer_open(dir, &want->digest, s->pages, &l, e);
			if (r < 0)
				return r;
		}
		if (map_pages(&l->map) != want->pages)
			return err_set(e, EBADMSG, "snapshot_corrupt",
			               "layer %zu has %llu pages and the manifest says %llu", i,
			               (unsigned long long)map_pages(&l->map),
			               (unsigned long long)want->pages);
		r = set_push(s, l);
	}
	if (r < 0)
		return err_set(e, -r, "no_memory", "no memory for the list of layers");
	return 0;
}

/* Opens a file that must have this size. how is what to do when it is missing. */
static int open_sized(int dir, const char *path, uint64_t size, const char *how, int *ret,
                      struct err *e)
{
	struct open_how oh = {.flags = O_RDONLY | O_CLOEXEC,
	                      .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
	autoclose int fd = (int)syscall(SYS_openat2, dir, path, &oh, sizeof(oh));
	struct stat st;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return err_set(e, ENOENT, "snapshot_incomplete", "file %.120s is missing; %s", path,
		               how);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, errno, "snapshot_io", "cannot open file %.120s: %s", path,
		               strerror(errno));
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != size)
		return err_set(e, EBADMSG, "snapshot_corrupt",
		               "file %.120s has %lld bytes and should have %llu; %s", path,
		               (long long)st.st_size, (unsigned long long)size, how);
	*ret = take_fd(&fd);
	return 0;
}

static const char how_state[] = "delete the snapshot and take it again";
static const char how_image[] = "import the image again";

static int load_parts(const struct snapshot_store *st, int dir, struct snapshot *s, struct err *e)
{
	const struct manifest *m = &s->manifest;
	int r;

	r = open_sized(dir, state_name, m->state_size, how_state, &s->state, e);
	if (r == 0)
		r = load_set(dir, &m->memory, m->memory_size, &s->memory, e);
	for (size_t i = 0; r == 0 && i < m->ndisks; i++) {
		const struct manifest_disk *d = &m->disks[i];

		if (d->is_image)
			r = open_sized(st->root, d->image_path, d->size, how_image, &s->images[i],
			               e);
		else
			r = load_set(dir, &d->layers, d->size, &s->disks[i], e);
	}
	return r;
}

static int verify_file(int fd, const struct digest *want, const char *name, const char *how,
                       struct err *e)
{
	struct digest d;
	uint64_t size;
	int r = hash_file(fd, -1, INT64_MAX, &d, &size);

	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "no memory to read file %.120s", name);
	if (r < 0)
		return err_set(e, -r, "snapshot_io", "cannot read file %.120s: %s", name,
		               strerror(-r));
	if (!digest_equal(&d, want))
		return err_set(e, EBADMSG, "snapshot_corrupt",
		               "file %.120s is damaged: its digest does not match; %s", name, how);
	return 0;
}

static int verify_set(const struct set *s, int dir, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < s->n; i++)
		if (i == 0 || s->at[i] != s->at[i - 1])
			r = layer_verify(s->at[i], dir, e);
	return r;
}

static int verify_parts(const struct snapshot *s, int dir, struct err *e)
{
	const struct manifest *m = &s->manifest;
	int r;

	r = verify_file(s->state, &m->state, state_name, how_state, e);
	if (r == 0)
		r = verify_set(&s->memory, dir, e);
	for (size_t i = 0; r == 0 && i < m->ndisks; i++) {
		const struct manifest_disk *d = &m->disks[i];

		if (d->is_image)
			r = verify_file(s->images[i], &d->image, d->image_path, how_image, e);
		else
			r = verify_set(&s->disks[i], dir, e);
	}
	return r;
}

static int look_set(int dir, const struct manifest_layers *layers, uint64_t size, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < layers->n; i++)
		if (i == 0 || !digest_equal(&layers->at[i].digest, &layers->at[i - 1].digest))
			r = layer_look(dir, &layers->at[i].digest, size / MAP_PAGE, e);
	return r;
}

int snapshot_look(const struct snapshot_store *st, const char *id, struct err *e)
{
	AUTO(manifest_fini) struct manifest m = {0};
	autoclose int dir = -1, state = -1;
	int r;

	r = check_id(id, e);
	if (r < 0)
		return r;
	dir = open_dir(st->snapshots, id);
	if (dir < 0)
		return dir == -ENOENT ? no_snapshot(id, e) : fail(e, dir, id, "opening it");
	r = load_manifest(dir, &m, e);
	if (r == 0)
		r = open_sized(dir, state_name, m.state_size, how_state, &state, e);
	if (r == 0)
		r = look_set(dir, &m.memory, m.memory_size, e);
	for (size_t i = 0; r == 0 && i < m.ndisks; i++) {
		autoclose int image = -1;

		if (m.disks[i].is_image)
			r = open_sized(st->root, m.disks[i].image_path, m.disks[i].size, how_image,
			               &image, e);
		else
			r = look_set(dir, &m.disks[i].layers, m.disks[i].size, e);
	}
	if (r < 0)
		err_prefix(e, "snapshot '%s'", id);
	return r;
}

int snapshot_load(const struct snapshot_store *st, const char *id, const struct manifest_host *host,
                  enum snapshot_check check, struct snapshot **ret, struct err *e)
{
	AUTO(snapshot_freep) struct snapshot *s = NULL;
	autoclose int dir = -1;
	int r;

	r = check_id(id, e);
	if (r < 0)
		return r;
	dir = open_dir(st->snapshots, id);
	if (dir == -ENOENT)
		return no_snapshot(id, e);
	if (dir < 0)
		return fail(e, dir, id, "opening it");
	s = calloc(1, sizeof(*s));
	if (!s)
		return fail(e, -ENOMEM, id, "opening it");
	s->state = -1;
	for (size_t i = 0; i < MANIFEST_DISKS_MAX; i++)
		s->images[i] = -1;
	r = load_manifest(dir, &s->manifest, e);
	if (r == 0 && host)
		r = manifest_fits(&s->manifest, host, e);
	if (r == 0)
		r = load_parts(st, dir, s, e);
	if (r == 0 && check == SNAPSHOT_FULL)
		r = verify_parts(s, dir, e);
	if (r < 0) {
		err_prefix(e, "snapshot '%s'", id);
		return r;
	}
	*ret = take_ptr(s);
	return 0;
}

int snapshot_rename(const struct snapshot_store *st, const char *id, const char *to, struct err *e)
{
	int r = check_id(id, e);

	if (r == 0)
		r = check_id(to, e);
	if (r < 0)
		return r;
	r = renameat2(st->snapshots, id, st->snapshots, to, RENAME_NOREPLACE) < 0 ? -errno : 0;
	if (r == -ENOENT)
		return no_snapshot(id, e);
	if (r == 0 && fsync(st->snapshots) < 0)
		r = -errno;
	return r < 0 ? fail(e, r, to, "giving it this name") : 0;
}

int snapshot_delete(const struct snapshot_store *st, const char *id, struct err *e)
{
	char tmp[TMP_NAME];
	int r = check_id(id, e);

	if (r < 0)
		return r;
	for (int i = 0; i < TMP_TRIES; i++) {
		snprintf(tmp, sizeof(tmp), TMP_PREFIX "%s-%d", id, i);
		r = renameat2(st->snapshots, id, st->snapshots, tmp, RENAME_NOREPLACE) < 0 ? -errno
		                                                                           : 0;
		if (r != -EEXIST)
			break;
	}
	if (r == -ENOENT)
		return no_snapshot(id, e);
	if (r == 0 && fsync(st->snapshots) < 0)
		r = -errno;
	if (r == 0)
		r = remove_dir(st->snapshots, tmp);
	return r < 0 ? fail(e, r == -EEXIST ? -EBUSY : r, id, "deleting it") : 0;
}

/* A stream over a directory that leaves the fd of the store alone. */
static int list_dir(int dirfd, DIR **ret)
{
	autoclose int fd = open_dir(dirfd, ".");
	DIR *d;

	if (fd < 0)
		return fd;
	d = fdopendir(fd);
	if (!d)
		return -errno;
	take_fd(&fd);
	*ret = d;
	return 0;
}

static int gc_dir(const struct snapshot_store *st, const char *name, unsigned *count)
{
	autoclose int fd = open_dir(st->snapshots, name);
	int r;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? 0 : -errno; /* its writer lives */
	r = remove_dir(st->snapshots, name);
	if (r == 0)
		++*count;
	return r;
}

/*
 * A writer may link a file between our look and our unlink; then its snapshot has the file all
 * the same, and only layers/ forgets it.
 */
static int gc_layer(const struct snapshot_store *st, const char *name, unsigned *count)
{
	struct stat s;

	if (fstatat(st->layers, name, &s, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (s.st_nlink != 1)
		return 0;
	if (unlinkat(st->layers, name, 0) < 0)
		return errno == ENOENT ? 0 : -errno;
	++*count;
	return 0;
}

static int gc_each(const struct snapshot_store *st, int dirfd, const char *prefix,
                   int (*fn)(const struct snapshot_store *, const char *, unsigned *),
                   unsigned *count)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	int first, r;

	first = list_dir(dirfd, &d);
	if (first < 0)
		return first;
	while ((errno = 0, de = readdir(d))) {
		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0 ||
		    strncmp(de->d_name, prefix, strlen(prefix)) != 0)
			continue;
		r = fn(st, de->d_name, count);
		if (r < 0 && first == 0)
			first = r;
	}
	return first < 0 ? first : -errno;
}

int snapshot_gc(const struct snapshot_store *st, unsigned *ret_dirs, unsigned *ret_layers)
{
	unsigned dirs = 0, layers = 0;
	int r, r2;

	r = gc_each(st, st->snapshots, TMP_PREFIX, gc_dir, &dirs);
	r2 = gc_each(st, st->layers, "", gc_layer, &layers);
	if (ret_dirs)
		*ret_dirs = dirs;
	if (ret_layers)
		*ret_layers = layers;
	return r < 0 ? r : r2;
}
