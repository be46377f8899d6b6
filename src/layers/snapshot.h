/*
 * layers/snapshot.h - a machine on disk, written so that a crash leaves all of it or nothing
 *
 *   <store>/snapshots/<id>/manifest.json  state  <digest>[.zst]  <digest>.map ...
 *   <store>/snapshots/.tmp-<id>-<n>/      being written, being deleted, or left by a crash
 *   <store>/layers/<digest>[.zst]  <digest>.map
 *
 * Every snapshot is whole in its own directory. A layer that two snapshots share is one file with
 * two names (hard links), and one more in layers/, where the next writer finds it by digest. So
 * no code counts references: a layer in layers/ whose link count is 1 is in no snapshot.
 *
 * Kinds of errors: snapshot_not_found, snapshot_exists, snapshot_incomplete, snapshot_corrupt,
 * snapshot_foreign, snapshot_no_space, snapshot_invalid, snapshot_io, no_memory.
 */
#pragma once
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/set.h"

#define SNAPSHOT_STATE_MAX ((uint64_t)256 << 20)

enum {
	SNAPSHOT_ID_MAX = 64 /* of [a-z0-9_-], the first no '-' */
};

struct snapshot_store {
	int root, layers, snapshots;
	enum layer_form form; /* of layers that have to be copied into it from now on */
};

struct snapshot {
	struct manifest manifest;
	struct set memory;
	struct set disks[MANIFEST_DISKS_MAX]; /* empty for an image */
	int images[MANIFEST_DISKS_MAX];       /* fds; -1 unless it is an image */
	int state;                            /* fd */
};

enum snapshot_check {
	SNAPSHOT_SIZES, /* manifest and maps by digest, the rest by size: no data is read */
	SNAPSHOT_FULL,  /* every byte: after an import, or on request */
};

/* Makes the two directories when they are missing. Borrows dirfd. Negative errno. */
int snapshot_store_open(int dirfd, struct snapshot_store *ret);
void snapshot_store_close(struct snapshot_store *st);

/*
 * Writes memory, disks (m->ndisks sets; that of an image is not looked at) and the bytes of
 * state_fd. The caller fills m but for what describes the layers and the state; that is filled
 * in here. Layers that are in the store already are linked. When it returns 0, the snapshot is on
 * stable storage under its name; when it fails, it is not there and nothing else has changed.
 */
int snapshot_write(const struct snapshot_store *st, const char *id, struct manifest *m,
                   const struct set *memory, const struct set *disks, int state_fd, struct err *e);

/* Whether snapshot_load() would find all files, with the right sizes; unpacks and keeps nothing. */
int snapshot_look(const struct snapshot_store *st, const char *id, struct err *e);

/* Only what is in it: reads a file of at most MANIFEST_BYTES_MAX. Release with manifest_fini(). */
int snapshot_manifest(const struct snapshot_store *st, const char *id, struct manifest *ret,
                      struct err *e);

/* Opens everything. host NULL: wherever it may run. Caller owns *ret. */
int snapshot_load(const struct snapshot_store *st, const char *id, const struct manifest_host *host,
                  enum snapshot_check check, struct snapshot **ret, struct err *e);
void snapshot_free(struct snapshot *s);
void snapshot_freep(struct snapshot **s);

/* Has another name from now on, also after a crash. snapshot_exists, snapshot_not_found. */
int snapshot_rename(const struct snapshot_store *st, const char *id, const char *to, struct err *e);

/* Gone in one rename; machines that run from its layers are not disturbed. */
int snapshot_delete(const struct snapshot_store *st, const char *id, struct err *e);

/*
 * Removes what crashes left and layers that no snapshot has. Safe at any time, beside writers
 * too: they hold a lock on their directory. Counts into the results, which may be NULL. Returns
 * the first error but does what it can.
 */
int snapshot_gc(const struct snapshot_store *st, unsigned *ret_dirs, unsigned *ret_layers);
