#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

static void fill(int fd, struct map *map, uint64_t page, uint64_t n, int byte)
{
	unsigned char buf[MAP_PAGE];

	memset(buf, byte, sizeof(buf));
	assert_int_equal(map_add(map, page, n), 0);
	for (uint64_t i = page; i < page + n; i++)
		assert_int_equal(io_pwrite_full(fd, buf, sizeof(buf), (off_t)(i * MAP_PAGE)), 0);
}

static void push_memory(struct fixture *f, uint64_t page, uint64_t n, int byte, int times)
{
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	assert_int_equal(layer_create_memfd("memory", FIX_PAGES, &fd), 0);
	fill(fd, &map, page, n, byte);
	assert_int_equal(map_add(&map, 70, 1), 0); /* a page of zeros, as a hole */
	assert_int_equal(layer_seal_memfd(fd, FIX_PAGES, &map, &l), 0);
	close(fd);
	while (times--)
		assert_int_equal(set_push(&f->memory, l), 0);
	layer_unref(l);
}

static void push_disk(struct fixture *f)
{
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	assert_int_equal(layer_create_file(f->dir, "disk", FIX_DISK_PAGES, &fd), 0);
	fill(fd, &map, 17, 2, 'd');
	close(fd);
	assert_int_equal(layer_seal_file(f->dir, "disk", FIX_DISK_PAGES, &map, &l), 0);
	assert_int_equal(set_push(&f->disks[0], l), 0);
	layer_unref(l);
}

static void add_image(struct fixture *f)
{
	static const char bytes[] = "not really a file system";
	struct manifest_disk *d = &f->manifest.disks[1];

	assert_int_equal(mkdirat(f->dir, "images", 0700), 0);
	assert_int_equal(io_replace_file(f->dir, "images/root.img", bytes, sizeof(bytes), 0444,
	                                 true),
	                 0);
	snprintf(d->name, sizeof(d->name), "root");
	snprintf(d->image_path, sizeof(d->image_path), "images/root.img");
	d->size = sizeof(bytes);
	d->is_image = d->read_only = true;
	assert_int_equal(digest_bytes(bytes, sizeof(bytes), &d->image), 0);
}

void fixture_init(struct fixture *f)
{
	struct manifest *m = &f->manifest;

	*f = (struct fixture){.memory.pages = FIX_PAGES, .disks[0].pages = FIX_DISK_PAGES};
	f->dir = tmpdir_make(f->path);
	assert_int_equal(snapshot_store_open(f->dir, &f->store), 0);
	push_memory(f, 0, 20, 'a', 1);
	push_memory(f, 10, 40, 'b', 2);
	push_memory(f, 15, 3, 'c', 1);
	push_disk(f);
	f->expect_memory = malloc(FIX_PAGES * MAP_PAGE);
	assert_int_equal(read_set(&f->memory, 0, FIX_PAGES, f->expect_memory), 0);
	f->state = memfd_create("state", MFD_CLOEXEC);
	assert_int_equal(io_write_full(f->state, "registers and such", 18), 0);

	snprintf(m->engine, sizeof(m->engine), "um");
	snprintf(m->kernel, sizeof(m->kernel), "7.2.12-panda1");
	snprintf(m->template, sizeof(m->template), "base");
	m->memory_size = FIX_PAGES * MAP_PAGE;
	m->created_at_ms = 1790000000000;
	assert_int_equal(manifest_flags_parse("fpu sse2 avx2", &m->cpu_flags), 0);
	m->ndisks = 2;
	snprintf(m->disks[0].name, sizeof(m->disks[0].name), "data");
	m->disks[0].size = FIX_DISK_PAGES * MAP_PAGE;
	add_image(f);
	f->host = (struct manifest_host){.engine = "um", .kernel = "7.2.12-panda1"};
	assert_int_equal(manifest_flags_parse("fpu sse2 avx2 avx512f", &f->host.cpu_flags), 0);
}

void fixture_fini(struct fixture *f)
{
	set_fini(&f->memory);
	set_fini(&f->disks[0]);
	manifest_fini(&f->manifest);
	manifest_flags_fini(&f->host.cpu_flags);
	snapshot_store_close(&f->store);
	close(f->state);
	close(f->dir);
	free(f->expect_memory);
	tmpdir_remove(f->path);
}

void fixture_forget_digests(struct fixture *f)
{
	for (size_t i = 0; i < f->memory.n; i++)
		f->memory.at[i]->has_digest = false;
	f->disks[0].at[0]->has_digest = false;
}

void fixture_write(struct fixture *f, const char *id)
{
	struct err e = {0};

	if (snapshot_write(&f->store, id, &f->manifest, &f->memory, f->disks, f->state, &e) < 0)
		fail_msg("%s: %s", e.kind, e.text);
}

void fixture_check(struct fixture *f, const char *id)
{
	struct snapshot *s = NULL;
	struct err e = {0};

	if (snapshot_load(&f->store, id, &f->host, SNAPSHOT_FULL, &s, &e) < 0)
		fail_msg("%s: %s", e.kind, e.text);
	fixture_same(f, s);
	snapshot_free(s);
}

void fixture_same(struct fixture *f, const struct snapshot *s)
{
	autofree unsigned char *buf = malloc(FIX_PAGES * MAP_PAGE);

	assert_int_equal(read_set(&s->memory, 0, FIX_PAGES, buf), 0);
	assert_memory_equal(buf, f->expect_memory, FIX_PAGES * MAP_PAGE);
	assert_int_equal(s->memory.n, 4);
	assert_ptr_equal(s->memory.at[1], s->memory.at[2]);
	assert_int_equal(read_set(&s->disks[0], 16, 4, buf), 0);
	assert_int_equal(buf[0], 0);
	assert_int_equal(buf[MAP_PAGE], 'd');
	assert_int_equal(buf[3 * MAP_PAGE - 1], 'd');
	assert_int_equal(buf[3 * MAP_PAGE], 0);
	assert_int_equal(io_pread_full(s->state, buf, 18, 0), 0);
	assert_memory_equal(buf, "registers and such", 18);
	assert_int_equal(io_pread_full(s->images[1], buf, 10, 0), 0);
	assert_memory_equal(buf, "not really", 10);
	assert_int_equal(s->manifest.created_at_ms, 1790000000000);
	assert_string_equal(s->manifest.template, "base");
	assert_string_equal(s->manifest.parent, "");
}

void fixture_refused(struct fixture *f, const char *id, enum snapshot_check check, const char *kind,
                     struct err *ret)
{
	struct snapshot *s = NULL;
	struct err e = {0};

	assert_true(snapshot_load(&f->store, id, &f->host, check, &s, &e) < 0);
	assert_null(s);
	assert_string_equal(e.kind, kind);
	assert_true(e.code > 0);
	assert_true(strlen(e.text) > 0);
	if (ret)
		*ret = e;
}

unsigned count_entries(int dirfd)
{
	DIR *d = fdopendir(openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* "." and ".." */
}

int fixture_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fixture_init(f);
	*state = f;
	return 0;
}

int fixture_teardown(void **state)
{
	fixture_fini(*state);
	free(*state);
	return 0;
}
