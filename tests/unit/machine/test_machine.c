/*
 * machine/machine.h: the books. The engine is one that only counts; the machine process is this
 * test itself, which holds layers at the fd numbers where a machine would.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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

enum { PAGES = 16, MEMORY_SLOT = 300, DISK_SLOT = 400, VOLUME_SLOT = 500, NET_SLOT = 510 };

struct counting_engine {
	struct engines engines;
	int stopped;
	pid_t stopped_pid;
	struct layer *next; /* what the next snapshot seals */
	bool snapshot_fails;
	bool held; /* it stands still */
};

static int take_up(struct engines *engines, const char *id, int dirfd, pid_t pid,
                   const struct engine_image *image, struct engine_machine *ret, struct err *e)
{
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	int r = engine_image_copy(image, &m.image);

	if (r < 0)
		return r;
	snprintf(m.id, sizeof(m.id), "%s", id);
	m.pid = pid;
	m.dirfd = dup(dirfd);
	*ret = m;
	return 0;
}

static int seal(struct engines *engines, struct engine_machine *m, struct engine_image *ret,
                struct engine_snapshot_info *info, struct err *e)
{
	struct counting_engine *c = (struct counting_engine *)engines;

	if (c->snapshot_fails)
		return err_set(e, EIO, "snapshot_failed", "no");
	assert_int_equal(set_push(&m->image.memory, c->next), 0);
	return engine_image_copy(&m->image, ret);
}

static int seal_and_hold(struct engines *engines, struct engine_machine *m,
                         struct engine_image *ret, struct engine_snapshot_info *info, struct err *e)
{
	int r = seal(engines, m, ret, info, e);

	((struct counting_engine *)engines)->held = r == 0;
	return r;
}

static int go_on(struct engines *engines, struct engine_machine *m, struct err *e)
{
	struct counting_engine *c = (struct counting_engine *)engines;

	assert_true(c->held);
	c->held = false;
	return 0;
}

static void forget(struct engines *engines, const char *id)
{
}

static int end(struct engines *engines, const char *id, pid_t pid, struct err *e)
{
	struct counting_engine *c = (struct counting_engine *)engines;

	c->stopped++;
	c->stopped_pid = pid;
	return 0;
}

static int nothing_unbooked(struct engines *engines, int dirfd, int disk, uint64_t pages,
                            struct map *ret)
{
	return -ENOENT;
}

static bool no_idea(struct engines *engines, const char *id, char *ret, size_t n)
{
	return false;
}

static int refuse(struct engines *engines, const struct engine_start *s, struct engine_machine *ret,
                  struct err *e)
{
	/* An engine that fails half way leaves files. */
	close(openat(s->dirfd, "console.log", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	return err_set(e, EIO, "boot_failed", "it does not start");
}

struct world {
	char run[64];
	struct counting_engine engine;
	struct machines ms;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct err e;

	static const struct engine kind = {.name = "counting"};

	w->engine.engines = (struct engines){.list = &kind,
	                                     .count = 1,
	                                     .memory_slot = MEMORY_SLOT,
	                                     .disk_slot = DISK_SLOT,
	                                     .volume_slot = VOLUME_SLOT,
	                                     .net_slot = NET_SLOT,
	                                     .forget = forget,
	                                     .start = refuse,
	                                     .unbooked = nothing_unbooked,
	                                     .adopt = take_up,
	                                     .snapshot = seal,
	                                     .snapshot_hold = seal_and_hold,
	                                     .go_on = go_on,
	                                     .why_ended = no_idea,
	                                     .stop = end};
	snprintf(w->run, sizeof(w->run), "/tmp/panda-machine-XXXXXX");
	assert_non_null(mkdtemp(w->run));
	assert_int_equal(machines_open(&w->ms, &w->engine.engines, w->run, &e), 0);
	*state = w;
	return 0;
}

static void empty(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	autoclosedir DIR *d = fdopendir(fd);

	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] != '.')
			unlinkat(fd, e->d_name, 0);
	unlinkat(parent, name, AT_REMOVEDIR);
}

static int teardown(void **state)
{
	struct world *w = *state;
	autoclosedir DIR *d = fdopendir(dup(w->ms.dir));
	char path[128];

	rewinddir(d);
	for (struct dirent *e; (e = readdir(d));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
		    unlinkat(w->ms.dir, e->d_name, 0) < 0)
			empty(w->ms.dir, e->d_name);
	machines_close(&w->ms);
	snprintf(path, sizeof(path), "%s/machines", w->run);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(rmdir(w->run), 0);
	free(w);
	return 0;
}

/* A directory with this text as its book. */
static int write_text(struct world *w, const char *id, const char *text)
{
	int dir;

	assert_true(mkdirat(w->ms.dir, id, 0700) == 0 || errno == EEXIST);
	dir = openat(w->ms.dir, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(dir >= 0);
	if (text)
		assert_int_equal(io_replace_file(dir, "machine.json", text, strlen(text), 0600,
		                                 true),
		                 0);
	return dir;
}

/* Field 22 of /proc/self/stat, found in another way than machine.c does. */
static unsigned long long own_start_time(void)
{
	autofree char *text = NULL;
	char *p, *save = NULL, *word;

	assert_int_equal(io_read_file(AT_FDCWD, "/proc/self/stat", 4096, &text, NULL), 0);
	p = strrchr(text, ')') + 2;
	word = strtok_r(p, " ", &save);
	for (int field = 3; field < 22; field++)
		word = strtok_r(NULL, " ", &save);
	return strtoull(word, NULL, 10);
}

/* The book of a machine that has no layers yet and is this process. */
static void write_alive(struct world *w, const char *id, long long started)
{
	char text[400];

	snprintf(text, sizeof(text),
	         "{\"id\": \"%s\", \"parent\": \"\", \"pid\": %d, \"start_time\": %lld,"
	         " \"memory_size\": %u, \"created_at_ms\": 5, \"generation\": 3,"
	         " \"memory\": [], \"disks\": []}",
	         id, (int)getpid(), started, PAGES * MAP_PAGE);
	close(write_text(w, id, text));
}

static struct layer *new_layer(uint64_t page)
{
	AUTO(map_fini) struct map map = {0};
	autoclose int fd = -1;
	struct layer *l = NULL;

	assert_int_equal(layer_create_memfd("layer", PAGES, &fd), 0);
	assert_int_equal(map_add(&map, page, 2), 0);
	assert_int_equal(layer_seal_memfd(fd, PAGES, &map, &l), 0);
	return l;
}

static void only_valid_ids_are_names(void **state)
{
	static const char *const bad[] = {"",    ".", "..",  "a/b", "/",   "-a",         "A",
	                                  "a b", "ä", "a\n", "a.b", "a%s", "../machines"};
	char long_id[ENGINE_ID_MAX + 2];
	struct world *w = *state;
	struct machine_info info;
	struct err e;

	memset(long_id, 'a', sizeof(long_id));
	long_id[ENGINE_ID_MAX + 1] = 0;
	for (size_t i = 0; i <= ARRAY_LEN(bad); i++) {
		const char *id = i < ARRAY_LEN(bad) ? bad[i] : long_id;
		struct engine_image image = ENGINE_IMAGE_EMPTY;
		struct engine_start s = {.id = id, .image = &image};

		e = (struct err){0};
		assert_int_equal(machine_look(&w->ms, id, &info, &e), -EINVAL);
		assert_string_equal(e.kind, "bad_id");
		assert_int_equal(machine_remove(&w->ms, id, &e), -EINVAL);
		assert_int_equal(machine_start(&w->ms, &s, NULL, 1, NULL, &e), -EINVAL);
	}
	assert_int_equal(w->engine.stopped, 0);
	long_id[ENGINE_ID_MAX] = 0;
	assert_int_equal(machine_look(&w->ms, long_id, &info, &e), -ENOENT);
	assert_string_equal(e.kind, "machine_not_found");
}

static void new_ids_are_valid_and_differ(void **state)
{
	char a[ENGINE_ID_MAX + 1], b[ENGINE_ID_MAX + 1];
	struct world *w = *state;
	struct machine_info info;

	machine_new_id(a);
	machine_new_id(b);
	assert_string_not_equal(a, b);
	assert_int_equal(machine_look(&w->ms, a, &info, NULL), -ENOENT); /* not -EINVAL */
}

static void a_link_is_no_machine(void **state)
{
	struct world *w = *state;
	struct machine_info info;

	close(write_text(w, "real", "{}"));
	assert_int_equal(symlinkat("real", w->ms.dir, "link"), 0);
	assert_int_equal(machine_look(&w->ms, "real", &info, NULL), 0);
	assert_int_equal(machine_look(&w->ms, "link", &info, NULL), -ENOENT);
}

static void a_broken_book_is_a_machine_that_never_started(void **state)
{
	static const char *const texts[] = {
	    NULL, "", "{", "[]", "7", "{\"pid\": 1, \"pid\": 2}", "{\"id\": \"x\", \"pid\"",
	};
	struct world *w = *state;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct engine_machine m = ENGINE_MACHINE_EMPTY;
		struct machine_info info;
		struct guest *g = NULL;
		struct err e;

		close(write_text(w, "m", texts[i]));
		assert_int_equal(machine_look(&w->ms, "m", &info, &e), 0);
		assert_false(info.alive);
		assert_string_equal(info.end, "never started");
		assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), -ESRCH);
		assert_string_equal(e.kind, "machine_gone");
		assert_int_equal(machine_guest(&w->ms, "m", &g, &e), -ESRCH);
	}
	/* It can be cleared away; nobody is killed for it. */
	assert_int_equal(machine_remove(&w->ms, "m", NULL), 0);
	assert_int_equal(w->engine.stopped, 1);
	assert_int_equal(w->engine.stopped_pid, -1);
}

static void odd_values_in_a_book_kill_nobody(void **state)
{
	static const char *const texts[] = {
	    "{\"pid\": -1, \"start_time\": 5}",
	    "{\"pid\": 0, \"start_time\": 0}",
	    "{\"pid\": 4611686018427387904, \"start_time\": 5}",
	    "{\"pid\": \"1\", \"start_time\": 5}",
	    "{\"pid\": 1, \"start_time\": 0}",
	    "{\"pid\": 1, \"start_time\": \"x\"}",
	    "{\"pid\": 1}",
	    "{}",
	};
	struct world *w = *state;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct machine_info info;

		close(write_text(w, "m", texts[i]));
		assert_int_equal(machine_look(&w->ms, "m", &info, NULL), 0);
		assert_false(info.alive);
		assert_int_equal(machine_remove(&w->ms, "m", NULL), 0);
		assert_int_equal(w->engine.stopped_pid, -1);
	}
}

/* Its pid lives on in another process: that one must not be taken for the machine. */
static void a_pid_that_was_given_to_another_is_not_the_machine(void **state)
{
	struct world *w = *state;
	struct machine_info info;

	write_alive(w, "m", (long long)own_start_time());
	assert_int_equal(machine_look(&w->ms, "m", &info, NULL), 0);
	assert_true(info.alive);
	assert_int_equal(info.pid, getpid());
	assert_int_equal(info.generation, 3);
	write_alive(w, "m", (long long)own_start_time() - 1);
	assert_int_equal(machine_look(&w->ms, "m", &info, NULL), 0);
	assert_false(info.alive);
	assert_int_equal(machine_remove(&w->ms, "m", NULL), 0);
	assert_int_equal(w->engine.stopped_pid, -1);
}

static void the_log_says_why_a_machine_ended(void **state)
{
	static const struct {
		const char *log, *end;
	} cases[] = {
	    {"booting\n", "killed"},
	    {"x\nreboot: Power down\n", "powered off"},
	    {"x\nreboot: Restarting system\n", "rebooted"},
	    {"a\nKernel panic - not syncing: \033[31mboo\nmore\n",
	     "crashed: Kernel panic - not syncing: ?[31mboo"},
	};
	struct world *w = *state;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		autoclose int dir = write_text(w, "m", "{\"pid\": 1, \"start_time\": 0}");
		struct machine_info info;

		assert_int_equal(io_replace_file(dir, "console.log", cases[i].log,
		                                 strlen(cases[i].log), 0600, true),
		                 0);
		assert_int_equal(machine_look(&w->ms, "m", &info, NULL), 0);
		assert_string_equal(info.end, cases[i].end);
	}
}

/* A machine with one sealed layer that it holds where it should. */
static struct layer *sealed_once(struct world *w)
{
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct layer *l = new_layer(3);

	write_alive(w, "m", (long long)own_start_time());
	w->engine.next = l;
	assert_int_equal(machine_snapshot(&w->ms, "m", &image, NULL, NULL), 0);
	engine_image_fini(&image);
	assert_true(dup2(l->fd, MEMORY_SLOT) == MEMORY_SLOT);
	return l;
}

static void what_the_books_say_is_found_again(void **state)
{
	struct world *w = *state;
	struct layer *l = sealed_once(w);
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct machine_info info;
	struct err e = {0};

	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), 0);
	assert_int_equal(m.image.memory_size, PAGES * MAP_PAGE);
	assert_int_equal(m.image.memory.n, 1);
	assert_true(map_equal(&m.image.memory.at[0]->map, &l->map));
	assert_int_equal(machine_look(&w->ms, "m", &info, &e), 0);
	assert_int_equal(info.generation, 3);
	assert_int_equal(info.created_at_ms, 5);
	engine_machine_fini(&m);
	close(MEMORY_SLOT);
	layer_unref(l);
}

static void another_file_in_the_place_of_a_layer_is_refused(void **state)
{
	struct world *w = *state;
	struct layer *l = sealed_once(w), *other = new_layer(3);
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct err e = {0};

	/* It looks the same and is sealed, but it is not the one we saw sealed. */
	assert_true(dup2(other->fd, MEMORY_SLOT) == MEMORY_SLOT);
	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), -EBADMSG);
	assert_string_equal(e.kind, "machine_gone");
	close(MEMORY_SLOT);
	assert_true(machine_adopt(&w->ms, "m", &m, &e) < 0);
	layer_unref(other);
	layer_unref(l);
}

static void a_broken_map_file_is_refused(void **state)
{
	struct world *w = *state;
	struct layer *l = sealed_once(w);
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	autoclose int dir = openat(w->ms.dir, "m", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct err e = {0};
	struct stat st;
	char name[64];

	assert_int_equal(fstat(l->fd, &st), 0);
	snprintf(name, sizeof(name), "%llx-%llx.map", (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino);
	assert_int_equal(io_replace_file(dir, name, "PANDAMAP", 8, 0600, true), 0);
	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), -EBADMSG);
	assert_int_equal(unlinkat(dir, name, 0), 0);
	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), -EBADMSG);
	close(MEMORY_SLOT);
	layer_unref(l);
}

static void a_snapshot_that_fails_changes_no_book(void **state)
{
	struct world *w = *state;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct machine_info before, after;
	struct err e;

	write_alive(w, "m", (long long)own_start_time());
	assert_int_equal(machine_look(&w->ms, "m", &before, NULL), 0);
	w->engine.snapshot_fails = true;
	assert_int_equal(machine_snapshot(&w->ms, "m", &image, NULL, &e), -EIO);
	assert_null(image.memory.at);
	assert_int_equal(machine_look(&w->ms, "m", &after, NULL), 0);
	assert_memory_equal(&before, &after, sizeof(before));
}

/* The book of a machine with volumes in slots 2 (this file) and 99 (which there is not). */
static void write_with_volume(struct world *w, int fd)
{
	struct stat st;
	char text[600];

	assert_int_equal(fstat(fd, &st), 0);
	snprintf(text, sizeof(text),
	         "{\"id\": \"m\", \"parent\": \"\", \"pid\": %d, \"start_time\": %llu,"
	         " \"memory_size\": %u, \"memory\": [], \"disks\": [], \"volumes\": ["
	         "{\"slot\": 2, \"size\": 8192, \"read_only\": true, \"dev\": %llu, \"ino\": %llu},"
	         " {\"slot\": 99, \"size\": 8192}, 7]}",
	         (int)getpid(), own_start_time(), PAGES * MAP_PAGE, (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino);
	close(write_text(w, "m", text));
}

static void volumes_are_booked_and_another_file_in_their_place_is_refused(void **state)
{
	struct world *w = *state;
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	autoclose int file = memfd_create("volume", MFD_CLOEXEC), got = -1;
	autoclose int other = memfd_create("volume", MFD_CLOEXEC);
	struct err e = {0};

	write_with_volume(w, file);
	assert_true(dup2(file, VOLUME_SLOT + 2) == VOLUME_SLOT + 2);
	/* A snapshot writes the book anew. */
	w->engine.next = new_layer(3);
	assert_int_equal(machine_snapshot(&w->ms, "m", &image, NULL, &e), 0);
	assert_true(dup2(w->engine.next->fd, MEMORY_SLOT) == MEMORY_SLOT);
	engine_image_fini(&image);
	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), 0);
	assert_int_equal(m.volumes[2].size, 8192);
	assert_true(m.volumes[2].read_only);
	assert_int_equal(m.volumes[0].size, 0);
	assert_int_equal(machine_volume_file(&w->ms, &m, 2, &got, &e), 0);
	assert_int_equal(fcntl(got, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(machine_volume_file(&w->ms, &m, 0, &got, &e), -ENOENT);
	assert_int_equal(machine_volume_file(&w->ms, &m, 99, &got, &e), -ENOENT);
	assert_true(dup2(other, VOLUME_SLOT + 2) == VOLUME_SLOT + 2);
	assert_int_equal(machine_volume_file(&w->ms, &m, 2, &got, &e), -EBADMSG);
	close(VOLUME_SLOT + 2);
	assert_true(machine_volume_file(&w->ms, &m, 2, &got, &e) < 0);
	engine_machine_fini(&m);
	close(MEMORY_SLOT);
	layer_unref(w->engine.next);
}

static void a_tap_is_booked_and_taken_as_the_very_same_open_file(void **state)
{
	struct world *w = *state;
	struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	autoclose int tap = memfd_create("tap", MFD_CLOEXEC), got = -1;
	struct err e = {0};
	char text[300];

	snprintf(text, sizeof(text),
	         "{\"id\": \"m\", \"parent\": \"\", \"pid\": %d, \"start_time\": %llu,"
	         " \"memory_size\": %u, \"memory\": [], \"disks\": [], \"net\": true}",
	         (int)getpid(), own_start_time(), PAGES * MAP_PAGE);
	close(write_text(w, "m", text));
	assert_true(dup2(tap, NET_SLOT) == NET_SLOT);
	/* A snapshot writes the book anew. */
	w->engine.next = new_layer(3);
	assert_int_equal(machine_snapshot(&w->ms, "m", &image, NULL, &e), 0);
	assert_true(dup2(w->engine.next->fd, MEMORY_SLOT) == MEMORY_SLOT);
	engine_image_fini(&image);
	assert_int_equal(machine_adopt(&w->ms, "m", &m, &e), 0);
	assert_true(m.net);
	m.pidfd = pidfd_open(getpid(), 0);
	assert_int_equal(machine_net_fd(&w->ms, &m, &got, &e), 0);
	assert_int_equal(lseek(tap, 77, SEEK_SET), 77);
	assert_int_equal(lseek(got, 0, SEEK_CUR), 77);
	assert_int_equal(fcntl(got, F_GETFD), FD_CLOEXEC);
	close(NET_SLOT);
	assert_int_equal(machine_net_fd(&w->ms, &m, &got, &e), -EBADF);
	m.net = false;
	assert_int_equal(machine_net_fd(&w->ms, &m, &got, &e), -ENOENT);
	engine_machine_fini(&m);
	close(MEMORY_SLOT);
	layer_unref(w->engine.next);
}

struct rest {
	struct world *w;
	int calls, answer;
};

static int at_rest(void *arg, const struct engine_machine *m, struct err *e)
{
	struct rest *r = arg;

	assert_true(r->w->engine.held);
	r->calls++;
	return r->answer ? err_set(e, -r->answer, "no_copy", "no room") : 0;
}

static void volumes_are_looked_after_while_the_machine_stands_still(void **state)
{
	struct world *w = *state;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct rest rest = {.w = w};
	struct err e = {0};

	write_alive(w, "m", (long long)own_start_time());
	w->engine.next = new_layer(3);
	assert_int_equal(machine_snapshot_with(&w->ms, "m", at_rest, &rest, &image, NULL, &e), 0);
	assert_int_equal(rest.calls, 1);
	assert_false(w->engine.held);
	assert_int_equal(image.memory.n, 1);
	engine_image_fini(&image);

	/* A copy that fails gives no image; the machine goes on, and what was sealed is booked. */
	assert_true(dup2(w->engine.next->fd, MEMORY_SLOT) == MEMORY_SLOT);
	layer_unref(w->engine.next);
	w->engine.next = new_layer(5);
	rest.answer = -ENOSPC;
	assert_int_equal(machine_snapshot_with(&w->ms, "m", at_rest, &rest, &image, NULL, &e),
	                 -ENOSPC);
	assert_string_equal(e.kind, "no_copy");
	assert_null(image.memory.at);
	assert_false(w->engine.held);
	assert_true(dup2(w->engine.next->fd, MEMORY_SLOT + 1) == MEMORY_SLOT + 1);
	rest.answer = 0;
	w->engine.snapshot_fails = true;
	assert_int_equal(machine_snapshot_with(&w->ms, "m", at_rest, &rest, &image, NULL, &e),
	                 -EIO);
	assert_int_equal(rest.calls, 2);
	close(MEMORY_SLOT);
	close(MEMORY_SLOT + 1);
	layer_unref(w->engine.next);
}

static void a_start_that_fails_leaves_no_directory(void **state)
{
	struct world *w = *state;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct engine_start s = {.id = "m", .image = &image};
	struct machine_info info;
	struct err e;

	assert_int_equal(machine_start(&w->ms, &s, NULL, 1, NULL, &e), -EIO);
	assert_string_equal(e.kind, "boot_failed");
	assert_int_equal(machine_look(&w->ms, "m", &info, NULL), -ENOENT);
	/* And it does not touch one that is there. */
	close(write_text(w, "m", "{}"));
	assert_int_equal(machine_start(&w->ms, &s, NULL, 1, NULL, &e), -EEXIST);
	assert_string_equal(e.kind, "machine_exists");
	assert_int_equal(machine_look(&w->ms, "m", &info, NULL), 0);
}

static void count(const struct machine_info *m, void *arg)
{
	++*(int *)arg;
}

static void all_machines_are_listed_and_nothing_else(void **state)
{
	struct world *w = *state;
	int n = 0;

	close(write_text(w, "a", "{"));
	close(write_text(w, "b", NULL));
	close(write_text(w, "UPPER", "{}"));
	close(openat(w->ms.dir, "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	assert_int_equal(machine_each(&w->ms, count, &n, NULL), 0);
	assert_int_equal(n, 2);
}

#define WITH_WORLD(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    WITH_WORLD(only_valid_ids_are_names),
	    WITH_WORLD(new_ids_are_valid_and_differ),
	    WITH_WORLD(a_link_is_no_machine),
	    WITH_WORLD(a_broken_book_is_a_machine_that_never_started),
	    WITH_WORLD(odd_values_in_a_book_kill_nobody),
	    WITH_WORLD(a_pid_that_was_given_to_another_is_not_the_machine),
	    WITH_WORLD(the_log_says_why_a_machine_ended),
	    WITH_WORLD(what_the_books_say_is_found_again),
	    WITH_WORLD(another_file_in_the_place_of_a_layer_is_refused),
	    WITH_WORLD(a_broken_map_file_is_refused),
	    WITH_WORLD(a_snapshot_that_fails_changes_no_book),
	    WITH_WORLD(volumes_are_booked_and_another_file_in_their_place_is_refused),
	    WITH_WORLD(a_tap_is_booked_and_taken_as_the_very_same_open_file),
	    WITH_WORLD(volumes_are_looked_after_while_the_machine_stands_still),
	    WITH_WORLD(a_start_that_fails_leaves_no_directory),
	    WITH_WORLD(all_machines_are_listed_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
