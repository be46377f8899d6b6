/*
 * guest/init/file.c - files as streams: read, write, directories
 * Disk I/O blocks the loop for one chunk at a time. Opens never wait: a fifo is not a trap.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "wire/guest.h"

enum {
	WRITE_AHEAD = WIRE_WINDOW_MAX - WIRE_WINDOW,
};

void file_describe(const struct stat *st, struct wire_file *ret)
{
	*ret = (struct wire_file){
	    .name = wire_str(""),
	    .target = wire_str(""),
	    .mode = st->st_mode,
	    .uid = st->st_uid,
	    .gid = st->st_gid,
	    .nlink = (uint32_t)st->st_nlink,
	    .size = (uint64_t)st->st_size,
	    .mtime_ns = (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec,
	    .ino = st->st_ino,
	};
}

/* ---- read ---- */

struct read_stream {
	struct stream s;
	int fd;
	uint64_t left;
};

static void read_pump(struct stream *s)
{
	struct read_stream *rs = container_of(s, struct read_stream, s);
	size_t n = MIN(stream_space(s, WIRE_OUT), rs->left);
	ssize_t r;

	if (!n && rs->left)
		return;
	r = n ? read(rs->fd, conn_space(s->c, WIRE_HEADER + n) + WIRE_HEADER, n) : 0;
	if (r > 0) {
		stream_commit_data(s, WIRE_OUT, (size_t)r);
		rs->left -= (uint64_t)r;
		stream_queue(s);
	} else if (r == 0 || errno != EINTR) {
		stream_end(s, r < 0 ? errno : 0, NULL);
	} else {
		stream_queue(s);
	}
}

static void read_release(struct stream *s, bool reborn)
{
	close(container_of(s, struct read_stream, s)->fd);
}

static const struct stream_ops read_ops = {.pump = read_pump, .release = read_release};

void file_read(struct conn *c, uint32_t id, const struct wire_read *m)
{
	autoclose int fd = open(m->path.p, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct read_stream *rs;
	struct wire_file info;
	struct stat st;
	int err = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		err = errno;
	else if (S_ISDIR(st.st_mode))
		err = EISDIR;
	else if (m->offset && lseek(fd, (off_t)MIN(m->offset, (uint64_t)INT64_MAX), SEEK_SET) < 0)
		err = errno;
	if (err) {
		reply_end(c, id, err, NULL);
		return;
	}
	rs = stream_new(c, id, &read_ops, sizeof(*rs), m->window);
	if (!rs)
		return;
	rs->fd = take_fd(&fd);
	rs->left = m->length;
	file_describe(&st, &info);
	stream_send(&rs->s, WIRE_FILE, 0, &info);
	stream_queue(&rs->s);
}

/* ---- write ---- */

struct write_stream {
	struct stream s;
	int fd;
	uint32_t flags;
	char *path;
	char *tmp; /* NULL: written in place */
};

static int writev_full(int fd, struct iovec *iov, int n)
{
	while (n) {
		ssize_t r = writev(fd, iov, n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		for (; n && (size_t)r >= iov->iov_len; n--)
			r -= (ssize_t)iov++->iov_len;
		if (n) {
			iov->iov_base = (char *)iov->iov_base + r;
			iov->iov_len -= (size_t)r;
		}
	}
	return 0;
}

static void write_data(struct stream *s, struct iovec *iov, int n)
{
	struct write_stream *ws = container_of(s, struct write_stream, s);
	int r;

	for (int i = 0; i < n; i++)
		s->in_taken += (uint32_t)iov[i].iov_len;
	r = writev_full(ws->fd, iov, n);
	if (r < 0)
		stream_end(s, -r, NULL);
	else
		stream_queue(s);
}

static int write_finish(struct write_stream *ws)
{
	if ((ws->flags & WIRE_WRITE_SYNC) && fsync(ws->fd) < 0)
		return errno;
	if (!ws->tmp)
		return 0;
	if (file_move(ws->tmp, ws->path, ws->flags & WIRE_WRITE_EXCL) < 0)
		return errno;
	free(ws->tmp); /* nothing to clean up any more */
	ws->tmp = NULL;
	return 0;
}

static void write_eof(struct stream *s)
{
	stream_end(s, write_finish(container_of(s, struct write_stream, s)), NULL);
}

static void write_release(struct stream *s, bool reborn)
{
	struct write_stream *ws = container_of(s, struct write_stream, s);

	close(ws->fd);
	if (ws->tmp)
		unlink(ws->tmp);
	free(ws->tmp);
	free(ws->path);
}

static const struct stream_ops write_ops = {.datav = write_data,
                                            .eof = write_eof,
                                            .release = write_release};

static char *tmp_beside(struct agent *a, const char *path)
{
	static unsigned long long counter;
	const char *slash = strrchr(path, '/');
	char *tmp = NULL;

	if (asprintf(&tmp, "%.*s.panda-%llx.%llu", slash ? (int)(slash + 1 - path) : 0, path,
	             (unsigned long long)a->nonce, counter++) < 0)
		return NULL;
	return tmp;
}

/* Opens what the bytes go to: a file beside the old one, or what is there and not a plain file. */
static int open_target(struct agent *a, const struct wire_write *m, struct write_stream *ws)
{
	mode_t mode = m->mode ? m->mode & 07777 : 0644;
	struct stat st;
	bool exists;

	if ((m->flags & WIRE_WRITE_PARENTS) && file_make_parents(m->path.p, 0755) < 0)
		return -errno;
	/* Through a symbolic link we write what it points to, and the link stays. */
	if (lstat(m->path.p, &st) == 0 && S_ISLNK(st.st_mode))
		ws->path = realpath(m->path.p, NULL);
	else
		ws->path = strdup(m->path.p);
	if (!ws->path)
		return -errno;
	exists = stat(ws->path, &st) == 0;
	if (exists && (m->flags & WIRE_WRITE_EXCL))
		return -EEXIST;
	if ((m->flags & WIRE_WRITE_APPEND) || (exists && !S_ISREG(st.st_mode))) {
		ws->fd =
		    open(ws->path,
		         O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
		return ws->fd < 0 ? -errno : 0;
	}
	ws->tmp = tmp_beside(a, ws->path);
	if (!ws->tmp)
		return -ENOMEM;
	ws->fd = open(ws->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (ws->fd < 0) {
		int r = -errno;

		free(ws->tmp);
		ws->tmp = NULL;
		return r;
	}
	if (exists && fchown(ws->fd, st.st_uid, st.st_gid) < 0 && errno != EPERM)
		return -errno;
	if (exists && !m->mode)
		mode = st.st_mode & 07777;
	return fchmod(ws->fd, mode) < 0 ? -errno : 0;
}

void file_write(struct conn *c, uint32_t id, const struct wire_write *m)
{
	struct write_stream *ws = stream_new(c, id, &write_ops, sizeof(*ws), 0);
	int r;

	if (!ws)
		return;
	ws->fd = -1;
	ws->flags = m->flags;
	r = open_target(c->a, m, ws);
	if (r < 0) {
		stream_end(&ws->s, -r, NULL);
		return;
	}
	/* What comes is written at once and never kept: the host may be well ahead of us. */
	ws->s.in_taken = WRITE_AHEAD;
	stream_queue(&ws->s);
}

/* ---- directories ---- */

struct dir_stream {
	struct stream s;
	DIR *d;
};

static ssize_t put_entry(DIR *d, const struct dirent *e, uint8_t *p, size_t n)
{
	char target[PATH_MAX];
	struct wire_file m;
	struct stat st;
	ssize_t r;

	if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0; /* gone meanwhile */
	file_describe(&st, &m);
	m.name = wire_str(e->d_name);
	if (S_ISLNK(st.st_mode)) {
		r = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);
		target[MAX(r, (ssize_t)0)] = 0;
		m.target = wire_str(target);
	}
	return wire_file_encode(&m, p, n);
}

static void dir_pump(struct stream *s)
{
	struct dir_stream *ds = container_of(s, struct dir_stream, s);
	size_t space = stream_space(s, WIRE_OUT), used = 0;
	struct dirent *e;
	uint8_t *p;

	if (!space)
		return;
	p = conn_space(s->c, WIRE_HEADER + space) + WIRE_HEADER;
	for (;;) {
		long at = telldir(ds->d);
		ssize_t n;

		e = readdir(ds->d);
		if (!e)
			break;
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		n = put_entry(ds->d, e, p + used, space - used);
		if (n < 0) {
			seekdir(ds->d, at); /* full: again in the next frame */
			break;
		}
		used += (size_t)n;
	}
	if (used)
		stream_commit_data(s, WIRE_OUT, used);
	if (!e)
		stream_end(s, 0, NULL);
	else if (used)
		stream_queue(s);
}

static void dir_release(struct stream *s, bool reborn)
{
	closedir(container_of(s, struct dir_stream, s)->d);
}

static const struct stream_ops dir_ops = {.pump = dir_pump, .release = dir_release};

void file_dir(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	DIR *d = opendir(m->path.p);
	struct dir_stream *ds;

	if (!d) {
		reply_end(c, id, errno, NULL);
		return;
	}
	ds = stream_new(c, id, &dir_ops, sizeof(*ds), m->flags);
	if (!ds) {
		closedir(d);
		return;
	}
	ds->d = d;
	stream_queue(&ds->s);
}
