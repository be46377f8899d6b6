/*
 * guest/init/watch.c - what happens to files, as a stream of events
 * Events wait in the kernel while the host gives no credit; its bounded queue tells when it had
 * to drop some, and so do we.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "wire/guest.h"

enum {
	MASK = IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
	       IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF,
	PENDING_MAX = 64 * 1024, /* encoded events that wait for credit */
};

struct watched {
	int wd;
	char *path; /* below the root, "" for itself */
};

struct watch_stream {
	struct stream s;
	int fd;
	bool recursive, readable;
	char *root;
	struct watched *dirs;
	unsigned n_dirs, cap_dirs;
	uint8_t *pending;
	size_t n_pending;
	bool overflow; /* something did not fit into pending; told when there is room */
};

static void emit(struct watch_stream *ws, uint32_t what, uint32_t cookie, const char *path)
{
	struct wire_event m = {.what = what, .cookie = cookie, .path = wire_str(path)};
	ssize_t n = wire_event_encode(&m, ws->pending + ws->n_pending, PENDING_MAX - ws->n_pending);

	if (n < 0)
		ws->overflow = true;
	else
		ws->n_pending += (size_t)n;
}

static int join(char out[PATH_MAX], const char *dir, const char *name)
{
	const char *slash = *dir && *name ? "/" : "";

	return (size_t)snprintf(out, PATH_MAX, "%s%s%s", dir, slash, name) < PATH_MAX
	           ? 0
	           : -ENAMETOOLONG;
}

/* Watches one directory (or the root, whatever it is). */
static int add_one(struct watch_stream *ws, const char *path)
{
	char full[PATH_MAX];
	int wd, r = join(full, ws->root, path);

	if (r < 0)
		return r;
	if (ws->n_dirs >= WATCH_DIRS_MAX)
		return -ENOSPC;
	wd = inotify_add_watch(ws->fd, full, MASK | (*path ? IN_ONLYDIR | IN_DONT_FOLLOW : 0));
	if (wd < 0)
		return -errno;
	for (unsigned i = 0; i < ws->n_dirs; i++)
		if (ws->dirs[i].wd == wd)
			return 0; /* seen already */
	if (ws->n_dirs == ws->cap_dirs) {
		unsigned cap = ws->cap_dirs ? ws->cap_dirs * 2 : 8;
		struct watched *bigger = realloc(ws->dirs, cap * sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		ws->dirs = bigger;
		ws->cap_dirs = cap;
	}
	ws->dirs[ws->n_dirs].wd = wd;
	ws->dirs[ws->n_dirs].path = strdup(path);
	if (!ws->dirs[ws->n_dirs].path)
		return -ENOMEM;
	ws->n_dirs++;
	return 0;
}

/*
 * Watches a directory and all below. The list of watched directories is also the list of those
 * still to look into. announce: tell of what is in there already, it came before our watch.
 */
static int add_tree(struct watch_stream *ws, const char *path, bool announce)
{
	unsigned i = ws->n_dirs;
	int r = add_one(ws, path);

	for (; r == 0 && i < ws->n_dirs; i++) {
		autoclosedir DIR *d = NULL;
		char full[PATH_MAX], below[PATH_MAX];
		struct dirent *e;

		if (join(full, ws->root, ws->dirs[i].path) < 0 || !(d = opendir(full)))
			continue;
		while ((e = readdir(d))) {
			bool dir = e->d_type == DT_DIR;

			if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
			    join(below, ws->dirs[i].path, e->d_name) < 0)
				continue;
			if (announce)
				emit(ws, WIRE_EV_CREATE | (dir ? WIRE_EV_DIR : 0), 0, below);
			if (dir) {
				r = add_one(ws, below);
				if (r == -ENOSPC || r == -ENOMEM)
					return r;
				r = 0; /* vanished meanwhile */
			}
		}
	}
	return r;
}

static void forget(struct watch_stream *ws, unsigned i)
{
	free(ws->dirs[i].path);
	ws->dirs[i] = ws->dirs[--ws->n_dirs];
}

/* A directory was moved away: its watches would report under a name that is no more. */
static void forget_below(struct watch_stream *ws, const char *path)
{
	size_t n = strlen(path);

	for (unsigned i = ws->n_dirs; i-- > 0;) {
		const char *p = ws->dirs[i].path;

		if (strncmp(p, path, n) == 0 && (p[n] == 0 || p[n] == '/')) {
			inotify_rm_watch(ws->fd, ws->dirs[i].wd);
			forget(ws, i);
		}
	}
}

static void on_event(struct watch_stream *ws, const struct inotify_event *ev)
{
	static const struct {
		uint32_t in, what;
	} map[] = {
	    {IN_CREATE, WIRE_EV_CREATE},         {IN_MODIFY, WIRE_EV_MODIFY},
	    {IN_CLOSE_WRITE, WIRE_EV_WRITTEN},   {IN_DELETE, WIRE_EV_DELETE},
	    {IN_MOVED_FROM, WIRE_EV_MOVED_FROM}, {IN_MOVED_TO, WIRE_EV_MOVED_TO},
	    {IN_ATTRIB, WIRE_EV_ATTRIB},
	};
	uint32_t what = ev->mask & IN_ISDIR ? WIRE_EV_DIR : 0;
	char path[PATH_MAX];
	unsigned i = 0;

	if (ev->mask & IN_Q_OVERFLOW) {
		ws->overflow = true;
		return;
	}
	while (i < ws->n_dirs && ws->dirs[i].wd != ev->wd)
		i++;
	if (i == ws->n_dirs || join(path, ws->dirs[i].path, ev->len ? ev->name : "") < 0)
		return;
	if (ev->mask & IN_IGNORED) {
		forget(ws, i);
		return;
	}
	if (ev->mask & (IN_DELETE_SELF | IN_MOVE_SELF)) {
		if (!*ws->dirs[i].path)
			emit(ws, WIRE_EV_GONE, 0, "");
		return;
	}
	for (size_t k = 0; k < ARRAY_LEN(map); k++)
		if (ev->mask & map[k].in)
			what |= map[k].what;
	emit(ws, what, ev->cookie, path);
	if (!ws->recursive || !(ev->mask & IN_ISDIR))
		return;
	if (ev->mask & IN_MOVED_FROM)
		forget_below(ws, path);
	if ((ev->mask & (IN_CREATE | IN_MOVED_TO)) && add_tree(ws, path, true) < 0)
		ws->overflow = true;
}

static void fetch(struct watch_stream *ws)
{
	char buf[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	ssize_t n = read(ws->fd, buf, sizeof(buf));

	if (n <= 0) {
		ws->readable = false;
		return;
	}
	for (char *p = buf; p < buf + n;) {
		const struct inotify_event *ev = (const struct inotify_event *)p;

		on_event(ws, ev);
		p += sizeof(*ev) + ev->len;
	}
}

static void watch_pump(struct stream *s)
{
	struct watch_stream *ws = container_of(s, struct watch_stream, s);
	size_t space, n = 0;
	struct wire_event m;

	if (!ws->n_pending && ws->overflow) {
		ws->overflow = false;
		emit(ws, WIRE_EV_OVERFLOW, 0, "");
	}
	if (!ws->n_pending && ws->readable)
		fetch(ws);
	space = ws->n_pending ? stream_space(s, WIRE_OUT) : 0;
	while (n < ws->n_pending) { /* whole events only */
		ssize_t one = wire_event_take(ws->pending + n, ws->n_pending - n, &m);

		if (n + (size_t)one > space)
			break;
		n += (size_t)one;
	}
	if (n) {
		memcpy(conn_space(s->c, WIRE_HEADER + n) + WIRE_HEADER, ws->pending, n);
		stream_commit_data(s, WIRE_OUT, n);
		ws->n_pending -= n;
		memmove(ws->pending, ws->pending + n, ws->n_pending);
	}
	if (!ws->n_pending && (ws->readable || ws->overflow))
		stream_queue(s);
}

static void watch_ready(struct source *src, uint32_t events)
{
	struct watch_stream *ws = container_of(src, struct watch_stream, s.src);

	ws->readable = true;
	stream_queue(&ws->s);
}

static void watch_release(struct stream *s, bool reborn)
{
	struct watch_stream *ws = container_of(s, struct watch_stream, s);

	if (ws->fd >= 0)
		source_close(s->c->a, ws->fd);
	while (ws->n_dirs)
		forget(ws, ws->n_dirs - 1);
	free(ws->dirs);
	free(ws->root);
	free(ws->pending);
}

static const struct stream_ops watch_ops = {.pump = watch_pump, .release = watch_release};

void watch_request(struct conn *c, uint32_t id, const struct wire_watch *m)
{
	struct watch_stream *ws = stream_new(c, id, &watch_ops, sizeof(*ws), m->window);
	int r;

	if (!ws)
		return;
	ws->s.src.ready = watch_ready;
	ws->recursive = m->flags & WIRE_WATCH_RECURSIVE;
	ws->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	ws->root = strdup(m->path.p);
	ws->pending = malloc(PENDING_MAX);
	if (ws->fd < 0)
		r = -errno;
	else if (!ws->root || !ws->pending)
		r = -ENOMEM;
	else
		r = ws->recursive ? add_tree(ws, "", false) : add_one(ws, "");
	if (r == 0)
		r = source_add(c->a, &ws->s.src, ws->fd, EPOLLIN | EPOLLET);
	if (r < 0) {
		stream_end(&ws->s, -r, NULL);
		return;
	}
	stream_send(&ws->s, WIRE_READY, 0, NULL);
}
