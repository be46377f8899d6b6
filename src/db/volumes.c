/*
 * db/volumes.c - the table volumes
 */
#include "db/volumes.h"

#include "db/db_internal.h"

const struct db_table db_volumes_table = {
    .steps[0] = "CREATE TABLE volumes(tenant TEXT NOT NULL, name TEXT NOT NULL,"
		" file TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, state TEXT NOT NULL,"
		" created_at INTEGER NOT NULL, PRIMARY KEY(tenant, name));",
    /* snapshots of volumes */
    .steps[1] = "ALTER TABLE volumes ADD COLUMN kind TEXT NOT NULL DEFAULT 'volume';"
		"ALTER TABLE volumes ADD COLUMN source TEXT NOT NULL DEFAULT '';",
};

/* The columns of every SELECT that volumes_tell() gets. */
#define COLUMNS "tenant, name, file, size, created_at, kind, source"

int db_volume_insert(struct db *d, const struct db_volume *row, struct err *e)
{
	return db_run(d, e,
	              "INSERT INTO volumes(tenant, name, file, size, state, created_at, kind,"
	              " source) VALUES(?, ?, ?, ?, 'creating', ?, ?, ?)",
	              "tttiitt", row->tenant, row->name, row->file, (int64_t)row->size_bytes,
	              (int64_t)row->created_ms, row->kind, row->source);
}

int db_volume_ready(struct db *d, const char *file, struct err *e)
{
	return db_run(d, e, "UPDATE volumes SET state = 'ready' WHERE file = ?", "t", file);
}

int db_volume_grow(struct db *d, const char *tenant, const char *name, uint64_t size_bytes,
                   struct err *e)
{
	return db_run(d, e,
	              "UPDATE volumes SET size = ? WHERE tenant = ? AND name = ? AND size < ?",
	              "itti", (int64_t)size_bytes, tenant, name, (int64_t)size_bytes);
}

int db_volume_deleting(struct db *d, const char *file, struct err *e)
{
	return db_run(d, e, "UPDATE volumes SET state = 'deleting' WHERE file = ?", "t", file);
}

int db_volume_delete(struct db *d, const char *file, struct err *e)
{
	return db_run(d, e, "DELETE FROM volumes WHERE file = ?", "t", file);
}

struct volume_rows {
	db_volume_fn *fn;
	void *arg;
};

static bool volumes_tell(void *arg, struct db_row *row)
{
	const struct volume_rows *all = arg;
	const struct db_volume v = {.tenant = db_text(row, 0),
	                            .name = db_text(row, 1),
	                            .file = db_text(row, 2),
	                            .size_bytes = db_unsigned(row, 3),
	                            .created_ms = db_unsigned(row, 4),
	                            .kind = db_text(row, 5),
	                            .source = db_text(row, 6)};

	return all->fn(all->arg, &v);
}

int db_volume_get(struct db *d, const char *tenant, const char *name, db_volume_fn *fn, void *arg,
                  struct err *e)
{
	struct volume_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, volumes_tell, &all,
	               "SELECT " COLUMNS " FROM volumes"
	               " WHERE tenant = ? AND name = ? AND state = 'ready'",
	               "tt", tenant, name);
}

int db_volumes_each(struct db *d, const char *tenant, const char *snapshots_of, db_volume_fn *fn,
                    void *arg, struct err *e)
{
	struct volume_rows all = {.fn = fn, .arg = arg};

	if (snapshots_of && !snapshots_of[0])
		return db_each(d, e, volumes_tell, &all,
		               "SELECT " COLUMNS " FROM volumes WHERE tenant = ?"
		               " AND state = 'ready' ORDER BY name",
		               "t", tenant);
	if (snapshots_of)
		return db_each(d, e, volumes_tell, &all,
		               "SELECT " COLUMNS " FROM volumes WHERE tenant = ? AND source = ?"
		               " AND kind = 'snapshot' AND state = 'ready' ORDER BY name",
		               "tt", tenant, snapshots_of);
	return db_each(d, e, volumes_tell, &all,
	               "SELECT " COLUMNS " FROM volumes WHERE tenant = ? AND kind = 'volume'"
	               " AND state = 'ready' ORDER BY name",
	               "t", tenant);
}

int db_volumes_after(struct db *d, const char *file, unsigned n, db_volume_fn *fn, void *arg,
                     struct err *e)
{
	struct volume_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, volumes_tell, &all,
	               "SELECT " COLUMNS " FROM volumes WHERE file > ? AND state = 'ready'"
	               " ORDER BY file LIMIT ?",
	               "ti", file, (int64_t)n);
}

struct volumes_usage {
	uint64_t count, bytes;
};

static bool volumes_add_up(void *arg, struct db_row *row)
{
	struct volumes_usage *u = arg;

	u->count = db_unsigned(row, 0);
	u->bytes = db_unsigned(row, 1);
	return false;
}

int db_volumes_usage(struct db *d, const char *tenant, uint64_t *ret_count, uint64_t *ret_bytes,
                     struct err *e)
{
	struct volumes_usage u = {0};
	int r = db_each(d, e, volumes_add_up, &u,
	                "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM volumes WHERE tenant = ?",
	                "t", tenant);

	if (r < 0)
		return r;
	*ret_count = u.count;
	*ret_bytes = u.bytes;
	return 0;
}

int db_volume_known(struct db *d, const char *file, bool *ret, struct err *e)
{
	return db_exists(d, e, ret, "SELECT 1 FROM volumes WHERE file = ?", file);
}

int db_volumes_unfinished(struct db *d, db_volume_fn *fn, void *arg, struct err *e)
{
	struct volume_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, volumes_tell, &all,
	               "SELECT " COLUMNS " FROM volumes WHERE state <> 'ready'", "");
}

int db_volumes_delete_unfinished(struct db *d, struct err *e)
{
	return db_run(d, e, "DELETE FROM volumes WHERE state <> 'ready'", "");
}

int db_volumes_ready(struct db *d, db_volume_fn *fn, void *arg, struct err *e)
{
	struct volume_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, volumes_tell, &all,
	               "SELECT " COLUMNS " FROM volumes WHERE state = 'ready'", "");
}
