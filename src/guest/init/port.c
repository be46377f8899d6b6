/*
 * guest/init/port.c - a stream to a tcp port of the machine
 */
#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/init/agent.h"
#include "guest/init/list.h"
#include "guest/init/sink.h"
#include "wire/guest.h"

struct port_stream {
	struct stream s;
	struct sink sink; /* its fd is the socket */
	uint16_t port;
	bool v6, connected, readable, eof, shut;
};

static int start_connect(struct port_stream *ps)
{
	struct sockaddr_in a4 = {.sin_family = AF_INET,
	                         .sin_port = htons(ps->port),
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6,
	                          .sin6_port = htons(ps->port),
	                          .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int r;

	if (ps->sink.fd >= 0)
		source_close(ps->s.c->a, ps->sink.fd);
	ps->sink.hold = true;
	ps->sink.fd =
	    socket(ps->v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (ps->sink.fd < 0)
		return -errno;
	r = ps->v6 ? connect(ps->sink.fd, (struct sockaddr *)&a6, sizeof(a6))
	           : connect(ps->sink.fd, (struct sockaddr *)&a4, sizeof(a4));
	if (r < 0 && errno != EINPROGRESS)
		return -errno;
	return source_add(ps->s.c->a, &ps->s.src, ps->sink.fd,
	                  EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

/* Servers that listen only on ::1 are common: try it before giving up. */
static void try_connect(struct port_stream *ps)
{
	int r = start_connect(ps);

	if (r == -ECONNREFUSED && !ps->v6) {
		ps->v6 = true;
		r = start_connect(ps);
		if (r == -EAFNOSUPPORT || r == -EADDRNOTAVAIL)
			r = -ECONNREFUSED;
	}
	if (r < 0)
		stream_end(&ps->s, -r, NULL);
}

static void port_ready(struct source *src, uint32_t events)
{
	struct port_stream *ps = container_of(src, struct port_stream, s.src);

	if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		ps->readable = true;
	stream_queue(&ps->s); /* the rest where there is room to answer */
}

/* Returns false while there is nothing to carry yet, or the stream is gone. */
static bool check_connected(struct port_stream *ps)
{
	socklen_t n = sizeof(int);
	int err = 0;

	if (ps->connected)
		return true;
	getsockopt(ps->sink.fd, SOL_SOCKET, SO_ERROR, &err, &n);
	if (err) {
		if (err == ECONNREFUSED && !ps->v6) {
			ps->v6 = true;
			ps->readable = false;
			try_connect(ps);
		} else {
			stream_end(&ps->s, err, NULL);
		}
		return false;
	}
	n = sizeof(struct sockaddr_in6);
	if (getpeername(ps->sink.fd, (struct sockaddr *)&(struct sockaddr_in6){0}, &n) < 0)
		return false; /* still on its way */
	ps->connected = true;
	ps->sink.hold = false;
	stream_send(&ps->s, WIRE_READY, 0, NULL);
	return true;
}

static void port_pump(struct stream *s)
{
	struct port_stream *ps = container_of(s, struct port_stream, s);
	size_t n;
	ssize_t r;

	if (!check_connected(ps))
		return;
	n = sink_flush(&ps->sink);
	if (n) {
		s->in_taken += (uint32_t)n;
		stream_queue(s);
	}
	if (ps->sink.fd < 0) {
		stream_end(s, ECONNRESET, NULL);
		return;
	}
	if (ps->sink.eof && !ps->sink.len && !ps->shut) {
		ps->shut = true;
		shutdown(ps->sink.fd, SHUT_WR);
	}
	n = ps->readable && !ps->eof ? stream_space(s, WIRE_OUT) : 0;
	if (n) {
		r = read(ps->sink.fd, conn_space(s->c, WIRE_HEADER + n) + WIRE_HEADER, n);
		if (r > 0) {
			stream_commit_data(s, WIRE_OUT, (size_t)r);
			stream_queue(s);
		} else if (r == 0) {
			ps->eof = true;
			stream_send(s, WIRE_EOF, WIRE_OUT, NULL);
		} else if (errno == EAGAIN) {
			ps->readable = false;
		} else if (errno != EINTR) {
			stream_end(s, errno, NULL);
			return;
		}
	}
	if (ps->eof && ps->shut)
		stream_end(s, 0, NULL);
}

static void port_data(struct stream *s, const uint8_t *p, size_t n)
{
	struct port_stream *ps = container_of(s, struct port_stream, s);

	s->in_taken += (uint32_t)sink_push(&ps->sink, p, n);
	stream_queue(s);
}

static void port_eof(struct stream *s)
{
	container_of(s, struct port_stream, s)->sink.eof = true;
	stream_queue(s);
}

static void port_release(struct stream *s, bool reborn)
{
	sink_close(&container_of(s, struct port_stream, s)->sink);
}

static const struct stream_ops port_ops = {.pump = port_pump,
                                           .data = port_data,
                                           .eof = port_eof,
                                           .release = port_release};

void port_connect(struct conn *c, uint32_t id, const struct wire_connect *m)
{
	struct port_stream *ps;

	if (!m->port || m->port > UINT16_MAX) {
		reply_end(c, id, EINVAL, "no such port");
		return;
	}
	ps = stream_new(c, id, &port_ops, sizeof(*ps), m->window);
	if (!ps)
		return;
	ps->s.src.ready = port_ready;
	ps->sink.a = c->a;
	ps->sink.fd = -1;
	ps->port = (uint16_t)m->port;
	try_connect(ps);
}
