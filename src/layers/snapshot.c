#include "layers/snapshot.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "layers/digest.h"
#include "layers/snapshot_internal.h"

enum { HASH_BUF = 1 << 16 };

int snapshot_fail(struct err *e, int r, const char *id, const char *doing)
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

int snapshot_missing(const char *id, struct err *e)
{
	return err_set(e, ENOENT, "snapshot_not_found", "there is no snapshot '%s'", id);
}

static bool valid_id(const char *id)
{
	size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n > 0 && n <= SNAPSHOT_ID_MAX && !id[n] && id[0] != '-';
}

int snapshot_check_id(const char *id, struct err *e)
{
	if (valid_id(id))
		return 0;
	return err_set(
	    e, EINVAL, "snapshot_invalid",
	    "a snapshot's name has 1 to %d characters of a-z, 0-9, '_' and '-', and does "
	    "not begin with '-'",
	    SNAPSHOT_ID_MAX);
}

int snapshot_open_dir(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int make_dir(int dirfd, const char *name)
{
	if (mkdirat(dirfd, name, 0700) < 0 && errno != EEXIST)
		return -errno;
	return snapshot_open_dir(dirfd, name);
}

int snapshot_store_open(int dirfd, struct snapshot_store *ret)
{
	struct snapshot_store st = {.root = -1, .layers = -1, .snapshots = -1};
	int r = 0;

	st.root = snapshot_open_dir(dirfd, ".");
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

int snapshot_remove_dir(int parent, const char *name)
{
	autoclosedir DIR *d = io_opendir(parent, name, O_NOFOLLOW);
	struct dirent *de;

	if (!d)
		return errno == ENOENT ? 0 : -errno;
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

int snapshot_hash(int fd, int to, uint64_t max, struct digest *ret, uint64_t *ret_size)
{
	AUTO(sha_freep) struct sha *sha = NULL;
	autofree char *buf = malloc(HASH_BUF);
	uint64_t off = 0;
	int r;

	if (!buf)
		return -ENOMEM;
	r = sha_new(&sha);
	if (r < 0)
		return r;
	for (;;) {
		ssize_t n = pread(fd, buf, HASH_BUF, (off_t)off);

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

int snapshot_rename(const struct snapshot_store *st, const char *id, const char *to, struct err *e)
{
	int r = snapshot_check_id(id, e);

	if (r == 0)
		r = snapshot_check_id(to, e);
	if (r < 0)
		return r;
	r = renameat2(st->snapshots, id, st->snapshots, to, RENAME_NOREPLACE) < 0 ? -errno : 0;
	if (r == -ENOENT)
		return snapshot_missing(id, e);
	if (r == 0 && fsync(st->snapshots) < 0)
		r = -errno;
	return r < 0 ? snapshot_fail(e, r, to, "giving it this name") : 0;
}

int snapshot_delete(const struct snapshot_store *st, const char *id, struct err *e)
{
	char tmp[SNAPSHOT_TMP_NAME];
	int r = snapshot_check_id(id, e);

	if (r < 0)
		return r;
	for (int i = 0; i < SNAPSHOT_TMP_TRIES; i++) {
		snprintf(tmp, sizeof(tmp), SNAPSHOT_TMP_PREFIX "%s-%d", id, i);
		r = renameat2(st->snapshots, id, st->snapshots, tmp, RENAME_NOREPLACE) < 0 ? -errno
		                                                                           : 0;
		if (r != -EEXIST)
			break;
	}
	if (r == -ENOENT)
		return snapshot_missing(id, e);
	if (r == 0 && fsync(st->snapshots) < 0)
		r = -errno;
	if (r == 0)
		r = snapshot_remove_dir(st->snapshots, tmp);
	return r < 0 ? snapshot_fail(e, r == -EEXIST ? -EBUSY : r, id, "deleting it") : 0;
}

static int gc_dir(const struct snapshot_store *st, const char *name, unsigned *count)
{
	autoclose int fd = snapshot_open_dir(st->snapshots, name);
	int r;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? 0 : -errno; /* its writer lives */
	r = snapshot_remove_dir(st->snapshots, name);
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
	autoclosedir DIR *d = io_opendir(dirfd, ".", 0);
	struct dirent *de;
	int first = 0, r;

	if (!d)
		return -errno;
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

	r = gc_each(st, st->snapshots, SNAPSHOT_TMP_PREFIX, gc_dir, &dirs);
	r2 = gc_each(st, st->layers, "", gc_layer, &layers);
	if (ret_dirs)
		*ret_dirs = dirs;
	if (ret_layers)
		*ret_layers = layers;
	return r < 0 ? r : r2;
}
