/*
 * db/tokens.c - the table tokens
 */
#include "db/tokens.h"

#include "db/db.h"
#include "db/db_internal.h"

const struct db_table db_tokens_table = {
    .steps[0] = "CREATE TABLE tokens(hash TEXT PRIMARY KEY, prefix TEXT NOT NULL UNIQUE,"
		" tenant TEXT NOT NULL, label TEXT NOT NULL, scopes TEXT NOT NULL,"
		" quota TEXT NOT NULL, created_at INTEGER NOT NULL);"
		"CREATE INDEX tokens_tenant ON tokens(tenant);",
    .steps[3] = "ALTER TABLE tokens ADD COLUMN maker TEXT NOT NULL DEFAULT '';"
		"ALTER TABLE tokens ADD COLUMN expires_at INTEGER NOT NULL DEFAULT 0;",
};

#define COLUMNS "hash, prefix, tenant, label, scopes, quota, created_at, maker, expires_at"

int db_token_insert(struct db *d, const struct db_token *row, struct err *e)
{
	return db_run(d, e, "INSERT INTO tokens(" COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
	              "ttttttiti", row->hash, row->prefix, row->tenant, row->label, row->scopes,
	              row->quota, (int64_t)row->created_ms, row->maker ? row->maker : "",
	              (int64_t)row->expires_ms);
}

int db_token_rotate(struct db *d, const char *hash, const char *prefix, const char *new_hash,
                    const char *new_prefix, struct err *e)
{
	int r = db_begin(d, e);

	if (r < 0)
		return r;
	r = db_run(d, e, "UPDATE tokens SET hash = ?, prefix = ? WHERE hash = ?", "ttt", new_hash,
	           new_prefix, hash);
	if (r == 0)
		r = db_run(d, e, "UPDATE tokens SET maker = ? WHERE maker = ?", "tt", new_prefix,
		           prefix);
	if (r == 0)
		r = db_commit(d, e);
	else
		db_rollback(d);
	return r;
}

int db_token_orphan(struct db *d, const char *prefix, struct err *e)
{
	return db_run(d, e, "UPDATE tokens SET maker = '' WHERE maker = ?", "t", prefix);
}

int db_token_delete(struct db *d, const char *hash, struct err *e)
{
	return db_run(d, e, "DELETE FROM tokens WHERE hash = ?", "t", hash);
}

struct token_rows {
	bool (*fn)(void *arg, const struct db_token *row);
	void *arg;
};

static bool tokens_tell(void *arg, struct db_row *row)
{
	const struct token_rows *all = arg;
	const struct db_token t = {.hash = db_text(row, 0),
	                           .prefix = db_text(row, 1),
	                           .tenant = db_text(row, 2),
	                           .label = db_text(row, 3),
	                           .scopes = db_text(row, 4),
	                           .quota = db_text(row, 5),
	                           .created_ms = db_unsigned(row, 6),
	                           .maker = db_text(row, 7),
	                           .expires_ms = db_unsigned(row, 8)};

	return all->fn(all->arg, &t);
}

int db_tokens_each(struct db *d, bool (*fn)(void *arg, const struct db_token *row), void *arg,
                   struct err *e)
{
	struct token_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, tokens_tell, &all, "SELECT " COLUMNS " FROM tokens", "");
}
