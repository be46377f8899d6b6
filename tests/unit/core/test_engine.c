/*
 * core/engine.h: images own what they name, also when memory runs out half way.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "core/engine.h"
#include "fault.h"

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
		i->disks[d] = (struct engine_disk){
		    .size = PAGES * MAP_PAGE, .read_only = d == 0, .layers = {.pages = PAGES}};
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_copy_outlives_what_it_was_copied_from),
	    cmocka_unit_test(an_image_that_never_ran_has_no_state_to_copy),
	    cmocka_unit_test(a_copy_that_fails_leaves_nothing),
	    cmocka_unit_test(a_half_built_machine_can_be_released),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
