#include "vmm/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

struct state_record {
	uint32_t tag, len;
};

/* Every record begins at a multiple of 8, so that its content can be used in place. */
static size_t padded(size_t n)
{
	return (n + 7) & ~(size_t)7;
}

void *state_room(struct state_out *s, enum state_tag tag, size_t n)
{
	struct state_record rec = {tag, (uint32_t)n};
	size_t need = s->len + sizeof(rec) + padded(n);
	unsigned char *p;

	if (!s->error && (n > STATE_MAX || need > STATE_MAX))
		s->error = -EFBIG;
	if (s->error)
		return NULL;
	if (need > s->cap) {
		size_t cap = MIN(2 * s->cap, STATE_MAX);

		cap = MAX(need, cap);
		p = realloc(s->buf, cap);
		if (!p) {
			s->error = -ENOMEM;
			return NULL;
		}
		s->buf = p;
		s->cap = cap;
	}
	p = s->buf + s->len;
	memset(p + sizeof(rec), 0, padded(n));
	memcpy(p, &rec, sizeof(rec));
	s->len = need;
	return p + sizeof(rec);
}

void state_put(struct state_out *s, enum state_tag tag, const void *p, size_t n)
{
	void *room = state_room(s, tag, n);

	if (room && n)
		memcpy(room, p, n);
}

void state_out_fini(struct state_out *s)
{
	free(s->buf);
	*s = (struct state_out){0};
}

int state_write_to(const struct state_out *s, int fd)
{
	return s->error ? s->error : io_pwrite_full(fd, s->buf, s->len, 0);
}

int state_items(struct state_in *s, enum state_tag tag, size_t item, size_t max, const void **ret,
                size_t *ret_n)
{
	struct state_record rec;

	if (s->len - s->at < sizeof(rec))
		return -EBADMSG;
	memcpy(&rec, s->buf + s->at, sizeof(rec));
	if (rec.tag != tag || rec.len > s->len - s->at - sizeof(rec) ||
	    padded(rec.len) > s->len - s->at - sizeof(rec) || rec.len % item ||
	    rec.len / item > max)
		return -EBADMSG;
	*ret = s->buf + s->at + sizeof(rec);
	*ret_n = rec.len / item;
	s->at += sizeof(rec) + padded(rec.len);
	return 0;
}

int state_get(struct state_in *s, enum state_tag tag, void *p, size_t n)
{
	struct state_in before = *s;
	const void *at;
	size_t items;
	int r = state_items(s, tag, n ? n : 1, n ? 1 : 0, &at, &items);

	if (r == 0 && items != (n ? 1 : 0))
		r = -EBADMSG;
	if (r < 0) {
		*s = before;
		return r;
	}
	if (n)
		memcpy(p, at, n);
	return 0;
}

int state_read_from(int fd, struct state_in *s)
{
	autofree unsigned char *buf = NULL;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size <= 0)
		return -EBADMSG;
	if ((size_t)st.st_size > STATE_MAX)
		return -EFBIG;
	buf = malloc((size_t)st.st_size);
	if (!buf)
		return -ENOMEM;
	r = io_pread_full(fd, buf, (size_t)st.st_size, 0);
	if (r < 0)
		return r;
	*s = (struct state_in){.buf = take_ptr(buf), .len = (size_t)st.st_size};
	return 0;
}
