/*
 * cli/bed_server.c - a pandad with a script
 * Nothing here waits: what cannot be sent now is sent when the loop of bed.c says that it can.
 */
#include "base/cleanup.h"
#include "bed_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/request.h"

struct conn {
	int fd; /* -1: free */
	char *in, *out;
	size_t len, out_len;
	bool ending;            /* nothing is said behind out */
	bool held;              /* its stream goes on */
	bool websocket, tunnel; /* what comes is no HTTP any more */
	bool draining;          /* answered, and nothing of what comes is looked at */
	bool deaf;              /* a tunnel whose other half goes on */
};

static struct {
	struct answer answer[BED_MAX];
	bool used[BED_MAX];
	size_t nanswers, next;
	struct conn conn[BED_MAX];
	size_t polled[BED_MAX]; /* which connection each entry of server_poll() is */
	struct conn *newest;    /* of those that are held */
	int listener;
} server;

void server_listen(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
	                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	                        .sin_port = htons((uint16_t)bed.port)};
	socklen_t n = sizeof(a);

	server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(server.listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(server.listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
	    listen(server.listener, 16) < 0 ||
	    getsockname(server.listener, (struct sockaddr *)&a, &n) < 0)
		abort();
	bed.port = ntohs(a.sin_port);
}

static void drop(struct conn *c)
{
	bed_shut(&c->fd);
	free(c->in);
	free(c->out);
	if (server.newest == c)
		server.newest = NULL;
	*c = (struct conn){.fd = -1};
}

void server_leave(void)
{
	bed_shut(&server.listener);
	for (size_t i = 0; i < BED_MAX; i++)
		drop(&server.conn[i]);
}

/* Sends what can be sent now. */
static void flush_out(struct conn *c)
{
	ssize_t n;

	while (c->out_len) {
		n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			n = (ssize_t)c->out_len; /* it is gone: so is all that was for it */
		c->out_len -= (size_t)n;
		memmove(c->out, c->out + n, c->out_len);
	}
	if (c->ending)
		shutdown(c->fd, SHUT_WR);
	c->ending = false;
}

static void say(struct conn *c, const void *data, size_t n)
{
	bed_append(&c->out, &c->out_len, data, n);
	flush_out(c);
}

/* Our half ends behind what has been said. */
static void end_half(struct conn *c)
{
	c->ending = true;
	flush_out(c);
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
	end_half(c);
	c->draining = true;
	c->held = false;
	if (server.newest == c)
		server.newest = NULL;
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
	server.newest = c;
}

static void say_events(struct conn *c, const struct answer *a)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
				   "Connection: close\r\n\r\n";
	autofree char *body = bed_json(a->events);

	say(c, head, strlen(head));
	say(c, body, strlen(body));
	c->held = a->hold;
	if (c->held)
		server.newest = c;
	else
		hang_up(c);
}

static void say_answer(struct conn *c, const struct answer *a)
{
	autofree char *body = a->json ? bed_json(a->json) : NULL, *head = NULL;
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
	for (size_t i = 0; i < server.nanswers; i++)
		if (!server.used[i] && server.answer[i].any_time &&
		    !strcmp(server.answer[i].request, line)) {
			server.used[i] = true;
			return &server.answer[i];
		}
	while (server.next < server.nanswers &&
	       (server.used[server.next] || server.answer[server.next].any_time))
		server.next++;
	if (server.next == server.nanswers) {
		bed_wrong("it asked for '%s', when the script was over", line);
		return NULL;
	}
	if (strcmp(server.answer[server.next].request, line) != 0) {
		bed_wrong("it asked for '%s', when it was the turn of '%s'", line,
		          server.answer[server.next].request);
		return NULL;
	}
	server.used[server.next] = true;
	return &server.answer[server.next++];
}

static void record(const char *line, const char *p, size_t n)
{
	struct bed_request *r = &bed.asked[bed.nasked];

	if (bed.nasked == BED_MAX) {
		bed_wrong("it asked for more than %d things", BED_MAX);
		return;
	}
	bed.nasked++;
	r->line = strdup(line);
	bed_append(&r->text, &r->text_len, p, n);
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

	if (!head || (!n && !(server.next < server.nanswers && server.answer[server.next].early)))
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
		bed_append(&bed.heard, &bed.heard_len, c->in + at + 4, n);
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
		bed_append(&bed.heard, &bed.heard_len, "[end]", 5);
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
		bed_append(&bed.heard, &bed.heard_len, buf, (size_t)n);
		return;
	}
	bed_append(&c->in, &c->len, buf, (size_t)n);
	if (c->websocket)
		while (take_frame(c))
			;
	else
		while (take_request(c))
			;
}

static void take_connection(void)
{
	int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	/* A head and its body are two writes: the second would wait for the client's ACK. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	for (size_t i = 0; fd >= 0 && i < BED_MAX; i++)
		if (server.conn[i].fd < 0) {
			server.conn[i].fd = fd;
			return;
		}
}

/* ---- for the loop ---- */

void server_begin(void)
{
	memset(&server, 0, sizeof(server));
	for (size_t i = 0; i < BED_MAX; i++)
		server.conn[i].fd = -1;
	server_listen();
}

size_t server_poll(struct pollfd p[SERVER_FDS])
{
	size_t n = 1;

	p[0] = (struct pollfd){.fd = server.listener, .events = POLLIN};
	for (size_t i = 0; i < BED_MAX; i++) {
		const struct conn *c = &server.conn[i];
		short events = (short)((c->deaf ? 0 : POLLIN) | (c->out_len ? POLLOUT : 0));

		if (c->fd < 0 || !events)
			continue;
		server.polled[n - 1] = i;
		p[n++] = (struct pollfd){.fd = c->fd, .events = events};
	}
	return n;
}

void server_take(const struct pollfd *p, size_t n)
{
	if (p[0].revents)
		take_connection();
	for (size_t i = 1; i < n; i++) {
		struct conn *c = &server.conn[server.polled[i - 1]];

		if (!p[i].revents || c->fd != p[i].fd)
			continue;
		if (p[i].revents & POLLOUT)
			flush_out(c);
		if (p[i].revents & ~POLLOUT && !c->deaf)
			take_bytes(c);
	}
}

void server_say(bool text, const char *p, size_t n)
{
	if (!server.newest)
		bed_wrong("nobody is there to be told '%s'", p);
	else if (server.newest->websocket)
		say_frame(server.newest, text, p, n);
	else
		say(server.newest, p, n);
}

void server_end(void)
{
	if (!server.newest)
		bed_wrong("no connection is held that could end");
	else if (server.newest->tunnel)
		end_half(server.newest);
	else
		hang_up(server.newest);
}

void server_over(void)
{
	for (size_t i = 0; i < server.nanswers; i++)
		if (!server.used[i])
			bed_wrong("it never asked for '%s'", server.answer[i].request);
	for (size_t i = 0; i < BED_MAX; i++)
		drop(&server.conn[i]);
	if (server.listener < 0)
		server_listen();
	server.nanswers = server.next = 0;
	memset(server.used, 0, sizeof(server.used));
}

/* ---- the script ---- */

void bed_reply(struct answer a)
{
	if (server.nanswers == BED_MAX)
		abort();
	server.answer[server.nanswers++] = a;
}

void bed_refuse(const char *request, int status, const char *code, const char *text)
{
	char *json;

	if (asprintf(&json, "{'error':'%s','code':'%s','request_id':'req_1'}", text, code) < 0)
		abort();
	bed_reply((struct answer){.request = request, .status = status, .json = bed_keep(json)});
}
