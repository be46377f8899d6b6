/*
 * db/volumes.h - volumes and snapshots of volumes, on record
 *
 * A row is 'creating' while the file is made, 'ready' once the file is whole, 'deleting' while the
 * file is removed. Users see ready ones only; the next pandad removes the files of all others. Of a
 * ready row only the size changes, and it only grows: where size and file differ after a crash, the
 * size on record counts. Which sandbox has a volume is in the doc of the sandbox, not here.
 *
 * Tenant and name are the key for users; file is the key for what stays of a volume on disk.
 */
#pragma once
#include "db/db.h"

struct db_volume {
	const char *tenant, *name;
	const char *file;   /* a uuid: the name of its file in <data>/volumes, without .img */
	const char *kind;   /* "volume" or "snapshot" */
	const char *source; /* name of the volume it was copied from; "": of none */
	uint64_t size_bytes, created_ms;
};

/* As 'creating'. -EEXIST: the tenant has a volume or a snapshot of that name. */
int db_volume_insert(struct db *d, const struct db_volume *row, struct err *e);
/* Its file is whole: from 'creating' to 'ready'. */
int db_volume_ready(struct db *d, const char *file, struct err *e);
/* To that size, if it is smaller. */
int db_volume_grow(struct db *d, const char *tenant, const char *name, uint64_t size_bytes,
                   struct err *e);
/* Its file is about to go: from 'ready' to 'deleting'. */
int db_volume_deleting(struct db *d, const char *file, struct err *e);
/* Its file is gone. */
int db_volume_delete(struct db *d, const char *file, struct err *e);

typedef bool db_volume_fn(void *arg, const struct db_volume *row);

/* Calls fn once if the tenant has a ready one of that name. */
int db_volume_get(struct db *d, const char *tenant, const char *name, db_volume_fn *fn, void *arg,
                  struct err *e);
/* A tenant's ready ones, by name. snapshots_of NULL: volumes; a name: snapshots of that volume; "":
 * all. fn returns false to stop. */
int db_volumes_each(struct db *d, const char *tenant, const char *snapshots_of, db_volume_fn *fn,
                    void *arg, struct err *e);
/* At most n ready ones of all tenants, by file, from the one after `file` on: for a caller that
 * looks at all of them a few at a time. */
int db_volumes_after(struct db *d, const char *file, unsigned n, db_volume_fn *fn, void *arg,
                     struct err *e);
/* Of a tenant, in any state: how many there are, and the sum of their sizes. */
int db_volumes_usage(struct db *d, const char *tenant, uint64_t *ret_count, uint64_t *ret_bytes,
                     struct err *e);
/* Is there a row of that file, in any state? */
int db_volume_known(struct db *d, const char *file, bool *ret, struct err *e);

/* For the next pandad: those that are being made or deleted, away with their rows, and those that
 * are ready, of all tenants. */
int db_volumes_unfinished(struct db *d, db_volume_fn *fn, void *arg, struct err *e);
int db_volumes_delete_unfinished(struct db *d, struct err *e);
int db_volumes_ready(struct db *d, db_volume_fn *fn, void *arg, struct err *e);
