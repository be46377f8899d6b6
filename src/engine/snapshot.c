/*
 * engine/snapshot.c - sealing a machine that runs: its newest layers become immutable, it goes on
 * above
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/sock.h"
#include "engine/engines_internal.h"
#include "engine/pages.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "machine/engine.h"
#include "wire/control.h"

static int reopen(int fd, int flags)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Drops the layers that the machine does not need any more; the others keep their order. */
static int keep_live(struct set *s, uint64_t live)
{
	struct set kept = {.pages = s->pages};
	int r = 0;

	for (size_t i = 0; r == 0 && i < s->n; i++)
		if (live >> i & 1)
			r = set_push(&kept, s->at[i]);
	if (r < 0) {
		set_fini(&kept);
		return r;
	}
	set_fini(s);
	*s = kept;
	return 0;
}

struct snapshot_work {
	struct control_packet p;
	int map, state, next, top_ro;
	int disk_ro[ENGINE_DISKS_MAX], disk_next[ENGINE_DISKS_MAX];
	char disk_name[ENGINE_DISKS_MAX][32], disk_next_name[ENGINE_DISKS_MAX][32];
};

static void work_init(struct snapshot_work *w)
{
	*w = (struct snapshot_work){.map = -1, .state = -1, .next = -1, .top_ro = -1};
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++)
		w->disk_ro[d] = w->disk_next[d] = -1;
}

static void work_fini(struct snapshot_work *w)
{
	closep(&w->map);
	closep(&w->state);
	closep(&w->next);
	closep(&w->top_ro);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		closep(&w->disk_ro[d]);
		closep(&w->disk_next[d]);
	}
}

/* The file behind the disk's top, found by what the machine holds, and a name for the next one. */
static int disk_top(const struct engine_machine *m, size_t disk, char name[32], char next[32])
{
	struct stat top, st;
	char path[64];
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/fd/%zu", (int)m->pid,
	         CTL_FD_DISK + disk * CTL_LAYERS_MAX + m->image.disks[disk].layers.n);
	if (stat(path, &top) < 0)
		return -errno;
	for (size_t n = 0;; n++) {
		layer_file_name(next, disk, n);
		if (fstatat(m->dirfd, next, &st, AT_SYMLINK_NOFOLLOW) < 0)
			break;
		if (st.st_dev == top.st_dev && st.st_ino == top.st_ino) {
			layer_file_name(name, disk, n);
			found = true;
		}
	}
	return found ? 0 : -ENOENT;
}

static int prepare_snapshot(struct engine_machine *m, struct snapshot_work *w)
{
	struct control_packet *p = &w->p;
	int r;

	p->msg = (struct ctl_msg){.magic = CTL_MAGIC, .type = CTL_SNAPSHOT};
	w->map = openat(m->dirfd, ENGINE_UNBOOKED, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	w->state = memfd_create("panda-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	w->top_ro = reopen(m->top, O_RDONLY);
	r = layer_create_memfd("panda-memory", pages_of(m->image.memory_size), &w->next);
	if (r < 0 || w->map < 0 || w->state < 0 || w->top_ro < 0)
		return r < 0 ? r : -ENOMEM;
	control_packet_add(p, w->state, CTL_TO_STATE);
	control_packet_add(p, w->map, CTL_TO_MAP);
	control_packet_add(p, w->top_ro, CTL_TOP_RO);
	control_packet_add(p, w->next, CTL_FD_TOP);
	for (size_t d = 0; d < m->image.ndisks; d++) {
		char *next = w->disk_next_name[d];

		if (m->image.disks[d].read_only)
			continue;
		r = disk_top(m, d, w->disk_name[d], next);
		if (r < 0)
			return r;
		w->disk_ro[d] =
		    openat(m->dirfd, w->disk_name[d], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (w->disk_ro[d] < 0)
			return -errno;
		r = layer_create_file(m->dirfd, next, pages_of(m->image.disks[d].size),
		                      &w->disk_next[d]);
		if (r < 0)
			return r;
		control_packet_add(p, w->disk_ro[d], CTL_DISK_RO + (unsigned)d);
		control_packet_add(p, w->disk_next[d], CTL_DISK_TOP + (unsigned)d);
	}
	return 0;
}

/* Turns what was the top into a layer of the set. */
static int push_memory(struct engine_machine *m, struct snapshot_work *w, const struct ctl_msg *a,
                       off_t *pos)
{
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	uint64_t deadline = 0;
	int r;

	r = keep_live(&m->image.memory, a->arg[CTL_DONE_LIVE]);
	if (r == 0)
		r = runs_read(w->map, pos, a->arg[CTL_DONE_RUNS], m->image.memory.pages, &map);
	if (r == 0) {
		do
			r = layer_seal_memfd(m->top, m->image.memory.pages, &map, &l);
		while (layer_busy(r, &deadline));
	}
	if (r == 0)
		r = set_push(&m->image.memory, l);
	return r;
}

static int push_disk(struct engine_machine *m, size_t d, struct snapshot_work *w,
                     const struct ctl_msg *a, off_t *pos)
{
	struct engine_disk *k = &m->image.disks[d];
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	uint64_t deadline = 0;
	int r;

	r = keep_live(&k->layers, a->disk[d].size);
	if (r == 0)
		r = runs_read(w->map, pos, a->disk[d].layers, k->layers.pages, &map);
	if (r == 0) { /* its stubs have the disks open, too */
		do
			r = layer_seal_file(m->dirfd, w->disk_name[d], k->layers.pages, &map, &l);
		while (layer_busy(r, &deadline));
	}
	if (r == 0)
		r = set_push(&k->layers, l);
	return r;
}

/* The machine goes on where it was; but its disks may have dropped layers already. */
static void give_up(struct engine_machine *m, const struct snapshot_work *w,
                    const struct ctl_msg *a)
{
	for (size_t d = 0; d < m->image.ndisks; d++) {
		if (w->disk_next[d] >= 0)
			unlinkat(m->dirfd, w->disk_next_name[d], 0);
		if (a->disk[d].size)
			keep_live(&m->image.disks[d].layers, a->disk[d].size);
	}
}

static int take_snapshot(struct engine_machine *m, bool hold, struct engine_image *ret,
                         struct engine_snapshot_info *info, struct err *e)
{
	AUTO(work_fini) struct snapshot_work w;
	struct ctl_msg a = {0};
	off_t pos = 0;
	int r;

	work_init(&w);
	r = prepare_snapshot(m, &w);
	w.p.msg.arg[CTL_SNAPSHOT_HOLD] = hold;
	if (r == 0)
		r = control_call(m->control, m->pidfd, &w.p, CONTROL_CALL_TIMEOUT_MS, &a);
	if (r == 0)
		r = control_done(&a);
	if (r < 0) {
		give_up(m, &w, &a);
		return err_set(e, -r, r == -ESRCH ? "machine_gone" : "snapshot_failed",
		               "machine %s could not be saved: %s", m->id,
		               r == -ESRCH ? "it has ended" : strerror(-r));
	}
	/* No process of the machine holds its old top writable now; the seals prove it. */
	closep(&w.top_ro);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		closep(&w.disk_ro[d]);
		w.disk_ro[d] = -1;
		closep(&w.disk_next[d]);
		w.disk_next[d] = -1;
	}
	w.top_ro = -1;
	r = push_memory(m, &w, &a, &pos);
	for (size_t d = 0; r == 0 && d < m->image.ndisks; d++)
		if (!m->image.disks[d].read_only)
			r = push_disk(m, d, &w, &a, &pos);
	if (r == -EBUSY)
		return err_set(
		    e, EBUSY, "snapshot_failed",
		    "the host has not let go of the memory of machine %s in time: try again",
		    m->id);
	if (r < 0)
		return err_set(e, -r, "snapshot_failed", "machine %s lied about its layers: %s",
		               m->id, strerror(-r));
	close(m->top);
	m->top = take_fd(&w.next);
	if (fcntl(w.state, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) < 0)
		return err_set(e, errno, "snapshot_failed", "cannot seal the state of %s", m->id);
	r = engine_image_copy(&m->image, ret);
	if (r < 0)
		return err_set(e, -r, "no_memory", "no memory to save machine %s", m->id);
	ret->state = take_fd(&w.state);
	if (info)
		info->stop_ns = a.arg[CTL_DONE_STOP_NS];
	return 0;
}

int local_snapshot(struct engines *engines, struct engine_machine *m, struct engine_image *ret,
                   struct engine_snapshot_info *info, struct err *e)
{
	return take_snapshot(m, false, ret, info, e);
}

int local_snapshot_hold(struct engines *engines, struct engine_machine *m, struct engine_image *ret,
                        struct engine_snapshot_info *info, struct err *e)
{
	return take_snapshot(m, true, ret, info, e);
}

/* Whatever it is asked next lets it go on. */
int local_go_on(struct engines *engines, struct engine_machine *m, struct err *e)
{
	struct ctl_msg a;

	return control_ask(m, CTL_PING, &a, e);
}

int local_unbooked(struct engines *engines, int dirfd, int disk, uint64_t pages, struct map *ret)
{
	autoclose int map = openat(dirfd, ENGINE_UNBOOKED, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	autoclose int control = -1;
	struct control_packet ping = {.msg = {.magic = CTL_MAGIC, .type = CTL_PING}};
	struct ctl_msg a;
	struct stat st;
	off_t pos = 0;
	int r;

	if (map < 0)
		return -errno;
	/* Requests are served in turn: when this one is answered, a snapshot is over. */
	r = sock_connect(dirfd, "control", SOCK_SEQPACKET, &control);
	if (r == 0)
		r = control_call(control, -1, &ping, CONTROL_CALL_TIMEOUT_MS, &a);
	if (r < 0)
		return r;
	/* The machine's answer stands behind the runs. */
	if (fstat(map, &st) < 0 || st.st_size < (off_t)sizeof(a) ||
	    io_pread_full(map, &a, sizeof(a), st.st_size - (off_t)sizeof(a)) < 0 ||
	    a.magic != CTL_MAGIC || control_done(&a) < 0)
		return -ENOENT;
	if (disk < 0)
		return runs_read(map, &pos, a.arg[CTL_DONE_RUNS], pages, ret);
	pos = (off_t)(a.arg[CTL_DONE_RUNS] * sizeof(struct map_run));
	for (int d = 0; d < disk; d++)
		pos += (off_t)(a.disk[d].layers * sizeof(struct map_run));
	return runs_read(map, &pos, a.disk[disk].layers, pages, ret);
}
