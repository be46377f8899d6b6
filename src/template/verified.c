#include "template/verified.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "layers/digest.h"
#include "layers/snapshot.h"
#include "machine/machine.h"
#include "template/depot.h"

#define DIRECTORY "checked"

enum {
	FILES_MAX = 512, /* of one snapshot */
};

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Boot and files in one digest; what a file holds is not looked at, only whether it was written. */
static int stamp_of(const struct depot *depot, const char *id, char ret[DIGEST_TEXT])
{
	autoclosedir DIR *d = io_opendir(depot->store->snapshots, id, O_NOFOLLOW);
	AUTO(sha_freep) struct sha *sha = NULL;
	char *lines[FILES_MAX] = {0};
	autofree char *boot = NULL;
	struct digest digest;
	struct dirent *de;
	struct stat st;
	size_t n = 0, len;
	int r = d ? io_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &boot, &len)
	          : -ENOENT;

	while (r == 0 && (de = readdir(d))) {
		if (de->d_name[0] == '.')
			continue;
		if (n == FILES_MAX || fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			r = -EINVAL;
		else if (asprintf(&lines[n], "%s %llu %llu %lld.%09ld\n", de->d_name,
		                  (unsigned long long)st.st_ino, (unsigned long long)st.st_size,
		                  (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec) < 0)
			r = -ENOMEM;
		else
			n++;
	}
	if (n)
		qsort(lines, n, sizeof(*lines), by_text);
	if (r == 0)
		r = sha_new(&sha);
	if (r == 0)
		r = sha_add(sha, boot, len);
	for (size_t i = 0; i < n; i++) {
		if (r == 0)
			r = sha_add(sha, lines[i], strlen(lines[i]));
		free(lines[i]);
	}
	if (r == 0)
		r = sha_done(sha, &digest);
	if (r == 0)
		digest_text(&digest, ret);
	return r;
}

static int path_of(const char *id, char ret[SNAPSHOT_ID_MAX + 16])
{
	return snprintf(ret, SNAPSHOT_ID_MAX + 16, DIRECTORY "/%.64s", id);
}

static bool is_checked(const struct depot *depot, const char *id)
{
	char path[SNAPSHOT_ID_MAX + 16], stamp[DIGEST_TEXT];
	autofree char *text = NULL;

	path_of(id, path);
	return io_read_file(depot->store->root, path, 256, &text, NULL) == 0 &&
	       stamp_of(depot, id, stamp) == 0 && !strcmp(text, stamp);
}

/* Should that not be kept, it is read again one day. */
static void note_checked(const struct depot *depot, const char *id)
{
	char path[SNAPSHOT_ID_MAX + 16], stamp[DIGEST_TEXT];

	path_of(id, path);
	mkdirat(depot->store->root, DIRECTORY, 0700);
	if (stamp_of(depot, id, stamp) == 0)
		(void)io_replace_file(depot->store->root, path, stamp, strlen(stamp), 0600, false);
}

int verified_save(struct depot *depot, const struct engine_image *image, const char *id,
                  struct err *e)
{
	int r = machine_save(image, depot->store, id, NULL, e);

	if (r == 0)
		note_checked(depot, id);
	return r;
}

int verified_load(struct depot *depot, const char *id, struct engine_image *ret, struct err *e)
{
	bool known = is_checked(depot, id);
	int r = machine_load(depot->machines, depot->store, id, !known, ret, e);

	if (r == 0 && !known)
		note_checked(depot, id);
	return r;
}

int verified_drop(struct depot *depot, const char *id, struct err *e)
{
	char path[SNAPSHOT_ID_MAX + 16];

	path_of(id, path);
	unlinkat(depot->store->root, path, 0);
	return depot_drop_snapshot(depot, id, e);
}

void verified_sweep(struct depot *depot)
{
	autoclosedir DIR *d = io_opendir(depot->store->root, DIRECTORY, 0);
	struct dirent *de;

	while (d && (de = readdir(d)))
		if (de->d_name[0] != '.' &&
		    faccessat(depot->store->snapshots, de->d_name, F_OK, 0) < 0)
			unlinkat(dirfd(d), de->d_name, 0);
}
