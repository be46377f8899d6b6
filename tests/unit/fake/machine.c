/*
 * fake/machine.c - a machine that is a small process: what the fake engine starts
 * It holds its layers as files under known numbers, as a real one does, so the host can take it up
 * again after pandad has ended. Its memory and disks are files: what the guest changes goes to one
 * that has all of it (flat) and to the top, which a snapshot seals.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "base/sock.h"
#include "layers/map.h"

enum { CONTROLS = 8, PAGE = 4096, MEMORY_TREE = 1 << 20, DISK_TREE = 64 << 10 };

struct machine {
	struct fake_agent agent;
	int listener;           /* of control */
	int controls[CONTROLS]; /* -1: free */
	int holder;             /* after a snapshot that holds: whose turn it is; -1: none */
	bool paused;
	struct fake_disk disk[FAKE_DISKS];
	uint32_t memory_layers;
	uint64_t lives;
	struct {
		bool on;
		int owner; /* the connection that asked for it: its end is the copy's, too */
		unsigned slot;
	} copy;
};

static struct machine machine;

static void fd_move(int from, int to)
{
	if (from == to)
		return;
	if (dup3(from, to, O_CLOEXEC) < 0)
		abort();
	close(from);
}

/* ---- copies of volumes ---- */

/* What is about to change is kept first, once for each chunk. */
void volume_before(void *arg, off_t off, size_t n)
{
	unsigned slot = (unsigned)(uintptr_t)arg;
	static char chunk[65536];
	char done = 1;
	off_t at = off - off % (off_t)sizeof(chunk);
	ssize_t len;

	(void)n; /* a page: never in two chunks */
	if (!machine.copy.on || machine.copy.slot != slot ||
	    pread(FAKE_MARKS, &done, 1, at / (off_t)sizeof(chunk)) != 1 || done)
		return;
	len = pread(FAKE_VOLUME + (int)slot, chunk, sizeof(chunk), at);
	if (len > 0)
		io_pwrite_full(FAKE_COPY, chunk, (size_t)len, at);
	io_pwrite_full(FAKE_MARKS, &(char){1}, 1, at / (off_t)sizeof(chunk));
}

static int copy_end(struct machine *m)
{
	if (!m->copy.on)
		return -ENOENT;
	m->copy.on = false;
	close(FAKE_COPY);
	close(FAKE_MARKS);
	return 0;
}

/* ---- snapshots ---- */

/* The runs of pages that hold data, to the map file. */
static uint32_t runs_write(int fd)
{
	struct stat st;
	off_t at = 0;
	uint32_t n = 0;

	if (fstat(fd, &st) < 0)
		abort();
	while ((at = lseek(fd, at, SEEK_DATA)) >= 0) {
		off_t end = lseek(fd, at, SEEK_HOLE);
		struct map_run run = {.start = (uint64_t)at / PAGE};

		end = MIN((end + PAGE - 1) / PAGE * PAGE, st.st_size);
		run.n = (uint64_t)end / PAGE - run.start;
		io_write_full(FAKE_MAP, &run, sizeof(run));
		n++;
		at = end;
	}
	return n;
}

static int disk_top(const struct machine *m, unsigned d)
{
	return FAKE_DISK + (int)d * FAKE_LAYERS + (int)m->disk[d].layers - 1;
}

static void state_write(struct machine *m)
{
	json_t *j = agent_state(&m->agent);
	autofree char *text = json_dumps(j, JSON_COMPACT);

	json_decref(j);
	if (!text)
		abort();
	io_write_full(FAKE_STATE, text, strlen(text));
	close(FAKE_STATE);
}

/* The tops become layers: from now on the guest writes above them. */
static void snapshot(struct machine *m)
{
	struct fake_sealed s = {.magic = FAKE_SEALED_MAGIC};

	if (lseek(FAKE_MAP, sizeof(s), SEEK_SET) < 0)
		abort();
	s.runs[0] = runs_write(FAKE_TOP);
	/* The layer is held for reading only: the new top waits under the number of the next one.
	 */
	m->memory_layers++;
	fd_move(FAKE_MEMORY + (int)m->memory_layers, FAKE_TOP);
	m->agent.shm.dev.top = FAKE_TOP;
	for (unsigned d = 0; d < FAKE_DISKS; d++) {
		if (!m->disk[d].size || m->disk[d].read_only)
			continue;
		s.runs[1 + d] = runs_write(disk_top(m, d));
		/* Read-only from here on, by the fd that came with the request. */
		fd_move(FAKE_DISK_NEXT + (int)d, disk_top(m, d) + 1);
		fd_move(FAKE_FDS_END + (int)d, disk_top(m, d));
		m->disk[d].layers++;
	}
	m->agent.root.dev.top = disk_top(m, 1);
	state_write(m);
	io_pwrite_full(FAKE_MAP, &s, sizeof(s), 0);
	close(FAKE_MAP);
}

/* Only those layers; the others keep their order. Returns how many there are. */
static uint32_t layers_keep(int first, uint32_t n, uint64_t keep)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (keep >> i & 1)
			fd_move(first + (int)i, first + (int)kept++);
		else
			close(first + (int)i);
	}
	return kept;
}

static void keep(struct machine *m, const struct fake_msg *q)
{
	m->memory_layers = layers_keep(FAKE_MEMORY, m->memory_layers, q->keep);
	for (unsigned d = 0; d < FAKE_DISKS; d++)
		if (m->disk[d].size && !m->disk[d].read_only) /* its top stays, too */
			m->disk[d].layers =
			    layers_keep(FAKE_DISK + (int)d * FAKE_LAYERS, m->disk[d].layers,
			                q->disk[d].keep | (uint64_t)1 << (m->disk[d].layers - 1));
	m->agent.root.dev.top = disk_top(m, 1);
}

/* ---- requests of the engine ---- */

static int detach(struct machine *m, const struct fake_msg *q)
{
	if (fcntl(FAKE_VOLUME + (int)q->nr, F_GETFD) < 0)
		return -ENOENT;
	if (m->agent.mounts[q->nr].there && !q->force)
		return -EBUSY;
	close(FAKE_VOLUME + (int)q->nr);
	m->agent.held &= ~(1u << q->nr);
	return 0;
}

static int copy_begin(struct machine *m, int from, const struct fake_msg *q)
{
	if (m->copy.on)
		return -EBUSY;
	m->copy.on = true;
	m->copy.owner = from;
	m->copy.slot = q->nr;
	return 0;
}

static int serve(struct machine *m, int from, struct fake_msg *q)
{
	m->holder = -1; /* whatever comes next lets it go on */
	switch (q->op) {
	case FAKE_SNAPSHOT:
		snapshot(m);
		m->holder = q->hold ? from : -1;
		return 0;
	case FAKE_KEEP:
		keep(m, q);
		return 0;
	case FAKE_PAUSE:
	case FAKE_RESUME:
		m->paused = q->op == FAKE_PAUSE;
		return 0;
	case FAKE_STATS:
		q->lives = m->lives;
		q->generation = m->agent.generation;
		return 0;
	case FAKE_ATTACH:
		m->agent.held |= 1u << q->nr;
		return 0;
	case FAKE_DETACH:
		return detach(m, q);
	case FAKE_COPY_BEGIN:
		return copy_begin(m, from, q);
	case FAKE_COPY_END:
		return copy_end(m);
	case FAKE_PING:
	case FAKE_GROW:
		return 0;
	}
	return -EINVAL;
}

/* -1: the peer is gone. */
static int request_read(int from, struct fake_msg *q)
{
	int fds[256];
	size_t nfds = ARRAY_LEN(fds);
	ssize_t n = io_recv_fds(from, q, sizeof(*q), fds, &nfds);

	if (n != (ssize_t)sizeof(*q) || nfds != q->nfds)
		return -1;
	/* Out of the way first: what is moved must not land on one that is still to be moved. */
	for (size_t i = 0; i < nfds; i++) {
		int high = fcntl(fds[i], F_DUPFD_CLOEXEC, FAKE_FDS_END + FAKE_DISKS);

		if (high < 0)
			return -1;
		close(fds[i]);
		fds[i] = high;
	}
	for (size_t i = 0; i < nfds; i++)
		fd_move(fds[i], (int)q->slot[i]);
	return 0;
}

static void answer(int to, struct fake_msg *q, int result)
{
	q->result = result;
	q->nfds = 0;
	send(to, q, sizeof(*q), MSG_NOSIGNAL);
}

static void control_ready(struct machine *m, size_t i)
{
	static struct fake_msg q;
	int from = m->controls[i];

	if (request_read(from, &q) < 0) {
		if (m->holder == from)
			m->holder = -1;
		if (m->copy.on && m->copy.owner == from)
			copy_end(m);
		close(from);
		m->controls[i] = -1;
		return;
	}
	answer(from, &q, serve(m, from, &q));
}

static void control_accept(struct machine *m)
{
	int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);

	for (size_t i = 0; fd >= 0 && i < CONTROLS; i++)
		if (m->controls[i] < 0) {
			m->controls[i] = fd;
			return;
		}
	if (fd >= 0)
		close(fd);
}

/* ---- birth ---- */

static json_t *state_read(void)
{
	autofree char *text = NULL;
	json_t *j = NULL;
	struct stat st;

	if (fstat(FAKE_STATE, &st) < 0)
		return NULL;
	text = calloc(1, (size_t)st.st_size + 1);
	if (text && io_pread_full(FAKE_STATE, text, (size_t)st.st_size, 0) == 0)
		j = json_loads(text, 0, NULL);
	close(FAKE_STATE);
	return j;
}

static uint32_t held(void)
{
	uint32_t bits = 0;

	for (int i = 0; i < FAKE_VOLUMES; i++)
		if (fcntl(FAKE_VOLUME + i, F_GETFD) >= 0)
			bits |= 1u << i;
	return bits;
}

static int born(struct machine *m, struct fake_msg *q)
{
	struct device memory = {.fd = FAKE_FLAT_MEMORY, .top = FAKE_TOP, .at = MEMORY_TREE};
	struct device root = {.fd = FAKE_FLAT_DISK + 1, .at = DISK_TREE};
	json_t *state = state_read();
	int fd;

	memcpy(m->disk, q->disk, sizeof(m->disk));
	m->memory_layers = q->memory_layers;
	memory.end = (off_t)q->memory_size;
	root.end = (off_t)m->disk[1].size;
	root.top = disk_top(m, 1);
	m->agent.dirfd = FAKE_DIR;
	snprintf(m->agent.id, sizeof(m->agent.id), "%s", q->id);
	snprintf(m->agent.rules_path, sizeof(m->agent.rules_path), "%s", q->rules);
	m->agent.held = held();
	q->lost = agent_state_volumes(state) & ~m->agent.held;
	m->lives = state ? (uint64_t)json_integer_value(json_object_get(state, "generation")) : 0;
	if (sock_listen(FAKE_DIR, "control", SOCK_SEQPACKET, &m->listener) < 0 ||
	    sock_listen(FAKE_DIR, "agent", SOCK_STREAM, &m->agent.listener) < 0)
		return -EIO;
	agent_start(&m->agent, &root, &memory, state);
	json_decref(state);
	fd = openat(FAKE_DIR, "console.log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0) {
		io_write_full(fd, "fake machine\n", 13);
		close(fd);
	}
	return 0;
}

/* ---- its life ---- */

static void turn(struct machine *m)
{
	struct pollfd p[3 + CONTROLS + AGENT_CONNS + 1];
	size_t n = 0, agents;

	m->agent.asleep = m->paused || m->holder >= 0;
	p[n++] = (struct pollfd){.fd = FAKE_LIFELINE};
	p[n++] = (struct pollfd){.fd = m->listener, .events = POLLIN};
	for (size_t i = 0; i < CONTROLS; i++)
		p[n++] = (struct pollfd){.fd = m->controls[i], .events = POLLIN};
	agents = agent_poll(&m->agent, p + n, ARRAY_LEN(p) - n);
	if (poll(p, n + agents, agents ? agent_timeout_ms(&m->agent) : -1) < 0)
		return;
	if (p[0].revents)
		_exit(0);
	if (agents) {
		agent_tick(&m->agent);
		agent_ready(&m->agent, p + n, agents);
	}
	if (p[1].revents)
		control_accept(m);
	for (size_t i = 0; i < CONTROLS; i++)
		if (p[2 + i].fd >= 0 && p[2 + i].revents)
			control_ready(m, i);
}

int main(void)
{
	static struct fake_msg q;
	struct machine *m = &machine;
	int r;

	signal(SIGPIPE, SIG_IGN);
	m->holder = m->listener = -1;
	for (size_t i = 0; i < CONTROLS; i++)
		m->controls[i] = -1;
	/* One that was made ahead waits here, and ends with pandad. */
	if (request_read(FAKE_BIRTH, &q) < 0 || q.op != FAKE_START)
		return 0;
	r = born(m, &q);
	answer(FAKE_BIRTH, &q, r);
	if (r < 0)
		return 1;
	m->controls[0] = FAKE_BIRTH;
	for (;;)
		turn(m);
}
