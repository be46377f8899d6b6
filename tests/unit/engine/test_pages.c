/*
 * engine/pages.h: the map file of a snapshot, written by a machine that may lie.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "engine/pages.h"

enum { PAGES = 1000 };

static int file_of(const struct map_run *runs, size_t n)
{
	int fd = memfd_create("runs", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(io_write_full(fd, runs, n * sizeof(*runs)), 0);
	return fd;
}

static void runs_that_ascend_become_a_map(void **state)
{
	const struct map_run runs[] = {{0, 1}, {2, 3}, {5, 5}, {999, 1}};
	autoclose int fd = file_of(runs, ARRAY_LEN(runs));
	AUTO(map_fini) struct map m = {0};
	off_t pos = 0;

	assert_int_equal(runs_read(fd, &pos, ARRAY_LEN(runs), PAGES, &m), 0);
	assert_int_equal(pos, sizeof(runs));
	assert_int_equal(m.n, 3); /* 2..4 and 5..9 touch */
	assert_int_equal(map_pages(&m), 10);
	assert_true(map_has(&m, 9, NULL) && !map_has(&m, 1, NULL) && !map_has(&m, 10, NULL));
}

static void the_next_map_begins_where_the_last_one_ended(void **state)
{
	const struct map_run runs[] = {{10, 5}, {3, 4}, {20, 1}};
	autoclose int fd = file_of(runs, ARRAY_LEN(runs));
	AUTO(map_fini) struct map memory = {0}, disk = {0}, none = {0};
	off_t pos = 0;

	assert_int_equal(runs_read(fd, &pos, 1, PAGES, &memory), 0);
	assert_int_equal(runs_read(fd, &pos, 0, PAGES, &none), 0);
	assert_int_equal(runs_read(fd, &pos, 2, PAGES, &disk), 0);
	assert_int_equal(map_pages(&memory), 5);
	assert_int_equal(none.n, 0);
	assert_int_equal(map_end(&disk), 21);
}

static void more_runs_than_one_read_takes_are_joined(void **state)
{
	struct map_run runs[1000];
	autoclose int fd = -1;
	AUTO(map_fini) struct map m = {0};
	off_t pos = 0;

	for (size_t i = 0; i < ARRAY_LEN(runs); i++)
		runs[i] = (struct map_run){3 * i, 2};
	fd = file_of(runs, ARRAY_LEN(runs));
	assert_int_equal(runs_read(fd, &pos, ARRAY_LEN(runs), 3 * ARRAY_LEN(runs), &m), 0);
	assert_int_equal(m.n, ARRAY_LEN(runs));
	/* The order is checked across reads as well: run 256 is the first of the second one. */
	runs[256].start = 3;
	assert_int_equal(io_pwrite_full(fd, runs, sizeof(runs), 0), 0);
	pos = 0;
	assert_int_equal(runs_read(fd, &pos, ARRAY_LEN(runs), 3 * ARRAY_LEN(runs), &m), -EBADMSG);
}

static void lies_are_refused_and_change_nothing(void **state)
{
	static const struct map_run lies[][2] = {
	    {{0, 1}, {5, 0}},              /* empty */
	    {{0, 1}, {PAGES, 1}},          /* past the end */
	    {{0, 1}, {PAGES - 1, 2}},      /* across it */
	    {{0, 1}, {1, PAGES}},          /* across it */
	    {{0, 1}, {UINT64_MAX, 2}},     /* the sum wraps */
	    {{0, 1}, {UINT64_MAX - 1, 1}}, /* far out */
	    {{0, 1}, {2, UINT64_MAX}},     /* wraps the other way */
	    {{5, 5}, {9, 1}},              /* overlaps */
	    {{5, 5}, {0, 1}},              /* goes back */
	    {{5, 5}, {5, 5}},              /* twice */
	};

	for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
		autoclose int fd = file_of(lies[i], 2);
		struct map m = {.n = 77};
		off_t pos = 0;

		assert_int_equal(runs_read(fd, &pos, 2, PAGES, &m), -EBADMSG);
		assert_int_equal(pos, 0);
		assert_int_equal(m.n, 77);
	}
}

static void a_file_shorter_than_it_says_is_refused(void **state)
{
	const struct map_run runs[] = {{0, 1}, {2, 1}};
	autoclose int fd = file_of(runs, ARRAY_LEN(runs));
	struct map m = {0};
	off_t pos = 0;

	assert_int_equal(runs_read(fd, &pos, 3, PAGES, &m), -EBADMSG);
	assert_int_equal(ftruncate(fd, sizeof(runs) - 1), 0);
	assert_int_equal(runs_read(fd, &pos, 2, PAGES, &m), -EBADMSG);
	assert_int_equal(runs_read(fd, &pos, (uint64_t)MAP_RUNS_MAX + 1, PAGES, &m), -EFBIG);
	assert_int_equal(runs_read(fd, &pos, UINT64_MAX, PAGES, &m), -EFBIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(runs_that_ascend_become_a_map),
	    cmocka_unit_test(the_next_map_begins_where_the_last_one_ended),
	    cmocka_unit_test(more_runs_than_one_read_takes_are_joined),
	    cmocka_unit_test(lies_are_refused_and_change_nothing),
	    cmocka_unit_test(a_file_shorter_than_it_says_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
