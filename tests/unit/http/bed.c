#include "bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __real_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout);
int __wrap_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout);

static uint64_t now_ms = 1000000, until_ms;
static struct loop *running;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	if (id != CLOCK_MONOTONIC)
		return __real_clock_gettime(id, ts);
	*ts = (struct timespec){.tv_sec = (time_t)(now_ms / 1000),
	                        .tv_nsec = (long)(now_ms % 1000) * 1000000};
	return 0;
}

int __wrap_epoll_wait(int ep, struct epoll_event *ev, int n, int timeout)
{
	int r = __real_epoll_wait(ep, ev, n, 0);

	if (r != 0 || timeout == 0)
		return r;
	if (timeout < 0 || now_ms + (unsigned)timeout > until_ms) {
		now_ms = until_ms;
		loop_stop(running);
	} else {
		now_ms += (unsigned)timeout;
	}
	return 0;
}

void bed_pass(struct bed *b, uint64_t ms)
{
	until_ms = now_ms + ms;
	running = b->loop;
	assert_int_equal(loop_run(b->loop), 0);
}

void bed_run(struct bed *b)
{
	bed_pass(b, 0);
}

uint64_t bed_now_ms(void)
{
	return now_ms;
}

void bed_start(struct bed *b, const struct http_config *c)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct err e = {0};

	assert_int_equal(loop_new(&b->loop), 0);
	assert_int_equal(http_server_new(b->loop, c, &b->server, &e), 0);
	b->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(b->listener >= 0);
	/* Without a path the kernel gives an abstract name. */
	assert_int_equal(bind(b->listener, (struct sockaddr *)&un, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(b->listener, 4096), 0);
	assert_int_equal(http_server_listen(b->server, b->listener), 0);
}

void bed_stop(struct bed *b)
{
	http_server_free(b->server);
	loop_free(b->loop);
}

int bed_connect(struct bed *b)
{
	struct sockaddr_un un;
	socklen_t n = sizeof(un);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(getsockname(b->listener, (struct sockaddr *)&un, &n), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&un, n), 0);
	bed_run(b);
	return fd;
}

void bed_send(struct bed *b, int fd, const void *p, size_t n)
{
	const char *at = p;

	while (n) {
		ssize_t r = send(fd, at, n, MSG_NOSIGNAL);

		if (r < 0 && errno == EAGAIN) {
			bed_run(b);
			r = send(fd, at, n, MSG_NOSIGNAL);
		}
		if (r < 0)
			break; /* the server wants no more; the test sees why */
		at += r;
		n -= (size_t)r;
	}
	bed_run(b);
}

void bed_text(struct bed *b, int fd, const char *text)
{
	bed_send(b, fd, text, strlen(text));
}

int bed_read(struct bed *b, int fd, char *buf, size_t size)
{
	size_t n = 0;
	ssize_t r;

	buf[0] = 0;
	do {
		bed_run(b);
		r = recv(fd, buf + n, size - 1 - n, 0);
		if (r > 0)
			n += (size_t)r;
		buf[n] = 0;
	} while (r > 0 && n < size - 1);
	return r == 0 || (r < 0 && errno != EAGAIN) ? -1 : (int)n;
}

int bed_status(struct bed *b, int fd)
{
	char buf[8192];
	int r = bed_read(b, fd, buf, sizeof(buf));

	if (!buf[0])
		return r < 0 ? -1 : 0;
	assert_memory_equal(buf, "HTTP/1.1 ", 9);
	return atoi(buf + 9);
}

bool bed_closed(struct bed *b, int fd)
{
	char c;
	ssize_t r;

	bed_run(b);
	r = recv(fd, &c, 1, MSG_PEEK);
	return r == 0 || (r < 0 && errno != EAGAIN);
}
