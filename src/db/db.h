/*
 * db/db.h - records that survive a restart: one SQLite file in WAL mode
 *
 * Each table has a header of its own, which says what a row is and who may change which column:
 *
 *     sandboxes.h   sandboxes and where each stands; a fork's children are put on record there
 *     snapshots.h   snapshots of sandboxes
 *     volumes.h     volumes and snapshots of volumes
 *     events.h      what happened to sandboxes
 *     tokens.h      API tokens, by their hash
 *     audit.h       which token changed something through the API
 *     settings.h    words and secrets that pandad made up itself
 *
 * All SQL of pandad stands in this room (tools/check-sql), and so does the schema: each table's
 * file has the statements that make it and that bring an older one up to date. Ids are text, times
 * are integer epoch ms. SQL stays in what PostgreSQL understands, too; GLOB in events.c is the one
 * exception.
 *
 * Rows are given to callbacks as plain structs. Their text lives during the callback, and the
 * callback must not ask for the list it is called from again. A damaged row is given as it is read:
 * text that is NULL is "", a number that is none or is below 0 is 0. The caller judges.
 *
 * One thread at a time; db_checkpoint() has a connection of its own. A committed write survives
 * kill -9 of this process; after a power cut the last moments may be missing, never half of a
 * statement. To delete or to change what is not there is no error.
 *
 * Kinds of errors, of this header and of those of the tables: disk_full (also a quota or a
 * read-only disk: the text says which), exists (-EEXIST: a key that is taken), no_memory, db_failed
 * (a damaged file; -EBADF: the records were not opened).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct db;

/* Makes the file and brings its tables up to date. Refuses a file of a newer version. */
int db_open(const char *path, struct db **ret, struct err *e);
void db_close(struct db *d);

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

/* Columns count from 0. Text lives during the callback; "" for NULL. */
const char *db_text(struct db_row *row, int column);
int64_t db_int(struct db_row *row, int column);
/* A size, a count or a time: 0 when what is on record is below that. */
uint64_t db_unsigned(struct db_row *row, int column);

/* Several statements, all or none. */
int db_begin(struct db *d, struct err *e);
int db_commit(struct db *d, struct err *e);
void db_rollback(struct db *d);

/* Moves what the log has into the file, beside readers and the writer: for a worker thread. */
int db_checkpoint(const char *path);
