/*
 * Files of older builds: their schema stands here word for word, never to be changed. When
 * DB_VERSION is raised, the schema of the version before it is added.
 */
#include <errno.h>
#include <sqlite3.h>
#include <unistd.h>

#include "db/audit.h"
#include "db/db_internal.h"
#include "db/events.h"
#include "db/sandboxes.h"
#include "db/settings.h"
#include "db/snapshots.h"
#include "db/tokens.h"
#include "db/volumes.h"
#include "db_bed.h"

#define VERSION_1                                                                                  \
	"CREATE TABLE tokens(hash TEXT PRIMARY KEY, prefix TEXT NOT NULL UNIQUE, tenant TEXT NOT " \
	"NULL, label TEXT NOT NULL, scopes TEXT NOT NULL, quota TEXT NOT NULL, created_at "        \
	"INTEGER NOT NULL);"                                                                       \
	"CREATE INDEX tokens_tenant ON tokens(tenant);"                                            \
	"CREATE TABLE sandboxes(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, state TEXT NOT NULL, "  \
	"created_at INTEGER NOT NULL, doc TEXT NOT NULL);"                                         \
	"CREATE TABLE snapshots(id TEXT PRIMARY KEY, tenant TEXT NOT NULL, sandbox_id TEXT NOT "   \
	"NULL, state TEXT NOT NULL, created_at INTEGER NOT NULL, doc TEXT NOT NULL);"              \
	"CREATE INDEX snapshots_tenant ON snapshots(tenant, created_at);"                          \
	"CREATE TABLE volumes(tenant TEXT NOT NULL, name TEXT NOT NULL, file TEXT NOT NULL "       \
	"UNIQUE, size INTEGER NOT NULL, state TEXT NOT NULL, created_at INTEGER NOT NULL, "        \
	"PRIMARY KEY(tenant, name));"                                                              \
	"CREATE TABLE events(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL, sandbox_id TEXT NOT "  \
	"NULL, type TEXT NOT NULL, payload TEXT NOT NULL, at INTEGER NOT NULL);"                   \
	"CREATE INDEX events_sandbox ON events(sandbox_id, seq);"                                  \
	"CREATE TABLE audit(seq INTEGER PRIMARY KEY, tenant TEXT NOT NULL, actor TEXT NOT NULL, "  \
	"request_id TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, status INTEGER NOT "  \
	"NULL, at INTEGER NOT NULL);"                                                              \
	"CREATE TABLE settings(key TEXT PRIMARY KEY, value TEXT NOT NULL);"                        \
	"PRAGMA user_version = 1;"

#define VERSION_2                                                             \
	VERSION_1                                                             \
	"ALTER TABLE volumes ADD COLUMN kind TEXT NOT NULL DEFAULT 'volume';" \
	"ALTER TABLE volumes ADD COLUMN source TEXT NOT NULL DEFAULT '';"     \
	"PRAGMA user_version = 2;"

#define VERSION_3                                                        \
	VERSION_2                                                        \
	"ALTER TABLE events ADD COLUMN net INTEGER NOT NULL DEFAULT 0;"  \
	"CREATE INDEX events_share ON events(tenant, net, seq);"         \
	"ALTER TABLE audit ADD COLUMN address TEXT NOT NULL DEFAULT '';" \
	"ALTER TABLE audit ADD COLUMN count INTEGER NOT NULL DEFAULT 1;" \
	"CREATE INDEX audit_tenant ON audit(tenant, seq);"               \
	"PRAGMA user_version = 3;"

#define VERSION_4                                                              \
	VERSION_3                                                              \
	"ALTER TABLE tokens ADD COLUMN maker TEXT NOT NULL DEFAULT '';"        \
	"ALTER TABLE tokens ADD COLUMN expires_at INTEGER NOT NULL DEFAULT 0;" \
	"PRAGMA user_version = 4;"

/* As a build of version 1 wrote them; one of version 2 could have. */
#define ROWS                                                                         \
	"INSERT INTO tokens(hash, prefix, tenant, label, scopes, quota, created_at)" \
	" VALUES('h', 'pds_1', 't', 'first', 'admin', '{}', 1);"                     \
	"INSERT INTO sandboxes(id, tenant, state, created_at, doc)"                  \
	" VALUES('sb', 't', 'running', 2, '{}');"                                    \
	"INSERT INTO snapshots(id, tenant, sandbox_id, state, created_at, doc)"      \
	" VALUES('s', 't', 'sb', 'ready', 3, '{}');"                                 \
	"INSERT INTO volumes(tenant, name, file, size, state, created_at)"           \
	" VALUES('t', 'data', 'f', 4096, 'ready', 4);"                               \
	"INSERT INTO events(seq, tenant, sandbox_id, type, payload, at)"             \
	" VALUES(9, 't', 'sb', 'sandbox.created', '', 5);"                           \
	"INSERT INTO audit(tenant, actor, request_id, method, path, status, at)"     \
	" VALUES('t', 'pds_1', 'r', 'POST', '/', 201, 6);"                           \
	"INSERT INTO settings(key, value) VALUES('preview_secret', '00ff');"

/* Instead of the file that the bed has made: one of an older build. */
static void make_old(struct db_bed *b, const char *sql)
{
	sqlite3 *s;

	db_close(b->db);
	b->db = NULL;
	assert_int_equal(unlink(b->path), 0);
	assert_int_equal(sqlite3_open(b->path, &s), SQLITE_OK);
	assert_int_equal(sqlite3_exec(s, sql, NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_close(s), SQLITE_OK);
}

struct schema {
	char text[8192];
};

static bool add_object(void *arg, struct db_row *row)
{
	struct schema *s = arg;
	size_t n = strlen(s->text);

	assert_in_range(n, 0, sizeof(s->text) - 2);
	snprintf(s->text + n, sizeof(s->text) - n, "%s %s\n", db_text(row, 0), db_text(row, 1));
	return true;
}

static void read_schema(struct db_bed *b, struct schema *ret)
{
	ret->text[0] = 0;
	assert_int_equal(db_each(b->db, &b->e, add_object, ret,
	                         "SELECT name, sql FROM sqlite_master ORDER BY rowid", ""),
	                 0);
}

static bool keep_number(void *arg, struct db_row *row)
{
	*(int64_t *)arg = db_int(row, 0);
	return false;
}

static int64_t number(struct db_bed *b, const char *sql)
{
	int64_t n = -1;

	assert_int_equal(db_each(b->db, &b->e, keep_number, &n, sql, ""), 0);
	return n;
}

static bool check_sandbox(void *arg, const struct db_sandbox *row)
{
	assert_string_equal(row->id, "sb");
	assert_string_equal(row->tenant, "t");
	assert_string_equal(row->state, "running");
	assert_string_equal(row->doc, "{}");
	assert_int_equal(row->created_ms, 2);
	return ++*(int *)arg;
}

static bool check_snapshot(void *arg, const struct db_snapshot *row)
{
	assert_string_equal(row->id, "s");
	assert_string_equal(row->sandbox_id, "sb");
	assert_int_equal(row->created_ms, 3);
	return ++*(int *)arg;
}

static bool check_volume(void *arg, const struct db_volume *row)
{
	assert_string_equal(row->name, "data");
	assert_string_equal(row->file, "f");
	assert_string_equal(row->kind, "volume");
	assert_string_equal(row->source, "");
	assert_int_equal(row->size_bytes, 4096);
	assert_int_equal(row->created_ms, 4);
	return ++*(int *)arg;
}

static bool check_event(void *arg, const struct db_event *row)
{
	assert_int_equal(row->seq, 9);
	assert_string_equal(row->type, "sandbox.created");
	assert_int_equal(row->at_ms, 5);
	return ++*(int *)arg;
}

static bool check_token(void *arg, const struct db_token *row)
{
	assert_string_equal(row->hash, "h");
	assert_string_equal(row->scopes, "admin");
	assert_int_equal(row->created_ms, 1);
	assert_string_equal(row->maker, "");
	assert_int_equal(row->expires_ms, 0);
	return ++*(int *)arg;
}

static bool check_audit(void *arg, const struct db_audit *row)
{
	assert_int_equal(row->seq, 1);
	assert_string_equal(row->method, "POST");
	assert_int_equal(row->status, 201);
	assert_int_equal(row->at_ms, 6);
	assert_string_equal(row->address, "");
	assert_int_equal(row->count, 1);
	return ++*(int *)arg;
}

/* ROWS, one of each table. */
static void check_rows(struct db_bed *b)
{
	char secret[16];
	int n = 0;

	assert_int_equal(db_sandboxes_each(b->db, check_sandbox, &n, &b->e), 0);
	assert_int_equal(db_snapshots_each(b->db, "t", "sb", check_snapshot, &n, &b->e), 0);
	assert_int_equal(db_volumes_each(b->db, "t", NULL, check_volume, &n, &b->e), 0);
	assert_int_equal(db_events_tail(b->db, "t", "sb", 9, check_event, &n, &b->e), 0);
	assert_int_equal(db_tokens_each(b->db, check_token, &n, &b->e), 0);
	assert_int_equal(db_audit_each(b->db, "t", 0, 9, check_audit, &n, &b->e), 0);
	assert_int_equal(n, 6);
	assert_int_equal(db_setting_get(b->db, "preview_secret", secret, sizeof(secret), &b->e), 0);
	assert_string_equal(secret, "00ff");
}

static void opens_as_a_new_one(struct db_bed *b, const char *old)
{
	struct schema fresh, upgraded;

	read_schema(b, &fresh);
	make_old(b, old);
	assert_int_equal(db_open(b->path, &b->db, &b->e), 0);
	read_schema(b, &upgraded);
	assert_string_equal(upgraded.text, fresh.text);
	assert_int_equal(number(b, "PRAGMA user_version"), DB_VERSION);
	check_rows(b);
	db_bed_reopen(b);
	check_rows(b);
}

static void a_file_of_version_1_is_brought_up_to_date(void **state)
{
	opens_as_a_new_one(*state, VERSION_1 ROWS);
}

static void a_file_of_version_2_is_brought_up_to_date(void **state)
{
	opens_as_a_new_one(*state, VERSION_2 ROWS);
}

static void a_file_of_version_3_is_brought_up_to_date(void **state)
{
	opens_as_a_new_one(*state, VERSION_3 ROWS);
}

static void a_file_of_version_4_opens_as_before(void **state)
{
	opens_as_a_new_one(*state, VERSION_4 ROWS);
}

static void events_of_the_network_are_told_from_others_after_an_upgrade(void **state)
{
	struct db_bed *b = *state;

	make_old(b, VERSION_2 "INSERT INTO events VALUES(1, 't', 's', 'net.refused', '', 0);"
	                      "INSERT INTO events VALUES(2, 't', 's', 'sandbox.created', '', 0);");
	assert_int_equal(db_open(b->path, &b->db, &b->e), 0);
	assert_int_equal(number(b, "SELECT SUM(seq) FROM events WHERE net = 1"), 1);
}

static void an_upgrade_that_fails_leaves_the_file_as_it_was(void **state)
{
	struct db_bed *b = *state;
	sqlite3 *s;
	sqlite3_stmt *q;

	/* One of the two columns is there already. */
	make_old(b, VERSION_1 ROWS "ALTER TABLE volumes ADD COLUMN source TEXT");
	assert_int_equal(db_open(b->path, &b->db, &b->e), -EIO);
	assert_string_equal(b->e.kind, "db_failed");
	assert_non_null(strstr(b->e.text, b->path));
	assert_null(b->db);
	assert_int_equal(sqlite3_open(b->path, &s), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(s,
	                                    "SELECT user_version, (SELECT COUNT(*) FROM"
	                                    " pragma_table_info('volumes') WHERE name = 'kind')"
	                                    " FROM pragma_user_version",
	                                    -1, &q, NULL),
	                 SQLITE_OK);
	assert_int_equal(sqlite3_step(q), SQLITE_ROW);
	assert_int_equal(sqlite3_column_int(q, 0), 1);
	assert_int_equal(sqlite3_column_int(q, 1), 0);
	sqlite3_finalize(q);
	sqlite3_close(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(a_file_of_version_1_is_brought_up_to_date),
	    db_bed_test(a_file_of_version_2_is_brought_up_to_date),
	    db_bed_test(a_file_of_version_3_is_brought_up_to_date),
	    db_bed_test(a_file_of_version_4_opens_as_before),
	    db_bed_test(events_of_the_network_are_told_from_others_after_an_upgrade),
	    db_bed_test(an_upgrade_that_fails_leaves_the_file_as_it_was),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
