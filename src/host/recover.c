/*
 * host/recover.c - what the pandad before us left: adopt it, finish it or undo it
 * Runs before the first request. Everything here may be interrupted and run again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dict.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "db/sandboxes.h"
#include "db/snapshots.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/lifecycle_internal.h"
#include "host/network.h"
#include "host/preview.h"
#include "host/sandbox.h"
#include "host/volume_use.h"
#include "layers/snapshot.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "template/template.h"

struct tally {
	unsigned adopted, asleep, failed, undone, finished, strays;
};

/* --- records ---------------------------------------------------------------------------------- */

struct load {
	struct host *host;
	bool no_memory, unnamed;
};

static bool load_row(void *arg, const struct db_sandbox *row)
{
	struct load *l = arg;
	struct host *h = l->host;
	struct sandbox *sb = sandbox_new(h, row->tenant, NULL);
	AUTO(json_decrefp) json_t *doc = json_loads(row->doc, 0, NULL);

	if (!sb) {
		l->no_memory = true;
		return false;
	}
	snprintf(sb->id, sizeof(sb->id), "%s", row->id);
	sb->created_ms = row->created_ms;
	memcpy(sb->machine, sb->id, sizeof(sb->machine));
	sb->preview[0] = 0;
	sandbox_from_doc(sb, doc);
	if (!preview_name_valid(sb->preview)) {
		preview_name_new(sb->preview);
		l->unnamed = true;
	}
	if (!doc || !sandbox_state_parse(row->state, &sb->state) || host_add(h, sb) < 0) {
		log_error("a record cannot be read, left alone sandbox=%s", sb->id);
		host_drop(h, sb);
	}
	return true;
}

static void settle_as(struct sandbox *sb, enum sandbox_state to)
{
	struct err e;

	sb->state = to;
	if (to != SANDBOX_PAUSED)
		sb->hold = HOLD_NONE;
	if (record_update(sb, &e) < 0)
		log_error("cannot record sandbox=%s why=\"%s\"", sb->id, e.text);
	sandbox_schedule(sb);
}

static void fail(struct sandbox *sb, const char *why, struct tally *t)
{
	snprintf(sb->end, sizeof(sb->end), "%s", why);
	settle_as(sb, SANDBOX_FAILED);
	event_emit(&sb->host->events, sb->tenant, sb->id, "recover.orphaned",
	           json_pack("{s:s}", "reason", sb->end));
	log_warn("sandbox lost its machine, it stays on record as failed sandbox=%s why=\"%s\"",
	         sb->id, sb->end);
	t->failed++;
}

static void set_paused(struct host *h, const char *id, bool paused)
{
	struct err e;

	if (machine_control(h, id, paused, &e) < 0)
		log_warn("cannot %s a machine, it stays as it is sandbox=%s why=\"%s\"",
		         paused ? "pause" : "resume", id, e.text);
}

static bool saved(struct host *h, const char *id)
{
	char name[SNAPSHOT_ID_MAX + 1];

	hibernate_id(id, name);
	return snapshot_look(&h->store, name, NULL) == 0;
}

static void remove_all_of(struct sandbox *sb)
{
	struct host *h = sb->host;
	char name[SNAPSHOT_ID_MAX + 1];

	machine_remove(&h->machines, sb->machine, NULL);
	hibernate_id(sb->id, name);
	snapshot_delete(&h->store, name, NULL);
	slept_id(sb->id, name);
	snapshot_delete(&h->store, name, NULL);
	volume_drop_clones(h, sb->id);
	if (record_delete(sb, NULL) == 0)
		host_drop(h, sb);
}

/* A change of its volumes that was not finished: the machine gets what the record says. */
static void settle_volumes(struct sandbox *sb, struct tally *t)
{
	struct host *h = sb->host;
	struct volume_wants w;
	struct err e;

	if (volume_want_all(h, sb, &w, &e) < 0 ||
	    machine_volumes_settle(&h->machines, sb->machine, w.v, w.n, true, &e) < 0)
		log_warn("a volume could not be given back to its sandbox sandbox=%s why=\"%s\"",
		         sb->id, e.text);
	volume_settled(sb, &w);
	volume_wants_fini(&w);
	log_info("finished a change of volumes sandbox=%s", sb->id);
	t->finished++;
}

static const char *end_of(const struct machine_info *info)
{
	return info->end[0] ? info->end : "its host went down";
}

/* It ran, or was paused: its machine goes on, and is taken up. */
static void recover_awake(struct sandbox *sb, const struct machine_info *info, struct tally *t)
{
	struct host *h = sb->host;
	char name[SNAPSHOT_ID_MAX + 1];

	if (sb->checkpointed)
		sb->history_lost = "pandad was started anew";
	/* The host went down when it had just been saved, or had just been woken: in both cases
	 * that is the newest there is of it. */
	if (!info->alive && saved(h, sb->id)) {
		machine_remove(&h->machines, sb->machine, NULL);
		settle_as(sb, SANDBOX_HIBERNATED);
		log_info("finished a hibernation that was not on record sandbox=%s", sb->id);
		t->finished++;
		return;
	}
	if (!info->alive || sandbox_watch(sb, info->pid, info->engine) < 0) {
		fail(sb, end_of(info), t);
		return;
	}
	/* A wake-up that was not finished: what it slept in is of no more use. */
	if (sb->state == SANDBOX_RUNNING && saved(h, sb->id)) {
		hibernate_id(sb->id, name);
		snapshot_delete(&h->store, name, NULL);
	}
	if (sb->state == SANDBOX_PAUSED)
		set_paused(h, sb->machine, true);
	machine_belongs(&h->machines, sb->machine, sb->tenant);
	network_adopt(sb);
	sandbox_check(sb);
	sandbox_schedule(sb);
	t->adopted++;
}

/* It was about to be put to sleep: it sleeps if it was saved, and goes on if it was not. */
static void recover_hibernating(struct sandbox *sb, const struct machine_info *info,
                                struct tally *t)
{
	struct host *h = sb->host;

	if (saved(h, sb->id)) {
		machine_remove(&h->machines, sb->machine, NULL);
		settle_as(sb, SANDBOX_HIBERNATED);
		event_emit(&h->events, sb->tenant, sb->id, "recover.hibernated", NULL);
		log_info("finished a hibernation sandbox=%s", sb->id);
		t->finished++;
	} else if (info->alive && sandbox_watch(sb, info->pid, info->engine) == 0) {
		machine_belongs(&h->machines, sb->machine, sb->tenant);
		network_adopt(sb);
		set_paused(h, sb->machine, false);
		settle_as(sb, SANDBOX_RUNNING);
		log_info("undid a hibernation sandbox=%s", sb->id);
		t->undone++;
	} else {
		fail(sb, end_of(info), t);
	}
}

/* It slept, maybe the last pandad was about to wake it: it sleeps. */
static void recover_asleep(struct sandbox *sb, bool there, struct tally *t)
{
	struct host *h = sb->host;

	if (there)
		machine_remove(&h->machines, sb->machine, NULL);
	if (!saved(h, sb->id)) {
		fail(sb, "what it was hibernated in is gone or damaged", t);
		return;
	}
	if (sb->state == SANDBOX_WAKING) {
		log_info("undid a wake-up sandbox=%s", sb->id);
		t->undone++;
		settle_as(sb, SANDBOX_HIBERNATED);
	}
	sandbox_schedule(sb);
	t->asleep++;
}

static void recover_one(struct sandbox *sb, struct tally *t)
{
	struct machine_info info = {0};
	bool there = machine_look(&sb->host->machines, sb->machine, &info, NULL) == 0;

	if (sb->state == SANDBOX_REWINDING) { /* before or after: the record says which machine */
		settle_as(sb, SANDBOX_RUNNING);
		if (info.alive) /* it may have been paused when it was to be put back */
			set_paused(sb->host, sb->machine, false);
	}
	switch (sb->state) {
	case SANDBOX_CREATING: /* no client was told of it */
		log_info("undoing a create sandbox=%s", sb->id);
		remove_all_of(sb);
		t->undone++;
		return;
	case SANDBOX_KILLING:
		log_info("finishing a kill sandbox=%s", sb->id);
		remove_all_of(sb);
		t->finished++;
		return;
	case SANDBOX_RUNNING:
	case SANDBOX_PAUSED:
		recover_awake(sb, &info, t);
		return;
	case SANDBOX_HIBERNATING:
		recover_hibernating(sb, &info, t);
		return;
	case SANDBOX_WAKING:
	case SANDBOX_HIBERNATED:
		recover_asleep(sb, there, t);
		return;
	default: /* one that failed has no machine: what runs under its name, no client reaches */
		if (info.alive)
			machine_remove(&sb->host->machines, sb->machine, NULL);
		sandbox_schedule(sb);
		t->failed++;
	}
}

/* --- things without a record ------------------------------------------------------------------ */

static void stray_machine(const struct machine_info *m, void *arg)
{
	struct {
		struct host *host;
		struct tally *tally;
	} *a = arg;
	struct err e;

	for (struct sandbox *sb = a->host->newest; sb; sb = sb->next)
		if (!strcmp(sb->machine, m->id))
			return;
	if (machine_remove(&a->host->machines, m->id, &e) < 0)
		log_error("cannot remove a machine without a record machine=%s why=\"%s\"", m->id,
		          e.text);
	else if (m->pid > 0)
		a->tally->strays++;
}

struct ids {
	char (*at)[SNAPSHOT_ID_MAX + 1];
	size_t n, cap;
};

static bool ids_add(struct ids *l, const char *id)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 64;
		void *p = reallocarray(l->at, cap, sizeof(*l->at));

		if (!p)
			return false;
		l->at = p;
		l->cap = cap;
	}
	snprintf(l->at[l->n++], sizeof(*l->at), "%.*s", SNAPSHOT_ID_MAX, id);
	return true;
}

static bool add_id(void *arg, const struct db_snapshot *row)
{
	return ids_add(arg, row->id);
}

/* One that cannot be looked up is on record. */
static bool snapshot_on_record(struct host *h, const char *id)
{
	bool known = true;
	struct err e;

	if (db_snapshot_known(h->db, id, &known, &e) < 0)
		log_error("cannot look up a snapshot, it stays snapshot=%s why=\"%s\"", id, e.text);
	return known;
}

/* The host went down when they had just been deleted: their files know it, the record did not
 * yet. */
static void forget_deleted(struct host *h, struct tally *t)
{
	struct ids list = {0};

	db_snapshots_each(h->db, NULL, NULL, add_id, &list, NULL);
	for (size_t i = 0; i < list.n; i++) {
		if (faccessat(h->store.snapshots, list.at[i], F_OK, 0) == 0 || errno != ENOENT)
			continue;
		db_snapshot_delete(h->db, list.at[i], NULL);
		log_info("finished a delete that was not on record snapshot=%s", list.at[i]);
		t->finished++;
	}
	free(list.at);
}

/* Snapshots that were being made or deleted, and those nothing on record knows. */
static void recover_snapshots(struct host *h, struct tally *t)
{
	struct ids list = {0};
	autoclosedir DIR *d = io_opendir(h->store.snapshots, ".", 0);
	struct dirent *de;

	db_snapshots_unfinished(h->db, add_id, &list, NULL);
	for (size_t i = 0; i < list.n; i++) {
		snapshot_delete(&h->store, list.at[i], NULL);
		db_snapshot_delete(h->db, list.at[i], NULL);
		log_info("undid a snapshot snapshot=%s", list.at[i]);
		t->undone++;
	}
	forget_deleted(h, t);
	list.n = 0;
	while (d && (de = readdir(d))) {
		bool known = de->d_name[0] == '.';

		if (!strncmp(de->d_name, "tpl-", 4)) {
			known = templates_own(h->depot.templates, de->d_name);
		} else if (!strncmp(de->d_name, "hib-", 4)) {
			struct sandbox *sb = dict_get(h->by_id, de->d_name + 4);

			known = sb && sb->state == SANDBOX_HIBERNATED;
		} else if (!strncmp(de->d_name, "was-", 4)) {
			struct sandbox *sb = dict_get(h->by_id, de->d_name + 4);

			known = sb && sb->state != SANDBOX_HIBERNATED;
		} else if (!known) {
			known = snapshot_on_record(h, de->d_name);
		}
		if (!known)
			ids_add(&list, de->d_name);
	}
	for (size_t i = 0; i < list.n; i++) {
		snapshot_delete(&h->store, list.at[i], NULL);
		log_info("removed a snapshot without a record snapshot=%s", list.at[i]);
		t->strays++;
	}
	snapshot_gc(&h->store, NULL, NULL);
	free(list.at);
}

int host_recover(struct host *h, struct err *e)
{
	struct tally t = {0};
	struct {
		struct host *host;
		struct tally *tally;
	} a = {h, &t};
	struct load load = {.host = h};
	struct sandbox *sb, *next;
	int r;

	r = db_sandboxes_each(h->db, load_row, &load, e);
	if (r == 0 && load.no_memory)
		r = err_nomem(e);
	if (r < 0)
		return r;
	/* Of 0.1.0: they have a name for previews from now on. */
	for (sb = load.unnamed ? h->newest : NULL; sb; sb = sb->next)
		if (record_update(sb, e) < 0)
			return -e->code;
	for (sb = h->newest; sb; sb = next) {
		next = sb->next;
		recover_one(sb, &t);
	}
	r = machine_each(&h->machines, stray_machine, &a, e);
	if (r < 0)
		return r;
	recover_snapshots(h, &t);
	/* Now: machines that are no more had them, too. */
	for (sb = h->newest; sb; sb = sb->next)
		if (sb->volumes_pending && sb->state == SANDBOX_RUNNING)
			settle_volumes(sb, &t);
	log_info("recovered adopted=%u asleep=%u failed=%u undone=%u finished=%u strays=%u",
	         t.adopted, t.asleep, t.failed, t.undone, t.finished, t.strays);
	return 0;
}
