/*
 * db/events.c - the table events
 */
#include "db/events.h"

#include <string.h>

#include "db/db_internal.h"

const struct db_table db_events_table = {
    .steps[0] = "CREATE TABLE events(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL,"
		" sandbox_id TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL,"
		" at INTEGER NOT NULL);"
		"CREATE INDEX events_sandbox ON events(sandbox_id, seq);",
    .steps[2] = "ALTER TABLE events ADD COLUMN net INTEGER NOT NULL DEFAULT 0;"
		"UPDATE events SET net = 1 WHERE type GLOB 'net.*';"
		"CREATE INDEX events_share ON events(tenant, net, seq);",
};

/* The columns of every SELECT that events_tell() gets. */
#define COLUMNS "seq, tenant, sandbox_id, type, payload, at"

bool db_event_is_net(const char *type)
{
	return strncmp(type, "net.", 4) == 0;
}

int db_event_insert(struct db *d, const struct db_event *row, struct err *e)
{
	return db_run(d, e, "INSERT INTO events(" COLUMNS ", net) VALUES(?, ?, ?, ?, ?, ?, ?)",
	              "ittttii", row->seq, row->tenant, row->sandbox_id, row->type, row->payload,
	              (int64_t)row->at_ms, (int64_t)db_event_is_net(row->type));
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

int db_events_drop(struct db *d, const char *tenant, bool net, int64_t n, struct err *e)
{
	return db_run(d, e,
	              "DELETE FROM events WHERE seq IN"
	              " (SELECT seq FROM events WHERE tenant = ? AND net = ? ORDER BY seq LIMIT ?)",
	              "tii", tenant, (int64_t)net, n);
}

struct event_counts {
	bool (*fn)(void *arg, const char *tenant, bool net, uint64_t n);
	void *arg;
};

static bool events_count(void *arg, struct db_row *row)
{
	const struct event_counts *all = arg;

	return all->fn(all->arg, db_text(row, 0), db_int(row, 1) != 0, db_unsigned(row, 2));
}

int db_events_counts(struct db *d, bool (*fn)(void *arg, const char *tenant, bool net, uint64_t n),
                     void *arg, struct err *e)
{
	struct event_counts all = {.fn = fn, .arg = arg};

	return db_each(d, e, events_count, &all,
	               "SELECT tenant, net, COUNT(*) FROM events GROUP BY tenant, net", "");
}

int db_events_trim_type(struct db *d, const char *sandbox_id, const char *type, int64_t keep,
                        uint64_t *ret_n, struct err *e)
{
	int r = db_run(d, e,
	               "DELETE FROM events WHERE sandbox_id = ? AND type = ? AND seq <="
	               " (SELECT seq FROM events WHERE sandbox_id = ? AND type = ?"
	               " ORDER BY seq DESC LIMIT 1 OFFSET ?)",
	               "tttti", sandbox_id, type, sandbox_id, type, keep);

	*ret_n = r == 0 ? (uint64_t)db_changes(d) : 0;
	return r;
}
