/*
 * db/db.c - the connection: opened and brought up to date, its statements, its transactions
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "db/db.h"
#include "db/db_internal.h"

enum {
	STATEMENTS_MAX = 128, /* different statements in the program */
	BUSY_MS = 5000,       /* a checkpoint never holds the writer that long */
	LOG_BUSY_MS = 200,    /* a checkpoint waits so long for the writer to end */
	LOG_PASSES = 4,
	LOG_FRAME = 24 + 4096, /* bytes of a page in the log */
};

struct db {
	sqlite3 *sqlite;
	struct {
		const char *sql;
		sqlite3_stmt *stmt;
	} cache[STATEMENTS_MAX];
	size_t ncache;
	uint64_t log_bytes;
	void (*large)(void *arg);
	void *large_arg;
};

struct db_row {
	sqlite3_stmt *stmt;
};

/* In the order in which they are made. */
static const struct db_table *const tables[] = {
    &db_tokens_table, &db_sandboxes_table, &db_snapshots_table, &db_volumes_table,
    &db_events_table, &db_audit_table,     &db_settings_table,
};

static int sqlite_err(sqlite3 *s, struct err *e, int rc)
{
	switch (rc & 0xff) {
	case SQLITE_FULL:
		return err_set(
		    e, ENOSPC, "disk_full",
		    "no space left for records: free some on the disk of the data directory");
	case SQLITE_READONLY:
		return err_set(e, EROFS, "disk_full",
		               "the data directory is read-only: remount it, then try again");
	case SQLITE_IOERR:
		return err_set(e, EIO, "disk_full", "cannot write records: %s", sqlite3_errmsg(s));
	case SQLITE_CONSTRAINT:
		return err_set(e, EEXIST, "exists", "there is one of that name already");
	case SQLITE_NOMEM:
		return err_nomem(e);
	default:
		return err_set(e, EIO, "db_failed", "records: %s", sqlite3_errmsg(s));
	}
}

static int fail(struct db *d, struct err *e, int rc)
{
	return sqlite_err(d->sqlite, e, rc);
}

/* One transaction: the file is of one version or of the next. */
static int migrate_step(struct db *d, int version, struct err *e)
{
	char done[64];
	int rc = sqlite3_exec(d->sqlite, "BEGIN IMMEDIATE", NULL, NULL, NULL);

	for (size_t i = 0; i < ARRAY_LEN(tables) && rc == SQLITE_OK; i++)
		if (tables[i]->steps[version])
			rc = sqlite3_exec(d->sqlite, tables[i]->steps[version], NULL, NULL, NULL);
	snprintf(done, sizeof(done), "PRAGMA user_version = %d; COMMIT", version + 1);
	if (rc == SQLITE_OK)
		rc = sqlite3_exec(d->sqlite, done, NULL, NULL, NULL);
	return rc == SQLITE_OK ? 0 : fail(d, e, rc);
}

static int migrate(struct db *d, const char *path, struct err *e)
{
	sqlite3_stmt *s = NULL;
	int version, rc, r = 0;

	rc = sqlite3_prepare_v2(d->sqlite, "PRAGMA user_version", -1, &s, NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_step(s);
	version = rc == SQLITE_ROW ? sqlite3_column_int(s, 0) : 0;
	sqlite3_finalize(s);
	if (rc != SQLITE_ROW)
		return fail(d, e, rc);
	if (version < 0 || version > DB_VERSION)
		return err_set(e, EPROTO, "db_failed",
		               "%s was written by a newer pandad (version %d, this one knows %d): "
		               "install that one, or start with another data directory",
		               path, version, DB_VERSION);
	for (; version < DB_VERSION && r == 0; version++)
		r = migrate_step(d, version, e);
	return r;
}

static int committed(void *arg, sqlite3 *s, const char *name, int frames)
{
	struct db *d = arg;

	(void)s;
	(void)name;
	d->log_bytes = (uint64_t)frames * LOG_FRAME;
	if (d->large && d->log_bytes > DB_LOG_USUAL)
		d->large(d->large_arg);
	return SQLITE_OK;
}

void db_on_large_log(struct db *d, void (*large)(void *arg), void *arg)
{
	d->large = large;
	d->large_arg = arg;
}

uint64_t db_log_bytes(const struct db *d)
{
	return d ? d->log_bytes : 0;
}

/*
 * Records hold keys: only their owner may read them. SQLite makes its other files with the mode of
 * this one; those of a pandad of 0.1.0 may be there. All is closed before SQLite opens it: its
 * locks end with any fd of the file.
 */
static int keep_private(const char *path, struct err *e)
{
	static const char *const also[] = {"-wal", "-shm"};
	char other[PATH_MAX];
	autoclose int fd = -1;

	if (*path == ':') /* in memory */
		return 0;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || fchmod(fd, 0600) < 0)
		return err_set(e, errno, "db_failed", "cannot open %s: %s", path, strerror(errno));
	for (size_t i = 0; i < ARRAY_LEN(also); i++) {
		snprintf(other, sizeof(other), "%s%s", path, also[i]);
		if (chmod(other, 0600) < 0 && errno != ENOENT)
			return err_set(e, errno, "db_failed", "cannot open %s: %s", other,
			               strerror(errno));
	}
	return 0;
}

int db_open(const char *path, struct db **ret, struct err *e)
{
	struct db *d;
	char limit[64];
	int rc, r = keep_private(path, e);

	if (r < 0)
		return r;
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_nomem(e);
	rc =
	    sqlite3_open_v2(path, &d->sqlite,
	                    SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
	if (rc == SQLITE_OK) {
		sqlite3_busy_timeout(d->sqlite, BUSY_MS);
		sqlite3_extended_result_codes(d->sqlite, 1);
		/* Checkpoints sync the disk: they are db_checkpoint()'s, not the writer's. */
		rc = sqlite3_exec(d->sqlite,
		                  "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
		                  "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -512;"
		                  "PRAGMA secure_delete = ON",
		                  NULL, NULL, NULL);
	}
	if (rc == SQLITE_OK) {
		snprintf(limit, sizeof(limit), "PRAGMA journal_size_limit = %d", DB_LOG_USUAL);
		rc = sqlite3_exec(d->sqlite, limit, NULL, NULL, NULL);
		sqlite3_wal_hook(d->sqlite, committed, d);
	}
	r = rc == SQLITE_OK ? migrate(d, path, e) : fail(d, e, rc);
	if (r < 0) {
		err_prefix(e, "%s", path);
		db_close(d);
		return r;
	}
	*ret = d;
	return 0;
}

void db_close(struct db *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < d->ncache; i++)
		sqlite3_finalize(d->cache[i].stmt);
	sqlite3_close(d->sqlite);
	free(d);
}

/* Ready to be bound. */
static int statement(struct db *d, const char *sql, sqlite3_stmt **ret, struct err *e)
{
	int rc;

	if (!d)
		return err_set(e, EBADF, "db_failed", "the records are not open");
	for (size_t i = 0; i < d->ncache; i++)
		if (d->cache[i].sql == sql) {
			/* A callback that asks for its own list would end the list it is in. */
			assert(!sqlite3_stmt_busy(d->cache[i].stmt));
			*ret = d->cache[i].stmt;
			return 0;
		}
	if (d->ncache == STATEMENTS_MAX)
		return err_set(e, E2BIG, "db_failed", "more than %d statements", STATEMENTS_MAX);
	rc = sqlite3_prepare_v3(d->sqlite, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL);
	if (rc != SQLITE_OK)
		return fail(d, e, rc);
	d->cache[d->ncache].sql = sql;
	d->cache[d->ncache++].stmt = *ret;
	return 0;
}

static int bind(struct db *d, sqlite3_stmt *s, const char *types, va_list ap, struct err *e)
{
	int rc = SQLITE_OK;

	for (int i = 0; types[i] && rc == SQLITE_OK; i++)
		rc = types[i] == 't'
		         ? sqlite3_bind_text(s, i + 1, va_arg(ap, const char *), -1, SQLITE_STATIC)
		         : sqlite3_bind_int64(s, i + 1, va_arg(ap, int64_t));
	return rc == SQLITE_OK ? 0 : fail(d, e, rc);
}

static int each(struct db *d, struct err *e, bool (*fn)(void *arg, struct db_row *row), void *arg,
                const char *sql, const char *types, va_list ap)
{
	struct db_row row;
	int rc = SQLITE_DONE, r;

	r = statement(d, sql, &row.stmt, e);
	if (r == 0)
		r = bind(d, row.stmt, types, ap, e);
	if (r < 0)
		return r;
	while ((rc = sqlite3_step(row.stmt)) == SQLITE_ROW)
		if (!fn || !fn(arg, &row))
			break;
	r = rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : fail(d, e, rc);
	sqlite3_reset(row.stmt);
	sqlite3_clear_bindings(row.stmt);
	return r;
}

int db_run(struct db *d, struct err *e, const char *sql, const char *types, ...)
{
	va_list ap;
	int r;

	va_start(ap, types);
	r = each(d, e, NULL, NULL, sql, types, ap);
	va_end(ap);
	return r;
}

int db_each(struct db *d, struct err *e, bool (*fn)(void *arg, struct db_row *row), void *arg,
            const char *sql, const char *types, ...)
{
	va_list ap;
	int r;

	va_start(ap, types);
	r = each(d, e, fn, arg, sql, types, ap);
	va_end(ap);
	return r;
}

int64_t db_changes(struct db *d)
{
	return sqlite3_changes(d->sqlite);
}

static bool exists_one(void *arg, struct db_row *row)
{
	*(bool *)arg = true;
	return false;
}

int db_exists(struct db *d, struct err *e, bool *ret, const char *sql, const char *key)
{
	bool found = false;
	int r = db_each(d, e, exists_one, &found, sql, "t", key);

	if (r == 0)
		*ret = found;
	return r;
}

const char *db_text(struct db_row *row, int column)
{
	const unsigned char *t = sqlite3_column_text(row->stmt, column);

	return t ? (const char *)t : "";
}

int64_t db_int(struct db_row *row, int column)
{
	return sqlite3_column_int64(row->stmt, column);
}

uint64_t db_unsigned(struct db_row *row, int column)
{
	return (uint64_t)MAX(db_int(row, column), (int64_t)0);
}

int db_begin(struct db *d, struct err *e)
{
	return db_run(d, e, "BEGIN IMMEDIATE", "");
}

int db_commit(struct db *d, struct err *e)
{
	int r = db_run(d, e, "COMMIT", "");

	if (r < 0)
		db_rollback(d);
	return r;
}

void db_rollback(struct db *d)
{
	if (d && !sqlite3_get_autocommit(d->sqlite))
		db_run(d, NULL, "ROLLBACK", "");
}

/* ---- the log ---- */

static uint64_t log_size(const char *path)
{
	char name[PATH_MAX];
	struct stat st;

	snprintf(name, sizeof(name), "%s-wal", path);
	return stat(name, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/*
 * True: all of the log is in the file, synced, and no writer came meanwhile. Writers do not wait.
 * The last pass of a busy log leaves little: what was written while it synced the one before.
 */
static bool log_moved(sqlite3 *s, int *rc)
{
	int before = -1, frames = 0, moved = 0;

	for (int i = 0; i < LOG_PASSES; i++) {
		*rc =
		    sqlite3_wal_checkpoint_v2(s, NULL, SQLITE_CHECKPOINT_PASSIVE, &frames, &moved);
		if (*rc != SQLITE_OK)
			return false;
		if (frames == before && moved >= frames)
			return true;
		before = frames;
	}
	return false;
}

/*
 * Blocks behind the end of a file, of which SQLite knows nothing until it writes there. Through an
 * fd that SQLite has: to close one of our own would let go of the locks of all (fcntl). No room,
 * or no such call: then there is none, as before.
 */
static void keep_room(const char *name, bool behind, off_t bytes)
{
	autoclosedir DIR *d = io_opendir(AT_FDCWD, "/proc/self/fd", 0);
	struct stat want, st;
	struct dirent *de;

	if (stat(name, &want) < 0)
		return;
	while (d && (de = readdir(d))) {
		int fd = atoi(de->d_name);

		if (de->d_name[0] == '.' || fstat(fd, &st) < 0 || st.st_dev != want.st_dev ||
		    st.st_ino != want.st_ino)
			continue;
		(void)fallocate(fd, FALLOC_FL_KEEP_SIZE, behind ? st.st_size : 0, bytes);
		return;
	}
}

/* While a connection is open. */
static void keep_rooms(const char *path)
{
	char log[PATH_MAX];

	snprintf(log, sizeof(log), "%s-wal", path);
	keep_room(path, true, DB_ROOM);
	keep_room(log, false, DB_LOG_LARGE);
}

static int checkpoint(const char *path, bool keep, uint64_t *ret_bytes, struct err *e)
{
	sqlite3 *s = NULL;
	bool moved;
	int r = 0,
	    rc = sqlite3_open_v2(path, &s, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);

	if (rc == SQLITE_OK) {
		sqlite3_busy_timeout(s, LOG_BUSY_MS);
		/* Before its first read a connection does not know that there is a log: a
		 * checkpoint then does nothing and says that all is well. */
		rc = sqlite3_exec(s, "SELECT 1 FROM sqlite_master LIMIT 1", NULL, NULL, NULL);
	}
	if (rc == SQLITE_OK && keep)
		keep_rooms(path);
	if (rc == SQLITE_OK) {
		moved = log_moved(s, &rc);
		if (log_size(path) > (moved && !keep ? 0 : DB_LOG_LARGE))
			rc = sqlite3_wal_checkpoint_v2(s, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
			                               NULL);
	}
	if (keep) /* the file has grown into it */
		keep_rooms(path);
	if (rc != SQLITE_OK && (rc & 0xff) != SQLITE_BUSY)
		r = sqlite_err(s, e, rc);
	sqlite3_close(s);
	*ret_bytes = log_size(path);
	return r;
}

int db_checkpoint(const char *path, uint64_t *ret_bytes, struct err *e)
{
	return checkpoint(path, false, ret_bytes, e);
}

int db_checkpoint_keep(const char *path, uint64_t *ret_bytes, struct err *e)
{
	return checkpoint(path, true, ret_bytes, e);
}
