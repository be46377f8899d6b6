/*
 * vmm/state.h - the state file: all of a machine that is not memory and not a disk
 * Records of a tag, a length and bytes, one after the other, always in the same order. The
 * panda-vmm that wrote it may have been taken over by its guest: the reader takes a record only
 * with the tag and the length that must come next, and each owner judges what is in it. No I/O
 * here but in state_write_to() and state_read_from().
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define STATE_MAGIC 0x76646e61702d766bull
#define STATE_MAX   ((size_t)16 << 20) /* 65536 extents of memory and of each disk, and some more */

enum { STATE_VERSION = 3, STATE_OLDEST = 2 /* without STATE_CODE */ };

enum state_tag {
	STATE_HEAD = 1,
	STATE_EXTENTS,
	STATE_CPUID,
	STATE_VM,
	STATE_VCPU,
	STATE_MSRS,
	STATE_SERIAL,
	STATE_VIRTIO,
	STATE_QUEUE,
	STATE_DISK,
	STATE_VOLUME,
	STATE_HELD, /* instead of what follows: the vcpus as they were paused */
	STATE_END,
	STATE_CODE, /* after the extents; may be missing */
};

struct state_out {
	unsigned char *buf;
	size_t len, cap;
	int error; /* the first one; nothing is added after it */
};

struct state_in {
	const unsigned char *buf;
	size_t len, at;
};

void state_put(struct state_out *s, enum state_tag tag, const void *p, size_t n);
/* Room of n bytes for the record's content, to be filled before the next call; NULL on error. */
void *state_room(struct state_out *s, enum state_tag tag, size_t n);
void state_out_fini(struct state_out *s);
/* Writes it to an empty file. Returns s->error when there was one. */
int state_write_to(const struct state_out *s, int fd);

/* The next record must have this tag and this length. -EBADMSG. */
int state_get(struct state_in *s, enum state_tag tag, void *p, size_t n);
/* The next record, of any number of items. *ret points into the buffer, at a multiple of 8. */
int state_items(struct state_in *s, enum state_tag tag, size_t item, size_t max, const void **ret,
                size_t *ret_n);
/* Caller frees s->buf. -EFBIG, -EBADMSG. */
int state_read_from(int fd, struct state_in *s);
