#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/macro.h"
#include "db/db_internal.h"
#include "db_bed.h"

static int put(struct db *db, const char *key, const char *value, struct err *e)
{
	return db_run(db, e, "INSERT INTO settings(key, value) VALUES(?, ?)", "tt", key, value);
}

static bool keep_text(void *arg, struct db_row *row)
{
	snprintf(arg, 32, "%s", db_text(row, 0));
	return false;
}

static bool count_rows(void *arg, struct db_row *row)
{
	return ++*(int *)arg < 100;
}

static void what_was_written_is_read_back(void **state)
{
	struct db_bed *b = *state;
	char got[32] = "";
	struct err e;

	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(db_each(b->db, &e, keep_text, got,
	                         "SELECT value FROM settings WHERE key = ?", "t", "a"),
	                 0);
	assert_string_equal(got, "one");
}

static void a_taken_key_is_refused_by_its_kind(void **state)
{
	struct db_bed *b = *state;
	struct err e;

	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(put(b->db, "a", "two", &e), -EEXIST);
	assert_string_equal(e.kind, "exists");
}

static void a_transaction_is_all_or_nothing(void **state)
{
	struct db_bed *b = *state;
	int n = 0;
	struct err e;

	assert_int_equal(db_begin(b->db, &e), 0);
	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(put(b->db, "b", "two", &e), 0);
	db_rollback(b->db);
	db_rollback(b->db); /* nothing to undo is fine */
	assert_int_equal(db_each(b->db, &e, count_rows, &n, "SELECT key FROM settings", ""), 0);
	assert_int_equal(n, 0);
	assert_int_equal(db_begin(b->db, &e), 0);
	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(db_commit(b->db, &e), 0);
	assert_int_equal(db_each(b->db, &e, count_rows, &n, "SELECT key FROM settings", ""), 0);
	assert_int_equal(n, 1);
}

static void records_are_there_after_a_reopen_and_a_checkpoint(void **state)
{
	struct db_bed *b = *state;
	char got[32] = "";
	uint64_t bytes;
	struct err e;

	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(db_checkpoint(b->path, &bytes, &e), 0);
	assert_int_equal(put(b->db, "b", "two", &e), 0);
	db_bed_reopen(b);
	assert_int_equal(db_each(b->db, &e, keep_text, got,
	                         "SELECT value FROM settings ORDER BY key DESC", ""),
	                 0);
	assert_string_equal(got, "two");
}

static void only_their_owner_reads_records_also_those_of_an_older_pandad(void **state)
{
	static const char *const files[] = {"", "-wal", "-shm"};
	struct db_bed *b = *state;
	char path[PATH_MAX];
	struct stat st;
	struct err e;

	for (int again = 0; again < 2; again++) {
		assert_int_equal(put(b->db, again ? "b" : "a", "one", &e), 0);
		for (size_t i = 0; i < ARRAY_LEN(files); i++) {
			snprintf(path, sizeof(path), "%s%s", b->path, files[i]);
			assert_int_equal(stat(path, &st), 0);
			assert_int_equal(st.st_mode & 0777, 0600);
		}
		db_close(b->db);
		b->db = NULL;
		assert_int_equal(chmod(b->path, 0644), 0);
		assert_int_equal(db_open(b->path, &b->db, &e), 0);
	}
}

static void a_file_of_a_newer_version_is_refused(void **state)
{
	struct db_bed *b = *state;
	struct err e;

	assert_int_equal(db_run(b->db, &e, "PRAGMA user_version = 9999", ""), 0);
	db_close(b->db);
	b->db = NULL;
	assert_int_equal(db_open(b->path, &b->db, &e), -EPROTO);
	assert_non_null(strstr(e.text, "newer"));
}

static void a_file_that_is_no_database_is_refused(void **state)
{
	struct db_bed *b = *state;
	FILE *f;
	struct err e;

	db_close(b->db);
	b->db = NULL;
	f = fopen(b->path, "w");
	assert_non_null(f);
	for (int i = 0; i < 2000; i++)
		fputs("not a database ", f);
	fclose(f);
	assert_true(db_open(b->path, &b->db, &e) < 0);
	assert_null(b->db);
	assert_non_null(strstr(e.text, b->path));
}

/* Statements are found by their address: the same text at another one is another statement. */
static void a_statement_is_prepared_once_for_each_literal(void **state)
{
	static char sql[129][32];
	struct db_bed *b = *state;
	int n = 0;

	for (int i = 0; i < 1000; i++)
		assert_int_equal(db_run(b->db, &b->e, "SELECT 1", ""), 0);
	for (size_t i = 0; i < 129; i++)
		snprintf(sql[i], sizeof(sql[i]), "SELECT 1");
	while (n < 129 && db_run(b->db, &b->e, sql[n], "") == 0)
		n++;
	assert_int_equal(n, 127);
	assert_string_equal(b->e.kind, "db_failed");
	assert_int_equal(db_run(b->db, &b->e, sql[126], ""), 0);
}

static bool keep_unsigned(void *arg, struct db_row *row)
{
	*(uint64_t *)arg = db_unsigned(row, 0);
	return false;
}

static void a_size_that_is_none_is_0(void **state)
{
	struct db_bed *b = *state;
	uint64_t n = 7;

	assert_int_equal(db_each(b->db, &b->e, keep_unsigned, &n, "SELECT -1", ""), 0);
	assert_int_equal(n, 0);
	n = 7;
	assert_int_equal(db_each(b->db, &b->e, keep_unsigned, &n, "SELECT 'much'", ""), 0);
	assert_int_equal(n, 0);
	assert_int_equal(db_each(b->db, &b->e, keep_unsigned, &n, "SELECT 9223372036854775807", ""),
	                 0);
	assert_int_equal(n, INT64_MAX);
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;

	db_close(NULL);
	db_rollback(NULL);
	assert_not_open(b, db_begin(NULL, &b->e));
	assert_not_open(b, db_commit(NULL, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(what_was_written_is_read_back),
	    db_bed_test(a_taken_key_is_refused_by_its_kind),
	    db_bed_test(a_transaction_is_all_or_nothing),
	    db_bed_test(records_are_there_after_a_reopen_and_a_checkpoint),
	    db_bed_test(only_their_owner_reads_records_also_those_of_an_older_pandad),
	    db_bed_test(a_file_of_a_newer_version_is_refused),
	    db_bed_test(a_file_that_is_no_database_is_refused),
	    db_bed_test(a_statement_is_prepared_once_for_each_literal),
	    db_bed_test(a_size_that_is_none_is_0),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
