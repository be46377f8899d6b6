#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

static ino_t inode(int dirfd, const char *fmt, const char *a, const char *b)
{
	char name[256];
	struct stat st;

	snprintf(name, sizeof(name), fmt, a, b);
	assert_int_equal(fstatat(dirfd, name, &st, 0), 0);
	return st.st_ino;
}

static void a_snapshot_comes_back_as_it_was(void **state)
{
	struct fixture *f = *state;
	struct snapshot *s = NULL;
	struct err e;

	fixture_write(f, "one");
	fixture_check(f, "one");
	assert_int_equal(snapshot_load(&f->store, "one", NULL, SNAPSHOT_SIZES, &s, &e), 0);
	snapshot_free(s);
	assert_int_equal(count_entries(f->store.snapshots), 1); /* no temporary left */
	assert_int_equal(snapshot_write(&f->store, "one", &f->manifest, &f->memory, f->disks,
	                                f->state, &e),
	                 -EEXIST);
	assert_string_equal(e.kind, "snapshot_exists");
	fixture_check(f, "one");
}

static void layers_are_shared_and_go_with_the_last_snapshot(void **state)
{
	struct fixture *f = *state;
	char data[LAYER_NAME], map[LAYER_NAME];
	unsigned dirs, layers;
	struct snapshot *s = NULL;
	struct err e;
	ino_t ino;

	fixture_write(f, "one");
	/* Restored from disk, snapshotted again: nothing is copied. */
	assert_int_equal(snapshot_load(&f->store, "one", &f->host, SNAPSHOT_SIZES, &s, &e), 0);
	assert_int_equal(snapshot_write(&f->store, "two", &f->manifest, &s->memory, s->disks,
	                                s->state, &e),
	                 0);
	snapshot_free(s);
	layer_names(&f->memory.at[0]->digest, data, map);
	ino = inode(f->store.snapshots, "%s/%s", "one", data);
	assert_int_equal(inode(f->store.snapshots, "%s/%s", "two", data), ino);
	assert_int_equal(inode(f->store.layers, "%s", data, NULL), ino);
	assert_int_equal(count_entries(f->store.layers), 8); /* 4 layers, 4 maps */

	assert_int_equal(snapshot_delete(&f->store, "one", &e), 0);
	assert_int_equal(snapshot_gc(&f->store, &dirs, &layers), 0);
	assert_int_equal(dirs, 0);
	assert_int_equal(layers, 0);
	fixture_check(f, "two");
	fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_not_found", NULL);
	assert_int_equal(snapshot_delete(&f->store, "one", &e), -ENOENT);
	assert_string_equal(e.kind, "snapshot_not_found");

	assert_int_equal(snapshot_delete(&f->store, "two", &e), 0);
	assert_int_equal(unlinkat(f->dir, "disk", 0), 0); /* the machine's own name for it */
	assert_int_equal(snapshot_gc(&f->store, &dirs, &layers), 0);
	assert_int_equal(layers, 8);
	assert_int_equal(count_entries(f->store.layers), 0);
	assert_int_equal(count_entries(f->store.snapshots), 0);
}

static void gc_leaves_living_writers_alone(void **state)
{
	struct fixture *f = *state;
	autoclose int fd = -1;
	unsigned dirs;

	assert_int_equal(mkdirat(f->store.snapshots, ".tmp-x-0", 0700), 0);
	fd = openat(f->store.snapshots, ".tmp-x-0", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(openat(fd, "data.tmp", O_CREAT | O_WRONLY, 0600));
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(snapshot_gc(&f->store, &dirs, NULL), 0);
	assert_int_equal(dirs, 0);
	fixture_write(f, "x"); /* and a left-over does not stand in the way */
	assert_int_equal(flock(fd, LOCK_UN), 0);
	assert_int_equal(snapshot_gc(&f->store, &dirs, NULL), 0);
	assert_int_equal(dirs, 1);
	assert_int_equal(count_entries(f->store.snapshots), 1);
	fixture_check(f, "x");
}

static void names_cannot_leave_the_store(void **state)
{
	static const char *const bad[] = {"",    ".",     "..",  "../x", "a/b", ".tmp-x-0",
	                                  "-rf", "UPPER", "a b", "a\n",  "x."};
	struct fixture *f = *state;
	char too_long[SNAPSHOT_ID_MAX + 2];
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		fixture_refused(f, bad[i], SNAPSHOT_SIZES, "snapshot_invalid", NULL);
		assert_int_equal(snapshot_delete(&f->store, bad[i], &e), -EINVAL);
		assert_int_equal(snapshot_write(&f->store, bad[i], &f->manifest, &f->memory,
		                                f->disks, f->state, &e),
		                 -EINVAL);
	}
	memset(too_long, 'a', sizeof(too_long));
	too_long[SNAPSHOT_ID_MAX + 1] = 0;
	fixture_refused(f, too_long, SNAPSHOT_SIZES, "snapshot_invalid", NULL);
	too_long[SNAPSHOT_ID_MAX] = 0;
	fixture_write(f, too_long);
	fixture_check(f, too_long);
}

static void what_does_not_fit_together_is_not_written(void **state)
{
	struct fixture *f = *state;
	struct err e;

	f->manifest.memory_size += MAP_PAGE;
	assert_int_equal(snapshot_write(&f->store, "one", &f->manifest, &f->memory, f->disks,
	                                f->state, &e),
	                 -EINVAL);
	assert_string_equal(e.kind, "snapshot_invalid");
	f->manifest.memory_size -= MAP_PAGE;
	snprintf(f->manifest.disks[1].image_path, MANIFEST_PATH, "../root.img");
	assert_int_equal(snapshot_write(&f->store, "one", &f->manifest, &f->memory, f->disks,
	                                f->state, &e),
	                 -EINVAL);
	assert_string_equal(e.kind, "snapshot_invalid");
	assert_int_equal(count_entries(f->store.snapshots), 0);
}

static char *manifest_text(struct fixture *f, size_t *len)
{
	char *text = NULL;

	assert_int_equal(io_read_file(f->store.snapshots, "one/manifest.json", 1 << 20, &text, len),
	                 0);
	return text;
}

static void put_manifest(struct fixture *f, const char *text, size_t len)
{
	autoclose int fd = -1;

	assert_int_equal(unlinkat(f->store.snapshots, "one/manifest.json", 0), 0);
	fd = openat(f->store.snapshots, "one/manifest.json", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(io_write_full(fd, text, len), 0);
}

static void every_flipped_bit_of_a_manifest_is_seen(void **state)
{
	struct fixture *f = *state;
	autofree char *text = NULL;
	struct manifest m;
	struct err e;
	size_t len;

	fixture_write(f, "one");
	text = manifest_text(f, &len);
	for (size_t i = 0; i < len; i++) {
		for (int bit = 0; bit < 8; bit++) {
			text[i] ^= (char)(1 << bit);
			assert_int_equal(manifest_parse(text, len, &m, &e), -EBADMSG);
			assert_string_equal(e.kind, "snapshot_corrupt");
			text[i] ^= (char)(1 << bit);
		}
	}
	for (size_t cut = 0; cut < len; cut++)
		assert_int_equal(manifest_parse(text, cut, &m, &e), -EBADMSG);
	for (size_t i = 0; i < len; i += 41) { /* and the same through the files */
		text[i] ^= 0x20;
		put_manifest(f, text, len);
		fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_corrupt", &e);
		assert_non_null(strstr(e.text, "manifest.json"));
		text[i] ^= 0x20;
	}
	put_manifest(f, text, len);
	fixture_check(f, "one");
}

/* Replaces the first occurrence and repairs the digest: a forger, not a bad disk. */
static void forge(const char *text, const char *from, const char *to, char *ret, size_t room)
{
	const char *at = strstr(text, from);
	struct digest d;
	char hex[DIGEST_TEXT];

	assert_non_null(at);
	assert_true((size_t)snprintf(ret, room, "%.*s%s%s", (int)(at - text), text, to,
	                             at + strlen(from)) < room);
	assert_int_equal(digest_bytes(ret + 77, strlen(ret) - 77, &d), 0);
	digest_text(&d, hex);
	memcpy(ret + 11, hex, DIGEST_TEXT - 1);
}

static void forged_manifests_are_refused_by_their_content(void **state)
{
	static const struct {
		const char *from, *to, *kind;
	} cases[] = {
	    {"\"format\":1", "\"format\":2", "snapshot_foreign"},
	    {"\"format\":1", "\"format\":2,\"new\":{}", "snapshot_foreign"},
	    {"\"format\":1", "\"format\":\"1\"", "snapshot_corrupt"},
	    {"\"format\":1,", "", "snapshot_corrupt"},
	    {"\"format\":1", "\"format\":1,\"format\":1", "snapshot_corrupt"},
	    {"\"format\":1", "\"format\":1,\"extra\":1", "snapshot_corrupt"},
	    {"\"engine\":\"um\"", "\"engine\":\"vmm\"", "snapshot_foreign"},
	    {"\"engine\":\"um\"", "\"engine\":\"\"", "snapshot_corrupt"},
	    {"\"engine\":\"um\"", "\"engine\":\"u\\nm\"", "snapshot_corrupt"},
	    {"\"engine\":\"um\"", "\"engine\":\"u\\u0000m\"", "snapshot_corrupt"},
	    {"panda1", "panda2", "snapshot_foreign"},
	    {"\"sse2\"", "\"sse9\"", "snapshot_foreign"},
	    {"\"sse2\"", "2", "snapshot_corrupt"},
	    {"\"page_size\":4096", "\"page_size\":16384", "snapshot_corrupt"},
	    {"\"memory_size\":307200", "\"memory_size\":307201", "snapshot_corrupt"},
	    {"\"memory_size\":307200", "\"memory_size\":-4096", "snapshot_corrupt"},
	    {"\"memory_size\":307200", "\"memory_size\":303104", "snapshot_corrupt"},
	    {"\"memory_size\":307200", "\"memory_size\":3.0", "snapshot_corrupt"},
	    {"\"memory_size\":307200", "\"memory_size\":4611686018427387904", "snapshot_corrupt"},
	    {"images/root.img", "images/../../etc", "snapshot_corrupt"},
	    {"images/root.img", "/etc/passwd", "snapshot_corrupt"},
	    {"images/root.img", "images/none.img", "snapshot_incomplete"},
	    {"images/root.img", "layers", "snapshot_corrupt"},
	    {"\"name\":\"root\"", "\"name\":\"data\"", "snapshot_corrupt"},
	    {"\"size\":18", "\"size\":19", "snapshot_corrupt"},
	    {"\"pages\":", "\"pages\":1", "snapshot_corrupt"}, /* one more digit */
	    {"\"pages\":", "\"more\":1,\"pages\":", "snapshot_corrupt"},
	    {"\"created_at_ms\":1790000000000", "\"created_at_ms\":null", "snapshot_corrupt"},
	    {"\"parent\":null,", "", "snapshot_corrupt"},
	    {"\"digest\":\"", "\"digest\":\"0", "snapshot_corrupt"},
	};
	struct fixture *f = *state;
	autofree char *text = NULL;
	char forged[8192];
	struct err e;
	size_t len;

	fixture_write(f, "one");
	text = manifest_text(f, &len);
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		forge(text, cases[i].from, cases[i].to, forged, sizeof(forged));
		put_manifest(f, forged, strlen(forged));
		fixture_refused(f, "one", SNAPSHOT_SIZES, cases[i].kind, &e);
	}
	forge(text, "\"parent\":null", "\"parent\":\"p1\"", forged, sizeof(forged));
	put_manifest(f, forged, strlen(forged)); /* the forger's tools work: this one is fine */
	fixture_refused(f, "two", SNAPSHOT_SIZES, "snapshot_not_found", &e);
	{
		struct snapshot *s = NULL;

		assert_int_equal(snapshot_load(&f->store, "one", &f->host, SNAPSHOT_FULL, &s, &e),
		                 0);
		assert_string_equal(s->manifest.parent, "p1");
		snapshot_free(s);
	}
}

static void every_missing_file_is_named(void **state)
{
	struct fixture *f = *state;
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	struct err e;
	unsigned n = 0;
	int dir;

	fixture_write(f, "one");
	dir = openat(f->store.snapshots, "one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fdopendir(dir);
	while ((de = readdir(d))) {
		if (de->d_name[0] == '.')
			continue;
		assert_int_equal(renameat(dir, de->d_name, f->dir, "away"), 0);
		fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_incomplete", &e);
		assert_non_null(strstr(e.text, de->d_name));
		assert_non_null(strstr(e.text, "'one'"));
		assert_int_equal(renameat(f->dir, "away", dir, de->d_name), 0);
		n++;
	}
	assert_true(n >= 10); /* manifest, state, 4 layers, 4 maps; readdir may show one twice */
	fixture_check(f, "one");
}

static void every_cut_or_flipped_file_is_named(void **state)
{
	struct fixture *f = *state;
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	struct err e;
	int dir;

	fixture_write(f, "one");
	dir = openat(f->store.snapshots, "one", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fdopendir(dir);
	while ((de = readdir(d))) {
		autoclose int fd = -1;
		struct stat st;
		off_t at;
		char c;

		if (de->d_name[0] == '.')
			continue;
		assert_int_equal(fchmodat(dir, de->d_name, 0600, 0), 0);
		fd = openat(dir, de->d_name, O_RDWR | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(fstat(fd, &st), 0);
		at = lseek(fd, 0, SEEK_DATA); /* the first byte that says something */
		assert_int_equal(io_pread_full(fd, &c, 1, at), 0);
		c ^= 4;
		assert_int_equal(io_pwrite_full(fd, &c, 1, at), 0);
		fixture_refused(f, "one", SNAPSHOT_FULL, "snapshot_corrupt", &e);
		assert_non_null(strstr(e.text, de->d_name));
		c ^= 4;
		assert_int_equal(io_pwrite_full(fd, &c, 1, at), 0);
		fixture_check(f, "one");

		assert_int_equal(ftruncate(fd, st.st_size + 1), 0);
		fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_corrupt", &e);
		assert_non_null(strstr(e.text, de->d_name));
		assert_int_equal(ftruncate(fd, st.st_size), 0);
		fixture_check(f, "one");
	}
}

static void a_changed_image_is_seen(void **state)
{
	struct fixture *f = *state;
	struct err e;

	fixture_write(f, "one");
	assert_int_equal(io_replace_file(f->dir, "images/root.img", "Not really a file system", 25,
	                                 0444, true),
	                 0);
	fixture_refused(f, "one", SNAPSHOT_FULL, "snapshot_corrupt", &e);
	assert_non_null(strstr(e.text, "images/root.img"));
	assert_int_equal(io_replace_file(f->dir, "images/root.img", "short", 5, 0444, true), 0);
	fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_corrupt", &e);
	assert_int_equal(unlinkat(f->dir, "images/root.img", 0), 0);
	assert_int_equal(symlinkat("/etc/hostname", f->dir, "images/root.img"), 0);
	fixture_refused(f, "one", SNAPSHOT_SIZES, "snapshot_io", &e); /* we do not follow it */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_fixture(a_snapshot_comes_back_as_it_was),
	    with_fixture(layers_are_shared_and_go_with_the_last_snapshot),
	    with_fixture(gc_leaves_living_writers_alone),
	    with_fixture(names_cannot_leave_the_store),
	    with_fixture(what_does_not_fit_together_is_not_written),
	    with_fixture(every_flipped_bit_of_a_manifest_is_seen),
	    with_fixture(forged_manifests_are_refused_by_their_content),
	    with_fixture(every_missing_file_is_named),
	    with_fixture(every_cut_or_flipped_file_is_named),
	    with_fixture(a_changed_image_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
