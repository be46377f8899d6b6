/*
 * host/archive_out.c - a snapshot leaves: a tar is made while it is read
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "host/archive.h"
#include "host/archive_internal.h"
#include "host/host.h"
#include "host/signature.h"
#include "layers/digest.h"
#include "layers/index.h"
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/set.h"
#include "layers/snapshot.h"

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
	p->length += TAR_BLOCK + tar_padded(m.size);
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
		r = parcel_parse_index(bytes, n, l->pages, &m.index);
	if (r < 0)
		return r;
	snprintf(m.name, sizeof(m.name), "%s.data", data);
	m.size = parcel_chunks_len(&m.index, l->pages);
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

/* Of all that the record says: in our name only what we took, or believe. */
static int sign_record(const struct signature_key *key, json_t *record)
{
	autofree char *text = NULL;
	char value[SIGNATURE_VALUE];
	int r = parcel_signed_text(record, &text);

	if (r == 0)
		r = signature_make(key, text, strlen(text), value);
	if (r < 0)
		return r;
	return json_object_set_new(record, "signature",
	                           json_pack("{s:s, s:s}", "key", key->public, "value", value)) < 0
	           ? -ENOMEM
	           : 0;
}

static int digest_of_file(int dir, const char *name, size_t max, char ret[DIGEST_TEXT])
{
	autofree char *bytes = NULL;
	struct digest d;
	size_t n;
	int r = io_read_file(dir, name, max, &bytes, &n);

	if (r == 0)
		r = digest_bytes(bytes, n, &d);
	if (r == 0)
		digest_text(&d, ret);
	return r;
}

static int add_record(struct parcel_out *p, struct host *h, const struct host_snapshot *s)
{
	AUTO(json_decrefp) json_t *j = NULL;
	struct member m = {.name = "record.json", .fd = -1};
	char manifest[DIGEST_TEXT];
	int r = digest_of_file(p->dir, "manifest.json", MANIFEST_BYTES_MAX, manifest);

	if (r < 0)
		return r;
	j = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:s}", "format", "panda-snapshot-1",
	              "name", s->name, "template", s->template, "sandbox_id", s->sandbox_id,
	              "generation", (json_int_t)s->generation, "created_at_ms",
	              (json_int_t)s->created_ms, "disk_gb", (int)s->disk_gb, "manifest_sha256",
	              manifest);
	if (!j)
		return -ENOMEM;
	if (s->origin == SNAPSHOT_TAKEN || s->origin == SNAPSHOT_SIGNED)
		r = sign_record(&h->archive_key, j);
	m.bytes = r == 0 ? json_dumps(j, JSON_COMPACT) : NULL;
	if (!m.bytes)
		return r < 0 ? r : -ENOMEM;
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
		return err_nomem(e);
	p->dir = openat(h->store.snapshots, s->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = snapshot_load(&h->store, s->id, NULL, SNAPSHOT_SIZES, &p->snap, e);
	if (r < 0) {
		parcel_close(p);
		return r;
	}
	r = p->dir < 0 ? -ENOENT : add_record(p, h, s);
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
	p->length += 2 * TAR_BLOCK;
	*ret = p;
	return 0;
}

uint64_t parcel_length(const struct parcel_out *p)
{
	return p->length;
}

static void header(const struct member *m, char ret[TAR_BLOCK])
{
	struct tar_header h = {.type = '0'};

	snprintf(h.name, sizeof(h.name), "%s", m->name);
	snprintf(h.mode, sizeof(h.mode), "%07o", 0444);
	snprintf(h.uid, sizeof(h.uid), "%07o", 0);
	snprintf(h.gid, sizeof(h.gid), "%07o", 0);
	snprintf(h.size, sizeof(h.size), "%011llo", (unsigned long long)m->size);
	snprintf(h.mtime, sizeof(h.mtime), "%011o", 0);
	memcpy(h.magic, "ustar", 6);
	memcpy(h.version, "00", 2);
	snprintf(h.sum, sizeof(h.sum), "%06o", tar_sum(&h));
	h.sum[7] = ' ';
	memcpy(ret, &h, TAR_BLOCK);
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

		n = MIN((uint64_t)n, parcel_chunk_len(&m->index, i, m->of->pages) - in);
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
		uint64_t body = m ? m->size : 0,
			 whole = m ? TAR_BLOCK + tar_padded(body) : 2 * TAR_BLOCK;
		char head[TAR_BLOCK];
		ssize_t k;

		if (p->off == whole) {
			if (!m)
				break;
			p->now++;
			p->off = 0;
			continue;
		}
		if (m && p->off < TAR_BLOCK) {
			header(m, head);
			k = (ssize_t)MIN(n - got, TAR_BLOCK - p->off);
			memcpy(to + got, head + p->off, (size_t)k);
		} else if (m && p->off < TAR_BLOCK + body) {
			k = content(m, p->off - TAR_BLOCK, to + got, n - got);
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
