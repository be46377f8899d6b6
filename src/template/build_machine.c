/*
 * template/build_machine.c - the machines of a build, what runs in them, and its log
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "net/net.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/tail.h"
#include "template/template.h"
#include "template/verified.h"
#include "wire/guest.h"

enum {
	GENERATION = 2, /* of its machines: the base's was the first */
};

/* --- log -------------------------------------------------------------------------------------- */

static void log_bytes(struct build *b, const void *p, size_t n)
{
	static const char cut[] = "\n... the rest of the log is left out\n";

	if (b->log < 0 || b->log_bytes > BUILD_LOG_MAX)
		return;
	b->log_bytes += n;
	if (b->log_bytes > BUILD_LOG_MAX)
		(void)io_write_full(b->log, cut, sizeof(cut) - 1);
	else
		(void)io_write_full(b->log, p, n);
}

void build_say(struct build *b, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
	va_end(ap);
	n = (int)MIN((size_t)n, sizeof(line) - 2);
	line[n] = '\n';
	if (b->log >= 0) /* also when there was too much: this is how it ended */
		(void)io_write_full(b->log, line, (size_t)n + 1);
}

/* --- machines --------------------------------------------------------------------------------- */

static uint64_t left_ms(const struct build *b)
{
	uint64_t now = mono_ms();

	return b->deadline_ms > now ? b->deadline_ms - now : 1;
}

static int out_of_time(const struct build *b, struct err *e)
{
	return err_set(
	    e, ETIME, "build_failed",
	    "the build took longer than %u s: build a part of it as a template of its own and go "
	    "on FROM that, or have the server's build_seconds raised",
	    b->order->depot->build_s);
}

int build_stopped(struct build *b, struct err *e)
{
	if (b->cancelled)
		return err_set(e, ECANCELED, "build_failed", "the build was stopped by request");
	if (b->stop)
		return err_set(e, ECANCELED, "shutting_down", "the server is about to end");
	return mono_ms() >= b->deadline_ms ? out_of_time(b, e) : 0;
}

int build_why(struct build *b, int r, struct err *e)
{
	return r < 0 && build_stopped(b, NULL) < 0 ? build_stopped(b, e) : r;
}

void build_short(struct build *b, struct guest *g)
{
	guest_set_deadline(g, MIN((uint64_t)BUILD_FILE_MS, left_ms(b)));
}

int build_start(struct build *b, const struct engine_image *image, bool network,
                const struct engine_volume *volumes, char machine[ENGINE_ID_MAX + 1],
                struct guest **ret, struct err *e)
{
	struct depot *depot = b->order->depot;
	struct engine_start s = {.id = machine,
	                         .tenant = b->info.tenant,
	                         .image = image,
	                         .cpu = -1,
	                         .stop_fd = b->wake,
	                         .cpus =
	                             (unsigned)json_integer_value(json_object_get(b->doc, "cpu")),
	                         .net_fd = -1};
	int r = build_stopped(b, e);

	if (r < 0)
		return r;
	machine_new_id(machine);
	memcpy(machine, "b_", 2);
	if (network && b->net)
		s.net_fd = net_slot_tap(b->net);
	if (volumes)
		memcpy(s.volumes, volumes, sizeof(s.volumes));
	r = machine_start_guest(depot->machines, &s, NULL, GENERATION, NULL, ret, e);
	if (r < 0) {
		machine_remove(depot->machines, machine, NULL);
		machine[0] = 0;
		return build_why(b, r, e);
	}
	/* Its agent runs in the image of a tenant, who may have it say nothing. */
	guest_set_stop(*ret, b->wake, b->deadline_ms + BUILD_FILE_MS);
	return 0;
}

const json_t *build_root_doc(const struct build *b, size_t i)
{
	while (b->file->stages[i].from >= 0)
		i = (size_t)b->file->stages[i].from;
	return b->stages[i].root == BUILD_ROOT_TEMPLATE ? b->stages[i].doc : NULL;
}

int build_machine(struct stage *st)
{
	int r;

	if (st->guest)
		return 0;
	r = build_start(st->b, &st->s->image, true, NULL, st->machine, &st->guest, st->e);
	if (r == 0) /* what the base has started is not there while something else is built on it */
		template_quiet(st->guest, build_root_doc(st->b, (size_t)(st->s - st->b->stages)));
	return r;
}

bool build_disk_has_room(const struct depot *depot)
{
	struct statvfs vfs;

	return statvfs(depot->data_dir, &vfs) < 0 ||
	       (uint64_t)vfs.f_bavail * vfs.f_frsize >= depot->disk_reserve;
}

int build_seal(struct stage *st, const char *key)
{
	struct depot *depot = st->b->order->depot;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	char id[SNAPSHOT_ID_MAX + 1];
	struct err e;
	int r;

	build_short(st->b, st->guest);
	r = guest_sync(st->guest, st->e);
	if (r == 0)
		r = machine_snapshot(depot->machines, st->machine, &image, NULL, st->e);
	if (r < 0)
		return build_why(st->b, r, st->e);
	engine_image_fini(&st->s->image);
	st->s->image = image;
	st->dirty = false;
	if (!key)
		return 0;
	snprintf(id, sizeof(id), TEMPLATE_STEP "%.40s", key);
	r = build_disk_has_room(depot)
	        ? verified_save(depot, &image, id, &e)
	        : err_set(&e, ENOSPC, "disk_full", "the server's disk is full");
	fault_at("build.kept");
	if (r < 0 && r != -EEXIST)
		build_say(st->b, "this step is not kept for the next build: %s", e.text);
	return 0;
}

/* --- commands --------------------------------------------------------------------------------- */

struct build_output {
	struct build *b;
	struct build_command *c;
	uint64_t n;
	int r;
};

static void take_output(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct build_output *o = arg;

	if (chan == WIRE_ERR)
		tail_keep(&o->c->tail, p, n);
	if (o->c->out < 0 || chan == WIRE_ERR) {
		log_bytes(o->b, p, n);
		return;
	}
	o->n += n;
	if (o->r == 0)
		o->r = o->n > o->c->out_max ? -EFBIG : io_write_full(o->c->out, p, n);
}

int build_command(struct build *b, struct build_command *c, struct guest_exit *ret, struct err *e)
{
	struct build_output o = {.b = b, .c = c};
	struct guest_exec x = {.argv = c->argv,
	                       .env = c->env,
	                       .cwd = c->cwd,
	                       .user = c->user && *c->user ? c->user : NULL,
	                       .timeout_ms = left_ms(b),
	                       .feed_stdin = c->in >= 0,
	                       .stdin_fd = c->in,
	                       .output = take_output,
	                       .arg = &o};
	int r = build_stopped(b, e);

	if (r < 0)
		return r;
	guest_set_deadline(c->guest, left_ms(b) + BUILD_FILE_MS);
	r = guest_exec_wait(c->guest, &x, ret, e);
	if (r < 0)
		return build_why(b, r, e);
	if (ret->timed_out)
		return out_of_time(b, e);
	if (o.r < 0)
		return err_set(e, -o.r, "build_failed",
		               o.r == -EFBIG ? "more than %llu MiB were to be copied"
		                             : "no room for what was to be copied (of %llu MiB)",
		               (unsigned long long)(c->out_max >> 20));
	return 0;
}

int build_tool(struct stage *st, const struct docker_step *step, struct guest *g, char *const *argv,
               int in, int out)
{
	struct build_command c = {
	    .guest = g, .argv = argv, .in = in, .out = out, .out_max = BUILD_SPOOL_MAX};
	struct guest_exit end;
	int r = build_command(st->b, &c, &end, st->e);

	if (r < 0 || (!end.signaled && !end.code))
		return r;
	if (*tail_line(&c.tail))
		return build_bad(st, step, "%.160s", tail_line(&c.tail));
	return build_bad(st, step, "%s %s failed with %d", argv[0], argv[1], end.code);
}

void build_free_list(char ***list)
{
	for (char **p = *list; p && *p; p++)
		free(*p);
	free(*list);
}
