/*
 * core/template.h - what sandboxes are made from
 * A template is a root image and a description (<data>/templates/<name>.json, written by
 * tools/image or an upload). Its bake is a snapshot in the store, named after everything it was
 * made from: a new image or kernel gives a new name, so a stale or half-written bake is never used.
 */
#pragma once
#include <jansson.h>

#include "core/engine.h"
#include "core/sandbox.h"
#include "layers/snapshot.h"

struct template
{
	char name[TEMPLATE_NAME_MAX + 1];
	char tenant[TENANT_MAX + 1]; /* "": everybody's */
	json_t *doc;                 /* template.json as it is */
	unsigned cpu, memory_mb, disk_gb;
	const char *runner;             /* "shell", "python" */
	char bake[SNAPSHOT_ID_MAX + 1]; /* id of the snapshot, "" while it is not baked */
	struct engine_image image;      /* loaded once, shared by all that start from it */
	bool loaded, baking;
	struct template_waiter *waiters;
	struct template *next;
};

struct templates;

int templates_open(struct host *h, struct templates **ret, struct err *e);
void templates_close(struct templates *ts);

/* Reads the directory again: files that came, changed or went. */
int templates_reload(struct templates *ts, struct err *e);

/* Is this snapshot the bake of a template as it is now? */
bool templates_own(struct templates *ts, const char *bake);

/* By name or alias, as this tenant sees it. The error names those there are. */
struct template *template_find(struct templates *ts, const char *tenant, const char *name,
                               struct err *e);
struct template *template_next(struct templates *ts, const char *tenant, struct template *after);

/* Bakes it if that has not been done, then done() on the loop. */
void template_ready(struct templates *ts, struct template *t,
                    void (*done)(void *arg, const struct err *e, struct template *t), void *arg);

/* 403 kinds: forbidden for those of everybody. Its bake goes, running sandboxes stay. */
int template_delete(struct templates *ts, const char *tenant, const char *name, struct err *e);
