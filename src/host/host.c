#include "host/host.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/pool.h"
#include "host/checkpoint.h"
#include "host/disk.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host_internal.h"
#include "host/network.h"
#include "host/preview.h"
#include "host/records.h"
#include "host/sandbox.h"
#include "host/signature.h"
#include "host/volume_use.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"
#include "template/template.h"

enum {
	SWEEP_MS = 2000,        /* consoles, layers, and filling up what is prepared ahead */
	HOST_THREADS_MAX = 128, /* while some wait for guests that do not answer */
};

/* --- books ----------------------------------------------------------------------------------- */

struct sandbox *sandbox_new(struct host *h, const char *tenant, const struct sandbox_spec *spec)
{
	struct sandbox *sb = calloc(1, sizeof(*sb));

	if (!sb || (spec && spec_copy(spec, &sb->spec) < 0)) {
		free(sb);
		return NULL;
	}
	sb->host = h;
	sb->pidfd = -1;
	sb->boot_mode = "snapshot";
	sb->runner = "shell";
	snprintf(sb->isolation, sizeof(sb->isolation), "%s", h->engines->list[0].isolation);
	sb->created_ms = wall_ms();
	sb->active_ms = mono_ms();
	preview_name_new(sb->preview);
	snprintf(sb->tenant, sizeof(sb->tenant), "%s", tenant);
	return sb;
}

int host_add(struct host *h, struct sandbox *sb)
{
	int r = dict_put(h->by_id, sb->id, sb);

	if (r < 0)
		return r;
	r = dict_put(h->by_preview, sb->preview, sb);
	if (r < 0) {
		dict_del(h->by_id, sb->id);
		return r;
	}
	sb->next = h->newest;
	sb->prevp = &h->newest;
	if (sb->next)
		sb->next->prevp = &sb->next;
	h->newest = sb;
	h->count++;
	return 0;
}

void host_drop(struct host *h, struct sandbox *sb)
{
	link_drop(sb);
	history_drop(sb, NULL);
	sandbox_unwatch(sb);
	network_return(sb);
	loop_timer_clear(h->loop, &sb->timer);
	if (sb->prevp) {
		*sb->prevp = sb->next;
		if (sb->next)
			sb->next->prevp = sb->prevp;
		dict_del(h->by_id, sb->id);
		dict_del(h->by_preview, sb->preview);
		h->count--;
	}
	spec_fini(&sb->spec);
	free(sb);
}

struct sandbox *host_find(struct host *h, const char *tenant, const char *id)
{
	struct sandbox *sb = dict_get(h->by_id, id);

	if (!sb || sb->state == SANDBOX_KILLING || (tenant && strcmp(sb->tenant, tenant) != 0))
		return NULL;
	return sb;
}

/* --- opening and closing --------------------------------------------------------------------- */

static void sweep_work(void *arg)
{
	struct host *h = arg;

	machines_trim_consoles(&h->machines);
	depot_collect(&h->depot);
}

static void sweep_done(void *arg)
{
	struct host *h = arg;

	if (!h->depot.closing)
		loop_timer_set(h->loop, &h->sweep, mono_ms() + SWEEP_MS);
}

static void on_sweep(void *arg)
{
	struct host *h = arg;

	host_fill_spare(h);
	retain_sweep(h);
	volume_sweep(h);
	if (pool_submit(h->pool, sweep_work, sweep_done, h) < 0)
		sweep_done(h);
}

static int open_dirs(struct host *h, struct err *e)
{
	char path[PATH_MAX];
	autoclose int store = -1;
	static const char *const names[] = {"", "/store", "/templates", "/volumes"};
	int r;

	if (mkdir(h->config.run_dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "run_dir", "cannot make %s: %s", h->config.run_dir,
		               strerror(errno));
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s%s", h->config.data_dir, names[i]);
		if (mkdir(path, 0700) < 0 && errno != EEXIST)
			return err_set(e, errno, "data_dir", "cannot make %s: %s", path,
			               strerror(errno));
	}
	snprintf(path, sizeof(path), "%s/store", h->config.data_dir);
	store = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = store < 0 ? -errno : snapshot_store_open(store, &h->store);
	if (r < 0)
		return err_set(e, -r, "data_dir", "cannot open %s: %s", path, strerror(-r));
	return 0;
}

static int admit_build(void *host, const char *tenant, unsigned memory_mb, struct err *e)
{
	return host_admit(host, tenant, 1, memory_mb, NULL, e);
}

static void template_baked(void *host)
{
	host_fill_spare(host);
}

static void template_event(void *host, const char *tenant, const char *type, json_t *payload)
{
	struct host *h = host;

	event_emit(&h->events, tenant, "", type, payload);
}

static int open_templates(struct host *h, struct err *e)
{
	int r;

	h->depot.loop = h->loop;
	h->depot.pool = h->pool;
	h->depot.machines = &h->machines;
	h->depot.store = &h->store;
	h->depot.data_dir = h->config.data_dir;
	h->depot.upper_image = h->config.upper_image;
	h->depot.disk_reserve = h->config.disk_reserve;
	h->depot.build_s = h->config.build_s;
	h->depot.host = h;
	h->depot.admit = admit_build;
	h->depot.baked = template_baked;
	h->depot.event = template_event;
	r = templates_open(&h->depot, e);
	if (r < 0)
		return r;
	network_open(h);
	h->depot.net = h->net;
	return 0;
}

int host_open(struct loop *l, struct engines *engines, const struct host_config *c,
              struct host **ret, struct err *e)
{
	struct host *h = calloc(1, sizeof(*h));
	char path[PATH_MAX];
	bool known;
	int r;

	if (!h)
		return err_nomem(e);
	h->loop = l;
	h->engines = engines;
	h->config = *c;
	h->store = (struct snapshot_store){.root = -1, .layers = -1, .snapshots = -1};
	h->machines.dir = -1;
	depot_init(&h->depot);
	r = open_dirs(h, e);
	if (r == 0 && (dict_new(&h->by_id) < 0 || dict_new(&h->by_preview) < 0))
		r = err_nomem(e);
	if (r == 0 && pool_new(l, h->config.threads, &h->pool) < 0)
		r = err_set(e, EAGAIN, "no_memory", "cannot start threads");
	if (r == 0)
		pool_may_grow(h->pool, HOST_THREADS_MAX);
	if (r == 0)
		r = records_open(&h->records, h, e);
	if (r == 0)
		r = disk_open(&h->disk, h, e);
	if (r == 0)
		r = events_open(&h->events, l, h->db, &h->config.events, e);
	if (r == 0)
		r = machines_open(&h->machines, engines, c->run_dir, e);
	snprintf(path, sizeof(path), "%s/disks", c->data_dir);
	if (r == 0)
		r = machines_disks(&h->machines, path, e);
	if (r == 0)
		r = signature_key_open(h->db, c->data_dir, &h->archive_key, e);
	if (r == 0) /* an import reads it anew; here the operator hears of what is wrong in it */
		r = signature_known(c->import_keys, NULL, &known, e);
	if (r == 0)
		r = open_templates(h, e);
	if (r == 0)
		r = volumes_recover(h, e);
	if (r == 0)
		r = host_recover(h, e);
	if (r < 0) {
		host_close(h);
		return r;
	}
	h->expires_ms = 1; /* the first sweep looks */
	h->sweep = (struct loop_timer){.fn = on_sweep, .arg = h};
	loop_timer_set(l, &h->sweep, mono_ms());
	records_begin(&h->records);
	disk_begin(&h->disk);
	*ret = h;
	return 0;
}

struct drain {
	struct host *host;
	struct loop_defer look;
	void (*done)(void *arg);
	void *arg;
};

static void drain_look(void *arg)
{
	struct drain *d = arg;
	struct host *h = d->host;

	if (pool_busy(h->pool) > 0 || !records_drain(&h->records) || !disk_drain(&h->disk))
		return; /* host_quieter() when that is done */
	for (struct sandbox *sb = h->newest; sb; sb = sb->next)
		if (sb->ops)
			return; /* likewise, when they have ended */
	pool_on_idle(h->pool, NULL, NULL);
	pool_on_idle(h->records.pool, NULL, NULL);
	pool_on_idle(h->disk.pool, NULL, NULL);
	h->drain = NULL;
	d->done(d->arg);
	free(d);
}

void host_quieter(void *host)
{
	struct host *h = host;

	if (h->drain)
		loop_defer(h->loop, &h->drain->look);
}

void host_drain(struct host *h, void (*done)(void *arg), void *arg)
{
	struct drain *d = calloc(1, sizeof(*d));

	depot_stop(&h->depot);
	loop_timer_clear(h->loop, &h->sweep);
	if (!d) {
		done(arg);
		return;
	}
	*d = (struct drain){.host = h, .done = done, .arg = arg};
	d->look = (struct loop_defer){.fn = drain_look, .arg = d};
	h->drain = d;
	pool_on_idle(h->pool, host_quieter, h);
	pool_on_idle(h->records.pool, host_quieter, h);
	pool_on_idle(h->disk.pool, host_quieter, h);
	host_quieter(h);
}

void host_close(struct host *h)
{
	if (!h)
		return;
	depot_stop(&h->depot);
	if (h->drain)
		loop_defer_cancel(h->loop, &h->drain->look);
	free(take_ptr(h->drain));
	if (h->pool)
		pool_free(h->pool);
	disk_close(&h->disk);
	host_drop_spare(h);
	while (h->newest) {
		h->newest->ops = NULL;
		host_drop(h, h->newest);
	}
	loop_timer_clear(h->loop, &h->sweep);
	network_close(h);
	templates_close(h->depot.templates);
	if (h->records.host) {
		events_close(&h->events);
		records_close(&h->records);
	}
	dict_free(h->by_id);
	dict_free(h->by_preview);
	if (h->machines.dir >= 0)
		machines_close(&h->machines);
	if (h->store.root >= 0)
		snapshot_store_close(&h->store);
	depot_fini(&h->depot);
	free(h);
}
