/*
 * standby.c - programs that were started before anybody needed them: Chromium, and Playwright's
 * driver Compiled when the image is made. Both talk through a pair of pipes, so whoever holds the
 * other ends can hand them on:
 *
 *   standby hold NAME PID WRITE READ ARG...
 *       keeps the pipes (numbers of inherited fds) to the stopped process group PID, until somebody
 *       asks for a NAME with the same ARGs. warm-browser.py starts it before the bake.
 *   .../node ARG..., .../headless_shell ARG..., .../chrome ARG...
 *       links to us, which Playwright runs in place of the real ones. Takes what is on hold and
 *       carries bytes to and fro; what differs from it in any way is started afresh.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	WISH_MAX = 64 << 10,
	PIECE = 64 << 10,
};

extern char **environ;

static const struct program {
	const char *name, *called[2], *real;
	int in, out; /* the fds it is talked to through */
} programs[] = {
    {"driver", {"node"}, "/usr/bin/node", 0, 1},
    {"chromium", {"headless_shell", "chrome"}, "/usr/lib/chromium/chromium-headless-shell", 3, 4},
};

/* ---- what is wanted: one text, equal for what may stand in for each other ---- */

static int add(char *wish, const char *word)
{
	size_t n = strlen(wish), room = WISH_MAX - n;

	return (size_t)snprintf(wish + n, room, "%s\n", word) < room ? 0 : -1;
}

static int begins(const char *variable, const char *const *names)
{
	for (; *names; names++)
		if (strncasecmp(variable, *names, strlen(*names)) == 0)
			return 1;
	return 0;
}

/* Variables that such a program looks at when it starts. */
static int matters(const char *name, const char *variable)
{
	static const char *const every[] = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	                                    "TZ=",        "LANG",        "LC_",      "DISPLAY",
	                                    "HOME=",      NULL};
	static const char *const driver[] = {"DEBUG", "PW", "PLAYWRIGHT", "NODE", NULL};

	return begins(variable, every) || (strcmp(name, "driver") == 0 && begins(variable, driver));
}

/* Files that a browser looks at when it starts: whoever has trusted another authority since wants a
 * new one. */
static int add_files(char *wish)
{
	static const char *const files[] = {
	    "~/.pki/nssdb/cert9.db",         "~/.fonts",   "/usr/share/fonts",
	    "/usr/local/share/fonts",        "/etc/fonts", "/etc/chromium",
	    "/etc/chromium/policies/managed"};
	const char *home = getenv("HOME");
	char text[4096];
	struct stat st;
	int r = 0;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(text, sizeof(text), "%s%s", *files[i] == '~' && home ? home : "",
		         files[i] + (*files[i] == '~'));
		if (stat(text, &st) < 0)
			continue;
		snprintf(text, sizeof(text), "%s %lld.%09ld", files[i],
		         (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
		r |= add(wish, text);
	}
	return r;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* -1: that is too much to be compared. */
static int describe(const char *name, char *const *args, char *wish)
{
	char here[4096];
	size_t n = 0;
	int r = 0;

	*wish = 0;
	for (; *args; args++)
		if (strncmp(*args, "--user-data-dir=", 16) != 0) /* a fresh one each time */
			r |= add(wish, *args);
	if (strcmp(name, "driver") == 0) /* it works where it was started */
		r |= add(wish, getcwd(here, sizeof(here)) ? here : "nowhere");
	else
		r |= add_files(wish);
	while (environ[n])
		n++;
	qsort(environ, n, sizeof(*environ), by_text);
	for (size_t i = 0; i < n; i++)
		if (matters(name, environ[i]))
			r |= add(wish, environ[i]);
	return r;
}

static socklen_t address(const char *name, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){.sun_family = AF_UNIX};
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                   (size_t)snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1,
	                                    "panda-standby-%s", name));
}

/* ---- hold ---- */

static int give(int to, pid_t pid, const int fds[2])
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec text = {.iov_base = &pid, .iov_len = sizeof(pid)};
	struct msghdr m = {.msg_iov = &text,
	                   .msg_iovlen = 1,
	                   .msg_control = control.room,
	                   .msg_controllen = sizeof(control.room)};

	control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(2 * sizeof(int)),
	                                .cmsg_level = SOL_SOCKET,
	                                .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.head), fds, 2 * sizeof(int));
	return sendmsg(to, &m, MSG_NOSIGNAL) == sizeof(pid) ? 0 : -1;
}

static int hold(const char *name, pid_t pid, const int fds[2], char *const *args)
{
	static char have[WISH_MAX], want[WISH_MAX + 1];
	struct sockaddr_un a;
	socklen_t len = address(name, &a);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), given = 0;

	if (describe(name, args, have) < 0 || s < 0 || bind(s, (struct sockaddr *)&a, len) < 0 ||
	    listen(s, 8) < 0 || daemon(1, 0) < 0)
		return 1;
	while (!given) {
		struct ucred who = {.uid = (uid_t)-1};
		socklen_t n = sizeof(who);
		int c = accept4(s, NULL, NULL, SOCK_CLOEXEC);
		ssize_t got = c < 0 ? -1 : recv(c, want, WISH_MAX, 0);

		want[got > 0 ? got : 0] = 0;
		/* another user gets no process of ours */
		given = got > 0 && getsockopt(c, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
		        who.uid == geteuid() && strcmp(want, have) == 0 &&
		        kill(-pid, SIGCONT) == 0 && give(c, pid, fds) == 0;
		if (c >= 0)
			close(c);
	}
	return 0;
}

/* ---- take ---- */

static int take(const char *name, char *const *args, int ret[2])
{
	static char wish[WISH_MAX];
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	pid_t pid;
	struct iovec text = {.iov_base = &pid, .iov_len = sizeof(pid)};
	struct msghdr m = {.msg_iov = &text,
	                   .msg_iovlen = 1,
	                   .msg_control = control.room,
	                   .msg_controllen = sizeof(control.room)};
	struct sockaddr_un a;
	socklen_t len = address(name, &a);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r = -1;

	if (describe(name, args, wish) == 0 && s >= 0 &&
	    connect(s, (struct sockaddr *)&a, len) == 0 &&
	    send(s, wish, strlen(wish), MSG_NOSIGNAL) >= 0 &&
	    recvmsg(s, &m, MSG_CMSG_CLOEXEC) == sizeof(pid) &&
	    m.msg_controllen == sizeof(control.room)) {
		memcpy(ret, CMSG_DATA(&control.head), 2 * sizeof(int));
		r = 0;
	}
	if (s >= 0)
		close(s);
	return r;
}

/* One read, all of it written. False: that way is closed. */
static int carry(int from, int to)
{
	static char piece[PIECE];
	ssize_t n = read(from, piece, sizeof(piece));

	for (ssize_t at = 0, w; at < n; at += w) {
		w = write(to, piece + at, (size_t)(n - at));
		if (w < 0)
			return 0;
	}
	return n > 0;
}

/* Until the program has ended. When our caller has nothing more to say, so do we: it ends then. */
static int relay(int in, int out, const int fds[2])
{
	struct pollfd p[2] = {{.fd = in, .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};

	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		if (poll(p, 2, -1) < 0)
			return 1;
		if (p[1].revents && !carry(fds[1], out))
			return 0;
		if (p[0].revents && !carry(in, fds[0])) {
			close(fds[0]);
			p[0].fd = -1;
		}
	}
}

int main(int argc, char **argv)
{
	const char *self = strrchr(argv[0], '/');
	int fds[2];

	self = self ? self + 1 : argv[0];
	if (argc > 5 && strcmp(argv[1], "hold") == 0) {
		fds[0] = atoi(argv[4]);
		fds[1] = atoi(argv[5]);
		return hold(argv[2], (pid_t)atoi(argv[3]), fds, argv + 6);
	}
	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		const struct program *p = &programs[i];

		for (size_t k = 0; k < 2 && p->called[k]; k++)
			if (strcmp(self, p->called[k]) == 0) {
				if (take(p->name, argv + 1, fds) == 0)
					return relay(p->in, p->out, fds);
				argv[0] = (char *)p->real;
				execv(p->real, argv);
				perror(p->real);
				return 127;
			}
	}
	fputs("usage: standby hold NAME PID WRITE READ ARG...; or by the name of a program\n",
	      stderr);
	return 2;
}
