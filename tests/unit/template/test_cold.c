/*
 * A disk of several layers becomes one file, whatever else the host does meanwhile.
 */
#include "template/template.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* clang-format off */
#include <cmocka.h>
/* clang-format on */

#include "base/cleanup.h"
#include "base/err.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "machine/engine.h"

enum {
	PAGES = 4096,
	CHILDREN = 8,
	CHILD_MS = 10, /* a child has our fds for so long, as one does that is not a program yet */
};

static atomic_bool stop;

static void *start_children(void *arg)
{
	(void)arg;
	while (!stop) {
		pid_t pids[CHILDREN];

		for (size_t i = 0; i < CHILDREN; i++) {
			pids[i] = fork();
			if (pids[i] == 0) {
				usleep(CHILD_MS * 1000);
				_exit(0);
			}
			usleep(CHILD_MS * 1000 / CHILDREN);
		}
		for (size_t i = 0; i < CHILDREN; i++)
			waitpid(pids[i], NULL, 0);
	}
	return NULL;
}

static struct layer *layer_of(int dir, const char *name, int byte)
{
	struct map map = {0};
	struct layer *l = NULL;
	autofree char *page = malloc(MAP_PAGE);
	int fd;

	memset(page, byte, MAP_PAGE);
	assert_int_equal(layer_create_file(dir, name, PAGES, &fd), 0);
	for (unsigned i = 0; i < PAGES; i += 2)
		assert_int_equal(pwrite(fd, page, MAP_PAGE, (off_t)i * MAP_PAGE), MAP_PAGE);
	close(fd);
	assert_int_equal(map_add(&map, 0, PAGES), 0);
	assert_int_equal(layer_seal_file(dir, name, PAGES, &map, &l), 0);
	map_fini(&map);
	return l;
}

/*
 * Each child of pandad has all its fds until it runs a program. One that is born while the file is
 * written has it open for writing for a moment longer, and the file cannot be sealed until then.
 */
static void a_disk_becomes_one_file_while_other_threads_start_machines(void **state)
{
	char path[] = "/tmp/panda-cold.XXXXXX";
	AUTO(engine_image_fini) struct engine_image first = ENGINE_IMAGE_EMPTY;
	struct err e = {0};
	pthread_t thread;
	struct layer *l;
	int dir;

	(void)state;
	assert_non_null(mkdtemp(path));
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	l = layer_of(dir, "first", 'a');
	first.ndisks = 1;
	first.disks[0] =
	    (struct engine_disk){.size = (uint64_t)PAGES * MAP_PAGE, .layers = {.pages = PAGES}};
	assert_int_equal(set_push(&first.disks[0].layers, l), 0);
	layer_unref(l);
	assert_int_equal(pthread_create(&thread, NULL, start_children, NULL), 0);
	for (int i = 0; i < 10; i++) {
		AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
		char byte = 0;
		int r;

		assert_int_equal(engine_image_copy(&first, &cold), 0);
		r = template_cold(&cold, 1 << 20, dir, "cold", &e);
		if (r < 0) {
			stop = true;
			pthread_join(thread, NULL);
			fail_msg("round %d: %s", i, e.text);
		}
		assert_int_equal(cold.disks[0].layers.n, 1);
		assert_int_equal(pread(cold.disks[0].layers.at[0]->fd, &byte, 1, 2 * MAP_PAGE), 1);
		assert_int_equal(byte, 'a');
		unlinkat(dir, "cold0", 0);
	}
	stop = true;
	pthread_join(thread, NULL);
	unlinkat(dir, "first", 0);
	close(dir);
	assert_int_equal(rmdir(path), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_disk_becomes_one_file_while_other_threads_start_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
