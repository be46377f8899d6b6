#include "cli/carry.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/panda.h"

enum {
	CARRY_BUF = 64 * 1024,
};

struct way {
	size_t at, n;
	bool eof;   /* nothing more comes in */
	bool ended; /* and the other side has been told */
	char buf[CARRY_BUF];
};

struct carrier {
	struct panda_pipe *pipe;
	int in, out;
	struct panda_error *e;
	struct way up, down;
};

/* One step of a direction: 1 when something moved, 0 when it must wait, or a negative errno. */
static int up(struct carrier *c)
{
	struct way *w = &c->up;
	ssize_t r;

	if (!w->n && !w->eof) {
		r = read(c->in, w->buf, sizeof(w->buf));
		if (r < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		w->at = 0;
		w->n = (size_t)r;
		w->eof = r == 0;
		return 1;
	}
	if (w->n) {
		r = panda_pipe_send(c->pipe, w->buf + w->at, w->n, 0, c->e);
		if (r < 0)
			return r == -EAGAIN ? 0 : (int)r;
		w->at += (size_t)r;
		w->n -= (size_t)r;
		return 1;
	}
	if (w->ended)
		return 0;
	r = panda_pipe_end(c->pipe, c->e);
	if (r < 0)
		return r == -EAGAIN ? 0 : (int)r;
	w->ended = true;
	return 1;
}

static int down(struct carrier *c)
{
	struct way *w = &c->down;
	ssize_t r;

	if (!w->n && !w->eof) {
		r = panda_pipe_recv(c->pipe, w->buf, sizeof(w->buf), 0, c->e);
		if (r < 0)
			return r == -EAGAIN ? 0 : (int)r;
		w->at = 0;
		w->n = (size_t)r;
		w->eof = r == 0;
		return 1;
	}
	if (w->n) {
		r = write(c->out, w->buf + w->at, w->n);
		if (r < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		w->at += (size_t)r;
		w->n -= (size_t)r;
		return 1;
	}
	if (w->ended)
		return 0;
	w->ended = true;
	if (shutdown(c->out, SHUT_WR) < 0 && errno == ENOTSOCK && c->out != c->in)
		close(c->out); /* a pipe has no other way to say so */
	return 1;
}

static int wait_for_more(const struct carrier *c)
{
	/* An fd without events is not looked at: an end that was seen would be told for ever. */
	struct pollfd p[3] = {{.fd = -1},
	                      {.fd = -1, .events = POLLIN},
	                      {.fd = -1, .events = POLLOUT}};

	if (!c->down.eof && !c->down.n)
		p[0].events |= POLLIN;
	if (c->up.n || (c->up.eof && !c->up.ended))
		p[0].events |= POLLOUT;
	if (p[0].events)
		p[0].fd = panda_pipe_fd(c->pipe);
	if (!c->up.eof && !c->up.n)
		p[1].fd = c->in;
	if (c->down.n)
		p[2].fd = c->out;
	return poll(p, 3, -1) < 0 && errno != EINTR ? -errno : 0;
}

static void unblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0)
		fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int carry(struct panda_pipe *p, int in, int out, struct panda_error *e)
{
	autofree struct carrier *c = malloc(sizeof(*c));
	int r = 0;

	if (!c)
		return -ENOMEM;
	c->pipe = p;
	c->in = in;
	c->out = out;
	c->e = e;
	c->up.n = c->down.n = 0;
	c->up.eof = c->up.ended = c->down.eof = c->down.ended = false;
	unblock(in);
	unblock(out);
	while (r >= 0 && !(c->up.ended && c->down.ended)) {
		int a = up(c), b = a < 0 ? 0 : down(c);

		if (a < 0 || b < 0)
			r = a < 0 ? a : b;
		else if (!a && !b)
			r = wait_for_more(c);
	}
	return r;
}
