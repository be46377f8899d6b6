/*
 * host/archive_internal.h - between the files of host/archive.h: what both directions know of a tar
 */
#pragma once
#include <jansson.h>

#include "layers/index.h"

enum { TAR_BLOCK = 512 };

struct tar_header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100],
	    magic[6], version[2], rest[247];
};
_Static_assert(sizeof(struct tar_header) == TAR_BLOCK, "a tar header");

/* The sum that belongs into a header, whatever is there now. */
unsigned tar_sum(const struct tar_header *h);

static inline uint64_t tar_padded(uint64_t n)
{
	return (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

/* What a signature is for: all of the record but its key "signature". Caller frees *ret. */
int parcel_signed_text(const json_t *record, char **ret);

/* Bytes of a layer's i-th chunk with something in it; only the last of a file may be shorter. */
uint64_t parcel_chunk_len(const struct index *x, size_t i, uint64_t pages);
/* Of all its chunks: the size of its .data. */
uint64_t parcel_chunks_len(const struct index *x, uint64_t pages);
/* A map file, head and table. Release *ret with index_fini(). */
int parcel_parse_index(const char *bytes, size_t n, uint64_t pages, struct index *ret);
