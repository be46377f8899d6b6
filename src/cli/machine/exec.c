/*
 * panda machine - a command in a machine, on our own terminal
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "cli/cli.h"
#include "cli/machine/machine_internal.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "wire/guest.h"

struct screen {
	struct termios saved;
	bool raw;
	int winch;  /* signalfd; -1: no terminal */
	int broken; /* errno of a write that failed */
};

static void on_output(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct screen *s = arg;
	int r = io_write_full(chan == WIRE_ERR ? 2 : 1, p, n);

	if (r < 0)
		s->broken = -r;
}

static void on_winch(void *arg, struct guest_call *c)
{
	struct screen *s = arg;
	struct signalfd_siginfo si;
	struct winsize w;

	if (read(s->winch, &si, sizeof(si)) == sizeof(si) && ioctl(0, TIOCGWINSZ, &w) == 0)
		guest_resize(c, w.ws_row, w.ws_col);
}

/* The guest's terminal is like ours from now on, and ours passes every key on as it is. */
static void take_terminal(struct screen *s, struct guest_exec *x)
{
	struct winsize w = {.ws_row = 24, .ws_col = 80};
	sigset_t set;

	ioctl(0, TIOCGWINSZ, &w);
	x->pty = true;
	x->rows = w.ws_row;
	x->cols = w.ws_col;
	if (tcgetattr(0, &s->saved) == 0) {
		struct termios raw = s->saved;

		cfmakeraw(&raw);
		s->raw = tcsetattr(0, TCSANOW, &raw) == 0;
	}
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigprocmask(SIG_BLOCK, &set, NULL);
	s->winch = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	x->wakeable = s->winch >= 0;
	x->wake_fd = s->winch;
	x->wake = on_winch;
}

static void give_back(struct screen *s)
{
	if (s->raw)
		tcsetattr(0, TCSANOW, &s->saved);
	closep(&s->winch);
}

int machine_exec(struct ctx *c, const char *id, struct err *e)
{
	struct guest *g = NULL;
	struct screen screen = {.winch = -1};
	struct guest_exit done;
	struct guest_exec x = {.argv = c->o.rest,
	                       .env = (char *const *)c->o.env,
	                       .cwd = c->o.cwd,
	                       .user = c->o.user,
	                       .timeout_ms = c->o.timeout_s * 1000ull,
	                       .output = on_output,
	                       .feed_stdin = c->o.stdin_on || c->o.tty,
	                       .arg = &screen};
	uint64_t t = mono_ns();
	int r;

	r = machine_guest(&c->ms, id, &g, e);
	if (r < 0)
		return r;
	if (c->o.tty)
		take_terminal(&screen, &x);
	r = guest_exec_wait(g, &x, &done, e);
	guest_free(g);
	give_back(&screen);
	machine_timing(&c->o, "exec", t);
	if (r < 0)
		return r;
	if (screen.broken && screen.broken != EPIPE)
		return err_set(e, screen.broken, "output", "cannot write the output: %s",
		               strerror(screen.broken));
	if (done.timed_out)
		return CLI_TIMEOUT;
	return done.signaled ? 128 + done.code : done.code;
}
