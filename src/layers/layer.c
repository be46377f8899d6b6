#include "layers/layer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/digest.h"
#include "layers/index.h"
#include "layers/map.h"
#include "layers/pass.h"
#include "layers/squash.h"
#include "layers/sync.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3; Debian 12's headers are older */
#endif

enum {
	BUSY_MS = 30000, /* on a host whose cpus have other things to do */
};

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

static int size_of(uint64_t pages, off_t *ret)
{
	if (pages == 0 || pages > MAP_PAGES_MAX)
		return -EINVAL;
	*ret = (off_t)(pages * MAP_PAGE);
	return 0;
}

int layer_create_memfd(const char *name, uint64_t pages, int *ret)
{
	autoclose int fd = -1;
	off_t size;
	int r = size_of(pages, &size);

	if (r < 0)
		return r;
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, size) < 0)
		return -errno;
	/* From its birth on: the machine that writes it cannot cut it while another maps it. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return -errno;
	*ret = take_fd(&fd);
	return 0;
}

int layer_create_file(int dirfd, const char *name, uint64_t pages, int *ret)
{
	autoclose int fd = -1;
	off_t size;
	int r = size_of(pages, &size);

	if (r < 0)
		return r;
	fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, size) < 0) {
		r = -errno;
		unlinkat(dirfd, name, 0);
		return r;
	}
	*ret = take_fd(&fd);
	return 0;
}

static int check_size(int fd, uint64_t pages)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != pages * MAP_PAGE)
		return -EBADMSG;
	return 0;
}

/* Takes fd and map when it succeeds. */
static int wrap(int fd, uint64_t pages, struct map *map, struct layer **ret)
{
	struct layer *l;
	off_t size;
	int r = size_of(pages, &size);

	if (r == 0)
		r = check_size(fd, pages);
	if (r < 0)
		return r;
	if (map_end(map) > pages)
		return -EBADMSG;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->fd = fd;
	l->pages = pages;
	l->map = *map;
	l->refs = 1;
	*map = (struct map){0};
	*ret = l;
	return 0;
}

int layer_seal_memfd(int fd, uint64_t pages, struct map *map, struct layer **ret)
{
	autoclose int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	int seals, r;

	if (own < 0)
		return -errno;
	seals = fcntl(own, F_GET_SEALS);
	if (seals < 0)
		return -errno;
	/* The machine may have sealed it first: fine if it is all there, useless otherwise. */
	if ((seals & SEALS) != SEALS && fcntl(own, F_ADD_SEALS, SEALS) < 0)
		return -errno;
	r = wrap(own, pages, map, ret);
	if (r < 0)
		return r;
	take_fd(&own);
	return 0;
}

/*
 * A read lease is granted only while no process has the file open for writing, and a writable
 * mapping counts as open. It is the one question a file system answers about other processes' fds.
 * The lease is dropped at once; until then, breaking it sends SIGURG, which is ignored by default
 * (its own choice, SIGIO, would end us).
 */
static int prove_no_writer(int fd)
{
	if (fcntl(fd, F_SETSIG, SIGURG) < 0)
		return -errno;
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
		return errno == EAGAIN ? -EBUSY : errno == EINVAL ? -EOPNOTSUPP : -errno;
	if (fcntl(fd, F_SETLEASE, F_UNLCK) < 0)
		return -errno;
	return 0;
}

int layer_seal_file(int dirfd, const char *name, uint64_t pages, struct map *map,
                    struct layer **ret)
{
	autoclose int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int r;

	if (fd < 0 || fchmod(fd, 0444) < 0) /* first: no new writer can come */
		return -errno;
	r = prove_no_writer(fd);
	if (r == 0)
		r = wrap(fd, pages, map, ret);
	if (r < 0)
		return r;
	take_fd(&fd);
	return 0;
}

int layer_adopt(int fd, uint64_t pages, struct map *map, struct layer **ret)
{
	autoclose int own = -1;
	int seals, r;

	/* A file on a tmpfs has seals too, but never those that our memfds are born with. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals >= 0 && (seals & (F_SEAL_SHRINK | F_SEAL_GROW)))
		return layer_seal_memfd(fd, pages, map, ret);
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	r = own < 0 ? -errno : prove_no_writer(own);
	if (r == 0)
		r = wrap(own, pages, map, ret);
	if (r < 0)
		return r;
	take_fd(&own);
	return 0;
}

bool layer_busy(int r, uint64_t *deadline_ms)
{
	if (r != -EBUSY)
		return false;
	if (!*deadline_ms)
		*deadline_ms = mono_ms() + BUSY_MS;
	if (mono_ms() >= *deadline_ms)
		return false;
	usleep(200);
	return true;
}

struct layer *layer_ref(struct layer *l)
{
	l->refs++;
	return l;
}

void layer_unref(struct layer *l)
{
	if (!l || --l->refs)
		return;
	close(l->fd);
	map_fini(&l->map);
	free(l);
}

void layer_unrefp(struct layer **l)
{
	layer_unref(*l);
}

void layer_names(const struct digest *d, char data[LAYER_NAME], char map[LAYER_NAME])
{
	char text[DIGEST_TEXT];

	digest_text(d, text);
	snprintf(data, LAYER_NAME, "%s", text);
	snprintf(map, LAYER_NAME, "%s.map", text);
}

void layer_squashed_name(const struct digest *d, char ret[LAYER_NAME])
{
	char text[DIGEST_TEXT];

	digest_text(d, text);
	snprintf(ret, LAYER_NAME, "%s.zst", text);
}

/* Gives the file behind fd one more name. -EXDEV when it cannot have one there, as a memfd. */
static int link_fd(int fd, int dirfd, const char *name)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	if (errno == EXDEV || errno == ENOENT || errno == EMLINK || errno == EPERM)
		return -EXDEV;
	return -errno;
}

/* No process writes it from here on; the list keeps an fd of its own. */
static int sync_as_sealed(int fd, struct sync_list *sync)
{
	autoclose int own = -1;

	if (fchmod(fd, 0444) < 0)
		return -errno;
	own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return own < 0 ? -errno : sync_add(sync, &own);
}

static int create_plain(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : fd;
}

/* *form becomes LAYER_PLAIN when there was nothing to copy. */
static int save_as(struct layer *l, struct index *x, int dirfd, const char *data, const char *map,
                   enum layer_form *form, struct sync_list *sync)
{
	autoclose int to = -1, mapfd = -1;
	autofree unsigned char *bytes = NULL;
	size_t len;
	int r;

	r = link_fd(l->fd, dirfd, data);
	if (r == 0) { /* what a machine wrote there may not have left the memory */
		sync_file_range(l->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
		*form = LAYER_PLAIN;
	} else if (r == -EXDEV && *form == LAYER_SQUASHED) {
		to = create_plain(dirfd, data);
		r = MIN(to, 0);
	} else if (r == -EXDEV) {
		r = layer_create_file(dirfd, data, l->pages, &to);
	}
	if (r == 0)
		r = pass_run(l, to, *form == LAYER_SQUASHED ? PASS_SQUASH : PASS_PLAIN, x);
	if (r == 0)
		r = sync_as_sealed(to >= 0 ? to : l->fd, sync);
	if (r == 0)
		r = map_copy(&l->map, &x->map);
	if (r == 0)
		r = index_encode(x, l->pages, &bytes, &len);
	if (r < 0)
		return r;
	mapfd = create_plain(dirfd, map);
	if (mapfd < 0)
		return mapfd;
	r = io_write_full(mapfd, bytes, len);
	return r < 0 ? r : sync_as_sealed(mapfd, sync);
}

int layer_save(struct layer *l, int dirfd, enum layer_form form, struct sync_list *sync)
{
	/* The digest is known only at the end, so both files begin under these names. */
	static const char tmp_data[] = "data.tmp", tmp_map[] = "map.tmp";
	AUTO(index_fini) struct index x = {0};
	char data[LAYER_NAME], map[LAYER_NAME];
	int r;

	r = save_as(l, &x, dirfd, tmp_data, tmp_map, &form, sync);
	if (r == 0 && l->has_digest && !digest_equal(&l->digest, &x.digest))
		r = -EUCLEAN;
	if (r == 0) {
		layer_names(&x.digest, data, map);
		if (form == LAYER_SQUASHED)
			layer_squashed_name(&x.digest, data);
		if (renameat(dirfd, tmp_data, dirfd, data) < 0 ||
		    renameat(dirfd, tmp_map, dirfd, map) < 0)
			r = -errno;
	}
	/* Also after a rename: between two names of one file it does nothing, and succeeds. */
	unlinkat(dirfd, tmp_data, 0);
	unlinkat(dirfd, tmp_map, 0);
	if (r < 0)
		return r;
	l->digest = x.digest;
	l->has_digest = true;
	return 0;
}

static int open_failed(int r, const char *file, struct err *e)
{
	if (r == -ENOENT)
		return err_set(
		    e, ENOENT, "snapshot_incomplete",
		    "file %s is missing; copy it again from where the snapshot came from", file);
	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "no memory to read file %s", file);
	if (r == -EBADMSG || r == -ENODATA || r == -EFBIG || r == -ELOOP)
		return err_set(e, EBADMSG, "snapshot_corrupt",
		               "file %s is damaged; delete the snapshot and take it again", file);
	return err_set(e, -r, "snapshot_io", "cannot read file %s: %s", file, strerror(-r));
}

static int open_file(int dirfd, const char *name, int *ret)
{
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	*ret = fd;
	return 0;
}

/* Reads and checks a map file up to its table, whose place and length it returns. */
static int read_head(int fd, const struct digest *want, uint64_t pages, struct index *ret,
                     size_t *ret_at, size_t *ret_len)
{
	unsigned char fixed[INDEX_FIXED_LEN];
	autofree unsigned char *head = NULL;
	struct index x = {0};
	size_t head_len, table_len;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	r = io_pread_full(fd, fixed, sizeof(fixed), 0);
	if (r == 0)
		r = index_lengths(fixed, &head_len, &table_len);
	if (r < 0)
		return r;
	if ((uint64_t)st.st_size != head_len + table_len)
		return -EBADMSG;
	head = malloc(head_len);
	if (!head)
		return -ENOMEM;
	r = io_pread_full(fd, head, head_len, 0);
	if (r == 0)
		r = index_parse_head(head, head_len, pages, &x);
	if (r < 0)
		return r;
	if (!digest_equal(&x.digest, want)) {
		index_fini(&x);
		return -EBADMSG;
	}
	*ret = x;
	*ret_at = head_len;
	*ret_len = table_len;
	return 0;
}

/* The map file of a layer, checked. */
static int open_map(int dirfd, const struct digest *digest, uint64_t pages, struct index *ret,
                    struct err *e)
{
	autoclose int fd = -1;
	char data[LAYER_NAME], map[LAYER_NAME];
	size_t at, len;
	int r;

	layer_names(digest, data, map);
	r = open_file(dirfd, map, &fd);
	if (r == 0)
		r = read_head(fd, digest, pages, ret, &at, &len);
	return r < 0 ? open_failed(r, map, e) : 0;
}

/* Unpacked into a memfd, sealed. */
static int open_squashed(int fd, uint64_t pages, struct map *map, struct layer **ret)
{
	autoclose int mem = -1;
	int r = layer_create_memfd("unpacked", pages, &mem);

	if (r == 0)
		r = squash_unpack(fd, pages, map, mem);
	return r < 0 ? r : layer_seal_memfd(mem, pages, map, ret);
}

int layer_open(int dirfd, const struct digest *digest, uint64_t pages, struct layer **ret,
               struct err *e)
{
	autoclose int fd = -1;
	AUTO(index_fini) struct index x = {0};
	char data[LAYER_NAME], map[LAYER_NAME], squashed[LAYER_NAME];
	int r;

	r = open_map(dirfd, digest, pages, &x, e);
	if (r < 0)
		return r;
	layer_names(digest, data, map);
	layer_squashed_name(digest, squashed);
	r = open_file(dirfd, data, &fd);
	if (r == 0)
		r = wrap(fd, pages, &x.map, ret);
	if (r == 0)
		take_fd(&fd);
	if (r < 0 && r != -ENOENT)
		return open_failed(r, data, e);
	if (r == -ENOENT) {
		r = open_file(dirfd, squashed, &fd);
		if (r == 0)
			r = open_squashed(fd, pages, &x.map, ret);
		if (r < 0) /* in neither form: the plain one is missed */
			return open_failed(r, r == -ENOENT ? data : squashed, e);
	}
	(*ret)->digest = *digest;
	(*ret)->has_digest = true;
	return 0;
}

int layer_look(int dirfd, const struct digest *digest, uint64_t pages, struct err *e)
{
	AUTO(index_fini) struct index x = {0};
	char data[LAYER_NAME], map[LAYER_NAME], squashed[LAYER_NAME];
	struct stat st;
	int r;

	r = open_map(dirfd, digest, pages, &x, e);
	if (r < 0)
		return r;
	layer_names(digest, data, map);
	layer_squashed_name(digest, squashed);
	if (fstatat(dirfd, squashed, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	if (fstatat(dirfd, data, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return open_failed(-errno, data, e);
	return (uint64_t)st.st_size == pages * MAP_PAGE ? 0 : open_failed(-EBADMSG, data, e);
}

static int read_table(int mapfd, const struct layer *l, struct index *ret)
{
	autofree unsigned char *table = NULL;
	size_t at, len;
	int r;

	r = read_head(mapfd, &l->digest, l->pages, ret, &at, &len);
	if (r < 0)
		return r;
	table = malloc(len + 1);
	if (!table)
		return -ENOMEM;
	r = io_pread_full(mapfd, table, len, (off_t)at);
	return r < 0 ? r : index_parse_table(ret, table, len, l->pages);
}

/* The first chunk in which two lists differ; false when they are the same. */
static bool first_difference(const struct index *a, const struct index *b, uint64_t *ret)
{
	for (size_t i = 0; i < a->nchunks || i < b->nchunks; i++) {
		const struct index_chunk *x = i < a->nchunks ? &a->chunks[i] : NULL;
		const struct index_chunk *y = i < b->nchunks ? &b->chunks[i] : NULL;

		if (x && y && x->number == y->number && digest_equal(&x->digest, &y->digest))
			continue;
		*ret = x && (!y || x->number < y->number) ? x->number : y->number;
		return true;
	}
	return false;
}

int layer_verify(const struct layer *l, int dirfd, struct err *e)
{
	autoclose int mapfd = -1;
	AUTO(index_fini) struct index want = {0}, is = {0};
	char data[LAYER_NAME], map[LAYER_NAME];
	uint64_t bad;
	int r;

	layer_names(&l->digest, data, map);
	r = open_file(dirfd, map, &mapfd);
	if (r == 0)
		r = read_table(mapfd, l, &want);
	if (r < 0)
		return open_failed(r, map, e);
	r = pass_run(l, -1, PASS_PLAIN, &is);
	if (r < 0)
		return open_failed(r, data, e);
	if (first_difference(&want, &is, &bad))
		return err_set(
		    e, EBADMSG, "snapshot_corrupt",
		    "file %s is damaged in chunk %llu (at byte %llu); delete the snapshot "
		    "and take it again",
		    data, (unsigned long long)bad, (unsigned long long)bad * INDEX_CHUNK);
	return 0;
}
