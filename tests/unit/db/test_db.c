#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "db/db.h"

struct bed {
	char dir[64], path[96];
	struct db *db;
};

static int open_bed(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct err e;

	snprintf(b->dir, sizeof(b->dir), "/tmp/panda-db-XXXXXX");
	if (!mkdtemp(b->dir))
		return -1;
	snprintf(b->path, sizeof(b->path), "%s/panda.db", b->dir);
	*state = b;
	return db_open(b->path, &b->db, &e);
}

static int close_bed(void **state)
{
	static const char *const names[] = {"panda.db", "panda.db-wal", "panda.db-shm"};
	struct bed *b = *state;
	char path[128];

	db_close(b->db);
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", b->dir, names[i]);
		unlink(path);
	}
	rmdir(b->dir);
	free(b);
	return 0;
}

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
	struct bed *b = *state;
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
	struct bed *b = *state;
	struct err e;

	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(put(b->db, "a", "two", &e), -EEXIST);
	assert_string_equal(e.kind, "exists");
}

static void a_transaction_is_all_or_nothing(void **state)
{
	struct bed *b = *state;
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
	struct bed *b = *state;
	char got[32] = "";
	struct err e;

	assert_int_equal(put(b->db, "a", "one", &e), 0);
	assert_int_equal(db_checkpoint(b->path), 0);
	assert_int_equal(put(b->db, "b", "two", &e), 0);
	db_close(b->db);
	b->db = NULL;
	assert_int_equal(db_open(b->path, &b->db, &e), 0);
	assert_int_equal(db_each(b->db, &e, keep_text, got,
	                         "SELECT value FROM settings ORDER BY key DESC", ""),
	                 0);
	assert_string_equal(got, "two");
}

static void a_file_of_a_newer_version_is_refused(void **state)
{
	struct bed *b = *state;
	struct err e;

	assert_int_equal(db_run(b->db, &e, "PRAGMA user_version = 9999", ""), 0);
	db_close(b->db);
	b->db = NULL;
	assert_int_equal(db_open(b->path, &b->db, &e), -EPROTO);
	assert_non_null(strstr(e.text, "newer"));
}

static void a_file_that_is_no_database_is_refused(void **state)
{
	struct bed *b = *state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(what_was_written_is_read_back, open_bed, close_bed),
	    cmocka_unit_test_setup_teardown(a_taken_key_is_refused_by_its_kind, open_bed,
	                                    close_bed),
	    cmocka_unit_test_setup_teardown(a_transaction_is_all_or_nothing, open_bed, close_bed),
	    cmocka_unit_test_setup_teardown(records_are_there_after_a_reopen_and_a_checkpoint,
	                                    open_bed, close_bed),
	    cmocka_unit_test_setup_teardown(a_file_of_a_newer_version_is_refused, open_bed,
	                                    close_bed),
	    cmocka_unit_test_setup_teardown(a_file_that_is_no_database_is_refused, open_bed,
	                                    close_bed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
