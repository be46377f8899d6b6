/*
 * db/db.h - records that survive a restart: SQLite in WAL mode
 * Ids are text, times are integer epoch ms; SQL stays in what PostgreSQL understands, too. A
 * committed write survives kill -9 of this process; after a power cut the last moments may be
 * missing, never half of a statement. One thread at a time; db_checkpoint() has a connection of its
 * own.
 *
 * Kinds of errors: disk_full (also a quota or a read-only disk: the text says which), db_failed,
 * exists (a key that is taken).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct db;
struct db_row;

/* Makes the file and brings its tables up to date. Refuses a file of a newer version. */
int db_open(const char *path, struct db **ret, struct err *e);
void db_close(struct db *d);

/*
 * Runs one statement. types has one letter per argument: 't' const char * (NULL: SQL NULL),
 * 'i' int64_t. sql must be a literal: statements are prepared once and found by address.
 */
int db_run(struct db *d, struct err *e, const char *sql, const char *types, ...);

/* The same for each row of the answer; fn returns false to stop. */
int db_each(struct db *d, struct err *e, bool (*fn)(void *arg, struct db_row *row), void *arg,
            const char *sql, const char *types, ...);

/* Columns count from 0. Text lives during the callback; "" for NULL. */
const char *db_text(struct db_row *row, int column);
int64_t db_int(struct db_row *row, int column);

/* Several statements, all or none. */
int db_begin(struct db *d, struct err *e);
int db_commit(struct db *d, struct err *e);
void db_rollback(struct db *d);

/* Moves what the log has into the file, beside readers and the writer: for a worker thread. */
int db_checkpoint(const char *path);
