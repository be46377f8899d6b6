/*
 * A server to poke at by hand, from scripts and for numbers.
 * usage: http-toy PORT|SOCKET [CERT KEY]
 *   /hello        a fixed reply             /echo      the body, collected (1 MiB)
 *   /bytes?n=N    N bytes, with length      /chunks?n=N  the same, chunked
 *   /count        how long the body was     /mirror    the body, as it comes
 *   /ws           a WebSocket that echoes
 *   /never        no reply                  /stop      drains and ends
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/macro.h"
#include "http/server.h"
#include "http/ws.h"

struct work {
	uint64_t n;
};

static struct loop *loop;
static struct http_server *server;
static char zeros[HTTP_CHUNK];

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	free(arg);
}

static struct work *work_of(struct http_req *r)
{
	struct work *w = calloc(1, sizeof(*w));

	http_on_end(r, on_end, w);
	return w;
}

static void send_bytes(void *arg, struct http_req *r)
{
	struct work *w = arg;

	while (w->n && http_room(r)) {
		size_t n = MIN(w->n, sizeof(zeros));

		http_send(r, zeros, n);
		w->n -= n;
	}
	if (!w->n)
		http_finish(r);
}

static void echo(void *arg, struct http_req *r, char *p, size_t n)
{
	http_reply(r, 200, "application/octet-stream", p, n);
}

static void count_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	((struct work *)arg)->n += n;
	http_body_more(r);
}

static void count_end(void *arg, struct http_req *r)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)((struct work *)arg)->n);

	http_reply(r, 200, "text/plain", text, (size_t)n);
}

static void mirror_more(void *arg, struct http_req *r)
{
	http_body_more(r);
}

static void mirror_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	http_send(r, p, n);
	if (http_room(r))
		http_body_more(r);
}

static void mirror_end(void *arg, struct http_req *r)
{
	http_finish(r);
}

static void ws_message(void *arg, struct ws *w, bool text, const void *p, size_t n)
{
	ws_send(w, text, p, n);
	if (!ws_room(w))
		ws_pause(w);
}

static void ws_writable(void *arg, struct ws *w)
{
	ws_resume(w);
}

static void ws_closed(void *arg, struct ws *w)
{
}

static void drained(void *arg)
{
	loop_stop(loop);
}

static void handle(void *arg, struct http_req *r)
{
	static const struct http_body_ops count = {.data = count_data, .end = count_end};
	static const struct http_body_ops mirror = {.data = mirror_data, .end = mirror_end};
	static const struct ws_ops ws_ops = {.message = ws_message,
	                                     .writable = ws_writable,
	                                     .closed = ws_closed};
	const char *path = http_path(r);
	struct ws *sock;

	if (strcmp(path, "/hello") == 0) {
		http_reply(r, 200, "application/json", "{\"hello\":\"world\"}", 17);
	} else if (strcmp(path, "/echo") == 0) {
		http_body_collect(r, 1 << 20, echo, NULL);
	} else if (strcmp(path, "/bytes") == 0 || strcmp(path, "/chunks") == 0) {
		struct work *w = work_of(r);
		const char *n = http_query(r);

		w->n = strncmp(n, "n=", 2) == 0 ? strtoull(n + 2, NULL, 10) : 0;
		http_on_writable(r, send_bytes, w);
		http_begin(r, 200, "application/octet-stream",
		           strcmp(path, "/bytes") == 0 ? (int64_t)w->n : -1);
		send_bytes(w, r);
	} else if (strcmp(path, "/count") == 0) {
		http_body_stream(r, &count, work_of(r));
	} else if (strcmp(path, "/mirror") == 0) {
		http_on_writable(r, mirror_more, NULL);
		http_body_stream(r, &mirror, NULL);
		http_begin(r, 200, "application/octet-stream", http_body_length(r));
	} else if (strcmp(path, "/ws") == 0) {
		ws_accept(r, NULL, &ws_ops, NULL, &sock);
	} else if (strcmp(path, "/stop") == 0) {
		http_reply(r, 200, NULL, "", 0);
		http_server_drain(server, drained, NULL);
	} else if (strcmp(path, "/never") != 0) {
		http_reply(r, 404, "application/json", "{\"error\":\"no such path\"}", 24);
	}
}

static int listen_on(const char *where)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	bool by_path = where[0] == '/';
	int fd = socket(by_path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	in.sin_port = htons((uint16_t)atoi(where));
	snprintf(un.sun_path, sizeof(un.sun_path), "%s", where);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(fd, by_path ? (struct sockaddr *)&un : (struct sockaddr *)&in,
	         by_path ? sizeof(un) : sizeof(in)) < 0 ||
	    listen(fd, 1024) < 0)
		return -errno;
	if (!by_path) {
		socklen_t n = sizeof(in);

		getsockname(fd, (struct sockaddr *)&in, &n);
		printf("port %d\n", ntohs(in.sin_port));
	}
	fflush(stdout);
	return fd;
}

int main(int argc, char **argv)
{
	struct http_config c = {.handler = handle, .conns_max = 20000};
	struct err e;
	int fd, r;

	if (argc != 2 && argc != 4) {
		fprintf(stderr, "usage: http-toy PORT|SOCKET [CERT KEY]\n");
		return 2;
	}
	if (argc == 4) {
		c.tls_cert = argv[2];
		c.tls_key = argv[3];
	}
	signal(SIGPIPE, SIG_IGN);
	if (loop_new(&loop) < 0)
		return 1;
	if (http_server_new(loop, &c, &server, &e) < 0) {
		fprintf(stderr, "http-toy: %s\n", e.text);
		return 1;
	}
	fd = listen_on(argv[1]);
	if (fd < 0 || http_server_listen(server, fd) < 0) {
		fprintf(stderr, "http-toy: cannot listen on %s\n", argv[1]);
		return 1;
	}
	r = loop_run(loop);
	http_server_free(server);
	loop_free(loop);
	return r < 0;
}
