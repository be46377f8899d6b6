#include "host/archive_internal.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/macro.h"
#include "base/uuid.h"
#include "db/snapshots.h"
#include "host/archive.h"
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

/* --- records ---------------------------------------------------------------------------------- */

int host_import_begin(struct host *h, const char *tenant, const struct quota *quota,
                      char ret[SANDBOX_ID + 1], struct err *e)
{
	int r;

	r = host_admit(h, tenant, 0, 0, NULL, e);
	if (r == 0)
		r = snapshot_admit(h, tenant, quota, e);
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
	fault_at("import.recorded");
	return r;
}

int host_import_end(struct host *h, const struct host_snapshot *s, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = snapshot_doc(s);
	autofree char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

	fault_at("import.verified");
	if (!text)
		return err_nomem(e);
	return db_snapshot_ready(h->db, s->id, s->sandbox_id, text, e);
}

void host_import_undo(struct host *h, const char *id)
{
	snapshot_delete(&h->store, id, NULL);
	db_snapshot_delete(h->db, id, NULL);
}
