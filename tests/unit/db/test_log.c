/*
 * The log of the records, panda.db-wal: what moves it into the file, and how long it gets.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "db/db_internal.h"
#include "db/events.h"
#include "db/sandboxes.h"
#include "db_bed.h"

static uint64_t size_of(struct db_bed *b, const char *end)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s%s", b->path, end);
	return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static int put(struct db *db, int64_t seq, const char *payload)
{
	const struct db_event row = {.seq = seq,
	                             .tenant = "t",
	                             .sandbox_id = "a",
	                             .type = "x",
	                             .payload = payload,
	                             .at_ms = 1000};
	struct err e;

	return db_event_insert(db, &row, &e);
}

static bool count_row(void *arg, const struct db_event *row)
{
	(void)row;
	++*(int *)arg;
	return true;
}

static int rows(struct db_bed *b)
{
	int n = 0;

	assert_int_equal(db_events_tail(b->db, NULL, NULL, 1000000, count_row, &n, &b->e), 0);
	return n;
}

static void a_checkpoint_moves_the_log_into_the_file(void **state)
{
	struct db_bed *b = *state;
	uint64_t bytes = 7;

	for (int64_t i = 1; i <= 500; i++)
		assert_int_equal(put(b->db, i, "some"), 0);
	assert_true(size_of(b, "-wal") > 1 << 20);
	assert_int_equal(size_of(b, "-wal"), 32 + db_log_bytes(b->db)); /* its head */
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(size_of(b, "-wal"), 0);
	assert_true(size_of(b, "") > 10 * 4096);
	assert_int_equal(rows(b), 500);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0); /* with nothing to do */
	assert_int_equal(put(b->db, 501, "more"), 0);
	db_bed_reopen(b);
	assert_int_equal(rows(b), 501);
}

static uint64_t blocks_of(struct db_bed *b, const char *end)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s%s", b->path, end);
	return stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Blocks that are there already need no room on the disk any more. */
static void on_a_full_disk_the_records_keep_what_they_have(void **state)
{
	struct db_bed *b = *state;
	uint64_t bytes = 7, was;

	for (int64_t i = 1; i <= 300; i++)
		assert_int_equal(put(b->db, i, "some"), 0);
	was = size_of(b, "-wal");
	for (int turn = 0; turn < 3; turn++) {
		assert_int_equal(db_checkpoint_keep(b->path, &bytes, &b->e), 0);
		assert_int_equal(bytes, was);
		assert_int_equal(size_of(b, "-wal"), was);
		assert_true(blocks_of(b, "-wal") >= DB_LOG_LARGE);
		assert_true(blocks_of(b, "") >= size_of(b, "") + DB_ROOM);
		/* The log begins anew, within itself. */
		for (int64_t i = 1; i <= 200; i++)
			assert_int_equal(put(b->db, 1000 * (turn + 1) + i, "more"), 0);
		assert_int_equal(size_of(b, "-wal"), was);
	}
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_int_equal(bytes, 0);
	assert_true(blocks_of(b, "-wal") < DB_LOG_USUAL);
	db_bed_reopen(b);
	assert_int_equal(rows(b), 900);
}

static void note_large(void *arg)
{
	++*(int *)arg;
}

static void who_writes_hears_that_the_log_is_large(void **state)
{
	struct db_bed *b = *state;
	uint64_t bytes;
	int64_t i = 1;
	int heard = 0;

	db_on_large_log(b->db, note_large, &heard);
	while (!heard) {
		assert_true(size_of(b, "-wal") < 2 * DB_LOG_USUAL);
		assert_int_equal(put(b->db, i++, db_bed_large()), 0);
	}
	assert_true(size_of(b, "-wal") > DB_LOG_USUAL);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	heard = 0;
	assert_int_equal(put(b->db, i, db_bed_large()), 0);
	assert_int_equal(heard, 0);
}

/* One that reads holds on to what it sees: the log waits for it, and is cut the next time. */
static void a_reader_keeps_the_log_and_no_longer(void **state)
{
	struct db_bed *b = *state;
	sqlite3 *reader;
	uint64_t bytes;

	assert_int_equal(put(b->db, 1, "some"), 0);
	assert_int_equal(sqlite3_open(b->path, &reader), SQLITE_OK);
	assert_int_equal(sqlite3_exec(reader, "BEGIN; SELECT * FROM events", NULL, NULL, NULL),
	                 SQLITE_OK);
	assert_int_equal(put(b->db, 2, "more"), 0);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_true(bytes > 0);
	assert_int_equal(sqlite3_close(reader), SQLITE_OK);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(rows(b), 2);
}

struct keeper {
	struct db_bed *bed;
	atomic_bool end;
	atomic_uint passes;
};

static void *keep(void *arg)
{
	struct keeper *k = arg;
	uint64_t bytes;
	struct err e;

	while (!atomic_load(&k->end)) {
		if (db_checkpoint(k->bed->path, &bytes, &e) < 0)
			return k;
		atomic_fetch_add(&k->passes, 1);
	}
	return NULL;
}

/* A writer that never stops: the log is cut beside it, and each write goes through. */
static void a_flood_leaves_a_short_log(void **state)
{
	struct db_bed *b = *state;
	struct keeper k = {.bed = b};
	uint64_t written = 0;
	unsigned cuts = 0;
	pthread_t t;
	void *failed;

	assert_int_equal(pthread_create(&t, NULL, keep, &k), 0);
	for (int64_t i = 1; written < (uint64_t)256 << 20 || cuts < 4; i++) {
		uint64_t before = db_log_bytes(b->db);

		assert_int_equal(put(b->db, i, db_bed_large()), 0);
		if (db_log_bytes(b->db) < before)
			cuts++;
		else
			written += db_log_bytes(b->db) - before;
		if (i > 100)
			assert_int_equal(db_events_drop(b->db, "t", false, 1, &b->e), 0);
	}
	atomic_store(&k.end, true);
	assert_int_equal(pthread_join(t, &failed), 0);
	assert_null(failed);
	keep(&k); /* ends at once */
	assert_int_equal(db_checkpoint(b->path, &written, &b->e), 0);
	assert_int_equal(size_of(b, "-wal"), 0);
	assert_true(size_of(b, "") < 16 << 20);
	assert_in_range(rows(b), 100, 101);
}

static bool holds(struct db_bed *b, const char *end, const char *text)
{
	autofree char *all = NULL;
	autoclose int fd = -1;
	char path[128];
	size_t n = size_of(b, end);

	snprintf(path, sizeof(path), "%s%s", b->path, end);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || n == 0)
		return false;
	all = malloc(n);
	assert_non_null(all);
	assert_int_equal(pread(fd, all, n, 0), n);
	return memmem(all, n, text, strlen(text)) != NULL;
}

static void what_was_deleted_is_in_no_file(void **state)
{
	struct db_bed *b = *state;
	const struct db_sandbox row = {.id = "s",
	                               .tenant = "t",
	                               .state = "running",
	                               .doc = "{\"env\":{\"KEY\":\"sesame-in-the-clear\"}}"};
	uint64_t bytes;

	assert_int_equal(db_sandbox_insert(b->db, &row, &b->e), 0);
	assert_true(holds(b, "-wal", "sesame-in-the-clear"));
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_true(holds(b, "", "sesame-in-the-clear"));
	assert_int_equal(db_sandbox_update(b->db, "s", "running", "{}", &b->e), 0);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_false(holds(b, "", "sesame-in-the-clear"));
	assert_int_equal(db_sandbox_update(b->db, "s", "running", row.doc, &b->e), 0);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_int_equal(db_sandbox_delete(b->db, "s", &b->e), 0);
	assert_int_equal(db_checkpoint(b->path, &bytes, &b->e), 0);
	assert_false(holds(b, "", "sesame-in-the-clear"));
	assert_false(holds(b, "-wal", "sesame-in-the-clear"));
}

static void a_file_that_cannot_be_written_is_told(void **state)
{
	struct db_bed *b = *state;
	uint64_t bytes = 7;

	assert_true(db_checkpoint("/nonexistent/panda.db", &bytes, &b->e) < 0);
	assert_int_equal(bytes, 0);
	assert_string_equal(b->e.kind, "db_failed");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(a_checkpoint_moves_the_log_into_the_file),
	    db_bed_test(on_a_full_disk_the_records_keep_what_they_have),
	    db_bed_test(who_writes_hears_that_the_log_is_large),
	    db_bed_test(a_reader_keeps_the_log_and_no_longer),
	    db_bed_test(a_flood_leaves_a_short_log),
	    db_bed_test(what_was_deleted_is_in_no_file),
	    db_bed_test(a_file_that_cannot_be_written_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
