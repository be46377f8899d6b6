#include "fault.h"
#include "power.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

static enum fault armed;
static int left;
static bool fired;

void fault_arm(enum fault what, int nth)
{
	armed = what;
	left = nth;
	fired = false;
}

bool fault_fired(void)
{
	armed = FAULT_NONE;
	return fired;
}

/* Files are synced by several threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What power_synced() calls is none of the tested code's. */
static pthread_mutex_t power_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool ours;

static bool hit(bool alloc)
{
	if (armed == FAULT_NONE || alloc != (armed == FAULT_ALLOC) || --left != 0)
		return false;
	fired = true;
	if (armed == FAULT_KILL)
		raise(SIGKILL);
	if (armed == FAULT_STOP)
		raise(SIGSTOP);
	return armed != FAULT_STOP;
}

static bool now(bool alloc)
{
	bool is;

	if (ours)
		return false;
	pthread_mutex_lock(&lock);
	is = hit(alloc);
	pthread_mutex_unlock(&lock);
	if (is)
		errno = armed == FAULT_SPACE ? ENOSPC : armed == FAULT_ALLOC ? ENOMEM : EIO;
	return is;
}

/* What was changed and not synced since: inodes of files and directories. */
static ino_t dirty[256];
static size_t ndirty;
static bool watching, kept;

void sync_watch(void)
{
	watching = kept = true;
	ndirty = 0;
}

static bool is_dirty(ino_t ino)
{
	for (size_t i = 0; i < ndirty; i++)
		if (dirty[i] == ino)
			return true;
	return false;
}

static void touched(int fd, bool clean)
{
	struct stat st;

	if (!watching || fstat(fd, &st) < 0 || st.st_nlink == 0) /* 0: a memfd, never on disk */
		return;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < ndirty; i++)
		if (dirty[i] == st.st_ino)
			dirty[i--] = dirty[--ndirty];
	if (!clean && ndirty < sizeof(dirty) / sizeof(dirty[0]))
		dirty[ndirty++] = st.st_ino;
	pthread_mutex_unlock(&lock);
}

/* All that stands in the directory about to be published, and the directory, must be clean. */
static void check_before_rename(int dirfd, const char *name)
{
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *de;
	struct stat st;
	DIR *d;

	if (!watching || fd < 0)
		return;
	if (fstat(fd, &st) < 0 || is_dirty(st.st_ino))
		kept = false;
	d = fdopendir(fd);
	while ((de = readdir(d)))
		if (de->d_name[0] != '.' && is_dirty(de->d_ino))
			kept = false;
	closedir(d);
}

bool sync_was_kept(int dirfd)
{
	struct stat st;

	watching = false;
	return kept && fstat(dirfd, &st) == 0 && !is_dirty(st.st_ino);
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
	return now(true) ? NULL : __real_malloc(n);
}

void *fault_malloc(size_t n)
{
	return __wrap_malloc(n);
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
	return now(true) ? NULL : __real_calloc(n, size);
}

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	return now(true) ? NULL : __real_realloc(p, n);
}

EVP_MD_CTX *__real_EVP_MD_CTX_new(void);
EVP_MD_CTX *__wrap_EVP_MD_CTX_new(void);
EVP_MD_CTX *__wrap_EVP_MD_CTX_new(void)
{
	return now(true) ? NULL : __real_EVP_MD_CTX_new();
}

ssize_t __real_write(int fd, const void *buf, size_t n);
ssize_t __wrap_write(int fd, const void *buf, size_t n);
ssize_t __wrap_write(int fd, const void *buf, size_t n)
{
	if (now(false))
		return -1;
	touched(fd, false);
	return __real_write(fd, buf, n);
}

ssize_t __real_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t n, off_t off)
{
	if (now(false))
		return -1;
	touched(fd, false);
	return __real_pwrite64(fd, buf, n, off);
}

ssize_t __real_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t n, off_t off)
{
	return now(false) ? -1 : __real_pread64(fd, buf, n, off);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	int r;

	if (now(false))
		return -1;
	touched(fd, true);
	r = __real_fsync(fd);
	pthread_mutex_lock(&power_lock);
	ours = true;
	power_synced(fd);
	ours = false;
	pthread_mutex_unlock(&power_lock);
	return r;
}

int __real_ftruncate64(int fd, off_t n);
int __wrap_ftruncate64(int fd, off_t n);
int __wrap_ftruncate64(int fd, off_t n)
{
	if (now(false))
		return -1;
	touched(fd, false);
	return __real_ftruncate64(fd, n);
}

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode)
{
	if (now(false))
		return -1;
	touched(fd, false);
	return __real_fchmod(fd, mode);
}

int __real_mkdirat(int dir, const char *name, mode_t mode);
int __wrap_mkdirat(int dir, const char *name, mode_t mode);
int __wrap_mkdirat(int dir, const char *name, mode_t mode)
{
	return now(false) ? -1 : __real_mkdirat(dir, name, mode);
}

int __real_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...)
{
	mode_t mode = 0;
	va_list ap;

	if (flags & O_CREAT) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
		if (dir >= 0)
			touched(dir, false);
	}
	return now(false) ? -1 : __real_openat64(dir, name, flags, mode);
}

int __real_linkat(int from, const char *a, int to, const char *b, int flags);
int __wrap_linkat(int from, const char *a, int to, const char *b, int flags);
int __wrap_linkat(int from, const char *a, int to, const char *b, int flags)
{
	struct stat st;

	if (now(false))
		return -1;
	/* Into layers/: whoever finds it there counts on it. */
	if (watching && from != AT_FDCWD && fstatat(from, a, &st, 0) == 0 && is_dirty(st.st_ino))
		kept = false;
	touched(to, false);
	return __real_linkat(from, a, to, b, flags);
}

int __real_renameat(int from, const char *a, int to, const char *b);
int __wrap_renameat(int from, const char *a, int to, const char *b);
int __wrap_renameat(int from, const char *a, int to, const char *b)
{
	if (now(false))
		return -1;
	touched(to, false);
	return __real_renameat(from, a, to, b);
}

int __real_renameat2(int from, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	if (now(false))
		return -1;
	check_before_rename(from, a);
	touched(to, false);
	return __real_renameat2(from, a, to, b, flags);
}

int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags)
{
	return now(false) ? -1 : __real_unlinkat(dir, name, flags);
}

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
	return now(false) ? -1 : __real_flock(fd, how);
}
