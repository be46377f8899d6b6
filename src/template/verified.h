/*
 * template/verified.h - the snapshots of templates and build steps, read in full before use
 * machine_load() reads no data of a snapshot. Damage that sizes do not show would be in every
 * sandbox of a template. So these snapshots are read in full once per boot of the host, and when
 * their files are not those we wrote: <store>/checked/<id> says which boot and which files.
 * All of it blocks: for the pool.
 */
#pragma once
#include "machine/engine.h"

struct depot;

/* As machine_save(), machine_load(), depot_drop_snapshot(). */
int verified_save(struct depot *depot, const struct engine_image *image, const char *id,
                  struct err *e);
int verified_load(struct depot *depot, const char *id, struct engine_image *ret, struct err *e);
int verified_drop(struct depot *depot, const char *id, struct err *e);
/* Forgets what was checked and is no more. */
void verified_sweep(struct depot *depot);
