/*
 * api/routes/usage.c - what a sandbox uses now: its processes as this host sees them, and what its
 * guest says about itself
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/loop.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "wire/guest.h"

enum {
	SAMPLE_MS = 200,
	CHILDREN_MAX = 1024,
};

struct usage_seen {
	uint64_t ticks, rss, vsz, threads, at_ns;
};

/* One process; what it cannot read counts as nothing: it may have just ended. */
static void look_at(pid_t pid, bool first, struct usage_seen *s)
{
	unsigned long utime = 0, stime = 0, vsz = 0;
	long rss = 0, threads = 0;
	autofree char *text = NULL;
	char path[64];
	const char *p;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (io_read_file(AT_FDCWD, path, 4096, &text, &n) < 0 || !(p = strrchr(text, ')')))
		return;
	if (sscanf(p + 1,
	           " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %ld %*d "
	           "%*u %lu %ld",
	           &utime, &stime, &threads, &vsz, &rss) != 5)
		return;
	s->ticks += utime + stime;
	s->threads += (uint64_t)threads;
	if (first) { /* its guest's processes map the same memory */
		s->rss = (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE);
		s->vsz = vsz;
	}
}

static struct usage_seen look_at_all(pid_t pid)
{
	struct usage_seen s = {.at_ns = mono_ns()};
	autofree char *children = NULL;
	char path[64], *p, *end;
	size_t n;

	look_at(pid, true, &s);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	if (io_read_file(AT_FDCWD, path, 65536, &children, &n) < 0)
		return s;
	p = children;
	for (unsigned i = 0; i < CHILDREN_MAX; i++) {
		long child = strtol(p, &end, 10);

		if (end == p || child <= 0)
			break;
		look_at((pid_t)child, false, &s);
		p = end;
	}
	return s;
}

struct usage {
	struct call *call;
	char id[SANDBOX_ID + 1];
	pid_t pid;
	struct usage_seen before;
	struct wire_stats guest;
	bool has_guest;
	unsigned pending; /* the guest's answer, the second look */
	struct loop_timer timer;
};

static json_t *guest_json(const struct wire_stats *g)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I}", "mem_total",
	                 (json_int_t)g->mem_total, "mem_free", (json_int_t)g->mem_free,
	                 "mem_available", (json_int_t)g->mem_available, "disk_total",
	                 (json_int_t)g->disk_total, "disk_free", (json_int_t)g->disk_free, "load1",
	                 (double)g->load1_milli / 1000, "processes", (json_int_t)g->processes,
	                 "uptime_seconds", (json_int_t)(g->uptime_ms / 1000));
}

static void answer(struct usage *u)
{
	struct call *c = u->call;
	struct sandbox *sb = host_find(c->host, c->tenant, u->id);
	struct usage_seen now = {0};
	double percent = 0;
	uint64_t age_ms;
	json_t *j;

	if (--u->pending)
		return;
	if (!sb) {
		call_fail(c, ENOENT, "sandbox_not_found", "sandbox not found: %s", u->id);
	} else {
		if (u->pid && sb->pid == u->pid) {
			now = look_at_all(u->pid);
			if (now.at_ns > u->before.at_ns && now.ticks > u->before.ticks)
				percent = (double)(now.ticks - u->before.ticks) /
				          (double)sysconf(_SC_CLK_TCK) * 1e11 /
				          (double)(now.at_ns - u->before.at_ns);
		}
		age_ms = wall_ms() > sb->created_ms ? wall_ms() - sb->created_ms : 0;
		j = json_pack("{s:i, s:I, s:f, s:I, s:I, s:I}", "pid", (int)sb->pid,
		              "uptime_seconds", (json_int_t)(age_ms / 1000), "host_cpu_percent",
		              percent, "host_rss_bytes", (json_int_t)now.rss, "host_vsz_bytes",
		              (json_int_t)now.vsz, "threads", (json_int_t)now.threads);
		if (j)
			json_object_set_new(j, "guest",
			                    u->has_guest ? guest_json(&u->guest) : json_null());
		call_json(c, 200, j);
	}
	call_drop(c);
	free(u);
}

static void replied(void *arg, struct guest_call *gc, uint8_t type, uint8_t chan, const void *msg)
{
	struct usage *u = arg;

	(void)gc;
	(void)chan;
	if (type == WIRE_STATS_REPLY && msg) {
		u->guest = *(const struct wire_stats *)msg;
		u->has_guest = true;
	}
}

static void over(void *arg, struct guest_call *gc, const struct guest_end *end)
{
	answer(arg);
}

static const struct guest_ops stats_ops = {.reply = replied, .end = over};

static void ready(void *arg, const struct err *e, struct sandbox *sb, struct guest *g)
{
	(void)sb;
	/* A guest that says nothing is no reason to hide what the host knows. */
	if (e || guest_start(g, WIRE_STATS, NULL, &stats_ops, arg, NULL) < 0)
		answer(arg);
}

static void second_look(void *arg)
{
	answer(arg);
}

void sandbox_metrics(struct call *c)
{
	struct usage *u = calloc(1, sizeof(*u));
	uint64_t at = loop_now_ms(c->host->loop) + SAMPLE_MS, active_ms;

	if (!u) {
		call_nomem(c);
		return;
	}
	u->call = call_hold(c);
	u->pid = c->sb->pid;
	memcpy(u->id, c->sb->id, sizeof(u->id));
	u->pending = 1;
	if (u->pid) {
		u->before = look_at_all(u->pid);
		u->timer.fn = second_look;
		u->timer.arg = u;
		if (loop_timer_set(c->host->loop, &u->timer, at) == 0)
			u->pending++;
	}
	/* Only a running one is asked: looking wakes no sandbox up, and keeps none alive. */
	if (c->sb->state == SANDBOX_RUNNING) {
		active_ms = c->sb->active_ms;
		u->pending++;
		link_use(c->host, c->sb, ready, u);
		c->sb->active_ms = active_ms;
	}
	answer(u);
}
