#include "guest/init/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/init/list.h"

void agent_log(struct agent *a, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vdprintf(a->log, fmt, ap);
	va_end(ap);
}

uint64_t agent_now(struct agent *a)
{
	if (!a->now_ns)
		a->now_ns = mono_ns();
	return a->now_ns;
}

void agent_queue(struct agent *a, struct work *w)
{
	if (list_empty(&w->node))
		list_add(&a->queue, &w->node);
}

int source_add(struct agent *a, struct source *s, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	return epoll_ctl(a->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

int source_mod(struct agent *a, struct source *s, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	return epoll_ctl(a->epoll, EPOLL_CTL_MOD, fd, &ev) < 0 ? -errno : 0;
}

void source_close(struct agent *a, int fd)
{
	epoll_ctl(a->epoll, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
}

static void ignore(struct source *s, uint32_t events)
{
}

void source_retire(struct agent *a, struct source *s, void *owner)
{
	s->ready = ignore;
	s->owner = owner;
	s->next_dead = a->dead;
	a->dead = s;
}

static void bury(struct agent *a)
{
	while (a->dead) {
		struct source *s = a->dead;

		a->dead = s->next_dead;
		free(s->owner);
	}
}

/*
 * The first child is reaped at once, since a client waits for its answer; using up the signal and
 * looking for more children comes after the answer was written. Its pipes go first: one that is
 * seen to be hung up and empty need not be read again.
 */
static void sigchld(struct source *s, uint32_t events)
{
	container_of(s, struct agent, sig)->reap_rest = true;
}

static void reap_rest(struct agent *a)
{
	struct signalfd_siginfo si;

	a->reap_rest = false;
	(void)!read(a->sigfd, &si, sizeof(si)); /* one stands for all that came before */
	while (exec_reap(a))
		;
}

int agent_setup(struct agent *a)
{
	sigset_t set;

	list_init(&a->conns);
	list_init(&a->queue);
	list_init(&a->dirty);
	list_init(&a->execs);
	list_init(&a->finished);
	list_init(&a->graves);
	a->next_id = 1;
	if (getrandom(&a->nonce, sizeof(a->nonce), GRND_NONBLOCK) < 0)
		a->nonce = mono_ns(); /* only has to differ from the agent beside us */

	/* Blocked, not ignored: one sigprocmask() gives a child the defaults back. */
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGPIPE);
	if (sigprocmask(SIG_SETMASK, &set, NULL) < 0)
		return -errno;
	sigdelset(&set, SIGPIPE);
	a->sigfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (a->sigfd < 0 || a->epoll < 0)
		return -errno;
	a->sig.ready = sigchld;
	return source_add(a, &a->sig, a->sigfd, EPOLLIN);
}

/* What was queued before we started; what queues itself again has its next turn later. */
static void run_queue(struct agent *a)
{
	struct list now;

	list_init(&now);
	list_splice(&now, &a->queue);
	while (!list_empty(&now)) {
		struct work *w = container_of(now.next, struct work, node);

		list_del(&w->node);
		w->run(w);
	}
	while (!list_empty(&a->dirty)) {
		struct conn *c = container_of(a->dirty.next, struct conn, dirty);

		list_del(&c->dirty);
		conn_flush(c);
	}
}

int agent_run(struct agent *a)
{
	struct epoll_event ev[EVENTS_MAX];

	while (!a->stopping) {
		int timeout = list_empty(&a->queue) ? exec_timeout_ms(a) : 0;
		int n = epoll_wait(a->epoll, ev, EVENTS_MAX, timeout);

		if (n < 0 && errno != EINTR)
			return -errno;
		a->now_ns = 0;
		for (int i = 0; i < n; i++) {
			struct source *s = ev[i].data.ptr;

			s->ready(s, ev[i].events);
		}
		if (a->reap_rest)
			exec_reap(a);
		/* With a timeout pending, the clock is asked only when it may matter. */
		if (a->n_timed && (n == 0 || timeout == 0))
			exec_check_timeouts(a);
		run_queue(a);
		if (a->reap_rest)
			reap_rest(a);
		if (a->spare_wanted) {
			a->spare_wanted = false;
			exec_prepare_spare(a);
		}
		exec_bury(a);
		bury(a);
	}
	return 0;
}
