#include "fake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/request.h"

/* false: the connection ended before a whole request was here. */
static bool read_request(struct fake *f, size_t i, int fd)
{
	char *buf = f->request[i];
	size_t len = 0, want;
	ssize_t n;

	for (;;) {
		buf[len] = 0;
		want = f->step[i].early ? request_head(buf, len) : request_whole(buf, len);
		if (want && len >= want)
			break;
		n = recv(fd, buf + len, FAKE_REQUEST - 1 - len, 0);
		if (n <= 0)
			return false;
		len += (size_t)n;
	}
	f->request_len[i] = len;
	return true;
}

static void send_reply(const struct fake_step *s, const char *request, size_t n, int fd)
{
	size_t len = s->len ? s->len : strlen(s->reply), at = 0;
	char head[512], key[64];

	if (s->upgrade) {
		request_ws_accept(request, n, key, sizeof(key));
		snprintf(head, sizeof(head),
		         "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
		         "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		         key);
		send(fd, head, strlen(head), MSG_NOSIGNAL);
	}
	while (at < len) {
		ssize_t k = send(fd, s->reply + at, s->pieces ? 1 : len - at, MSG_NOSIGNAL);

		if (k <= 0)
			return;
		at += (size_t)k;
	}
}

static void *serve(void *arg)
{
	struct fake *f = arg;
	int fd = -1, on = 1;

	for (size_t i = 0; i < f->n;) {
		const struct fake_step *s = &f->step[i];

		if (fd < 0) {
			fd = accept(f->fd, NULL, NULL);
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
			f->conns++;
		}
		if (!read_request(f, i, fd)) {
			close(fd);
			fd = -1;
			continue;
		}
		send_reply(s, f->request[i], f->request_len[i], fd);
		while (f->request_len[i] < (size_t)s->then_read) {
			ssize_t n = recv(fd, f->request[i] + f->request_len[i],
			                 FAKE_REQUEST - f->request_len[i], 0);

			if (n <= 0)
				break;
			f->request_len[i] += (size_t)n;
		}
		if (s->close) {
			close(fd);
			fd = -1;
			f->closed++;
		}
		i++;
	}
	if (fd >= 0)
		close(fd);
	return NULL;
}

void fake_start(struct fake *f, const struct fake_step *steps, size_t n)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);

	*f = (struct fake){.n = n};
	memcpy(f->step, steps, n * sizeof(*steps));
	for (size_t i = 0; i < n; i++)
		f->request[i] = calloc(1, FAKE_REQUEST + 1);
	f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(f->fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(f->fd, 8) < 0 ||
	    getsockname(f->fd, (struct sockaddr *)&a, &len) < 0)
		abort();
	f->port = ntohs(a.sin_port);
	pthread_create(&f->thread, NULL, serve, f);
}

void fake_join(struct fake *f)
{
	pthread_join(f->thread, NULL);
}

void fake_fini(struct fake *f)
{
	close(f->fd);
	for (size_t i = 0; i < f->n; i++)
		free(f->request[i]);
}

struct panda *fake_client(const struct fake *f)
{
	struct panda_error e;
	struct panda *p;
	char url[64];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/v1/", f->port);
	if (panda_new(&(struct panda_config){.url = url, .key = "k", .timeout_ms = 10000}, &p, &e) <
	    0)
		abort();
	return p;
}
