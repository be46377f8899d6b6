#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/cleanup.h"

enum {
	FDS_MAX = 253, /* as many as the kernel takes */
};

int io_write_full(int fd, const void *buf, size_t n)
{
	const char *p = buf;

	while (n) {
		ssize_t r = write(fd, p, n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		n -= (size_t)r;
	}
	return 0;
}

int io_pread_full(int fd, void *buf, size_t n, off_t off)
{
	char *p = buf;

	while (n) {
		ssize_t r = pread(fd, p, n, off);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			return -ENODATA;
		p += r;
		off += r;
		n -= (size_t)r;
	}
	return 0;
}

int io_pwrite_full(int fd, const void *buf, size_t n, off_t off)
{
	const char *p = buf;

	while (n) {
		ssize_t r = pwrite(fd, p, n, off);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		off += r;
		n -= (size_t)r;
	}
	return 0;
}

int io_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len)
{
	autoclose int fd = -1;
	autofree char *buf = NULL;
	size_t cap = 4096, len = 0;

	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (;;) {
		char *bigger = realloc(buf, cap + 1);
		ssize_t r;

		if (!bigger)
			return -ENOMEM;
		buf = bigger;
		r = read(fd, buf + len, cap - len);
		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (r == 0)
			break;
		len += (size_t)r;
		if (len > max)
			return -EFBIG;
		if (len == cap)
			cap *= 2;
	}
	buf[len] = 0;
	*ret = take_ptr(buf);
	if (ret_len)
		*ret_len = len;
	return 0;
}

int io_write_file(int dirfd, const char *path, const char *text)
{
	autoclose int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
	size_t n = strlen(text);
	ssize_t r;

	if (fd < 0)
		return -errno;
	do
		r = write(fd, text, n);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	return (size_t)r == n ? 0 : -EIO;
}

static int sync_dir_of(int dirfd, const char *path)
{
	const char *slash = strrchr(path, '/');
	autoclose int fd = -1;
	char dir[PATH_MAX];
	size_t n = slash ? (size_t)(slash - path) : 0;

	if (n >= sizeof(dir))
		return -ENAMETOOLONG;
	memcpy(dir, path, n);
	dir[n] = 0;
	fd = openat(dirfd, n ? dir : (slash ? "/" : "."), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return -errno;
	return 0;
}

int io_replace_file(int dirfd, const char *path, const void *buf, size_t n, mode_t mode,
                    bool durable)
{
	autoclose int fd = -1;
	char tmp[PATH_MAX];
	int r;

	if ((size_t)snprintf(tmp, sizeof(tmp), "%s.%d.tmp", path, (int)getpid()) >= sizeof(tmp))
		return -ENAMETOOLONG;
	fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	r = io_write_full(fd, buf, n);
	if (r == 0 && durable && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(dirfd, tmp, dirfd, path) < 0)
		r = -errno;
	if (r < 0) {
		unlinkat(dirfd, tmp, 0);
		return r;
	}
	return durable ? sync_dir_of(dirfd, path) : 0;
}

int io_send_fds(int sock, const void *buf, size_t n, const int *fds, size_t nfds)
{
	char ctrl[CMSG_SPACE(sizeof(int) * FDS_MAX)] __attribute__((aligned(8))) = {0};
	struct iovec iov = {.iov_base = (void *)buf, .iov_len = n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t r;

	if (nfds > FDS_MAX)
		return -EINVAL;
	if (nfds) {
		struct cmsghdr *c;

		m.msg_control = ctrl;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
	}
	do
		r = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	if ((size_t)r == n)
		return 0;
	/* The fds went with the first byte; the rest of a stream message is plain data. */
	return io_write_full(sock, (const char *)buf + r, n - (size_t)r);
}

ssize_t io_recv_fds(int sock, void *buf, size_t n, int *fds, size_t *nfds)
{
	char ctrl[CMSG_SPACE(sizeof(int) * FDS_MAX)] __attribute__((aligned(8)));
	struct iovec iov = {.iov_base = buf, .iov_len = n};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = ctrl,
	                   .msg_controllen = sizeof(ctrl)};
	size_t got = 0, cap = nfds ? *nfds : 0;
	bool overflow = false;
	ssize_t r;

	do
		r = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		size_t k;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < k; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (got < cap) {
				fds[got++] = fd;
			} else {
				close(fd);
				overflow = true;
			}
		}
	}
	if (overflow || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		while (got)
			close(fds[--got]);
		return -EMSGSIZE;
	}
	if (nfds)
		*nfds = got;
	return r;
}

DIR *io_opendir(int dirfd, const char *path, int flags)
{
	autoclose int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (d)
		take_fd(&fd);
	return d;
}

bool io_is_zeros(const void *p, size_t n)
{
	const char *c = p;

	return c[0] == 0 && memcmp(c, c + 1, n - 1) == 0;
}
