/*
 * machine/engine.h: images own what they name, also when memory runs out half way; volumes are
 * opened by one writer or by readers, and cloned with their holes.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "fault.h"
#include "machine/engine.h"

enum { PAGES = 16, NTH_MAX = 100 };

static int open_fds(void)
{
	autoclosedir DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	return n;
}

static void add_layer(struct set *s)
{
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	autoclose int fd = -1;

	assert_int_equal(layer_create_memfd("layer", PAGES, &fd), 0);
	assert_int_equal(map_add(&map, s->n, 1), 0);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), 0);
	assert_int_equal(set_push(s, l), 0);
}

static void make_image(struct engine_image *i)
{
	*i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	i->memory_size = PAGES * MAP_PAGE;
	i->memory.pages = PAGES;
	add_layer(&i->memory);
	add_layer(&i->memory);
	i->ndisks = 2;
	for (size_t d = 0; d < i->ndisks; d++) {
		i->disks[d] = (struct engine_disk){.size = PAGES * MAP_PAGE,
		                                   .read_only = d == 0,
		                                   .layers = {.pages = PAGES}};
		add_layer(&i->disks[d].layers);
	}
	i->state = memfd_create("state", MFD_CLOEXEC);
	assert_true(i->state >= 0);
}

static void a_copy_outlives_what_it_was_copied_from(void **state)
{
	struct engine_image a, b = ENGINE_IMAGE_EMPTY;
	int before = open_fds(), old_state;

	make_image(&a);
	old_state = a.state;
	assert_int_equal(engine_image_copy(&a, &b), 0);
	engine_image_fini(&a);
	assert_int_equal(a.state, -1);
	assert_int_equal(a.ndisks, 0);
	assert_true(b.state != old_state && fcntl(b.state, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(b.memory_size, PAGES * MAP_PAGE);
	assert_int_equal(b.memory.n, 2);
	assert_int_equal(b.ndisks, 2);
	assert_true(b.disks[0].read_only && !b.disks[1].read_only);
	for (size_t l = 0; l < b.memory.n; l++)
		assert_true(fcntl(b.memory.at[l]->fd, F_GETFD) >= 0);
	assert_true(map_has(&b.memory.at[1]->map, 1, NULL));
	engine_image_fini(&b);
	assert_int_equal(open_fds(), before);
	engine_image_fini(&b); /* an empty one too */
}

static void an_image_that_never_ran_has_no_state_to_copy(void **state)
{
	struct engine_image a, b = ENGINE_IMAGE_EMPTY;

	make_image(&a);
	close(a.state);
	a.state = -1;
	assert_int_equal(engine_image_copy(&a, &b), 0);
	assert_int_equal(b.state, -1);
	engine_image_fini(&a);
	engine_image_fini(&b);
}

static void a_copy_that_fails_leaves_nothing(void **state)
{
	struct engine_image a, b = ENGINE_IMAGE_EMPTY;
	int nth, fds, r;

	make_image(&a);
	fds = open_fds();
	for (nth = 1; nth < NTH_MAX; nth++) {
		fault_arm(FAULT_ALLOC, nth);
		r = engine_image_copy(&a, &b);
		if (!fault_fired())
			break;
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(b.ndisks, 0);
		assert_null(b.memory.at);
		assert_int_equal(open_fds(), fds);
	}
	assert_true(nth > 2 && nth < NTH_MAX); /* memory and two disks allocate at least */
	assert_int_equal(r, 0);
	engine_image_fini(&b);
	/* The original was never touched. */
	assert_int_equal(a.memory.n, 2);
	assert_int_equal(a.memory.at[0]->refs, 1);
	engine_image_fini(&a);
}

static void a_half_built_machine_can_be_released(void **state)
{
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	int before = open_fds();

	engine_machine_fini(&m);
	make_image(&m.image);
	m.top = memfd_create("top", MFD_CLOEXEC);
	engine_machine_fini(&m);
	assert_int_equal(m.top, -1);
	assert_int_equal(open_fds(), before);
	engine_machine_fini(&m);
}

/* A file that is there only for as long as its fd is open; path leads to it. */
static int temp_file(off_t size, char path[64])
{
	char name[] = "/tmp/panda-volume-XXXXXX";
	int fd = mkstemp(name);

	assert_true(fd >= 0);
	unlink(name);
	assert_int_equal(ftruncate(fd, size), 0);
	snprintf(path, 64, "/proc/self/fd/%d", fd);
	return fd;
}

static void a_volume_has_one_writer_or_any_number_of_readers(void **state)
{
	struct engine_volume a, b = {.fd = -1}, c = {.fd = -1};
	struct err e = {0};
	char path[64];
	autoclose int fd = temp_file(8 * MAP_PAGE, path);
	int before = open_fds();

	assert_int_equal(engine_volume_open(path, false, &a, &e), 0);
	assert_int_equal(a.size, 8 * MAP_PAGE);
	assert_false(a.read_only);
	assert_int_equal(fcntl(a.fd, F_GETFL) & O_ACCMODE, O_RDWR);
	assert_int_equal(engine_volume_open(path, false, &b, &e), -EBUSY);
	assert_string_equal(e.kind, "volume_busy");
	assert_int_equal(engine_volume_open(path, true, &b, &e), -EBUSY);
	assert_int_equal(b.size, 0);
	engine_volume_close(&a);
	assert_int_equal(engine_volume_open(path, true, &a, &e), 0);
	assert_int_equal(fcntl(a.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(engine_volume_open(path, true, &b, &e), 0);
	assert_true(a.dev == b.dev && a.ino == b.ino);
	assert_int_equal(engine_volume_open(path, false, &c, &e), -EBUSY);
	engine_volume_close(&a);
	engine_volume_close(&a); /* one that is closed, or never was open */
	engine_volume_close(&b);
	engine_volume_close(&c);
	assert_int_equal(open_fds(), before);
}

static void what_is_no_file_of_whole_blocks_is_no_volume(void **state)
{
	struct engine_volume v = {.fd = -1};
	struct err e = {0};
	char path[64];
	autoclose int fd = temp_file(0, path);
	int before = open_fds();

	assert_int_equal(engine_volume_open("/nowhere/at/all", false, &v, &e), -ENOENT);
	assert_string_equal(e.kind, "volume_missing");
	assert_int_equal(engine_volume_open("/", true, &v, &e), -EINVAL);
	assert_int_equal(engine_volume_open("/dev/null", false, &v, &e), -EINVAL);
	assert_int_equal(engine_volume_open(path, false, &v, &e), -EINVAL);
	assert_int_equal(ftruncate(fd, MAP_PAGE + 1), 0);
	assert_int_equal(engine_volume_open(path, false, &v, &e), -EINVAL);
	assert_string_equal(e.kind, "volume_unusable");
	assert_int_equal(v.size, 0);
	assert_int_equal(open_fds(), before);
}

static void a_clone_has_the_same_bytes_and_the_same_holes(void **state)
{
	const off_t size = 64 << 20;
	char path[64], a[5000], b[5000];
	autoclose int from = temp_file(size, path), to = temp_file(0, path);
	struct stat st;

	memset(a, 'v', sizeof(a));
	assert_int_equal(pwrite(from, a, sizeof(a), 40 << 20), sizeof(a));
	assert_int_equal(pwrite(from, a, 1, size - 1), 1);
	assert_int_equal(engine_volume_clone(from, to), 0);
	assert_int_equal(fstat(to, &st), 0);
	assert_int_equal(st.st_size, size);
	assert_true(st.st_blocks * 512 < 1 << 20);
	assert_int_equal(pread(to, b, sizeof(b), 40 << 20), sizeof(b));
	assert_memory_equal(a, b, sizeof(a));
	assert_int_equal(pread(to, b, 2, size - 2), 2);
	assert_memory_equal(b, "\0v", 2);
	/* From then on they are two. */
	assert_int_equal(pwrite(from, "x", 1, 0), 1);
	assert_int_equal(pread(to, b, 1, 0), 1);
	assert_int_equal(b[0], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_copy_outlives_what_it_was_copied_from),
	    cmocka_unit_test(an_image_that_never_ran_has_no_state_to_copy),
	    cmocka_unit_test(a_copy_that_fails_leaves_nothing),
	    cmocka_unit_test(a_half_built_machine_can_be_released),
	    cmocka_unit_test(a_volume_has_one_writer_or_any_number_of_readers),
	    cmocka_unit_test(what_is_no_file_of_whole_blocks_is_no_volume),
	    cmocka_unit_test(a_clone_has_the_same_bytes_and_the_same_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
