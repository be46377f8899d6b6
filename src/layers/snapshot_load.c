/*
 * layers/snapshot_load.c - opening a snapshot: whole, for this host, and unchanged
 */
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "layers/digest.h"
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/map.h"
#include "layers/set.h"
#include "layers/snapshot.h"
#include "layers/snapshot_internal.h"

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

	r = io_read_file(dir, SNAPSHOT_MANIFEST, MANIFEST_BYTES_MAX, &text, &len);
	if (r == -ENOENT)
		return err_set(e, ENOENT, "snapshot_incomplete",
		               "%s is missing; delete the snapshot and take it again",
		               SNAPSHOT_MANIFEST);
	if (r == -EFBIG)
		return err_set(e, EBADMSG, "snapshot_corrupt", "%s is too long", SNAPSHOT_MANIFEST);
	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "no memory to read %s", SNAPSHOT_MANIFEST);
	if (r < 0)
		return err_set(e, -r, "snapshot_io", "cannot read %s: %s", SNAPSHOT_MANIFEST,
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

	r = open_sized(dir, SNAPSHOT_STATE, m->state_size, how_state, &s->state, e);
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
	int r = snapshot_hash(fd, -1, INT64_MAX, &d, &size);

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

	r = verify_file(s->state, &m->state, SNAPSHOT_STATE, how_state, e);
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

	r = snapshot_check_id(id, e);
	if (r < 0)
		return r;
	dir = snapshot_open_dir(st->snapshots, id);
	if (dir < 0)
		return dir == -ENOENT ? snapshot_missing(id, e)
		                      : snapshot_fail(e, dir, id, "opening it");
	r = load_manifest(dir, &m, e);
	if (r == 0)
		r = open_sized(dir, SNAPSHOT_STATE, m.state_size, how_state, &state, e);
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

int snapshot_manifest(const struct snapshot_store *st, const char *id, struct manifest *ret,
                      struct err *e)
{
	autoclose int dir = -1;
	int r = snapshot_check_id(id, e);

	if (r < 0)
		return r;
	dir = snapshot_open_dir(st->snapshots, id);
	if (dir < 0)
		return dir == -ENOENT ? snapshot_missing(id, e)
		                      : snapshot_fail(e, dir, id, "opening it");
	r = load_manifest(dir, ret, e);
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

	r = snapshot_check_id(id, e);
	if (r < 0)
		return r;
	dir = snapshot_open_dir(st->snapshots, id);
	if (dir == -ENOENT)
		return snapshot_missing(id, e);
	if (dir < 0)
		return snapshot_fail(e, dir, id, "opening it");
	s = calloc(1, sizeof(*s));
	if (!s)
		return snapshot_fail(e, -ENOMEM, id, "opening it");
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
