/*
 * guest/init/fileop.c - what is done to files in one go, and removing trees
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "wire/guest.h"

enum {
	REMOVE_STEP = 256, /* names removed per turn of the loop */
};

void file_stat(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	bool follow = !(m->flags & WIRE_STAT_NOFOLLOW);
	char target[PATH_MAX];
	struct wire_file info;
	struct stat st;
	ssize_t n;

	if ((follow ? stat : lstat)(m->path.p, &st) < 0) {
		reply_end(c, id, errno, NULL);
		return;
	}
	file_describe(&st, &info);
	if (S_ISLNK(st.st_mode)) {
		n = readlink(m->path.p, target, sizeof(target) - 1);
		target[MAX(n, (ssize_t)0)] = 0;
		info.target = wire_str(target);
	}
	reply(c, id, WIRE_FILE, &info);
	reply_end(c, id, 0, NULL);
}

/* Creates the directories above path, as far as they are missing. Returns 0 or -1 with errno. */
int file_make_parents(const char *path, mode_t mode)
{
	char buf[PATH_MAX];
	size_t n = strlen(path);

	if (n >= sizeof(buf)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(buf, path, n + 1);
	for (char *p = strchr(buf + 1, '/'); n && p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (mkdir(buf, mode) < 0 && errno != EEXIST)
			return -1;
		*p = '/';
	}
	return 0;
}

void file_mkdir(struct conn *c, uint32_t id, const struct wire_mkdir *m)
{
	mode_t mode = m->mode ? m->mode & 07777 : 0755;
	bool parents = m->flags & WIRE_MKDIR_PARENTS;
	struct stat st;
	int err = 0;

	if (parents && file_make_parents(m->path.p, 0755) < 0)
		err = errno;
	else if (mkdir(m->path.p, mode) == 0)
		err = chmod(m->path.p, mode) < 0 ? errno : 0; /* whatever the umask */
	else if (!(errno == EEXIST && parents && stat(m->path.p, &st) == 0 && S_ISDIR(st.st_mode)))
		err = errno;
	reply_end(c, id, err, NULL);
}

int file_move(const char *from, const char *to, bool keep_existing)
{
	if (!keep_existing)
		return rename(from, to);
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
}

void file_rename(struct conn *c, uint32_t id, const struct wire_two_paths *m)
{
	int r = file_move(m->from.p, m->to.p, m->flags & WIRE_RENAME_NOREPLACE);

	reply_end(c, id, r < 0 ? errno : 0, NULL);
}

void file_chmod(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	reply_end(c, id, chmod(m->path.p, m->flags & 07777) < 0 ? errno : 0, NULL);
}

void file_symlink(struct conn *c, uint32_t id, const struct wire_two_paths *m)
{
	reply_end(c, id, symlink(m->from.p, m->to.p) < 0 ? errno : 0, NULL);
}

void file_readlink(struct conn *c, uint32_t id, const struct wire_path *m)
{
	char target[PATH_MAX];
	ssize_t n = readlink(m->path.p, target, sizeof(target) - 1);

	if (n < 0) {
		reply_end(c, id, errno, NULL);
		return;
	}
	target[n] = 0;
	reply(c, id, WIRE_PATH, &(struct wire_path){.path = wire_str(target)});
	reply_end(c, id, 0, NULL);
}

/* ---- remove ---- */

struct remove_stream {
	struct stream s;
	char *path;
};

/*
 * Goes down to the first directory without subdirectories that must go first and removes up to
 * REMOVE_STEP names of it, relative to open directories: no path is too long, no symbolic link
 * is followed. Returns 1 when there is more to do, 0 when the tree is gone, or -errno.
 */
static int remove_step(const char *path)
{
	autoclosedir DIR *d = NULL;
	int fd, removed = 0;
	bool top = true;

	if (unlink(path) == 0)
		return 0;
	if (errno != EISDIR)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	while (fd >= 0) {
		struct dirent *e;
		int down = -1;

		if (d)
			closedir(d);
		d = fdopendir(fd);
		if (!d) {
			int r = -errno;

			close(fd);
			return r;
		}
		fd = -1;
		while (down < 0 && (e = readdir(d))) {
			if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
				continue;
			if (removed == REMOVE_STEP)
				return 1;
			if (unlinkat(dirfd(d), e->d_name, 0) == 0 ||
			    (errno == EISDIR && unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR) == 0)) {
				removed++;
				continue;
			}
			if (errno == ENOENT)
				continue;
			if (errno != ENOTEMPTY && errno != EEXIST)
				return -errno;
			down = openat(dirfd(d), e->d_name,
			              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (down < 0)
				return -errno;
			top = false;
		}
		fd = down;
	}
	if (!d)
		return -errno;
	if (!top)
		return 1; /* a lower directory is empty now; the next step removes it */
	if (rmdir(path) == 0)
		return 0;
	return errno == ENOTEMPTY ? 1 : -errno; /* a process is still writing into it */
}

static void remove_pump(struct stream *s)
{
	int r = remove_step(container_of(s, struct remove_stream, s)->path);

	if (r > 0)
		stream_queue(s);
	else
		stream_end(s, -r, NULL);
}

static void remove_release(struct stream *s, bool reborn)
{
	free(container_of(s, struct remove_stream, s)->path);
}

static const struct stream_ops remove_ops = {.pump = remove_pump, .release = remove_release};

void file_remove(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	struct remove_stream *rs;

	if (!(m->flags & WIRE_REMOVE_RECURSIVE)) {
		reply_end(c, id, remove(m->path.p) < 0 ? errno : 0, NULL);
		return;
	}
	rs = stream_new(c, id, &remove_ops, sizeof(*rs), 0);
	if (!rs)
		return;
	rs->path = strdup(m->path.p);
	if (rs->path)
		stream_queue(&rs->s);
	else
		stream_end(&rs->s, ENOMEM, NULL);
}
