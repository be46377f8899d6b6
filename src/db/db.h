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
 * statement. What is deleted or replaced is overwritten with zeros in the file, and is gone from
 * the log with the next whole checkpoint. To delete or to change what is not there is no error.
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

/*
 * The log (panda.db-wal). Writers only append to it; it gets shorter by db_checkpoint() alone. Once
 * all of it is in the file, the next write begins it anew, and it is cut to DB_LOG_USUAL then.
 */
enum {
	DB_LOG_USUAL = 4 << 20,
	/* From here on a checkpoint makes the writer wait: for one sync of what came last. */
	DB_LOG_LARGE = 16 << 20,
};

/* large(arg), on the writer's thread and inside its call, after each commit that leaves the log
 * longer than DB_LOG_USUAL. It must not use *d. */
void db_on_large_log(struct db *d, void (*large)(void *arg), void *arg);

/* Bytes of records that the log has after the last commit through *d. */
uint64_t db_log_bytes(const struct db *d);

/*
 * Moves what the log has into the file and makes the log empty, beside readers and the writer: for
 * a worker thread. *ret_bytes is how long the log is then, also after an error; 0 unless something
 * was written or read meanwhile. What stays is the next call's. Kinds: disk_full, db_failed.
 */
int db_checkpoint(const char *path, uint64_t *ret_bytes, struct err *e);

/*
 * The same on a disk that is nearly full: the log stays as long as it is, and begins anew within
 * itself. For both files blocks are taken that no other file can have then (DB_ROOM for the file,
 * DB_LOG_LARGE for the log), so that records can be written when nothing else can.
 */
int db_checkpoint_keep(const char *path, uint64_t *ret_bytes, struct err *e);
enum { DB_ROOM = 8 << 20 };
