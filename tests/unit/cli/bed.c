/*
 * cli/bed.c - a panda in a child, and a pandad with a script around it
 */
#include "bed.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <poll.h>
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

#include "base/clock.h"
#include "base/io.h"
#include "cli/cli.h"
#include "common/request.h"

enum {
	DEADLINE_MS = 10 * 1000,
	KEPT_MAX = 32,
};

struct conn {
	int fd; /* -1: free */
	char *in;
	size_t len;
	bool held;              /* its stream goes on */
	bool websocket, tunnel; /* what comes is no HTTP any more */
	bool draining;          /* answered, and nothing of what comes is looked at */
	bool deaf;              /* a tunnel whose other half goes on */
};

struct text {
	char **p;
	size_t *n;
};

struct bed bed;

static struct {
	struct answer answer[BED_MAX];
	bool used[BED_MAX];
	size_t nanswers, next;
	struct step step[BED_MAX];
	size_t nsteps, at_step;
	struct conn conn[BED_MAX];
	struct conn *newest; /* of those that are held */
	int listener, out, err, in, pidfd;
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

static void *keep(void *p)
{
	if (b.nkept == KEPT_MAX)
		abort();
	return b.kept[b.nkept++] = must(p);
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void append(char **p, size_t *n, const void *data, size_t len)
{
	*p = must(realloc(*p, *n + len + 1));
	if (len)
		memcpy(*p + *n, data, len);
	*n += len;
	(*p)[*n] = 0;
}

static void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void wrong(const char *fmt, ...)
{
	autofree char *more = NULL;
	size_t n = b.wrong ? strlen(b.wrong) : 0;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&more, fmt, ap) < 0)
		abort();
	va_end(ap);
	append(&b.wrong, &n, more, strlen(more));
	append(&b.wrong, &n, "\n", 1);
}

/* ' becomes ". Caller frees. */
static char *json_text(const char *s)
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

/* ---- the server ---- */

static void listen_again(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
	                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	                        .sin_port = htons((uint16_t)bed.port)};
	socklen_t n = sizeof(a);

	b.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(b.listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(b.listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(b.listener, 16) < 0 ||
	    getsockname(b.listener, (struct sockaddr *)&a, &n) < 0)
		abort();
	bed.port = ntohs(a.sin_port);
}

static void drop(struct conn *c)
{
	shut(&c->fd);
	free(c->in);
	if (b.newest == c)
		b.newest = NULL;
	*c = (struct conn){.fd = -1};
}

static void leave(void)
{
	shut(&b.listener);
	for (size_t i = 0; i < BED_MAX; i++)
		drop(&b.conn[i]);
}

/* The client reads what we send, or is gone: no answer is so long that this must wait for long. */
static void say(struct conn *c, const void *data, size_t n)
{
	const char *p = data;

	while (n) {
		ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL);

		if (k < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){.fd = c->fd, .events = POLLOUT}, 1, 100);
			if (waitpid(b.pid, NULL, WNOHANG | WNOWAIT) != 0)
				return;
			continue;
		}
		if (k < 0)
			return;
		p += k;
		n -= (size_t)k;
	}
}

static void say_frame(struct conn *c, bool text, const char *p, size_t n)
{
	unsigned char head[4] = {text ? 0x81 : 0x82, (unsigned char)n};
	size_t len = 2;

	if (n > 125) {
		head[1] = 126;
		head[2] = (unsigned char)(n >> 8);
		head[3] = (unsigned char)n;
		len = 4;
	}
	say(c, head, len);
	say(c, p, n);
}

/* Everything was said: what the client still sends is read and thrown away, until it leaves. */
static void hang_up(struct conn *c)
{
	shutdown(c->fd, SHUT_WR);
	c->draining = true;
	c->held = false;
	if (b.newest == c)
		b.newest = NULL;
}

static void upgrade(struct conn *c, const struct answer *a)
{
	autofree char *head = NULL;
	char key[64] = "";

	if (a->websocket)
		request_ws_accept(c->in, c->len, key, sizeof(key));
	if (asprintf(&head,
	             "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"
	             "Sec-WebSocket-Accept: %s\r\n\r\n",
	             a->websocket ? "websocket" : "tcp", key) < 0)
		abort();
	say(c, head, strlen(head));
	c->websocket = a->websocket;
	c->tunnel = a->tunnel;
	c->held = true;
	b.newest = c;
}

static void say_events(struct conn *c, const struct answer *a)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
				   "Connection: close\r\n\r\n";
	autofree char *body = json_text(a->events);

	say(c, head, strlen(head));
	say(c, body, strlen(body));
	c->held = a->hold;
	if (c->held)
		b.newest = c;
	else
		hang_up(c);
}

static void say_answer(struct conn *c, const struct answer *a)
{
	autofree char *body = a->json ? json_text(a->json) : NULL, *head = NULL;
	const char *p = body ? body : a->bytes ? a->bytes : "";
	size_t n = a->len ? a->len : strlen(p);
	const char *type = a->type ? a->type : body ? "application/json" : "text/plain";

	if (a->websocket || a->tunnel) {
		upgrade(c, a);
	} else if (a->events) {
		say_events(c, a);
	} else if (a->raw) {
		say(c, a->raw, strlen(a->raw));
		hang_up(c);
	} else if (a->gone) {
		drop(c);
	} else {
		if (asprintf(&head,
		             "HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n",
		             a->status ? a->status : 200, type, n + a->cut) < 0)
			abort();
		say(c, head, strlen(head));
		say(c, p, n);
		if (a->cut || a->early)
			hang_up(c);
	}
}

/* The answer that is next for this request; NULL: it is not in the script. */
static const struct answer *answer_to(const char *line)
{
	for (size_t i = 0; i < b.nanswers; i++)
		if (!b.used[i] && b.answer[i].any_time && !strcmp(b.answer[i].request, line)) {
			b.used[i] = true;
			return &b.answer[i];
		}
	while (b.next < b.nanswers && (b.used[b.next] || b.answer[b.next].any_time))
		b.next++;
	if (b.next == b.nanswers) {
		wrong("it asked for '%s', when the script was over", line);
		return NULL;
	}
	if (strcmp(b.answer[b.next].request, line) != 0) {
		wrong("it asked for '%s', when it was the turn of '%s'", line,
		      b.answer[b.next].request);
		return NULL;
	}
	b.used[b.next] = true;
	return &b.answer[b.next++];
}

static void record(const char *line, const char *p, size_t n)
{
	struct bed_request *r = &bed.asked[bed.nasked];

	if (bed.nasked == BED_MAX) {
		wrong("it asked for more than %d things", BED_MAX);
		return;
	}
	bed.nasked++;
	r->line = must(strdup(line));
	append(&r->text, &r->text_len, p, n);
	r->body = request_body(p, n, &r->len);
}

/* One request, when it is there. false: more must come first. */
static bool take_request(struct conn *c)
{
	static const struct answer unknown = {.status = 500,
	                                      .json = "{'error':'not in the script'}"};
	size_t head = request_head(c->in, c->len), n = request_whole(c->in, c->len);
	const struct answer *a;
	char line[4096];

	if (!head || (!n && !(b.next < b.nanswers && b.answer[b.next].early)))
		return false;
	n = n ? n : head;
	snprintf(line, sizeof(line), "%.*s", (int)strcspn(c->in, "\r"), c->in);
	if (strlen(line) > 9)
		line[strlen(line) - 9] = 0; /* " HTTP/1.1" */
	record(line, c->in, n);
	a = answer_to(line);
	say_answer(c, a ? a : &unknown);
	if (c->fd < 0)
		return false;
	memmove(c->in, c->in + n, c->len - n);
	c->len -= n;
	return c->len && !c->draining && !c->held;
}

/* One frame of the client. false: more must come first. */
static bool take_frame(struct conn *c)
{
	const unsigned char *p = (const unsigned char *)c->in;
	size_t at = 2, n;

	if (c->len < 6)
		return false;
	n = p[1] & 0x7f;
	if (n == 126) {
		n = (size_t)p[2] << 8 | p[3];
		at = 4;
	}
	if (c->len < at + 4 + n)
		return false;
	for (size_t i = 0; i < n; i++)
		c->in[at + 4 + i] ^= c->in[at + i % 4];
	if ((p[0] & 0xf) < 8)
		append(&bed.heard, &bed.heard_len, c->in + at + 4, n);
	at += 4 + n;
	memmove(c->in, c->in + at, c->len - at);
	c->len -= at;
	return c->len;
}

static void take_bytes(struct conn *c)
{
	char buf[65536];
	ssize_t n = recv(c->fd, buf, sizeof(buf), 0);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n == 0 && c->tunnel) {
		append(&bed.heard, &bed.heard_len, "[end]", 5);
		c->deaf = true;
		return;
	}
	if (n <= 0) {
		drop(c);
		return;
	}
	if (c->draining)
		return;
	if (c->tunnel) {
		append(&bed.heard, &bed.heard_len, buf, (size_t)n);
		return;
	}
	append(&c->in, &c->len, buf, (size_t)n);
	if (c->websocket)
		while (take_frame(c))
			;
	else
		while (take_request(c))
			;
}

static void take_connection(void)
{
	int fd = accept4(b.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (size_t i = 0; fd >= 0 && i < BED_MAX; i++)
		if (b.conn[i].fd < 0) {
			b.conn[i].fd = fd;
			return;
		}
}

/* ---- the command ---- */

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
		words[argc] = must(strdup(argv[argc]));
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
	shut(&in[0]);
	shut(&out[1]);
	shut(&err[1]);
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
		shut(fd);
		return false;
	}
	append(to, len, buf, (size_t)n);
	return true;
}

static void feed(void)
{
	size_t len = bed.in_len ? bed.in_len : bed.in ? strlen(bed.in) : 0;
	ssize_t n;

	if (b.in_at < len) {
		n = write(b.in, bed.in + b.in_at, len - b.in_at);
		if (n < 0 && errno != EAGAIN)
			shut(&b.in);
		b.in_at += n > 0 ? (size_t)n : 0;
	}
	if (b.in_at >= len && !bed.in_open && !bed.tty)
		shut(&b.in);
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
	autofree char *text = s->text && !s->n ? json_text(s->text) : NULL;

	switch (s->act) {
	case TYPE:
		if (write(b.in, s->text, n) != (ssize_t)n)
			wrong("'%s' could not be typed", s->text);
		break;
	case TYPE_END:
		shut(&b.in);
		break;
	case SIGNAL:
		kill(b.pid, s->n);
		break;
	case SERVER_SAYS:
	case SERVER_TEXT:
		if (!b.newest)
			wrong("nobody is there to be told '%s'", s->text);
		else if (b.newest->websocket)
			say_frame(b.newest, s->act == SERVER_TEXT, text ? text : s->text, n);
		else
			say(b.newest, text ? text : s->text, n);
		break;
	case SERVER_ENDS:
		if (!b.newest)
			wrong("no connection is held that could end");
		else if (b.newest->tunnel)
			shutdown(b.newest->fd, SHUT_WR);
		else
			hang_up(b.newest);
		break;
	case SERVER_LEAVES:
		leave();
		break;
	case SERVER_BACK:
		listen_again();
		break;
	case STOP_READING:
		shut(&b.out);
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
		append(&bed.heard, &bed.heard_len, "[reset]", 7);
	else
		append(&bed.heard, &bed.heard_len, "[closed]", 8);
}

/* false: the command has ended, and all that it wrote and asked for is here. */
static bool turn(void)
{
	struct pollfd p[BED_MAX + 6];
	size_t n = 6, at[BED_MAX];
	int ready;

	p[0] = (struct pollfd){.fd = b.listener, .events = POLLIN};
	p[1] = (struct pollfd){.fd = b.out, .events = POLLIN};
	p[2] = (struct pollfd){.fd = b.err, .events = POLLIN};
	p[3] = (struct pollfd){.fd = b.pidfd, .events = POLLIN};
	p[4] = (struct pollfd){.fd = bed.in && b.in_at < (bed.in_len ? bed.in_len : strlen(bed.in))
	                                 ? b.in
	                                 : -1,
	                       .events = POLLOUT};
	p[5] = (struct pollfd){.fd = bed.heard_fd, .events = POLLIN};
	for (size_t i = 0; i < BED_MAX; i++)
		if (b.conn[i].fd >= 0 && !b.conn[i].deaf) {
			at[n - 6] = i;
			p[n++] = (struct pollfd){.fd = b.conn[i].fd, .events = POLLIN};
		}
	ready = poll(p, (nfds_t)n, DEADLINE_MS);
	if (ready == 0)
		return false;
	if (p[0].revents)
		take_connection();
	for (size_t i = 6; i < n; i++)
		if (p[i].revents && b.conn[at[i - 6]].fd == p[i].fd)
			take_bytes(&b.conn[at[i - 6]]);
	if (p[1].revents)
		take_output(&b.out, &bed.out, &bed.out_len);
	if (p[2].revents)
		take_output(&b.err, &bed.err, &bed.err_len);
	if (p[4].revents)
		feed();
	if (p[5].revents)
		take_heard();
	take_steps();
	return !p[3].revents || ready > 1;
}

static void collect(uint64_t until)
{
	int status;

	if (mono_ms() >= until) {
		wrong("it did not end");
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
	append(&bed.out, &bed.out_len, "", 0);
	append(&bed.err, &bed.err_len, "", 0);
	append(&bed.heard, &bed.heard_len, "", 0);
	b.in_at = 0;
	*b.later_s = 0;
	if (bed.no_server)
		shut(&b.listener);
	start(argv);
	if (!bed.in_open && !bed.tty)
		feed();
	take_steps();
	while (turn() && mono_ms() < until + (uint64_t)*b.later_s * 1000)
		;
	collect(until + (uint64_t)*b.later_s * 1000);
	*b.later_s = 0;
	for (size_t i = 0; i < b.nanswers; i++)
		if (!b.used[i])
			wrong("it never asked for '%s'", b.answer[i].request);
	if (bed.tty && terminal_changed())
		wrong("it left the terminal in another state");
	if (b.at_step < b.nsteps)
		wrong("step %zu never came", b.at_step + 1);
	for (size_t i = 0; i < BED_MAX; i++)
		drop(&b.conn[i]);
	if (b.listener < 0 && !bed.no_server)
		listen_again();
	shut(&b.in);
	shut(&b.out);
	shut(&b.err);
	shut(&b.pidfd);
	without_port(bed.out, &bed.out_len);
	without_port(bed.err, &bed.err_len);
	b.nanswers = b.next = b.nsteps = b.at_step = 0;
	memset(b.used, 0, sizeof(b.used));
	if (!b.wrong)
		return;
	print_error("%s--- exit code %d, stdout:\n%s--- stderr:\n%s---\n", b.wrong, bed.code,
	            bed.out, bed.err);
	_cmocka_fail(file, line, "the command did something else");
}

/* ---- tests ---- */

void bed_reply(struct answer a)
{
	if (b.nanswers == BED_MAX)
		abort();
	b.answer[b.nanswers++] = a;
}

void bed_refuse(const char *request, int status, const char *code, const char *text)
{
	char *json;

	if (asprintf(&json, "{'error':'%s','code':'%s','request_id':'req_1'}", text, code) < 0)
		abort();
	bed_reply((struct answer){.request = request, .status = status, .json = keep(json)});
}

void bed_step(struct step s)
{
	if (b.nsteps == BED_MAX)
		abort();
	b.step[b.nsteps++] = s;
}

static void differs(const char *file, int line, const char *what, const char *is, const char *want)
{
	print_error("%s is:\n%s\n--- and not:\n%s\n--- exit code %d, stderr:\n%s\n", what, is, want,
	            bed.code, bed.err);
	_cmocka_fail(file, line, "the command did something else");
}

static void check_code(const char *file, int line, int code)
{
	char is[16], want[16];

	snprintf(is, sizeof(is), "%d", bed.code);
	snprintf(want, sizeof(want), "%d", code);
	if (bed.code != code)
		differs(file, line, "the exit code", is, want);
}

void bed_gives(const char *file, int line, int code, const char *out, const char *err)
{
	check_code(file, line, code);
	if (out && strcmp(bed.out, out) != 0)
		differs(file, line, "stdout", bed.out, out);
	if (err && strcmp(bed.err, err) != 0)
		differs(file, line, "stderr", bed.err, err);
}

void bed_fails(const char *file, int line, int code, const char *part)
{
	check_code(file, line, code);
	if (*bed.out)
		differs(file, line, "stdout", bed.out, "");
	if (!strstr(bed.err, part))
		differs(file, line, "stderr", bed.err, part);
}

static json_t *parsed(const char *file, int line, const char *text)
{
	json_error_t why;
	json_t *j = json_loads(text, JSON_DECODE_ANY, &why);

	if (!j)
		differs(file, line, "what should be JSON", text, why.text);
	return j;
}

static void compare_json(const char *file, int line, const char *what, const char *is,
                         const char *want)
{
	autofree char *text = json_text(want);
	json_t *a = parsed(file, line, is), *w = parsed(file, line, text);
	int same = json_equal(a, w);

	json_decref(a);
	json_decref(w);
	if (!same)
		differs(file, line, what, is, want);
}

void bed_prints(const char *file, int line, const char *json)
{
	check_code(file, line, 0);
	compare_json(file, line, "stdout", bed.out, json);
}

void bed_sent(const char *file, int line, size_t i, const char *json)
{
	const char *body = i < bed.nasked ? bed.asked[i].body : "(no such request)";

	if (!json && *body)
		differs(file, line, "the body", body, "");
	if (json)
		compare_json(file, line, "the body", body, json);
}

const char *bed_field(size_t i, const char *name)
{
	static char value[1024];

	request_field(bed.asked[i].text, bed.asked[i].text_len, name, value, sizeof(value));
	return value;
}

/* ---- files ---- */

static const char *full(const char *path)
{
	static char text[4096];

	snprintf(text, sizeof(text), "%s/%s", bed.dir, path);
	return text;
}

void bed_mkdir(const char *path)
{
	char *text = must(strdup(full(path)));

	for (char *at = text + strlen(bed.dir) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = 0;
		(void)mkdir(text, 0755);
	}
	(void)mkdir(text, 0755);
	free(text);
}

void bed_file(const char *path, const char *text, size_t n, mode_t mode)
{
	autofree char *dir = must(strdup(path));
	autoclose int fd = -1;

	if (strrchr(dir, '/')) {
		*strrchr(dir, '/') = 0;
		bed_mkdir(dir);
	}
	fd = open(full(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || io_write_full(fd, text, n ? n : strlen(text)) < 0 || fchmod(fd, mode) < 0)
		abort();
}

const char *bed_content(const char *path, size_t *len)
{
	char *text = NULL;

	if (io_read_file(AT_FDCWD, full(path), 1 << 28, &text, len) < 0)
		return NULL;
	return keep(text);
}

mode_t bed_mode(const char *path)
{
	struct stat st;

	return stat(full(path), &st) < 0 ? 0 : st.st_mode & 07777;
}

int bed_entries(const char *path)
{
	DIR *d = opendir(full(path));
	int n = -2;

	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
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
	for (size_t i = 0; i < BED_MAX; i++)
		b.conn[i].fd = -1;
	b.later_s =
	    mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(bed.dir, sizeof(bed.dir), "/tmp/panda-cli-XXXXXX");
	if (b.later_s == MAP_FAILED || !mkdtemp(bed.dir))
		abort();
	signal(SIGPIPE, SIG_IGN);
	listen_again();
	return 0;
}

int bed_end(void **state)
{
	leave();
	shut(&bed.heard_fd);
	forget_requests();
	forget_output();
	while (b.nkept)
		free(b.kept[--b.nkept]);
	munmap(b.later_s, sizeof(long));
	b.later_s = NULL;
	nftw(bed.dir, open_up, 16, FTW_PHYS);
	return nftw(bed.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
