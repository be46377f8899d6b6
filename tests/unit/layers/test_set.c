#include "testlib.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/set.h"

enum {
	PAGES = 75 /* not a whole number of 64 KiB chunks */
};

/* The model: all the bytes, and which pages some layer provides. */
struct model {
	unsigned char bytes[PAGES][MAP_PAGE];
};

static int top_dir = -1;
static char top_path[64];

static int dir_setup(void **state)
{
	top_dir = tmpdir_make(top_path);
	return 0;
}

static int dir_teardown(void **state)
{
	close(top_dir);
	tmpdir_remove(top_path);
	return 0;
}

/*
 * One life of a machine: writes random pages to a fresh top, some of them as zeros (explicit, or
 * as a hole that only the map knows), then the top is sealed.
 */
static struct layer *random_layer(uint64_t *seed, struct model *m, bool file)
{
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	if (file)
		assert_int_equal(layer_create_file(top_dir, "top", PAGES, &fd), 0);
	else
		assert_int_equal(layer_create_memfd("top", PAGES, &fd), 0);
	for (uint32_t k = rnd(seed) % 12; k > 0; k--) {
		uint64_t page = rnd(seed) % PAGES;
		uint64_t n = 1 + rnd(seed) % MIN(PAGES - page, (uint64_t)9);
		uint32_t kind = rnd(seed) % 4;

		assert_int_equal(map_add(&map, page, n), 0);
		for (uint64_t i = page; i < page + n; i++) {
			memset(m->bytes[i], 0, MAP_PAGE);
			if (kind > 1)
				m->bytes[i][rnd(seed) % MAP_PAGE] =
				    (unsigned char)(1 + rnd(seed) % 255);
		}
		if (kind == 0)
			assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			                           (off_t)(page * MAP_PAGE), (off_t)(n * MAP_PAGE)),
			                 0);
		else
			assert_int_equal(io_pwrite_full(fd, m->bytes[page], n * MAP_PAGE,
			                                (off_t)(page * MAP_PAGE)),
			                 0);
	}
	/* Bytes outside the map: a machine may leave them there, nobody may ever see them. */
	for (uint64_t i = 0; i < PAGES; i += 7)
		if (!map_has(&map, i, NULL))
			assert_int_equal(io_pwrite_full(fd, "stray", 5, (off_t)(i * MAP_PAGE)), 0);
	if (file) {
		close(fd);
		assert_int_equal(layer_seal_file(top_dir, "top", PAGES, &map, &l), 0);
		assert_int_equal(unlinkat(top_dir, "top", 0), 0);
	} else {
		assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), 0);
		close(fd);
	}
	return l;
}

static void check_equal(const struct set *s, const struct model *m)
{
	autofree unsigned char *buf = malloc(sizeof(m->bytes));
	autoclose int fd = memfd_create("export", MFD_CLOEXEC);
	struct stat st;

	assert_int_equal(read_set(s, 0, PAGES, buf), 0);
	assert_memory_equal(buf, m->bytes, sizeof(m->bytes));
	assert_int_equal(set_export(s, fd), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, sizeof(m->bytes));
	assert_int_equal(io_pread_full(fd, buf, sizeof(m->bytes), 0), 0);
	assert_memory_equal(buf, m->bytes, sizeof(m->bytes));
}

static void random_stacks_agree_with_the_model(bool file)
{
	uint64_t seed = file ? 99 : 1;
	autofree struct model *m = malloc(sizeof(*m));

	for (int round = 0; round < 40; round++) {
		struct set s = {.pages = PAGES}, child;
		size_t depth = 1 + rnd(&seed) % 8;

		memset(m, 0, sizeof(*m));
		for (size_t i = 0; i < depth; i++) {
			struct layer *l = random_layer(&seed, m, file);

			assert_int_equal(set_push(&s, l), 0);
			layer_unref(l);
			check_equal(&s, m);
		}
		assert_int_equal(set_copy(&s, &child), 0);
		set_fini(&s);
		check_equal(&child, m); /* a fork has all it needs */
		set_fini(&child);
	}
}

static void random_memory_stacks_agree_with_the_model(void **state)
{
	random_stacks_agree_with_the_model(false);
}

static void random_disk_stacks_agree_with_the_model(void **state)
{
	random_stacks_agree_with_the_model(true);
}

static struct layer *layer_of(uint64_t pages, uint64_t start, uint64_t n, const char *text)
{
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	assert_int_equal(layer_create_memfd("t", pages, &fd), 0);
	if (n)
		assert_int_equal(map_add(&map, start, n), 0);
	if (text)
		assert_int_equal(io_pwrite_full(fd, text, strlen(text), (off_t)(start * MAP_PAGE)),
		                 0);
	assert_int_equal(layer_seal_memfd(fd, pages, &map, &l), 0);
	close(fd);
	return l;
}

static void push(struct set *s, struct layer *l)
{
	assert_int_equal(set_push(s, l), 0);
	layer_unref(l);
}

static void a_hole_in_a_newer_layer_hides_older_data(void **state)
{
	struct set s = {.pages = 8};
	char page[MAP_PAGE];

	push(&s, layer_of(8, 2, 1, "old"));
	assert_int_equal(read_set(&s, 2, 1, page), 0);
	assert_string_equal(page, "old");
	push(&s, layer_of(8, 2, 1, NULL));
	assert_int_equal(read_set(&s, 2, 1, page), 0);
	assert_string_equal(page, "");
	set_fini(&s);
}

static void a_set_refuses_what_does_not_fit(void **state)
{
	struct set s = {.pages = 8};
	struct layer *other = layer_of(9, 0, 1, "x");

	assert_int_equal(set_push(&s, other), -EINVAL);
	assert_int_equal(s.n, 0);
	layer_unref(other);
	set_fini(&s);
}

static void a_set_has_a_longest_length(void **state)
{
	struct set s = {.pages = 8};
	struct layer *l = layer_of(8, 0, 0, NULL);

	for (int i = 0; i < SET_LAYERS_MAX; i++)
		assert_int_equal(set_push(&s, l), 0);
	assert_int_equal(set_push(&s, l), -E2BIG);
	layer_unref(l);
	set_fini(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(random_memory_stacks_agree_with_the_model),
	    cmocka_unit_test(random_disk_stacks_agree_with_the_model),
	    cmocka_unit_test(a_hole_in_a_newer_layer_hides_older_data),
	    cmocka_unit_test(a_set_refuses_what_does_not_fit),
	    cmocka_unit_test(a_set_has_a_longest_length),
	};

	return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
