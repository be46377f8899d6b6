/*
 * cli/bed.c - a panda in a child, and a pandad with a script around it
 */
#include "bed_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "cli/cli.h"

enum {
	DEADLINE_MS = 10 * 1000,
	KEPT_MAX = 32,
};

struct bed bed;

static struct {
	struct step step[BED_MAX];
	size_t nsteps, at_step;
	int out, err, in, pidfd;
	size_t in_at;
	struct termios tty; /* before the command */
	pid_t pid;
	char *wrong; /* what the test did not expect */
	void *kept[KEPT_MAX];
	size_t nkept;
	long *later_s; /* shared with the child: how much later it is than the clock says */
} b;

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

void *bed_keep(void *p)
{
	if (b.nkept == KEPT_MAX)
		abort();
	return b.kept[b.nkept++] = must(p);
}

void bed_shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void bed_append(char **p, size_t *n, const void *data, size_t len)
{
	*p = must(realloc(*p, *n + len + 1));
	if (len)
		memcpy(*p + *n, data, len);
	*n += len;
	(*p)[*n] = 0;
}

void bed_wrong(const char *fmt, ...)
{
	autofree char *more = NULL;
	size_t n = b.wrong ? strlen(b.wrong) : 0;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&more, fmt, ap) < 0)
		abort();
	va_end(ap);
	bed_append(&b.wrong, &n, more, strlen(more));
	bed_append(&b.wrong, &n, "\n", 1);
}

char *bed_json(const char *s)
{
	char *copy = must(strdup(s));

	for (char *p = copy; *p; p++)
		if (*p == '\'')
			*p = '"';
	return copy;
}

/* ---- time ---- */

time_t __wrap_time(time_t *ret);
unsigned __wrap_sleep(unsigned seconds);
int __wrap_clock_gettime(clockid_t id, struct timespec *ret);
int __real_clock_gettime(clockid_t id, struct timespec *ret);

time_t __wrap_time(time_t *ret)
{
	if (ret)
		*ret = NOW;
	return NOW;
}

unsigned __wrap_sleep(unsigned seconds)
{
	*b.later_s += seconds;
	return 0;
}

int __wrap_clock_gettime(clockid_t id, struct timespec *ret)
{
	int r = __real_clock_gettime(id, ret);

	if (r == 0 && b.later_s)
		ret->tv_sec += *b.later_s;
	return r;
}

int __wrap_poll(struct pollfd *p, nfds_t n, int timeout);
int __real_poll(struct pollfd *p, nfds_t n, int timeout);

/* What panda waits before it tries again, or draws again: tests have no time for that. */
int __wrap_poll(struct pollfd *p, nfds_t n, int timeout)
{
	return __real_poll(p, n, timeout == 200 || timeout == 1000 ? 5 : timeout);
}

/* ---- the command ---- */

static unsigned runs;  /* of commands, in all tests */
static bool all_leaks; /* asked before the child has an environment of its own */

int __lsan_is_turned_off(void);

/* Under ASan a look for leaks takes as long as a command: one in eight has it; BED_LEAKS=1: all. */
int __lsan_is_turned_off(void)
{
	return b.pid == 0 && runs % 8 != 1 && !all_leaks;
}

static void go_to_terminal(int slave)
{
	setsid();
	ioctl(slave, TIOCSCTTY, 0);
	for (int i = 0; i < 3; i++)
		dup2(slave, i);
}

static void environment(void)
{
	char text[128];

	clearenv();
	snprintf(text, sizeof(text), "%s/bin:/usr/bin:/bin", bed.dir);
	setenv("PATH", text, 1);
	setenv("HOME", bed.dir, 1);
	snprintf(text, sizeof(text), "http://127.0.0.1:%d", bed.port);
	if (!bed.no_url)
		setenv("PANDASTACK_API", text, 1);
	if (!bed.no_key)
		setenv("PANDASTACK_API_KEY", "k", 1);
	for (size_t i = 0; i < ARRAY_LEN(bed.env) && bed.env[i]; i++)
		putenv((char *)bed.env[i]);
}

static void child(const char *const *argv, int in, int out, int err)
{
	char *words[64];
	int argc = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGINT, SIG_DFL); /* a shell's background jobs, as we may be, ignore it */
	if (bed.tty) {
		go_to_terminal(in);
	} else {
		dup2(in, 0);
		dup2(out, 1);
		dup2(err, 2);
	}
	close_range(3, ~0u, 0);
	environment();
	if (chdir(bed.dir) < 0)
		_exit(99);
	for (; argv[argc]; argc++)
		words[argc] = strdup(argv[argc]);
	words[argc] = NULL;
	exit(cli_main(argc, words));
}

static void start(const char *const *argv)
{
	struct winsize size = {.ws_row = 24, .ws_col = 80};
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};

	if (bed.tty) {
		if (openpty(&in[1], &in[0], NULL, NULL, &size) < 0)
			abort();
		fcntl(in[1], F_SETFD, FD_CLOEXEC);
		tcgetattr(in[1], &b.tty);
		out[0] = dup(in[1]);
	} else {
		if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
			abort();
		if (bed.in || bed.in_open ? pipe2(in, O_CLOEXEC) < 0
		                          : (in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
			abort();
		if (bed.full) {
			close(out[1]);
			out[1] = open("/dev/full", O_WRONLY | O_CLOEXEC);
		}
	}
	fflush(NULL);
	b.pid = fork();
	if (b.pid < 0)
		abort();
	if (!b.pid)
		child(argv, in[0], out[1], err[1]);
	b.pidfd = (int)syscall(SYS_pidfd_open, b.pid, 0);
	bed_shut(&in[0]);
	bed_shut(&out[1]);
	bed_shut(&err[1]);
	b.in = in[1];
	b.out = out[0];
	b.err = err[0];
	for (int *fd = (int[]){b.in, b.out, b.err, -2}; *fd != -2; fd++)
		if (*fd >= 0)
			fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) | O_NONBLOCK);
}

/* false: nothing more will come. */
static bool take_output(int *fd, char **to, size_t *len)
{
	char buf[65536];
	ssize_t n = *fd < 0 ? 0 : read(*fd, buf, sizeof(buf));

	if (n < 0 && errno == EAGAIN)
		return true;
	if (n <= 0) { /* EIO: the terminal has no user any more */
		bed_shut(fd);
		return false;
	}
	bed_append(to, len, buf, (size_t)n);
	return true;
}

static size_t in_len(void)
{
	return bed.in_len ? bed.in_len : bed.in ? strlen(bed.in) : 0;
}

static void feed(void)
{
	size_t len = in_len();
	ssize_t n;

	if (b.in_at < len) {
		n = write(b.in, bed.in + b.in_at, len - b.in_at);
		if (n < 0 && errno != EAGAIN)
			bed_shut(&b.in);
		b.in_at += n > 0 ? (size_t)n : 0;
	}
	if (b.in_at >= len && !bed.in_open && !bed.tty)
		bed_shut(&b.in);
}

/* ---- steps ---- */

static bool due(const struct step *s)
{
	if (bed.nasked < s->asked)
		return false;
	return !s->when || (bed.out && strstr(bed.out, s->when)) ||
	       (bed.err && strstr(bed.err, s->when)) || (bed.heard && strstr(bed.heard, s->when));
}

static void act(const struct step *s)
{
	size_t n = s->n ? (size_t)s->n : s->text ? strlen(s->text) : 0;
	autofree char *text = s->text && !s->n ? bed_json(s->text) : NULL;

	switch (s->act) {
	case TYPE:
		if (write(b.in, s->text, n) != (ssize_t)n)
			bed_wrong("'%s' could not be typed", s->text);
		break;
	case TYPE_END:
		bed_shut(&b.in);
		break;
	case SIGNAL:
		kill(b.pid, s->n);
		break;
	case SERVER_SAYS:
	case SERVER_TEXT:
		server_say(s->act == SERVER_TEXT, text ? text : s->text, n);
		break;
	case SERVER_ENDS:
		server_end();
		break;
	case SERVER_LEAVES:
		server_leave();
		break;
	case SERVER_BACK:
		server_listen();
		break;
	case STOP_READING:
		bed_shut(&b.out);
		break;
	case RESIZE:
		ioctl(b.in, TIOCSWINSZ,
		      &(struct winsize){.ws_row = (unsigned short)n, .ws_col = 80});
		break;
	case CALL:
		s->call();
		break;
	case LATER:
		*b.later_s += s->n;
		break;
	}
}

static void take_steps(void)
{
	while (b.at_step < b.nsteps && due(&b.step[b.at_step]))
		act(&b.step[b.at_step++]);
}

/* ---- the loop ---- */

static void take_heard(void)
{
	errno = 0;
	if (take_output(&bed.heard_fd, &bed.heard, &bed.heard_len))
		return;
	if (errno == ECONNRESET)
		bed_append(&bed.heard, &bed.heard_len, "[reset]", 7);
	else
		bed_append(&bed.heard, &bed.heard_len, "[closed]", 8);
}

/* false: the command has ended, and all that it wrote and asked for is here. */
static bool turn(void)
{
	struct pollfd p[5 + SERVER_FDS];
	size_t n;
	int ready;

	p[0] = (struct pollfd){.fd = b.out, .events = POLLIN};
	p[1] = (struct pollfd){.fd = b.err, .events = POLLIN};
	p[2] = (struct pollfd){.fd = b.in_at < in_len() ? b.in : -1, .events = POLLOUT};
	p[3] = (struct pollfd){.fd = bed.heard_fd, .events = POLLIN};
	p[4] = (struct pollfd){.fd = b.pidfd, .events = POLLIN};
	n = server_poll(p + 5);
	ready = poll(p, (nfds_t)(5 + n), DEADLINE_MS);
	if (ready == 0)
		return false;
	server_take(p + 5, n);
	if (p[0].revents)
		take_output(&b.out, &bed.out, &bed.out_len);
	if (p[1].revents)
		take_output(&b.err, &bed.err, &bed.err_len);
	if (p[2].revents)
		feed();
	if (p[3].revents)
		take_heard();
	take_steps();
	return !p[4].revents || ready > 1;
}

static void collect(uint64_t until)
{
	int status;

	if (mono_ms() >= until) {
		bed_wrong("it did not end");
		kill(b.pid, SIGKILL);
	}
	while (waitpid(b.pid, &status, 0) < 0)
		if (errno != EINTR)
			abort();
	bed.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Our address is another one each time. */
static void without_port(char *text, size_t *len)
{
	char url[64], *at = text;
	size_t n = (size_t)snprintf(url, sizeof(url), "http://127.0.0.1:%d", bed.port);

	while ((at = memmem(at, *len - (size_t)(at - text), url, n))) {
		memcpy(at, "http://SERVER", 13);
		memmove(at + 13, at + n, *len - (size_t)(at - text) - n + 1);
		*len -= n - 13;
		at += 13;
	}
}

static bool terminal_changed(void)
{
	struct termios now;

	return tcgetattr(b.in, &now) == 0 &&
	       (now.c_lflag != b.tty.c_lflag || now.c_iflag != b.tty.c_iflag ||
	        now.c_oflag != b.tty.c_oflag);
}

static void forget_requests(void)
{
	for (size_t i = 0; i < bed.nasked; i++) {
		free(bed.asked[i].line);
		free(bed.asked[i].text);
		free(bed.asked[i].body);
	}
	memset(bed.asked, 0, sizeof(bed.asked));
	bed.nasked = 0;
}

static void forget_output(void)
{
	free(bed.out);
	free(bed.err);
	free(bed.heard);
	free(b.wrong);
	bed.out = bed.err = bed.heard = b.wrong = NULL;
	bed.out_len = bed.err_len = bed.heard_len = 0;
}

void bed_run(const char *file, int line, const char *const *argv)
{
	uint64_t until = mono_ms() + DEADLINE_MS;

	forget_requests();
	forget_output();
	bed_append(&bed.out, &bed.out_len, "", 0);
	bed_append(&bed.err, &bed.err_len, "", 0);
	bed_append(&bed.heard, &bed.heard_len, "", 0);
	b.in_at = 0;
	*b.later_s = 0;
	runs++;
	all_leaks = getenv("BED_LEAKS");
	if (bed.no_server)
		server_leave();
	start(argv);
	if (!bed.in_open && !bed.tty)
		feed();
	take_steps();
	while (turn() && mono_ms() < until + (uint64_t)*b.later_s * 1000)
		;
	collect(until + (uint64_t)*b.later_s * 1000);
	*b.later_s = 0;
	if (bed.tty && terminal_changed())
		bed_wrong("it left the terminal in another state");
	if (b.at_step < b.nsteps)
		bed_wrong("step %zu never came", b.at_step + 1);
	server_over();
	bed_shut(&b.in);
	bed_shut(&b.out);
	bed_shut(&b.err);
	bed_shut(&b.pidfd);
	without_port(bed.out, &bed.out_len);
	without_port(bed.err, &bed.err_len);
	b.nsteps = b.at_step = 0;
	if (!b.wrong)
		return;
	print_error("%s--- exit code %d, stdout:\n%s--- stderr:\n%s---\n", b.wrong, bed.code,
	            bed.out, bed.err);
	_cmocka_fail(file, line, "the command did something else");
}

/* ---- tests ---- */

void bed_step(struct step s)
{
	if (b.nsteps == BED_MAX)
		abort();
	b.step[b.nsteps++] = s;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	return remove(path);
}

static int open_up(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	return kind == FTW_D || kind == FTW_DNR ? chmod(path, 0700) : 0;
}

int bed_begin(void **state)
{
	bed = (struct bed){.heard_fd = -1};
	memset(&b, 0, sizeof(b));
	b.in = b.out = b.err = b.pidfd = -1;
	b.later_s =
	    mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(bed.dir, sizeof(bed.dir), "/tmp/panda-cli-XXXXXX");
	if (b.later_s == MAP_FAILED || !mkdtemp(bed.dir))
		abort();
	signal(SIGPIPE, SIG_IGN);
	server_begin();
	return 0;
}

int bed_end(void **state)
{
	server_leave();
	bed_shut(&bed.heard_fd);
	forget_requests();
	forget_output();
	while (b.nkept)
		free(b.kept[--b.nkept]);
	munmap(b.later_s, sizeof(long));
	b.later_s = NULL;
	nftw(bed.dir, open_up, 16, FTW_PHYS);
	return nftw(bed.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
