#include "host/rewind.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "host/checkpoint.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/network.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/start.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "machine/machine.h"

struct rewind {
	struct op op;
	struct host *host;
	host_done *done;
	void *arg;
	char *to;
	unsigned steps;
	char checkpoint[SANDBOX_ID + 1];
	struct start_job job;
	enum sandbox_state had;
	char old[SANDBOX_ID + 1]; /* its machine until now */
	int old_pidfd;            /* -1: it is not our child, or has ended */
	bool volumes_anew;        /* mounted once more, as they are now */
	struct volume_wants wants;
	uint64_t asked_ns;
	int r;
	struct err err;
};

static void rewind_free(struct rewind *w)
{
	start_job_fini(&w->job);
	closep(&w->old_pidfd);
	volume_wants_fini(&w->wants);
	free(w->to);
	free(w);
}

static void rewind_end(struct rewind *w, const struct err *e)
{
	if (w->done)
		w->done(w->arg, e, e ? NULL : w->op.sb);
	op_end(&w->op);
	rewind_free(w);
}

static void clean_work(void *arg)
{
	struct rewind *w = arg;
	siginfo_t si;
	struct err e;

	if (w->volumes_anew && w->had == SANDBOX_RUNNING)
		volume_freeze_all(w->host, w->old, w->wants.list);
	if (machine_remove(&w->host->machines, w->old, &e) < 0)
		log_error("a machine is left until the next start machine=%s why=\"%s\"", w->old,
		          e.text);
	if (w->old_pidfd >= 0)
		waitid(P_PIDFD, (id_t)w->old_pidfd, &si, WEXITED | WNOHANG);
	fault_at("rewind.stopped");
	/* The old machine had them until now. */
	if (w->volumes_anew)
		w->r = machine_volumes_settle(&w->host->machines, w->job.machine, w->wants.v,
		                              w->wants.n, false, &w->err);
	fault_at("rewind.cleaned");
}

static void clean_done(void *arg)
{
	struct rewind *w = arg;
	struct sandbox *sb = w->op.sb;
	struct host *h = w->host;

	if (w->volumes_anew) {
		sb->state = SANDBOX_RUNNING;
		volume_settled(sb, &w->wants);
		if (sb->pid == 0)
			sandbox_died(sb); /* meanwhile */
	}
	if (w->r < 0) {
		err_prefix(&w->err, "sandbox %s was put back, but has lost a volume", sb->id);
		log_warn("a rewound sandbox has lost a volume sandbox=%s why=\"%s\"", sb->id,
		         w->err.text);
	}
	rewind_end(w, w->r < 0 ? &w->err : NULL);
	host_fill_spare(h);
}

static void start_work(void *arg)
{
	struct rewind *w = arg;

	fault_at("rewind.begun");
	start_job_run(&w->job);
	fault_at("rewind.started");
}

/* It stays what it was. */
static void rewind_undo(struct rewind *w, const struct err *e)
{
	struct sandbox *sb = w->op.sb;

	log_warn("rewind failed, undone sandbox=%s why=\"%s\"", sb->id, e->text);
	sb->state = w->had;
	if (sb->pid == 0 && w->had != SANDBOX_FAILED)
		sandbox_died(sb); /* meanwhile */
	rewind_end(w, e);
}

/* The sandbox is the new machine from here on, on record first. */
static int change_over(struct rewind *w, struct err *e)
{
	struct sandbox *sb = w->op.sb;
	uint64_t generation = sb->generation;
	pid_t old = sb->pid;
	char end[sizeof(sb->end)];
	int r;

	w->old_pidfd = sb->pidfd >= 0 ? fcntl(sb->pidfd, F_DUPFD_CLOEXEC, 3) : -1;
	memcpy(end, sb->end, sizeof(end));
	sandbox_unwatch(sb);
	r = sandbox_watch(sb, w->job.pid, w->job.engine);
	if (r < 0)
		err_set(e, -r, "machine_gone", "machine %s ended at once", w->job.machine);
	if (r == 0) {
		memcpy(sb->machine, w->job.machine, sizeof(sb->machine));
		sb->generation = w->job.generation;
		sb->end[0] = 0;
		sb->volumes_pending = w->volumes_anew;
		r = sandbox_enter(sb, SANDBOX_RUNNING, e);
	}
	if (r == 0)
		return 0;
	sb->volumes_pending = false;
	sandbox_unwatch(sb);
	memcpy(sb->machine, w->old, sizeof(sb->machine));
	memcpy(sb->end, end, sizeof(end));
	sb->generation = generation;
	if (old > 0)
		sandbox_watch(sb, old, NULL); /* should that fail, it counts as dead */
	machine_remove(&w->host->machines, w->job.machine, NULL);
	return r;
}

static void start_done(void *arg)
{
	struct rewind *w = arg;
	struct sandbox *sb = w->op.sb;
	struct host *h = w->host;
	struct err e = w->job.err;
	double ms;

	if (w->job.r < 0 || change_over(w, &e) < 0) {
		rewind_undo(w, &e);
		return;
	}
	fault_at("rewind.recorded");
	history_rewound(sb, w->checkpoint);
	link_take(h, sb, &w->job.guest);
	host_touch(h, sb);
	h->stats.rewinds++;
	ms = (double)(mono_ns() - w->asked_ns) / 1e6;
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.rewound",
	           json_pack("{s:s, s:I, s:f}", "checkpoint_id", w->checkpoint, "generation",
	                     (json_int_t)sb->generation, "took_ms", ms));
	log_info("sandbox rewound sandbox=%s checkpoint=%s machine=%s took_ms=%.1f", sb->id,
	         w->checkpoint, sb->machine, ms);
	/* The old machine goes while the new one is at work already; but not while it has volumes
	 * that the new one needs. */
	if (w->volumes_anew)
		sb->state = SANDBOX_REWINDING;
	else if (w->done)
		w->done(w->arg, NULL, sb);
	if (!w->volumes_anew)
		w->done = NULL;
	if (pool_submit_for(h->pool, sb->tenant, clean_work, clean_done, w) < 0) {
		clean_work(w);
		clean_done(w);
	}
}

/*
 * Volumes do not go back. What the guest of a checkpoint remembers of one that was written, or is
 * another one now, is wrong: it does not get that file again, what it had mounted from it is
 * unmounted, and the volume is mounted anew, as it is now.
 */
static bool volumes_differ(const struct checkpoint *c, const struct sandbox *sb)
{
	const json_t *item;
	size_t i;

	json_array_foreach(sb->spec.volumes, i, item) {
		if (!json_is_true(json_object_get(item, "read_only")))
			return true;
	}
	return json_array_size(sb->spec.volumes) && c->volumes != sb->spec.volumes;
}

static int rewind_prepare(struct rewind *w, struct sandbox *sb, struct err *e)
{
	struct host *h = w->host;
	struct checkpoint *c;
	int r = 0;

	if (sb->state != SANDBOX_PAUSED && sb->state != SANDBOX_FAILED &&
	    sb->state != SANDBOX_HIBERNATED)
		r = sandbox_need_running(sb, e);
	if (r < 0)
		return r;
	c = checkpoint_find(sb, w->to, w->steps, e);
	if (!c)
		return -e->code;
	memcpy(w->checkpoint, c->id, sizeof(w->checkpoint));
	w->volumes_anew = volumes_differ(c, sb);
	r = volume_check_again(h, sb, e);
	if (r == 0 && w->volumes_anew)
		r = volume_want_all(h, sb, &w->wants, e);
	else if (r == 0)
		r = volume_open_all(h, sb->tenant, sb->id, sb->spec.volumes, false, w->job.volumes,
		                    e);
	if (r < 0)
		return r;
	if (engine_image_copy(&c->image, &w->job.image) < 0)
		return err_nomem(e);
	return 0;
}

static void rewind_begin(struct op *op)
{
	struct rewind *w = (struct rewind *)op;
	struct sandbox *sb = op->sb;
	struct err e;

	if (rewind_prepare(w, sb, &e) < 0) {
		rewind_end(w, &e);
		return;
	}
	memcpy(w->old, sb->machine, sizeof(w->old));
	start_job_name(&w->job, sb);
	host_take_id(w->host, w->job.machine, &w->job.prepared);
	w->job.parent = w->old;
	w->job.generation = sb->generation + 1;
	w->job.net_fd = network_fd(sb); /* it stays the sandbox's */
	w->had = sb->state;
	sb->state = SANDBOX_REWINDING; /* in memory only: the record is right until the change */
	link_drop(sb);                 /* what is asked from now on waits for its turn */
	if (pool_submit_for(w->host->pool, sb->tenant, start_work, start_done, w) < 0) {
		err_nomem(&e);
		if (w->job.prepared)
			machine_remove(&w->host->machines, w->job.machine, NULL);
		rewind_undo(w, &e);
	}
}

void host_rewind(struct host *h, struct sandbox *sb, const char *to, unsigned steps,
                 host_done *done, void *arg)
{
	struct rewind *w = calloc(1, sizeof(*w));
	struct err e;

	if (w && to)
		w->to = strdup(to);
	if (!w || (to && !w->to)) {
		free(w);
		err_nomem(&e);
		done(arg, &e, NULL);
		return;
	}
	w->op.begin = rewind_begin;
	w->host = h;
	w->done = done;
	w->arg = arg;
	w->steps = steps;
	w->old_pidfd = -1;
	w->asked_ns = mono_ns();
	start_job_init(&w->job, h);
	op_queue(sb, "rewind", &w->op);
}
