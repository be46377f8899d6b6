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

/* Several statements, all or none. */
int db_begin(struct db *d, struct err *e);
int db_commit(struct db *d, struct err *e);
void db_rollback(struct db *d);

/* Moves what the log has into the file, beside readers and the writer: for a worker thread. */
int db_checkpoint(const char *path);
