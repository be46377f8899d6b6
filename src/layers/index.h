/*
 * layers/index.h - the map file that stands beside a layer's data on disk
 * Bytes in, struct out, no I/O. Little-endian:
 *
 *   head   "PANDALYR", u32 version 1, u32 number of chunks, SHA-256 of the table,
 *          u64 length of the map bytes, the map bytes (map.h)
 *   table  per chunk u64 chunk number, SHA-256 of its 64 KiB
 *
 * The digest of a layer is the SHA-256 of the head. It names size, map and, through the table,
 * every byte of data; yet a restore has to read and hash only the head. Only chunks with a
 * non-zero byte in a mapped page are in the table; they are hashed as 64 KiB with all unmapped
 * pages as zeros, so the digest depends on what the layer says, not on how its holes fell.
 */
#pragma once
#include "layers/digest.h"
#include "layers/map.h"

#define INDEX_CHUNK       65536u
#define INDEX_CHUNK_PAGES (INDEX_CHUNK / MAP_PAGE)
#define INDEX_FIXED_LEN   56u /* the head without its map bytes */
#define INDEX_ENTRY_LEN   40u

struct index_chunk {
	uint64_t number;
	struct digest digest;
};

struct index {
	struct map map;
	struct digest digest; /* of the layer */
	struct digest table;
	struct index_chunk *chunks; /* NULL while only the head was parsed */
	size_t nchunks;
};

void index_fini(struct index *x);

/* From the first INDEX_FIXED_LEN bytes: how long head and table are. -EBADMSG. */
int index_lengths(const void *fixed, size_t *ret_head, size_t *ret_table);

/* Exactly the head, for a layer of so many pages. -EBADMSG, -EFBIG, -ENOMEM, -EIO (OpenSSL). */
int index_parse_head(const void *head, size_t len, uint64_t pages, struct index *ret);

/* Adds the table to a parsed head. -EBADMSG when it is not the table the head speaks of. */
int index_parse_table(struct index *x, const void *table, size_t len, uint64_t pages);

/*
 * Appends a chunk while an index is being made; in the end numbers must ascend. -ENOMEM.
 * room is the caller's counter for the array, 0 at first.
 */
int index_add(struct index *x, uint64_t number, const struct digest *d, size_t *room);

/* For a caller that added out of order. */
void index_sort(struct index *x);

/* Head and table as one buffer; sets x->table and x->digest. Caller frees *ret. */
int index_encode(struct index *x, uint64_t pages, unsigned char **ret, size_t *ret_len);
