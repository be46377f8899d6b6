/*
 * db/tokens.c - the table tokens
 */
#include "db/tokens.h"

#include "db/db_internal.h"

const struct db_table db_tokens_table = {
    .steps[0] = "CREATE TABLE tokens(hash TEXT PRIMARY KEY, prefix TEXT NOT NULL UNIQUE,"
		" tenant TEXT NOT NULL, label TEXT NOT NULL, scopes TEXT NOT NULL,"
		" quota TEXT NOT NULL, created_at INTEGER NOT NULL);"
		"CREATE INDEX tokens_tenant ON tokens(tenant);",
};

#define COLUMNS "hash, prefix, tenant, label, scopes, quota, created_at"

int db_token_insert(struct db *d, const struct db_token *row, struct err *e)
{
	return db_run(d, e, "INSERT INTO tokens(" COLUMNS ") VALUES(?, ?, ?, ?, ?, ?, ?)",
	              "tttttti", row->hash, row->prefix, row->tenant, row->label, row->scopes,
	              row->quota, (int64_t)row->created_ms);
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
	                           .created_ms = db_unsigned(row, 6)};

	return all->fn(all->arg, &t);
}

int db_tokens_each(struct db *d, bool (*fn)(void *arg, const struct db_token *row), void *arg,
                   struct err *e)
{
	struct token_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, tokens_tell, &all, "SELECT " COLUMNS " FROM tokens", "");
}
