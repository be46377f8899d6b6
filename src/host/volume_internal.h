/*
 * host/volume_internal.h - between the files of host/volume.h
 */
#pragma once
#include <limits.h>

#include "host/sandbox.h"
#include "host/volume.h"

struct volume_row {
	struct volume_info info;
	char file[SANDBOX_ID + 1];
};

/* ---- volume.c ---- */

int volume_find(struct host *h, const char *tenant, const char *name, struct volume_row *ret,
                struct err *e);
void volume_path(struct host *h, const char *file, char ret[PATH_MAX]);
/* Is there room for this one, by the quota and on the disk? used: bytes that will be written. */
int volume_admit(struct host *h, const char *tenant, uint64_t size_mb, bool one_more, uint64_t used,
                 const struct quota *quota, struct err *e);
/* From 'creating' to 'ready', or away with it; r says which. Fills in *info. */
int volume_insert(struct host *h, const char *tenant, const char *file,
                  const struct volume_info *info, struct err *e);
int volume_finish(struct host *h, const char *tenant, const char *file, int r,
                  struct volume_info *info, struct err *e);
int volume_check_new(const char *name, uint64_t size_mb, struct err *e);

/* ---- volume_use.c ---- */

unsigned volume_slot(const json_t *item, size_t i);
/* A sandbox that has the volume's own file; not `except`, which may be NULL. */
struct sandbox *volume_holder(struct host *h, const char *tenant, const char *name,
                              bool writers_only, const struct sandbox *except);
/* Element i of the list of a create or an attach: good, and free but for `self`? */
int volume_check_one(struct host *h, const char *tenant, const json_t *list, size_t i,
                     const struct sandbox *self, struct err *e);
