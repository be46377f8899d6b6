#include "testlib.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/layer.h"

enum { PAGES = 75, CHUNK = 65536 };

static int dir = -1;
static char path[64];

static int dir_setup(void **state)
{
	dir = tmpdir_make(path);
	return 0;
}

static int dir_teardown(void **state)
{
	close(dir);
	tmpdir_remove(path);
	return 0;
}

static struct layer *sealed_memfd(int fd, const struct map *map)
{
	struct map copy;
	struct layer *l = NULL;

	assert_int_equal(map_copy(map, &copy), 0);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &copy, &l), 0);
	close(fd);
	return l;
}

static void pwrite_text(int fd, const char *text, off_t off)
{
	assert_int_equal(io_pwrite_full(fd, text, strlen(text), off), 0);
}

static void a_sealed_memfd_cannot_be_written(void **state)
{
	struct map map = {0};
	struct layer *l = NULL;
	void *p;
	int fd;

	assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	assert_int_equal(ftruncate(fd, 0), -1); /* the size is fixed from birth */
	assert_int_equal(map_add(&map, 0, 1), 0);
	p = mmap(NULL, MAP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), -EBUSY);
	assert_null(l);
	assert_int_equal(map.n, 1); /* still the caller's */
	munmap(p, MAP_PAGE);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), 0);
	assert_int_equal(map.n, 0);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_ptr_equal(mmap(NULL, MAP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0),
	                 MAP_FAILED);
	layer_unref(l);
	close(fd);
}

static void seals_of_the_machines_own_do_not_fool_us(void **state)
{
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0); /* closed, yet writable */
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), -EPERM);
	close(fd);
	fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* not the one we gave it */
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), -EBADMSG);
	close(fd);
	assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	assert_int_equal(map_add(&map, PAGES, 1), 0);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), -EBADMSG);
	assert_null(l);
	map_fini(&map);
	close(fd);
	assert_int_equal(layer_create_memfd("top", 0, &fd), -EINVAL);
	assert_int_equal(layer_create_memfd("top", MAP_PAGES_MAX + 1, &fd), -EINVAL);
}

static void a_file_is_sealed_only_when_nobody_can_write_it(void **state)
{
	struct map map = {0};
	struct layer *l = NULL;
	struct stat st;
	void *p;
	int fd;

	assert_int_equal(layer_create_file(dir, "top", PAGES, &fd), 0);
	assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l), -EBUSY);
	p = mmap(NULL, MAP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	close(fd);
	assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l), -EBUSY);
	munmap(p, MAP_PAGE);
	assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l), 0);
	assert_int_equal(fstat(l->fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0444);
	assert_int_equal(pwrite(l->fd, "x", 1, 0), -1);
	layer_unref(l);
	assert_int_equal(layer_create_file(dir, "top", PAGES, &fd), -EEXIST);
	assert_int_equal(unlinkat(dir, "top", 0), 0);
	assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l), -ENOENT);
}

static void remove_saved(const struct layer *l)
{
	char data[LAYER_NAME], map[LAYER_NAME];

	layer_names(&l->digest, data, map);
	assert_int_equal(unlinkat(dir, data, 0), 0);
	assert_int_equal(unlinkat(dir, map, 0), 0);
}

/* The digest of a layer with this map and these bytes at the start of page 20. */
static struct digest digest_of(uint64_t pages, uint64_t start, uint64_t n, const char *text,
                               int explicit_zeros, bool file)
{
	static const char zeros[MAP_PAGE];
	struct map map = {0};
	struct layer *l = NULL;
	struct digest d;
	int fd;

	if (file)
		assert_int_equal(layer_create_file(dir, "top", pages, &fd), 0);
	else
		assert_int_equal(layer_create_memfd("top", pages, &fd), 0);
	assert_int_equal(map_add(&map, start, n), 0);
	pwrite_text(fd, text, 20 * MAP_PAGE);
	for (int i = 0; i < explicit_zeros; i++)
		assert_int_equal(io_pwrite_full(fd, zeros, MAP_PAGE, (21 + i) * MAP_PAGE), 0);
	if (file) {
		close(fd);
		assert_int_equal(layer_seal_file(dir, "top", pages, &map, &l), 0);
	} else {
		assert_int_equal(layer_seal_memfd(fd, pages, &map, &l), 0);
		close(fd);
	}
	assert_int_equal(save_layer(l, dir), 0);
	d = l->digest;
	remove_saved(l);
	layer_unref(l);
	if (file)
		assert_int_equal(unlinkat(dir, "top", 0), 0);
	return d;
}

static void the_digest_tells_content_apart_and_nothing_else(void **state)
{
	struct digest d = digest_of(PAGES, 20, 5, "abc", 0, false), other;

	other = digest_of(PAGES, 20, 5, "abc", 0, true); /* in a file */
	assert_true(digest_equal(&d, &other));
	other = digest_of(PAGES, 20, 5, "abc", 4, false); /* zeros written out */
	assert_true(digest_equal(&d, &other));
	other = digest_of(PAGES, 20, 5, "abc", 40, true); /* also where the map does not reach */
	assert_true(digest_equal(&d, &other));
	other = digest_of(PAGES, 20, 5, "abd", 0, false);
	assert_false(digest_equal(&d, &other));
	other = digest_of(PAGES, 20, 6, "abc", 0, false); /* one page of zeros more */
	assert_false(digest_equal(&d, &other));
	other = digest_of(PAGES + 1, 20, 5, "abc", 0, false);
	assert_false(digest_equal(&d, &other));
	d = digest_of(PAGES, 22, 5, "abc", 0, false); /* bytes the map does not reach */
	other = digest_of(PAGES, 22, 5, "xyz", 0, false);
	assert_true(digest_equal(&d, &other));
}

static void saving_keeps_holes_and_drops_what_is_not_in_the_map(void **state)
{
	struct map map = {0};
	struct layer *l, *back = NULL;
	char data[LAYER_NAME], name[LAYER_NAME], buf[8];
	struct stat st;
	struct err e;
	int fd;

	assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	assert_int_equal(map_add(&map, 20, 1), 0);
	assert_int_equal(map_add(&map, 74, 1), 0);
	pwrite_text(fd, "first", 20 * MAP_PAGE);
	pwrite_text(fd, "last", 74 * MAP_PAGE + MAP_PAGE - 4);
	pwrite_text(fd, "stray", 21 * MAP_PAGE);
	pwrite_text(fd, "stray", 50 * MAP_PAGE);
	l = sealed_memfd(fd, &map);
	map_fini(&map);
	assert_int_equal(save_layer(l, dir), 0);
	layer_names(&l->digest, data, name);
	assert_int_equal(fstatat(dir, data, &st, 0), 0);
	assert_int_equal(st.st_size, PAGES * MAP_PAGE);
	assert_int_equal(st.st_blocks * 512, 2 * MAP_PAGE);
	assert_int_equal(st.st_mode & 07777, 0444);
	assert_int_equal(layer_open(dir, &l->digest, PAGES, &back, &e), 0);
	assert_true(map_equal(&l->map, &back->map));
	assert_int_equal(io_pread_full(back->fd, buf, 5, 20 * MAP_PAGE), 0);
	assert_memory_equal(buf, "first", 5);
	assert_int_equal(io_pread_full(back->fd, buf, 4, 75 * MAP_PAGE - 4), 0);
	assert_memory_equal(buf, "last", 4);
	assert_int_equal(io_pread_full(back->fd, buf, 5, 21 * MAP_PAGE), 0);
	assert_memory_equal(buf, "\0\0\0\0\0", 5);
	assert_int_equal(layer_verify(back, dir, &e), 0);
	remove_saved(l);
	layer_unref(back);
	layer_unref(l);
}

static void a_sealed_file_is_linked_not_copied(void **state)
{
	struct map map = {0};
	struct layer *l = NULL;
	char data[LAYER_NAME], name[LAYER_NAME];
	struct stat a, b;
	int fd;

	assert_int_equal(layer_create_file(dir, "top", PAGES, &fd), 0);
	pwrite_text(fd, "x", 0);
	close(fd);
	assert_int_equal(map_add(&map, 0, 1), 0);
	assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l), 0);
	assert_int_equal(save_layer(l, dir), 0);
	layer_names(&l->digest, data, name);
	assert_int_equal(fstatat(dir, data, &a, 0), 0);
	assert_int_equal(fstat(l->fd, &b), 0);
	assert_int_equal(a.st_ino, b.st_ino);
	remove_saved(l);
	assert_int_equal(unlinkat(dir, "top", 0), 0);
	assert_int_equal(save_layer(l, dir), 0); /* without a name left it is copied */
	assert_int_equal(fstatat(dir, data, &a, 0), 0);
	assert_int_not_equal(a.st_ino, b.st_ino);
	remove_saved(l);
	layer_unref(l);
}

/* Layers with the same content are one file in a store, so a chain may have it twice. */
static void a_file_is_saved_twice_and_leaves_no_other_name(void **state)
{
	struct layer *l[2] = {NULL, NULL};
	int fd;

	assert_int_equal(layer_create_file(dir, "top", PAGES, &fd), 0);
	pwrite_text(fd, "x", 0);
	close(fd);
	for (size_t i = 0; i < ARRAY_LEN(l); i++) {
		struct map map = {0};

		assert_int_equal(map_add(&map, 0, 1), 0);
		assert_int_equal(layer_seal_file(dir, "top", PAGES, &map, &l[i]), 0);
	}
	for (size_t i = 0; i < ARRAY_LEN(l); i++)
		assert_int_equal(save_layer(l[i], dir), 0);
	assert_true(digest_equal(&l[0]->digest, &l[1]->digest));
	assert_int_equal(save_layer(l[0], dir), 0); /* as does the next one of the snapshot */
	remove_saved(l[0]);
	assert_int_equal(unlinkat(dir, "top", 0), 0);
	assert_int_equal(unlinkat(dir, "data.tmp", 0), -1);
	assert_int_equal(unlinkat(dir, "map.tmp", 0), -1);
	for (size_t i = 0; i < ARRAY_LEN(l); i++)
		layer_unref(l[i]);
}

/* A saved layer with data in chunks 0, 2 and 4 of 5, for the tests that break it. */
static struct layer *saved_layer(char data[LAYER_NAME], char name[LAYER_NAME])
{
	struct map map = {0};
	struct layer *l, *back = NULL;
	struct err e;
	int fd;

	assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	assert_int_equal(map_add(&map, 0, PAGES - 1), 0);
	for (int i = 0; i < 5; i += 2)
		pwrite_text(fd, "data", i * CHUNK + 5000);
	l = sealed_memfd(fd, &map);
	map_fini(&map);
	assert_int_equal(save_layer(l, dir), 0);
	layer_names(&l->digest, data, name);
	assert_int_equal(layer_open(dir, &l->digest, PAGES, &back, &e), 0);
	layer_unref(l);
	return back;
}

/* As a failing disk would: behind the back of every permission. */
static void poke(const char *name, off_t off, unsigned char flip)
{
	autoclose int fd = -1;
	unsigned char c;

	assert_int_equal(fchmodat(dir, name, 0600, 0), 0);
	fd = openat(dir, name, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(io_pread_full(fd, &c, 1, off), 0);
	c ^= flip;
	assert_int_equal(io_pwrite_full(fd, &c, 1, off), 0);
}

static void verify_names_the_first_bad_chunk(void **state)
{
	static const struct {
		off_t off;
		unsigned char flip;
		const char *says;
	} cases[] = {
	    {2 * CHUNK + 5001, 1, "chunk 2 "},             /* other data */
	    {3 * CHUNK, 0x80, "chunk 3 "},                 /* data where there was none */
	    {CHUNK + CHUNK - 1, 1, "chunk 1 "},            /* the last byte of a chunk */
	    {4 * CHUNK + 5000, 'd', "chunk 4 "},           /* the last chunk, one byte zeroed */
	    {73 * MAP_PAGE + MAP_PAGE - 1, 1, "chunk 4 "}, /* the last byte of the map */
	};
	char data[LAYER_NAME], name[LAYER_NAME];
	struct layer *l = saved_layer(data, name);
	autoclose int fd = -1;
	struct err e;

	assert_int_equal(layer_verify(l, dir, &e), 0);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		poke(data, cases[i].off, cases[i].flip);
		assert_int_equal(layer_verify(l, dir, &e), -EBADMSG);
		assert_string_equal(e.kind, "snapshot_corrupt");
		assert_non_null(strstr(e.text, cases[i].says));
		assert_non_null(strstr(e.text, data));
		assert_int_equal(save_layer(l, dir), -EUCLEAN); /* rot does not get a new name */
		poke(data, cases[i].off, cases[i].flip);
	}
	poke(data, 74 * MAP_PAGE, 1); /* not in the map: nobody reads it */
	assert_int_equal(layer_verify(l, dir, &e), 0);

	fd = openat(dir, data, O_RDWR | O_CLOEXEC); /* a chunk becomes a hole, the last one too */
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * CHUNK,
	                           CHUNK),
	                 0);
	assert_int_equal(layer_verify(l, dir, &e), -EBADMSG);
	assert_non_null(strstr(e.text, "chunk 4 "));
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, CHUNK), 0);
	assert_int_equal(layer_verify(l, dir, &e), -EBADMSG);
	assert_non_null(strstr(e.text, "chunk 0 "));
	remove_saved(l);
	layer_unref(l);
}

static void every_flipped_byte_of_a_map_file_is_seen(void **state)
{
	char data[LAYER_NAME], name[LAYER_NAME];
	struct layer *l = saved_layer(data, name), *again = NULL;
	const off_t table = 56 + 24 + 16; /* the head: fixed part, map head, one run */
	struct stat st;
	struct err e;

	assert_int_equal(fstatat(dir, name, &st, 0), 0);
	assert_int_equal(st.st_size, table + 3 * 40);
	for (off_t i = 0; i < st.st_size; i++) {
		for (int bit = 0; bit < 8; bit++) {
			int r;

			poke(name, i, (unsigned char)(1 << bit));
			r = layer_open(dir, &l->digest, PAGES, &again, &e);
			if (i < table) {
				assert_int_equal(r, -EBADMSG);
				assert_string_equal(e.kind, "snapshot_corrupt");
				assert_non_null(strstr(e.text, name));
			} else { /* the table is read by verify only */
				assert_int_equal(r, 0);
				layer_unref(again);
			}
			again = NULL;
			assert_int_equal(layer_verify(l, dir, &e), -EBADMSG);
			poke(name, i, (unsigned char)(1 << bit));
		}
	}
	assert_int_equal(layer_verify(l, dir, &e), 0);
	remove_saved(l);
	layer_unref(l);
}

static void missing_and_cut_files_are_refused(void **state)
{
	char data[LAYER_NAME], name[LAYER_NAME];
	struct layer *l = saved_layer(data, name), *again = NULL;
	autoclose int fd = -1, mapfd = -1;
	struct stat st;
	struct err e;

	assert_int_equal(layer_open(dir, &l->digest, PAGES + 1, &again, &e), -EBADMSG);
	assert_int_equal(fchmodat(dir, data, 0600, 0), 0);
	fd = openat(dir, data, O_RDWR | O_CLOEXEC);
	assert_int_equal(ftruncate(fd, (PAGES - 1) * MAP_PAGE), 0);
	assert_int_equal(layer_open(dir, &l->digest, PAGES, &again, &e), -EBADMSG);
	assert_non_null(strstr(e.text, data));
	assert_int_equal(ftruncate(fd, PAGES * MAP_PAGE), 0);

	assert_int_equal(fchmodat(dir, name, 0600, 0), 0);
	mapfd = openat(dir, name, O_RDWR | O_CLOEXEC);
	assert_int_equal(fstat(mapfd, &st), 0);
	for (off_t cut = st.st_size - 1; cut >= 0; cut--) {
		assert_int_equal(ftruncate(mapfd, cut), 0);
		assert_int_equal(layer_open(dir, &l->digest, PAGES, &again, &e), -EBADMSG);
		assert_string_equal(e.kind, "snapshot_corrupt");
	}
	assert_int_equal(unlinkat(dir, name, 0), 0);
	assert_int_equal(layer_open(dir, &l->digest, PAGES, &again, &e), -ENOENT);
	assert_string_equal(e.kind, "snapshot_incomplete");
	assert_null(again);
	assert_int_equal(unlinkat(dir, data, 0), 0);
	layer_unref(l);
}

/* 48 MiB, so that several threads work on it; every third page is not in the map, some are
 * zeros. */
static struct layer *big_layer(void)
{
	enum { BIG = 12288 };
	unsigned char page[MAP_PAGE];
	struct map map = {0};
	struct layer *l = NULL;
	uint64_t seed = 7;
	int fd;

	assert_int_equal(layer_create_memfd("big", BIG, &fd), 0);
	for (uint64_t i = 0; i < BIG; i++) {
		for (size_t k = 0; k < sizeof(page); k += 4)
			*(uint32_t *)(page + k) = i % 7 ? rnd(&seed) : 0;
		if (i % 5)
			assert_int_equal(io_pwrite_full(fd, page, sizeof(page),
			                                (off_t)(i * MAP_PAGE)),
			                 0);
		if (i % 3)
			assert_int_equal(map_add(&map, i, 1), 0);
	}
	assert_int_equal(layer_seal_memfd(fd, BIG, &map, &l), 0);
	close(fd);
	return l;
}

static void many_threads_find_what_one_finds(void **state)
{
	struct layer *l = big_layer(), *back = NULL;
	struct digest one;
	cpu_set_t all, first;
	char data[LAYER_NAME], map[LAYER_NAME];
	struct err e;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	CPU_ZERO(&first);
	for (int i = 0; CPU_COUNT(&first) == 0; i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &first);
	assert_int_equal(sched_setaffinity(0, sizeof(first), &first), 0);
	assert_int_equal(save_layer(l, dir), 0); /* on one cpu by one thread */
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
	one = l->digest;
	remove_saved(l);
	l->has_digest = false;
	assert_int_equal(save_layer(l, dir), 0);
	assert_true(digest_equal(&one, &l->digest));
	assert_int_equal(layer_open(dir, &one, l->pages, &back, &e), 0);
	assert_int_equal(layer_verify(back, dir, &e), 0);
	layer_names(&one, data, map);
	poke(data, 100 * CHUNK + 4 * MAP_PAGE, 1); /* the first of two */
	poke(data, 600 * CHUNK + 4 * MAP_PAGE, 1);
	assert_int_equal(layer_verify(back, dir, &e), -EBADMSG);
	assert_non_null(strstr(e.text, "chunk 100 "));
	remove_saved(l);
	layer_unref(back);
	layer_unref(l);
}

static int save_squashed(struct layer *l)
{
	struct sync_list sync = {0};
	int r = layer_save(l, dir, LAYER_SQUASHED, &sync);

	sync_fini(&sync);
	return r;
}

static void a_compressed_layer_is_the_same_layer(void **state)
{
	struct layer *l = big_layer(), *back = NULL;
	char data[LAYER_NAME], map[LAYER_NAME], squashed[LAYER_NAME];
	struct digest plain;
	struct stat st;
	struct err e;

	assert_int_equal(save_layer(l, dir), 0);
	plain = l->digest;
	remove_saved(l);
	l->has_digest = false;
	assert_int_equal(save_squashed(l), 0);
	assert_true(digest_equal(&plain, &l->digest));
	layer_names(&plain, data, map);
	layer_squashed_name(&plain, squashed);
	assert_int_equal(fstatat(dir, data, &st, 0), -1);
	assert_int_equal(fstatat(dir, squashed, &st, 0), 0);
	assert_int_equal(st.st_mode & 07777, 0444);
	assert_int_equal(layer_look(dir, &plain, l->pages, &e), 0);
	assert_int_equal(layer_open(dir, &plain, l->pages, &back, &e), 0);
	assert_true(map_equal(&l->map, &back->map));
	assert_int_equal(layer_verify(back, dir, &e), 0);
	assert_int_equal(pwrite(back->fd, "x", 1, 0), -1); /* as sealed as any */
	layer_unref(back);
	back = NULL;
	/* Every cut, and a flipped bit anywhere, is seen when it is unpacked, and the file is
	 * named. */
	for (off_t at = 0; at < st.st_size; at += at < 100 ? 1 : st.st_size / 50) {
		poke(squashed, at, 4);
		assert_int_equal(layer_open(dir, &plain, l->pages, &back, &e), -EBADMSG);
		assert_string_equal(e.kind, "snapshot_corrupt");
		assert_non_null(strstr(e.text, squashed));
		poke(squashed, at, 4);
	}
	for (int i = 1; i < 40; i++) {
		autoclose int fd = openat(dir, squashed, O_RDWR | O_CLOEXEC);

		assert_int_equal(ftruncate(fd, st.st_size - i), 0);
		assert_int_equal(layer_open(dir, &plain, l->pages, &back, &e), -EBADMSG);
	}
	assert_null(back);
	assert_int_equal(unlinkat(dir, squashed, 0), 0);
	assert_int_equal(layer_look(dir, &plain, l->pages, &e), -ENOENT);
	assert_int_equal(layer_open(dir, &plain, l->pages, &back, &e), -ENOENT);
	assert_string_equal(e.kind, "snapshot_incomplete");
	assert_int_equal(unlinkat(dir, map, 0), 0);
	layer_unref(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_sealed_memfd_cannot_be_written),
	    cmocka_unit_test(seals_of_the_machines_own_do_not_fool_us),
	    cmocka_unit_test(a_file_is_sealed_only_when_nobody_can_write_it),
	    cmocka_unit_test(the_digest_tells_content_apart_and_nothing_else),
	    cmocka_unit_test(saving_keeps_holes_and_drops_what_is_not_in_the_map),
	    cmocka_unit_test(a_sealed_file_is_linked_not_copied),
	    cmocka_unit_test(a_file_is_saved_twice_and_leaves_no_other_name),
	    cmocka_unit_test(verify_names_the_first_bad_chunk),
	    cmocka_unit_test(every_flipped_byte_of_a_map_file_is_seen),
	    cmocka_unit_test(missing_and_cut_files_are_refused),
	    cmocka_unit_test(many_threads_find_what_one_finds),
	    cmocka_unit_test(a_compressed_layer_is_the_same_layer),
	};

	return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
