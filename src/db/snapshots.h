/*
 * db/snapshots.h - snapshots of sandboxes, on record
 *
 * A row is 'creating' while the files are written, 'ready' once they are whole, 'deleting' while
 * they are removed. Users see ready ones only; the next pandad removes the files of all others. Id,
 * tenant and time of creation never change; sandbox and doc are final when the row is ready.
 *
 * What the keys of doc mean is host/snapshot.c's.
 */
#pragma once
#include "db/db.h"

struct db_snapshot {
	const char *id, *tenant;
	const char *sandbox_id; /* it was taken of; "": not known yet, it is being imported */
	const char *doc;        /* JSON: name, template, sizes */
	uint64_t created_ms;
};

/* As 'creating'. */
int db_snapshot_insert(struct db *d, const struct db_snapshot *row, struct err *e);
/* Its files are whole: from 'creating' to 'ready'. */
int db_snapshot_ready(struct db *d, const char *id, const char *sandbox_id, const char *doc,
                      struct err *e);
/* Its files are about to go: from 'ready' to 'deleting'. */
int db_snapshot_deleting(struct db *d, const char *id, struct err *e);
/* Its files are gone. */
int db_snapshot_delete(struct db *d, const char *id, struct err *e);

typedef bool db_snapshot_fn(void *arg, const struct db_snapshot *row);

/* Calls fn once if that one is ready and of that tenant (NULL: of any). */
int db_snapshot_get(struct db *d, const char *tenant, const char *id, db_snapshot_fn *fn, void *arg,
                    struct err *e);
/* Those that are ready, the newest first. tenant NULL: of all; sandbox_id NULL: of all. fn returns
 * false to stop. */
int db_snapshots_each(struct db *d, const char *tenant, const char *sandbox_id, db_snapshot_fn *fn,
                      void *arg, struct err *e);
/* All, in any state and in no order; doc is "". */
int db_snapshots_owners(struct db *d, db_snapshot_fn *fn, void *arg, struct err *e);
/* Those that are being made or deleted: for the next pandad. */
int db_snapshots_unfinished(struct db *d, db_snapshot_fn *fn, void *arg, struct err *e);

/* How many a tenant has, in any state. */
int db_snapshots_count(struct db *d, const char *tenant, uint64_t *ret, struct err *e);
/* Is there a row of that id, in any state? */
int db_snapshot_known(struct db *d, const char *id, bool *ret, struct err *e);
