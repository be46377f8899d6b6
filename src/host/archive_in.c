/*
 * host/archive_in.c - a snapshot comes: a stranger's tar is judged as it arrives
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "host/archive.h"
#include "host/archive_internal.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "host/signature.h"
#include "layers/digest.h"
#include "layers/index.h"
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/map.h"
#include "layers/snapshot.h"
#include "layers/sparse.h"
#include "machine/engine.h"
#include "machine/machine.h"

enum { LOOK_EVERY = 64 << 20 /* bytes between two looks at the free space */ };

struct parcel_in {
	struct host *host;
	char id[SANDBOX_ID + 1];
	int dir;
	enum { IN_HEAD, IN_BODY, IN_PADDING, IN_AFTER } where;
	char head[TAR_BLOCK];
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

	bool any; /* who sends it answers for it */
	bool has_manifest, has_state;
	enum snapshot_origin origin;
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

void parcel_drop(struct host *h, const char *id)
{
	snapshot_delete(&h->store, id, NULL);
}

int parcel_begin(struct host *h, const char *id, bool any, struct parcel_in **ret, struct err *e)
{
	struct parcel_in *p = calloc(1, sizeof(*p));

	if (!p)
		return err_nomem(e);
	p->host = h;
	p->any = any;
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

/* How many pages the memory or disk has that this layer is of; 0: the manifest has no such
 * layer. */
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
	p->padding = tar_padded(size) - size;
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
		           size == parcel_chunks_len(&p->index, p->map_of_pages)) {
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
	return p->text ? 0 : err_nomem(e);
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
	if (parcel_parse_index(p->text, p->len, p->map_of_pages, &p->index) < 0)
		return bad(e, "a map is damaged");
	return put_text(p, p->name, e);
}

static int distrust(struct parcel_in *p, enum snapshot_origin origin, const char *public,
                    struct err *e)
{
	p->origin = origin;
	if (p->any)
		return 0;
	if (origin == SNAPSHOT_UNSIGNED)
		return err_set(
		    e, EPERM, "archive_untrusted",
		    "this archive has no signature (pandad 0.1.0 made none): a token with "
		    "scope admin can import it");
	return err_set(
	    e, EPERM, "archive_untrusted",
	    "this host does not know who exported this, %s: a token with scope admin can "
	    "import it, or the operator adds that key to the file of import_keys",
	    public);
}

/* Whose is it? Asked as soon as the manifest is there, before anything that is large. */
static int judge(struct parcel_in *p, struct err *e)
{
	const json_t *s = json_object_get(p->record, "signature");
	const char *said = json_string_value(json_object_get(p->record, "manifest_sha256"));
	const char *public = json_string_value(json_object_get(s, "key"));
	const char *value = json_string_value(json_object_get(s, "value"));
	autofree char *text = NULL;
	char hex[DIGEST_TEXT];
	struct digest d;
	bool known;
	int r = digest_bytes(p->text, p->len, &d);

	if (r < 0)
		return io_failed(r, e);
	digest_text(&d, hex);
	if (said && strcmp(said, hex) != 0)
		return bad(e, "its manifest is another's");
	if (!s)
		return distrust(p, SNAPSHOT_UNSIGNED, NULL, e);
	if (!said || !public || !value)
		return bad(e, "its signature is damaged");
	r = parcel_signed_text(p->record, &text);
	if (r == 0)
		r = signature_check(public, value, text, strlen(text));
	if (r == -EBADMSG)
		return bad(e, "it was changed after it was signed");
	if (r < 0)
		return err_nomem(e);
	known = !strcmp(public, p->host->archive_key.public);
	if (!known)
		r = signature_known(p->host->config.import_keys, public, &known, e);
	if (r < 0)
		return r;
	if (!known)
		return distrust(p, SNAPSHOT_UNKNOWN_KEY, public, e);
	p->origin = SNAPSHOT_SIGNED;
	return 0;
}

static int take_manifest(struct parcel_in *p, struct err *e)
{
	const struct manifest *m = &p->manifest;
	uint64_t disk = 0;
	int r = judge(p, e);

	if (r < 0)
		return r;
	r = manifest_parse(p->text, p->len, &p->manifest, e);
	if (r == -EBADMSG)
		return bad(e, "its manifest is damaged, or says what no machine can be");
	if (r < 0)
		return r;
	p->has_manifest = true;
	for (size_t d = 0; d < m->ndisks; d++) {
		if (m->disks[d].is_image)
			return bad(e, "it needs an image that is not in it");
		disk = MAX(disk, m->disks[d].size);
	}
	r = host_check_size(p->host, m->memory_size, disk, e);
	return r < 0 ? r : put_text(p, "manifest.json", e);
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
		r = take_manifest(p, e);
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
		size_t want = parcel_chunk_len(&p->index, p->chunk, p->map_of_pages);
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
	static const char zeros[TAR_BLOCK];
	struct tar_header h;
	char number[13];
	unsigned long long size;
	char *end;

	memcpy(&h, p->head, TAR_BLOCK);
	p->have = 0;
	if (!memcmp(p->head, zeros, TAR_BLOCK)) {
		p->where = IN_AFTER;
		return 0;
	}
	snprintf(number, sizeof(number), "%.8s", h.sum);
	if (memcmp(h.magic, "ustar", 5) != 0 || strtoul(number, NULL, 8) != tar_sum(&h) ||
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

	if (p->total > p->host->config.import_max)
		return err_set(e, EFBIG, "too_large",
		               "this snapshot is longer than %llu MiB: the operator can raise "
		               "import_max_mb",
		               (unsigned long long)(p->host->config.import_max >> 20));
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
			k = MIN(n, TAR_BLOCK - p->have);
			memcpy(p->head + p->have, from, k);
			p->have += k;
			if (p->have == TAR_BLOCK)
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

static uint64_t number_of(const json_t *j, const char *key, uint64_t max)
{
	json_int_t n = json_integer_value(json_object_get(j, key));

	return n > 0 && (uint64_t)n <= max ? (uint64_t)n : 0;
}

int parcel_end(struct parcel_in *p, struct host_snapshot *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct host *h = p->host;
	int r;

	if (p->where != IN_AFTER || !p->has_state)
		return bad(e, "it is cut off");
	r = machine_load(&h->machines, &h->store, p->id, true, &image, e);
	if (r == -EBADMSG)
		return bad(e, "what is in it was changed");
	if (r == -ENOENT)
		return bad(e, "a file is missing");
	if (r == 0 && (fsync(p->dir) < 0 || fsync(h->store.snapshots) < 0))
		r = io_failed(-errno, e);
	if (r < 0)
		return r;
	text_of(p->record, "name", ret->name, sizeof(ret->name));
	text_of(p->record, "template", ret->template, sizeof(ret->template));
	text_of(p->record, "sandbox_id", ret->sandbox_id, sizeof(ret->sandbox_id));
	ret->generation = number_of(p->record, "generation", INT64_MAX - 1);
	ret->generation = MAX(ret->generation, (uint64_t)1);
	ret->disk_gb = (unsigned)number_of(p->record, "disk_gb", UINT16_MAX);
	snapshot_size_of(ret, &p->manifest);
	ret->size_bytes = engine_image_bytes(&image);
	ret->origin = p->origin;
	return 0;
}
