/*
 * db/db_internal.h - between db.c and the files of the tables: statements, rows and the schema
 */
#pragma once
#include "db/db.h"

/* ---- statements ---- */

struct db_row;

/*
 * Runs one statement. types has one letter per argument: 't' const char * (NULL: SQL NULL),
 * 'i' int64_t. sql must be a literal: statements are prepared once and found by address.
 */
int db_run(struct db *d, struct err *e, const char *sql, const char *types, ...);

/* The same for each row of the answer; fn returns false to stop. */
int db_each(struct db *d, struct err *e, bool (*fn)(void *arg, struct db_row *row), void *arg,
            const char *sql, const char *types, ...);

/* Is there a row? sql has one argument, a text. */
int db_exists(struct db *d, struct err *e, bool *ret, const char *sql, const char *key);

/* How many rows the last INSERT, UPDATE or DELETE changed. */
int64_t db_changes(struct db *d);

/* Columns count from 0. Text lives during the callback; "" for NULL. */
const char *db_text(struct db_row *row, int column);
int64_t db_int(struct db_row *row, int column);
/* A size, a count or a time: 0 when what is on record is below that. */
uint64_t db_unsigned(struct db_row *row, int column);

/* ---- the schema ---- */

enum {
	DB_VERSION = 4, /* of the file: its user_version once db_open() is done with it */
};

/*
 * steps[n] is what the table contributes to bring a file of version n to version n + 1; NULL:
 * nothing. What is there has been released: add, never change. A new step raises DB_VERSION, and
 * test_upgrade.c gets the schema of the version before it.
 */
struct db_table {
	const char *steps[DB_VERSION];
};

extern const struct db_table db_tokens_table, db_sandboxes_table, db_snapshots_table,
    db_volumes_table, db_events_table, db_audit_table, db_settings_table;
