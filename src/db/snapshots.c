/*
 * db/snapshots.c - the table snapshots
 */
#include "db/snapshots.h"

#include "db/db_internal.h"

const struct db_table db_snapshots_table = {
    .steps[0] = "CREATE TABLE snapshots(id TEXT PRIMARY KEY, tenant TEXT NOT NULL,"
		" sandbox_id TEXT NOT NULL, state TEXT NOT NULL, created_at INTEGER NOT NULL,"
		" doc TEXT NOT NULL);"
		"CREATE INDEX snapshots_tenant ON snapshots(tenant, created_at);",
};

/* The columns of every SELECT that snapshots_tell() gets. */
#define COLUMNS "id, tenant, sandbox_id, created_at, doc"

int db_snapshot_insert(struct db *d, const struct db_snapshot *row, struct err *e)
{
	return db_run(d, e,
	              "INSERT INTO snapshots(id, tenant, sandbox_id, state, created_at, doc)"
	              " VALUES(?, ?, ?, 'creating', ?, ?)",
	              "tttit", row->id, row->tenant, row->sandbox_id, (int64_t)row->created_ms,
	              row->doc);
}

int db_snapshot_ready(struct db *d, const char *id, const char *sandbox_id, const char *doc,
                      struct err *e)
{
	return db_run(d, e,
	              "UPDATE snapshots SET state = 'ready', sandbox_id = ?, doc = ? WHERE id = ?",
	              "ttt", sandbox_id, doc, id);
}

int db_snapshot_deleting(struct db *d, const char *id, struct err *e)
{
	return db_run(d, e, "UPDATE snapshots SET state = 'deleting' WHERE id = ?", "t", id);
}

int db_snapshot_delete(struct db *d, const char *id, struct err *e)
{
	return db_run(d, e, "DELETE FROM snapshots WHERE id = ?", "t", id);
}

struct snapshot_rows {
	db_snapshot_fn *fn;
	void *arg;
};

static bool snapshots_tell(void *arg, struct db_row *row)
{
	const struct snapshot_rows *all = arg;
	const struct db_snapshot s = {.id = db_text(row, 0),
	                              .tenant = db_text(row, 1),
	                              .sandbox_id = db_text(row, 2),
	                              .created_ms = db_unsigned(row, 3),
	                              .doc = db_text(row, 4)};

	return all->fn(all->arg, &s);
}

int db_snapshot_get(struct db *d, const char *tenant, const char *id, db_snapshot_fn *fn, void *arg,
                    struct err *e)
{
	struct snapshot_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, snapshots_tell, &all,
	               "SELECT " COLUMNS " FROM snapshots"
	               " WHERE state = 'ready' AND id = ? AND (? IS NULL OR tenant = ?)",
	               "ttt", id, tenant, tenant);
}

int db_snapshots_each(struct db *d, const char *tenant, const char *sandbox_id, db_snapshot_fn *fn,
                      void *arg, struct err *e)
{
	struct snapshot_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, snapshots_tell, &all,
	               "SELECT " COLUMNS " FROM snapshots"
	               " WHERE state = 'ready' AND (? IS NULL OR tenant = ?)"
	               " AND (? IS NULL OR sandbox_id = ?) ORDER BY created_at DESC, id",
	               "tttt", tenant, tenant, sandbox_id, sandbox_id);
}

int db_snapshots_owners(struct db *d, db_snapshot_fn *fn, void *arg, struct err *e)
{
	struct snapshot_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, snapshots_tell, &all,
	               "SELECT id, tenant, sandbox_id, created_at, '' FROM snapshots", "");
}

int db_snapshots_unfinished(struct db *d, db_snapshot_fn *fn, void *arg, struct err *e)
{
	struct snapshot_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, snapshots_tell, &all,
	               "SELECT " COLUMNS " FROM snapshots WHERE state <> 'ready'", "");
}

static bool snapshots_number(void *arg, struct db_row *row)
{
	*(uint64_t *)arg = db_unsigned(row, 0);
	return false;
}

int db_snapshots_count(struct db *d, const char *tenant, uint64_t *ret, struct err *e)
{
	return db_each(d, e, snapshots_number, ret,
	               "SELECT COUNT(*) FROM snapshots WHERE tenant = ?", "t", tenant);
}

int db_snapshot_known(struct db *d, const char *id, bool *ret, struct err *e)
{
	return db_exists(d, e, ret, "SELECT 1 FROM snapshots WHERE id = ?", id);
}
