/*
 * host/volume_use.h - the volumes of one sandbox: opened for a start, copied for a fork, settled
 * Loop thread only, but for what says that it is for the pool.
 */
#pragma once
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "machine/machine.h"

/*
 * Opens (and so locks) what the list of a sandbox names, for one start of its machine. mount: the
 * guest does not have them yet. The mount paths in *ret point into the list.
 */
int volume_open_all(struct host *h, const char *tenant, const char *sandbox, const json_t *list,
                    bool mount, struct engine_volume ret[ENGINE_VOLUMES_MAX], struct err *e);
void volume_close_all(struct engine_volume v[ENGINE_VOLUMES_MAX]);
/* It may have been given to others since it failed. */
int volume_check_again(struct host *h, const struct sandbox *sb, struct err *e);

/* The files behind the writable volumes of a sandbox; "" for read-only ones. */
struct volume_sources {
	size_t n;
	char path[SANDBOX_VOLUMES_MAX][4096];
	unsigned slot[SANDBOX_VOLUMES_MAX];
	uint64_t size[SANDBOX_VOLUMES_MAX]; /* what counts of it; 0: all */
	uint64_t used;                      /* what copies of all of them take */
};
int volume_sources(struct host *h, const struct sandbox *sb, struct volume_sources *ret,
                   struct err *e);
/* The same list for a fork: it has copies of its own of what it can write. The caller's. */
json_t *volume_list_of_child(const json_t *list);
/* Does that much fit on the disk? disk_full. */
int volume_room(struct host *h, uint64_t bytes, struct err *e);
/*
 * Those copies, for the pool. For the first child while the parent stands still: the largest one is
 * only begun, and with that the parent goes on; *ret stays NULL when there is nothing to finish.
 * Then, when that is finished, for the others from the first one's.
 */
int volume_clone_begin(struct host *h, const struct volume_sources *from,
                       const struct engine_machine *m, const char *first, struct machine_copy **ret,
                       struct err *e);
int volume_clone_again(struct host *h, const struct volume_sources *from, const char *first,
                       const char *other, struct err *e);
/* They are on disk as they are now. For the pool. */
int volume_sync_all(const struct volume_sources *from, struct err *e);
/* Removes a sandbox's private copies, if it had any; or one. */
void volume_drop_clones(struct host *h, const char *sandbox_id);
void volume_drop_copy(struct host *h, const char *sandbox_id, json_int_t n);

/*
 * What the machine of a sandbox shall have, for machine_volumes_settle() on the pool. Before that,
 * volumes_pending is on record: should we die, the next pandad does it (recover.c). Afterwards,
 * back on the loop, volume_settled() puts on record where they are.
 */
struct volume_wants {
	size_t n;
	struct machine_volume v[SANDBOX_VOLUMES_MAX];
	char file[SANDBOX_VOLUMES_MAX][4096];
	json_t *list; /* keeps the mount paths */
};
int volume_want_all(struct host *h, const struct sandbox *sb, struct volume_wants *ret,
                    struct err *e);
void volume_wants_fini(struct volume_wants *w);
void volume_settled(struct sandbox *sb, const struct volume_wants *w);
/* The list with the place of each (w may be NULL); the caller's. */
json_t *volume_list_with_slots(const json_t *list, const struct volume_wants *w);
/* Replaces it, on record; takes the reference. Stays as it was when that fails. */
int volume_list_set(struct sandbox *sb, json_t *list, bool pending, struct err *e);

/* A machine whose kernel has made a volume longer than it is has broken the rules: it goes. */
void volume_sweep(struct host *h);
int volumes_recover(struct host *h, struct err *e);

/* Before its machine ends, for the pool: what it has written is on its volumes, which are left with
 * a clean journal, so that others can attach them read-only; if the guest is willing to do that
 * soon. */
void volume_freeze_all(struct host *h, const char *machine, const json_t *list);
