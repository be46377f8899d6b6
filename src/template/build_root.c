/*
 * template/build_root.c - stages that begin with an archive of an image, or with nothing
 * The archive is looked at and unpacked inside a machine of the base template, by oci_unpack.py.
 * The machine has the archive as one volume. Its files go to another volume: an empty file system
 * like the one that every machine writes on. Machines with this root boot from that disk over the
 * base's root image, all of which it covers. So the agent is ours, whatever the image has.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/digest.h"
#include "layers/map.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/oci.h"
#include "template/tail.h"
#include "template/template.h"

extern const unsigned char oci_unpack[];
extern const size_t oci_unpack_len;

#define DISK_AT "/mnt"

static int no_memory(struct stage *st)
{
	return err_nomem(st->e);
}

/* An order without a Dockerfile has no lines. */
static int build_where(struct stage *st)
{
	return st->b->order->made_up ? -st->e->code
	                             : err_prefix(st->e, "Dockerfile:%u", st->what->line);
}

static int path_in(struct stage *st, const char *name, char ret[PATH_MAX])
{
	int n = snprintf(ret, PATH_MAX, "%s/builds/%s/%s", st->b->order->depot->data_dir,
	                 st->b->order->info.id, name);

	return n < 0 || n >= PATH_MAX ? no_memory(st) : 0;
}

/* The archive as volume 1, in whole blocks. */
static int open_archive(struct stage *st, struct engine_volume *ret, uint64_t *ret_size)
{
	struct build_file *f = &st->b->order->files[st->s->archive];
	char name[32], path[PATH_MAX];
	uint64_t whole = (f->size + MAP_PAGE - 1) / MAP_PAGE * MAP_PAGE;
	int r;

	*ret_size = f->size;
	snprintf(name, sizeof(name), "c%zu", st->s->archive);
	r = path_in(st, name, path);
	if (r < 0)
		return r;
	if (f->size == 0)
		return err_set(st->e, EINVAL, "build_failed", "the archive is empty");
	if (whole != f->size && truncate(path, (off_t)whole) < 0)
		return err_set(st->e, errno, "disk_full", "cannot keep the archive: %s",
		               strerror(errno));
	return engine_volume_open(path, true, ret, st->e);
}

/* An empty disk as volume 0. */
static int make_disk(struct stage *st, const char *path, struct engine_volume *ret)
{
	const char *upper = json_string_value(json_object_get(st->s->doc, "upper"));
	autoclose int from = -1, to = -1;
	int r;

	upper = upper ? upper : st->b->order->depot->upper_image;
	from = open(upper ? upper : "", O_RDONLY | O_CLOEXEC);
	to = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	r = from < 0 || to < 0 ? -errno : engine_volume_clone(from, to);
	if (r < 0)
		return err_set(st->e, -r, "disk_full", "no room for a disk: %s", strerror(-r));
	r = engine_volume_open(path, false, ret, st->e);
	ret->mount = DISK_AT;
	return r;
}

/* Runs oci_unpack.py; the caller frees what it said. disk NULL: it only looks. */
static int run_unpack(struct stage *st, const char *disk, char **ret, size_t *ret_n)
{
	struct build *b = st->b;
	struct engine_volume volumes[ENGINE_VOLUMES_MAX] = {0};
	char size[32], machine[ENGINE_ID_MAX + 1] = "";
	char *argv[] = {"python3", "-I", "-", disk ? "unpack" : "look", size, st->s->which, NULL};
	autoclose int script = memfd_create("unpack", MFD_CLOEXEC);
	autoclose int said = memfd_create("said", MFD_CLOEXEC);
	struct build_command c = {.argv = argv, .in = script, .out = said, .out_max = OCI_TEXT_MAX};
	struct guest_exit end;
	struct guest *g = NULL;
	uint64_t bytes = 0;
	struct stat s;
	int r = 0;

	if (script < 0 || said < 0 || io_write_full(script, oci_unpack, oci_unpack_len) < 0 ||
	    lseek(script, 0, SEEK_SET) < 0)
		return no_memory(st);
	if (st->s->root == BUILD_ROOT_ARCHIVE)
		r = open_archive(st, &volumes[1], &bytes);
	snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
	if (r == 0 && disk)
		r = make_disk(st, disk, &volumes[0]);
	if (r == 0)
		r = build_start(b, &st->s->image, false, volumes, machine, &g, st->e);
	for (size_t i = 0; i < ARRAY_LEN(volumes); i++)
		engine_volume_close(&volumes[i]); /* the machine has them */
	c.guest = g;
	if (r == 0)
		r = build_command(b, &c, &end, st->e);
	if (r == 0 && (end.signaled || end.code))
		r = err_set(st->e, EINVAL, "build_failed", "%.200s",
		            end.signaled ? "unpacking needs more memory than a machine has"
		                         : tail_line(&c.tail));
	if (r == 0 && disk) {
		build_short(b, g);
		r = guest_umount(g, DISK_AT, false, st->e);
	}
	guest_free(g);
	if (machine[0])
		machine_remove(b->order->depot->machines, machine, NULL);
	if (r < 0)
		return r;
	if (fstat(said, &s) < 0 || !(*ret = malloc((size_t)s.st_size + 1)))
		return no_memory(st);
	*ret_n = (size_t)s.st_size;
	if (pread(said, *ret, *ret_n, 0) != s.st_size) {
		free(take_ptr(*ret));
		return no_memory(st);
	}
	return 0;
}

/* Beside what the archive says: what is needed to boot it, from the base's description. */
static int keep_base(json_t *doc, const json_t *base)
{
	static const char *const kept[] = {"image", "upper"};
	int r = 0;

	for (size_t i = 0; i < ARRAY_LEN(kept); i++)
		if (json_object_get(base, kept[i]))
			r |= json_object_set(doc, kept[i], json_object_get(base, kept[i]));
	return r;
}

int build_root_look(struct stage *st)
{
	struct build_stage *s = st->s;
	AUTO(json_decrefp) json_t *doc = NULL;
	AUTO(sha_freep) struct sha *sha = NULL;
	autofree char *said = NULL;
	char memory[16];
	struct digest d;
	size_t n;
	int r = 0;

	if (s->root == BUILD_ROOT_DEBIAN) {
		r = build_debian(st);
		if (r < 0)
			return build_where(st);
	}
	if (s->root == BUILD_ROOT_EMPTY) {
		doc = json_object();
	} else {
		r = run_unpack(st, NULL, &said, &n);
		if (r == 0)
			r = oci_parse(said, n, &doc, st->e);
		if (r < 0)
			return build_where(st);
		build_say(st->b, "the image has %lld layers",
		          (long long)json_integer_value(json_object_get(doc, "layers")));
		json_object_del(doc, "layers");
	}
	snprintf(memory, sizeof(memory), "%u", st->b->info.memory_mb);
	if (!doc || keep_base(doc, s->doc) || sha_new(&sha) < 0)
		return no_memory(st);
	build_digest_add(sha, s->key);
	build_digest_add(sha, s->root == BUILD_ROOT_EMPTY ? "scratch"
	                                                  : st->b->order->files[s->archive].digest);
	build_digest_add(sha, s->which);
	build_digest_add(sha, memory);
	if (sha_done(sha, &d) < 0)
		return no_memory(st);
	digest_text(&d, s->key);
	memcpy(s->root_key, s->key, sizeof(s->root_key));
	json_decref(s->doc);
	s->doc = take_ptr(doc);
	return 0;
}

int build_root_make(struct stage *st)
{
	struct build_stage *s = st->s;
	struct depot *depot = st->b->order->depot;
	struct engine_image cold = ENGINE_IMAGE_EMPTY;
	const char *image = json_string_value(json_object_get(s->doc, "image"));
	autofree char *said = NULL;
	char name[32], path[PATH_MAX];
	size_t n;
	int r;

	if (build_load_step(st, s->root_key))
		return 0;
	snprintf(name, sizeof(name), "root%zu.img", (size_t)(s - st->b->stages));
	r = path_in(st, name, path);
	if (r == 0)
		r = run_unpack(st, path, &said, &n);
	fault_at("unpack.done");
	if (r == 0)
		r = engine_image_cold((uint64_t)st->b->info.memory_mb << 20, image ? image : "",
		                      path, &cold, st->e);
	if (r < 0)
		return build_where(st);
	cold.engine = s->image.engine;
	engine_image_fini(&s->image);
	s->image = cold;
	r = build_machine(st);
	if (r == 0)
		r = template_warm(depot, st->machine, NULL, st->b->wake, st->b->deadline_ms, st->e);
	if (r == 0)
		r = build_seal(st, s->root_key);
	if (r == 0)
		return 0;
	if (build_stopped(st->b, st->e) == 0)
		err_prefix(st->e, "the image does not boot");
	return build_where(st);
}
