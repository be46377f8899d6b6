/*
 * host/host_internal.h - what the files of the host share
 */
#pragma once
#include "base/fault.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/network.h"
#include "host/rewind.h"
#include "host/volume.h"
#include "template/template.h"

/* ---- host_sandbox.c ---- */

/*
 * One operation on one sandbox; embedded as first member. begin() is called on the loop when its
 * turn has come, in whatever state the sandbox is then; op_end() says that it is over, and the next
 * one's turn comes. The operation frees itself after op_end().
 */
struct op {
	struct op *next;
	struct sandbox *sb;
	const char *name;                   /* for the log */
	char request[HOST_REQUEST_MAX + 1]; /* the API call that asked for it; "": none did */
	uint64_t asked_ms, began_ms;
	void (*begin)(struct op *op);
	void (*cancel)(struct op *op); /* it is at work, and somebody cannot wait; may be NULL */
};

/* The name is a literal. At level debug the log shows when it begins and ends, and who asked. */
void op_queue(struct sandbox *sb, const char *name, struct op *op);
/* Behind the one at work. */
void op_queue_first(struct sandbox *sb, const char *name, struct op *op);
void op_end(struct op *op);
/* Asserts the rules of the queue: all are of this sandbox, and the first one alone has begun. */
void op_check(const struct sandbox *sb);

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

/* The store, as one in which what is copied is compressed or not. Its fds are the host's. */
static inline struct snapshot_store store_as(const struct host *h, bool compressed)
{
	struct snapshot_store st = h->store;

	st.form = compressed ? LAYER_SQUASHED : LAYER_PLAIN;
	return st;
}

/* ---- host_room.c ---- */

/* Is there room for n more sandboxes of this size? host_full, quota_exceeded. */
int host_admit(struct host *h, const char *tenant, size_t n, unsigned memory_mb,
               const struct quota *quota, struct err *e);

/* An id whose jail is ready, or a fresh one: *ret_prepared says which. */
void host_take_id(struct host *h, char ret[SANDBOX_ID + 1], bool *ret_prepared);
void host_fill_spare(struct host *h);
void host_drop_spare(struct host *h);

/* ---- sleep.c, recover.c ---- */

/*
 * The snapshot a hibernated sandbox sleeps in; and the one it has slept in, while it is awake. Its
 * machine stands on the layers of that, so it costs no space, and the next hibernation finds them
 * in the store instead of writing them again. It is of no other use.
 */
void hibernate_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1]);
void slept_id(const char *sandbox_id, char ret[SNAPSHOT_ID_MAX + 1]);

int host_recover(struct host *h, struct err *e);

/* ---- life.c ---- */

/* A machine to start on the pool: what it needs is copied in, what came of it is in the end. */
struct start_job {
	struct host *host;
	char id[SANDBOX_ID + 1];      /* of the sandbox */
	char machine[SANDBOX_ID + 1]; /* the name it is started under */
	bool prepared;
	const char *parent;
	struct engine_image image; /* owned */
	uint64_t generation;
	char load[SNAPSHOT_ID_MAX + 1]; /* load this snapshot into image first; "": it is there */
	struct engine_volume volumes[ENGINE_VOLUMES_MAX]; /* owned */
	int net_fd;       /* borrowed from the slot of the sandbox; 0 or -1: none */
	unsigned disk_gb; /* it may write that much; 0: as its memory says. Made smaller when the
	                     disk is */
	/* result */
	struct guest *guest; /* owned, until link_take() */
	pid_t pid;
	const struct engine *engine;
	uint64_t took_us;
	int r;
	struct err err;
};

/* Nothing open yet: it can be given to start_job_fini() from here on. */
void start_job_init(struct start_job *j, struct host *h);
/* Which sandbox, and which machine, it is about. */
void start_job_name(struct start_job *j, const struct sandbox *sb);
void start_job_run(struct start_job *j); /* blocks: on the pool */
void start_job_fini(struct start_job *j);

/* Before its machine ends, for the pool: what it has written is on its volumes, which are left with
 * a clean journal, so that others can attach them read-only; if the guest is willing to do that
 * soon. */
void volume_freeze_all(struct host *h, const char *machine, const json_t *list);

/* ---- snap.c ---- */

/* The doc column of a snapshot. */
json_t *snapshot_doc(const struct host_snapshot *s);
/* May a tenant have one more, by its quota (which may be NULL)? */
int snapshot_admit(struct host *h, const char *tenant, const struct quota *quota, struct err *e);

/* ---- retain.c ---- */

/* When a snapshot taken now goes by itself: wall clock ms, 0: never. */
uint64_t retain_until(const struct host *h, const struct sandbox_spec *spec, const char *name,
                      uint64_t now_ms);
/* One was taken: others may be too many now. */
void retain_after(struct host *h, const struct sandbox_spec *spec, const struct host_snapshot *s);
/* Those whose time is up. Costs nothing while there is none. */
void retain_sweep(struct host *h);

/* ---- volume.c, volume_use.c, volume_change.c ---- */

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
