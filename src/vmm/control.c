#include "vmm/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/loop.h"
#include "vmm/machine.h"
#include "vmm/mem.h"
#include "vmm/ram.h"
#include "vmm/virtio/balloon.h"
#include "vmm/vm.h"
#include "vmm/volume.h"
#include "wire/control.h"

struct control_conn {
	struct control *k;
	struct loop_io io;
	int fd;           /* -1: this place is free */
	bool holds;       /* the machine stands still until its next request */
	bool wants_stats; /* an answer is due */
	bool copies;      /* a volume, until it says so or is gone */
};

struct control {
	struct machine *m;
	int listener;
	struct loop_io io;
	struct control_conn conn[CONTROL_CONNS_MAX];
	struct loop_timer stats_timer;
	unsigned stats_seen;
};

static bool sane(const struct ctl_msg *msg, ssize_t n, size_t nfds)
{
	return n == (ssize_t)sizeof(*msg) && msg->magic == CTL_MAGIC && msg->nr_fds == nfds;
}

/* Fds arrive with low numbers, which are other fds' slots: up with all of them, then each to its
 * own. */
static int place(const struct ctl_msg *msg, int *fds)
{
	int r = 0;

	for (size_t i = 0; i < msg->nr_fds; i++) {
		fds[i] = vm_high_fd(fds[i]);
		if (fds[i] < 0)
			r = fds[i];
	}
	for (size_t i = 0; i < msg->nr_fds; i++) {
		unsigned slot = msg->slot[i];

		if (fds[i] < 0)
			continue;
		if (r == 0 && (slot <= CTL_FD_CTL || slot >= CTL_FD_DYNAMIC))
			r = -EPROTO;
		if (r == 0 && dup3(fds[i], (int)slot, O_CLOEXEC) < 0)
			r = -errno;
		close(fds[i]);
	}
	return r;
}

int control_hello(int listener, struct ctl_msg *ret, int *ret_conn)
{
	int fds[CTL_FDS_MAX], conn, r;
	size_t nfds = CTL_FDS_MAX;
	ssize_t n;

	do
		conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	while (conn < 0 && errno == EINTR);
	conn = vm_high_fd(conn);
	if (conn < 0)
		return conn;
	n = io_recv_fds(conn, ret, sizeof(*ret), fds, &nfds);
	if (n < 0)
		return (int)n;
	if (!sane(ret, n, nfds) || ret->type != CTL_HELLO || nfds > CTL_FDS_MAX)
		return -EPROTO;
	r = place(ret, fds);
	*ret_conn = conn;
	return r;
}

bool control_has(const struct ctl_msg *hello, unsigned slot)
{
	for (uint32_t i = 0; i < hello->nr_fds; i++)
		if (hello->slot[i] == slot)
			return true;
	return false;
}

static void close_conn(struct control_conn *c)
{
	loop_io_del(c->k->m->loop, &c->io);
	close(c->fd);
	c->fd = -1;
	c->wants_stats = false;
	if (c->copies) {
		c->copies = false;
		pthread_mutex_lock(&c->k->m->lock);
		volumes_end_copy(&c->k->m->volumes);
		pthread_mutex_unlock(&c->k->m->lock);
	}
	if (c->holds) {
		c->holds = false;
		machine_go(c->k->m);
	}
}

/* A host that does not read its answers is no host. */
static void answer(struct control_conn *c, struct ctl_msg *a)
{
	a->magic = CTL_MAGIC;
	if (send(c->fd, a, sizeof(*a), MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof(*a))
		close_conn(c);
}

static void done(struct control_conn *c, int r)
{
	struct ctl_msg a = {.type = CTL_DONE, .arg[CTL_DONE_ERR] = (uint64_t)(int64_t)r};

	answer(c, &a);
}

/* --- how the machine is */

static void answer_stats(struct control *k)
{
	struct ctl_msg a = {.type = CTL_DONE};

	a.arg[1] = k->m->ram.mem.size;
	a.arg[2] = k->m->balloon.free_bytes;
	a.arg[3] = vm_uptime_ns(&k->m->vm);
	a.arg[4] = k->m->lives;
	loop_timer_clear(k->m->loop, &k->stats_timer);
	for (size_t i = 0; i < CONTROL_CONNS_MAX; i++) {
		if (!k->conn[i].wants_stats)
			continue;
		k->conn[i].wants_stats = false;
		answer(&k->conn[i], &a);
	}
}

static void machine_worked(void *arg)
{
	struct control *k = arg;

	if (k->stats_timer.slot && k->m->balloon.stats_seen != k->stats_seen)
		answer_stats(k);
}

static void stats_late(void *arg)
{
	answer_stats(arg);
}

static void ask_stats(struct control_conn *c)
{
	struct control *k = c->k;
	bool asked;

	c->wants_stats = true;
	pthread_mutex_lock(&k->m->lock);
	k->stats_seen = k->m->balloon.stats_seen;
	asked = !k->m->paused && balloon_ask(&k->m->balloon);
	pthread_mutex_unlock(&k->m->lock);
	if (!asked || loop_timer_set(k->m->loop, &k->stats_timer,
	                             loop_now_ms(k->m->loop) + CONTROL_STATS_MS) < 0)
		answer_stats(k);
}

/* --- snapshots */

static int take_fds(const struct ctl_msg *msg, int *fds, struct snapshot_fds *f)
{
	int r = 0;

	*f = (struct snapshot_fds){-1, -1, -1, -1, {-1, -1, -1, -1}, {-1, -1, -1, -1}};
	for (size_t i = 0; i < msg->nr_fds; i++) {
		unsigned slot = msg->slot[i];
		int *to = NULL;

		if (slot == CTL_TO_STATE)
			to = &f->state;
		else if (slot == CTL_TO_MAP)
			to = &f->map;
		else if (slot == CTL_TOP_RO)
			to = &f->top_ro;
		else if (slot == CTL_FD_TOP)
			to = &f->top;
		else if (slot >= CTL_DISK_RO && slot < CTL_DISK_RO + CTL_DISKS_MAX)
			to = &f->disk_ro[slot - CTL_DISK_RO];
		else if (slot >= CTL_DISK_TOP && slot < CTL_DISK_TOP + CTL_DISKS_MAX)
			to = &f->disk_top[slot - CTL_DISK_TOP];
		fds[i] = vm_high_fd(fds[i]);
		if (!to || *to >= 0 || fds[i] < 0) {
			r = fds[i] < 0 ? fds[i] : -EPROTO;
			closep(&fds[i]);
		} else {
			*to = fds[i];
		}
	}
	return r;
}

static void snapshot(struct control_conn *c, const struct ctl_msg *msg, int *fds)
{
	bool hold = msg->arg[CTL_SNAPSHOT_HOLD], stood = c->k->m->paused;
	struct ctl_msg a = {.type = CTL_DONE, .magic = CTL_MAGIC};
	struct snapshot_fds f;
	int r = take_fds(msg, fds, &f);

	if (r < 0)
		f.state = -1; /* not complete: all is closed and refused */
	r = monitor_snapshot(c->k->m, &f, hold, &a);
	a.arg[CTL_DONE_ERR] = (uint64_t)(int64_t)r;
	c->holds = hold && r == 0 && !stood; /* who was paused before stays so */
	answer(c, &a);
}

/* --- volumes */

static void volume(struct control_conn *c, const struct ctl_msg *msg, const int *fds)
{
	struct machine *m = c->k->m;
	uint64_t verb = msg->arg[CTL_VOLUME_VERB];
	int r;

	pthread_mutex_lock(&m->lock);
	r = volumes_request(&m->volumes, msg, fds);
	pthread_mutex_unlock(&m->lock);
	if (r == 0 && verb == CTL_VOLUME_COPY) {
		for (size_t i = 0; i < CONTROL_CONNS_MAX; i++)
			c->k->conn[i].copies = &c->k->conn[i] == c;
	} else if (verb == CTL_VOLUME_COPIED) {
		c->copies = false;
	}
	done(c, r);
}

static void request(struct control_conn *c, const struct ctl_msg *msg, int *fds)
{
	struct machine *m = c->k->m;

	if (c->holds) {
		c->holds = false;
		machine_go(m);
	}
	if (msg->type == CTL_VOLUME)
		volume(c, msg, fds);
	if (msg->type != CTL_SNAPSHOT)
		for (size_t i = 0; i < msg->nr_fds; i++)
			close(fds[i]);
	switch (msg->type) {
	case CTL_SNAPSHOT:
		snapshot(c, msg, fds);
		break;
	case CTL_PAUSE:
		machine_pause(m);
		done(c, 0);
		break;
	case CTL_RESUME:
		if (m->paused)
			machine_go(m);
		done(c, 0);
		break;
	case CTL_STATS:
		ask_stats(c);
		break;
	case CTL_PING:
		done(c, 0);
		break;
	case CTL_VOLUME:
		break;
	default:
		done(c, -EPROTO);
	}
}

static void conn_ready(void *arg, uint32_t events)
{
	struct control_conn *c = arg;
	int fds[CTL_FDS_MAX];
	size_t nfds = CTL_FDS_MAX;
	struct ctl_msg msg;
	ssize_t n = io_recv_fds(c->fd, &msg, sizeof(msg), fds, &nfds);

	if (n == -EAGAIN)
		return;
	if (n > 0 && sane(&msg, n, nfds)) {
		request(c, &msg, fds);
		return;
	}
	for (size_t i = 0; n > 0 && i < nfds; i++)
		close(fds[i]);
	close_conn(c);
}

static int add_conn(struct control *k, int fd)
{
	for (size_t i = 0; i < CONTROL_CONNS_MAX; i++) {
		struct control_conn *c = &k->conn[i];

		if (c->fd >= 0)
			continue;
		*c = (struct control_conn){.k = k, .fd = fd, .io = {.fn = conn_ready, .arg = c}};
		return loop_io_add(k->m->loop, &c->io, fd, EPOLLIN);
	}
	close(fd);
	return -EMFILE;
}

static void accept_conn(void *arg, uint32_t events)
{
	struct control *k = arg;
	int fd = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd >= 0)
		fd = vm_high_fd(fd);
	if (fd >= 0)
		add_conn(k, fd);
}

int control_start(struct machine *m, int listener, int conn, uint64_t lost, struct control **ret)
{
	struct control *k = calloc(1, sizeof(*k));
	struct ctl_msg ready = {.magic = CTL_MAGIC, .type = CTL_READY, .arg[CTL_READY_LOST] = lost};
	int r;

	if (!k)
		return -ENOMEM;
	*k = (struct control){.m = m,
	                      .listener = listener,
	                      .io = {.fn = accept_conn, .arg = k},
	                      .stats_timer = {.fn = stats_late, .arg = k}};
	for (size_t i = 0; i < CONTROL_CONNS_MAX; i++)
		k->conn[i].fd = -1;
	m->worked = machine_worked;
	m->worked_arg = k;
	r = fcntl(conn, F_SETFL, O_NONBLOCK) < 0 ? -errno : add_conn(k, conn);
	if (r == 0)
		r = loop_io_add(m->loop, &k->io, listener, EPOLLIN);
	if (r < 0)
		return r;
	answer(&k->conn[0], &ready);
	*ret = k;
	return 0;
}
