/*
 * base/io.h - whole reads and writes, small files, fds over sockets
 * What reads or writes returns 0 (or a count) or a negative errno, and retries on EINTR.
 */
#pragma once
#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

int io_write_full(int fd, const void *buf, size_t n);
/* -ENODATA when the file ends earlier. */
int io_pread_full(int fd, void *buf, size_t n, off_t off);
int io_pwrite_full(int fd, const void *buf, size_t n, off_t off);

/* Whole small file, NUL-terminated behind its last byte; -EFBIG past max. Caller frees *ret. */
int io_read_file(int dirfd, const char *path, size_t max, char **ret, size_t *ret_len);

/* One write(2) to an existing file, as /proc, /sys and cgroup files want it. */
int io_write_file(int dirfd, const char *path, const char *text);

/*
 * Replaces path by a file with this content, by write and rename: others see the old or the new
 * one. durable: it is synced, file and directory, so that a crash of the host leaves one of them.
 */
int io_replace_file(int dirfd, const char *path, const void *buf, size_t n, mode_t mode,
                    bool durable);

/* One message with up to 253 fds on a unix socket. n must be > 0. */
int io_send_fds(int sock, const void *buf, size_t n, const int *fds, size_t nfds);

/*
 * Receives one message; fds arrive close-on-exec. Returns its length; 0 means the peer is gone.
 * -EMSGSIZE when the message or its fds did not fit; received fds are closed then.
 */
ssize_t io_recv_fds(int sock, void *buf, size_t n, int *fds, size_t *nfds);

/* To list path below dirfd; flags: O_NOFOLLOW or 0. NULL: errno says why. Caller closes it. */
DIR *io_opendir(int dirfd, const char *path, int flags);

/* Nothing but zeros, which are better a hole. n > 0. */
bool io_is_zeros(const void *p, size_t n);
