#include "db/db.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

enum {
	STATEMENTS_MAX = 128, /* different statements in the program */
	BUSY_MS = 5000,       /* a checkpoint never holds the writer that long */
};

struct db {
	sqlite3 *sqlite;
	struct {
		const char *sql;
		sqlite3_stmt *stmt;
	} cache[STATEMENTS_MAX];
	size_t ncache;
};

struct db_row {
	sqlite3_stmt *stmt;
};

/* Step n brings a file of version n to version n + 1. What is here has been released: add, never
 * change. */
static const char *const steps[] = {
    "CREATE TABLE tokens(hash TEXT PRIMARY KEY, prefix TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    " label TEXT NOT NULL, scopes TEXT NOT NULL, quota TEXT NOT NULL, created_at INTEGER NOT NULL);"
    "CREATE INDEX tokens_tenant ON tokens(tenant);"
    "CREATE TABLE sandboxes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, state TEXT NOT NULL,"
    " created_at INTEGER NOT NULL, doc TEXT NOT NULL);"
    "CREATE TABLE snapshots(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, sandbox_id TEXT NOT NULL,"
    " state TEXT NOT NULL, created_at INTEGER NOT NULL, doc TEXT NOT NULL);"
    "CREATE INDEX snapshots_tenant ON snapshots(tenant, created_at);"
    "CREATE TABLE volumes(tenant TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL UNIQUE,"
    " size INTEGER NOT NULL, state TEXT NOT NULL, created_at INTEGER NOT NULL,"
    " PRIMARY KEY(tenant, name));"
    "CREATE TABLE events(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL, sandbox_id TEXT NOT NULL,"
    " type TEXT NOT NULL, payload TEXT NOT NULL, at INTEGER NOT NULL);"
    "CREATE INDEX events_sandbox ON events(sandbox_id, seq);"
    "CREATE TABLE audit(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL, actor TEXT NOT NULL,"
    " request_id TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, status INTEGER NOT NULL,"
    " at INTEGER NOT NULL);"
    "CREATE TABLE settings(key TEXT PRIMARY KEY, value TEXT NOT NULL);",
    /* snapshots of volumes */
    "ALTER TABLE volumes ADD COLUMN kind TEXT NOT NULL DEFAULT 'volume';"
    "ALTER TABLE volumes ADD COLUMN source TEXT NOT NULL DEFAULT '';",
};

static int fail(struct db *d, struct err *e, int rc)
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
		return err_set(e, EIO, "disk_full", "cannot write records: %s",
		               sqlite3_errmsg(d->sqlite));
	case SQLITE_CONSTRAINT:
		return err_set(e, EEXIST, "exists", "there is one of that name already");
	case SQLITE_NOMEM:
		return err_nomem(e);
	default:
		return err_set(e, EIO, "db_failed", "records: %s", sqlite3_errmsg(d->sqlite));
	}
}

static int migrate(struct db *d, const char *path, struct err *e)
{
	sqlite3_stmt *s = NULL;
	int version, rc;

	rc = sqlite3_prepare_v2(d->sqlite, "PRAGMA user_version", -1, &s, NULL);
	if (rc == SQLITE_OK)
		rc = sqlite3_step(s);
	version = rc == SQLITE_ROW ? sqlite3_column_int(s, 0) : 0;
	sqlite3_finalize(s);
	if (rc != SQLITE_ROW)
		return fail(d, e, rc);
	if (version > (int)ARRAY_LEN(steps))
		return err_set(e, EPROTO, "db_failed",
		               "%s was written by a newer pandad (version %d, this one knows %zu): "
		               "install that one, or start with another data directory",
		               path, version, ARRAY_LEN(steps));
	for (; version < (int)ARRAY_LEN(steps); version++) {
		char done[64];

		snprintf(done, sizeof(done), "PRAGMA user_version = %d; COMMIT", version + 1);
		rc = sqlite3_exec(d->sqlite, "BEGIN IMMEDIATE", NULL, NULL, NULL);
		if (rc == SQLITE_OK)
			rc = sqlite3_exec(d->sqlite, steps[version], NULL, NULL, NULL);
		if (rc == SQLITE_OK)
			rc = sqlite3_exec(d->sqlite, done, NULL, NULL, NULL);
		if (rc != SQLITE_OK)
			return fail(d, e, rc);
	}
	return 0;
}

int db_open(const char *path, struct db **ret, struct err *e)
{
	struct db *d = calloc(1, sizeof(*d));
	int rc, r;

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
		                  "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -512",
		                  NULL, NULL, NULL);
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

	for (size_t i = 0; i < d->ncache; i++)
		if (d->cache[i].sql == sql) {
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

const char *db_text(struct db_row *row, int column)
{
	const unsigned char *t = sqlite3_column_text(row->stmt, column);

	return t ? (const char *)t : "";
}

int64_t db_int(struct db_row *row, int column)
{
	return sqlite3_column_int64(row->stmt, column);
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
	if (!sqlite3_get_autocommit(d->sqlite))
		db_run(d, NULL, "ROLLBACK", "");
}

int db_checkpoint(const char *path)
{
	sqlite3 *s = NULL;
	int rc = sqlite3_open_v2(path, &s, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);

	if (rc == SQLITE_OK)
		rc = sqlite3_wal_checkpoint_v2(s, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
	sqlite3_close(s);
	return rc == SQLITE_OK || rc == SQLITE_BUSY ? 0 : -EIO;
}
