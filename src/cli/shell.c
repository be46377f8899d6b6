/*
 * panda shell - a terminal in a sandbox
 * Ours is put into raw mode and put back on every way out: the end of the shell, a broken
 * connection, a signal, "~." typed at the start of a line.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/execio.h"
#include "cli/show.h"
#include "client/panda.h"

enum {
	QUEUE_HIGH = 64 * 1024, /* unsent keys at which we stop reading more of them */
	END_AGAIN_MS = 200,
};

bool escape_feed(struct escape *s, const char *in, size_t n, char *out, size_t *out_len)
{
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		char k = in[i];

		if (s->state == ESCAPE_FRESH && k == '~') {
			s->state = ESCAPE_TILDE;
			continue;
		}
		if (s->state == ESCAPE_TILDE) {
			if (k == '.') {
				*out_len = at;
				return true;
			}
			out[at++] = '~';
			s->state = ESCAPE_INSIDE;
			if (k == '~')
				continue;
		}
		out[at++] = k;
		s->state = k == '\r' || k == '\n' ? ESCAPE_FRESH : ESCAPE_INSIDE;
	}
	*out_len = at;
	return false;
}

/* ---- our terminal ---- */

static struct termios saved; /* for atexit(), which takes no argument */
static bool is_raw;

static void restore(void)
{
	if (is_raw)
		tcsetattr(0, TCSADRAIN, &saved);
	is_raw = false;
}

static bool make_raw(void)
{
	struct termios t;

	if (!isatty(0) || tcgetattr(0, &saved) < 0)
		return false;
	t = saved;
	cfmakeraw(&t);
	atexit(restore);
	is_raw = tcsetattr(0, TCSADRAIN, &t) == 0;
	return is_raw;
}

static void size_of(int *rows, int *cols)
{
	struct winsize w = {0};

	if (ioctl(1, TIOCGWINSZ, &w) < 0 || !w.ws_row || !w.ws_col)
		(void)ioctl(0, TIOCGWINSZ, &w);
	*rows = w.ws_row ? w.ws_row : 24;
	*cols = w.ws_col ? w.ws_col : 80;
}

static int signals(void)
{
	static const int ours[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH};
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_LEN(ours); i++)
		sigaddset(&set, ours[i]);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* ---- the session ---- */

struct shell_session {
	struct panda_ws *ws;
	struct escape escape;
	struct panda_error e;
	bool keys_ended, terminal, ended;
	int code;
};

static int resize(struct shell_session *s)
{
	char text[80];
	int rows, cols;

	size_of(&rows, &cols);
	snprintf(text, sizeof(text), "{\"resize\":{\"rows\":%d,\"cols\":%d}}", rows, cols);
	return panda_ws_send(s->ws, true, text, strlen(text), &s->e);
}

/*
 * A script's end: the shell sees an end of file, too. A shell that is just starting throws away
 * what was typed before it listens, so this is typed again until the session ends.
 */
static int send_end(struct shell_session *s)
{
	return panda_ws_send(s->ws, false, "\004", 1, &s->e);
}

/* 0 to go on. */
static int take_keys(struct shell_session *s)
{
	char in[4096], out[4097];
	ssize_t n = read(0, in, sizeof(in));
	size_t len = (size_t)n;
	bool away = false;

	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0) {
		s->keys_ended = true;
		return send_end(s);
	}
	if (s->terminal)
		away = escape_feed(&s->escape, in, (size_t)n, out, &len);
	if (away) {
		s->ended = true;
		fprintf(stderr, "\r\nleft; the sandbox goes on\r\n");
		return 0;
	}
	return len ? panda_ws_send(s->ws, false, s->terminal ? out : in, len, &s->e) : 0;
}

static void take_control(struct shell_session *s, const struct panda_message *m)
{
	autojson json_t *j = json_loadb(m->data, m->len, 0, NULL);
	const json_t *code = json_object_get(j, "exit");

	if (!code && !strcmp(js(j, "type"), "exit"))
		code = json_object_get(j, "code");
	if (json_is_integer(code)) {
		s->ended = true;
		s->code = (int)json_integer_value(code);
	} else if (*js(j, "error")) {
		s->ended = true;
		restore();
		s->code = cli_die("%s", js(j, "error"));
	}
}

/* Everything that is there. 0: go on. */
static int take_messages(struct shell_session *s)
{
	struct panda_message m;
	int r;

	while (!s->ended && (r = panda_ws_recv(s->ws, 0, &m, &s->e)) > 0) {
		if (m.text)
			take_control(s, &m);
		else if (io_write_full(1, m.data, m.len) < 0)
			return -EPIPE;
	}
	if (s->ended || r == -EAGAIN)
		return 0;
	if (r == 0)
		r = -ECONNRESET;
	return r;
}

static int take_signal(struct shell_session *s, int fd)
{
	struct signalfd_siginfo si;

	while (read(fd, &si, sizeof(si)) == sizeof(si)) {
		if (si.ssi_signo == SIGWINCH) {
			if (resize(s) < 0)
				return -EPIPE;
			continue;
		}
		s->ended = true;
		s->code = 128 + (int)si.ssi_signo;
	}
	return 0;
}

static int serve(struct shell_session *s, int sigfd)
{
	int r;

	for (;;) {
		size_t queued;
		struct pollfd p[3] = {{.fd = panda_ws_fd(s->ws), .events = POLLIN},
		                      {.fd = sigfd, .events = POLLIN},
		                      {.fd = -1, .events = POLLIN}};

		r = take_messages(s);
		if (r < 0 || s->ended)
			return r;
		queued = panda_ws_queued(s->ws);
		if (queued)
			p[0].events |= POLLOUT;
		if (!s->keys_ended && queued < QUEUE_HIGH)
			p[2].fd = 0;
		r = poll(p, 3, s->keys_ended ? END_AGAIN_MS : -1);
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r == 0 && !queued && send_end(s) < 0)
			return -EPIPE;
		if (p[1].revents && take_signal(s, sigfd) < 0)
			return -EPIPE;
		if (p[2].fd == 0 && p[2].revents && !s->ended && take_keys(s) < 0)
			return -EPIPE;
	}
}

int execio_terminal(struct cli *c, const char *id, const char *cmd)
{
	autoclose int sigfd = -1;
	autofree char *path = NULL;
	struct shell_session s = {0};
	int rows, cols, r;

	size_of(&rows, &cols);
	path = cmd ? panda_path("/v1/sandboxes/%s/exec/pty?rows=%d&cols=%d&cmd=%s", id, rows, cols,
	                        cmd)
	           : panda_path("/v1/sandboxes/%s/exec/pty?rows=%d&cols=%d", id, rows, cols);
	if (!path)
		return cli_die("out of memory");
	if (panda_ws_open(c->panda, path, &s.ws, &s.e) < 0)
		return cli_say(c, &s.e);
	sigfd = signals();
	s.terminal = make_raw();
	r = sigfd < 0 ? -EMFILE : serve(&s, sigfd);
	panda_ws_close(s.ws);
	restore();
	if (r < 0 && !s.ended)
		return cli_die("the connection to the terminal broke: the shell has been hung up");
	return s.code;
}

static const struct cli_opt opts[] = {
    {'t', "template", "NAME", "template of the new sandbox, without ID (base)", WORD_TEMPLATE},
    {KEY_KEEP, "keep", NULL, "do not kill the new sandbox; its id goes to stderr", WORD_NONE},
    {0},
};

/* A shell in a sandbox that is there for it. */
static int in_new(struct cli *c)
{
	autojson json_t *create = NULL, *sb = NULL;
	autoclose int sigfd = -1;
	struct panda_error e;
	int code;

	if (cli_create_body(c, &create) || cli_open(c))
		return CLI_PANDA;
	sigfd = execio_signals(); /* none ends us before the sandbox is killed */
	if (panda_create(c->panda, NULL, create, &sb, &e) < 0)
		return cli_say(c, &e);
	code = execio_terminal(c, js(sb, "id"), NULL);
	if (cli_has(c, KEY_KEEP))
		fprintf(stderr, "%s\n", js(sb, "id"));
	else if (panda_kill(c->panda, js(sb, "id"), &e) < 0 && e.status != 404)
		return cli_say(c, &e);
	return code;
}

static int run(struct cli *c)
{
	char id[CLI_ID];

	if (cli_args(c, 0, 1))
		return CLI_PANDA;
	if (!c->argc)
		return in_new(c);
	if (cli_has(c, 't') || cli_has(c, KEY_KEEP))
		return cli_bad(c, "--template and --keep are for a new sandbox, without ID");
	if (cli_first_id(c, id))
		return CLI_PANDA;
	return execio_terminal(c, id, NULL);
}

const struct cli_command command_shell = {
    .name = "shell",
    .args = "[OPTION]... [ID]",
    .what = "open a terminal in a sandbox, or in a new one",
    .about = "A login shell on a terminal of its own, as large as ours. Its exit code is ours. "
	     "Typed at\n"
	     "the start of a line, ~. leaves at once, even when nothing answers any more. Without "
	     "ID it\n"
	     "is in a new sandbox, which is killed when the shell ends.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda shell 3f2a\n  panda shell -t python-data\n",
    .run = run,
};
