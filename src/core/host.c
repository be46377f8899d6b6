#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/io.h"
#include "base/log.h"
#include "core/host_internal.h"

enum {
	SWEEP_MS = 2000,           /* checkpoints, and filling up what is prepared ahead */
	SANDBOX_MEMORY_FLOOR = 16, /* MiB a new sandbox will surely use */
};

struct host_spare {
	struct host_spare *next;
	char id[SANDBOX_ID + 1];
};

/* --- books ------------------------------------------------------------------------------------ */

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
	snprintf(sb->isolation, sizeof(sb->isolation), "%s", h->engine->kinds[0].isolation);
	sb->created_ms = wall_ms();
	sb->active_ms = mono_ms();
	snprintf(sb->tenant, sizeof(sb->tenant), "%s", tenant);
	return sb;
}

int host_add(struct host *h, struct sandbox *sb)
{
	int r = dict_put(h->by_id, sb->id, sb);

	if (r < 0)
		return r;
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

/* --- records ---------------------------------------------------------------------------------- */

static char *doc_text(const struct sandbox *sb, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = sandbox_to_doc(sb);
	char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

	if (!text)
		err_set(e, ENOMEM, "no_memory", "no memory");
	return text;
}

int record_insert(struct sandbox *sb, struct err *e)
{
	autofree char *text = doc_text(sb, e);

	if (!text)
		return -ENOMEM;
	return db_run(
	    sb->host->db, e,
	    "INSERT INTO sandboxes(id, tenant, state, created_at, doc) VALUES(?, ?, ?, ?, ?)",
	    "tttit", sb->id, sb->tenant, sandbox_state_record(sb->state), (int64_t)sb->created_ms,
	    text);
}

int record_update(struct sandbox *sb, struct err *e)
{
	autofree char *text = doc_text(sb, e);

	if (!text)
		return -ENOMEM;
	return db_run(sb->host->db, e, "UPDATE sandboxes SET state = ?, doc = ? WHERE id = ?",
	              "ttt", sandbox_state_record(sb->state), text, sb->id);
}

int record_delete(struct sandbox *sb, struct err *e)
{
	return db_run(sb->host->db, e, "DELETE FROM sandboxes WHERE id = ?", "t", sb->id);
}

int sandbox_enter(struct sandbox *sb, enum sandbox_state to, struct err *e)
{
	enum sandbox_state from = sb->state;
	int r;

	sb->state = to;
	r = record_update(sb, e);
	if (r < 0) {
		sb->state = from;
		return r;
	}
	sandbox_check(sb);
	sandbox_schedule(sb);
	return 0;
}

/* --- turns ------------------------------------------------------------------------------------ */

void op_queue(struct sandbox *sb, struct op *op)
{
	struct op **p = &sb->ops;

	op->sb = sb;
	op->next = NULL;
	while (*p)
		p = &(*p)->next;
	*p = op;
	if (sb->ops == op)
		op->begin(op);
}

void op_queue_first(struct sandbox *sb, struct op *op)
{
	if (!sb->ops) {
		op_queue(sb, op);
		return;
	}
	op->sb = sb;
	op->next = sb->ops->next;
	sb->ops->next = op;
	if (sb->ops->cancel)
		sb->ops->cancel(sb->ops);
}

void op_end(struct op *op)
{
	struct sandbox *sb = op->sb;

	assert(sb->ops == op);
	sb->ops = op->next;
	if (sb->ops)
		sb->ops->begin(sb->ops);
	else if (sb->state == SANDBOX_KILLING && sb->pid == 0)
		host_drop(sb->host, sb); /* killed, and nobody asks for it any more */
}

int sandbox_need_running(const struct sandbox *sb, struct err *e)
{
	switch (sb->state) {
	case SANDBOX_RUNNING:
		return 0;
	case SANDBOX_PAUSED:
		return err_set(e, EBUSY, "sandbox_paused",
		               "sandbox %s is paused: resume it first (POST .../resume)", sb->id);
	case SANDBOX_FAILED:
		return err_set(e, ESRCH, "sandbox_failed",
		               "sandbox %s has failed (%s): delete it and create another", sb->id,
		               sb->end);
	case SANDBOX_KILLING:
		return err_set(e, ENOENT, "sandbox_not_found", "there is no sandbox %s", sb->id);
	default:
		return err_set(e, EBUSY, "sandbox_busy", "sandbox %s is %s: try again in a moment",
		               sb->id, sandbox_state_record(sb->state));
	}
}

/* --- the machine behind it -------------------------------------------------------------------- */

static void on_death(void *arg, uint32_t events)
{
	sandbox_died(arg);
}

int sandbox_watch(struct sandbox *sb, pid_t pid, const struct engine_kind *kind)
{
	int fd = pidfd_open(pid, 0), r;

	if (fd < 0)
		return -errno;
	sb->death = (struct loop_io){.fn = on_death, .arg = sb};
	r = loop_io_add(sb->host->loop, &sb->death, fd, EPOLLIN);
	if (r < 0) {
		close(fd);
		return r;
	}
	sb->pid = pid;
	sb->pidfd = fd;
	if (kind)
		snprintf(sb->isolation, sizeof(sb->isolation), "%s", kind->isolation);
	return 0;
}

void sandbox_unwatch(struct sandbox *sb)
{
	siginfo_t si;

	if (sb->pidfd < 0)
		return;
	loop_io_del(sb->host->loop, &sb->death);
	/* Fails for a machine that another pandad started: it is not our child. */
	waitid(P_PIDFD, (id_t)sb->pidfd, &si, WEXITED | WNOHANG);
	close(sb->pidfd);
	sb->pidfd = -1;
	sb->pid = 0;
}

void sandbox_died(struct sandbox *sb)
{
	struct host *h = sb->host;
	struct machine_info info = {0};
	struct err e;

	link_drop(sb);
	sandbox_unwatch(sb);
	network_return(sb);
	if (sb->state != SANDBOX_RUNNING && sb->state != SANDBOX_PAUSED)
		return; /* whoever works on it finds out */
	if (machine_look(&h->machines, sb->machine, &info, NULL) == 0 && info.end[0])
		snprintf(sb->end, sizeof(sb->end), "%s", info.end);
	else
		snprintf(sb->end, sizeof(sb->end), "its machine process ended");
	h->stats.deaths++;
	log_warn("sandbox died, it stays on record as failed sandbox=%s why=\"%s\"", sb->id,
	         sb->end);
	if (sandbox_enter(sb, SANDBOX_FAILED, &e) < 0) {
		log_error("cannot record a death sandbox=%s why=\"%s\"", sb->id, e.text);
		sb->state = SANDBOX_FAILED;
	}
	event_emit(&h->events, sb->tenant, sb->id, "vm.died",
	           json_pack("{s:s, s:b}", "reason", sb->end, "oom_killed", info.oom_killed));
}

/* --- time ------------------------------------------------------------------------------------- */

/* When it has been idle for too long, if nobody asks for it until then. UINT64_MAX: never. */
static uint64_t reap_due_ms(const struct sandbox *sb)
{
	int64_t idle = sb->spec.idle_s < 0 ? sb->host->config.idle_s : sb->spec.idle_s;

	if (sb->spec.persistent || sb->spec.ttl_s >= 0 || idle <= 0 ||
	    sb->state == SANDBOX_HIBERNATED) /* parked, not idle */
		return UINT64_MAX;
	return sb->active_ms + (uint64_t)idle * 1000;
}

static uint64_t sleep_due_ms(const struct sandbox *sb)
{
	if (sb->spec.auto_hibernate_s <= 0 || sb->state != SANDBOX_RUNNING)
		return UINT64_MAX;
	return sb->active_ms + (uint64_t)sb->spec.auto_hibernate_s * 1000;
}

static void on_time(void *arg)
{
	struct sandbox *sb = arg;
	struct host *h = sb->host;
	uint64_t now = mono_ms(), ends = sandbox_expires_ms(sb);

	if (sb->state == SANDBOX_KILLING)
		return;
	if (ends && wall_ms() >= ends) {
		host_kill(h, sb, "ttl", NULL, NULL);
		return;
	}
	if (sb->busy == 0 && !sb->ops) {
		if (now >= reap_due_ms(sb)) {
			host_kill(h, sb, "idle", NULL, NULL);
			return;
		}
		if (now >= sleep_due_ms(sb)) {
			host_hibernate(h, sb, NULL, NULL);
			return;
		}
	}
	sandbox_schedule(sb);
}

void sandbox_schedule(struct sandbox *sb)
{
	struct host *h = sb->host;
	uint64_t now = mono_ms(), at = UINT64_MAX, ends = sandbox_expires_ms(sb), wall = wall_ms();
	uint64_t reap = reap_due_ms(sb), sleep = sleep_due_ms(sb);

	if (ends)
		at = now + (ends > wall ? ends - wall : 0);
	/* Busy ones are looked at again when they would be due: activity sets no timer. */
	if (reap != UINT64_MAX) {
		reap = MAX(reap, now + 1000);
		at = MIN(at, reap);
	}
	if (sleep != UINT64_MAX) {
		sleep = MAX(sleep, now + 100);
		at = MIN(at, sleep);
	}
	sb->timer.fn = on_time;
	sb->timer.arg = sb;
	if (at == UINT64_MAX || sb->state == SANDBOX_KILLING)
		loop_timer_clear(h->loop, &sb->timer);
	else
		loop_timer_set(h->loop, &sb->timer, at);
}

void host_touch(struct host *h, struct sandbox *sb)
{
	sb->active_ms = mono_ms();
}

void host_busy(struct host *h, struct sandbox *sb)
{
	sb->busy++;
	host_touch(h, sb);
}

void host_idle(struct host *h, const char *id)
{
	struct sandbox *sb = dict_get(h->by_id, id);

	if (!sb)
		return;
	if (sb->busy)
		sb->busy--;
	host_touch(h, sb);
}

int host_set_life(struct host *h, struct sandbox *sb, int64_t ttl_s, int persistent, struct err *e)
{
	struct sandbox_spec had = sb->spec;
	int r;

	if (ttl_s >= -1)
		sb->spec.ttl_s = ttl_s;
	if (persistent >= 0)
		sb->spec.persistent = persistent;
	r = record_update(sb, e);
	if (r < 0)
		sb->spec = had;
	sandbox_schedule(sb);
	return r;
}

int host_set_metadata(struct host *h, struct sandbox *sb, json_t *metadata, struct err *e)
{
	json_t *had = sb->spec.metadata;
	int r;

	sb->spec.metadata = metadata;
	r = record_update(sb, e);
	if (r < 0) {
		sb->spec.metadata = had;
		had = metadata;
	}
	json_decref(had);
	return r;
}

/* --- room ------------------------------------------------------------------------------------- */

static uint64_t memory_available(void)
{
	autofree char *text = NULL;
	unsigned long long kib = 0;
	char *p;

	if (io_read_file(AT_FDCWD, "/proc/meminfo", 65536, &text, NULL) < 0 ||
	    !(p = strstr(text, "MemAvailable:")) || sscanf(p, "MemAvailable: %llu", &kib) != 1)
		return UINT64_MAX; /* no answer is no reason to refuse */
	return (uint64_t)kib << 10;
}

int host_admit(struct host *h, const char *tenant, size_t n, unsigned memory_mb,
               const struct quota *quota, struct err *e)
{
	uint64_t have, mine = 0, mine_mb = 0;
	struct statvfs vfs;

	if (h->closing)
		return err_set(e, ESHUTDOWN, "shutting_down",
		               "pandad is going down: try again later");
	if (h->count + n > h->config.sandboxes_max) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "this host has %zu sandboxes and takes no more than %u: kill some, or "
		    "raise sandboxes_max",
		    h->count, h->config.sandboxes_max);
	}
	have = memory_available();
	if (have < h->config.memory_reserve + n * ((uint64_t)SANDBOX_MEMORY_FLOOR << 20)) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "this host has %llu MiB of memory left and keeps %llu in reserve: kill "
		    "or hibernate some sandboxes",
		    (unsigned long long)(have >> 20),
		    (unsigned long long)(h->config.memory_reserve >> 20));
	}
	if (statvfs(h->config.data_dir, &vfs) == 0 &&
	    (uint64_t)vfs.f_bavail * vfs.f_frsize < h->config.disk_reserve) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "%s has %llu MiB left and %llu are kept in reserve: delete snapshots or "
		    "volumes",
		    h->config.data_dir,
		    (unsigned long long)((uint64_t)vfs.f_bavail * vfs.f_frsize >> 20),
		    (unsigned long long)(h->config.disk_reserve >> 20));
	}
	if (!quota || (!quota->sandboxes && !quota->memory_mb))
		return 0;
	for (struct sandbox *sb = h->newest; sb; sb = sb->next)
		if (!strcmp(sb->tenant, tenant)) {
			mine++;
			mine_mb += sb->memory_mb;
		}
	if (quota->sandboxes && mine + n > quota->sandboxes)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu sandboxes and you have %llu: kill some first",
		               (unsigned long long)quota->sandboxes, (unsigned long long)mine);
	if (quota->memory_mb && mine_mb + n * memory_mb > quota->memory_mb)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu MiB of memory and you use %llu: kill some first",
		               (unsigned long long)quota->memory_mb, (unsigned long long)mine_mb);
	return 0;
}

/* --- jails made ahead ------------------------------------------------------------------------- */

struct prepare_job {
	struct host *host;
	struct host_spare *spare;
	int r;
	struct err err;
};

static void prepare_work(void *arg)
{
	struct prepare_job *j = arg;

	j->r = machine_prepare(&j->host->machines, j->spare->id, &j->err);
	fault_at("prepare.done");
}

static void prepare_done(void *arg)
{
	struct prepare_job *j = arg;
	struct host *h = j->host;

	h->preparing--;
	if (j->r == 0) {
		j->spare->next = h->spare;
		h->spare = j->spare;
		h->nspare++;
	} else {
		log_warn("cannot prepare a machine, creates will be slower why=\"%s\"",
		         j->err.text);
		free(j->spare);
	}
	free(j);
}

void host_fill_spare(struct host *h)
{
	while (!h->closing && h->nspare + h->preparing < h->config.prepare_ahead) {
		struct prepare_job *j = calloc(1, sizeof(*j));
		struct host_spare *s = calloc(1, sizeof(*s));

		if (!j || !s) {
			free(j);
			free(s);
			return;
		}
		uuid_new(s->id);
		*j = (struct prepare_job){.host = h, .spare = s};
		if (pool_submit(h->pool, prepare_work, prepare_done, j) < 0) {
			free(j);
			free(s);
			return;
		}
		h->preparing++;
	}
}

void host_take_id(struct host *h, char ret[SANDBOX_ID + 1], bool *ret_prepared)
{
	struct host_spare *s = h->spare;

	*ret_prepared = s != NULL;
	if (!s) {
		uuid_new(ret);
		return;
	}
	h->spare = s->next;
	h->nspare--;
	memcpy(ret, s->id, sizeof(s->id));
	free(s);
}

int host_drop_snapshot(struct host *h, const char *id, struct err *e)
{
	int r;

	pthread_mutex_lock(&h->drop_lock);
	r = snapshot_delete(&h->store, id, e);
	if (r == 0)
		snapshot_gc(&h->store, NULL, NULL);
	pthread_mutex_unlock(&h->drop_lock);
	if (r == 0)
		h->collect =
		    true; /* once more: a writer may have held on to a layer for a moment */
	return r;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void checkpoint_work(void *arg)
{
	struct host *h = arg;

	db_checkpoint(h->db_path);
	if (atomic_exchange(&h->collect, false)) {
		pthread_mutex_lock(&h->drop_lock);
		snapshot_gc(&h->store, NULL, NULL);
		pthread_mutex_unlock(&h->drop_lock);
	}
}

static void checkpoint_done(void *arg)
{
	struct host *h = arg;

	if (!h->closing)
		loop_timer_set(h->loop, &h->sweep, mono_ms() + SWEEP_MS);
}

static void on_sweep(void *arg)
{
	struct host *h = arg;

	host_fill_spare(h);
	retain_sweep(h);
	volume_sweep(h);
	if (pool_submit(h->pool, checkpoint_work, checkpoint_done, h) < 0)
		checkpoint_done(h);
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

int host_open(struct loop *l, struct engine *engine, const struct host_config *c, struct host **ret,
              struct err *e)
{
	struct host *h = calloc(1, sizeof(*h));
	char path[PATH_MAX];
	int r;

	if (!h)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	h->loop = l;
	h->engine = engine;
	h->config = *c;
	h->store = (struct snapshot_store){.root = -1, .layers = -1, .snapshots = -1};
	h->machines.dir = -1;
	pthread_mutex_init(&h->drop_lock, NULL);
	if (!h->config.threads)
		h->config.threads = 8;
	if (!h->config.sandboxes_max)
		h->config.sandboxes_max = 4096;
	if (!h->config.memory_reserve)
		h->config.memory_reserve = (uint64_t)1 << 30;
	if (!h->config.disk_reserve)
		h->config.disk_reserve = (uint64_t)1 << 30;
	if (!h->config.prepare_ahead)
		h->config.prepare_ahead = 8;
	if (!h->config.idle_s)
		h->config.idle_s = 900;
	if (!h->config.silent_s)
		h->config.silent_s = 20;
	r = open_dirs(h, e);
	if (r == 0 && dict_new(&h->by_id) < 0)
		r = err_set(e, ENOMEM, "no_memory", "no memory");
	if (r == 0 && pool_new(l, h->config.threads, &h->pool) < 0)
		r = err_set(e, EAGAIN, "no_memory", "cannot start threads");
	snprintf(h->db_path, sizeof(h->db_path), "%s/panda.db", c->data_dir);
	if (r == 0)
		r = db_open(h->db_path, &h->db, e);
	if (r == 0)
		r = events_open(&h->events, h->db, e);
	if (r == 0)
		r = machines_open(&h->machines, engine, c->run_dir, e);
	snprintf(path, sizeof(path), "%s/disks", c->data_dir);
	if (r == 0)
		r = machines_disks(&h->machines, path, e);
	if (r == 0)
		r = templates_open(h, &h->templates, e);
	if (r == 0)
		network_open(h);
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
	*ret = h;
	return 0;
}

struct drain {
	struct host *host;
	struct loop_timer timer;
	void (*done)(void *arg);
	void *arg;
};

static void drain_look(void *arg)
{
	struct drain *d = arg;
	struct host *h = d->host;
	bool busy = pool_busy(h->pool) > 0;

	for (struct sandbox *sb = h->newest; sb && !busy; sb = sb->next)
		busy = sb->ops != NULL;
	if (busy) {
		loop_timer_set(h->loop, &d->timer, mono_ms() + 5);
		return;
	}
	d->done(d->arg);
	free(d);
}

void host_drain(struct host *h, void (*done)(void *arg), void *arg)
{
	struct drain *d = calloc(1, sizeof(*d));

	h->closing = true;
	loop_timer_clear(h->loop, &h->sweep);
	if (!d) {
		done(arg);
		return;
	}
	*d = (struct drain){.host = h, .done = done, .arg = arg};
	d->timer = (struct loop_timer){.fn = drain_look, .arg = d};
	loop_timer_set(h->loop, &d->timer, mono_ms());
}

void host_close(struct host *h)
{
	if (!h)
		return;
	h->closing = true;
	if (h->pool)
		pool_free(h->pool);
	while (h->spare) {
		struct host_spare *s = h->spare;

		h->spare = s->next;
		machine_remove(&h->machines, s->id, NULL);
		free(s);
	}
	while (h->newest) {
		h->newest->ops = NULL;
		host_drop(h, h->newest);
	}
	loop_timer_clear(h->loop, &h->sweep);
	network_close(h);
	templates_close(h->templates);
	if (h->db)
		db_checkpoint(h->db_path);
	db_close(h->db);
	dict_free(h->by_id);
	if (h->machines.dir >= 0)
		machines_close(&h->machines);
	if (h->store.root >= 0)
		snapshot_store_close(&h->store);
	pthread_mutex_destroy(&h->drop_lock);
	free(h);
}
