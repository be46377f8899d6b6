/*
 * machine/guest_calls.c - the blocking half of guest.h: files, and the machine itself
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "machine/guest.h"
#include "machine/guest_internal.h"
#include "wire/guest.h"

/* ---- rows ---- */

struct rows {
	void (*each)(void *arg, const struct wire_exec_info *m);
	void *arg;
};

static int info_row(struct wait *w, const uint8_t *p, size_t n)
{
	struct rows *rows = w->arg;
	struct wire_exec_info m;
	ssize_t r = wire_exec_info_take(p, n, &m);

	if (r > 0)
		rows->each(rows->arg, &m);
	return (int)r;
}

int guest_exec_list(struct guest *g, void (*each)(void *arg, const struct wire_exec_info *m),
                    void *arg, struct err *e)
{
	struct rows rows = {.each = each, .arg = arg};
	struct wait w = {.row = info_row, .arg = &rows};

	return wait_run(g, WIRE_LIST, &(struct wire_window){.window = GUEST_WINDOW}, &w,
	                "cannot list commands", e);
}

/* ---- files ---- */

struct buffer {
	struct wait *w;
	char *p;
	size_t n, cap, max;
	int fd;
};

static void into_buffer(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct buffer *b = arg;

	if (n > b->max - b->n) {
		wait_give_up(b->w, -EFBIG);
		return;
	}
	if (b->n + n + 1 > b->cap) {
		size_t cap = MAX(b->cap * 2, b->n + n + 1);
		char *bigger = realloc(b->p, cap);

		if (!bigger) {
			wait_give_up(b->w, -ENOMEM);
			return;
		}
		b->p = bigger;
		b->cap = cap;
	}
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

static void into_fd(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct buffer *b = arg;
	int r = n > b->max - b->n ? -EFBIG : io_write_full(b->fd, p, n);

	b->n += n;
	if (r < 0)
		wait_give_up(b->w, r);
}

static int read_with(struct guest *g, const char *path, struct wait *w, struct err *e)
{
	struct wire_read m = {.path = wire_str(path), .length = UINT64_MAX, .window = GUEST_WINDOW};

	return wait_run(g, WIRE_READ, &m, w, path, e);
}

int guest_read_file(struct guest *g, const char *path, size_t max, char **ret, size_t *ret_n,
                    struct err *e)
{
	struct wait w = {.output = into_buffer};
	struct buffer b = {.w = &w, .max = max, .p = malloc(1), .cap = 1};
	int r;

	if (!b.p)
		return err_nomem(e);
	w.arg = &b;
	r = read_with(g, path, &w, e);
	if (r < 0) {
		free(b.p);
		return r;
	}
	b.p[b.n] = 0;
	*ret = b.p;
	if (ret_n)
		*ret_n = b.n;
	return 0;
}

int guest_read_to_fd(struct guest *g, const char *path, int fd, size_t max, struct err *e)
{
	struct wait w = {.output = into_fd};
	struct buffer b = {.w = &w, .max = max, .fd = fd};

	w.arg = &b;
	return read_with(g, path, &w, e);
}

int guest_write_from_fd(struct guest *g, const char *path, int fd, uint32_t flags, mode_t mode,
                        struct err *e)
{
	struct wait w = {.feeding = true, .in_fd = fd};
	struct wire_write m = {.path = wire_str(path), .flags = flags, .mode = mode};

	return wait_run(g, WIRE_WRITE, &m, &w, path, e);
}

struct memory_writer {
	struct wait w;
	const char *p;
	size_t n;
};

static void push(struct memory_writer *mw)
{
	size_t k;

	while (mw->n && (k = guest_send(mw->w.call, mw->p, mw->n))) {
		mw->p += k;
		mw->n -= k;
	}
	if (!mw->n)
		guest_send_eof(mw->w.call); /* -EAGAIN: the next turn tries again */
}

int guest_write_file(struct guest *g, const char *path, const void *p, size_t n, uint32_t flags,
                     mode_t mode, struct err *e)
{
	struct memory_writer mw = {.p = p, .n = n};
	struct wire_write m = {.path = wire_str(path), .flags = flags, .mode = mode};
	int r = wait_begin(g, WIRE_WRITE, &m, &mw.w, path, e);

	if (r < 0)
		return r;
	while (!mw.w.done) {
		push(&mw);
		guest_flush(g);
		if (!mw.w.done)
			wait_turn(g, &mw.w);
	}
	return wait_finish(g, &mw.w, path, e);
}

int guest_stat(struct guest *g, const char *path, bool follow, struct wire_file *ret, struct err *e)
{
	struct wait w = {0};
	struct wire_path_flags m = {.path = wire_str(path),
	                            .flags = follow ? 0 : WIRE_STAT_NOFOLLOW};
	int r = wait_run(g, WIRE_STAT, &m, &w, path, e);

	if (r == 0)
		*ret = w.file;
	return r;
}

int guest_mkdir(struct guest *g, const char *path, mode_t mode, bool parents, struct err *e)
{
	struct wire_mkdir m = {.path = wire_str(path),
	                       .flags = parents ? WIRE_MKDIR_PARENTS : 0,
	                       .mode = mode};

	return guest_ask(g, WIRE_MKDIR, &m, path, e);
}

int guest_remove(struct guest *g, const char *path, bool recursive, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str(path),
	                            .flags = recursive ? WIRE_REMOVE_RECURSIVE : 0};

	return guest_ask(g, WIRE_REMOVE, &m, path, e);
}

int guest_symlink(struct guest *g, const char *target, const char *path, struct err *e)
{
	struct wire_two_paths m = {.from = wire_str(target), .to = wire_str(path)};

	return guest_ask(g, WIRE_SYMLINK, &m, path, e);
}

int guest_readlink(struct guest *g, const char *path, char **ret, struct err *e)
{
	struct wait w = {0};
	int r =
	    wait_run(g, WIRE_READLINK, &(struct wire_path){.path = wire_str(path)}, &w, path, e);

	if (r == 0 && !w.path)
		r = err_nomem(e);
	if (r == 0)
		*ret = take_ptr(w.path);
	free(w.path);
	return r;
}

/* ---- the machine ---- */

int guest_stats(struct guest *g, struct wire_stats *ret, struct err *e)
{
	struct wait w = {0};
	int r = wait_run(g, WIRE_STATS, NULL, &w, "cannot read statistics", e);

	if (r == 0)
		*ret = w.stats;
	return r;
}

int guest_sync(struct guest *g, struct err *e)
{
	return guest_ask(g, WIRE_SYNC, NULL, "cannot sync", e);
}

static void cannot_mount(const struct wire_mount *m, char what[160])
{
	snprintf(what, 160, "cannot mount volume %u at %.100s", m->volume, m->path.p);
}

int guest_mount(struct guest *g, unsigned volume, const char *path, bool read_only, struct err *e)
{
	struct wire_mount m = {.volume = volume,
	                       .flags = read_only ? WIRE_MOUNT_RO : 0,
	                       .path = wire_str(path)};
	char what[160];

	cannot_mount(&m, what);
	return guest_ask(g, WIRE_MOUNT, &m, what, e);
}

int guest_reborn_mount(struct guest *g, const struct wire_reborn *m,
                       const struct wire_mount *mounts, size_t n, struct err *e)
{
	static const char first[] = "cannot give the machine its identity";
	autofree struct wait *w = calloc(n + 1, sizeof(*w));
	size_t begun = 0;
	char what[160];
	int r, r2;

	if (!w)
		return err_nomem(e);
	r = wait_begin(g, WIRE_REBORN, m, &w[0], first, e);
	for (begun = r == 0; r == 0 && begun <= n; begun += r == 0) {
		cannot_mount(&mounts[begun - 1], what);
		r = wait_begin(g, WIRE_MOUNT, &mounts[begun - 1], &w[begun], what, e);
	}
	/* Each must be over before its struct wait goes; the first failure is the one to tell. */
	for (size_t i = 0; i < begun; i++) {
		if (i)
			cannot_mount(&mounts[i - 1], what);
		r2 = wait_finish(g, &w[i], i ? what : first, r < 0 ? NULL : e);
		r = r < 0 ? r : r2;
	}
	return r;
}

int guest_umount(struct guest *g, const char *path, bool force, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str(path), .flags = force ? WIRE_UMOUNT_FORCE : 0};
	char what[128];

	snprintf(what, sizeof(what), "cannot unmount %.100s", path);
	return guest_ask(g, WIRE_UMOUNT, &m, what, e);
}

int guest_umount_lost(struct guest *g, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str("/"), .flags = WIRE_UMOUNT_LOST};

	return guest_ask(g, WIRE_UMOUNT, &m, "cannot unmount lost volumes", e);
}

int guest_grow(struct guest *g, unsigned volume, const char *path, struct err *e)
{
	struct wire_mount m = {.volume = volume, .path = wire_str(path)};
	char what[128];

	snprintf(what, sizeof(what), "cannot let the volume at %.80s grow", path);
	return guest_ask(g, WIRE_GROW, &m, what, e);
}

int guest_freeze(struct guest *g, unsigned volume, const char *path, struct err *e)
{
	struct wire_mount m = {.volume = volume, .path = wire_str(path)};
	char what[128];

	snprintf(what, sizeof(what), "cannot freeze the volume at %.80s", path);
	return guest_ask(g, WIRE_FREEZE, &m, what, e);
}

int guest_thaw(struct guest *g, struct err *e)
{
	return guest_ask(g, WIRE_THAW, NULL, "cannot thaw a volume", e);
}
