/*
 * Volumes: made, attached to one writer or many readers, grown, copied, taken away.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/host_internal.h"
#include "host/volume_internal.h"

static struct sandbox *create_with(struct bed *b, const char *name, const char *path, bool ro)
{
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	spec.volumes = json_pack("[{s:s, s:s, s:b}]", "name", name, "path", path, "read_only", ro);
	sb = bed_create(b, &spec);
	json_decref(spec.volumes);
	return sb;
}

static uint64_t size_mb(struct bed *b, const char *name)
{
	struct volume_info v;

	return volume_get(b->host, "t", name, &v, &b->err) == 0 ? v.size_bytes >> 20 : 0;
}

static void what_is_written_outlives_the_sandbox(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	sb = create_with(b, "data", "/data", false);
	assert_non_null(sb);
	assert_int_equal(bed_write(b, sb, "/data/note", "for others"), 0);
	assert_int_equal(bed_write(b, sb, "/note", "mine"), 0);
	assert_int_equal(bed_kill(b, sb), 0);
	sb = create_with(b, "data", "/elsewhere", false);
	assert_non_null(sb);
	assert_string_equal(bed_read(b, sb, "/elsewhere/note"), "for others");
	assert_null(bed_read(b, sb, "/note"));
	bed_check_leftovers(b);
}

static void names_and_sizes_are_checked(void **state)
{
	static const char *const bad[] = {"", ".hidden", "a/b", "a b", "../x"};
	struct bed *b = *state;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(bed_volume_create(b, bad[i], 16), -EINVAL);
		assert_string_equal(b->err.kind, "bad_request");
	}
	assert_int_equal(bed_volume_create(b, "v", VOLUME_MB_MIN - 1), -EINVAL);
	assert_int_equal(bed_volume_create(b, "v", VOLUME_MB_MAX + 1), -EINVAL);
	assert_int_equal(bed_volume_create(b, "v", VOLUME_MB_MIN), 0);
	assert_int_equal(bed_volume_create(b, "v", VOLUME_MB_MIN), -EEXIST);
	assert_string_equal(b->err.kind, "exists");
	bed_check_leftovers(b);
}

static void one_writer_or_many_readers(void **state)
{
	struct bed *b = *state;
	struct sandbox *writer, *reader;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	writer = create_with(b, "data", "/data", false);
	assert_non_null(writer);
	assert_null(create_with(b, "data", "/data", false));
	assert_string_equal(b->err.kind, "volume_busy");
	assert_null(create_with(b, "data", "/data", true));
	assert_int_equal(bed_write(b, writer, "/data/note", "read me"), 0);
	assert_int_equal(bed_volume_delete(b, "data"), -EBUSY);
	assert_int_equal(bed_kill(b, writer), 0);
	for (unsigned i = 0; i < 3; i++) {
		reader = create_with(b, "data", "/data", true);
		assert_non_null(reader);
		assert_string_equal(bed_read(b, reader, "/data/note"), "read me");
		assert_int_equal(bed_write(b, reader, "/data/note", "x"), -EROFS);
	}
	assert_null(create_with(b, "data", "/data", false));
	assert_string_equal(b->err.kind, "volume_busy");
	bed_check_leftovers(b);
}

static void one_that_is_not_there_or_badly_named_is_refused(void **state)
{
	struct bed *b = *state;

	assert_null(create_with(b, "none", "/data", false));
	assert_string_equal(b->err.kind, "volume_not_found");
	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_null(create_with(b, "data", "data", false));
	assert_string_equal(b->err.kind, "bad_request");
	assert_null(create_with(b, "data", "/", false));
	assert_int_equal(bed_volume_delete(b, "data"), 0);
	assert_int_equal(bed_volume_delete(b, "data"), -ENOENT);
	assert_int_equal(b->host->count, 0);
	bed_check_leftovers(b);
}

static void one_comes_and_goes_while_the_sandbox_runs(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *other = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(json_array_size(sb->spec.volumes), 1);
	assert_int_equal(bed_write(b, sb, "/data/note", "moving"), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/again", false), -EINVAL);
	assert_int_equal(bed_volume_attach(b, other, "data", "/data", false), -EBUSY);
	assert_int_equal(bed_volume_detach(b, sb, "data", false), 0);
	assert_int_equal(bed_volume_detach(b, sb, "data", false), -ENOENT);
	assert_null(bed_read(b, sb, "/data/note"));
	assert_int_equal(bed_volume_attach(b, other, "data", "/mnt", false), 0);
	assert_string_equal(bed_read(b, other, "/mnt/note"), "moving");
	bed_check_leftovers(b);
}

static void only_so_many_in_one_sandbox(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char name[16], path[16];

	for (unsigned i = 0; i <= SANDBOX_VOLUMES_MAX; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		snprintf(path, sizeof(path), "/v%u", i);
		assert_int_equal(bed_volume_create(b, name, 16), 0);
		assert_int_equal(bed_volume_attach(b, sb, name, path, false),
		                 i < SANDBOX_VOLUMES_MAX ? 0 : -EINVAL);
	}
	assert_int_equal(bed_write(b, sb, "/v0/note", "zero"), 0);
	assert_int_equal(bed_write(b, sb, "/v3/note", "three"), 0);
	/* A slot that is free again is used again. */
	assert_int_equal(bed_volume_detach(b, sb, "v1", false), 0);
	assert_int_equal(bed_volume_attach(b, sb, "v4", "/v4", false), 0);
	assert_string_equal(bed_read(b, sb, "/v0/note"), "zero");
	assert_string_equal(bed_read(b, sb, "/v3/note"), "three");
	bed_check_leftovers(b);
}

static void one_that_is_used_stays_unless_it_is_forced_away(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char *argv[] = {"sleep", "100", NULL};
	struct guest_exec x = {.argv = argv, .cwd = "/data"};
	struct guest *g;
	uint64_t id;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "kept"), 0);
	assert_int_equal(machine_guest(&b->host->machines, sb->machine, &g, &b->err), 0);
	assert_int_equal(guest_exec_start(g, &x, &id, &b->err), 0);
	guest_free(g);
	assert_int_equal(bed_volume_detach(b, sb, "data", false), -EBUSY);
	assert_string_equal(b->err.kind, "volume_busy");
	assert_false(sb->volumes_pending);
	assert_string_equal(bed_read(b, sb, "/data/note"), "kept");
	assert_int_equal(bed_volume_detach(b, sb, "data", true), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_string_equal(bed_read(b, sb, "/data/note"), "kept");
	bed_check_leftovers(b);
}

/* The machine, its guest: whoever says no, it is as it was before. */
static void an_attach_that_fails_changes_nothing(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	fake_fail(b->fake, FAKE_CALL_ATTACH, 1, EIO);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), -EIO);
	assert_int_equal(json_array_size(sb->spec.volumes), 0);
	bed_check_leftovers(b);
	bed_rule(b, "refuse", "{\"mount\": {\"err\": 117, \"text\": \"damaged\"}}");
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), -EUCLEAN);
	assert_int_equal(json_array_size(sb->spec.volumes), 0);
	bed_rule(b, "refuse", NULL);
	bed_check_leftovers(b);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	fake_fail(b->fake, FAKE_CALL_DETACH, 1, EIO);
	assert_int_equal(bed_volume_detach(b, sb, "data", false), -EIO);
	assert_int_equal(json_array_size(sb->spec.volumes), 1);
	bed_check_leftovers(b);
	bed_rule(b, "refuse", "{\"umount\": {\"err\": 5, \"text\": \"no\"}}");
	assert_int_equal(bed_volume_detach(b, sb, "data", false), -EIO);
	bed_rule(b, "refuse", NULL);
	assert_int_equal(json_array_size(sb->spec.volumes), 1);
}

static void it_grows_with_and_without_a_writer(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_resize(b, "data", 24), 0);
	assert_int_equal(size_mb(b, "data"), 24);
	assert_int_equal(bed_volume_resize(b, "data", 20), -EINVAL);
	assert_int_equal(bed_volume_resize(b, "data", 24), 0); /* it is already */
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "small"), 0);
	assert_int_equal(bed_volume_resize(b, "data", 32), 0);
	assert_int_equal(size_mb(b, "data"), 32);
	assert_int_equal(fake_count(b->fake, FAKE_CALL_GROW), 1);
	assert_string_equal(bed_read(b, sb, "/data/note"), "small");
	/* The file has grown, its file system has not: that is told, and is made good later. */
	fake_fail(b->fake, FAKE_CALL_GROW, 1, EIO);
	assert_int_equal(bed_volume_resize(b, "data", 40), -EIO);
	assert_non_null(strstr(b->err.text, "has grown, but not its file system"));
	assert_int_equal(size_mb(b, "data"), 40);
	bed_check_leftovers(b);
}

static void a_copy_has_what_it_was_made_from(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *reader;
	struct volume_info v;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "then"), 0);
	assert_int_equal(bed_volume_copy(b, "data", "copy", false), 0);
	assert_int_equal(bed_volume_copy(b, "data", "moment", true), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "now"), 0);
	assert_int_equal(volume_get(b->host, "t", "moment", &v, &b->err), 0);
	assert_true(v.snapshot);
	assert_string_equal(v.source, "data");
	reader = create_with(b, "copy", "/copy", false);
	assert_non_null(reader);
	assert_string_equal(bed_read(b, reader, "/copy/note"), "then");
	/* A snapshot is read by many and written by none. */
	assert_null(create_with(b, "moment", "/m", false));
	assert_string_equal(b->err.kind, "conflict");
	reader = create_with(b, "moment", "/m", true);
	assert_non_null(reader);
	assert_string_equal(bed_read(b, reader, "/m/note"), "then");
	assert_int_equal(bed_volume_resize(b, "moment", 32), -EBUSY);
	assert_int_equal(bed_volume_copy(b, "moment", "again", false), 0);
	bed_check_leftovers(b);
}

static void a_copy_that_fails_leaves_nothing(void **state)
{
	static const enum fake_call calls[] = {FAKE_CALL_COPY, FAKE_CALL_COPIED};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "then"), 0);
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		fake_fail(b->fake, calls[i], 1, EIO);
		if (bed_volume_copy(b, "data", "copy", false) == 0) { /* blocks were shared */
			assert_int_equal(bed_volume_delete(b, "copy"), 0);
			continue;
		}
		assert_int_equal(size_mb(b, "copy"), 0);
		assert_int_equal(b->host->volume_copies, 0);
		bed_check_leftovers(b);
	}
	bed_rule(b, "refuse", "{\"freeze\": {\"err\": 5, \"text\": \"no\"}}");
	assert_int_equal(bed_volume_copy(b, "data", "copy", false), -EIO);
	bed_rule(b, "refuse", NULL);
	bed_check_leftovers(b);
	assert_int_equal(bed_volume_copy(b, "data", "data", false), -EEXIST);
	assert_int_equal(bed_volume_copy(b, "none", "copy", false), -ENOENT);
	assert_int_equal(b->host->volume_copies, 0);
}

static void a_fork_has_copies_of_its_own(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[2];

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_create(b, "more", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_volume_attach(b, sb, "more", "/more", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "before"), 0);
	assert_int_equal(bed_write(b, sb, "/more/note", "and more"), 0);
	assert_int_equal(bed_fork(b, sb, 2, child), 2);
	assert_int_equal(bed_write(b, sb, "/data/note", "the parent's"), 0);
	assert_int_equal(bed_write(b, child[0], "/data/note", "the first's"), 0);
	assert_string_equal(bed_read(b, child[1], "/data/note"), "before");
	assert_string_equal(bed_read(b, child[0], "/data/note"), "the first's");
	assert_string_equal(bed_read(b, child[0], "/more/note"), "and more");
	assert_string_equal(bed_read(b, sb, "/data/note"), "the parent's");
	bed_check_leftovers(b);
	assert_int_equal(bed_kill(b, child[0]), 0);
	assert_int_equal(bed_volume_detach(b, child[1], "data", false), 0);
	bed_check_leftovers(b); /* their copies are gone */
	assert_string_equal(bed_read(b, sb, "/data/note"), "the parent's");
}

static void readers_share_what_their_parent_reads(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", true), 0);
	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	assert_int_equal(bed_exec(b, child, "true", NULL), 0);
	assert_int_equal(bed_volume_delete(b, "data"), -EBUSY);
	bed_check_leftovers(b);
}

static void a_sleeping_one_keeps_what_it_has(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "asleep"), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_null(create_with(b, "data", "/data", true));
	assert_string_equal(b->err.kind, "volume_busy");
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_string_equal(bed_read(b, sb, "/data/note"), "asleep");
	/* Another one can be given to it, which wakes it. */
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_volume_create(b, "more", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "more", "/more", false), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_string_equal(bed_read(b, sb, "/data/note"), "asleep");
	bed_check_leftovers(b);
}

static void one_that_failed_gives_its_volumes_back(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *other;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "left behind"), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	bed_crash_machine(b, sb);
	other = create_with(b, "data", "/data", false);
	assert_non_null(other);
	assert_string_equal(bed_read(b, other, "/data/note"), "left behind");
	/* And cannot be put back while another has them. */
	assert_int_equal(bed_rewind(b, sb, NULL, 1), -EBUSY);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	assert_int_equal(bed_kill(b, other), 0);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_string_equal(bed_read(b, sb, "/data/note"), "left behind");
	bed_check_leftovers(b);
}

static void a_volume_does_not_go_back(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_checkpoint(b, sb, "without", NULL), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "then"), 0);
	assert_int_equal(bed_checkpoint(b, sb, "with", NULL), 0);
	assert_int_equal(bed_write(b, sb, "/data/note", "now"), 0);
	assert_int_equal(bed_rewind(b, sb, "with", 0), 0);
	assert_string_equal(bed_read(b, sb, "/data/note"), "now");
	assert_int_equal(bed_rewind(b, sb, "without", 0), 0);
	assert_string_equal(bed_read(b, sb, "/data/note"), "now");
	assert_int_equal(bed_write(b, sb, "/data/note", "and works"), 0);
	bed_check_leftovers(b);
}

static void a_quota_counts_them_and_their_size(void **state)
{
	struct bed *b = *state;
	struct quota count = {.volumes = 1}, mb = {.volumes_mb = 40};
	struct err e;

	assert_int_equal(bed_volume_create(b, "one", 16), 0);
	assert_int_equal(volume_admit(b->host, "t", 16, true, 0, &count, &e), -EDQUOT);
	assert_string_equal(e.kind, "quota_exceeded");
	assert_int_equal(volume_admit(b->host, "t", 16, false, 0, &count, &e), 0);
	assert_int_equal(volume_admit(b->host, "t", 24, true, 0, &mb, &e), 0);
	assert_int_equal(volume_admit(b->host, "t", 25, true, 0, &mb, &e), -EDQUOT);
	assert_int_equal(volume_admit(b->host, "t", 16, true, UINT64_MAX / 2, NULL, &e), -ENOSPC);
	assert_string_equal(e.kind, "disk_full");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(what_is_written_outlives_the_sandbox),
	    bed_test(names_and_sizes_are_checked),
	    bed_test(one_writer_or_many_readers),
	    bed_test(one_that_is_not_there_or_badly_named_is_refused),
	    bed_test(one_comes_and_goes_while_the_sandbox_runs),
	    bed_test(only_so_many_in_one_sandbox),
	    bed_test(one_that_is_used_stays_unless_it_is_forced_away),
	    bed_test(an_attach_that_fails_changes_nothing),
	    bed_test(it_grows_with_and_without_a_writer),
	    bed_test(a_copy_has_what_it_was_made_from),
	    bed_test(a_copy_that_fails_leaves_nothing),
	    bed_test(a_fork_has_copies_of_its_own),
	    bed_test(readers_share_what_their_parent_reads),
	    bed_test(a_sleeping_one_keeps_what_it_has),
	    bed_test(one_that_failed_gives_its_volumes_back),
	    bed_test(a_volume_does_not_go_back),
	    bed_test(a_quota_counts_them_and_their_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
