/*
 * template/build_debian.c - FROM debian:X, for a release that the base template is not of
 * Its root file system is an archive, as others come with an order: <data>/debian/<suite>.tar. What
 * is not there is made: in a machine of the base template, by debian_root.sh, from Debian's
 * packages, on the mirror that template was made from, over the network that a build has. apt
 * checks signatures, and nothing of a tenant's is near, so all tenants share it. Who runs the
 * server can put one there as well (tools/debian): hosts need no network then.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/oci.h"
#include "template/tail.h"

extern const unsigned char debian_root[];
extern const size_t debian_root_len;

#define MADE "debian"

enum {
	BLOCK = 4096,
	DEBIAN_DAYS = 30, /* then it is made again: its packages are updated */
};

/* Writes the archive to fd. */
static int run_script(struct stage *st, int fd)
{
	struct build *b = st->b;
	char machine[ENGINE_ID_MAX + 1] = "";
	char *argv[] = {"/bin/sh", "-s", st->s->which, NULL};
	autoclose int script = memfd_create("debian", MFD_CLOEXEC);
	struct build_command c = {.argv = argv,
	                          .in = script,
	                          .out = fd,
	                          .out_max = BUILD_SPOOL_MAX};
	struct guest_exit end;
	int r;

	if (script < 0 || io_write_full(script, debian_root, debian_root_len) < 0 ||
	    lseek(script, 0, SEEK_SET) < 0)
		return err_nomem(st->e);
	r = build_start(b, &st->s->image, true, NULL, machine, &c.guest, st->e);
	if (r == 0)
		r = build_command(b, &c, &end, st->e);
	if (r == 0 && (end.signaled || end.code))
		r = err_set(st->e, EIO, "build_failed", "%.100s", tail_line(&c.tail));
	guest_free(c.guest);
	if (machine[0])
		machine_remove(b->order->depot->machines, machine, NULL);
	return r;
}

/* In the build's directory, where nothing outlives the build; it appears as a whole. */
static int make(struct stage *st, int dir, const char *name)
{
	struct build *b = st->b;
	autoclose int fd = -1;
	struct stat s;
	int r;

	if (!b->net)
		return err_set(st->e, ENETUNREACH, "build_failed", "builds have no network here");
	if (!build_disk_has_room(b->order->depot))
		return err_set(st->e, ENOSPC, "disk_full", "the server's disk is full");
	build_say(b, "making a root of Debian %s from its packages", st->s->which);
	fd = openat(b->order->dir, MADE, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_set(st->e, errno, "disk_full", "no room: %s", strerror(errno));
	r = run_script(st, fd);
	/* whole blocks, as machines want files: else the first of them changes it once more */
	if (r == 0 &&
	    (fstat(fd, &s) < 0 || ftruncate(fd, (s.st_size + BLOCK - 1) / BLOCK * BLOCK) < 0 ||
	     fdatasync(fd) < 0 || renameat(b->order->dir, MADE, dir, name) < 0))
		r = err_set(st->e, errno, "disk_full", "cannot keep it: %s", strerror(errno));
	if (r < 0)
		unlinkat(b->order->dir, MADE, 0);
	return r;
}

/* As a file of the order that COPY does not see. */
static int add_file(struct stage *st, int dir, const char *name)
{
	struct build_order *o = st->b->order;
	struct build_file *files = reallocarray(o->files, o->nfiles + 1, sizeof(*files));
	struct build_file *f;
	struct stat s;
	char as[32];

	if (!files)
		return err_nomem(st->e);
	o->files = files;
	f = &files[o->nfiles];
	*f = (struct build_file){.path = strdup(name), .left_out = true};
	snprintf(as, sizeof(as), "c%zu", o->nfiles);
	/* A link: a pandad that puts a newer one there does not take this one away. */
	if (!f->path || linkat(dir, name, o->dir, as, 0) < 0 || fstatat(o->dir, as, &s, 0) < 0) {
		free(f->path);
		return err_set(st->e, errno, "disk_full", "cannot use %s: %s", name,
		               strerror(errno));
	}
	f->size = (uint64_t)s.st_size;
	snprintf(f->digest, sizeof(f->digest), "%lld %lld.%09ld", (long long)s.st_size,
	         (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	st->s->root = BUILD_ROOT_ARCHIVE;
	st->s->archive = o->nfiles++;
	return 0;
}

int build_debian(struct stage *st)
{
	const char *suite = st->s->which;
	char path[PATH_MAX], name[OCI_REF_MAX + 8];
	autoclose int dir = -1;
	struct stat s;
	bool there;
	int r;

	snprintf(path, sizeof(path), "%s/debian", st->b->order->depot->data_dir);
	snprintf(name, sizeof(name), "%s.tar", suite);
	mkdir(path, 0700);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_set(st->e, errno, "disk_full", "cannot use %s: %s", path,
		               strerror(errno));
	there = fstatat(dir, name, &s, 0) == 0;
	if (!there || s.st_mtim.tv_sec + DEBIAN_DAYS * 86400 < time(NULL)) {
		r = make(st, dir, name);
		if (build_stopped(st->b, NULL) < 0)
			return r;
		if (r < 0 && !there)
			return err_prefix(st->e,
			                  "there is no Debian %s here yet, and it cannot be made "
			                  "(the server's owner can: tools/debian %s)",
			                  suite, suite);
		if (r < 0)
			build_say(st->b,
			          "Debian %s is older than %d days, and cannot be made anew: %s",
			          suite, DEBIAN_DAYS, st->e->text);
	}
	r = add_file(st, dir, name);
	if (r == 0)
		st->s->which[0] = 0; /* there is one image in it */
	return r;
}
