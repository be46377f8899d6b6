/*
 * host/host_internal.h - what the files of the host share
 */
#pragma once
#include "host/host.h"
#include "host/sandbox.h"
#include "layers/layer.h"
#include "layers/manifest.h"
#include "layers/snapshot.h"
#include "machine/engine.h"

/* ---- sandbox_state.c ---- */

/* Why this sandbox cannot do what needs a running machine: fills *e, negative. 0: it can. */
int sandbox_need_running(const struct sandbox *sb, struct err *e);

/* Its row, as db/sandboxes.h tells. */
int record_insert(struct sandbox *sb, struct err *e);
int record_update(struct sandbox *sb, struct err *e);
int record_delete(struct sandbox *sb, struct err *e);

/* Goes there and puts it on record; stays where it was when that fails. */
int sandbox_enter(struct sandbox *sb, enum sandbox_state to, struct err *e);

/* The machine runs: watch it. pid 0: it does not any more. */
int sandbox_watch(struct sandbox *sb, pid_t pid, const struct engine *engine);
void sandbox_unwatch(struct sandbox *sb);
/* It ended by itself. */
void sandbox_died(struct sandbox *sb);

/* Sets the timer for whatever is due next. */
void sandbox_schedule(struct sandbox *sb);

/* ---- host.c ---- */

/* Not on record yet, and not in the host's books. spec is copied. NULL: no memory. */
struct sandbox *sandbox_new(struct host *h, const char *tenant, const struct sandbox_spec *spec);
int host_add(struct host *h, struct sandbox *sb);   /* into the books; -ENOMEM, -EEXIST */
void host_drop(struct host *h, struct sandbox *sb); /* out of the books, and freed */
/* An operation or the pool's work has ended: host_drain() may be over. The host, as a void *. */
void host_quieter(void *host);

/* The store, as one in which what is copied is compressed or not. Its fds are the host's. */
static inline struct snapshot_store store_as(const struct host *h, bool compressed)
{
	struct snapshot_store st = h->store;

	st.form = compressed ? LAYER_SQUASHED : LAYER_PLAIN;
	return st;
}

/* ---- admit.c ---- */

/*
 * Is a machine with this memory, and a largest disk of this size (bytes), one that this host runs?
 * Its control group and its file size limit follow from these. Any thread. Kind: too_large, which
 * names the limit and its key.
 */
int host_check_size(const struct host *h, uint64_t memory, uint64_t disk, struct err *e);
/* The same. Whatever is started comes by here, wherever it is from. */
int host_check_image(const struct host *h, const struct engine_image *image, struct err *e);
/* Is there room for n more sandboxes of this size? host_full, quota_exceeded, too_large. */
int host_admit(struct host *h, const char *tenant, size_t n, unsigned memory_mb,
               const struct quota *quota, struct err *e);

/* An id whose jail is ready, or a fresh one: *ret_prepared says which. */
void host_take_id(struct host *h, char ret[SANDBOX_ID + 1], bool *ret_prepared);
void host_fill_spare(struct host *h);
void host_drop_spare(struct host *h);

/* ---- pause.c ---- */

/* As host_pause(), for a reason of the host's own. */
void host_hold(struct host *h, struct sandbox *sb, enum sandbox_hold hold, host_done *done,
               void *arg);

/* ---- hibernate.c, recover.c ---- */

/*
 * The snapshot a hibernated sandbox sleeps in; and the one it has slept in, while it is awake. Its
 * machine stands on the layers of that, so it costs no space, and the next hibernation finds them
 * in the store instead of writing them again. It is of no other use.
 */
void hibernate_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1]);
void slept_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1]);

int host_recover(struct host *h, struct err *e);

/* ---- snapshot.c ---- */

/* The doc column of a snapshot. */
json_t *snapshot_doc(const struct host_snapshot *s);
/* What its machine has: memory_mb, and disk_gb unless it is known to be less. */
void snapshot_size_of(struct host_snapshot *s, const struct manifest *m);
/* The same, from the manifest, where the record does not say it. Reads a small file. */
int snapshot_size(struct host *h, struct host_snapshot *s, struct err *e);
/* May a tenant have one more, by its quota (which may be NULL)? */
int snapshot_admit(struct host *h, const char *tenant, const struct quota *quota, struct err *e);

/* ---- retention.c ---- */

/* When a snapshot taken now goes by itself: wall clock ms, 0: never. */
uint64_t retain_until(const struct host *h, const struct sandbox_spec *spec, const char *name,
                      uint64_t now_ms);
/* One was taken: others may be too many now. */
void retain_after(struct host *h, const struct sandbox_spec *spec, const struct host_snapshot *s);
/* Those whose time is up. Costs nothing while there is none. */
void retain_sweep(struct host *h);
