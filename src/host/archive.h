/*
 * host/archive.h - a snapshot as one file, to go to another host and back
 * A tar (ustar): record.json, manifest.json, state, and for each layer <digest>.map and
 * <digest>.data, which has only the 64 KiB chunks with something in them (layers/index.h), one
 * after the other. So its size is what is in it, not what the sparse files could hold, and its
 * length is known before the first byte.
 *
 * record.json has the digest of manifest.json, which has the digests and sizes of all else, and a
 * signature of the host (host/signature.h) over the rest of record.json: one signature is for every
 * byte. What came in without a signature that we can believe goes out without one.
 *
 * What comes in is a stranger's: names, sizes and order are checked as it comes, and every byte
 * against its digest before a client can see the snapshot. All of this blocks: on the pool.
 *
 * Kinds of errors: parcel_invalid, archive_untrusted, too_large, disk_full, bad_config,
 * snapshot_foreign, and snapshot_io and no_memory of layers/snapshot.h.
 */
#pragma once
#include "host/host.h"
#include "host/sandbox.h"
#include "layers/set.h"

enum {
	PARCEL_MEMBERS_MAX = 2 * 17 * SET_LAYERS_MAX + 3,
	PARCEL_RECORD_MAX = 64 << 10,
	PARCEL_MAP_MAX = 64 << 20, /* of one map file */
};

struct parcel_out;

int parcel_open(struct host *h, const struct host_snapshot *s, struct parcel_out **ret,
                struct err *e);
uint64_t parcel_length(const struct parcel_out *p);
/* The next up to n bytes; 0 at the end. Negative errno. */
ssize_t parcel_read(struct parcel_out *p, void *buf, size_t n);
void parcel_close(struct parcel_out *p);

struct parcel_in;

/* Into the store under this id, which must be on record as being made. any: also one without a
 * signature of a host that we know. */
int parcel_begin(struct host *h, const char *id, bool any, struct parcel_in **ret, struct err *e);
int parcel_feed(struct parcel_in *p, const void *buf, size_t n, struct err *e);
/* All has come: is it whole, sound, and of this host's kind? Fills all of *ret that the archive
 * decides. On stable storage when it returns 0. */
int parcel_end(struct parcel_in *p, struct host_snapshot *ret, struct err *e);
/* The files stay, see parcel_drop(). */
void parcel_free(struct parcel_in *p);
/* Deletes the files of an import that came to nothing; its parcel_in is free already. */
void parcel_drop(struct host *h, const char *id);

/* ---- with records; on the loop ---- */

/* A new id, on record as being made. quota as for host_snapshot(). too_many: HOST_IMPORTS_MAX. */
int host_import_begin(struct host *h, const char *tenant, const struct quota *quota,
                      char ret[SANDBOX_ID + 1], struct err *e);
/* It is there, with these: from now on it is seen. */
int host_import_end(struct host *h, const struct host_snapshot *s, struct err *e);
/* It is not: everything goes. Blocks for as long as a few files take to be removed. */
void host_import_undo(struct host *h, const char *id);
