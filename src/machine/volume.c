/*
 * machine/volume.c - volumes of a machine that runs: they come, go, grow and are copied
 * The books say what a machine may have before it has it, and until it has it no more: a process
 * that comes after a crash finds each file it holds in them. What it really holds its fds tell.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/sparse.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "machine/machine_internal.h"

enum {
	MOUNT_MS = 60000, /* a journal may have to be played back */
	SYNC_MS = 60000,  /* what is dirty is written */
	ASK_MS = 10000,
};

static void guest_freep(struct guest **g)
{
	guest_free(*g);
}

/* Is this the file that the machine holds in the slot? */
static bool holds(struct machines *ms, const struct engine_machine *m, unsigned slot,
                  const struct stat *file)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)m->pid,
	         ms->engines->volume_slot + slot);
	return stat(path, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

static int keep_book(struct engine_machine *m, const struct machine_info *info, struct err *e)
{
	int r = machine_write_book(m->dirfd, m, info);

	return r < 0 ? err_set(e, -r, "machine_dir", "cannot write the books of %s: %s", m->id,
	                       strerror(-r))
	             : 0;
}

/* The place of another volume in the list, or taken already? */
static bool taken(const struct engine_machine *m, const struct machine_volume *v, size_t n,
                  size_t self, unsigned slot)
{
	for (size_t i = 0; i < n; i++)
		if (i != self && v[i].slot == slot)
			return true;
	return m->volumes[slot].size != 0;
}

/* Its own slot if that is free, else whichever the guest has let go of. */
static int attach(struct machines *ms, struct engine_machine *m, const struct machine_info *info,
                  struct machine_volume *list, size_t n, size_t i, struct err *e)
{
	struct machine_volume *v = &list[i];
	struct engine_volume file = {.fd = -1};
	int r = engine_volume_open(v->file, v->read_only, &file, e);

	if (r < 0)
		return r;
	/* A hostile kernel has made it longer: pandad does not count on that. */
	if (file.size < v->size ||
	    (file.size > v->size && !v->read_only && ftruncate(file.fd, (off_t)v->size) < 0)) {
		engine_volume_close(&file);
		return err_set(e, EIO, "volume_unusable", "%s is not as large as it was", v->file);
	}
	file.size = v->size;
	r = err_set(e, EBUSY, "volume_busy",
	            "machine %s has no free place for a volume: processes still use those it had",
	            m->id);
	for (unsigned k = 0; r == -EBUSY && k < ENGINE_VOLUMES_MAX; k++) {
		unsigned slot = (v->slot + k) % ENGINE_VOLUMES_MAX;

		if (taken(m, list, n, i, slot))
			continue;
		m->volumes[slot] = file;
		r = keep_book(m, info, e);
		if (r == 0)
			r = ms->engines->volume_attach(ms->engines, m, slot, &file, e);
		if (r < 0)
			m->volumes[slot] = (struct engine_volume){.fd = -1};
		else
			v->slot = slot;
	}
	engine_volume_close(&file);
	return r;
}

/* The one in the list is what the machine has; what it does not have, the books need not know. */
static void forget_others(struct machines *ms, struct engine_machine *m)
{
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++) {
		struct stat was = {.st_dev = m->volumes[i].dev, .st_ino = m->volumes[i].ino};

		if (m->volumes[i].size && !holds(ms, m, i, &was))
			m->volumes[i] = (struct engine_volume){.fd = -1};
	}
}

static int mount_one(struct guest *g, const struct machine_volume *v, struct err *e)
{
	int r = guest_mount(g, v->slot, v->mount, v->read_only, e);

	return r == -EBUSY ? 0 : r; /* it is mounted already */
}

static int settle_one(struct machines *ms, struct engine_machine *m,
                      const struct machine_info *info, struct guest *g, struct machine_volume *list,
                      size_t n, size_t i, bool all, struct err *e)
{
	struct machine_volume *v = &list[i];
	struct stat st;
	bool had;
	int r;

	if (stat(v->file, &st) < 0)
		return err_set(e, errno, "volume_missing", "cannot find the volume %s: %s", v->file,
		               strerror(errno));
	had = holds(ms, m, v->slot, &st);
	r = had ? 0 : attach(ms, m, info, list, n, i, e);
	if (r == 0 && (all || !had)) {
		r = mount_one(g, v, e);
		if (r < 0 && !had)
			ms->engines->volume_detach(ms->engines, m, v->slot, true, NULL);
	}
	if (r == 0 && had && m->volumes[v->slot].size < v->size) {
		r = ms->engines->volume_grow(ms->engines, m, v->slot, v->size, e);
		if (r == 0 && !v->read_only)
			r = guest_grow(g, v->slot, v->mount, e);
	}
	return r;
}

int machine_volumes_settle(struct machines *ms, const char *id, struct machine_volume *v, size_t n,
                           bool all, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(guest_freep) struct guest *g = NULL;
	struct machine_info info;
	int r, r2;

	r = machine_take_up(ms, id, &m, &info, e);
	if (r == 0)
		r = machine_guest(ms, id, &g, e);
	if (r < 0)
		return r;
	guest_set_deadline(g,
	                   all ? ASK_MS : MOUNT_MS); /* all: when pandad starts, and others wait */
	forget_others(ms, &m);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = settle_one(ms, &m, &info, g, v, n, i, all, e);
	r2 = keep_book(&m, &info, r < 0 ? NULL : e);
	return r < 0 ? r : r2;
}

/* --- going ------------------------------------------------------------------------------------ */

/* The lock is the machine's as long as it has the file open. */
static int let_go(const struct machine_volume *v, const char *id, struct err *e)
{
	autoclose int fd = open(v->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || v->read_only || flock(fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	return err_set(e, EBUSY, "volume_busy",
	               "machine %s says it has let go of the volume but has not: kill the sandbox",
	               id);
}

static int unmount(struct guest *g, const struct machine_volume *v, bool force, struct err *e)
{
	int r = guest_umount(g, v->mount, false, e);

	if (r == -EBUSY && force) {
		guest_sync(g, NULL); /* the last moment for what was written so far */
		r = guest_umount(g, v->mount, true, e);
	}
	return r == -EINVAL ? 0 : r; /* not mounted there: the guest was faster */
}

int machine_volume_take(struct machines *ms, const char *id, const struct machine_volume *v,
                        bool force, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(guest_freep) struct guest *g = NULL;
	struct machine_info info;
	int r = machine_take_up(ms, id, &m, &info, e);

	if (r < 0)
		return r;
	r = machine_guest(ms, id, &g, e);
	if (g) {
		guest_set_deadline(g, SYNC_MS);
		r = unmount(g, v, force, e);
	}
	if (r < 0 && !force)
		return r;
	r = ms->engines->volume_detach(ms->engines, &m, v->slot, force, e);
	if (r < 0) {
		if (r == -EBUSY && g)
			guest_mount(g, v->slot, v->mount, v->read_only, NULL);
		return r;
	}
	r = keep_book(&m, &info, e);
	return r < 0 ? r : let_go(v, id, e);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Those that are marked, or not, by the time they were read. */
static int copy_chunks(int from, int to, const atomic_uchar *marks, bool marked, uint64_t size,
                       const atomic_bool *stop)
{
	autofree void *buf = malloc(ENGINE_COPY_CHUNK);
	off_t off = 0, end = (off_t)size;

	if (!buf)
		return -ENOMEM;
	while ((off = sparse_data(from, off, end)) >= 0 && off < end) {
		off_t at = off - off % ENGINE_COPY_CHUNK;
		size_t len = (size_t)MIN((off_t)ENGINE_COPY_CHUNK, end - at);
		int r;

		if (stop && atomic_load(stop))
			return -ECANCELED;
		off = at + ENGINE_COPY_CHUNK;
		if ((atomic_load(&marks[at / ENGINE_COPY_CHUNK]) != 0) != marked)
			continue;
		r = io_pread_full(from, buf, len, at);
		if (r == 0 && (atomic_load(&marks[at / ENGINE_COPY_CHUNK]) != 0) == marked)
			r = sparse_write(to, buf, len, at);
		if (r < 0)
			return r;
	}
	return off < 0 ? (int)off : 0;
}

static int copy_failed(int r, struct err *e)
{
	if (r == -ECANCELED)
		return err_set(e, ECANCELED, "conflict",
		               "the sandbox was killed while its volume was being copied");
	return err_set(e, -r, r == -ENOSPC || r == -EDQUOT ? "disk_full" : "volume_failed",
	               "cannot copy the volume: %s", strerror(-r));
}

/*
 * The machine keeps what it changes in a file without a name, never in the copy itself: a process
 * that has a file open can write it later, too, and the copy belongs to another machine then.
 */
struct machine_copy {
	struct engines *engines;
	struct engine_machine m; /* a control of its own: as long as that is open, it is copied */
	unsigned slot;
	uint64_t size;
	int from, to, kept, marks;
	atomic_uchar *marked; /* one for each chunk: the old one is in kept */
	size_t chunks;
	bool shared; /* blocks: nothing left to be copied */
};

void machine_copy_free(struct machine_copy *c)
{
	if (!c)
		return;
	if (c->marked)
		munmap(c->marked, c->chunks);
	closep(&c->from);
	closep(&c->to);
	closep(&c->kept);
	closep(&c->marks);
	engine_machine_fini(&c->m);
	free(c);
}

/* On the same disk as this one. */
static int nameless_beside(int fd)
{
	char link[32], dir[PATH_MAX], *slash;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, dir, sizeof(dir) - 1);
	if (n < 0)
		return -errno;
	dir[n] = 0;
	slash = strrchr(dir, '/');
	if (!slash)
		return -EINVAL;
	slash[slash == dir] = 0;
	fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static int prepare_copy(struct machine_copy *c, const struct engine_machine *m, int to)
{
	void *map;

	c->m.control = fcntl(m->control, F_DUPFD_CLOEXEC, 3);
	c->m.pidfd = fcntl(m->pidfd, F_DUPFD_CLOEXEC, 3);
	c->to = fcntl(to, F_DUPFD_CLOEXEC, 3);
	c->kept = nameless_beside(to);
	if (c->kept < 0)
		return c->kept;
	c->marks = memfd_create("panda-marks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (c->m.control < 0 || c->m.pidfd < 0 || c->to < 0 || c->marks < 0 ||
	    ftruncate(c->marks, (off_t)c->chunks) < 0 || ftruncate(to, (off_t)c->size) < 0 ||
	    ftruncate(c->kept, (off_t)c->size) < 0)
		return -errno;
	/* We look at them in place: a shorter file would be our end. */
	if (fcntl(c->marks, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	map = mmap(NULL, c->chunks, PROT_READ, MAP_SHARED, c->marks, 0);
	if (map == MAP_FAILED)
		return -errno;
	c->marked = map;
	return 0;
}

int machine_copy_begin(struct machines *ms, const struct engine_machine *m, unsigned slot,
                       uint64_t size, int to, struct machine_copy **ret, struct err *e)
{
	struct machine_copy *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return err_nomem(e);
	*c = (struct machine_copy){.engines = ms->engines,
	                           .m = ENGINE_MACHINE_EMPTY,
	                           .slot = slot,
	                           .size = size,
	                           .chunks =
	                               (size_t)((size + ENGINE_COPY_CHUNK - 1) / ENGINE_COPY_CHUNK),
	                           .from = -1,
	                           .to = -1,
	                           .kept = -1,
	                           .marks = -1};
	memcpy(c->m.id, m->id, sizeof(c->m.id));
	r = machine_volume_file(ms, m, slot, &c->from, e);
	if (r == 0 && (r = prepare_copy(c, m, to)) < 0)
		copy_failed(r, e);
	if (r == 0) {
		c->shared = ioctl(c->to, FICLONE, c->from) == 0;
		if (!c->shared)
			r = ms->engines->volume_copy(ms->engines, &c->m, slot, c->kept, c->marks,
			                             e);
	}
	if (r < 0)
		machine_copy_free(c);
	else
		*ret = c;
	return r;
}

int machine_copy_finish(struct machine_copy *c, const atomic_bool *stop, struct err *e)
{
	int r = 0;

	if (!c->shared) {
		r = copy_chunks(c->from, c->to, c->marked, false, c->size, stop);
		if (r < 0)
			copy_failed(r, e);
		else
			r = c->engines->volume_copied(c->engines, &c->m, c->slot, e);
		if (r == 0 && (r = copy_chunks(c->kept, c->to, c->marked, true, c->size, stop)) < 0)
			copy_failed(r, e);
	}
	machine_copy_free(c);
	return r;
}

/* One moment: the file system is at peace on disk, and what comes after it is kept apart. */
static int begin_frozen(struct machines *ms, const struct engine_machine *m, struct guest *g,
                        const struct machine_volume *v, int to, struct machine_copy **ret,
                        struct err *e)
{
	struct machine_copy *c = NULL;
	bool frozen;
	int r, r2 = 0;

	guest_set_deadline(g, SYNC_MS);
	r = guest_sync(g, e); /* so that no program waits long for the freeze */
	guest_set_deadline(g, ASK_MS);
	if (r == 0)
		r = guest_freeze(g, v->slot, v->mount, e);
	frozen = r == 0;
	if (r == -EINVAL)
		r = 0; /* the guest has unmounted it: at peace, or its freezer's business */
	if (r == 0)
		r = machine_copy_begin(ms, m, v->slot, v->size, to, &c, e);
	if (frozen)
		r2 = guest_thaw(g, r < 0 ? NULL : e);
	r = r < 0 ? r : r2;
	if (r < 0)
		machine_copy_free(c);
	else
		*ret = c;
	return r;
}

int machine_volume_copy(struct machines *ms, const char *id, const struct machine_volume *v, int to,
                        const atomic_bool *stop, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(guest_freep) struct guest *g = NULL;
	struct machine_copy *c = NULL;
	struct machine_info info;
	int r = machine_take_up(ms, id, &m, &info, e);

	if (r == 0)
		r = machine_guest(ms, id, &g, e);
	if (r == 0)
		r = begin_frozen(ms, &m, g, v, to, &c, e);
	return r < 0 ? r : machine_copy_finish(c, stop, e);
}
