#include "host/guest_link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "wire/guest.h"

enum {
	LINK_IDLE_MS = 5000, /* unused connections cost memory on both sides */
};

/*
 * Who waits for a guest wants to know whether to go on waiting. While a call is open and nothing is
 * heard, we ask something that needs only the agent. No answer for a long time: all calls fail, and
 * later ones at once, until it does answer on a connection that waits for just that.
 */
struct link {
	struct sandbox *sb;
	struct guest *g;
	struct loop_io io;
	struct loop_timer idle, watch;
	uint64_t heard_ms; /* when it last said something, */
	uint64_t asked_ms; /* and when we asked for that; 0: we did not */
	bool asking;       /* the question is open */
	unsigned inside;   /* callbacks of the guest on the stack */
	bool doomed;       /* free it when no call is inside */
};

/* It is its sandbox's way to a machine, or doomed, and then a callback of its guest is at work. */
static void link_check(const struct link *l)
{
	assert(l->g && l->io.added);
	assert((l->sb->link == l) == !l->doomed);
	assert(l->doomed ? l->inside > 0 : l->sb->pid > 0);
}

static void link_free(struct link *l)
{
	struct loop *loop = l->sb->host->loop;
	struct guest *g = l->g;

	loop_io_del(loop, &l->io);
	loop_timer_clear(loop, &l->idle);
	loop_timer_clear(loop, &l->watch);
	if (l->sb->link == l)
		l->sb->link = NULL;
	l->inside++; /* end callbacks may ask for it again */
	guest_free(g);
	free(l);
}

void link_drop(struct sandbox *sb)
{
	struct link *l = sb->link;

	sb->silent = false; /* whatever comes next is new */
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

	link_check(l);
	if (events & EPOLLIN)
		l->heard_ms = mono_ms();
	l->inside++;
	dead = guest_dispatch(l->g, events) < 0;
	l->inside--;
	if (dead || l->doomed) {
		link_free(l);
		return;
	}
	if (l->sb->silent && (events & EPOLLIN)) {
		l->sb->silent = false;
		log_info("sandbox answers again sandbox=%s", l->sb->id);
		event_emit(&l->sb->host->events, l->sb->tenant, l->sb->id, "sandbox.answers", NULL);
	}
	settle(l);
}

static void on_idle(void *arg)
{
	struct link *l = arg;

	link_check(l);
	if (guest_idle(l->g))
		link_free(l);
	else
		loop_timer_set(l->sb->host->loop, &l->idle, mono_ms() + LINK_IDLE_MS);
}

static void answered(void *arg, struct guest_call *c, const struct guest_end *end)
{
	((struct link *)arg)->asking = false;
}

/* Without room for a question it has not read what came before: that is one, too. */
static void ask(struct link *l)
{
	static const struct guest_ops ops = {.end = answered};

	l->asked_ms = mono_ms();
	if (!l->asking)
		l->asking =
		    guest_start(l->g, WIRE_STAT, &(struct wire_path_flags){.path = wire_str("/")},
		                &ops, l, NULL) == 0;
	settle(l);
}

static int connect_to(struct host *h, struct sandbox *sb, struct err *e);

static void fell_silent(struct link *l)
{
	struct sandbox *sb = l->sb;
	struct host *h = sb->host;
	struct err e;

	sb->silent = true;
	h->stats.silences++;
	log_warn("the agent does not answer, calls to it fail sandbox=%s", sb->id);
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.silent",
	           json_pack("{s:I}", "seconds", (json_int_t)((mono_ms() - l->heard_ms) / 1000)));
	l->inside++;
	guest_fail(l->g, ETIMEDOUT, "its kernel hangs, or has no time for its agent");
	l->inside--;
	link_free(l);
	if (sb->silent && !sb->link && connect_to(h, sb, &e) == 0) /* no call has acted on it */
		ask(sb->link);
}

static void on_watch(void *arg)
{
	struct link *l = arg;
	struct sandbox *sb = l->sb;
	uint64_t now = mono_ms(), limit = (uint64_t)sb->host->config.silent_s * 1000;

	link_check(l);
	loop_timer_set(sb->host->loop, &l->watch, now + limit / 2);
	if (guest_idle(l->g) || sb->ops || sb->state != SANDBOX_RUNNING) {
		l->heard_ms = now; /* no call waits, or it is us who let it stand still */
		l->asked_ms = 0;
	} else if (l->asked_ms <= l->heard_ms) {
		if (now - l->heard_ms >= limit / 2)
			ask(l);
	} else if (now - l->asked_ms >= limit && !sb->silent) {
		fell_silent(l);
	}
}

/* g is the link's from now on, or closed. */
static int link_new(struct host *h, struct sandbox *sb, struct guest *g)
{
	struct link *l = calloc(1, sizeof(*l));
	int r = -ENOMEM;

	if (l) {
		*l = (struct link){.sb = sb,
		                   .g = g,
		                   .heard_ms = mono_ms(),
		                   .io = {.fn = on_io, .arg = l},
		                   .idle = {.fn = on_idle, .arg = l},
		                   .watch = {.fn = on_watch, .arg = l}};
		r = loop_io_add(h->loop, &l->io, guest_fd(g), guest_events(g));
	}
	if (r == 0)
		r = loop_timer_set(h->loop, &l->idle, mono_ms() + LINK_IDLE_MS);
	if (r == 0)
		r = loop_timer_set(h->loop, &l->watch,
		                   mono_ms() + (uint64_t)h->config.silent_s * 500);
	if (r < 0) {
		if (l) {
			loop_io_del(h->loop, &l->io);
			loop_timer_clear(h->loop, &l->idle);
		}
		guest_free(g);
		free(l);
		return r;
	}
	sb->link = l;
	link_check(l);
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
	if (r == 0 && sb->silent && sb->link)
		r = err_set(&e, ETIMEDOUT, "guest_silent",
		            "sandbox %s does not answer: its kernel hangs, or has no time for its "
		            "agent. Wait until its status_detail is gone, or delete it",
		            sb->id);
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

	/* The operation at work has ended: running, asleep, paused or failed now. */
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
		err_nomem(&e);
		ready(arg, &e, NULL, NULL);
		return;
	}
	*u = now;
	u->op.begin = use_begin;
	op_queue(sb, "reach", &u->op);
}

void link_kick(struct host *h, const char *sandbox_id)
{
	struct sandbox *sb = dict_get(h->by_id, sandbox_id);

	if (sb && sb->link && !sb->link->inside)
		settle(sb->link);
}
