/*
 * host/sandbox_state.c - a sandbox goes from state to state: its record, and the machine behind it
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
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "db/sandboxes.h"
#include "host/disk.h"
#include "host/event.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/network.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "machine/machine.h"

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
	enum sandbox_hold hold = sb->hold;
	int r;

	assert(sandbox_may_go(from, to));
	sb->state = to;
	if (to != SANDBOX_PAUSED)
		sb->hold = HOLD_NONE;
	r = record_update(sb, e);
	if (r < 0) {
		sb->state = from;
		sb->hold = hold;
		return r;
	}
	sandbox_check(sb);
	sandbox_schedule(sb);
	return 0;
}

int sandbox_need_running(const struct sandbox *sb, struct err *e)
{
	switch (sb->state) {
	case SANDBOX_RUNNING:
		return 0;
	case SANDBOX_PAUSED:
		if (sb->hold)
			return err_set(e, EBUSY, "sandbox_paused", "sandbox %s is paused: %s",
			               sb->id, disk_hold_text(sb));
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
		return; /* the operation that works on it finds out */
	if (machine_look(&h->machines, sb->machine, &info, NULL) == 0 && info.end[0] &&
	    !sb->disk.end)
		snprintf(sb->end, sizeof(sb->end), "%s", info.end);
	else if (sb->disk.end)
		snprintf(sb->end, sizeof(sb->end), "%s", sb->disk.end);
	else
		snprintf(sb->end, sizeof(sb->end), "its machine process ended");
	h->stats.deaths++;
	log_warn("sandbox died, it stays on record as failed sandbox=%s why=\"%s\"", sb->id,
	         sb->end);
	if (sandbox_enter(sb, SANDBOX_FAILED, &e) < 0) {
		log_error("cannot record a death sandbox=%s why=\"%s\"", sb->id, e.text);
		sb->state = SANDBOX_FAILED;
		sb->hold = HOLD_NONE;
	}
	event_emit(&h->events, sb->tenant, sb->id, "vm.died",
	           json_pack("{s:s, s:b}", "reason", sb->end, "oom_killed", info.oom_killed));
}
