/*
 * core/volume.h - named disks that outlive sandboxes
 * A sparse file with an ext4 file system each, <data>/volumes/<uuid>.img. One sandbox may have it
 * read-write, or any number read-only.
 */
#pragma once
#include "core/host.h"

enum {
	VOLUME_NAME_MAX = 64,
	VOLUME_MB_DEFAULT = 256,
	VOLUME_MB_MAX = 65536,
};

struct volume_info {
	char name[VOLUME_NAME_MAX + 1];
	uint64_t size_bytes, used_bytes, created_ms;
};

bool volume_name_valid(const char *name);

/* Makes it, file system and all. Kinds: bad_request, exists, disk_full, quota_exceeded. */
void volume_create(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota,
                   void (*done)(void *arg, const struct err *e, const struct volume_info *v),
                   void *arg);
int volume_get(struct host *h, const char *tenant, const char *name, struct volume_info *ret,
               struct err *e);
/* By name. */
int volume_each(struct host *h, const char *tenant,
                bool (*fn)(void *arg, const struct volume_info *v), void *arg, struct err *e);
/* volume_busy names who has it. */
void volume_delete(struct host *h, const char *tenant, const char *name, host_done *done,
                   void *arg);

/* Is this list of a create request free to be attached? volume_not_found, volume_busy, bad_request.
 * Sandboxes hold what their spec names for as long as they are on record. */
int volume_check(struct host *h, const char *tenant, const json_t *list, struct err *e);
