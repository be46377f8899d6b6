/*
 * guest/upper/upper.c - program panda-upper: what a machine has written over its template
 * pandad puts it into a guest when a client asks for a diff, so it needs nothing there but a
 * kernel. Static, against musl.
 *
 *   panda-upper list   a record for everything in the overlay's upper directory
 *   panda-upper hash   SHA-256 of the files whose names come on stdin, each with a NUL behind it
 *
 * A record is "T MODE UID GID SIZE MTIME_NS CTIME_NS T MODE SIZE MTIME_NS PATH" NUL "LINK TARGET"
 * NUL: the first half as it is now (f file, l link, d directory, o other, w gone), the second as
 * the template has it ('-': it does not). Files of the template that a directory made anew hides
 * are told as gone. All of it happens in a mount namespace of its own.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
	DEPTH_MAX = 200,
	ENTRIES_MAX = 200000,
};

static unsigned entries;
static char path[PATH_MAX]; /* of what we look at, from the root on */

static char type_of(const struct stat *st)
{
	if (S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0))
		return 'w';
	return S_ISREG(st->st_mode)   ? 'f'
	       : S_ISLNK(st->st_mode) ? 'l'
	       : S_ISDIR(st->st_mode) ? 'd'
	                              : 'o';
}

static long long ns_of(struct timespec t)
{
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* low NULL: the template has nothing there. */
static void tell(char type, const struct stat *now, const struct stat *low, const char *target)
{
	if (++entries > ENTRIES_MAX)
		exit(3);
	printf("%c %o %u %u %lld %lld %lld ", type, now->st_mode & 07777, now->st_uid, now->st_gid,
	       (long long)now->st_size, ns_of(now->st_mtim), ns_of(now->st_ctim));
	if (low)
		printf("%c %o %lld %lld ", type_of(low), low->st_mode & 07777,
		       (long long)low->st_size, ns_of(low->st_mtim));
	else
		printf("- 0 0 0 ");
	fwrite(path, 1, strlen(path) + 1, stdout);
	fwrite(target, 1, strlen(target) + 1, stdout);
}

static bool opaque(int dir)
{
	char v[4];

	return fgetxattr(dir, "trusted.overlay.opaque", v, sizeof(v)) == 1 && v[0] == 'y';
}

/* Opens a directory below dir, or -1. */
static int enter(int dir, const char *name)
{
	return dir < 0 ? -1 : openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void walk(int up, int low, unsigned depth);

static void visit(int up, int low, const char *name, unsigned depth)
{
	struct stat now, was;
	bool has_low = low >= 0 && fstatat(low, name, &was, AT_SYMLINK_NOFOLLOW) == 0;
	char target[PATH_MAX] = "";
	ssize_t n;

	if (fstatat(up, name, &now, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (S_ISLNK(now.st_mode) && (n = readlinkat(up, name, target, sizeof(target) - 1)) >= 0)
		target[n] = 0;
	tell(type_of(&now), &now, has_low ? &was : NULL, target);
	if (S_ISDIR(now.st_mode)) {
		int u = enter(up, name), l = enter(low, name);

		if (u >= 0)
			walk(u, l, depth + 1);
		if (l >= 0)
			close(l);
	}
}

/* What the template has in a directory that was made anew. */
static void hidden(int up, int low)
{
	int fd = dup(low);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	size_t len = strlen(path);
	struct stat st, now = {0};
	struct dirent *de;

	fstat(up, &now); /* gone since it was made */
	while (d && (de = readdir(d))) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, "..") ||
		    faccessat(up, de->d_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
		    len + strlen(de->d_name) + 2 > sizeof(path) ||
		    fstatat(low, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		snprintf(path + len, sizeof(path) - len, "/%s", de->d_name);
		tell('w', &now, &st, "");
		path[len] = 0;
	}
	if (d)
		closedir(d);
}

/* Takes up. low -1: the template has no such directory. */
static void walk(int up, int low, unsigned depth)
{
	DIR *d = fdopendir(up);
	size_t len = strlen(path);
	struct dirent *de;

	if (!d || depth > DEPTH_MAX)
		exit(4);
	if (low >= 0 && opaque(up))
		hidden(up, low);
	while ((de = readdir(d))) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, "..") ||
		    len + strlen(de->d_name) + 2 > sizeof(path))
			continue;
		snprintf(path + len, sizeof(path) - len, "/%s", de->d_name);
		visit(up, low, de->d_name, depth);
		path[len] = 0;
	}
	closedir(d);
}

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

/* The disk and the image are mounted once more, where only we see them. */
static int list(void)
{
	int up, low;

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return fail("cannot have a mount namespace");
	if (mount("/dev/pblk1", "/proc", "ext4", MS_NOATIME, NULL) < 0)
		return fail("cannot look at the disk");
	up = open("/proc/upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (up < 0)
		return fail("cannot look at the disk");
	if (mount("/dev/pblk0", "/sys", "erofs", MS_RDONLY, NULL) < 0)
		return fail("cannot look at the image");
	low = open("/sys", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (low < 0)
		return fail("cannot look at the image");
	walk(up, low, 0);
	return fflush(stdout) < 0 ? 1 : 0;
}

/* --- SHA-256 (FIPS 180-4)
 * ---------------------------------------------------------------------- */

static uint32_t k[64];

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static void make_constants(void)
{
	unsigned n = 0;

	for (unsigned p = 2; n < 64; p++) {
		unsigned __int128 want;
		uint64_t lo = 0, hi = (uint64_t)7 << 36;
		bool prime = true;

		for (unsigned q = 2; q * q <= p; q++)
			prime = prime && p % q;
		if (!prime)
			continue;
		/* The largest r with r^3 <= p * 2^96: the root with 32 bits behind the point. */
		want = (unsigned __int128)p << 96;
		while (lo + 1 < hi) {
			uint64_t r = lo + (hi - lo) / 2;
			unsigned __int128 square = (unsigned __int128)r * r;

			if (square <= want / r)
				lo = r;
			else
				hi = r;
		}
		k[n++] = (uint32_t)lo;
	}
}

static uint32_t turn(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void block(uint32_t h[8], const unsigned char *p)
{
	uint32_t w[64], v[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + w[i - 7] +
		       (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) +
		       (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(v, h, sizeof(v));
	for (int i = 0; i < 64; i++) {
		uint32_t a = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
		             ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
		uint32_t b = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) +
		             ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

		memmove(v + 1, v, 7 * sizeof(*v));
		v[4] += a;
		v[0] = a + b;
	}
	for (int i = 0; i < 8; i++)
		h[i] += v[i];
}

static bool hash_file(const char *name, char hex[65])
{
	uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	static unsigned char buf[65536 + 128];
	int fd = open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	uint64_t total = 0;
	size_t have = 0;
	struct stat st;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while ((n = read(fd, buf + have, 65536 - have)) > 0) {
		size_t done = 0;

		total += (size_t)n;
		have += (size_t)n;
		for (; have - done >= 64; done += 64)
			block(h, buf + done);
		memmove(buf, buf + done, have - done);
		have -= done;
	}
	close(fd);
	buf[have++] = 0x80;
	while (have % 64 != 56)
		buf[have++] = 0;
	for (int i = 7; i >= 0; i--)
		buf[have++] = (unsigned char)(total * 8 >> 8 * i);
	for (size_t i = 0; i < have; i += 64)
		block(h, buf + i);
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", h[i]);
	return n == 0;
}

static int hash(void)
{
	char hex[65];
	size_t n = 0;
	int c;

	make_constants();
	while ((c = getchar()) != EOF) {
		if (n < sizeof(path) - 1)
			path[n++] = (char)c;
		if (c)
			continue;
		fputs(hash_file(path, hex) ? hex : "-", stdout);
		putchar(0);
		n = 0;
	}
	return fflush(stdout) < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "list"))
		return list();
	if (argc == 2 && !strcmp(argv[1], "hash"))
		return hash();
	return 2;
}
