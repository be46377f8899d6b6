/*
 * host/sandbox_op.c - a sandbox in the host's care: its record, its turns, its machine, its time
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/log.h"
#include "base/macro.h"
#include "db/sandboxes.h"
#include "host/host_internal.h"

/* --- its record ------------------------------------------------------------------------------ */

static char *doc_text(const struct sandbox *sb, struct err *e)
{
	AUTO(json_decrefp) json_t *doc = sandbox_to_doc(sb);
	char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;

	if (!text)
		err_nomem(e);
	return text;
}

int record_insert(struct sandbox *sb, struct err *e)
{
	autofree char *text = doc_text(sb, e);

	if (!text)
		return -ENOMEM;
	return db_sandbox_insert(sb->host->db,
	                         &(struct db_sandbox){.id = sb->id,
	                                              .tenant = sb->tenant,
	                                              .state = sandbox_state_record(sb->state),
	                                              .doc = text,
	                                              .created_ms = sb->created_ms},
	                         e);
}

int record_update(struct sandbox *sb, struct err *e)
{
	autofree char *text = doc_text(sb, e);

	if (!text)
		return -ENOMEM;
	return db_sandbox_update(sb->host->db, sb->id, sandbox_state_record(sb->state), text, e);
}

int record_delete(struct sandbox *sb, struct err *e)
{
	return db_sandbox_delete(sb->host->db, sb->id, e);
}

int sandbox_enter(struct sandbox *sb, enum sandbox_state to, struct err *e)
{
	enum sandbox_state from = sb->state;
	int r;

	assert(sandbox_may_go(from, to));
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

/* --- its turns ------------------------------------------------------------------------------- */

static void op_init(struct op *op, struct sandbox *sb, const char *name)
{
	const char *request = sb->host->request;

	op->sb = sb;
	op->name = name;
	op->asked_ms = mono_ms();
	op->began_ms = 0;
	snprintf(op->request, sizeof(op->request), "%s", request ? request : "");
}

void op_check(const struct sandbox *sb)
{
	for (const struct op *op = sb->ops; op; op = op->next) {
		assert(op->sb == sb && op->begin && op->name);
		assert((op->began_ms != 0) == (op == sb->ops));
	}
}

static void op_begin(struct op *op)
{
	op->began_ms = mono_ms();
	op_check(op->sb);
	log_debug("operation begins op=%s sandbox=%s request=%s waited_ms=%llu", op->name,
	          op->sb->id, op->request[0] ? op->request : "-",
	          (unsigned long long)(op->began_ms - op->asked_ms));
	op->begin(op);
}

void op_queue(struct sandbox *sb, const char *name, struct op *op)
{
	struct op **p = &sb->ops;

	op_init(op, sb, name);
	op->next = NULL;
	for (; *p; p = &(*p)->next)
		assert(*p != op); /* it would wait for itself */
	*p = op;
	if (sb->ops == op)
		op_begin(op);
}

void op_queue_first(struct sandbox *sb, const char *name, struct op *op)
{
	if (!sb->ops) {
		op_queue(sb, name, op);
		return;
	}
	op_init(op, sb, name);
	op->next = sb->ops->next;
	sb->ops->next = op;
	if (sb->ops->cancel)
		sb->ops->cancel(sb->ops);
}

void op_end(struct op *op)
{
	struct sandbox *sb = op->sb;

	assert(sb->ops == op && op->began_ms);
	log_debug("operation ended op=%s sandbox=%s request=%s state=%s took_ms=%llu", op->name,
	          sb->id, op->request[0] ? op->request : "-", sandbox_state_record(sb->state),
	          (unsigned long long)(mono_ms() - op->began_ms));
	sb->ops = op->next;
	if (sb->ops)
		op_begin(sb->ops);
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

/* --- its machine ----------------------------------------------------------------------------- */

static void on_death(void *arg, uint32_t events)
{
	sandbox_died(arg);
}

int sandbox_watch(struct sandbox *sb, pid_t pid, const struct engine *engine)
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
	if (engine)
		snprintf(sb->isolation, sizeof(sb->isolation), "%s", engine->isolation);
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

/* --- its time -------------------------------------------------------------------------------- */

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
	/* Either clock: one that is set back does not prolong a life. */
	if (ends && (wall_ms() >= ends || (ends == sb->ends_ms && now >= sb->ends_due_ms))) {
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

	if (ends != sb->ends_ms) {
		sb->ends_ms = ends;
		sb->ends_due_ms = now + (ends > wall ? ends - wall : 0);
	}
	if (ends)
		at = sb->ends_due_ms;
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
