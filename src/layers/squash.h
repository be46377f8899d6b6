/*
 * layers/squash.h - the data of a layer as a compressed stream (zstd), for what sleeps on disk
 * A machine cannot map it: it is unpacked into a memfd when the layer is opened. Little-endian:
 *
 *   head    "PANDAZST", u32 version 1, u32 zero
 *   record  u64 chunk number, u32 length, u32 which of its 16 pages, a zstd frame of those pages
 *   end     u64 -1, u32 0, u32 number of records
 *
 * Records stand in any order: several threads write them. A frame has a checksum, so that damage is
 * seen when it is unpacked, not only when a snapshot is verified. Digest and map of the layer are
 * those of its plain form.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct map;

enum {
	SQUASH_LEVEL = 1, /* of zstd: faster than most disks write */
	SQUASH_HEAD_LEN = 16,
	SQUASH_RECORD_LEN = 16,
	SQUASH_BOUND = 66560, /* no frame of a chunk is longer */
};

void squash_head(unsigned char ret[SQUASH_HEAD_LEN]);
void squash_end(uint32_t records, unsigned char ret[SQUASH_RECORD_LEN]);

/* One per thread. -ENOMEM. */
struct squasher;
int squasher_new(struct squasher **ret);
void squasher_free(struct squasher *s);
void squasher_freep(struct squasher **s);

/*
 * A record of the pages of this chunk that are not zero; *ret stays with the squasher. -EIO: zstd
 * refused.
 */
int squash_chunk(struct squasher *s, uint64_t number, const unsigned char *chunk,
                 const unsigned char **ret, size_t *ret_len);

/*
 * Writes the stream at fd into a file of this many pages that is all holes; pages that are not in
 * the map are left out. -EBADMSG when it is no whole, undamaged stream for such a layer.
 */
int squash_unpack(int fd, uint64_t pages, const struct map *map, int to);
