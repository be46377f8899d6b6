/*
 * db/audit.c - the table audit
 */
#include "db/audit.h"

#include "db/db_internal.h"

const struct db_table db_audit_table = {
    .steps[0] = "CREATE TABLE audit(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL,"
		" actor TEXT NOT NULL, request_id TEXT NOT NULL, method TEXT NOT NULL,"
		" path TEXT NOT NULL, status INTEGER NOT NULL, at INTEGER NOT NULL);",
    .steps[2] = "ALTER TABLE audit ADD COLUMN address TEXT NOT NULL DEFAULT '';"
		"ALTER TABLE audit ADD COLUMN count INTEGER NOT NULL DEFAULT 1;"
		"CREATE INDEX audit_tenant ON audit(tenant, seq);",
};

#define COLUMNS "tenant, actor, request_id, method, path, status, at, address, count"

int db_audit_insert(struct db *d, const struct db_audit *row, struct err *e)
{
	return db_run(d, e, "INSERT INTO audit(" COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
	              "tttttiiti", row->tenant, row->actor, row->request_id, row->method, row->path,
	              (int64_t)row->status, (int64_t)row->at_ms, row->address, (int64_t)row->count);
}

int db_audit_drop(struct db *d, const char *tenant, int64_t n, struct err *e)
{
	return db_run(d, e,
	              "DELETE FROM audit WHERE seq IN"
	              " (SELECT seq FROM audit WHERE tenant = ? ORDER BY seq LIMIT ?)",
	              "ti", tenant, n);
}

struct audit_counts {
	bool (*fn)(void *arg, const char *tenant, uint64_t n);
	void *arg;
};

static bool audit_count(void *arg, struct db_row *row)
{
	const struct audit_counts *all = arg;

	return all->fn(all->arg, db_text(row, 0), db_unsigned(row, 1));
}

int db_audit_counts(struct db *d, bool (*fn)(void *arg, const char *tenant, uint64_t n), void *arg,
                    struct err *e)
{
	struct audit_counts all = {.fn = fn, .arg = arg};

	return db_each(d, e, audit_count, &all,
	               "SELECT tenant, COUNT(*) FROM audit GROUP BY tenant", "");
}

struct audit_rows {
	bool (*fn)(void *arg, const struct db_audit *row);
	void *arg;
};

static bool audit_tell(void *arg, struct db_row *row)
{
	const struct audit_rows *all = arg;
	const struct db_audit a = {.seq = db_int(row, 0),
	                           .tenant = db_text(row, 1),
	                           .actor = db_text(row, 2),
	                           .request_id = db_text(row, 3),
	                           .method = db_text(row, 4),
	                           .path = db_text(row, 5),
	                           .status = (int)db_int(row, 6),
	                           .at_ms = db_unsigned(row, 7),
	                           .address = db_text(row, 8),
	                           .count = db_unsigned(row, 9)};

	return all->fn(all->arg, &a);
}

int db_audit_each(struct db *d, const char *tenant, uint64_t since_ms, int64_t n,
                  bool (*fn)(void *arg, const struct db_audit *row), void *arg, struct err *e)
{
	struct audit_rows all = {.fn = fn, .arg = arg};

	if (!tenant)
		return db_each(d, e, audit_tell, &all,
		               "SELECT seq, " COLUMNS " FROM audit"
		               " WHERE at >= ? ORDER BY seq DESC LIMIT ?",
		               "ii", (int64_t)since_ms, n);
	return db_each(d, e, audit_tell, &all,
	               "SELECT seq, " COLUMNS " FROM audit"
	               " WHERE at >= ? AND tenant = ? ORDER BY seq DESC LIMIT ?",
	               "iti", (int64_t)since_ms, tenant, n);
}
