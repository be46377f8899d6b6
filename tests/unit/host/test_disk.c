/*
 * Those who write on the host's disk: more than they may, or until it is nearly full.
 */
#include "fake/bed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "host/disk.h"
#include "host/disk_use.h"
#include "host/host_internal.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

enum { ROOM_MB = 64 };

/* The file that its machine writes on, opened as the machine has it. Close it. */
static int open_top(struct bed *b, const struct sandbox *sb)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	struct stat st;
	char path[200];

	snprintf(path, sizeof(path), "%s/disks/%s", b->data_dir, sb->machine);
	d = opendir(path);
	assert_non_null(d);
	while ((de = readdir(d)))
		if (fstatat(dirfd(d), de->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) &&
		    (st.st_mode & 0200))
			return openat(dirfd(d), de->d_name, O_RDWR | O_CLOEXEC);
	fail_msg("nothing in %s can be written", path);
	return -1;
}

/* Room that the file takes without being longer: as a kernel does that writes all over it. */
static void take(struct bed *b, const struct sandbox *sb, uint64_t bytes)
{
	autoclose int fd = open_top(b, sb);

	assert_int_equal(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes), 0);
}

static void until_looked_at(struct bed *b, const struct sandbox *sb)
{
	bed_until(b, !strcmp(sb->disk.machine, sb->machine) && sb->disk.size > 0);
}

static void a_limit_is_what_was_asked_for_and_room_for_tables(void **state)
{
	assert_int_equal(disk_limit(8 * GIB, 0), 8 * GIB + ROOM_MB * MIB);
	assert_int_equal(disk_limit(8 * GIB, 8), 8 * GIB + ROOM_MB * MIB);
	assert_int_equal(disk_limit(8 * GIB, 1000), 8 * GIB + ROOM_MB * MIB);
	assert_int_equal(disk_limit(8 * GIB, 1), GIB + 256 * MIB + ROOM_MB * MIB);
	assert_int_equal(disk_limit(2 * MIB, 1), 2 * MIB + ROOM_MB * MIB);
}

static void a_disk_that_is_made_longer_ends_its_machine(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *other = bed_create_plain(b);
	autoclose int fd = open_top(b, sb);

	until_looked_at(b, sb);
	assert_int_equal(ftruncate(fd, BED_DISK_BYTES + 4096), 0);
	bed_until(b, sb->state == SANDBOX_FAILED);
	assert_non_null(strstr(sb->end, "longer"));
	assert_int_equal(b->host->disk.ends, 1);
	assert_int_equal(other->state, SANDBOX_RUNNING);
	assert_int_equal(bed_kill(b, sb), 0);
}

static void who_holds_more_than_its_disk_has_is_paused_for_good(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	take(b, sb, BED_DISK_BYTES + (ROOM_MB + 8) * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && !sb->ops);
	assert_int_equal(sb->hold, HOLD_OVERRUN);
	assert_int_equal(b->host->disk.overruns, 1);
	assert_int_equal(sandbox_need_running(sb, &b->err), -EBUSY);
	assert_string_equal(b->err.kind, "sandbox_paused");
	assert_non_null(strstr(b->err.text, "discard"));
	assert_int_equal(bed_resume(b, sb), -ENOSPC);
	assert_string_equal(b->err.kind, "disk_full");
	/* A client that pauses it, too, frees it from nothing. */
	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_resume(b, sb), -ENOSPC);
	bed_reopen(b);
	assert_int_equal(bed_resume(b, b->host->newest), -ENOSPC);
	assert_int_equal(bed_kill(b, b->host->newest), 0);
}

static void who_goes_on_writing_then_is_ended(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	take(b, sb, BED_DISK_BYTES + (ROOM_MB + 8) * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && sb->disk.held_bytes);
	take(b, sb, BED_DISK_BYTES + (2 * ROOM_MB + 16) * MIB);
	bed_until(b, sb->state == SANDBOX_FAILED);
	assert_non_null(strstr(sb->end, "when it was paused"));
}

/* Whoever is asked to stand still and says no cannot write for ever. */
static void who_cannot_be_paused_is_asked_again(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	fake_fail(b->fake, FAKE_CALL_PAUSE, 1, EIO);
	take(b, sb, BED_DISK_BYTES + (ROOM_MB + 8) * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && !sb->ops &&
	                 fake_count(b->fake, FAKE_CALL_PAUSE) == 2);
	assert_int_equal(sb->hold, HOLD_OVERRUN);
}

static void nearly_fill_the_disk(struct bed *b, bool full)
{
	b->host->config.disk_reserve = full ? (uint64_t)1 << 60 : 1;
	b->config.disk_reserve = b->host->config.disk_reserve;
}

static void who_writes_when_the_disk_is_nearly_full_waits_until_there_is_room(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *other = bed_create_plain(b);

	until_looked_at(b, sb);
	nearly_fill_the_disk(b, true);
	bed_until(b, b->host->disk.low);
	take(b, sb, 4 * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && !sb->ops);
	assert_int_equal(sb->hold, HOLD_RESERVE);
	assert_int_equal(b->host->disk.holds, 1);
	assert_int_equal(other->state, SANDBOX_RUNNING); /* it does not write */
	assert_int_equal(bed_resume(b, sb), -ENOSPC);
	nearly_fill_the_disk(b, false);
	bed_until(b, sb->state == SANDBOX_RUNNING && !sb->ops);
	assert_int_equal(sb->hold, HOLD_NONE);
}

static void the_next_pandad_lets_it_go_on(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	until_looked_at(b, sb);
	nearly_fill_the_disk(b, true);
	bed_until(b, b->host->disk.low);
	take(b, sb, 4 * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && !sb->ops);
	bed_reopen(b);
	sb = b->host->newest;
	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(sb->hold, HOLD_RESERVE);
	nearly_fill_the_disk(b, false);
	bed_until(b, sb->state == SANDBOX_RUNNING && !sb->ops);
}

static void what_a_client_paused_is_the_clients_to_resume(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *other;

	until_looked_at(b, sb);
	nearly_fill_the_disk(b, true);
	bed_until(b, b->host->disk.low);
	take(b, sb, 4 * MIB);
	bed_until(b, sb->state == SANDBOX_PAUSED && !sb->ops);
	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(sb->hold, HOLD_NONE);
	nearly_fill_the_disk(b, false);
	bed_until(b, !b->host->disk.low);
	other = bed_create_plain(b);
	until_looked_at(b, other);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(bed_resume(b, sb), 0);
}

/* ---- what each tenant takes ---- */

static void until_counted(struct bed *b)
{
	uint64_t was = b->host->uses.counted_ms;

	disk_use_changed(b->host);
	bed_until(b, b->host->uses.counted_ms != was && !b->host->uses.busy);
}

static void what_a_tenant_takes_is_counted_once(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot first, second;
	uint64_t running, saved;

	take(b, sb, 4 * MIB);
	until_counted(b);
	running = disk_use_of(b->host, "t");
	assert_true(running >= 4 * MIB && running < 6 * MIB);
	assert_int_equal(disk_use_of(b->host, "other"), 0);
	/* The files of a snapshot are those of the machine. */
	assert_int_equal(bed_snapshot(b, sb, "one", &first), 0);
	assert_int_equal(bed_snapshot(b, sb, "two", &second), 0);
	until_counted(b);
	saved = disk_use_of(b->host, "t");
	assert_true(saved >= 4 * MIB && saved < 8 * MIB);
	assert_int_equal(bed_hibernate(b, sb), 0);
	until_counted(b);
	assert_true(disk_use_of(b->host, "t") >= 4 * MIB);
	assert_true(disk_use_of(b->host, "t") < 8 * MIB);
	assert_int_equal(bed_snapshot_delete(b, first.id), 0);
	assert_int_equal(bed_snapshot_delete(b, second.id), 0);
	assert_int_equal(bed_kill(b, sb), 0);
	until_counted(b);
	assert_int_equal(disk_use_of(b->host, "t"), 0);
}

static void volumes_count_with_the_blocks_they_have(void **state)
{
	struct bed *b = *state;
	char path[200];
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	autoclose int fd = -1;

	assert_int_equal(bed_volume_create(b, "v", 1024), 0);
	until_counted(b);
	assert_true(disk_use_of(b->host, "t") < 100 * MIB);
	snprintf(path, sizeof(path), "%s/volumes", b->data_dir);
	d = opendir(path);
	while ((de = readdir(d)) && de->d_name[0] == '.')
		;
	fd = openat(dirfd(d), de->d_name, O_RDWR | O_CLOEXEC);
	assert_int_equal(fallocate(fd, 0, 0, (off_t)(100 * MIB)), 0);
	until_counted(b);
	assert_true(disk_use_of(b->host, "t") >= 100 * MIB);
	assert_int_equal(bed_volume_delete(b, "v"), 0);
	until_counted(b);
	assert_int_equal(disk_use_of(b->host, "t"), 0);
}

static void who_takes_all_it_may_gets_nothing_more(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct quota quota = {.disk_mb = 4};
	struct err e = {0};

	until_counted(b);
	assert_int_equal(host_admit(b->host, "t", 1, 0, &quota, &e), 0);
	take(b, sb, 5 * MIB);
	until_counted(b);
	assert_int_equal(host_admit(b->host, "t", 1, 0, &quota, &e), -EDQUOT);
	assert_string_equal(e.kind, "quota_exceeded");
	assert_non_null(strstr(e.text, "4 MiB"));
	assert_int_equal(snapshot_admit(b->host, "t", &quota, &e), -EDQUOT);
	assert_int_equal(host_admit(b->host, "other", 1, 0, &quota, &e), 0);
	/* What is there goes on: a wake is no new thing. */
	assert_int_equal(host_admit(b->host, "t", 0, 0, &quota, &e), 0);
	quota.disk_mb = 0;
	assert_int_equal(host_admit(b->host, "t", 1, 0, &quota, &e), 0);
	/* A share of the disk that all tenants have alike. */
	b->host->config.tenant_disk_percent = 100;
	b->host->disk.total_bytes = 300 * MIB;
	assert_int_equal(disk_use_max(b->host, NULL), 300 * MIB);
	assert_int_equal(disk_use_max(b->host, &(struct quota){.disk_mb = 7}), 7 * MIB);
	b->host->config.tenant_disk_percent = 1;
	assert_int_equal(host_admit(b->host, "t", 1, 0, NULL, &e), -EDQUOT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_limit_is_what_was_asked_for_and_room_for_tables),
	    bed_test(a_disk_that_is_made_longer_ends_its_machine),
	    bed_test(who_holds_more_than_its_disk_has_is_paused_for_good),
	    bed_test(who_goes_on_writing_then_is_ended),
	    bed_test(who_cannot_be_paused_is_asked_again),
	    bed_test(who_writes_when_the_disk_is_nearly_full_waits_until_there_is_room),
	    bed_test(the_next_pandad_lets_it_go_on),
	    bed_test(what_a_client_paused_is_the_clients_to_resume),
	    bed_test(what_a_tenant_takes_is_counted_once),
	    bed_test(volumes_count_with_the_blocks_they_have),
	    bed_test(who_takes_all_it_may_gets_nothing_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
