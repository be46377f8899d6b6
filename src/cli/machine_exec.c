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
#include "base/io.h"
#include "cli/cli.h"
#include "cli/machine_internal.h"

struct screen {
	struct termios saved;
	bool raw;
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
	struct winsize w;

	if (ioctl(0, TIOCGWINSZ, &w) == 0)
		guest_resize(c, w.ws_row, w.ws_col);
}

static void wake(void *arg, struct guest_call *c)
{
	struct signalfd_siginfo si;
	struct guest_exec *x = arg;

	if (read(x->wake_fd, &si, sizeof(si)) == sizeof(si))
		on_winch(NULL, c);
}

int machine_exec(struct ctx *c, const char *id, struct err *e)
{
	struct guest *g = NULL;
	struct screen screen = {0};
	struct winsize w = {.ws_row = 24, .ws_col = 80};
	autoclose int winch = -1;
	struct guest_exit done;
	struct guest_exec x = {.argv = c->o.rest,
	                       .env = (char *const *)c->o.env,
	                       .cwd = c->o.cwd,
	                       .user = c->o.user,
	                       .timeout_ms = c->o.timeout_ms,
	                       .output = on_output,
	                       .feed_stdin = c->o.stdin_on || c->o.tty,
	                       .arg = &screen};
	uint64_t t = mono_ns();
	int r;

	r = machine_guest(&c->ms, id, &g, e);
	if (r < 0)
		return r;
	if (c->o.tty) {
		sigset_t set;

		ioctl(0, TIOCGWINSZ, &w);
		x.pty = true;
		x.rows = w.ws_row;
		x.cols = w.ws_col;
		if (tcgetattr(0, &screen.saved) == 0) {
			struct termios raw = screen.saved;

			cfmakeraw(&raw);
			screen.raw = tcsetattr(0, TCSANOW, &raw) == 0;
		}
		sigemptyset(&set);
		sigaddset(&set, SIGWINCH);
		sigprocmask(SIG_BLOCK, &set, NULL);
		winch = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
		x.wakeable = winch >= 0;
		x.wake_fd = winch;
		x.wake = wake;
	}
	r = guest_exec_wait(g, &x, &done, e);
	guest_free(g);
	if (screen.raw)
		tcsetattr(0, TCSANOW, &screen.saved);
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
