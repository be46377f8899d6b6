#include "layers/pass.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/crew.h"
#include "layers/digest.h"
#include "layers/index.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/sparse.h"
#include "layers/squash.h"

struct pass {
	const struct layer *l;
	int to; /* -1: hash only */
	enum pass_form form;
	off_t size;

	pthread_mutex_t lock;       /* of all below */
	off_t next;                 /* where to look for the next chunk */
	off_t written;              /* bytes that went to the file */
	off_t begun, begun_written; /* up to here the disk was told to begin; written then */
	off_t end;                  /* of a stream */
	struct index *index;
	size_t room;
	int r; /* the first error; who finds one stops */
};

/* Zeros the pages of a chunk that the layer does not provide; false when nothing is left. */
static bool mask_chunk(const struct map *map, uint64_t page, unsigned char *data)
{
	static const unsigned char zeros[MAP_PAGE];
	bool any = false;
	uint64_t same;

	for (uint64_t i = 0; i < INDEX_CHUNK_PAGES; i += same) {
		bool in = map_has(map, page + i, &same);

		same = MIN(same, INDEX_CHUNK_PAGES - i);
		if (!in)
			memset(data + i * MAP_PAGE, 0, same * MAP_PAGE);
		for (uint64_t k = i; in && !any && k < i + same; k++)
			any = memcmp(data + k * MAP_PAGE, zeros, MAP_PAGE) != 0;
	}
	return any;
}

/* The next chunk that may hold something, for this thread alone; the size when there is none. */
static off_t claim(struct pass *p)
{
	const struct map_run *run;
	off_t off;

	pthread_mutex_lock(&p->lock);
	off = p->next;
	for (;;) {
		off_t from;

		run = p->r == 0 ? map_find(&p->l->map, (uint64_t)off / MAP_PAGE) : NULL;
		if (!run) {
			off = p->size;
			break;
		}
		from = MAX(off, (off_t)(run->start * MAP_PAGE));
		off = sparse_data(p->l->fd, from, p->size);
		if (off < 0) {
			p->r = (int)off;
			off = p->size;
			break;
		}
		if (off == from) { /* else over a hole: look into the map again */
			off -= off % INDEX_CHUNK;
			break;
		}
	}
	p->next = MIN(off + (off_t)INDEX_CHUNK, p->size);
	pthread_mutex_unlock(&p->lock);
	return off;
}

/* What one thread needs. */
struct worker {
	unsigned char *buf;
	struct sha *sha;
	struct squasher *squasher;
};

static void worker_fini(struct worker *w)
{
	free(w->buf);
	sha_free(w->sha);
	squasher_free(w->squasher);
}

static int worker_init(struct worker *w, const struct pass *p)
{
	int r;

	w->buf = malloc(INDEX_CHUNK);
	if (!w->buf)
		return -ENOMEM;
	r = sha_new(&w->sha);
	if (r == 0 && p->form == PASS_SQUASH)
		r = squasher_new(&w->squasher);
	return r;
}

/*
 * Every 4 MiB the disk is told to begin with what is there. Only a hint: the piece another thread
 * is about to write is found by the fsync that must come.
 */
static void write_back(struct pass *p, off_t up_to, size_t n)
{
	off_t from = 0, len = 0;

	pthread_mutex_lock(&p->lock);
	p->written += (off_t)n;
	if (p->written - p->begun_written >= PASS_WRITE_BACK && up_to > p->begun) {
		from = p->begun;
		len = up_to - from;
		p->begun = up_to;
		p->begun_written = p->written;
	}
	pthread_mutex_unlock(&p->lock);
	if (len > 0)
		sync_file_range(p->to, from, len, SYNC_FILE_RANGE_WRITE);
}

static int put_squashed(struct pass *p, struct worker *w, uint64_t number)
{
	const unsigned char *record;
	size_t len;
	off_t at;
	int r = squash_chunk(w->squasher, number, w->buf, &record, &len);

	if (r < 0)
		return r;
	pthread_mutex_lock(&p->lock);
	at = p->end;
	p->end += (off_t)len;
	pthread_mutex_unlock(&p->lock);
	r = io_pwrite_full(p->to, record, len, at);
	if (r == 0)
		write_back(p, at, len);
	return r;
}

static int do_chunk(struct pass *p, struct worker *w, off_t off)
{
	uint64_t number = (uint64_t)off / INDEX_CHUNK;
	size_t len = (size_t)MIN((off_t)INDEX_CHUNK, p->size - off);
	struct digest d;
	int r = io_pread_full(p->l->fd, w->buf, len, off);

	if (r < 0)
		return r;
	memset(w->buf + len, 0, INDEX_CHUNK - len);
	if (!mask_chunk(&p->l->map, (uint64_t)off / MAP_PAGE, w->buf))
		return 0;
	if (p->to >= 0 && p->form == PASS_SQUASH) {
		r = put_squashed(p, w, number);
	} else if (p->to >= 0) {
		r = sparse_write(p->to, w->buf, len, off);
		if (r == 0)
			write_back(p, off, len);
	}
	if (r == 0)
		r = sha_add(w->sha, w->buf, INDEX_CHUNK);
	if (r == 0)
		r = sha_done(w->sha, &d);
	if (r < 0)
		return r;
	pthread_mutex_lock(&p->lock);
	r = index_add(p->index, number, &d, &p->room);
	pthread_mutex_unlock(&p->lock);
	return r;
}

static void *work(void *arg)
{
	struct pass *p = arg;
	AUTO(worker_fini) struct worker w = {0};
	int r = worker_init(&w, p);
	off_t off;

	while (r == 0 && (off = claim(p)) < p->size)
		r = do_chunk(p, &w, off);
	pthread_mutex_lock(&p->lock);
	if (p->r == 0)
		p->r = r;
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Head and end of a stream: the number of records is known only now. */
static int frame_stream(const struct pass *p)
{
	unsigned char head[SQUASH_HEAD_LEN], end[SQUASH_RECORD_LEN];
	int r;

	squash_head(head);
	squash_end((uint32_t)p->index->nchunks, end);
	r = io_pwrite_full(p->to, head, sizeof(head), 0);
	return r < 0 ? r : io_pwrite_full(p->to, end, sizeof(end), p->end);
}

int pass_run(const struct layer *l, int to, enum pass_form form, struct index *ret)
{
	struct pass p = {.l = l,
	                 .to = to,
	                 .form = form,
	                 .size = (off_t)(l->pages * MAP_PAGE),
	                 .end = SQUASH_HEAD_LEN,
	                 .index = ret,
	                 .lock = PTHREAD_MUTEX_INITIALIZER};

	crew_run(crew_for(map_pages(&l->map)), work, &p);
	pthread_mutex_destroy(&p.lock);
	if (p.r < 0)
		return p.r;
	index_sort(ret);
	return to >= 0 && form == PASS_SQUASH ? frame_stream(&p) : 0;
}
