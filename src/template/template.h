/*
 * template/template.h - what sandboxes are made from
 * A template is a root image and a description (<data>/templates/<name>.json, written by
 * tools/image). Its bake is a snapshot in the store, named after everything it was made from: a new
 * image or kernel gives a new name, so a stale or half-written bake is never used.
 *
 * A tenant's own template (saved from a sandbox, or built) has no image: its description
 * (<tenant>.<name>.json) names the snapshot ("snapshot") that is its bake. When kernel or agent are
 * not those it was saved with, another one is made from its disk. The snapshot is complete before
 * the description is there, and goes after it: what a crash leaves between is a snapshot no
 * template owns, which the next start removes.
 */
#pragma once
#include <jansson.h>

#include "layers/snapshot.h"
#include "machine/engine.h"
#include "template/depot.h"

enum {
	TEMPLATE_NAME_MAX = 64,
};

struct build;
struct guest;

/* The formatter takes the name for the keyword of C++. */
/* clang-format off */
struct template {
	/* clang-format on */
	char name[TEMPLATE_NAME_MAX + 1];
	char tenant[TENANT_MAX + 1]; /* "": of all tenants */
	json_t *doc;                 /* template.json as it is */
	unsigned cpu, memory_mb, disk_gb;
	uint64_t generation;            /* of the machine that was frozen */
	const char *runner;             /* "shell", "python" */
	char bake[SNAPSHOT_ID_MAX + 1]; /* id of the snapshot, "" while it is not baked */
	struct engine_image image;      /* loaded once, shared by all that start from it */
	bool loaded, baking;
	struct template_waiter *waiters;
	struct template *next;
};

enum {
	TEMPLATES_OF_TENANT_MAX = 100,
};

struct templates;

/* Sets depot->templates. */
int templates_open(struct depot *depot, struct err *e);
void templates_close(struct templates *ts);

/* Reads the directory again: files that came, changed or went. What the host's own ones were baked
 * to is dropped when they change or go; what runs keeps its layers. */
int templates_reload(struct templates *ts, struct err *e);

/* Is this snapshot the bake of a template as it is now, or a step of a build that is kept? */
bool templates_own(struct templates *ts, const char *bake);
/* Steps of builds have names that begin so, see template/build.h. */
#define TEMPLATE_STEP "tpl-step-"

/* By name or alias, as this tenant sees it. The error names those there are. */
struct template *template_find(struct templates *ts, const char *tenant, const char *name,
                               struct err *e);
struct template *template_next(struct templates *ts, const char *tenant, struct template *after);

/* One that was made from an image of this name (template/oci.h); NULL: none. */
struct template *template_of_ref(struct templates *ts, const char *tenant, const char *written);

/* Bakes it if that has not been done, then done() on the loop. */
void template_ready(struct templates *ts, struct template *t,
                    void (*done)(void *arg, const struct err *e, struct template *t), void *arg);

/* 403 kinds: forbidden for those of all tenants. Its bake goes, running sandboxes stay. */
int template_delete(struct templates *ts, const char *tenant, const char *name, struct err *e);

/* ---- templates of tenants ---- */

/* May this tenant make a template of this name? bad_request, forbidden (of all tenants), exists,
 * too_many. */
int template_may_put(struct templates *ts, const char *tenant, const char *name, bool replace,
                     struct err *e);
/* Id for the snapshot of a template to be. */
void template_new_bake(char ret[SNAPSHOT_ID_MAX + 1]);
/*
 * What a template made from this one (may be NULL) says of itself: all that its sandboxes need,
 * and neither its other names nor how it was baked. NULL: no memory.
 */
json_t *template_heir(const struct template *from, const char *tenant, const char *name,
                      const char *snapshot, uint64_t generation);
/* The same for one that is made from nothing but has this one's root image below all of it, and so
 * its agent. */
json_t *template_fresh(const struct template *below, const char *tenant, const char *name,
                       const char *snapshot, unsigned memory_mb);
struct template_put {
	bool replace;        /* also when there is one of that name */
	const char *instead; /* only when its snapshot is still this one; NULL: whatever it is */
};

/*
 * Puts a description into the directory, in one step and synced. Blocks: for the pool. Kind exists
 * when there is one by now, or another than it should be. *ret_replaced is the snapshot of the one
 * that was there, or "".
 */
int template_put(struct depot *depot, const json_t *doc, const struct template_put *p,
                 char ret_replaced[SNAPSHOT_ID_MAX + 1], struct err *e);
/* After that, on the loop: looks at the directory again and drops those of the snapshots (may be
 * NULL) that are no template's bake: the one that was replaced, or ours, when another was
 * faster. */
void template_settle(struct templates *ts, const char *mine, const char *replaced);

/* The session that the bake of a template with a prelude leaves for the first client that wants
 * one. */
#define TEMPLATE_SPARE_SESSION "0000000000000000"

/* ---- for template/build.c ---- */

/* Runs what a description (may be NULL) asks for before it is frozen: "warm" and "ready".
 * Blocks, until stop_fd and until_ms (see guest_set_stop()) at the latest. */
int template_warm(struct depot *depot, const char *machine, const json_t *doc, int stop_fd,
                  uint64_t until_ms, struct err *e);

/*
 * Starts what the description's "start" names, with its variables, directory and user, and waits
 * for its check, or a moment. Notes its number ("exec") in doc. note: what the person who asked
 * should know; "" when all is well. Blocks, until b (may be NULL) is stopped at the latest. The
 * caller has said when g stops.
 */
int template_start(struct guest *g, json_t *doc, struct build *b, char *note, size_t note_n,
                   struct err *e);
/* Ends what template_start() has started in the machine this one was restored from. */
void template_quiet(struct guest *g, const json_t *doc);
/*
 * Leaves nothing of a machine but its disks, which become files called prefix and a number in dir:
 * to be booted afresh.
 */
int template_cold(struct engine_image *image, uint64_t memory_size, int dir, const char *prefix,
                  struct err *e);

struct builds;
struct builds *templates_builds(struct templates *ts);
