#include "host/archive_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/macro.h"
#include "base/uuid.h"
#include "db/snapshots.h"
#include "host/archive.h"
#include "host/disk_use.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "layers/index.h"
#include "layers/map.h"
#include "layers/snapshot.h"

/* --- the format ------------------------------------------------------------------------------- */

unsigned tar_sum(const struct tar_header *h)
{
	const unsigned char *p = (const unsigned char *)h;
	unsigned sum = 0;

	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum +=
		    i >= offsetof(struct tar_header, sum) && i < offsetof(struct tar_header, type)
			? ' '
			: p[i];
	return sum;
}

uint64_t parcel_chunk_len(const struct index *x, size_t i, uint64_t pages)
{
	uint64_t off = x->chunks[i].number * INDEX_CHUNK;

	return MIN((uint64_t)INDEX_CHUNK, pages * MAP_PAGE - off);
}

uint64_t parcel_chunks_len(const struct index *x, uint64_t pages)
{
	return x->nchunks ? (x->nchunks - 1) * (uint64_t)INDEX_CHUNK +
	                        parcel_chunk_len(x, x->nchunks - 1, pages)
	                  : 0;
}

int parcel_parse_index(const char *bytes, size_t n, uint64_t pages, struct index *ret)
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

int parcel_signed_text(const json_t *record, char **ret)
{
	AUTO(json_decrefp) json_t *rest = json_copy((json_t *)record);
	autofree char *words = NULL;
	int n;

	if (rest)
		json_object_del(rest, "signature");
	words = rest ? json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
	if (!words)
		return -ENOMEM;
	n = asprintf(ret, "panda snapshot archive 1\n%s", words);
	return n < 0 ? -ENOMEM : 0;
}

/* --- records ---------------------------------------------------------------------------------- */

/* Each holds a thread of the pool while it is looked through: a place among those that come in. */
static int import_admit(struct host *h, const char *tenant, size_t *ret, struct err *e)
{
	size_t place = HOST_IMPORTS_MAX, mine = 0;

	for (size_t i = HOST_IMPORTS_MAX; i-- > 0;) {
		if (!h->imports[i].id[0])
			place = i;
		else if (!strcmp(h->imports[i].tenant, tenant))
			mine++;
	}
	if (mine >= HOST_TENANT_IMPORTS_MAX)
		return err_set(e, EAGAIN, "too_many",
		               "you import %zu snapshots already: wait until one is in", mine);
	if (place == HOST_IMPORTS_MAX)
		return err_set(e, EAGAIN, "too_many",
		               "this host imports %d snapshots already: try again later",
		               HOST_IMPORTS_MAX);
	*ret = place;
	return 0;
}

static void import_over(struct host *h, const char *id)
{
	for (size_t i = 0; i < HOST_IMPORTS_MAX; i++)
		if (!strcmp(h->imports[i].id, id))
			h->imports[i].id[0] = 0;
}

int host_import_begin(struct host *h, const char *tenant, const struct quota *quota,
                      char ret[SANDBOX_ID + 1], struct err *e)
{
	size_t place;
	int r;

	r = host_admit(h, tenant, 0, 0, NULL, e);
	if (r == 0)
		r = snapshot_admit(h, tenant, quota, e);
	if (r == 0)
		r = import_admit(h, tenant, &place, e);
	if (r < 0)
		return r;
	uuid_new(ret);
	r = db_snapshot_insert(h->db,
	                       &(struct db_snapshot){.id = ret,
	                                             .tenant = tenant,
	                                             .sandbox_id = "",
	                                             .doc = "{}",
	                                             .created_ms = wall_ms()},
	                       e);
	if (r == 0) {
		snprintf(h->imports[place].id, sizeof(h->imports[place].id), "%s", ret);
		snprintf(h->imports[place].tenant, sizeof(h->imports[place].tenant), "%s", tenant);
	}
	fault_at("import.recorded");
	return r;
}

int host_import_end(struct host *h, const struct host_snapshot *s, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = snapshot_doc(s);
	autofree char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
	int r;

	fault_at("import.verified");
	disk_use_changed(h);
	if (!text)
		return err_nomem(e);
	r = db_snapshot_ready(h->db, s->id, s->sandbox_id, text, e);
	if (r == 0)
		import_over(h, s->id);
	return r;
}

void host_import_undo(struct host *h, const char *id)
{
	snapshot_delete(&h->store, id, NULL);
	db_snapshot_delete(h->db, id, NULL);
	import_over(h, id);
}
