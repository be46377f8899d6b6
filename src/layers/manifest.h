/*
 * layers/manifest.h - manifest.json: what a snapshot is made of and where it may run
 * Bytes in, struct out, and back; no I/O. The file begins with {"sha256":"<64 hex digits>", and
 * that digest covers every byte behind this comma, so one flipped bit anywhere is seen before the
 * JSON is even parsed. This beginning and the field "format" stay the same in all future formats.
 * Only our own spelling is accepted: no other order of words, no blanks, no escapes.
 * All fields are required (template and parent may be null), unknown and double ones are refused.
 */
#pragma once
#include <stdint.h>

#include "base/err.h"
#include "layers/digest.h"

enum {
	MANIFEST_FORMAT = 1,
	MANIFEST_BYTES_MAX = 1 << 20,
	MANIFEST_TEXT = 128, /* engine, kernel, template, parent, disk name; with NUL */
	MANIFEST_PATH = 256,
	MANIFEST_FLAG = 32,
	MANIFEST_FLAGS_MAX = 1024,
	MANIFEST_DISKS_MAX = 16,
};

struct manifest_flags {
	char (*at)[MANIFEST_FLAG];
	size_t n;
};

struct manifest_layer {
	struct digest digest; /* also the name of its files, see layer_names() */
	uint64_t pages;       /* how many it provides */
};

struct manifest_layers {
	struct manifest_layer *at; /* oldest first; one may be listed twice */
	size_t n;
};

struct manifest_disk {
	char name[MANIFEST_TEXT];
	uint64_t size; /* bytes */
	bool read_only;
	bool is_image; /* one shared read-only file instead of layers */
	struct manifest_layers layers;
	struct digest image;
	char image_path[MANIFEST_PATH]; /* below the store, no ".." */
};

struct manifest {
	char engine[MANIFEST_TEXT];
	char kernel[MANIFEST_TEXT];      /* build id of the guest kernel */
	struct manifest_flags cpu_flags; /* the machine may have seen and kept these */
	uint64_t memory_size;            /* bytes */
	struct manifest_layers memory;
	struct manifest_disk disks[MANIFEST_DISKS_MAX];
	size_t ndisks;
	struct digest state; /* of the engine's own file */
	uint64_t state_size;
	char template[MANIFEST_TEXT]; /* "" when there is none */
	char parent[MANIFEST_TEXT];
	uint64_t created_at_ms; /* since 1970 */
};

/* What a host offers; engine and kernel are compared, the flags must be all there. */
struct manifest_host {
	const char *engine, *kernel;
	struct manifest_flags cpu_flags;
	const struct manifest_host *also; /* what it offers with another engine, or NULL */
};

void manifest_fini(struct manifest *m);

/* Kinds: snapshot_corrupt, snapshot_foreign (another format). Caller owns *ret. */
int manifest_parse(const char *buf, size_t len, struct manifest *ret, struct err *e);

/*
 * The whole file, NUL-terminated. Caller frees *ret. -EINVAL when a field holds what
 * manifest_parse() would refuse, -EFBIG past MANIFEST_BYTES_MAX, -ENOMEM.
 */
int manifest_print(const struct manifest *m, char **ret, size_t *ret_len);

/* May it run here? Kind: snapshot_foreign, naming what differs. */
int manifest_fits(const struct manifest *m, const struct manifest_host *host, struct err *e);

/* Words between spaces, as in /proc/cpuinfo. -EINVAL, -ENOMEM. Caller owns *ret. */
int manifest_flags_parse(const char *words, struct manifest_flags *ret);
void manifest_flags_fini(struct manifest_flags *f);
