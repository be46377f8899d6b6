#include "core/parcel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "core/host_internal.h"
#include "layers/index.h"
#include "layers/sparse.h"

enum {
	BLOCK = 512,
	LOOK_EVERY = 64 << 20, /* bytes between two looks at the free space */
};

struct ustar {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100],
	    magic[6], version[2], rest[247];
};
_Static_assert(sizeof(struct ustar) == BLOCK, "a tar header");

static unsigned sum_of(const struct ustar *h)
{
	const unsigned char *p = (const unsigned char *)h;
	unsigned sum = 0;

	for (size_t i = 0; i < BLOCK; i++)
		sum += i >= offsetof(struct ustar, sum) && i < offsetof(struct ustar, type) ? ' '
		                                                                            : p[i];
	return sum;
}

static uint64_t padded(uint64_t n)
{
	return (n + BLOCK - 1) / BLOCK * BLOCK;
}

/* --- out -------------------------------------------------------------------------------------- */

struct member {
	char name[LAYER_NAME + 8];
	uint64_t size;
	int fd;                 /* owned unless it is a layer's */
	char *bytes;            /* or these */
	const struct layer *of; /* or chunks of this, */
	struct index index;     /* which has a table of them */
};

struct parcel_out {
	struct snapshot *snap;
	int dir;
	struct member *at;
	size_t n, cap, now;
	uint64_t off; /* in the member: header, content, padding */
	uint64_t length;
};

static int add(struct parcel_out *p, struct member m)
{
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 32;
		void *at = reallocarray(p->at, cap, sizeof(*p->at));

		if (!at)
			return -ENOMEM;
		p->at = at;
		p->cap = cap;
	}
	p->at[p->n++] = m;
	p->length += BLOCK + padded(m.size);
	return 0;
}

static int add_file(struct parcel_out *p, const char *name)
{
	autoclose int fd = openat(p->dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	struct member m = {.fd = -1};
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	snprintf(m.name, sizeof(m.name), "%s", name);
	m.size = (uint64_t)st.st_size;
	m.fd = fd;
	r = add(p, m);
	if (r == 0)
		take_fd(&fd);
	return r;
}

/* Bytes of a layer's i-th chunk with something in it; only the last of a file may be shorter. */
static uint64_t chunk_len(const struct index *x, size_t i, uint64_t pages)
{
	uint64_t off = x->chunks[i].number * INDEX_CHUNK;

	return MIN((uint64_t)INDEX_CHUNK, pages * MAP_PAGE - off);
}

static uint64_t chunks_len(const struct index *x, uint64_t pages)
{
	return x->nchunks
	           ? (x->nchunks - 1) * (uint64_t)INDEX_CHUNK + chunk_len(x, x->nchunks - 1, pages)
	           : 0;
}

/* A map file, head and table. */
static int parse_index(const char *bytes, size_t n, uint64_t pages, struct index *ret)
{
	struct index x = {0};
	size_t head, table;
	int r = n < INDEX_FIXED_LEN ? -EBADMSG : index_lengths(bytes, &head, &table);

	if (r == 0 && head + table != n)
		r = -EBADMSG;
	if (r == 0)
		r = index_parse_head(bytes, head, pages, &x);
	if (r == 0)
		r = index_parse_table(&x, bytes + head, table, pages);
	if (r < 0)
		index_fini(&x);
	else
		*ret = x;
	return r;
}

static int add_layer(struct parcel_out *p, const struct layer *l)
{
	char data[LAYER_NAME], map[LAYER_NAME];
	struct member m = {.fd = -1, .of = l};
	autofree char *bytes = NULL;
	size_t n;
	int r;

	layer_names(&l->digest, data, map);
	for (size_t k = 0; k < p->n; k++)
		if (!strcmp(p->at[k].name, map))
			return 0;
	r = add_file(p, map);
	if (r == 0)
		r = io_read_file(p->dir, map, PARCEL_MAP_MAX, &bytes, &n);
	if (r == 0)
		r = parse_index(bytes, n, l->pages, &m.index);
	if (r < 0)
		return r;
	snprintf(m.name, sizeof(m.name), "%s.data", data);
	m.size = chunks_len(&m.index, l->pages);
	r = m.size >> 33 ? -EFBIG : add(p, m); /* what a tar header can say */
	if (r < 0)
		index_fini(&m.index);
	return r;
}

static int add_set(struct parcel_out *p, const struct set *s)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < s->n; i++)
		r = add_layer(p, s->at[i]);
	return r;
}

static int add_record(struct parcel_out *p, const struct host_snapshot *s)
{
	json_t *j =
	    json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "format", "panda-snapshot-1", "name",
	              s->name, "template", s->template, "sandbox_id", s->sandbox_id, "generation",
	              (json_int_t)s->generation, "created_at_ms", (json_int_t)s->created_ms);
	struct member m = {.name = "record.json", .fd = -1};
	int r;

	m.bytes = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (!m.bytes)
		return -ENOMEM;
	m.size = strlen(m.bytes);
	r = add(p, m);
	if (r < 0)
		free(m.bytes);
	return r;
}

void parcel_close(struct parcel_out *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->n; i++) {
		closep(&p->at[i].fd);
		free(p->at[i].bytes);
		index_fini(&p->at[i].index);
	}
	free(p->at);
	closep(&p->dir);
	snapshot_free(p->snap);
	free(p);
}

int parcel_open(struct host *h, const struct host_snapshot *s, struct parcel_out **ret,
                struct err *e)
{
	struct parcel_out *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	p->dir = openat(h->store.snapshots, s->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = snapshot_load(&h->store, s->id, NULL, SNAPSHOT_SIZES, &p->snap, e);
	if (r < 0) {
		parcel_close(p);
		return r;
	}
	r = p->dir < 0 ? -ENOENT : add_record(p, s);
	if (r == 0)
		r = add_file(p, "manifest.json");
	if (r == 0)
		r = add_file(p, "state");
	if (r == 0)
		r = add_set(p, &p->snap->memory);
	for (size_t d = 0; r == 0 && d < p->snap->manifest.ndisks; d++)
		r = p->snap->manifest.disks[d].is_image ? -EOPNOTSUPP
		                                        : add_set(p, &p->snap->disks[d]);
	if (r < 0) {
		parcel_close(p);
		return err_set(e, -r, "snapshot_io", "cannot export snapshot %s: %s", s->id,
		               strerror(-r));
	}
	p->length += 2 * BLOCK;
	*ret = p;
	return 0;
}

uint64_t parcel_length(const struct parcel_out *p)
{
	return p->length;
}

static void header(const struct member *m, char ret[BLOCK])
{
	struct ustar h = {.type = '0'};

	snprintf(h.name, sizeof(h.name), "%s", m->name);
	snprintf(h.mode, sizeof(h.mode), "%07o", 0444);
	snprintf(h.uid, sizeof(h.uid), "%07o", 0);
	snprintf(h.gid, sizeof(h.gid), "%07o", 0);
	snprintf(h.size, sizeof(h.size), "%011llo", (unsigned long long)m->size);
	snprintf(h.mtime, sizeof(h.mtime), "%011o", 0);
	memcpy(h.magic, "ustar", 6);
	memcpy(h.version, "00", 2);
	snprintf(h.sum, sizeof(h.sum), "%06o", sum_of(&h));
	h.sum[7] = ' ';
	memcpy(ret, &h, BLOCK);
}

/* Some of the content from off on. */
static ssize_t content(struct member *m, uint64_t off, char *buf, size_t n)
{
	n = MIN((uint64_t)n, m->size - off);
	if (m->bytes) {
		memcpy(buf, m->bytes + off, n);
		return (ssize_t)n;
	}
	if (m->of) {
		size_t i = off / INDEX_CHUNK;
		uint64_t in = off % INDEX_CHUNK;

		n = MIN((uint64_t)n, chunk_len(&m->index, i, m->of->pages) - in);
		return pread(m->of->fd, buf, n,
		             (off_t)(m->index.chunks[i].number * INDEX_CHUNK + in));
	}
	return pread(m->fd, buf, n, (off_t)off);
}

ssize_t parcel_read(struct parcel_out *p, void *buf, size_t n)
{
	char *to = buf;
	size_t got = 0;

	while (got < n) {
		struct member *m = p->now < p->n ? &p->at[p->now] : NULL;
		uint64_t body = m ? m->size : 0, whole = m ? BLOCK + padded(body) : 2 * BLOCK;
		char head[BLOCK];
		ssize_t k;

		if (p->off == whole) {
			if (!m)
				break;
			p->now++;
			p->off = 0;
			continue;
		}
		if (m && p->off < BLOCK) {
			header(m, head);
			k = (ssize_t)MIN(n - got, BLOCK - p->off);
			memcpy(to + got, head + p->off, (size_t)k);
		} else if (m && p->off < BLOCK + body) {
			k = content(m, p->off - BLOCK, to + got, n - got);
			if (k == 0)
				return -EIO; /* it has become shorter */
			if (k < 0)
				return -errno;
		} else {
			k = (ssize_t)MIN((uint64_t)(n - got), whole - p->off);
			memset(to + got, 0, (size_t)k);
		}
		p->off += (uint64_t)k;
		got += (size_t)k;
	}
	return (ssize_t)got;
}

/* --- in --------------------------------------------------------------------------------------- */

struct parcel_in {
	struct host *host;
	char id[SANDBOX_ID + 1];
	int dir;
	enum { IN_HEAD, IN_BODY, IN_PADDING, IN_AFTER } where;
	char head[BLOCK];
	size_t have; /* of the header, or of piece */
	uint64_t left, padding, total, looked;
	char name[128];
	size_t members;

	/* the member */
	char *text; /* in memory: */
	size_t len;
	int fd; /* or to a file, */
	bool data;
	char piece[INDEX_CHUNK];
	size_t chunk; /* which one comes */

	bool has_manifest, has_state;
	json_t *record;
	struct manifest manifest;
	struct index index; /* of the layer whose data comes next */
	uint64_t map_of_pages;
	char map_of[LAYER_NAME];
};

static int bad(struct err *e, const char *what)
{
	return err_set(e, EINVAL, "parcel_invalid",
	               "this is no exported snapshot: %s; export it again and send it unchanged",
	               what);
}

static int io_failed(int r, struct err *e)
{
	return err_set(e, -r, r == -ENOSPC ? "disk_full" : "snapshot_io",
	               "cannot write the snapshot: %s", strerror(-r));
}

void parcel_free(struct parcel_in *p)
{
	if (!p)
		return;
	closep(&p->dir);
	closep(&p->fd);
	free(p->text);
	json_decref(p->record);
	if (p->has_manifest)
		manifest_fini(&p->manifest);
	index_fini(&p->index);
	free(p);
}

int parcel_begin(struct host *h, const char *id, struct parcel_in **ret, struct err *e)
{
	struct parcel_in *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	p->host = h;
	p->fd = p->dir = -1;
	snprintf(p->id, sizeof(p->id), "%s", id);
	if (mkdirat(h->store.snapshots, id, 0700) == 0)
		p->dir = openat(h->store.snapshots, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->dir < 0) {
		int r = -errno;

		parcel_free(p);
		return io_failed(r, e);
	}
	*ret = p;
	return 0;
}

/* How many pages the memory or disk has that this layer is of; 0: the manifest has no such layer.
 */
static uint64_t pages_of(const struct manifest *m, const char *hex)
{
	char data[LAYER_NAME], map[LAYER_NAME];

	for (size_t d = 0; d <= m->ndisks; d++) {
		const struct manifest_layers *l = d ? &m->disks[d - 1].layers : &m->memory;

		for (size_t i = 0; i < l->n; i++) {
			layer_names(&l->at[i].digest, data, map);
			if (!strcmp(data, hex))
				return (d ? m->disks[d - 1].size : m->memory_size) / MAP_PAGE;
		}
	}
	return 0;
}

static int create(struct parcel_in *p, const char *name, struct err *e)
{
	p->fd = openat(p->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	if (p->fd < 0 && errno == EEXIST)
		return bad(e, "a file comes twice");
	return p->fd < 0 ? io_failed(-errno, e) : 0;
}

/* A file begins: which one may it be now, and how long? */
static int begin_member(struct parcel_in *p, uint64_t size, struct err *e)
{
	char *dot = strchr(p->name, '.');
	uint64_t max = 0;
	int r = 0;

	p->left = size;
	p->padding = padded(size) - size;
	p->len = p->have = p->chunk = 0;
	p->data = false;
	if (++p->members > PARCEL_MEMBERS_MAX)
		return bad(e, "it has too many files");
	if (!p->record)
		max = strcmp(p->name, "record.json") ? 0 : PARCEL_RECORD_MAX;
	else if (!p->has_manifest)
		max = strcmp(p->name, "manifest.json") ? 0 : MANIFEST_BYTES_MAX;
	else if (!p->has_state) {
		if (!strcmp(p->name, "state") && size == p->manifest.state_size)
			return create(p, "state", e);
	} else if (dot && dot - p->name == DIGEST_TEXT - 1) {
		*dot = 0;
		if (!strcmp(dot + 1, "map")) {
			p->map_of_pages = pages_of(&p->manifest, p->name);
			max = p->map_of_pages ? PARCEL_MAP_MAX : 0;
			snprintf(p->map_of, sizeof(p->map_of), "%.*s", LAYER_NAME - 1, p->name);
		} else if (!strcmp(dot + 1, "data") && !strcmp(p->name, p->map_of) &&
		           size == chunks_len(&p->index, p->map_of_pages)) {
			p->map_of[0] = 0;
			p->data = true;
			r = create(p, p->name, e);
			if (r == 0 && ftruncate(p->fd, (off_t)(p->map_of_pages * MAP_PAGE)) < 0)
				r = io_failed(-errno, e);
			return r;
		}
		*dot = '.';
	}
	if (size == 0 || size > max)
		return bad(e, "a file is of the wrong name or size, or out of order");
	p->text = malloc(size + 1);
	return p->text ? 0 : err_set(e, ENOMEM, "no_memory", "no memory");
}

static int put_text(struct parcel_in *p, const char *name, struct err *e)
{
	int r = create(p, name, e);

	if (r == 0)
		r = io_write_full(p->fd, p->text, p->len);
	return r < 0 ? (e->code ? r : io_failed(r, e)) : 0;
}

static int take_map(struct parcel_in *p, struct err *e)
{
	index_fini(&p->index);
	p->index = (struct index){0};
	if (parse_index(p->text, p->len, p->map_of_pages, &p->index) < 0)
		return bad(e, "a map is damaged");
	return put_text(p, p->name, e);
}

static int end_member(struct parcel_in *p, struct err *e)
{
	int r = 0;

	if (p->text)
		p->text[p->len] = 0;
	e->code = 0;
	if (!p->record) {
		p->record = json_loads(p->text, JSON_REJECT_DUPLICATES, NULL);
		if (!json_is_object(p->record))
			r = bad(e, "record.json is damaged");
	} else if (!p->has_manifest) {
		r = manifest_parse(p->text, p->len, &p->manifest, e);
		p->has_manifest = r == 0;
		if (r == 0)
			r = put_text(p, "manifest.json", e);
		for (size_t d = 0; r == 0 && d < p->manifest.ndisks; d++)
			if (p->manifest.disks[d].is_image)
				r = bad(e, "it needs an image that is not in it");
	} else if (!p->has_state) {
		p->has_state = true;
	} else if (!p->data) {
		r = take_map(p, e);
	}
	if (r == 0 && p->fd >= 0 && fsync(p->fd) < 0)
		r = io_failed(-errno, e);
	closep(&p->fd);
	p->fd = -1;
	free(p->text);
	p->text = NULL;
	return r;
}

/* Each chunk goes to where the table says. */
static int put_chunks(struct parcel_in *p, const char *from, size_t n, struct err *e)
{
	while (n) {
		size_t want = chunk_len(&p->index, p->chunk, p->map_of_pages);
		size_t k = MIN(n, want - p->have);
		int r;

		memcpy(p->piece + p->have, from, k);
		p->have += k;
		from += k;
		n -= k;
		if (p->have < want)
			break;
		for (size_t i = 0; i < want / MAP_PAGE; i++) /* no digest speaks for these */
			if (!map_has(&p->index.map,
			             p->index.chunks[p->chunk].number * INDEX_CHUNK_PAGES + i,
			             NULL))
				memset(p->piece + i * MAP_PAGE, 0, MAP_PAGE);
		r = sparse_write(p->fd, p->piece, want,
		                 (off_t)(p->index.chunks[p->chunk].number * INDEX_CHUNK));
		if (r < 0)
			return io_failed(r, e);
		p->have = 0;
		p->chunk++;
	}
	return 0;
}

static int put(struct parcel_in *p, const char *from, size_t n, struct err *e)
{
	int r;

	if (p->text) {
		memcpy(p->text + p->len, from, n);
		p->len += n;
		return 0;
	}
	if (p->data)
		return put_chunks(p, from, n, e);
	r = io_write_full(p->fd, from, n);
	return r < 0 ? io_failed(r, e) : 0;
}

static int take_header(struct parcel_in *p, struct err *e)
{
	static const char zeros[BLOCK];
	struct ustar h;
	char number[13];
	unsigned long long size;
	char *end;

	memcpy(&h, p->head, BLOCK);
	p->have = 0;
	if (!memcmp(p->head, zeros, BLOCK)) {
		p->where = IN_AFTER;
		return 0;
	}
	snprintf(number, sizeof(number), "%.8s", h.sum);
	if (memcmp(h.magic, "ustar", 5) != 0 || strtoul(number, NULL, 8) != sum_of(&h) ||
	    (h.type != '0' && h.type))
		return bad(e, "it is no tar file of ours");
	snprintf(number, sizeof(number), "%.12s", h.size);
	size = strtoull(number, &end, 8);
	if (end == number || (*end && *end != ' ') || !memchr(h.name, 0, sizeof(h.name)))
		return bad(e, "a header is damaged");
	snprintf(p->name, sizeof(p->name), "%s", h.name);
	p->where = IN_BODY;
	return begin_member(p, size, e);
}

static int look_at_space(struct parcel_in *p, struct err *e)
{
	struct statvfs vfs;

	if (p->total > PARCEL_BYTES_MAX)
		return bad(e, "it is too long");
	if (p->total - p->looked < LOOK_EVERY)
		return 0;
	p->looked = p->total;
	if (fstatvfs(p->dir, &vfs) == 0 &&
	    (uint64_t)vfs.f_bavail * vfs.f_frsize < p->host->config.disk_reserve)
		return err_set(e, ENOSPC, "disk_full",
		               "there is no room for this snapshot: delete some, or volumes");
	return 0;
}

int parcel_feed(struct parcel_in *p, const void *buf, size_t n, struct err *e)
{
	const char *from = buf;
	int r;

	p->total += n;
	r = look_at_space(p, e);
	while (r == 0) {
		size_t k;

		if (p->where == IN_BODY && p->left == 0) {
			r = end_member(p, e);
			p->where = IN_PADDING;
			continue;
		}
		if (p->where == IN_PADDING && p->padding == 0)
			p->where = IN_HEAD;
		if (n == 0)
			break;
		switch (p->where) {
		case IN_HEAD:
			k = MIN(n, BLOCK - p->have);
			memcpy(p->head + p->have, from, k);
			p->have += k;
			if (p->have == BLOCK)
				r = take_header(p, e);
			break;
		case IN_BODY:
			k = (size_t)MIN((uint64_t)n, p->left);
			p->left -= k;
			r = put(p, from, k, e);
			break;
		case IN_PADDING:
			k = (size_t)MIN((uint64_t)n, p->padding);
			p->padding -= k;
			break;
		default:
			k = n; /* tar pads its end as it likes */
		}
		from += k;
		n -= k;
	}
	return r;
}

static void text_of(const json_t *j, const char *key, char *buf, size_t n)
{
	const char *s = json_string_value(json_object_get(j, key));

	if (s && strlen(s) < n)
		snprintf(buf, n, "%s", s);
}

int parcel_end(struct parcel_in *p, struct host_snapshot *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct host *h = p->host;
	int64_t generation;
	int r;

	if (p->where != IN_AFTER || !p->has_state)
		return bad(e, "it is cut off");
	r = machine_load(&h->machines, &h->store, p->id, true, &image, e);
	if (r == 0 && (fsync(p->dir) < 0 || fsync(h->store.snapshots) < 0))
		r = io_failed(-errno, e);
	if (r < 0)
		return r;
	text_of(p->record, "name", ret->name, sizeof(ret->name));
	text_of(p->record, "template", ret->template, sizeof(ret->template));
	text_of(p->record, "sandbox_id", ret->sandbox_id, sizeof(ret->sandbox_id));
	generation = json_integer_value(json_object_get(p->record, "generation"));
	ret->generation = generation > 0 ? (uint64_t)generation : 1;
	ret->size_bytes = image_bytes(&image);
	return 0;
}

/* --- records ---------------------------------------------------------------------------------- */

static bool count_row(void *arg, struct db_row *row)
{
	*(uint64_t *)arg = (uint64_t)db_int(row, 0);
	return false;
}

int host_import_begin(struct host *h, const char *tenant, const struct quota *quota,
                      char ret[SANDBOX_ID + 1], struct err *e)
{
	uint64_t mine = 0;
	int r;

	r = host_admit(h, tenant, 0, 0, NULL, e);
	if (r < 0)
		return r;
	if (quota && quota->snapshots) {
		db_each(h->db, NULL, count_row, &mine,
		        "SELECT COUNT(*) FROM snapshots WHERE tenant = ?", "t", tenant);
		if (mine >= quota->snapshots)
			return err_set(e, EDQUOT, "quota_exceeded",
			               "your quota is %llu snapshots: delete some first",
			               (unsigned long long)quota->snapshots);
	}
	uuid_new(ret);
	r = db_run(h->db, e,
	           "INSERT INTO snapshots(id, tenant, sandbox_id, state, created_at, doc)"
	           " VALUES(?, ?, '', 'creating', ?, '{}')",
	           "tti", ret, tenant, (int64_t)(wall_ms()));
	fault_at("import.recorded");
	return r;
}

int host_import_end(struct host *h, const struct host_snapshot *s, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = snapshot_doc(s);
	autofree char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

	fault_at("import.verified");
	if (!text)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	return db_run(h->db, e,
	              "UPDATE snapshots SET state = 'ready', sandbox_id = ?, doc = ? WHERE id = ?",
	              "ttt", s->sandbox_id, text, s->id);
}

void host_import_undo(struct host *h, const char *id)
{
	snapshot_delete(&h->store, id, NULL);
	db_run(h->db, NULL, "DELETE FROM snapshots WHERE id = ?", "t", id);
}
