/*
 * db/sandboxes.c - the table sandboxes
 */
#include "db/sandboxes.h"

#include "db/db_internal.h"

const struct db_table db_sandboxes_table = {
    .steps[0] = "CREATE TABLE sandboxes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL,"
		" state TEXT NOT NULL, created_at INTEGER NOT NULL, doc TEXT NOT NULL);",
};

int db_sandbox_insert(struct db *d, const struct db_sandbox *row, struct err *e)
{
	return db_run(
	    d, e, "INSERT INTO sandboxes(id, tenant, state, created_at, doc) VALUES(?, ?, ?, ?, ?)",
	    "tttit", row->id, row->tenant, row->state, (int64_t)row->created_ms, row->doc);
}

int db_sandbox_update(struct db *d, const char *id, const char *state, const char *doc,
                      struct err *e)
{
	return db_run(d, e, "UPDATE sandboxes SET state = ?, doc = ? WHERE id = ?", "ttt", state,
	              doc, id);
}

int db_sandbox_delete(struct db *d, const char *id, struct err *e)
{
	return db_run(d, e, "DELETE FROM sandboxes WHERE id = ?", "t", id);
}

int db_sandbox_known(struct db *d, const char *id, bool *ret, struct err *e)
{
	return db_exists(d, e, ret, "SELECT 1 FROM sandboxes WHERE id = ?", id);
}

struct sandbox_rows {
	bool (*fn)(void *arg, const struct db_sandbox *row);
	void *arg;
};

static bool sandboxes_tell(void *arg, struct db_row *row)
{
	const struct sandbox_rows *all = arg;
	const struct db_sandbox s = {.id = db_text(row, 0),
	                             .tenant = db_text(row, 1),
	                             .state = db_text(row, 2),
	                             .created_ms = db_unsigned(row, 3),
	                             .doc = db_text(row, 4)};

	return all->fn(all->arg, &s);
}

int db_sandboxes_each(struct db *d, bool (*fn)(void *arg, const struct db_sandbox *row), void *arg,
                      struct err *e)
{
	struct sandbox_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, sandboxes_tell, &all,
	               "SELECT id, tenant, state, created_at, doc FROM sandboxes"
	               " ORDER BY created_at",
	               "");
}
