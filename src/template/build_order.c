/*
 * template/build_order.c - what a build is made from, while it comes in
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "layers/digest.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/template.h"

#define ARCHIVE    "rootfs"
#define LOOK_EVERY ((uint64_t)16 << 20) /* bytes, for room on the disk */

int build_order_new(struct depot *depot, const char *tenant, struct build_order **ret,
                    struct err *e)
{
	struct builds *bs = templates_builds(depot->templates);
	struct build_order *o;
	unsigned char bits[BUILD_ID / 2];
	int r;

	if (depot->closing)
		return err_set(e, ESHUTDOWN, "shutting_down", "the server is about to end");
	r = builds_too_many(bs, tenant, e);
	if (r < 0)
		return r;
	o = calloc(1, sizeof(*o));
	if (!o)
		return err_nomem(e);
	o->depot = depot;
	o->dir = o->fd = o->archive = -1;
	snprintf(o->info.tenant, sizeof(o->info.tenant), "%s", tenant);
	if (getrandom(bits, sizeof(bits), 0) != sizeof(bits) || sha_new(&o->sha) < 0) {
		build_order_free(o);
		return err_nomem(e);
	}
	for (size_t i = 0; i < sizeof(bits); i++)
		snprintf(o->info.id + 2 * i, 3, "%02x", bits[i]);
	if (mkdirat(bs->dir, o->info.id, 0700) == 0)
		o->dir = openat(bs->dir, o->info.id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (o->dir < 0) {
		r = err_set(e, errno, "disk_full", "no place for a build: %s", strerror(errno));
		build_order_free(o);
		return r;
	}
	*ret = o;
	return 0;
}

void build_order_free(struct build_order *o)
{
	if (!o)
		return;
	if (o->dir >= 0)
		build_clean_dir(templates_builds(o->depot->templates)->dir, o->info.id, true);
	closep(&o->dir);
	closep(&o->fd);
	sha_free(o->sha);
	free(o->dockerfile);
	json_decref(o->args);
	for (size_t i = 0; i < o->nfiles; i++)
		free(o->files[i].path);
	free(o->files);
	free(o);
}

/* "./a//b" is "a/b". NULL: it leads out, or is none. */
static char *plain_path(const char *path)
{
	char *ret = calloc(1, strlen(path) + 1), *to = ret;

	while (ret && *path) {
		size_t n = strcspn(path, "/");

		if (n == 2 && !memcmp(path, "..", 2)) {
			free(ret);
			return NULL;
		}
		if (n && !(n == 1 && *path == '.')) {
			if (to > ret)
				*to++ = '/';
			memcpy(to, path, n);
			to += n;
		}
		path += n;
		path += *path == '/';
	}
	if (ret && to == ret) {
		free(ret);
		return NULL;
	}
	return ret;
}

int build_order_file(struct build_order *o, const char *path, struct err *e)
{
	autofree char *plain = strlen(path) <= BUILD_PATH_MAX ? plain_path(path) : NULL;
	struct build_file *bigger;
	char name[32];

	if (!plain)
		return err_set(e, EINVAL, "bad_request",
		               "'%.80s' cannot be a file of the context: its name is a relative "
		               "path of at most %d bytes, without '..'",
		               path, BUILD_PATH_MAX);
	if (o->nfiles == BUILD_FILES_MAX)
		return err_set(e, EFBIG, "too_large", "more than %d files in the context",
		               BUILD_FILES_MAX);
	bigger = reallocarray(o->files, o->nfiles + 1, sizeof(*bigger));
	if (!bigger)
		return err_nomem(e);
	o->files = bigger;
	snprintf(name, sizeof(name), "c%zu", o->nfiles);
	closep(&o->fd);
	o->fd = openat(o->dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (o->fd < 0)
		return err_set(e, errno, "disk_full", "cannot keep '%.80s': %s", plain,
		               strerror(errno));
	o->files[o->nfiles++] = (struct build_file){.path = take_ptr(plain)};
	return 0;
}

int build_order_archive(struct build_order *o, struct err *e)
{
	int r = o->archive < 0 ? build_order_file(o, ARCHIVE, e)
	                       : err_set(e, EINVAL, "bad_request", "field 'rootfs' is there twice");

	if (r == 0)
		o->archive = (int)o->nfiles - 1;
	return r;
}

/* Not to the last byte: others want to work too. */
static int room_for_archive(const struct build_order *o, uint64_t had, uint64_t has, struct err *e)
{
	struct statvfs vfs;

	if (has > BUILD_ARCHIVE_MAX)
		return err_set(e, EFBIG, "too_large", "the archive is larger than %llu GiB",
		               (unsigned long long)(BUILD_ARCHIVE_MAX >> 30));
	if (had / LOOK_EVERY != has / LOOK_EVERY && fstatvfs(o->dir, &vfs) == 0 &&
	    (uint64_t)vfs.f_bavail * vfs.f_frsize < o->depot->disk_reserve)
		return err_set(e, ENOSPC, "disk_full",
		               "the server's disk is full: delete templates or snapshots");
	return 0;
}

int build_order_data(struct build_order *o, const void *p, size_t n, struct err *e)
{
	struct build_file *f = &o->files[o->nfiles - 1];
	bool archive = o->archive == (int)o->nfiles - 1;
	int r = archive ? room_for_archive(o, f->size, f->size + n, e) : 0;

	if (r < 0)
		return r;
	f->size += n;
	o->bytes += archive ? 0 : n;
	if (o->bytes > BUILD_CONTEXT_MAX)
		return err_set(e, EFBIG, "too_large",
		               "the context is larger than %d MB: leave out what the build does "
		               "not need",
		               BUILD_CONTEXT_MAX >> 20);
	r = io_write_full(o->fd, p, n);
	if (r < 0)
		return err_set(e, -r, "disk_full", "cannot keep the context: %s", strerror(-r));
	return sha_add(o->sha, p, n) < 0 ? err_set(e, EIO, "internal", "no digest") : 0;
}

int build_order_file_end(struct build_order *o, struct err *e)
{
	struct build_file *f = &o->files[o->nfiles - 1];
	struct digest d;
	char head[4] = "";

	if (sha_done(o->sha, &d) < 0)
		return err_set(e, EIO, "internal", "no digest");
	digest_text(&d, f->digest);
	f->program = pread(o->fd, head, 4, 0) >= 2 && (!memcmp(head, "#!", 2) || !memcmp(head,
	                                                                                 "\x7f"
	                                                                                 "ELF",
	                                                                                 4));
	closep(&o->fd);
	o->fd = -1;
	return 0;
}

int build_order_complete(struct build_order *o, struct err *e)
{
	bool image = o->archive >= 0 || o->image_ref[0];
	int n;

	if (!o->info.name[0])
		return err_set(e, EINVAL, "bad_request", "field 'name' is missing");
	if (!o->dockerfile && !image)
		return err_set(e, EINVAL, "bad_request",
		               "say what to build from: field 'dockerfile', file 'rootfs' (an "
		               "archive) or field 'image_ref'");
	if (o->dockerfile && image)
		return err_set(e, EINVAL, "bad_request",
		               "a template is built from one of 'dockerfile', 'rootfs' and "
		               "'image_ref'");
	if (o->dockerfile)
		return 0;
	o->made_up = true;
	n = o->archive < 0 ? asprintf(&o->dockerfile, "FROM %s\n", o->image_ref)
	                   : asprintf(&o->dockerfile, "FROM ./" ARCHIVE "%s%s\n",
	                              o->image_ref[0] ? "#" : "", o->image_ref);
	if (n < 0) {
		o->dockerfile = NULL;
		return err_nomem(e);
	}
	o->dockerfile_len = (size_t)n;
	return 0;
}
