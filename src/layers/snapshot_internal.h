/*
 * layers/snapshot_internal.h - between the files of layers/snapshot.h
 */
#pragma once
#include "layers/snapshot.h"

#define SNAPSHOT_TMP_PREFIX ".tmp-"
#define SNAPSHOT_MANIFEST   "manifest.json"
#define SNAPSHOT_STATE      "state"

enum {
	SNAPSHOT_TMP_NAME = sizeof(SNAPSHOT_TMP_PREFIX) + SNAPSHOT_ID_MAX + 12,
	SNAPSHOT_TMP_TRIES = 10000, /* that many left-overs of one id means that gc never runs */
};

/* What r means for the caller that asked for snapshot id; doing names what went on. Returns r. */
int snapshot_fail(struct err *e, int r, const char *id, const char *doing);
int snapshot_missing(const char *id, struct err *e);
int snapshot_check_id(const char *id, struct err *e);

/* An fd, or a negative errno. */
int snapshot_open_dir(int dirfd, const char *name);
/* Snapshots are flat: files only. Others may be removing the same one. */
int snapshot_remove_dir(int parent, const char *name);
/* Hashes fd up to its end and copies it to another one, unless that is -1. */
int snapshot_hash(int fd, int to, uint64_t max, struct digest *ret, uint64_t *ret_size);
