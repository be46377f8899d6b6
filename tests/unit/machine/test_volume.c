/*
 * machine/machine.h: a volume copied while its machine writes it. The machine is this test, which
 * has the file at the fd number where a machine would, and does between the two steps what the
 * guest's driver does: old content into the copy, a mark, then the new content.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "machine/machine.h"

enum { VOLUME_SLOT = 500, CHUNK = ENGINE_COPY_CHUNK, CHUNKS = 5, SIZE = 4 * CHUNK + 4096 };

static const struct engine kind = {.name = "fake"};

struct world {
	struct engines engines;
	struct machines ms;
	struct engine_machine m;
	int volume, to;                /* files */
	int machine_to, machine_marks; /* what the machine was given; -1: nothing */
	int copied;                    /* what it says in the end */
};

static struct world w;

static int begin(struct engines *e, struct engine_machine *m, unsigned slot, int to, int marks,
                 struct err *err)
{
	assert_int_equal(slot, 2);
	w.machine_to = dup(to);
	w.machine_marks = dup(marks);
	return 0;
}

static int ended(struct engines *e, struct engine_machine *m, unsigned slot, struct err *err)
{
	return w.copied < 0 ? err_set(err, -w.copied, "disk_full", "no space left") : 0;
}

static void fill(int fd, size_t chunk, char with)
{
	char buf[CHUNK];
	size_t n = MIN((size_t)CHUNK, SIZE - chunk * CHUNK);

	memset(buf, with, n);
	assert_int_equal(pwrite(fd, buf, n, (off_t)(chunk * CHUNK)), n);
}

/* All of a chunk is this. */
static void is(int fd, size_t chunk, char want)
{
	char buf[CHUNK], same[CHUNK];
	size_t n = MIN((size_t)CHUNK, SIZE - chunk * CHUNK);

	memset(same, want, n);
	assert_int_equal(pread(fd, buf, n, (off_t)(chunk * CHUNK)), n);
	assert_memory_equal(buf, same, n);
}

/* As the guest's driver does it. */
static void guest_writes(size_t chunk, char old, char new)
{
	char mark = 1;

	if (old)
		fill(w.machine_to, chunk, old);
	assert_int_equal(pwrite(w.machine_marks, &mark, 1, (off_t)chunk), 1);
	fill(w.volume, chunk, new);
}

static int setup(void **state)
{
	struct stat st;

	w = (struct world){.engines = {.list = &kind,
	                               .count = 1,
	                               .volume_slot = VOLUME_SLOT,
	                               .volume_copy = begin,
	                               .volume_copied = ended},
	                   .m = ENGINE_MACHINE_EMPTY,
	                   .machine_to = -1,
	                   .machine_marks = -1};
	w.ms.engines = &w.engines;
	w.volume = memfd_create("volume", MFD_CLOEXEC);
	w.to = open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	assert_int_equal(ftruncate(w.volume, SIZE), 0);
	assert_true(dup2(w.volume, VOLUME_SLOT + 2) >= 0);
	assert_int_equal(fstat(w.volume, &st), 0);
	w.m.pid = getpid();
	w.m.pidfd = pidfd_open(getpid(), 0);
	w.m.control = dup(w.to); /* nobody speaks on it here */
	w.m.image.engine = &kind;
	w.m.volumes[2] =
	    (struct engine_volume){.size = SIZE, .fd = -1, .dev = st.st_dev, .ino = st.st_ino};
	fill(w.volume, 0, 'a');
	fill(w.volume, 2, 'c');
	fill(w.volume, 4, 'e');
	return 0;
}

static int teardown(void **state)
{
	close(VOLUME_SLOT + 2);
	closep(&w.volume);
	closep(&w.to);
	closep(&w.machine_to);
	closep(&w.machine_marks);
	engine_machine_fini(&w.m);
	return 0;
}

static void what_is_written_meanwhile_is_not_in_the_copy(void **state)
{
	struct machine_copy *c = NULL;
	struct err e = {0};
	struct stat st;

	assert_int_equal(machine_copy_begin(&w.ms, &w.m, 2, SIZE, w.to, &c, &e), 0);
	assert_true(ftruncate(w.machine_marks, 0) < 0); /* that would be our end */
	guest_writes(2, 'c', 'X');
	guest_writes(1, 0, 'Y');   /* a hole until now: nothing to be kept */
	guest_writes(4, 'e', 'Z'); /* the last one, which is shorter */
	assert_int_equal(machine_copy_finish(c, NULL, &e), 0);
	is(w.to, 0, 'a');
	is(w.to, 1, 0);
	is(w.to, 2, 'c');
	is(w.to, 3, 0);
	is(w.to, 4, 'e');
	assert_int_equal(fstat(w.to, &st), 0);
	assert_int_equal(st.st_size, SIZE);
	assert_int_equal(st.st_blocks * 512, 2 * CHUNK + 4096); /* as thin as it was */
	fill(w.machine_to, 0, '!'); /* it has that file for ever, and it is not the copy */
	is(w.to, 0, 'a');
}

static void what_the_machine_could_not_keep_fails_the_copy(void **state)
{
	struct machine_copy *c = NULL;
	struct err e = {0};

	assert_int_equal(machine_copy_begin(&w.ms, &w.m, 2, SIZE, w.to, &c, &e), 0);
	w.copied = -ENOSPC;
	assert_int_equal(machine_copy_finish(c, NULL, &e), -ENOSPC);
	assert_string_equal(e.kind, "disk_full");
}

static void whoever_cannot_wait_stops_it(void **state)
{
	struct machine_copy *c = NULL;
	atomic_bool stop = true;
	struct err e = {0};

	assert_int_equal(machine_copy_begin(&w.ms, &w.m, 2, SIZE, w.to, &c, &e), 0);
	assert_int_equal(machine_copy_finish(c, &stop, &e), -ECANCELED);
	assert_string_equal(e.kind, "conflict");
}

static void a_slot_without_a_volume_is_not_copied(void **state)
{
	struct machine_copy *c = NULL;
	struct err e = {0};

	assert_int_equal(machine_copy_begin(&w.ms, &w.m, 3, SIZE, w.to, &c, &e), -ENOENT);
	assert_int_equal(w.machine_to, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(what_is_written_meanwhile_is_not_in_the_copy, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(what_the_machine_could_not_keep_fails_the_copy, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(whoever_cannot_wait_stops_it, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_slot_without_a_volume_is_not_copied, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
