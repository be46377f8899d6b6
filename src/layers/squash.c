#include "layers/squash.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/bytes.h"
#include "layers/crew.h"
#include "layers/index.h"
#include "layers/map.h"

static const char squash_magic[8] = "PANDAZST";

enum {
	SQUASH_VERSION = 1,
	READ_BUF = 1 << 20,
};

_Static_assert(ZSTD_COMPRESSBOUND(65536) <= SQUASH_BOUND, "a frame may be longer");

struct squasher {
	ZSTD_CCtx *ctx;
	unsigned char pages[INDEX_CHUNK];
	unsigned char record[SQUASH_RECORD_LEN + SQUASH_BOUND];
};

void squash_head(unsigned char ret[SQUASH_HEAD_LEN])
{
	memset(ret, 0, SQUASH_HEAD_LEN);
	memcpy(ret, squash_magic, sizeof(squash_magic));
	put_le32(ret + 8, SQUASH_VERSION);
}

void squash_end(uint32_t records, unsigned char ret[SQUASH_RECORD_LEN])
{
	put_le64(ret, UINT64_MAX);
	put_le32(ret + 8, 0);
	put_le32(ret + 12, records);
}

void squasher_free(struct squasher *s)
{
	if (!s)
		return;
	ZSTD_freeCCtx(s->ctx);
	free(s);
}

void squasher_freep(struct squasher **s)
{
	squasher_free(*s);
}

int squasher_new(struct squasher **ret)
{
	AUTO(squasher_freep) struct squasher *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->ctx = ZSTD_createCCtx();
	if (!s->ctx)
		return -ENOMEM;
	if (ZSTD_isError(ZSTD_CCtx_setParameter(s->ctx, ZSTD_c_compressionLevel, SQUASH_LEVEL)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(s->ctx, ZSTD_c_checksumFlag, 1)))
		return -EIO;
	*ret = take_ptr(s);
	return 0;
}

int squash_chunk(struct squasher *s, uint64_t number, const unsigned char *chunk,
                 const unsigned char **ret, size_t *ret_len)
{
	static const unsigned char zeros[MAP_PAGE];
	uint32_t which = 0;
	size_t n = 0, len;

	for (unsigned i = 0; i < INDEX_CHUNK_PAGES; i++) {
		if (memcmp(chunk + i * MAP_PAGE, zeros, MAP_PAGE) == 0)
			continue;
		memcpy(s->pages + n, chunk + i * MAP_PAGE, MAP_PAGE);
		n += MAP_PAGE;
		which |= 1u << i;
	}
	len = ZSTD_compress2(s->ctx, s->record + SQUASH_RECORD_LEN, SQUASH_BOUND, s->pages, n);
	if (ZSTD_isError(len))
		return -EIO;
	put_le64(s->record, number);
	put_le32(s->record + 8, (uint32_t)len);
	put_le32(s->record + 12, which);
	*ret = s->record;
	*ret_len = SQUASH_RECORD_LEN + len;
	return 0;
}

/* --- unpacking -------------------------------------------------------------------------------- */

/* A window over the file, so that records of some hundred bytes cost no read each. */
struct window {
	int fd;
	uint64_t at, size; /* of the next byte, of the file */
	unsigned char *buf;
	size_t from, have;
};

/* The next n bytes, up to the next call. -EBADMSG: the file ends before. */
static int window_take(struct window *w, size_t n, const unsigned char **ret)
{
	if (n > w->size - w->at)
		return -EBADMSG;
	if (n > w->have) {
		size_t more = (size_t)MIN((uint64_t)READ_BUF, w->size - w->at);
		int r = io_pread_full(w->fd, w->buf, more, (off_t)w->at);

		if (r < 0)
			return r == -ENODATA ? -EBADMSG : r;
		w->from = 0;
		w->have = more;
	}
	*ret = w->buf + w->from;
	w->from += n;
	w->have -= n;
	w->at += n;
	return 0;
}

static int put_pages(uint64_t page, uint32_t which, const unsigned char *data, uint64_t pages,
                     const struct map *map, int to)
{
	unsigned n;

	for (unsigned i = 0; i < INDEX_CHUNK_PAGES; i += MAX(n, 1u)) {
		uint64_t same;
		int r;

		for (n = 0; which & 1u << (i + n); n++)
			if (page + i + n >= pages || !map_has(map, page + i + n, &same))
				return -EBADMSG; /* it would hide an older layer's */
		if (n == 0)
			continue;
		r = io_pwrite_full(to, data, n * MAP_PAGE, (off_t)((page + i) * MAP_PAGE));
		if (r < 0)
			return r;
		data += n * MAP_PAGE;
	}
	return 0;
}

struct unpacking {
	uint64_t pages;
	const struct map *map;
	int to;
	pthread_mutex_t lock; /* of all below */
	struct window window;
	uint32_t records;
	bool ended;
	int r;
};

struct squash_record {
	uint64_t number;
	uint32_t len, which;
	unsigned char frame[SQUASH_BOUND];
};

/* The next record, copied, with the lock held; 1 behind the last one. */
static int next_record(struct unpacking *u, struct squash_record *ret)
{
	const unsigned char *p;
	int r;

	if (u->r < 0 || u->ended)
		return 1;
	r = window_take(&u->window, SQUASH_RECORD_LEN, &p);
	if (r < 0)
		return r;
	ret->number = get_le64(p);
	ret->len = get_le32(p + 8);
	ret->which = get_le32(p + 12);
	if (ret->number == UINT64_MAX) {
		u->ended = true;
		return ret->len == 0 && ret->which == u->records && u->window.at == u->window.size
		           ? 1
		           : -EBADMSG;
	}
	if (ret->number >= MAP_PAGES_MAX / INDEX_CHUNK_PAGES || ret->len > SQUASH_BOUND ||
	    ret->which == 0 || ret->which >> INDEX_CHUNK_PAGES)
		return -EBADMSG;
	r = window_take(&u->window, ret->len, &p);
	if (r < 0)
		return r;
	memcpy(ret->frame, p, ret->len);
	u->records++;
	return 0;
}

static void free_dctx(ZSTD_DCtx **c)
{
	ZSTD_freeDCtx(*c);
}

static void *unpack(void *arg)
{
	struct unpacking *u = arg;
	AUTO(free_dctx) ZSTD_DCtx *ctx = ZSTD_createDCtx();
	autofree unsigned char *chunk = malloc(INDEX_CHUNK);
	autofree struct squash_record *rec = malloc(sizeof(*rec));
	int r = ctx && chunk && rec ? 0 : -ENOMEM;

	while (r == 0) {
		pthread_mutex_lock(&u->lock);
		r = next_record(u, rec);
		pthread_mutex_unlock(&u->lock);
		if (r != 0)
			break;
		if (ZSTD_decompressDCtx(ctx, chunk, INDEX_CHUNK, rec->frame, rec->len) !=
		    (size_t)__builtin_popcount(rec->which) * MAP_PAGE)
			r = -EBADMSG;
		else
			r = put_pages(rec->number * INDEX_CHUNK_PAGES, rec->which, chunk, u->pages,
			              u->map, u->to);
	}
	pthread_mutex_lock(&u->lock);
	if (r < 0 && u->r == 0)
		u->r = r;
	pthread_mutex_unlock(&u->lock);
	return NULL;
}

int squash_unpack(int fd, uint64_t pages, const struct map *map, int to)
{
	autofree unsigned char *buf = malloc(READ_BUF);
	struct unpacking u = {.pages = pages,
	                      .map = map,
	                      .to = to,
	                      .lock = PTHREAD_MUTEX_INITIALIZER,
	                      .window = {.fd = fd, .buf = buf}};
	unsigned char head[SQUASH_HEAD_LEN];
	const unsigned char *p;
	struct stat st;
	int r;

	if (!buf)
		return -ENOMEM;
	if (fstat(fd, &st) < 0)
		return -errno;
	u.window.size = (uint64_t)st.st_size;
	squash_head(head);
	r = window_take(&u.window, sizeof(head), &p);
	if (r == 0 && memcmp(p, head, sizeof(head)) != 0)
		r = -EBADMSG;
	if (r < 0)
		return r;
	crew_run(crew_for(map_pages(map)), unpack, &u);
	pthread_mutex_destroy(&u.lock);
	return u.r;
}
