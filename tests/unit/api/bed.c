#include "bed.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "host/host_internal.h"

struct api_bed bed;

/* ---- time ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
time_t __real_time(time_t *t);
time_t __wrap_time(time_t *t);

static uint64_t later_ms;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int r = __real_clock_gettime(id, ts);

	ts->tv_sec += (time_t)(later_ms / 1000);
	ts->tv_nsec += (long)(later_ms % 1000) * 1000000;
	if (ts->tv_nsec >= 1000000000) {
		ts->tv_nsec -= 1000000000;
		ts->tv_sec++;
	}
	return r;
}

time_t __wrap_time(time_t *t)
{
	time_t now = __real_time(NULL) + (time_t)(later_ms / 1000);

	if (t)
		*t = now;
	return now;
}

void bed_later(uint64_t ms)
{
	struct bed *b = &bed.on;

	later_ms += ms;
	bed_turn(b, bed_deadline(), "time passes", __FILE__, __LINE__);
}

/* ---- text ---- */

static char *format(const char *fmt, va_list ap)
{
	char *text = NULL;

	if (vasprintf(&text, fmt, ap) < 0)
		abort();
	return text;
}

static char *quoted(const char *text)
{
	char *copy = strdup(text);

	for (char *p = copy; *p; p++)
		if (*p == '\'')
			*p = '"';
	return copy;
}

/* ---- opening ---- */

static void listen_anywhere(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	bed.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(bed.listener >= 0);
	/* Without a path the kernel gives an abstract name. */
	assert_int_equal(bind(bed.listener, (struct sockaddr *)&un, sizeof(sa_family_t)), 0);
	assert_int_equal(listen(bed.listener, 256), 0);
	assert_int_equal(http_server_listen(bed.server, bed.listener), 0);
}

static void token_make(const char *tenant, bool admin, char ret[64])
{
	const struct rights rights = {.level = admin ? LEVEL_ADMIN : LEVEL_SANDBOX};
	const struct quota none = {0};
	struct token *t;

	if (!ret[0] &&
	    token_add(bed.api, tenant, "bed", "", &rights, &none, 0, ret, &t, &bed.on.err) < 0)
		fail_msg("no token: %s", bed.on.err.text);
}

void bed_api_prepare(void)
{
	bed = (struct api_bed){.listener = -1};
	later_ms = 0;
	bed_make(&bed.on);
}

void bed_api_open(void)
{
	if (!bed.on.host)
		bed_open_host(&bed.on);
	if (api_new(bed.on.host, &bed.config, &bed.api, &bed.on.err) < 0)
		fail_msg("no API: %s", bed.on.err.text);
	bed.http.handler = api_handle;
	bed.http.refusal = api_refusal;
	bed.http.logged = api_logged;
	bed.http.arg = bed.api;
	bed.http.account = api_account(bed.api);
	if (http_server_new(bed.on.loop, &bed.http, &bed.server, &bed.on.err) < 0)
		fail_msg("no server: %s", bed.on.err.text);
	listen_anywhere();
	token_make("t", false, bed.mine);
	token_make("u", false, bed.other);
	token_make("ops", true, bed.admin);
}

/* As main() does it: streams that go on for ever are ended, then the server, then the rest. */
void bed_api_close(void)
{
	api_drain(bed.api);
	assert_null(bed.api->endless);
	http_server_free(bed.server);
	bed.server = NULL;
	while (bed.clients)
		client_leave(bed.clients);
	bed_until(&bed.on, !pool_busy(bed.on.host->pool));
	api_free(bed.api);
	bed.api = NULL;
	bed_close_host(&bed.on);
}

static void answer_free(void)
{
	free(bed.head);
	free(bed.body);
	json_decref(bed.json);
	bed.head = bed.body = NULL;
	bed.json = NULL;
	bed.len = 0;
}

int api_setup(void **state)
{
	bed_api_prepare();
	bed_api_open();
	*state = &bed;
	return 0;
}

static struct kept {
	struct kept *next;
	char text[];
} * kept_ids;

static void kill_all(void)
{
	struct host *h = bed.on.host;

	for (struct sandbox *sb = h->newest, *next; sb; sb = next) {
		next = sb->next;
		host_kill(h, sb, "test", NULL, NULL);
	}
	bed_until(&bed.on, h->count == 0);
}

int api_teardown(void **state)
{
	bed_rule(&bed.on, "mood", NULL);
	if (bed.api) {
		while (bed.clients)
			client_leave(bed.clients);
		bed_until(&bed.on, http_server_conns(bed.server) == 0);
		assert_null(bed.api->endless);
		kill_all();
		bed_api_close();
	}
	bed_empty(&bed.on);
	bed_free(&bed.on);
	answer_free();
	while (kept_ids) {
		struct kept *k = kept_ids;

		kept_ids = k->next;
		free(k);
	}
	return 0;
}

/* ---- connections ---- */

static void client_add(struct client *c, const char *p, size_t n)
{
	if (c->len + n + 1 > c->cap) {
		c->cap = 2 * (c->len + n) + 1024;
		c->in = realloc(c->in, c->cap);
		if (!c->in)
			abort();
	}
	memcpy(c->in + c->len, p, n);
	c->len += n;
	c->in[c->len] = 0;
}

static const char *head_field(const char *head, const char *name, char *buf, size_t size)
{
	size_t n = strlen(name);

	*buf = 0;
	for (const char *at = strstr(head, "\r\n"); at; at = strstr(at + 2, "\r\n"))
		if (!strncasecmp(at + 2, name, n) && at[2 + n] == ':') {
			const char *v = at + 3 + n + strspn(at + 3 + n, " ");

			snprintf(buf, size, "%.*s", (int)strcspn(v, "\r"), v);
			break;
		}
	return buf;
}

/* Chunks that are whole are moved together: from raw on, the bytes are as they came. */
static void unchunk(struct client *c)
{
	while (!c->over) {
		char *at = c->in + c->raw, *eol = memmem(at, c->len - c->raw, "\r\n", 2), *end;
		size_t size = eol ? strtoul(at, &end, 16) : 0, skip;

		if (!eol)
			return;
		assert_ptr_equal(end, eol);
		skip = (size_t)(eol + 2 - at);
		if (c->len - c->raw < skip + size + 2)
			return;
		c->over = size == 0;
		memmove(at, eol + 2, size);
		memmove(at + size, eol + 2 + size + 2, c->len - c->raw - skip - size - 2);
		c->raw += size;
		c->len -= skip + 2;
		c->in[c->len] = 0;
	}
	c->in[c->raw] = 0;
}

static void client_look(struct client *c)
{
	char text[40];
	char *end;

	if (!c->head) {
		end = c->len ? memmem(c->in, c->len, "\r\n\r\n", 4) : NULL;
		if (!end)
			return;
		c->head = c->raw = c->at = (size_t)(end + 4 - c->in);
		c->status = atoi(c->in + 9);
		c->chunked = *head_field(c->in, "Transfer-Encoding", text, sizeof(text)) != 0;
	}
	if (c->chunked) {
		unchunk(c);
	} else {
		head_field(c->in, "Content-Length", text, sizeof(text));
		c->over = *text && c->len - c->head >= strtoul(text, NULL, 10);
		c->over |= c->status == 204 || c->status == 304;
	}
}

static void client_readable(void *arg, uint32_t events)
{
	struct client *c = arg;
	char room[65536];
	ssize_t n = recv(c->fd, room, sizeof(room), 0);

	if (n <= 0 && !(n < 0 && errno == EAGAIN)) {
		c->closed = true;
		loop_io_del(bed.on.loop, &c->io);
	} else if (n > 0) {
		client_add(c, room, (size_t)n);
		client_look(c);
	}
	bed_wake(&bed.on);
}

struct client *client_new(void)
{
	struct client *c = calloc(1, sizeof(*c));
	struct sockaddr_un un;
	socklen_t n = sizeof(un);

	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(c->fd >= 0);
	assert_int_equal(getsockname(bed.listener, (struct sockaddr *)&un, &n), 0);
	assert_int_equal(connect(c->fd, (struct sockaddr *)&un, n), 0);
	c->io.fn = client_readable;
	c->io.arg = c;
	assert_int_equal(loop_io_add(bed.on.loop, &c->io, c->fd, EPOLLIN), 0);
	client_add(c, "", 0);
	c->next = bed.clients;
	bed.clients = c;
	return c;
}

void client_leave(struct client *c)
{
	struct client **p = &bed.clients;

	while (*p != c)
		p = &(*p)->next;
	*p = c->next;
	if (bed.on.loop)
		loop_io_del(bed.on.loop, &c->io);
	close(c->fd);
	free(c->in);
	free(c->name);
	free(c->message);
	json_decref(c->data);
	free(c);
}

void client_deaf(struct client *c, bool deaf)
{
	c->deaf = deaf;
	loop_io_del(bed.on.loop, &c->io);
	if (!deaf && !c->closed)
		assert_int_equal(loop_io_add(bed.on.loop, &c->io, c->fd, EPOLLIN), 0);
}

void client_send(struct client *c, const void *p, size_t n)
{
	uint64_t until = bed_deadline();

	while (n) {
		ssize_t r = send(c->fd, p, n, MSG_NOSIGNAL);

		if (r < 0 && errno == EAGAIN)
			bed_turn(&bed.on, until, "the server reads", __FILE__, __LINE__);
		else if (r < 0)
			return; /* it wants no more: its answer says why */
		else {
			p = (const char *)p + r;
			n -= (size_t)r;
		}
	}
}

void client_head(struct client *c)
{
	bed_until(&bed.on, c->head || c->closed);
	assert_true(c->head > 0);
}

const char *client_body(const struct client *c)
{
	return c->in + c->head;
}

size_t client_body_len(const struct client *c)
{
	return c->chunked ? c->raw - c->head : c->len - c->head;
}

void client_wait(struct client *c, size_t n)
{
	client_head(c);
	bed_until(&bed.on, client_body_len(c) >= n || c->closed);
	assert_true(client_body_len(c) >= n);
}

void client_end(struct client *c)
{
	bed_until(&bed.on, c->closed);
}

/* ---- requests ---- */

void as(const char *token)
{
	bed.token = token;
}

void with(const char *fmt, ...)
{
	size_t n = strlen(bed.headers);
	va_list ap;

	va_start(ap, fmt);
	n += (size_t)vsnprintf(bed.headers + n, sizeof(bed.headers) - n, fmt, ap);
	va_end(ap);
	assert_true(n + 3 < sizeof(bed.headers));
	memcpy(bed.headers + n, "\r\n", 3);
}

static struct client *send_request(const char *what, const void *p, size_t n, bool body)
{
	struct client *c = client_new();
	const char *token = bed.token ? bed.token : bed.mine;
	autofree char *head = NULL;
	char length[64] = "", bearer[100] = "";
	int len;

	if (*token)
		snprintf(bearer, sizeof(bearer), "Authorization: Bearer %s\r\n", token);
	if (body)
		snprintf(length, sizeof(length), "Content-Length: %zu\r\n", n);
	len = asprintf(&head, "%s HTTP/1.1\r\n%s%s%s%s\r\n", what,
	               strcasestr(bed.headers, "Host:") ? "" : "Host: panda\r\n", bearer, length,
	               bed.headers);
	if (len < 0)
		abort();
	bed.token = NULL;
	bed.headers[0] = 0;
	client_send(c, head, (size_t)len);
	if (body)
		client_send(c, p, n);
	return c;
}

struct client *begin(const char *json, const char *fmt, ...)
{
	autofree char *body = json ? quoted(json) : NULL, *what = NULL;
	va_list ap;

	va_start(ap, fmt);
	what = format(fmt, ap);
	va_end(ap);
	return send_request(what, body, body ? strlen(body) : 0, body);
}

struct client *stream(int status, const char *json, const char *fmt, ...)
{
	autofree char *body = json ? quoted(json) : NULL, *what = NULL;
	struct client *c;
	va_list ap;

	va_start(ap, fmt);
	what = format(fmt, ap);
	va_end(ap);
	c = send_request(what, body, body ? strlen(body) : 0, body);
	client_head(c);
	if (c->status != status)
		fail_msg("%s: %d, not %d: %s", what, c->status, status, client_body(c));
	return c;
}

void client_answer(struct client *c)
{
	answer_free();
	bed_until(&bed.on, c->over || c->closed);
	if (!c->head)
		fail_msg("the connection ended without an answer");
	bed.status = c->status;
	bed.head = strndup(c->in, c->head);
	bed.len = client_body_len(c);
	bed.body = malloc(bed.len + 1);
	memcpy(bed.body, client_body(c), bed.len);
	bed.body[bed.len] = 0;
	bed.json = json_loadb(bed.body, bed.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static int answer_to(struct client *c)
{
	client_answer(c);
	client_leave(c);
	return bed.status;
}

int ask(const char *json, const char *fmt, ...)
{
	autofree char *body = json ? quoted(json) : NULL, *what = NULL;
	va_list ap;

	va_start(ap, fmt);
	what = format(fmt, ap);
	va_end(ap);
	return answer_to(send_request(what, body, body ? strlen(body) : 0, body));
}

int ask_bytes(const void *p, size_t n, const char *fmt, ...)
{
	autofree char *what = NULL;
	va_list ap;

	va_start(ap, fmt);
	what = format(fmt, ap);
	va_end(ap);
	return answer_to(send_request(what, p, n, true));
}

/* ---- what is expected ---- */

void bed_status_is(const char *file, int line, int status)
{
	if (bed.status != status)
		_cmocka_fail(file, line, "%d, not %d: %.600s", bed.status, status, bed.body);
}

const char *header(const char *name)
{
	static char buf[2][1024];
	static unsigned turn;
	unsigned i = turn++ % 2;

	return head_field(bed.head, name, buf[i], sizeof(buf[i]));
}

static const json_t *find_in(const json_t *j, const char *path)
{
	while (j && *path) {
		size_t n = strcspn(path, ".");
		char key[64];

		snprintf(key, sizeof(key), "%.*s", (int)n, path);
		j = json_is_array(j) ? json_array_get(j, (size_t)atoi(key))
		                     : json_object_get(j, key);
		path += n + (path[n] == '.');
	}
	return j;
}

const char *text_of(const char *path)
{
	const char *s = json_string_value(find_in(bed.json, path));

	if (!s)
		fail_msg("no text at '%s' in %.600s", path, bed.body);
	return s;
}

json_int_t number_of(const char *path)
{
	const json_t *j = find_in(bed.json, path);

	if (!json_is_number(j))
		fail_msg("no number at '%s' in %.600s", path, bed.body);
	return (json_int_t)json_number_value(j);
}

void bed_refused(const char *file, int line, int status, const char *kind, const char *part)
{
	const char *code = json_string_value(json_object_get(bed.json, "code"));
	const char *error = json_string_value(json_object_get(bed.json, "error"));
	const char *id = json_string_value(json_object_get(bed.json, "request_id"));

	bed_status_is(file, line, status);
	if (!code || !error || !id || strcmp(code, kind) != 0 || !strstr(error, part))
		_cmocka_fail(file, line, "not %s with '%s': %.600s", kind, part, bed.body);
	if (strcmp(header("X-Request-Id"), id) != 0)
		_cmocka_fail(file, line, "the head names another request than %s", id);
}

static bool contains(const json_t *have, const json_t *want)
{
	const char *key;
	json_t *v;
	size_t i;

	if (json_is_object(want)) {
		json_object_foreach((json_t *)want, key, v)
			if (!json_object_get(have, key) || !contains(json_object_get(have, key), v))
				return false;
		return json_is_object(have);
	}
	if (json_is_array(want)) {
		if (!json_is_array(have) || json_array_size(have) != json_array_size(want))
			return false;
		json_array_foreach(want, i, v)
			if (!contains(json_array_get(have, i), v))
				return false;
		return true;
	}
	return json_equal(have, want);
}

void bed_has(const char *file, int line, const json_t *j, const char *fmt, ...)
{
	autofree char *text = NULL, *plain = NULL, *shown = NULL;
	json_t *want;
	bool same;
	va_list ap;

	va_start(ap, fmt);
	plain = format(fmt, ap);
	va_end(ap);
	text = quoted(plain);
	want = json_loads(text, JSON_DECODE_ANY, NULL);
	if (!want)
		_cmocka_fail(file, line, "this is no JSON: %s", text);
	same = contains(j, want);
	json_decref(want);
	if (same)
		return;
	shown = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	_cmocka_fail(file, line, "not %s in %.1500s", text, shown ? shown : bed.body);
}

void bed_body_is(const char *file, int line, const char *text)
{
	_cmocka_string(file, line, "the body", bed.body, text, true);
}

/* ---- what tests need often ---- */

static const char *keep(const char *text)
{
	size_t n = strlen(text) + 1;
	struct kept *k = malloc(sizeof(*k) + n);

	memcpy(k->text, text, n);
	k->next = kept_ids;
	kept_ids = k;
	return k->text;
}

const char *sandbox_made(const char *json)
{
	good(201, json ? json : "{}", "POST /v1/sandboxes");
	return keep(text_of("id"));
}

struct sandbox *sandbox_of(const char *id)
{
	struct sandbox *sb = host_find(bed.on.host, NULL, id);

	if (!sb)
		fail_msg("there is no sandbox %s", id);
	return sb;
}

void put_file(const char *id, const char *path, const char *text)
{
	if (bed_write(&bed.on, sandbox_of(id), path, text) < 0)
		fail_msg("cannot write %s: %s", path, bed.on.err.text);
}

size_t commands_of(const char *id)
{
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	return json_array_size(bed.json);
}

/* ---- events ---- */

/* One block of lines up to an empty one. Its length, 0: it is not all there. */
static size_t block(const struct client *c)
{
	const char *p = c->in + c->at;
	size_t n = c->head + client_body_len(c) - c->at;
	const char *end = memmem(p, n, "\n\n", 2);

	return end ? (size_t)(end + 2 - p) : 0;
}

const char *event_any(struct client *c)
{
	size_t n;

	for (;;) {
		const char *p, *data;

		bed_until(&bed.on, (c->head && block(c)) || c->over || c->closed);
		n = c->head ? block(c) : 0;
		if (!n)
			return "";
		p = c->in + c->at;
		c->at += n;
		if (*p == ':')
			continue; /* a comment */
		free(c->name);
		json_decref(c->data);
		assert_int_equal(strncmp(p, "event: ", 7), 0);
		c->name = strndup(p + 7, strcspn(p + 7, "\n"));
		data = strstr(p, "\ndata: ");
		assert_non_null(data);
		data += 7;
		c->data =
		    json_loadb(data, strcspn(data, "\n"), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		assert_non_null(c->data);
		return c->name;
	}
}

json_t *event(struct client *c, const char *name)
{
	const char *got = event_any(c);
	autofree char *shown = NULL;

	if (strcmp(got, name) == 0)
		return c->data;
	shown = *got ? json_dumps(c->data, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	fail_msg("the event '%s' %s, not '%s'", got, shown ? shown : "", name);
}

char *events_text(struct client *c, const char *name, const char *field)
{
	char *text = strdup("");
	size_t n = 0;

	while (strcmp(event_any(c), name) == 0) {
		const json_t *v = json_object_get(c->data, field);
		size_t k = json_string_length(v);

		text = realloc(text, n + k + 1);
		memcpy(text + n, json_string_value(v), k);
		n += k;
		text[n] = 0;
	}
	return text;
}

/* ---- WebSockets ---- */

struct client *websocket(const char *fmt, ...)
{
	autofree char *what = NULL;
	struct client *c;
	va_list ap;

	va_start(ap, fmt);
	what = format(fmt, ap);
	va_end(ap);
	with("Connection: Upgrade");
	with("Upgrade: websocket");
	with("Sec-WebSocket-Version: 13");
	with("Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==");
	c = send_request(what, NULL, 0, false);
	client_head(c);
	if (c->status != 101)
		fail_msg("%s: %d, not 101: %s", what, c->status, client_body(c));
	return c;
}

void ws_say(struct client *c, int opcode, const void *p, size_t n)
{
	unsigned char head[14] = {(unsigned char)(0x80 | opcode)}; /* a mask of zeros behind it */
	size_t len = 2;

	if (n < 126) {
		head[1] = (unsigned char)(0x80 | n);
	} else {
		head[1] = (unsigned char)(0x80 | (n < 65536 ? 126 : 127));
		for (int shift = n < 65536 ? 8 : 56; shift >= 0; shift -= 8)
			head[len++] = (unsigned char)(n >> shift);
	}
	client_send(c, head, len + 4);
	client_send(c, p, n);
}

void ws_say_json(struct client *c, const char *fmt, ...)
{
	autofree char *plain = NULL, *text = NULL;
	va_list ap;

	va_start(ap, fmt);
	plain = format(fmt, ap);
	va_end(ap);
	text = quoted(plain);
	ws_say(c, WS_TEXT, text, strlen(text));
}

/* Bytes of the frame at c->at, 0: it is not all there. Ours are never in pieces. */
static size_t frame(const struct client *c, size_t *head, size_t *len)
{
	const unsigned char *p = (const unsigned char *)c->in + c->at;
	size_t n = c->len - c->at, more;

	if (n < 2)
		return 0;
	*len = p[1] & 127;
	more = *len == 126 ? 2 : *len == 127 ? 8 : 0;
	if (n < 2 + more)
		return 0;
	if (more)
		*len = 0;
	for (size_t i = 0; i < more; i++)
		*len = *len << 8 | p[2 + i];
	*head = 2 + more;
	return n >= *head + *len ? *head + *len : 0;
}

int ws_hear(struct client *c)
{
	size_t head = 0, len = 0;
	int opcode;

	bed_until(&bed.on, frame(c, &head, &len) || c->closed);
	if (!frame(c, &head, &len))
		fail_msg("the WebSocket ended without another message");
	opcode = c->in[c->at] & 15;
	free(c->message);
	c->message = malloc(len + 1);
	memcpy(c->message, c->in + c->at + head, len);
	c->message[len] = 0;
	c->message_len = len;
	c->at += head + len;
	return opcode;
}

void ws_hears_json(const char *file, int line, struct client *c, const char *fmt, ...)
{
	autofree char *plain = NULL;
	int opcode = ws_hear(c);
	va_list ap;

	if (opcode != WS_TEXT)
		_cmocka_fail(file, line, "a message of kind %d, not a text", opcode);
	json_decref(c->data);
	c->data = json_loadb(c->message, c->message_len, JSON_DECODE_ANY, NULL);
	va_start(ap, fmt);
	plain = format(fmt, ap);
	va_end(ap);
	if (!c->data)
		_cmocka_fail(file, line, "no JSON: %s", c->message);
	bed_has(file, line, c->data, "%s", plain);
}
