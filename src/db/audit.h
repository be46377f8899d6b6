/*
 * db/audit.h - which token changed something through the API, on record
 *
 * Rows are written once and never changed; old ones are dropped, of each tenant its own.
 * api/audit.c collects them and writes those of a second between db_begin() and db_commit(). Of
 * requests without a valid token, one row stands for many.
 */
#pragma once
#include "db/db.h"

struct db_audit {
	int64_t seq;        /* given by the table */
	const char *tenant; /* "": no token said whose */
	const char *actor;  /* prefix of the token */
	const char *request_id, *method, *path;
	int status; /* of the answer */
	uint64_t at_ms;
	const char *address; /* of the client */
	uint64_t count;      /* requests it stands for; method, path and time are of the first */
};

/* row->seq does not count. */
int db_audit_insert(struct db *d, const struct db_audit *row, struct err *e);
/* Away with the oldest n of a tenant. */
int db_audit_drop(struct db *d, const char *tenant, int64_t n, struct err *e);
/* How many rows each tenant has. */
int db_audit_counts(struct db *d, bool (*fn)(void *arg, const char *tenant, uint64_t n), void *arg,
                    struct err *e);

/* At most n since since_ms, the newest first. tenant NULL: of all. fn returns false to stop. */
int db_audit_each(struct db *d, const char *tenant, uint64_t since_ms, int64_t n,
                  bool (*fn)(void *arg, const struct db_audit *row), void *arg, struct err *e);
