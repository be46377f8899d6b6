/*
 * host/sandbox_time.c - how long a sandbox may live, and when it is idle
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

#include "base/clock.h"
#include "base/dict.h"
#include "base/loop.h"
#include "base/macro.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"

/* When it has been idle for too long, if no client asks for it until then. UINT64_MAX: never. */
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
