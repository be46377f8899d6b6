/*
 * layers/layer.h - one sealed layer: a sparse file and the map of the pages it provides
 * The data of page p stands at offset p * 4096. A page in the map whose file range is a hole
 * reads as zeros; a page that is not in the map comes from an older layer (set.h).
 *
 * A layer is born writable (layer_create_*), a machine writes it, and from the seal on no process
 * can: only then it may be shared. Layers are counted; not for use by two threads at once.
 */
#pragma once
#include "base/err.h"
#include "layers/digest.h"
#include "layers/map.h"
#include "layers/sync.h"
#include <stdatomic.h>

struct layer {
	int fd;         /* for reading; hand out freely, no holder can write through it */
	uint64_t pages; /* of the whole memory or disk, not of the map */
	struct map map;
	bool has_digest; /* known once the layer was saved or loaded */
	struct digest digest;
	atomic_uint refs; /* threads start machines from the same layers */
};

/* A writable fd of the given size, all holes. -EINVAL for 0 pages or too many. */
int layer_create_memfd(const char *name, uint64_t pages, int *ret);
int layer_create_file(int dirfd, const char *name, uint64_t pages, int *ret);

/*
 * Makes the memfd immutable for every process and wraps it; map moves into the layer on success.
 * -EBUSY: a process still has it mapped writable. -EPERM: its seals were closed without ours.
 * -EBADMSG: wrong size, or the map reaches past the end.
 */
int layer_seal_memfd(int fd, uint64_t pages, struct map *map, struct layer **ret);

/*
 * The same for a file: mode 0444, and a proof (a read lease) that no writable fd or mapping of
 * it exists any more. -EBUSY: one does. -EOPNOTSUPP: a file system without leases. Nothing is
 * synced: a live fork must not wait for a disk; layer_save() does it when it must last.
 */
int layer_seal_file(int dirfd, const char *name, uint64_t pages, struct map *map,
                    struct layer **ret);

/*
 * Takes up a layer that was sealed before, memfd or file, from a fd that may come from anywhere:
 * the seals or the absence of writers are looked at again. Errors as above.
 */
int layer_adopt(int fd, uint64_t pages, struct map *map, struct layer **ret);

/*
 * For a loop around those three: true, after a moment, while r is -EBUSY and the deadline has not
 * passed (*deadline_ms 0: it begins now). A machine has let go of a layer, yet the host may still
 * be taking the memory of its processes apart.
 */
bool layer_busy(int r, uint64_t *deadline_ms);

struct layer *layer_ref(struct layer *l);
void layer_unref(struct layer *l);
void layer_unrefp(struct layer **l);

enum layer_form {
	LAYER_PLAIN,
	LAYER_SQUASHED,
};

/*
 * Puts the layer into dirfd as <digest> and <digest>.map, mode 0444, both to be synced with the
 * list; the directory is the caller's, who alone may write in it. Hashing and copying are one pass
 * (pass.h), memory stays small. A sealed file on the same file system is linked, not copied. Sets
 * the digest; -EUCLEAN when the layer had another one before: its file has rotted.
 * LAYER_SQUASHED: what has to be copied is compressed, and is <digest>.zst (squash.h).
 */
int layer_save(struct layer *l, int dirfd, enum layer_form form, struct sync_list *sync);

/*
 * Opens <digest> from dirfd: size, map and the digest of the map are checked, the data is not. A
 * compressed one is unpacked into memory, and its checksums are looked at.
 * Kinds: snapshot_incomplete (a file is missing), snapshot_corrupt.
 */
int layer_open(int dirfd, const struct digest *digest, uint64_t pages, struct layer **ret,
               struct err *e);

/* Whether layer_open() would find its files, without unpacking anything. Kinds as above. */
int layer_look(int dirfd, const struct digest *digest, uint64_t pages, struct err *e);

/* Reads all data and compares it; the error names the first bad chunk. Kinds as above. */
int layer_verify(const struct layer *l, int dirfd, struct err *e);

enum { LAYER_NAME = DIGEST_TEXT + 4 };
void layer_names(const struct digest *d, char data[LAYER_NAME], char map[LAYER_NAME]);
void layer_squashed_name(const struct digest *d, char ret[LAYER_NAME]);
