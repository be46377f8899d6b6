/*
 * A really full disk: a tmpfs of one megabyte in a mount namespace of our own. Needs root.
 */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include "base/io.h"

static void a_full_disk_is_reported_and_leaves_room_to_go_on(void **state)
{
	static const char block[MAP_PAGE] = {1};
	struct fixture f;
	struct err e = {0};
	unsigned entries;
	int fd, r;

	fixture_init(&f); /* TMPDIR is the small tmpfs */
	entries = count_entries(f.dir);
	fd = openat(f.dir, "ballast", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	while ((r = io_write_full(fd, block, sizeof(block))) == 0)
		;
	assert_int_equal(r, -ENOSPC);
	close(fd);
	assert_int_equal(snapshot_write(&f.store, "one", &f.manifest, &f.memory, f.disks, f.state,
	                                &e),
	                 -ENOSPC);
	assert_string_equal(e.kind, "snapshot_no_space");
	assert_int_equal(count_entries(f.store.snapshots), 0);
	fixture_refused(&f, "one", SNAPSHOT_SIZES, "snapshot_not_found", NULL);
	assert_int_equal(unlinkat(f.dir, "ballast", 0), 0);
	assert_int_equal(count_entries(f.dir), entries);
	fixture_write(&f, "one");
	fixture_check(&f, "one");
	fixture_fini(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_full_disk_is_reported_and_leaves_room_to_go_on),
	};
	char path[] = "/tmp/panda-nospace.XXXXXX";
	int r;

	if (!mkdtemp(path)) {
		perror(path);
		return 1;
	}
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", path, "tmpfs", 0, "size=1m") < 0) {
		fprintf(stderr, "skipped: cannot mount a small tmpfs here (%m); run as root\n");
		rmdir(path);
		return 77;
	}
	setenv("TMPDIR", path, 1);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	umount2(path, MNT_DETACH); /* a failed test may have left files open */
	rmdir(path);
	return r;
}
