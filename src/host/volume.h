/*
 * host/volume.h - named disks that outlive sandboxes
 * A sparse file with an ext4 file system each, <data>/volumes/<uuid>.img. One sandbox may have it
 * read-write, or any number read-only; who has it is what their records say, and a lock on the file
 * keeps to that whatever happens. A snapshot is a volume that no sandbox writes any more. Loop
 * thread only.
 *
 * Kinds of errors: volume_not_found, volume_busy (names the sandbox that has it), volume_unclean,
 * exists, bad_request, conflict, disk_full, quota_exceeded, not_supported, and those of
 * host/host.h.
 */
#pragma once
#include "host/host.h"

enum {
	VOLUME_NAME_MAX = 64,
	VOLUME_MB_MIN = 16,
	VOLUME_MB_DEFAULT = 256,
	VOLUME_MB_MAX = 65536,
	VOLUMES_MAX = 4096,     /* of one tenant, whatever its quota: each is looked at in a list */
	VOLUME_COPIES_MAX = 4,  /* at a time: each keeps a thread and the disk busy */
	VOLUME_CHANGES_MAX = 4, /* at a time: each keeps a thread as long as a guest likes */
};

struct volume_info {
	char name[VOLUME_NAME_MAX + 1];
	char source[VOLUME_NAME_MAX + 1]; /* what it was copied from; "": nothing */
	bool snapshot;
	uint64_t size_bytes, created_ms;
	uint64_t used_bytes; /* on the host's disk, now */
};

typedef void volume_done(void *arg, const struct err *e, const struct volume_info *v);

bool volume_name_valid(const char *name);

/* Makes it, file system and all. */
void volume_create(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota, volume_done *done, void *arg);

/*
 * Another volume, or a snapshot, with what `from` holds now. One that a sandbox writes stands still
 * for a few ms, whatever its size, and is copied while it is written; operations on that sandbox
 * (fork, pause, ...) wait meanwhile, and kill ends it. size_mb 0: as large as `from`.
 */
void volume_copy(struct host *h, const char *tenant, const char *from, const char *name,
                 bool snapshot, uint64_t size_mb, const struct quota *quota, volume_done *done,
                 void *arg);

int volume_get(struct host *h, const char *tenant, const char *name, struct volume_info *ret,
               struct err *e);
/* By name: the volumes; with snapshots_of the snapshots of that one, with "" all there is. */
int volume_each(struct host *h, const char *tenant, const char *snapshots_of,
                bool (*fn)(void *arg, const struct volume_info *v), void *arg, struct err *e);
/* Of a tenant, snapshots too: how many, and how large they may become. */
void volume_usage(struct host *h, const char *tenant, uint64_t *ret_count, uint64_t *ret_mb);

/* Grows it, also while a sandbox writes it: its file system is as large when done is called. One
 * that no sandbox writes grows when it is mounted next. */
void volume_resize(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota, volume_done *done, void *arg);

void volume_delete(struct host *h, const char *tenant, const char *name, host_done *done,
                   void *arg);

/* Is this list of a create request free to be attached? Sandboxes hold what their spec names for as
 * long as they are on record, unless they have failed. */
int volume_check(struct host *h, const char *tenant, const json_t *list, struct err *e);

/*
 * Gives one more to a sandbox that runs: {name, path, read_only}, mounted when done is called. A
 * sleeping one wakes up. A pandad that dies in between leaves it attached or not.
 */
void volume_attach(struct host *h, struct sandbox *sb, const json_t *item, host_done *done,
                   void *arg);
/*
 * And takes it away, unmounted and clean. volume_busy: processes use it; with force they get I/O
 * errors. A fork's private copy is gone then.
 */
void volume_detach(struct host *h, struct sandbox *sb, const char *name, bool force,
                   host_done *done, void *arg);
