/*
 * What the next pandad makes of every state a record can be in, with a machine that runs, one that
 * has ended and none at all, with and without a hibernation in the store.
 */
#include "fake/bed.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "db/db.h"
#include "db/db_internal.h"
#include "host/host_internal.h"
#include "host/preview.h"

enum machine { ALIVE, DEAD, NONE, MACHINES };

enum outcome {
	GONE = SANDBOX_STATES, /* no record any more */
};

#define FAILED     SANDBOX_FAILED
#define RUNNING    SANDBOX_RUNNING
#define PAUSED     SANDBOX_PAUSED
#define HIBERNATED SANDBOX_HIBERNATED

/* [state on record][saved][machine] */
static const int outcomes[SANDBOX_STATES][2][MACHINES] = {
    /*                         alive       dead        none */
    [SANDBOX_CREATING] = {{GONE, GONE, GONE}, {GONE, GONE, GONE}},
    [SANDBOX_RUNNING] = {{RUNNING, FAILED, FAILED}, {RUNNING, HIBERNATED, HIBERNATED}},
    [SANDBOX_PAUSED] = {{PAUSED, FAILED, FAILED}, {PAUSED, HIBERNATED, HIBERNATED}},
    [SANDBOX_HIBERNATING] = {{RUNNING, FAILED, FAILED}, {HIBERNATED, HIBERNATED, HIBERNATED}},
    [SANDBOX_HIBERNATED] = {{FAILED, FAILED, FAILED}, {HIBERNATED, HIBERNATED, HIBERNATED}},
    [SANDBOX_WAKING] = {{FAILED, FAILED, FAILED}, {HIBERNATED, HIBERNATED, HIBERNATED}},
    [SANDBOX_KILLING] = {{GONE, GONE, GONE}, {GONE, GONE, GONE}},
    [SANDBOX_FAILED] = {{FAILED, FAILED, FAILED}, {FAILED, FAILED, FAILED}},
    [SANDBOX_REWINDING] = {{RUNNING, FAILED, FAILED}, {RUNNING, HIBERNATED, HIBERNATED}},
};

static void set_record(struct bed *b, const char *id, enum sandbox_state to)
{
	char path[200];
	struct db *db;

	snprintf(path, sizeof(path), "%s/panda.db", b->data_dir);
	assert_int_equal(db_open(path, &db, &b->err), 0);
	assert_int_equal(db_run(db, &b->err, "UPDATE sandboxes SET state = ? WHERE id = ?", "tt",
	                        sandbox_state_record(to), id),
	                 0);
	if (to == SANDBOX_FAILED) /* as it says why */
		assert_int_equal(db_run(db, &b->err,
		                        "UPDATE sandboxes SET doc = json_set(doc, '$.end', 'x')"
		                        " WHERE id = ?",
		                        "t", id),
		                 0);
	db_close(db);
}

/* A snapshot of what it is now, under the name of its hibernation; it goes on running. */
static void save_as_hibernation(struct bed *b, struct sandbox *sb)
{
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	char id[SNAPSHOT_ID_MAX + 1];

	hibernate_id(sb->id, id);
	assert_int_equal(machine_snapshot(&b->host->machines, sb->machine, &image, NULL, &b->err),
	                 0);
	assert_int_equal(machine_save(&image, &b->host->store, id, NULL, &b->err), 0);
}

static void put_machine(struct bed *b, pid_t pid, const char *id, enum machine m)
{
	if (m == ALIVE)
		return;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	if (m == NONE) {
		b->fake = fake_engine_new(b->rules, b->lifeline[0]);
		struct machines ms;

		assert_int_equal(machines_open(&ms, &b->fake->seam, b->run_dir, &b->err), 0);
		assert_int_equal(machine_remove(&ms, id, &b->err), 0);
		machines_close(&ms);
		b->fake->seam.free(&b->fake->seam);
	}
}

static void look_at(struct bed *b, const char *id, enum sandbox_state was, bool saved,
                    enum machine m)
{
	int want = outcomes[was][saved][m];
	struct sandbox *sb = host_find(b->host, "t", id);

	if (want == GONE) {
		if (sb || b->host->count)
			fail_msg("%s, %s, machine %d: is there", sandbox_state_record(was),
			         saved ? "saved" : "not saved", m);
		return;
	}
	if (!sb || (int)sb->state != want)
		fail_msg("%s, %s, machine %d: is %s, should be %s", sandbox_state_record(was),
		         saved ? "saved" : "not saved", m,
		         sb ? sandbox_state_record(sb->state) : "gone",
		         sandbox_state_record((enum sandbox_state)want));
	if (want == PAUSED)
		assert_int_equal(bed_resume(b, sb), 0);
	if (want == HIBERNATED)
		assert_int_equal(bed_wake_up(b, sb), 0);
	if (want != FAILED) {
		assert_recalls(sb, 0, "still here");
		assert_int_equal(bed_exec(b, sb, "exit 6", NULL), 6);
	}
}

static void every_record_with_every_machine(void **state)
{
	struct bed *b = *state;

	for (unsigned i = 0; i < SANDBOX_STATES * 2 * MACHINES; i++) {
		enum sandbox_state was = i / (2 * MACHINES);
		bool saved = i / MACHINES % 2;
		enum machine m = i % MACHINES;
		struct sandbox *sb = bed_create_plain(b);
		char id[SANDBOX_ID + 1];
		pid_t pid = sb->pid;

		memcpy(id, sb->id, sizeof(id));
		bed_remember(sb, 0, "still here");
		if (saved)
			save_as_hibernation(b, sb);
		bed_close_host(b);
		put_machine(b, pid, id, m);
		set_record(b, id, was);
		bed_open_host(b);
		look_at(b, id, was, saved, m);
		if (b->host->count) {
			bed_until(b, !b->host->newest->ops);
			bed_check_leftovers(b);
			assert_int_equal(bed_kill(b, b->host->newest), 0);
		}
		bed_check_leftovers(b);
	}
}

static void machines_without_a_record_are_ended(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(record_delete(sb, &b->err), 0);
	bed_reopen(b);
	assert_int_equal(b->host->count, 0);
	bed_check_leftovers(b);
}

static void snapshots_without_a_record_are_removed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot known, unknown;

	assert_int_equal(bed_snapshot(b, sb, "", &known), 0);
	assert_int_equal(bed_snapshot(b, sb, "", &unknown), 0);
	assert_int_equal(db_run(b->host->db, &b->err, "DELETE FROM snapshots WHERE id = ?", "t",
	                        unknown.id),
	                 0);
	save_as_hibernation(b, sb); /* of one that runs: it is not what it sleeps in */
	bed_reopen(b);
	assert_true(bed_stored(b, known.id));
	assert_false(bed_stored(b, unknown.id));
	bed_check_leftovers(b);
}

static void records_without_a_snapshot_are_removed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot snap;

	assert_int_equal(bed_snapshot(b, sb, "", &snap), 0);
	assert_int_equal(depot_drop_snapshot(&b->host->depot, snap.id, &b->err), 0);
	bed_reopen(b);
	assert_int_equal(host_snapshot_get(b->host, "t", snap.id, &snap, &b->err), -ENOENT);
	bed_check_leftovers(b);
}

static void a_record_that_cannot_be_read_is_left_alone(void **state)
{
	static const char *const changes[] = {
	    "UPDATE sandboxes SET doc = '{'",
	    "UPDATE sandboxes SET state = 'dreaming'",
	};
	struct bed *b = *state;

	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		struct sandbox *sb = bed_create_plain(b), *other = bed_create_plain(b);
		char id[SANDBOX_ID + 1];

		memcpy(id, other->id, sizeof(id));
		assert_int_equal(record_delete(other, &b->err), 0);
		assert_int_equal(db_run(b->host->db, &b->err, changes[i], ""), 0);
		assert_int_equal(record_insert(other, &b->err), 0);
		(void)sb;
		bed_reopen(b);
		assert_int_equal(b->host->count, 1);
		assert_int_equal(bed_find(b, id)->state, SANDBOX_RUNNING);
		assert_int_equal(bed_kill(b, b->host->newest), 0);
		/* It is there for who can read it. */
		assert_int_equal(db_run(b->host->db, &b->err, "DELETE FROM sandboxes", ""), 0);
	}
}

static void a_record_without_a_preview_name_gets_one(void **state)
{
	struct bed *b = *state;
	char id[SANDBOX_ID + 1], other[SANDBOX_ID + 1], name[2][PREVIEW_NAME + 1];

	memcpy(other, bed_create_plain(b)->id, sizeof(other));
	memcpy(id, bed_create_plain(b)->id, sizeof(id));
	memcpy(name[0], bed_find(b, other)->preview, sizeof(name[0]));
	assert_int_equal(db_run(b->host->db, &b->err,
	                        "UPDATE sandboxes SET doc = json_remove(doc, '$.preview')"
	                        " WHERE id = ?",
	                        "t", id),
	                 0);
	bed_reopen(b);
	memcpy(name[1], bed_find(b, id)->preview, sizeof(name[1]));
	assert_true(preview_name_valid(name[1]));
	for (int i = 0; i < 2; i++) {
		assert_string_equal(bed_find(b, other)->preview, name[0]);
		assert_string_equal(bed_find(b, id)->preview, name[1]);
		assert_ptr_equal(preview_find(b->host, name[1]), bed_find(b, id));
		bed_reopen(b);
	}
	/* A new one is on record, too, and the old one is nobody's. */
	assert_int_equal(preview_rotate(b->host, bed_find(b, id), &b->err), 0);
	assert_null(preview_find(b->host, name[1]));
	memcpy(name[0], bed_find(b, id)->preview, sizeof(name[0]));
	bed_reopen(b);
	assert_ptr_equal(preview_find(b->host, name[0]), bed_find(b, id));
	assert_int_equal(bed_find(b, id)->preview_epoch, 1);
}

static bool keep_number(void *arg, struct db_row *row)
{
	*(int64_t *)arg = db_int(row, 0);
	return false;
}

/* The first page of a table or an index holds nonsense when the next pandad opens the records. */
static void damage_records(struct bed *b, const char *name)
{
	char path[200], page[4096];
	autoclose int fd = -1;
	int64_t at = 0;

	assert_int_equal(db_each(b->host->db, &b->err, keep_number, &at,
	                         "SELECT rootpage FROM sqlite_master WHERE name = ?", "t", name),
	                 0);
	assert_true(at > 1);
	bed_close_host(b);
	memset(page, 0xff, sizeof(page));
	snprintf(path, sizeof(path), "%s/panda.db", b->data_dir);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, page, sizeof(page), (at - 1) * (off_t)sizeof(page)),
	                 sizeof(page));
}

/* Of the only volume there is. */
static off_t volume_file_size(struct bed *b)
{
	char path[200];
	struct stat st;
	glob_t found;

	snprintf(path, sizeof(path), "%s/volumes/*.img", b->data_dir);
	assert_int_equal(glob(path, 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	assert_int_equal(stat(found.gl_pathv[0], &st), 0);
	globfree(&found);
	return st.st_size;
}

static void what_cannot_be_looked_up_is_not_taken_for_one_without_a_record(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot snap;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_snapshot(b, sb, "", &snap), 0);
	damage_records(b, "sqlite_autoindex_volumes_1");
	bed_open_host(b);
	damage_records(b, "sqlite_autoindex_snapshots_1");
	bed_open_host(b);
	assert_int_equal(volume_file_size(b), 16 << 20);
	assert_true(bed_stored(b, snap.id));
}

static void a_volume_is_not_cut_to_a_damaged_size(void **state)
{
	static const char *const changes[] = {
	    "UPDATE volumes SET size = 0",
	    "UPDATE volumes SET size = -4096",
	    "UPDATE volumes SET size = 'large'",
	};
	struct bed *b = *state;

	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
		assert_int_equal(db_run(b->host->db, &b->err, changes[i], ""), 0);
		bed_reopen(b);
		assert_int_equal(volume_file_size(b), 16 << 20);
	}
	/* One that can be: it was growing when the host went down. */
	assert_int_equal(db_run(b->host->db, &b->err, "UPDATE volumes SET size = 33554432", ""), 0);
	bed_reopen(b);
	assert_int_equal(volume_file_size(b), 32 << 20);
}

static void layers_that_are_not_ours_are_not_taken_up(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char path[200], id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	snprintf(path, sizeof(path), "%s/machines/%s/machine.json", b->run_dir, sb->machine);
	bed_close_host(b);
	assert_int_equal(truncate(path, 0), 0);
	bed_open_host(b);
	sb = bed_find(b, id);
	assert_int_equal(sb->state, SANDBOX_FAILED);
	assert_string_equal(sb->end, "never started");
	assert_int_equal(bed_kill(b, sb), 0);
	bed_check_leftovers(b); /* also the process that nobody has the number of */
}

static void what_was_at_work_when_pandad_went_well_is_over(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer a = {.bed = b};
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	host_hibernate(b->host, sb, bed_answered, &a);
	bed_reopen(b); /* drains first */
	assert_true(a.done);
	assert_int_equal(bed_find(b, id)->state, SANDBOX_HIBERNATED);
	bed_check_leftovers(b);
}

static void begin_many(struct bed *b, void *arg)
{
	static struct bed_answer a[8];
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb = bed_find(b, arg);

	for (size_t i = 0; i < ARRAY_LEN(a); i++)
		a[i].bed = b;
	fake_close(b->fake, FAKE_CALL_SNAPSHOT);
	host_create(b->host, "t", &spec, NULL, bed_answered, &a[0]);
	host_create(b->host, "t", &spec, NULL, bed_answered, &a[1]);
	host_hibernate(b->host, sb, bed_answered, &a[2]);
	host_wake(b->host, sb, bed_answered, &a[3]);
	bed_until(b, a[0].done && a[1].done && fake_waiting(b->fake, FAKE_CALL_SNAPSHOT) == 1);
}

/* Killed in the middle of several things at once. */
static void many_sandboxes_are_taken_up_at_once(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	bed_remember(sb, 0, "still here");
	bed_close_host(b);
	assert_false(bed_in_child(b, NULL, begin_many, id));
	bed_open_host(b);
	assert_int_equal(b->host->count, 3);
	for (sb = b->host->newest; sb; sb = sb->next) {
		assert_int_equal(sb->state, SANDBOX_RUNNING);
		assert_int_equal(bed_exec(b, sb, "exit 2", NULL), 2);
	}
	assert_recalls(bed_find(b, id), 0, "still here");
	bed_check_leftovers(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(every_record_with_every_machine),
	    bed_test(machines_without_a_record_are_ended),
	    bed_test(snapshots_without_a_record_are_removed),
	    bed_test(records_without_a_snapshot_are_removed),
	    bed_test(a_record_that_cannot_be_read_is_left_alone),
	    bed_test(a_record_without_a_preview_name_gets_one),
	    bed_test(what_cannot_be_looked_up_is_not_taken_for_one_without_a_record),
	    bed_test(a_volume_is_not_cut_to_a_damaged_size),
	    bed_test(layers_that_are_not_ours_are_not_taken_up),
	    bed_test(what_was_at_work_when_pandad_went_well_is_over),
	    bed_test(many_sandboxes_are_taken_up_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
