/*
 * db/events.c - the table events
 */
#include "db/events.h"

#include "db/db_internal.h"

const struct db_table db_events_table = {
    .steps[0] = "CREATE TABLE events(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL,"
		" sandbox_id TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL,"
		" at INTEGER NOT NULL);"
		"CREATE INDEX events_sandbox ON events(sandbox_id, seq);",
};

/* The columns of every SELECT that events_tell() gets. */
#define COLUMNS "seq, tenant, sandbox_id, type, payload, at"

int db_event_insert(struct db *d, const struct db_event *row, struct err *e)
{
	return db_run(d, e, "INSERT INTO events(" COLUMNS ") VALUES(?, ?, ?, ?, ?, ?)", "itttti",
	              row->seq, row->tenant, row->sandbox_id, row->type, row->payload,
	              (int64_t)row->at_ms);
}

static bool events_number(void *arg, struct db_row *row)
{
	*(int64_t *)arg = db_int(row, 0);
	return false;
}

int db_events_last(struct db *d, int64_t *ret, struct err *e)
{
	return db_each(d, e, events_number, ret, "SELECT COALESCE(MAX(seq), 0) FROM events", "");
}

struct event_rows {
	db_event_fn *fn;
	void *arg;
};

static bool events_tell(void *arg, struct db_row *row)
{
	const struct event_rows *all = arg;
	const struct db_event ev = {.seq = db_int(row, 0),
	                            .tenant = db_text(row, 1),
	                            .sandbox_id = db_text(row, 2),
	                            .type = db_text(row, 3),
	                            .payload = db_text(row, 4),
	                            .at_ms = db_unsigned(row, 5)};

	return all->fn(all->arg, &ev);
}

int db_events_tail(struct db *d, const char *tenant, const char *sandbox_id, int64_t n,
                   db_event_fn *fn, void *arg, struct err *e)
{
	struct event_rows all = {.fn = fn, .arg = arg};

	if (sandbox_id)
		return db_each(d, e, events_tell, &all,
		               "SELECT * FROM (SELECT " COLUMNS " FROM events"
		               " WHERE sandbox_id = ? AND (? IS NULL OR tenant = ?)"
		               " ORDER BY seq DESC LIMIT ?) AS t ORDER BY seq",
		               "ttti", sandbox_id, tenant, tenant, n);
	return db_each(d, e, events_tell, &all,
	               "SELECT * FROM (SELECT " COLUMNS " FROM events"
	               " WHERE ? IS NULL OR tenant = ? ORDER BY seq DESC LIMIT ?) AS t"
	               " ORDER BY seq",
	               "tti", tenant, tenant, n);
}

int db_events_of_type(struct db *d, const char *tenant, const char *type, int64_t n,
                      db_event_fn *fn, void *arg, struct err *e)
{
	struct event_rows all = {.fn = fn, .arg = arg};

	return db_each(d, e, events_tell, &all,
	               "SELECT " COLUMNS " FROM events WHERE type = ? AND tenant = ?"
	               " ORDER BY seq DESC LIMIT ?",
	               "tti", type, tenant, n);
}

int db_events_trim_net(struct db *d, int64_t seq, struct err *e)
{
	return db_run(d, e, "DELETE FROM events WHERE seq <= ? AND type GLOB 'net.*'", "i", seq);
}

int db_events_trim(struct db *d, int64_t keep, struct err *e)
{
	return db_run(d, e,
	              "DELETE FROM events WHERE type NOT GLOB 'net.*' AND seq <="
	              " (SELECT seq FROM events WHERE type NOT GLOB 'net.*'"
	              " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
	              "i", keep);
}

int db_events_trim_type(struct db *d, const char *sandbox_id, const char *type, int64_t keep,
                        struct err *e)
{
	return db_run(d, e,
	              "DELETE FROM events WHERE sandbox_id = ? AND type = ? AND seq <="
	              " (SELECT seq FROM events WHERE sandbox_id = ? AND type = ?"
	              " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
	              "tttti", sandbox_id, type, sandbox_id, type, keep);
}
