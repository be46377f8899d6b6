#include "power.h"
#include "testlib.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

/* shadow/<ino>: bytes of a file, shadow/<ino>.list: names of a directory, shadow/limbo/<ino> */
static char root[64], shadow[64];
static int store = -1, limbo = -1;

static void copy_bytes(int from, int to)
{
	static char buf[1 << 16];
	off_t at = 0;
	ssize_t n;

	while ((n = pread(from, buf, sizeof(buf), at)) > 0) {
		assert_int_equal(pwrite(to, buf, (size_t)n, at), n);
		at += n;
	}
	assert_int_equal(n, 0);
	assert_int_equal(ftruncate(to, at), 0);
}

/* The same file once more; flags as for open(). */
static int again(int fd, int flags)
{
	char path[40];
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = open(path, flags | O_CLOEXEC);
	assert_true(r >= 0);
	return r;
}

static void keep_file(int fd, ino_t ino)
{
	autoclose int from = again(fd, O_RDONLY), to = -1; /* it may be open for writing only */
	char name[32];

	snprintf(name, sizeof(name), "%lu", (unsigned long)ino);
	to = openat(store, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(to >= 0);
	copy_bytes(from, to);
}

static DIR *list(int fd)
{
	DIR *d = fdopendir(openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));

	assert_non_null(d);
	return d;
}

static bool dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

static void keep_names(int fd, ino_t ino)
{
	autoclosedir DIR *d = list(fd);
	struct dirent *de;
	char name[32];
	FILE *f;
	int to;

	snprintf(name, sizeof(name), "%lu.list", (unsigned long)ino);
	to = openat(store, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	f = fdopen(to, "w");
	assert_non_null(f);
	while ((de = readdir(d)))
		if (!dots(de->d_name))
			fprintf(f, "%lu %c %s\n", (unsigned long)de->d_ino,
			        de->d_type == DT_DIR ? 'd' : 'f', de->d_name);
	fclose(f);
}

void power_synced(int fd)
{
	struct stat st;

	if (store < 0 || fstat(fd, &st) < 0)
		return;
	if (S_ISDIR(st.st_mode))
		keep_names(fd, st.st_ino);
	else
		keep_file(fd, st.st_ino);
}

/* fn for everything below dir, a directory before what is in it. */
static void walk(int dir, void (*fn)(int fd))
{
	autoclosedir DIR *d = list(dir);
	struct dirent *de;

	fn(dir);
	while ((de = readdir(d))) {
		autoclose int fd = -1;

		if (dots(de->d_name))
			continue;
		fd = openat(dir, de->d_name, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		if (de->d_type == DT_DIR)
			walk(fd, fn);
		else
			fn(fd);
	}
}

static int open_root(void)
{
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

void power_watch(const char *path)
{
	autoclose int fd = -1;

	snprintf(root, sizeof(root), "%s", path);
	store = tmpdir_make(shadow);
	assert_int_equal(mkdirat(store, "limbo", 0700), 0);
	limbo = openat(store, "limbo", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fd = open_root();
	walk(fd, power_synced);
}

void power_end(void)
{
	close(limbo);
	close(store);
	limbo = store = -1;
	tmpdir_remove(shadow);
}

/* --- the cut ---------------------------------------------------------------------------------- */

static int kept_bytes(ino_t ino)
{
	char name[32];

	snprintf(name, sizeof(name), "%lu", (unsigned long)ino);
	return openat(store, name, O_RDONLY | O_CLOEXEC);
}

static bool same_bytes(int a, int b)
{
	static char x[1 << 16], y[1 << 16];
	ssize_t n, m;
	off_t at = 0;

	do {
		n = pread(a, x, sizeof(x), at);
		m = pread(b, y, sizeof(y), at);
		if (n != m || memcmp(x, y, (size_t)n) != 0)
			return false;
		at += n;
	} while (n > 0);
	return true;
}

static void restore_file(int fd, ino_t ino, enum cut how)
{
	autoclose int kept = kept_bytes(ino), w = -1;
	struct stat st;

	if (kept >= 0 && same_bytes(fd, kept))
		return;
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(fchmod(fd, 0600), 0); /* whatever its mode says: we are the disk */
	w = again(fd, O_RDWR);
	assert_int_equal(ftruncate(w, 0), 0);
	if (how == CUT_BYTES)
		assert_int_equal(ftruncate(w, st.st_size), 0);
	else if (kept >= 0)
		copy_bytes(kept, w);
	assert_int_equal(fchmod(w, st.st_mode & 07777), 0);
}

static void lose_bytes(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	if (S_ISREG(st.st_mode))
		restore_file(fd, st.st_ino, CUT_BYTES);
}

struct name {
	unsigned long ino;
	char type, name[128];
	bool there;
};

static size_t kept_names(ino_t ino, struct name *ret, size_t max)
{
	char file[32];
	FILE *f;
	size_t n = 0;
	int fd;

	snprintf(file, sizeof(file), "%lu.list", (unsigned long)ino);
	fd = openat(store, file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0; /* never synced: empty */
	f = fdopen(fd, "r");
	while (n < max && fscanf(f, "%lu %c %127s", &ret[n].ino, &ret[n].type, ret[n].name) == 3)
		ret[n++].there = false;
	fclose(f);
	return n;
}

/* What has another name or none now waits, by its number, for the name it had. */
static void set_aside(int dir, struct name *names, size_t n)
{
	autoclosedir DIR *d = list(dir);
	struct dirent *de;
	char aside[32];

	while ((de = readdir(d))) {
		bool right = dots(de->d_name);

		for (size_t i = 0; i < n && !right; i++)
			if (names[i].ino == de->d_ino && !strcmp(names[i].name, de->d_name))
				right = names[i].there = true;
		if (right)
			continue;
		snprintf(aside, sizeof(aside), "%lu", (unsigned long)de->d_ino);
		assert_int_equal(renameat(dir, de->d_name, limbo, aside), 0);
	}
}

static void bring_back(int dir, const struct name *n)
{
	char aside[32];
	int fd;

	snprintf(aside, sizeof(aside), "%lu", n->ino);
	if (n->type == 'd') {
		if (renameat(limbo, aside, dir, n->name) < 0)
			assert_int_equal(mkdirat(dir, n->name, 0700), 0);
		return;
	}
	if (faccessat(limbo, aside, F_OK, 0) < 0) { /* all its names were gone */
		fd = openat(limbo, aside, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
		assert_true(fd >= 0);
		close(fd);
	}
	assert_int_equal(linkat(limbo, aside, dir, n->name, 0), 0); /* it may have more */
}

static void restore_dir(int dir, ino_t ino)
{
	static const size_t max = 64;
	struct name *names = calloc(max, sizeof(*names));
	size_t n = kept_names(ino, names, max);

	assert_in_range(n, 0, max - 1);
	set_aside(dir, names, n);
	for (size_t i = 0; i < n; i++) {
		autoclose int fd = -1;

		if (!names[i].there)
			bring_back(dir, &names[i]);
		fd = openat(dir, names[i].name, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		if (names[i].type == 'd')
			restore_dir(fd, names[i].ino);
		else
			restore_file(fd, names[i].ino, CUT_ALL);
	}
	free(names);
}

void power_cut(enum cut how)
{
	autoclose int fd = open_root();
	struct stat st;

	if (how == CUT_BYTES) {
		walk(fd, lose_bytes);
		return;
	}
	assert_int_equal(fstat(fd, &st), 0);
	restore_dir(fd, st.st_ino);
}
