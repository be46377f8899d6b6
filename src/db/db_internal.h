/*
 * db/db_internal.h - between db.c and the files of the tables: statements, rows and the schema
 */
#pragma once
#include "db/db.h"

/* ---- the schema ---- */

enum {
	DB_VERSION = 2, /* of the file: its user_version once db_open() is done with it */
};

/*
 * steps[n] is what the table contributes to bring a file of version n to version n + 1; NULL:
 * nothing. What is there has been released: add, never change. A new step raises DB_VERSION, and
 * test_upgrade.c gets the schema of the version before it.
 */
struct db_table {
	const char *steps[DB_VERSION];
};

extern const struct db_table db_tokens_table, db_sandboxes_table, db_snapshots_table,
    db_volumes_table, db_events_table, db_audit_table, db_settings_table;
