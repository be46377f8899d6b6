#include "layers/index.h"

#include "base/cleanup.h"
#include "base/macro.h"
#include "layers/bytes.h"
#include "layers/digest.h"
#include "layers/map.h"

static const char index_magic[8] = "PANDALYR";

enum { INDEX_VERSION = 1 };

void index_fini(struct index *x)
{
	map_fini(&x->map);
	free(x->chunks);
	*x = (struct index){0};
}

int index_lengths(const void *fixed, size_t *ret_head, size_t *ret_table)
{
	const unsigned char *p = fixed;
	uint64_t map_len = get_le64(p + 48), n = get_le32(p + 12);

	if (memcmp(p, index_magic, sizeof(index_magic)) != 0 || get_le32(p + 8) != INDEX_VERSION ||
	    map_len < MAP_HEAD_LEN || map_len > MAP_BYTES_MAX ||
	    n > MAP_PAGES_MAX / INDEX_CHUNK_PAGES)
		return -EBADMSG;
	*ret_head = INDEX_FIXED_LEN + map_len;
	*ret_table = n * INDEX_ENTRY_LEN;
	return 0;
}

int index_parse_head(const void *head, size_t len, uint64_t pages, struct index *ret)
{
	const unsigned char *p = head;
	struct index x = {0};
	size_t head_len, table_len;
	int r;

	if (len < INDEX_FIXED_LEN)
		return -EBADMSG;
	r = index_lengths(p, &head_len, &table_len);
	if (r < 0)
		return r;
	if (len != head_len)
		return -EBADMSG;
	x.nchunks = table_len / INDEX_ENTRY_LEN;
	memcpy(x.table.b, p + 16, DIGEST_LEN);
	r = digest_bytes(p, len, &x.digest);
	if (r < 0)
		return r;
	r = map_parse(p + INDEX_FIXED_LEN, len - INDEX_FIXED_LEN, pages, &x.map);
	if (r < 0)
		return r;
	*ret = x;
	return 0;
}

int index_parse_table(struct index *x, const void *table, size_t len, uint64_t pages)
{
	const unsigned char *p = table;
	autofree struct index_chunk *chunks = NULL;
	struct digest d;
	uint64_t next = 0;
	int r;

	if (len != x->nchunks * INDEX_ENTRY_LEN)
		return -EBADMSG;
	r = digest_bytes(table, len, &d);
	if (r < 0)
		return r;
	if (!digest_equal(&d, &x->table))
		return -EBADMSG;
	chunks = calloc(x->nchunks + 1, sizeof(*chunks)); /* + 1: an empty table is not NULL */
	if (!chunks)
		return -ENOMEM;
	for (size_t i = 0; i < x->nchunks; i++, p += INDEX_ENTRY_LEN) {
		uint64_t number = get_le64(p), page = number * INDEX_CHUNK_PAGES, same;

		if (number < next || number >= MAP_PAGES_MAX / INDEX_CHUNK_PAGES)
			return -EBADMSG;
		if (page >= pages)
			return -EBADMSG;
		if (!map_has(&x->map, page, &same) && same >= INDEX_CHUNK_PAGES)
			return -EBADMSG; /* a digest for a chunk the layer does not provide */
		next = number + 1;
		chunks[i].number = number;
		memcpy(chunks[i].digest.b, p + 8, DIGEST_LEN);
	}
	free(x->chunks);
	x->chunks = take_ptr(chunks);
	return 0;
}

int index_add(struct index *x, uint64_t number, const struct digest *d, size_t *room)
{
	if (x->nchunks == *room) {
		size_t more = MAX(*room * 2, (size_t)64);
		struct index_chunk *bigger = realloc(x->chunks, more * sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		x->chunks = bigger;
		*room = more;
	}
	x->chunks[x->nchunks++] = (struct index_chunk){.number = number, .digest = *d};
	return 0;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = ((const struct index_chunk *)a)->number,
		 y = ((const struct index_chunk *)b)->number;

	return x < y ? -1 : x > y;
}

void index_sort(struct index *x)
{
	if (x->nchunks) /* without any there is no table either */
		qsort(x->chunks, x->nchunks, sizeof(*x->chunks), by_number);
}

int index_encode(struct index *x, uint64_t pages, unsigned char **ret, size_t *ret_len)
{
	autofree unsigned char *map = NULL, *buf = NULL;
	size_t map_len, head_len, table_len = x->nchunks * INDEX_ENTRY_LEN;
	unsigned char *p;
	int r;

	r = map_encode(&x->map, pages, &map, &map_len);
	if (r < 0)
		return r;
	head_len = INDEX_FIXED_LEN + map_len;
	buf = malloc(head_len + table_len);
	if (!buf)
		return -ENOMEM;
	p = buf + head_len;
	for (size_t i = 0; i < x->nchunks; i++, p += INDEX_ENTRY_LEN) {
		put_le64(p, x->chunks[i].number);
		memcpy(p + 8, x->chunks[i].digest.b, DIGEST_LEN);
	}
	r = digest_bytes(buf + head_len, table_len, &x->table);
	if (r < 0)
		return r;
	memcpy(buf, index_magic, sizeof(index_magic));
	put_le32(buf + 8, INDEX_VERSION);
	put_le32(buf + 12, (uint32_t)x->nchunks);
	memcpy(buf + 16, x->table.b, DIGEST_LEN);
	put_le64(buf + 48, map_len);
	memcpy(buf + INDEX_FIXED_LEN, map, map_len);
	r = digest_bytes(buf, head_len, &x->digest);
	if (r < 0)
		return r;
	*ret = take_ptr(buf);
	*ret_len = head_len + table_len;
	return 0;
}
