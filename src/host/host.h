/*
 * host/host.h - all sandboxes of this host, and what can be done with them
 * Everything here belongs to the loop thread and returns at once; work that blocks runs on the
 * pool, and the answer comes as a callback on the loop. Operations on one sandbox take turns in the
 * order they were asked for; kill goes to the front. A callback gets e == NULL when all went well.
 *
 * Kinds of errors a caller may see: sandbox_not_found, sandbox_paused, sandbox_failed,
 * sandbox_busy, template_not_found, snapshot_not_found, volume_not_found, volume_busy, exists,
 * host_full, quota_exceeded, disk_full, shutting_down, bad_request, and those of machine/machine.h.
 */
#pragma once
#include "base/loop.h"
#include "base/pool.h"
#include "host/disk.h"
#include "host/disk_use.h"
#include "host/event.h"
#include "host/records.h"
#include "host/sandbox.h"
#include "host/signature.h"
#include "layers/snapshot.h"
#include "machine/machine.h"
#include "net/net.h"
#include "template/depot.h"
#include "template/template.h"

struct template;

/* No member has a default here: those of the keys stand in daemon/config.c. */
struct host_config {
	const char *run_dir, *data_dir;
	const char *upper_image; /* an empty file system: what machines write on */
	unsigned threads;        /* for what blocks */
	unsigned sandboxes_max;
	uint64_t memory_reserve; /* bytes of MemAvailable that creates leave alone */
	uint64_t disk_reserve;   /* free bytes of the data directory: host/disk.h */
	unsigned prepare_ahead;  /* processes and networks made before they are asked for */
	int64_t idle_s;          /* of a sandbox without ttl */
	unsigned sandbox_cpu_percent, tenant_cpu_percent; /* 100 is one cpu; 0: no limit */
	unsigned silent_s; /* an agent that does not answer for so long hangs */
	unsigned build_s;  /* how long a whole build may take */
	bool compress_hibernated, compress_snapshots;
	int64_t snapshots_keep, snapshots_max_age_s; /* host/retention.c; 0: all, for ever */
	unsigned tenant_disk_percent;                /* host/disk_use.h; 0: no limit */
	uint64_t snapshots_total;                    /* bytes of a tenant; 0: no limit */
	const char *import_keys;                     /* host/signature.h; NULL: only our own */
	uint64_t import_max;                         /* bytes of one archive */
	/* What one machine may have, whatever a template or an archive says: bytes. */
	uint64_t machine_memory_max, machine_disk_max;
	bool network; /* false: guests have none */
	struct events_config events;
	struct net_config net; /* host_open() sets loop, ready, event, gone and arg itself */
};

struct quota { /* per tenant; 0: no limit */
	uint64_t sandboxes, memory_mb, snapshots, volumes, volumes_mb;
	uint64_t disk_mb; /* of the host's disk: host/disk_use.h */
};

struct host_stats {
	uint64_t creates, forks, kills, wakes, hibernations, deaths, silences, refused;
	uint64_t checkpoints, rewinds;
	uint64_t boot_us_sum, boot_us_count;
	uint64_t records_log_bytes; /* after the last checkpoint */
	uint64_t boot_bucket[16];   /* le 1, 2, 4 ... ms; the last one is the rest */
};

enum {
	HOST_REQUEST_MAX = 64,
	HOST_IMPORTS_MAX = 16,      /* archives that come in at once, */
	HOST_TENANT_IMPORTS_MAX = 2 /* and of one tenant */
};

struct host {
	struct loop *loop;
	const char *request; /* id of the API call that runs right now, for the log; NULL: none */
	struct pool *pool;
	struct db *db;
	struct engines *engines;
	struct machines machines;
	struct snapshot_store store;
	uint64_t expires_ms; /* wall clock: when the next snapshot may have to go; 0: none */
	struct depot depot;  /* what templates share with us */
	struct net *net;     /* NULL: no network for guests */
	struct events events;
	struct host_config config;
	struct host_stats stats;
	struct records records; /* keeps db */
	struct disk_watch disk;
	struct disk_uses uses; /* of that disk, by tenant */

	struct dict *by_id, *by_preview;
	struct sandbox *newest;
	size_t count;
	size_t checkpoints;                /* of all sandboxes */
	unsigned volume_copies;            /* that are being made */
	unsigned volume_changes;           /* of sandboxes that run */
	char volume_swept[SANDBOX_ID + 1]; /* the file of one that volume_sweep() looked at last */
	struct host_spare *spare;          /* ids with a process made ahead */
	unsigned nspare, preparing;
	struct loop_timer sweep;
	struct drain *drain; /* NULL: we are not about to end */
	struct signature_key archive_key;
	struct {
		char id[SANDBOX_ID + 1], tenant[TENANT_MAX + 1]; /* id "": free */
	} imports[HOST_IMPORTS_MAX];
};

/* Opens the data directory, adopts what runs, finishes or undoes what a crash left, and logs what
 * it did. Blocks. */
int host_open(struct loop *l, struct engines *engines, const struct host_config *c,
              struct host **ret, struct err *e);
/* No new work; done() when all operations have ended. Machines go on running. */
void host_drain(struct host *h, void (*done)(void *arg), void *arg);
void host_close(struct host *h);

/* NULL when there is none, it is another tenant's, or it is about to be gone. tenant NULL: any. */
struct sandbox *host_find(struct host *h, const char *tenant, const char *id);

typedef void host_done(void *arg, const struct err *e, struct sandbox *sb);

/* spec is copied. quota may be NULL. sb in done is NULL after an error. */
void host_create(struct host *h, const char *tenant, const struct sandbox_spec *spec,
                 const struct quota *quota, host_done *done, void *arg);

void host_pause(struct host *h, struct sandbox *sb, host_done *done, void *arg);
void host_resume(struct host *h, struct sandbox *sb, host_done *done, void *arg);
void host_hibernate(struct host *h, struct sandbox *sb, host_done *done, void *arg);
/* Running: answers at once. */
void host_wake(struct host *h, struct sandbox *sb, host_done *done, void *arg);
/* sb is gone when done is called (which gets NULL for it). done may be NULL. */
void host_kill(struct host *h, struct sandbox *sb, const char *why, host_done *done, void *arg);

enum {
	FORK_MAX = 16, /* children of one call */
};

struct host_forked {
	char snapshot_id[SANDBOX_ID + 1]; /* names the moment; nothing is kept under it */
	struct sandbox **children;        /* NULL where one failed */
	struct err *errors;
	size_t count;
};

/* 1 to FORK_MAX children, all from the same moment. metadata (may be NULL) is merged over the
 * parent's. With tree, they carry its id and their index. e is set only when no child exists. */
void host_fork(struct host *h, struct sandbox *sb, size_t count, const json_t *metadata,
               const char *tree, const struct quota *quota,
               void (*done)(void *arg, const struct err *e, struct host_forked *f), void *arg);

/* Who answers for what is in a snapshot. */
enum snapshot_origin {
	SNAPSHOT_TAKEN,       /* we took it */
	SNAPSHOT_SIGNED,      /* imported, signed by us or by a host we know */
	SNAPSHOT_UNSIGNED,    /* imported by an admin, without a signature */
	SNAPSHOT_UNKNOWN_KEY, /* imported by an admin, signed by a host we do not know */
};
/* As records and the API call it; NULL: SNAPSHOT_TAKEN. */
const char *snapshot_origin_name(enum snapshot_origin o);

struct host_snapshot {
	char id[SANDBOX_ID + 1], tenant[TENANT_MAX + 1], sandbox_id[SANDBOX_ID + 1];
	char name[SNAPSHOT_NAME_MAX + 1], template[TEMPLATE_NAME_MAX + 1];
	uint64_t created_ms, size_bytes;
	uint64_t expires_ms; /* when it goes by itself; 0: never */
	uint64_t generation; /* of the machine it was taken from */
	unsigned disk_gb;    /* what that may write; 0: not known */
	unsigned memory_mb;  /* what it has; 0: not known, it was taken by pandad 0.1.0 */
	enum snapshot_origin origin;
};

void host_snapshot(struct host *h, struct sandbox *sb, const char *name, const struct quota *quota,
                   void (*done)(void *arg, const struct err *e, const struct host_snapshot *s),
                   void *arg);
/* Newest first. sandbox_id NULL: of all. tenant NULL: of all. fn returns false to stop. */
int host_snapshots(struct host *h, const char *tenant, const char *sandbox_id,
                   bool (*fn)(void *arg, const struct host_snapshot *s), void *arg, struct err *e);
/* snapshot_not_found */
int host_snapshot_get(struct host *h, const char *tenant, const char *id, struct host_snapshot *ret,
                      struct err *e);
void host_snapshot_delete(struct host *h, const char *tenant, const char *id, host_done *done,
                          void *arg);

/* A template whose sandboxes start exactly where sb is now, memory and disk. Kinds beside those of
 * template_may_put(): those of host_snapshot(). t is valid during done(). */
void host_save_template(struct host *h, struct sandbox *sb, const char *name, bool replace,
                        void (*done)(void *arg, const struct err *e, struct template *t),
                        void *arg);

/* Changes what is set: ttl_s >= -1 (counted from creation), persistent 0 or 1. -2 and -1: as it
 * was. */
int host_set_life(struct host *h, struct sandbox *sb, int64_t ttl_s, int persistent, struct err *e);
/* What it may reach from now on: a list, or NULL for the host's default. Takes the reference.
 * Connections that are no longer allowed are cut. */
int host_set_egress(struct host *h, struct sandbox *sb, json_t *egress, struct err *e);

/* By which the host reaches it; "" without a network. mac is its guest's. */
void host_address(const struct sandbox *sb, char ret[16], const char **ret_mac);

struct host_net {
	uint64_t up_bytes, down_bytes, up_packets, down_packets, refused, odd;
	uint64_t names, names_refused, names_limited, events_lost;
};
void host_net(struct host *h, const struct sandbox *sb, struct host_net *ret);

/* Replaces the metadata on record; takes the reference. */
int host_set_metadata(struct host *h, struct sandbox *sb, json_t *metadata, struct err *e);

/* A client asked for something: it is not idle now. */
void host_touch(struct host *h, struct sandbox *sb);
/* And not until the matching host_idle(). sb is found again by id: it may be gone by then. */
void host_busy(struct host *h, struct sandbox *sb);
void host_idle(struct host *h, const char *id);
