#include "engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "base/sock.h"
#include "control.h"
#include "layers/set.h"

extern const char fake_machine_path[];
extern char **environ;

enum { ANSWER_MS = 20000 };

struct fake_process {
	char id[ENGINE_ID_MAX + 1];
	pid_t pid;
	int pidfd, control;
	struct fake_process *next;
};

static struct fake_engine *engine_of(struct engines *e)
{
	return (struct fake_engine *)e;
}

/* ---- what a test asks for ---- */

void fake_fail(struct fake_engine *e, enum fake_call call, unsigned nth, int err)
{
	pthread_mutex_lock(&e->lock);
	e->call[call].fail_at = e->call[call].count + nth;
	e->call[call].fail_with = err;
	pthread_mutex_unlock(&e->lock);
}

static void gate_set(struct fake_engine *e, enum fake_call call, bool closed)
{
	pthread_mutex_lock(&e->lock);
	e->call[call].closed = closed;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

void fake_close(struct fake_engine *e, enum fake_call call)
{
	gate_set(e, call, true);
}

void fake_open(struct fake_engine *e, enum fake_call call)
{
	gate_set(e, call, false);
}

unsigned fake_waiting(struct fake_engine *e, enum fake_call call)
{
	unsigned n;

	pthread_mutex_lock(&e->lock);
	n = e->call[call].waiting;
	pthread_mutex_unlock(&e->lock);
	return n;
}

unsigned fake_count(struct fake_engine *e, enum fake_call call)
{
	unsigned n;

	pthread_mutex_lock(&e->lock);
	n = e->call[call].count;
	pthread_mutex_unlock(&e->lock);
	return n;
}

/* Each call passes here first. */
static int call_enter(struct fake_engine *e, enum fake_call call, struct err *err)
{
	int r = 0;

	pthread_mutex_lock(&e->lock);
	e->call[call].waiting++;
	while (e->call[call].closed)
		pthread_cond_wait(&e->changed, &e->lock);
	e->call[call].waiting--;
	if (++e->call[call].count == e->call[call].fail_at)
		r = e->call[call].fail_with;
	pthread_mutex_unlock(&e->lock);
	return r ? err_set(err, r, "fake_failed", "the test lets call %d fail", (int)call) : 0;
}

static void memory_open(pid_t pid, int slot, int flags, int *ret)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, slot);
	*ret = open(path, flags | O_CLOEXEC);
	if (*ret < 0)
		abort(); /* the test asks for a machine that is not there */
}

void fake_poke(pid_t pid, uint64_t at, const void *p, size_t n)
{
	static const int slots[] = {FAKE_FLAT_MEMORY, FAKE_TOP};

	for (size_t i = 0; i < ARRAY_LEN(slots); i++) {
		char page[MAP_PAGE];
		autoclose int fd = -1, flat = -1;
		uint64_t start = at / MAP_PAGE * MAP_PAGE;

		memory_open(pid, slots[i], O_RDWR, &fd);
		memory_open(pid, FAKE_FLAT_MEMORY, O_RDONLY, &flat);
		/* Whole pages: a layer has them or not. */
		if (pread(flat, page, sizeof(page), (off_t)start) != MAP_PAGE ||
		    n > MAP_PAGE - (at - start))
			abort();
		memcpy(page + (at - start), p, n);
		io_pwrite_full(fd, page, sizeof(page), (off_t)start);
	}
}

void fake_peek(pid_t pid, uint64_t at, void *p, size_t n)
{
	autoclose int fd = -1;

	memory_open(pid, FAKE_FLAT_MEMORY, O_RDONLY, &fd);
	if (io_pread_full(fd, p, n, (off_t)at) < 0)
		abort();
}

/* ---- talking to a machine ---- */

struct packet {
	struct fake_msg msg;
	int fds[FAKE_FDS_MAX];
};

static int packet_add(struct packet *p, int fd, unsigned slot)
{
	if (p->msg.nfds == FAKE_FDS_MAX)
		return -E2BIG;
	p->fds[p->msg.nfds] = fd;
	p->msg.slot[p->msg.nfds++] = slot;
	return 0;
}

static struct packet *packet_new(enum fake_op op)
{
	struct packet *p = calloc(1, sizeof(*p));

	if (!p)
		abort();
	p->msg.op = op;
	return p;
}

/* The answer is in p->msg. -ESRCH: it has ended. */
static int packet_call(int control, struct packet *p)
{
	struct pollfd wait = {.fd = control, .events = POLLIN};
	int r = io_send_fds(control, &p->msg, sizeof(p->msg), p->fds, p->msg.nfds);
	ssize_t n;

	if (r < 0)
		return r == -EPIPE || r == -ECONNRESET ? -ESRCH : r;
	if (poll(&wait, 1, ANSWER_MS) != 1)
		return -ETIMEDOUT;
	n = recv(control, &p->msg, sizeof(p->msg), 0);
	return n == (ssize_t)sizeof(p->msg) ? p->msg.result : -ESRCH;
}

static int ask(struct fake_engine *e, enum fake_call call, struct engine_machine *m,
               struct packet *p, struct err *err)
{
	int r = call_enter(e, call, err);

	if (r < 0)
		return r;
	r = packet_call(m->control, p);
	if (r < 0)
		err_set(err, -r, r == -ESRCH ? "machine_gone" : "fake_failed", "machine %s: %s",
		        m->id, r == -ESRCH ? "it has ended" : strerror(-r));
	return r;
}

/* ---- processes ---- */

/*
 * Between clone and exec, on a stack of its own in our memory. The table of files is shared until
 * close_range() takes it apart: a copy of it would hold locks of volumes (flock) that other threads
 * have open just now, for as long as an exec takes on a busy host.
 */
struct birth_place {
	const char *id;
	int control, lifeline; /* above BIRTH_FDS */
};

enum { BIRTH_FDS = 600, BIRTH_STACK = 64 << 10 };

__attribute__((no_sanitize("address", "undefined"))) static int process_born(void *arg)
{
	const struct birth_place *b = arg;
	char *argv[] = {(char *)"fake-machine", (char *)b->id, NULL};

	if (syscall(SYS_close_range, 0, BIRTH_FDS - 1, CLOSE_RANGE_UNSHARE) == 0) {
		for (int i = 0; i < FAKE_BIRTH; i++)
			syscall(SYS_open, "/dev/null", O_RDWR);
		syscall(SYS_dup2, b->control, FAKE_BIRTH);
		syscall(SYS_dup2, b->lifeline, FAKE_LIFELINE);
		syscall(SYS_execve, fake_machine_path, argv, environ);
	}
	syscall(SYS_exit, 127);
	return 127;
}

static int process_spawn(struct fake_engine *e, const char *id, struct fake_process *ret)
{
	struct birth_place b = {.id = id};
	autofree char *stack = malloc(BIRTH_STACK);
	int pair[2];

	if (!stack || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -ENOMEM;
	b.control = fcntl(pair[1], F_DUPFD_CLOEXEC, BIRTH_FDS);
	b.lifeline = fcntl(e->lifeline, F_DUPFD_CLOEXEC, BIRTH_FDS);
	ret->pid = clone(process_born, stack + BIRTH_STACK,
	                 CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &b);
	close(pair[1]);
	close(b.control);
	close(b.lifeline);
	if (ret->pid < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	snprintf(ret->id, sizeof(ret->id), "%s", id);
	ret->control = pair[0];
	ret->pidfd = pidfd_open(ret->pid, 0);
	return 0;
}

static void process_kill(int pidfd)
{
	struct pollfd end = {.fd = pidfd, .events = POLLIN};
	siginfo_t si;

	pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
	poll(&end, 1, ANSWER_MS);
	waitid(P_PIDFD, (id_t)pidfd, &si, WEXITED); /* fails when it is another's child */
}

static bool process_take(struct fake_engine *e, const char *id, struct fake_process *ret)
{
	struct fake_process **p = &e->prepared, *found;

	pthread_mutex_lock(&e->lock);
	while (*p && strcmp((*p)->id, id) != 0)
		p = &(*p)->next;
	found = *p;
	if (found) {
		*p = found->next;
		*ret = *found;
		free(found);
	}
	pthread_mutex_unlock(&e->lock);
	return found != NULL;
}

static int engine_prepare(struct engines *seam, const char *id, int dirfd, struct err *err)
{
	struct fake_engine *e = engine_of(seam);
	struct fake_process *p;
	int r = call_enter(e, FAKE_CALL_PREPARE, err);

	if (r < 0)
		return r;
	p = calloc(1, sizeof(*p));
	if (!p || (r = process_spawn(e, id, p)) < 0) {
		free(p);
		return err_set(err, -r, "fake_failed", "cannot start a process");
	}
	pthread_mutex_lock(&e->lock);
	p->next = e->prepared;
	e->prepared = p;
	pthread_mutex_unlock(&e->lock);
	return 0;
}

static void engine_forget(struct engines *seam, const char *id)
{
	struct fake_process p;

	if (!process_take(engine_of(seam), id, &p))
		return;
	process_kill(p.pidfd);
	close(p.pidfd);
	close(p.control);
}

/* ---- start ---- */

static void disk_name(char ret[32], size_t disk, size_t n)
{
	snprintf(ret, 32, ENGINE_DISKS "/disk%zu-%zu", disk, n);
}

/* All that a guest may read of these layers, in one file. */
static int flat_make(const struct set *s, int *ret)
{
	*ret = memfd_create("flat", MFD_CLOEXEC);
	return *ret < 0 ? -errno : set_export(s, *ret);
}

struct birth {
	int fds[2 + 2 * ENGINE_DISKS_MAX]; /* ours until it has them */
	size_t n;
};

static void birth_fini(struct birth *b)
{
	for (size_t i = 0; i < b->n; i++)
		close(b->fds[i]);
}

static int birth_disk(const struct engine_start *s, size_t d, struct packet *p, struct birth *b)
{
	const struct engine_disk *k = &s->image->disks[d];
	unsigned slot = FAKE_DISK + (unsigned)d * FAKE_LAYERS;
	struct fake_disk *told = &p->msg.disk[d];
	char name[32];
	int fd = -1, r = 0;

	*told = (struct fake_disk){.size = k->size, .read_only = k->read_only};
	for (size_t i = 0; r == 0 && i < k->layers.n; i++)
		r = packet_add(p, k->layers.at[i]->fd, slot + told->layers++);
	if (r == 0 && !k->read_only) {
		disk_name(name, d, 0);
		r = layer_create_file(s->dirfd, name, k->size / MAP_PAGE, &fd);
		if (r < 0)
			return r;
		b->fds[b->n++] = fd;
		r = packet_add(p, fd, slot + told->layers++);
	}
	if (r == 0)
		r = flat_make(&k->layers, &fd);
	if (r < 0)
		return r;
	b->fds[b->n++] = fd;
	return packet_add(p, fd, FAKE_FLAT_DISK + (unsigned)d);
}

static int birth_lay_out(struct fake_engine *e, const struct engine_start *s,
                         struct engine_machine *m, struct packet *p, struct birth *b)
{
	const struct engine_image *i = s->image;
	int r, fd = -1;

	snprintf(p->msg.id, sizeof(p->msg.id), "%s", s->id);
	snprintf(p->msg.rules, sizeof(p->msg.rules), "%s", e->rules);
	p->msg.memory_size = i->memory_size;
	p->msg.memory_layers = (uint32_t)i->memory.n;
	m->dirfd = fcntl(s->dirfd, F_DUPFD_CLOEXEC, 3);
	r = engine_image_copy(i, &m->image);
	if (r == 0)
		r = layer_create_memfd("fake-memory", i->memory_size / MAP_PAGE, &m->top);
	if (r == 0)
		r = flat_make(&i->memory, &fd);
	if (r < 0)
		return r;
	b->fds[b->n++] = fd;
	packet_add(p, fd, FAKE_FLAT_MEMORY);
	packet_add(p, m->top, FAKE_TOP);
	packet_add(p, m->dirfd, FAKE_DIR);
	if (i->state >= 0)
		packet_add(p, i->state, FAKE_STATE);
	if (s->net_fd > 0)
		packet_add(p, s->net_fd, FAKE_NET);
	for (size_t k = 0; r == 0 && k < i->memory.n; k++)
		r = packet_add(p, i->memory.at[k]->fd, FAKE_MEMORY + (unsigned)k);
	for (size_t d = 0; r == 0 && d < i->ndisks; d++)
		r = birth_disk(s, d, p, b);
	for (unsigned v = 0; r == 0 && v < ENGINE_VOLUMES_MAX; v++)
		if (s->volumes[v].size)
			r = packet_add(p, s->volumes[v].fd, FAKE_VOLUME + v);
	return r;
}

static int engine_start(struct engines *seam, const struct engine_start *s,
                        struct engine_machine *ret, struct err *err)
{
	struct fake_engine *e = engine_of(seam);
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(birth_fini) struct birth b = {.n = 0};
	autofree struct packet *p = packet_new(FAKE_START);
	struct fake_process process = {.pidfd = -1, .control = -1};
	int r = call_enter(e, FAKE_CALL_START, err);

	if (r < 0)
		return r;
	snprintf(m.id, sizeof(m.id), "%s", s->id);
	r = process_take(e, s->id, &process) ? 0 : process_spawn(e, s->id, &process);
	m.pid = process.pid;
	m.pidfd = process.pidfd;
	m.control = process.control;
	if (r == 0)
		r = birth_lay_out(e, s, &m, p, &b);
	if (r == 0)
		r = packet_call(m.control, p);
	if (r < 0) {
		if (m.pidfd >= 0)
			process_kill(m.pidfd);
		return err_set(err, -r, "restore_failed", "machine %s did not start: %s", s->id,
		               strerror(-r));
	}
	closep(&m.image.state);
	m.image.state = -1;
	m.image.engine = &e->engine;
	for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++) {
		m.volumes[i] = s->volumes[i];
		m.volumes[i].fd = -1;
		m.volumes[i].mount = NULL;
	}
	m.volumes_lost = p->msg.lost;
	m.net = s->net_fd > 0;
	*ret = m;
	m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
	return 0;
}

static int engine_adopt(struct engines *seam, const char *id, int dirfd, pid_t pid,
                        const struct engine_image *image, struct engine_machine *ret,
                        struct err *err)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	char path[64];
	int r = call_enter(engine_of(seam), FAKE_CALL_ADOPT, err);

	if (r < 0)
		return r;
	snprintf(m.id, sizeof(m.id), "%s", id);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, FAKE_TOP);
	m.pid = pid;
	m.pidfd = pidfd_open(pid, 0);
	m.dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	m.top = open(path, O_RDWR | O_CLOEXEC);
	if (m.pidfd < 0 || m.top < 0)
		return err_set(err, ESRCH, "machine_gone", "machine %s has ended", id);
	r = engine_image_copy(image, &m.image);
	if (r == 0)
		r = sock_connect(dirfd, "control", SOCK_SEQPACKET, &m.control);
	if (r < 0)
		return err_set(err, -r, "machine_gone", "machine %s does not answer: %s", id,
		               strerror(-r));
	*ret = m;
	m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
	return 0;
}

/* ---- snapshots ---- */

struct sealing {
	int map, state, next, top_ro;
	int disk_ro[ENGINE_DISKS_MAX], disk_next[ENGINE_DISKS_MAX];
	char name[ENGINE_DISKS_MAX][32];
};

static void sealing_fini(struct sealing *s)
{
	closep(&s->map);
	closep(&s->state);
	closep(&s->next);
	closep(&s->top_ro);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		closep(&s->disk_ro[d]);
		closep(&s->disk_next[d]);
	}
}

static void sealing_init(struct sealing *s)
{
	*s = (struct sealing){.map = -1, .state = -1, .next = -1, .top_ro = -1};
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++)
		s->disk_ro[d] = s->disk_next[d] = -1;
}

/* The file that is the top of this disk, and a name that is free. */
static int disk_top(const struct engine_machine *m, size_t disk, char name[32], char next[32])
{
	struct stat top, st;
	char path[64];
	int r = -ENOENT;

	snprintf(path, sizeof(path), "/proc/%d/fd/%zu", (int)m->pid,
	         FAKE_DISK + disk * FAKE_LAYERS + m->image.disks[disk].layers.n);
	if (stat(path, &top) < 0)
		return -errno;
	for (size_t n = 0;; n++) {
		disk_name(next, disk, n);
		if (fstatat(m->dirfd, next, &st, 0) < 0)
			return r;
		if (st.st_ino == top.st_ino) {
			disk_name(name, disk, n);
			r = 0;
		}
	}
}

static int sealing_prepare(struct engine_machine *m, struct sealing *s, struct packet *p)
{
	char path[40], next[32];
	size_t n = m->image.memory.n;
	int r;

	s->map = openat(m->dirfd, ENGINE_UNBOOKED, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	s->state = memfd_create("fake-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", m->top);
	s->top_ro = open(path, O_RDONLY | O_CLOEXEC);
	r = layer_create_memfd("fake-memory", m->image.memory.pages, &s->next);
	if (r < 0 || s->map < 0 || s->state < 0 || s->top_ro < 0)
		return r < 0 ? r : -EMFILE;
	packet_add(p, s->map, FAKE_MAP);
	packet_add(p, s->state, FAKE_STATE);
	packet_add(p, s->top_ro, FAKE_MEMORY + (unsigned)n);
	packet_add(p, s->next, FAKE_MEMORY + (unsigned)n + 1);
	for (size_t d = 0; d < m->image.ndisks; d++) {
		if (m->image.disks[d].read_only)
			continue;
		r = disk_top(m, d, s->name[d], next);
		if (r == 0)
			r = layer_create_file(m->dirfd, next, m->image.disks[d].layers.pages,
			                      &s->disk_next[d]);
		if (r < 0)
			return r;
		s->disk_ro[d] = openat(m->dirfd, s->name[d], O_RDONLY | O_CLOEXEC);
		packet_add(p, s->disk_next[d], FAKE_DISK_NEXT + (unsigned)d);
		packet_add(p, s->disk_ro[d], FAKE_FDS_END + (unsigned)d);
	}
	return 0;
}

/* The map of memory (disk -1) or of a disk, as the machine has written it. -ENOENT: it has not. */
static int sealed_map(int fd, int disk, struct map *ret)
{
	struct fake_sealed s;
	off_t at = sizeof(s);
	int r = io_pread_full(fd, &s, sizeof(s), 0);

	if (r < 0 || memcmp(s.magic, FAKE_SEALED_MAGIC, sizeof(s.magic)) != 0)
		return -ENOENT;
	for (int i = 0; i < 1 + disk; i++)
		at += (off_t)(s.runs[i] * sizeof(struct map_run));
	for (uint32_t i = 0; r == 0 && i < s.runs[1 + disk]; i++) {
		struct map_run run;

		r = io_pread_full(fd, &run, sizeof(run), at + (off_t)(i * sizeof(run)));
		if (r == 0)
			r = map_add(ret, run.start, run.n);
	}
	return r;
}

/* Which layers some page comes from; the newest in any case. */
static uint64_t set_live(const struct set *s)
{
	uint64_t live = s->n ? (uint64_t)1 << (s->n - 1) : 0, n;
	size_t index;

	for (uint64_t page = 0; page < s->pages; page += n)
		if (set_find(s, page, &index, &n))
			live |= (uint64_t)1 << index;
	return live;
}

static int set_keep(struct set *s, uint64_t live)
{
	struct set kept = {.pages = s->pages};
	int r = 0;

	for (size_t i = 0; r == 0 && i < s->n; i++)
		if (live >> i & 1)
			r = set_push(&kept, s->at[i]);
	set_fini(s);
	*s = kept;
	return r;
}

static int push_memory(struct engine_machine *m, struct sealing *s)
{
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	uint64_t deadline = 0;
	int r = sealed_map(s->map, -1, &map);

	if (r == 0) {
		do
			r = layer_seal_memfd(m->top, m->image.memory.pages, &map, &l);
		while (layer_busy(r, &deadline));
	}
	return r < 0 ? r : set_push(&m->image.memory, l);
}

static int push_disk(struct engine_machine *m, struct sealing *s, size_t d)
{
	struct set *layers = &m->image.disks[d].layers;
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	uint64_t deadline = 0;
	int r = sealed_map(s->map, (int)d, &map);

	if (r == 0) {
		do
			r = layer_seal_file(m->dirfd, s->name[d], layers->pages, &map, &l);
		while (layer_busy(r, &deadline));
	}
	return r < 0 ? r : set_push(layers, l);
}

/* Chains stay short: what no page comes from any more is dropped, here and in the machine. */
static int drop_dead_layers(struct engine_machine *m, struct packet *p)
{
	int r;

	p->msg = (struct fake_msg){.op = FAKE_KEEP, .keep = set_live(&m->image.memory)};
	for (size_t d = 0; d < m->image.ndisks; d++)
		p->msg.disk[d].keep = set_live(&m->image.disks[d].layers);
	r = set_keep(&m->image.memory, p->msg.keep);
	for (size_t d = 0; r == 0 && d < m->image.ndisks; d++)
		if (!m->image.disks[d].read_only)
			r = set_keep(&m->image.disks[d].layers, p->msg.disk[d].keep);
	return r < 0 ? r : packet_call(m->control, p);
}

static int snapshot_take(struct engines *seam, struct engine_machine *m, bool hold,
                         struct engine_image *ret, struct engine_snapshot_info *info,
                         struct err *err)
{
	AUTO(sealing_fini) struct sealing s;
	autofree struct packet *p = packet_new(FAKE_SNAPSHOT);
	int r = call_enter(engine_of(seam), FAKE_CALL_SNAPSHOT, err);

	sealing_init(&s);
	if (r < 0)
		return r;
	r = sealing_prepare(m, &s, p);
	p->msg.hold = hold;
	if (r == 0)
		r = packet_call(m->control, p);
	if (r < 0)
		return err_set(err, -r, r == -ESRCH ? "machine_gone" : "snapshot_failed",
		               "machine %s could not be saved: %s", m->id,
		               r == -ESRCH ? "it has ended" : strerror(-r));
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		closep(&s.disk_next[d]);
		s.disk_next[d] = -1;
	}
	r = push_memory(m, &s);
	for (size_t d = 0; r == 0 && d < m->image.ndisks; d++)
		if (!m->image.disks[d].read_only)
			r = push_disk(m, &s, d);
	if (r == 0 && !hold)
		r = drop_dead_layers(m, p);
	if (r < 0)
		return err_set(err, -r, "snapshot_failed", "machine %s cannot be sealed: %s", m->id,
		               strerror(-r));
	close(m->top);
	m->top = take_fd(&s.next);
	r = engine_image_copy(&m->image, ret);
	if (r < 0)
		return err_set(err, -r, "no_memory", "no memory");
	ret->state = take_fd(&s.state);
	if (info)
		info->stop_ns = 1;
	return 0;
}

static int engine_snapshot(struct engines *seam, struct engine_machine *m, struct engine_image *ret,
                           struct engine_snapshot_info *info, struct err *err)
{
	return snapshot_take(seam, m, false, ret, info, err);
}

static int engine_snapshot_hold(struct engines *seam, struct engine_machine *m,
                                struct engine_image *ret, struct engine_snapshot_info *info,
                                struct err *err)
{
	return snapshot_take(seam, m, true, ret, info, err);
}

static int ask_simple(struct engines *seam, enum fake_call call, enum fake_op op,
                      struct engine_machine *m, struct err *err)
{
	autofree struct packet *p = packet_new(op);

	return ask(engine_of(seam), call, m, p, err);
}

static int engine_go_on(struct engines *seam, struct engine_machine *m, struct err *err)
{
	return ask_simple(seam, FAKE_CALL_GO_ON, FAKE_PING, m, err);
}

static int engine_unbooked(struct engines *seam, int dirfd, int disk, uint64_t pages,
                           struct map *ret)
{
	autoclose int map = openat(dirfd, ENGINE_UNBOOKED, O_RDONLY | O_CLOEXEC), control = -1;
	autofree struct packet *p = packet_new(FAKE_PING);
	int r;

	if (map < 0)
		return -errno;
	r = sock_connect(dirfd, "control", SOCK_SEQPACKET, &control);
	if (r == 0)
		r = packet_call(control, p);
	return r < 0 ? r : sealed_map(map, disk, ret);
}

/* ---- volumes ---- */

static int engine_attach(struct engines *seam, struct engine_machine *m, unsigned slot,
                         const struct engine_volume *v, struct err *err)
{
	autofree struct packet *p = packet_new(FAKE_ATTACH);
	int r;

	p->msg.nr = slot;
	packet_add(p, v->fd, FAKE_VOLUME + slot);
	r = ask(engine_of(seam), FAKE_CALL_ATTACH, m, p, err);
	if (r < 0)
		return r;
	m->volumes[slot] = *v;
	m->volumes[slot].fd = -1;
	m->volumes[slot].mount = NULL;
	return 0;
}

static int engine_detach(struct engines *seam, struct engine_machine *m, unsigned slot, bool force,
                         struct err *err)
{
	autofree struct packet *p = packet_new(FAKE_DETACH);
	int r;

	p->msg.nr = slot;
	p->msg.force = force;
	r = ask(engine_of(seam), FAKE_CALL_DETACH, m, p, err);
	if (r == -EBUSY)
		return err_set(err, EBUSY, "volume_busy", "machine %s uses volume %u", m->id, slot);
	if (r < 0 && r != -ENOENT)
		return r;
	m->volumes[slot] = (struct engine_volume){.fd = -1};
	return 0;
}

static int engine_grow(struct engines *seam, struct engine_machine *m, unsigned slot, uint64_t size,
                       struct err *err)
{
	int r = ask_simple(seam, FAKE_CALL_GROW, FAKE_GROW, m, err);

	if (r == 0)
		m->volumes[slot].size = size;
	return r;
}

static int engine_copy(struct engines *seam, struct engine_machine *m, unsigned slot, int to,
                       int marks, struct err *err)
{
	autofree struct packet *p = packet_new(FAKE_COPY_BEGIN);

	p->msg.nr = slot;
	packet_add(p, to, FAKE_COPY);
	packet_add(p, marks, FAKE_MARKS);
	return ask(engine_of(seam), FAKE_CALL_COPY, m, p, err);
}

static int engine_copied(struct engines *seam, struct engine_machine *m, unsigned slot,
                         struct err *err)
{
	return ask_simple(seam, FAKE_CALL_COPIED, FAKE_COPY_END, m, err);
}

/* ---- the rest ---- */

static int engine_pause(struct engines *seam, struct engine_machine *m, struct err *err)
{
	return ask_simple(seam, FAKE_CALL_PAUSE, FAKE_PAUSE, m, err);
}

static int engine_resume(struct engines *seam, struct engine_machine *m, struct err *err)
{
	return ask_simple(seam, FAKE_CALL_RESUME, FAKE_RESUME, m, err);
}

static int engine_stats(struct engines *seam, struct engine_machine *m, struct engine_stats *ret,
                        struct err *err)
{
	autofree struct packet *p = packet_new(FAKE_STATS);
	int r = ask(engine_of(seam), FAKE_CALL_STATS, m, p, err);

	if (r == 0)
		*ret = (struct engine_stats){.memory_bytes = m->image.memory_size,
		                             .memory_free_bytes = m->image.memory_size / 2,
		                             .uptime_ns = 1000000,
		                             .lives = p->msg.lives};
	return r;
}

static bool engine_why_ended(struct engines *seam, const char *id, char *ret, size_t n)
{
	if (strcmp(engine_of(seam)->oom, id) != 0)
		return false;
	snprintf(ret, n, "out of memory: it reached the limit the host gave it");
	return true;
}

/* One that nobody has a number of: pandad died before it could write that down. */
static pid_t process_find(const char *id)
{
	autoclosedir DIR *d = opendir("/proc");
	struct dirent *de;

	while (d && (de = readdir(d))) {
		autofree char *text = NULL;
		char path[300];
		size_t n;

		snprintf(path, sizeof(path), "/proc/%s/cmdline", de->d_name);
		if (de->d_name[0] >= '1' && de->d_name[0] <= '9' &&
		    io_read_file(AT_FDCWD, path, 4096, &text, &n) == 0 &&
		    !strcmp(text, "fake-machine") && strlen(text) + 1 < n &&
		    !strcmp(text + strlen(text) + 1, id))
			return atoi(de->d_name);
	}
	return -1;
}

static int engine_stop(struct engines *seam, const char *id, pid_t pid, struct err *err)
{
	autoclose int pidfd = -1;
	int r = call_enter(engine_of(seam), FAKE_CALL_STOP, err);

	if (pid <= 0)
		pid = process_find(id);
	pidfd = pid > 0 ? pidfd_open(pid, 0) : -1;
	if (r == 0 && pidfd >= 0)
		process_kill(pidfd);
	return r;
}

static void engine_free(struct engines *seam)
{
	struct fake_engine *e = engine_of(seam);

	while (e->prepared) {
		char id[ENGINE_ID_MAX + 1];

		snprintf(id, sizeof(id), "%s", e->prepared->id);
		engine_forget(seam, id);
	}
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

struct fake_engine *fake_engine_new(const char *rules_path, int lifeline)
{
	struct fake_engine *e = calloc(1, sizeof(*e));

	if (!e)
		abort();
	snprintf(e->rules, sizeof(e->rules), "%s", rules_path);
	e->lifeline = lifeline;
	e->engine = (struct engine){.name = "fake", .isolation = "a-process", .kernel = "fake-1"};
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->changed, NULL);
	e->seam = (struct engines){
	    .list = &e->engine,
	    .count = 1,
	    .memory_slot = FAKE_MEMORY,
	    .disk_slot = FAKE_DISK,
	    .volume_slot = FAKE_VOLUME,
	    .net_slot = FAKE_NET,
	    .prepare = engine_prepare,
	    .forget = engine_forget,
	    .start = engine_start,
	    .unbooked = engine_unbooked,
	    .adopt = engine_adopt,
	    .snapshot = engine_snapshot,
	    .snapshot_hold = engine_snapshot_hold,
	    .go_on = engine_go_on,
	    .volume_attach = engine_attach,
	    .volume_detach = engine_detach,
	    .volume_grow = engine_grow,
	    .volume_copy = engine_copy,
	    .volume_copied = engine_copied,
	    .pause = engine_pause,
	    .resume = engine_resume,
	    .stats = engine_stats,
	    .why_ended = engine_why_ended,
	    .stop = engine_stop,
	    .free = engine_free,
	};
	return e;
}
