#include "layers/pass.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "layers/layer.h"
#include "layers/sparse.h"

struct pass {
	const struct layer *l;
	int to; /* -1: hash only */
	off_t size;

	pthread_mutex_t lock; /* of all below */
	off_t next;           /* where to look for the next chunk */
	off_t begun;          /* up to here the disk was told to begin */
	off_t copied;         /* bytes, since then */
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

/* Notes the chunk; and when enough has come together, lets the disk begin with it. */
static int note(struct pass *p, off_t off, const struct digest *d)
{
	off_t from = 0, n = 0;
	int r;

	pthread_mutex_lock(&p->lock);
	r = index_add(p->index, (uint64_t)off / INDEX_CHUNK, d, &p->room);
	p->copied += INDEX_CHUNK;
	if (p->to >= 0 && p->copied >= PASS_WRITE_BACK && off > p->begun) {
		from = p->begun;
		n = off - from;
		p->begun = off;
		p->copied = 0;
	}
	pthread_mutex_unlock(&p->lock);
	/* Only a hint: what it misses is found by the fsync that must come. */
	if (n > 0)
		sync_file_range(p->to, from, n, SYNC_FILE_RANGE_WRITE);
	return r;
}

static int do_chunk(struct pass *p, struct sha *sha, unsigned char *buf, off_t off)
{
	size_t len = (size_t)MIN((off_t)INDEX_CHUNK, p->size - off);
	struct digest d;
	int r = io_pread_full(p->l->fd, buf, len, off);

	if (r < 0)
		return r;
	memset(buf + len, 0, INDEX_CHUNK - len);
	if (!mask_chunk(&p->l->map, (uint64_t)off / MAP_PAGE, buf))
		return 0;
	if (p->to >= 0)
		r = sparse_write(p->to, buf, len, off);
	if (r == 0)
		r = sha_add(sha, buf, INDEX_CHUNK);
	if (r == 0)
		r = sha_done(sha, &d);
	return r < 0 ? r : note(p, off, &d);
}

static void *work(void *arg)
{
	struct pass *p = arg;
	AUTO(sha_freep) struct sha *sha = NULL;
	autofree unsigned char *buf = malloc(INDEX_CHUNK);
	int r = buf ? sha_new(&sha) : -ENOMEM;
	off_t off;

	while (r == 0 && (off = claim(p)) < p->size)
		r = do_chunk(p, sha, buf, off);
	pthread_mutex_lock(&p->lock);
	if (p->r == 0)
		p->r = r;
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static unsigned helpers(const struct layer *l)
{
	uint64_t n = map_pages(&l->map) / PASS_THREAD_PAGES;
	cpu_set_t cpus;

	if (n <= 1 || sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return 0;
	n = MIN(n, (uint64_t)CPU_COUNT(&cpus));
	return (unsigned)MIN(n, (uint64_t)PASS_THREADS_MAX) - 1; /* the caller is one, too */
}

int pass_run(const struct layer *l, int to, struct index *ret)
{
	struct pass p = {.l = l,
	                 .to = to,
	                 .size = (off_t)(l->pages * MAP_PAGE),
	                 .index = ret,
	                 .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t threads[PASS_THREADS_MAX];
	unsigned want = helpers(l), n = 0;

	while (n < want && pthread_create(&threads[n], NULL, work, &p) == 0)
		n++;
	work(&p);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	pthread_mutex_destroy(&p.lock);
	if (p.r == 0 && n > 0)
		index_sort(ret);
	return p.r;
}
