/*
 * db/audit.h - which token changed something through the API, on record
 *
 * Rows are written once and never changed; old ones are trimmed. api/audit.c collects them and
 * writes those of a second between db_begin() and db_commit().
 */
#pragma once
#include "db/db.h"

struct db_audit {
	int64_t seq; /* given by the table */
	const char *tenant;
	const char *actor; /* prefix of the token */
	const char *request_id, *method, *path;
	int status; /* of the answer */
	uint64_t at_ms;
};

/* row->seq does not count. */
int db_audit_insert(struct db *d, const struct db_audit *row, struct err *e);
/* The newest `keep` stay. */
int db_audit_trim(struct db *d, int64_t keep, struct err *e);

/* At most n since since_ms, the newest first. tenant NULL: of all. fn returns false to stop. */
int db_audit_each(struct db *d, const char *tenant, uint64_t since_ms, int64_t n,
                  bool (*fn)(void *arg, const struct db_audit *row), void *arg, struct err *e);
