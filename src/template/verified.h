/*
 * template/verified.h - snapshots that templates and steps of builds are kept in: written, read,
 * believed A snapshot is loaded without reading its data; damage that sizes do not show would be in
 * every sandbox. So these are read in full once per boot of the host, and whenever their files are
 * not those we wrote: <store>/checked/<id> says which boot and which files. All of it blocks: for
 * the pool.
 */
#pragma once
#include "machine/engine.h"

struct host;

/* As machine_save(), machine_load(), host_drop_snapshot(). */
int kept_save(struct host *h, const struct engine_image *image, const char *id, struct err *e);
int kept_load(struct host *h, const char *id, struct engine_image *ret, struct err *e);
int kept_drop(struct host *h, const char *id, struct err *e);
/* Forgets what was checked and is no more. */
void kept_sweep(struct host *h);
