/*
 * core/guest_wait.c - the blocking half of guest.h
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "core/guest_internal.h"

/* One call we wait for, and what it brought. */
struct wait {
	bool done;
	int err;
	char text[200];
	int failed; /* our own trouble with its data, negative errno; the call is cancelled then */
	struct guest_call *call;

	/* who gets the data */
	void (*output)(void *arg, uint8_t chan, const void *p, size_t n);
	int (*row)(struct wait *w, const uint8_t *p, size_t n); /* bytes of one row or -errno */
	void *arg;
	size_t rows;

	/* replies */
	struct wire_exited exited;
	struct wire_started started;
	struct guest_attach *attach;
	struct wire_stats stats;
	struct wire_file file;
	char *path;
	bool got_reply, out_eof;
	void (*ready)(void *arg);
	uint64_t pos[2]; /* of an attached exec */

	/* data for the guest */
	int in_fd;
	bool feeding;
	void (*wake)(void *arg, struct guest_call *c);
	int wake_fd;
};

static void give_up(struct wait *w, int err)
{
	if (!w->failed) {
		w->failed = err;
		guest_cancel(w->call);
	}
}

static void wait_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct wait *w = arg;
	const uint8_t *at = p;
	size_t left = n;

	w->pos[chan - WIRE_OUT] += n;
	if (w->output && !w->failed)
		w->output(w->arg, chan, p, n);
	while (w->row && left && !w->failed) {
		int r = w->row(w, at, left);

		if (r >= 0 && ++w->rows > GUEST_ROWS_MAX)
			r = -EOVERFLOW;
		if (r < 0) {
			give_up(w, r);
			break;
		}
		at += r;
		left -= (size_t)r;
	}
	guest_credit(c, chan, n);
}

static void wait_eof(void *arg, struct guest_call *c, uint8_t chan)
{
	((struct wait *)arg)->out_eof = true;
}

static void wait_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct wait *w = arg;

	w->got_reply = true;
	switch (type) {
	case WIRE_READY:
		if (w->ready)
			w->ready(w->arg);
		break;
	case WIRE_EXITED:
		w->exited = *(const struct wire_exited *)msg;
		break;
	case WIRE_STARTED:
		w->started = *(const struct wire_started *)msg;
		break;
	case WIRE_ATTACHED:
		if (w->attach) {
			const struct wire_attached *m = msg;

			w->attach->out_offset = w->pos[0] = m->out_offset;
			w->attach->err_offset = w->pos[1] = m->err_offset;
		}
		break;
	case WIRE_GAP:
		if (w->attach) {
			uint64_t *pos = &w->pos[chan - WIRE_OUT];

			w->attach->lost += ((const struct wire_gap *)msg)->offset - *pos;
			*pos = ((const struct wire_gap *)msg)->offset;
		}
		break;
	case WIRE_FILE:
		w->file = *(const struct wire_file *)msg;
		w->file.name = w->file.target = wire_str("");
		break;
	case WIRE_PATH:
		free(w->path);
		w->path = strdup(((const struct wire_path *)msg)->path.p);
		break;
	case WIRE_STATS_REPLY:
		w->stats = *(const struct wire_stats *)msg;
		break;
	}
}

static void wait_end(void *arg, struct guest_call *c, int err, const char *text)
{
	struct wait *w = arg;

	w->done = true;
	w->err = err;
	w->call = NULL;
	snprintf(w->text, sizeof(w->text), "%s", text);
}

static const struct guest_ops wait_ops = {
    .data = wait_data, .eof = wait_eof, .reply = wait_reply, .end = wait_end};

void guest_set_deadline(struct guest *g, uint64_t ms)
{
	g->deadline_ms = ms ? mono_ms() + ms : 0;
}

void guest_set_meanwhile(struct guest *g, void (*fn)(void *arg), void *arg)
{
	g->meanwhile = fn;
	g->meanwhile_arg = arg;
}

/* What the guest may have now of our input. */
static void feed(struct wait *w)
{
	char buf[32 * 1024];
	ssize_t r;

	r = read(w->in_fd, buf, MIN(sizeof(buf), guest_sendable(w->call)));
	if (r > 0) {
		guest_send(w->call, buf, (size_t)r); /* fits: we asked first */
	} else if (r == 0) {
		if (guest_send_eof(w->call) == 0)
			w->feeding = false;
	} else if (errno != EAGAIN && errno != EINTR) {
		give_up(w, -errno);
	}
}

static int turn(struct guest *g, struct wait *w)
{
	bool feeding = w->feeding && guest_sendable(w->call) > 0;
	struct pollfd p[3] = {
	    {.fd = g->fd, .events = (short)(POLLIN | (g->out_len ? POLLOUT : 0))},
	    {.fd = feeding ? w->in_fd : -1, .events = POLLIN},
	    {.fd = w->wake ? w->wake_fd : -1, .events = POLLIN},
	};
	uint64_t now = g->deadline_ms ? mono_ms() : 0;
	int timeout = -1;

	if (g->deadline_ms && now >= g->deadline_ms)
		return guest_fail(g, ETIMEDOUT, "the guest does not answer");
	if (g->deadline_ms)
		timeout = (int)MIN(g->deadline_ms - now, (uint64_t)INT32_MAX);
	if (poll(p, 3, timeout) < 0)
		return errno == EINTR ? 0 : guest_fail(g, errno, "cannot wait for the guest");
	if (p[1].revents)
		feed(w);
	if (p[2].revents)
		w->wake(w->arg, w->call);
	/* poll and epoll have the same bits for in, out, error and hang-up */
	return guest_dispatch(g, (uint32_t)p[0].revents);
}

/* Queues the request: several can be on their way before finish() waits for each. */
static int begin(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
                 struct err *e)
{
	int r = guest_start(g, type, msg, &wait_ops, w, &w->call);

	if (r < 0)
		return err_set(
		    e, -r, r == -EMSGSIZE ? "too_large" : "guest_unreachable", "%s: %s", what,
		    r == -EMSGSIZE ? "the request is larger than a frame" : strerror(-r));
	return 0;
}

/* Waits for its end, and tells of its failure as "what: why". */
static int finish(struct guest *g, struct wait *w, const char *what, struct err *e)
{
	void (*meanwhile)(void *arg) = g->meanwhile;

	guest_flush(g);
	g->meanwhile = NULL;
	if (meanwhile)
		meanwhile(g->meanwhile_arg);
	while (!w->done)
		turn(g, w); /* a dead connection ends every call */
	if (w->failed)
		return err_set(e, -w->failed, "guest_io", "%s: %s", what, strerror(-w->failed));
	if (g->dead)
		return err_set(e, g->dead, "guest_unreachable", "%s: %s", what, w->text);
	if (w->err)
		return err_set(e, w->err, "guest_refused", "%s: %s%s%s", what, w->text,
		               *w->text ? ": " : "", strerror(w->err));
	return 0;
}

static int run(struct guest *g, uint8_t type, const void *msg, struct wait *w, const char *what,
               struct err *e)
{
	int r = begin(g, type, msg, w, what, e);

	return r < 0 ? r : finish(g, w, what, e);
}

/* ---- exec ---- */

static int fill_exec(const struct guest_exec *x, uint8_t *lists, size_t n, struct wire_exec *ret,
                     struct err *e)
{
	char *const shell[] = {(char *)x->script, NULL};
	uint32_t flags = (x->script ? WIRE_EXEC_SHELL : 0) | (x->pty ? WIRE_EXEC_PTY : 0) |
	                 (x->feed_stdin ? WIRE_EXEC_STDIN : 0) |
	                 (x->wait_output ? WIRE_EXEC_WAIT_OUTPUT : 0);

	*ret = (struct wire_exec){
	    .flags = flags,
	    .window = GUEST_WINDOW,
	    .timeout_ms = x->timeout_ms,
	    .rows = x->rows,
	    .cols = x->cols,
	    .cwd = wire_str(x->cwd ? x->cwd : ""),
	    .user = wire_str(x->user ? x->user : ""),
	};
	if (wire_list_build(x->script ? shell : x->argv, lists, n, &ret->argv) < 0 ||
	    wire_list_build(x->env, lists + ret->argv.len, n - ret->argv.len, &ret->env) < 0)
		return err_set(e, E2BIG, "too_large", "the command does not fit into a frame");
	return 0;
}

static void connect_exec(struct wait *w, const struct guest_exec *x)
{
	w->output = x->output;
	w->arg = x->arg;
	w->feeding = x->feed_stdin;
	w->in_fd = x->stdin_fd;
	w->wake = x->wakeable ? x->wake : NULL;
	w->wake_fd = x->wake_fd;
}

static int take_exit(struct guest *g, struct wait *w, struct guest_exit *ret, struct err *e)
{
	if (!w->exited.id) {
		guest_fail(g, EPROTO, "");
		return err_set(e, EPROTO, "guest_unreachable",
		               "the guest did not say how the command ended");
	}
	*ret = (struct guest_exit){
	    .id = w->exited.id,
	    .signaled = w->exited.how == WIRE_HOW_SIGNAL,
	    .timed_out = w->exited.flags & WIRE_EXITED_TIMEOUT,
	    .code = (int)(w->exited.code & 0xff),
	    .out_bytes = w->exited.out_bytes,
	    .err_bytes = w->exited.err_bytes,
	    .cpu_us = w->exited.cpu_us,
	    .max_rss_kib = w->exited.max_rss_kib,
	};
	return 0;
}

int guest_exec_wait(struct guest *g, const struct guest_exec *x, struct guest_exit *ret,
                    struct err *e)
{
	autofree uint8_t *lists = malloc(WIRE_PAYLOAD_MAX);
	struct wait w = {0};
	struct wire_exec m;
	int r;

	if (!lists)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	r = fill_exec(x, lists, WIRE_PAYLOAD_MAX, &m, e);
	if (r < 0)
		return r;
	connect_exec(&w, x);
	r = run(g, WIRE_EXEC, &m, &w, "cannot run the command", e);
	return r < 0 ? r : take_exit(g, &w, ret, e);
}

int guest_exec_start(struct guest *g, const struct guest_exec *x, uint64_t *ret_id, struct err *e)
{
	autofree uint8_t *lists = malloc(WIRE_PAYLOAD_MAX);
	struct wait w = {0};
	struct wire_exec m;
	int r;

	if (!lists)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
	r = fill_exec(x, lists, WIRE_PAYLOAD_MAX, &m, e);
	if (r < 0)
		return r;
	m.flags |= WIRE_EXEC_DETACH;
	r = run(g, WIRE_EXEC, &m, &w, "cannot start the command", e);
	if (r == 0)
		*ret_id = w.started.id;
	return r;
}

int guest_exec_attach(struct guest *g, struct guest_attach *at, const struct guest_exec *x,
                      struct guest_exit *ret, struct err *e)
{
	struct wait w = {.attach = at};
	struct wire_attach m = {.id = at->id,
	                        .out_offset = at->out_offset,
	                        .err_offset = at->err_offset,
	                        .window = GUEST_WINDOW,
	                        .flags = x->feed_stdin ? WIRE_ATTACH_STDIN : 0};
	int r;

	at->lost = 0;
	connect_exec(&w, x);
	r = run(g, WIRE_ATTACH, &m, &w, "cannot attach to the command", e);
	return r < 0 ? r : take_exit(g, &w, ret, e);
}

int guest_exec_signal(struct guest *g, uint64_t id, int signo, bool tree, struct err *e)
{
	struct wire_signal m = {
	    .id = id, .signo = (uint32_t)signo, .flags = tree ? WIRE_SIGNAL_TREE : 0};

	return run(g, WIRE_SIGNAL, &m, &(struct wait){0}, "cannot signal the command", e);
}

/* ---- rows ---- */

struct rows {
	void (*info)(void *arg, const struct wire_exec_info *m);
	void (*file)(void *arg, const struct wire_file *m);
	bool (*event)(void *arg, const struct wire_event *m);
	void (*ready)(void *arg);
	void *arg;
	bool enough;
};

static int info_row(struct wait *w, const uint8_t *p, size_t n)
{
	struct rows *rows = w->arg;
	struct wire_exec_info m;
	ssize_t r = wire_exec_info_take(p, n, &m);

	if (r > 0)
		rows->info(rows->arg, &m);
	return (int)r;
}

int guest_exec_list(struct guest *g, void (*each)(void *arg, const struct wire_exec_info *m),
                    void *arg, struct err *e)
{
	struct rows rows = {.info = each, .arg = arg};
	struct wait w = {.row = info_row, .arg = &rows};

	return run(g, WIRE_LIST, &(struct wire_window){.window = GUEST_WINDOW}, &w,
	           "cannot list commands", e);
}

static int file_row(struct wait *w, const uint8_t *p, size_t n)
{
	struct rows *rows = w->arg;
	struct wire_file m;
	ssize_t r = wire_file_take(p, n, &m);

	if (r > 0)
		rows->file(rows->arg, &m);
	return (int)r;
}

int guest_dir(struct guest *g, const char *path, void (*each)(void *arg, const struct wire_file *m),
              void *arg, struct err *e)
{
	struct rows rows = {.file = each, .arg = arg};
	struct wait w = {.row = file_row, .arg = &rows};
	struct wire_path_flags m = {.path = wire_str(path), .flags = GUEST_WINDOW};

	return run(g, WIRE_DIR, &m, &w, path, e);
}

static int event_row(struct wait *w, const uint8_t *p, size_t n)
{
	struct rows *rows = w->arg;
	struct wire_event m;
	ssize_t r = wire_event_take(p, n, &m);

	w->rows = 0; /* a watch has no natural end */
	if (r > 0 && !rows->enough && !rows->event(rows->arg, &m)) {
		rows->enough = true;
		guest_cancel(w->call);
	}
	return (int)r;
}

static void watch_ready(void *arg)
{
	struct rows *rows = arg;

	if (rows->ready)
		rows->ready(rows->arg);
}

int guest_watch(struct guest *g, const char *path, bool recursive, void (*ready)(void *arg),
                bool (*each)(void *arg, const struct wire_event *m), void *arg, struct err *e)
{
	struct rows rows = {.event = each, .ready = ready, .arg = arg};
	struct wait w = {.row = event_row, .arg = &rows, .ready = watch_ready};
	struct wire_watch m = {.path = wire_str(path),
	                       .flags = recursive ? WIRE_WATCH_RECURSIVE : 0,
	                       .window = GUEST_WINDOW};
	int r = run(g, WIRE_WATCH, &m, &w, path, e);

	return r == -ECANCELED && rows.enough ? 0 : r;
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
		give_up(b->w, -EFBIG);
		return;
	}
	if (b->n + n + 1 > b->cap) {
		size_t cap = MAX(b->cap * 2, b->n + n + 1);
		char *bigger = realloc(b->p, cap);

		if (!bigger) {
			give_up(b->w, -ENOMEM);
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
	int r = io_write_full(b->fd, p, n);

	if (r < 0)
		give_up(b->w, r);
}

static int read_with(struct guest *g, const char *path, struct wait *w, struct err *e)
{
	struct wire_read m = {.path = wire_str(path), .length = UINT64_MAX, .window = GUEST_WINDOW};

	return run(g, WIRE_READ, &m, w, path, e);
}

int guest_read_file(struct guest *g, const char *path, size_t max, char **ret, size_t *ret_n,
                    struct err *e)
{
	struct wait w = {.output = into_buffer};
	struct buffer b = {.w = &w, .max = max, .p = malloc(1), .cap = 1};
	int r;

	if (!b.p)
		return err_set(e, ENOMEM, "no_memory", "out of memory");
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

int guest_read_to_fd(struct guest *g, const char *path, int fd, struct err *e)
{
	struct wait w = {.output = into_fd};
	struct buffer b = {.w = &w, .fd = fd};

	w.arg = &b;
	return read_with(g, path, &w, e);
}

int guest_write_from_fd(struct guest *g, const char *path, int fd, uint32_t flags, mode_t mode,
                        struct err *e)
{
	struct wait w = {.feeding = true, .in_fd = fd};
	struct wire_write m = {.path = wire_str(path), .flags = flags, .mode = mode};

	return run(g, WIRE_WRITE, &m, &w, path, e);
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
	int r = guest_start(g, WIRE_WRITE, &m, &wait_ops, &mw.w, &mw.w.call);

	if (r < 0)
		return err_set(e, -r, "guest_unreachable", "%s: %s", path, strerror(-r));
	while (!mw.w.done) {
		push(&mw);
		guest_flush(g);
		if (!mw.w.done)
			turn(g, &mw.w);
	}
	if (g->dead)
		return err_set(e, g->dead, "guest_unreachable", "%s: %s", path, mw.w.text);
	if (mw.w.err)
		return err_set(e, mw.w.err, "guest_refused", "%s: %s", path, strerror(mw.w.err));
	return 0;
}

int guest_stat(struct guest *g, const char *path, bool follow, struct wire_file *ret, struct err *e)
{
	struct wait w = {0};
	struct wire_path_flags m = {.path = wire_str(path),
	                            .flags = follow ? 0 : WIRE_STAT_NOFOLLOW};
	int r = run(g, WIRE_STAT, &m, &w, path, e);

	if (r == 0)
		*ret = w.file;
	return r;
}

int guest_mkdir(struct guest *g, const char *path, mode_t mode, bool parents, struct err *e)
{
	struct wire_mkdir m = {
	    .path = wire_str(path), .flags = parents ? WIRE_MKDIR_PARENTS : 0, .mode = mode};

	return run(g, WIRE_MKDIR, &m, &(struct wait){0}, path, e);
}

int guest_remove(struct guest *g, const char *path, bool recursive, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str(path),
	                            .flags = recursive ? WIRE_REMOVE_RECURSIVE : 0};

	return run(g, WIRE_REMOVE, &m, &(struct wait){0}, path, e);
}

int guest_rename(struct guest *g, const char *from, const char *to, bool replace, struct err *e)
{
	struct wire_two_paths m = {.from = wire_str(from),
	                           .to = wire_str(to),
	                           .flags = replace ? 0 : WIRE_RENAME_NOREPLACE};

	return run(g, WIRE_RENAME, &m, &(struct wait){0}, from, e);
}

int guest_chmod(struct guest *g, const char *path, mode_t mode, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str(path), .flags = mode};

	return run(g, WIRE_CHMOD, &m, &(struct wait){0}, path, e);
}

int guest_symlink(struct guest *g, const char *target, const char *path, struct err *e)
{
	struct wire_two_paths m = {.from = wire_str(target), .to = wire_str(path)};

	return run(g, WIRE_SYMLINK, &m, &(struct wait){0}, path, e);
}

int guest_readlink(struct guest *g, const char *path, char **ret, struct err *e)
{
	struct wait w = {0};
	int r = run(g, WIRE_READLINK, &(struct wire_path){.path = wire_str(path)}, &w, path, e);

	if (r == 0 && !w.path)
		r = err_set(e, ENOMEM, "no_memory", "out of memory");
	if (r == 0)
		*ret = take_ptr(w.path);
	free(w.path);
	return r;
}

/* ---- ports and the machine ---- */

int guest_connect(struct guest *g, unsigned port, int in_fd, int out_fd, struct err *e)
{
	struct wait w = {.output = into_fd, .feeding = true, .in_fd = in_fd};
	struct buffer b = {.w = &w, .fd = out_fd};
	struct wire_connect m = {.port = port, .window = GUEST_WINDOW};
	char what[32];

	w.arg = &b;
	snprintf(what, sizeof(what), "port %u", port);
	return run(g, WIRE_CONNECT, &m, &w, what, e);
}

int guest_stats(struct guest *g, struct wire_stats *ret, struct err *e)
{
	struct wait w = {0};
	int r = run(g, WIRE_STATS, NULL, &w, "cannot read statistics", e);

	if (r == 0)
		*ret = w.stats;
	return r;
}

int guest_sync(struct guest *g, struct err *e)
{
	return run(g, WIRE_SYNC, NULL, &(struct wait){0}, "cannot sync", e);
}

int guest_reborn(struct guest *g, const struct wire_reborn *m, struct err *e)
{
	return run(g, WIRE_REBORN, m, &(struct wait){0}, "cannot give the machine its identity", e);
}

int guest_shutdown(struct guest *g, uint32_t grace_ms, struct err *e)
{
	return run(g, WIRE_SHUTDOWN, &(struct wire_shutdown){.grace_ms = grace_ms},
	           &(struct wait){0}, "cannot shut down", e);
}

static void cannot_mount(const struct wire_mount *m, char what[160])
{
	snprintf(what, 160, "cannot mount volume %u at %.100s", m->volume, m->path.p);
}

int guest_mount(struct guest *g, unsigned volume, const char *path, bool read_only, struct err *e)
{
	struct wire_mount m = {
	    .volume = volume, .flags = read_only ? WIRE_MOUNT_RO : 0, .path = wire_str(path)};
	char what[160];

	cannot_mount(&m, what);
	return run(g, WIRE_MOUNT, &m, &(struct wait){0}, what, e);
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
		return err_set(e, ENOMEM, "no_memory", "no memory");
	r = begin(g, WIRE_REBORN, m, &w[0], first, e);
	for (begun = r == 0; r == 0 && begun <= n; begun += r == 0) {
		cannot_mount(&mounts[begun - 1], what);
		r = begin(g, WIRE_MOUNT, &mounts[begun - 1], &w[begun], what, e);
	}
	/* Each must be over before its struct wait goes; the first failure is the one to tell. */
	for (size_t i = 0; i < begun; i++) {
		if (i)
			cannot_mount(&mounts[i - 1], what);
		r2 = finish(g, &w[i], i ? what : first, r < 0 ? NULL : e);
		r = r < 0 ? r : r2;
	}
	return r;
}

int guest_umount(struct guest *g, const char *path, bool force, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str(path), .flags = force ? WIRE_UMOUNT_FORCE : 0};
	char what[128];

	snprintf(what, sizeof(what), "cannot unmount %.100s", path);
	return run(g, WIRE_UMOUNT, &m, &(struct wait){0}, what, e);
}

int guest_umount_lost(struct guest *g, struct err *e)
{
	struct wire_path_flags m = {.path = wire_str("/"), .flags = WIRE_UMOUNT_LOST};

	return run(g, WIRE_UMOUNT, &m, &(struct wait){0}, "cannot unmount lost volumes", e);
}

int guest_grow(struct guest *g, unsigned volume, const char *path, struct err *e)
{
	struct wire_mount m = {.volume = volume, .path = wire_str(path)};
	char what[128];

	snprintf(what, sizeof(what), "cannot let the volume at %.80s grow", path);
	return run(g, WIRE_GROW, &m, &(struct wait){0}, what, e);
}

int guest_freeze(struct guest *g, unsigned volume, const char *path, struct err *e)
{
	struct wire_mount m = {.volume = volume, .path = wire_str(path)};
	char what[128];

	snprintf(what, sizeof(what), "cannot freeze the volume at %.80s", path);
	return run(g, WIRE_FREEZE, &m, &(struct wait){0}, what, e);
}

int guest_thaw(struct guest *g, struct err *e)
{
	return run(g, WIRE_THAW, NULL, &(struct wait){0}, "cannot thaw a volume", e);
}
