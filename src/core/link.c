#include "core/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "core/host_internal.h"

enum {
	LINK_IDLE_MS = 5000, /* unused connections cost memory on both sides */
};

struct link {
	struct sandbox *sb;
	struct guest *g;
	struct loop_io io;
	struct loop_timer idle;
	unsigned inside; /* callbacks of the guest on the stack */
	bool doomed;     /* free it when nobody is inside */
};

static void link_free(struct link *l)
{
	struct loop *loop = l->sb->host->loop;
	struct guest *g = l->g;

	loop_io_del(loop, &l->io);
	loop_timer_clear(loop, &l->idle);
	if (l->sb->link == l)
		l->sb->link = NULL;
	l->inside++; /* end callbacks may ask for it again */
	guest_free(g);
	free(l);
}

void link_drop(struct sandbox *sb)
{
	struct link *l = sb->link;

	if (!l)
		return;
	sb->link = NULL;
	if (l->inside)
		l->doomed = true;
	else
		link_free(l);
}

/* After anything that may have queued output. False: the connection is gone. */
static bool settle(struct link *l)
{
	bool dead;

	l->inside++;
	dead = guest_flush(l->g) < 0;
	l->inside--;
	if (dead || l->doomed) {
		link_free(l);
		return false;
	}
	loop_io_set(l->sb->host->loop, &l->io, guest_events(l->g));
	return true;
}

static void on_io(void *arg, uint32_t events)
{
	struct link *l = arg;
	bool dead;

	l->inside++;
	dead = guest_dispatch(l->g, events) < 0;
	l->inside--;
	if (dead || l->doomed)
		link_free(l);
	else
		settle(l);
}

static void on_idle(void *arg)
{
	struct link *l = arg;

	if (guest_idle(l->g))
		link_free(l);
	else
		loop_timer_set(l->sb->host->loop, &l->idle, mono_ms() + LINK_IDLE_MS);
}

/* g is the link's from now on, or closed. */
static int link_new(struct host *h, struct sandbox *sb, struct guest *g)
{
	struct link *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	if (l) {
		*l = (struct link){.sb = sb,
		                   .g = g,
		                   .io = {.fn = on_io, .arg = l},
		                   .idle = {.fn = on_idle, .arg = l}};
		r = loop_io_add(h->loop, &l->io, guest_fd(g), guest_events(g));
	}
	if (r == 0)
		r = loop_timer_set(h->loop, &l->idle, mono_ms() + LINK_IDLE_MS);
	if (r < 0) {
		if (l)
			loop_io_del(h->loop, &l->io);
		guest_free(g);
		free(l);
		return r;
	}
	sb->link = l;
	return 0;
}

void link_take(struct host *h, struct sandbox *sb, struct guest **g)
{
	if (*g && !sb->link)
		link_new(h, sb, take_ptr(*g));
}

static int connect_to(struct host *h, struct sandbox *sb, struct err *e)
{
	struct guest *g;
	int r = machine_guest(&h->machines, sb->machine, &g, e);

	if (r == 0 && (r = link_new(h, sb, g)) < 0)
		err_set(e, -r, "guest_silent", "cannot watch the agent of %s: %s", sb->id,
		        strerror(-r));
	return r;
}

struct use {
	struct op op; /* waits for its turn when the sandbox is on its way somewhere */
	struct host *host;
	void (*ready)(void *arg, const struct err *e, struct sandbox *sb, struct guest *g);
	void *arg;
};

static void use_now(struct use *u, struct sandbox *sb)
{
	struct host *h = u->host;
	struct err e;
	int r = sandbox_need_running(sb, &e);

	host_touch(h, sb);
	if (r == 0 && !sb->link)
		r = connect_to(h, sb, &e);
	if (r < 0) {
		u->ready(u->arg, &e, NULL, NULL);
	} else {
		struct link *l = sb->link;

		loop_timer_set(h->loop, &l->idle, mono_ms() + LINK_IDLE_MS);
		l->inside++;
		u->ready(u->arg, NULL, sb, l->g);
		if (--l->inside == 0)
			settle(l);
	}
}

static void use_awake(void *arg, const struct err *e, struct sandbox *sb)
{
	struct use *u = arg;

	if (e)
		u->ready(u->arg, e, NULL, NULL);
	else
		use_now(u, sb);
	free(u);
}

static void use_begin(struct op *op)
{
	struct use *u = (struct use *)op;
	struct sandbox *sb = op->sb;

	/* Whoever was at work has ended: running, asleep, paused or failed now. */
	if (sb->state == SANDBOX_HIBERNATED) {
		host_wake(u->host, sb, use_awake, u);
		op_end(op);
		return;
	}
	use_now(u, sb);
	op_end(op);
	free(u);
}

void link_use(struct host *h, struct sandbox *sb,
              void (*ready)(void *arg, const struct err *e, struct sandbox *sb, struct guest *g),
              void *arg)
{
	struct use now = {.host = h, .ready = ready, .arg = arg}, *u;
	struct err e;

	if (sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED ||
	    sb->state == SANDBOX_FAILED || sb->state == SANDBOX_KILLING) {
		use_now(&now, sb);
		return;
	}
	u = malloc(sizeof(*u));
	if (!u) {
		err_set(&e, ENOMEM, "no_memory", "no memory");
		ready(arg, &e, NULL, NULL);
		return;
	}
	*u = now;
	u->op.begin = use_begin;
	op_queue(sb, &u->op);
}

void link_kick(struct host *h, const char *sandbox_id)
{
	struct sandbox *sb = dict_get(h->by_id, sandbox_id);

	if (sb && sb->link && !sb->link->inside)
		settle(sb->link);
}
