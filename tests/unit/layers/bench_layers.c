/*
 * How fast a machine is written to disk and loaded again: one layer of so many MiB of random
 * bytes (default 256) under a directory (default TMPDIR). Prints, asserts nothing.
 * usage: bench_layers [MIB]
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"
#include "testlib.h"

#include "base/macro.h"
#include "layers/snapshot.h"

static uint64_t began_ns, began_cpu_ns;

static void begin(void)
{
	began_ns = mono_ns();
	began_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

static void report(const char *what, uint64_t bytes)
{
	double s = (double)(mono_ns() - began_ns) / 1e9;
	double cpu = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - began_cpu_ns) / 1e9;

	printf("%-34s %9.3f ms, of that cpu %9.3f ms", what, s * 1e3, cpu * 1e3);
	if (bytes) /* by cpu time: other work on the machine does not count */
		printf(" %6.0f MB/s", (double)bytes / 1e6 / cpu);
	printf("\n");
}

static struct layer *random_layer(uint64_t pages, uint64_t step)
{
	uint64_t page[MAP_PAGE / 8], seed = 88172645463325252;
	struct map map = {0};
	struct layer *l = NULL;
	int fd;

	assert_int_equal(layer_create_memfd("bench", pages, &fd), 0);
	for (uint64_t i = 0; i < pages; i += step) {
		for (size_t k = 0; k < ARRAY_LEN(page); k++) {
			rnd(&seed);
			page[k] = seed;
		}
		assert_int_equal(io_pwrite_full(fd, page, MAP_PAGE, (off_t)(i * MAP_PAGE)), 0);
		assert_int_equal(map_add(&map, i, 1), 0);
	}
	assert_int_equal(layer_seal_memfd(fd, pages, &map, &l), 0);
	close(fd);
	return l;
}

static void plain_hash(const struct layer *l, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, l->fd, 0);
	struct digest d;

	assert_ptr_not_equal(p, MAP_FAILED);
	begin();
	assert_int_equal(digest_bytes(p, bytes, &d), 0);
	report("SHA-256 alone", bytes);
	munmap(p, bytes);
}

static void run(void **state)
{
	uint64_t mib = *(uint64_t *)*state, pages = mib << 8, bytes = mib << 20;
	struct manifest m = {.engine = "um", .kernel = "k", .memory_size = bytes};
	struct set memory = {.pages = pages};
	struct layer *l = random_layer(pages, 1), *small = random_layer(pages, 64);
	struct snapshot_store store;
	struct snapshot *s = NULL;
	char path[64];
	struct err e;
	int dir = tmpdir_make(path), fd = memfd_create("state", MFD_CLOEXEC);

	assert_int_equal(snapshot_store_open(dir, &store), 0);
	plain_hash(l, bytes);
	begin();
	assert_int_equal(save_layer(l, dir), 0);
	report("save: hash, copy, sync", bytes);
	begin();
	assert_int_equal(layer_verify(l, dir, &e), 0);
	report("verify: read, hash", bytes);
	assert_int_equal(set_push(&memory, l), 0);
	assert_int_equal(set_push(&memory, small), 0);
	for (uint64_t i = 0; i < 14; i++) { /* a chain of 16 */
		struct layer *more = random_layer(pages, 65 + i);

		assert_int_equal(set_push(&memory, more), 0);
		layer_unref(more);
	}
	assert_int_equal(snapshot_write(&store, "b", &m, &memory, NULL, fd, &e), 0);
	begin();
	assert_int_equal(snapshot_load(&store, "b", NULL, SNAPSHOT_SIZES, &s, &e), 0);
	report("load, sizes only", 0);
	snapshot_free(s);
	begin();
	assert_int_equal(snapshot_write(&store, "c", &m, &memory, NULL, fd, &e), 0);
	report("snapshot again, all layers shared", 0);
	layer_unref(small);
	layer_unref(l);
	set_fini(&memory);
	manifest_fini(&m);
	snapshot_store_close(&store);
	close(fd);
	close(dir);
	tmpdir_remove(path);
}

int main(int argc, char **argv)
{
	uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
	const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(run, &mib)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
