/*
 * api/call.c - one request on its way through this room, and the ways to answer it
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/json_out.h"
#include "api/streams/sse.h"
#include "base/account.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/macro.h"
#include "host/host.h"
#include "http/server.h"
#include "http/url.h"

enum {
	PING_MS = 15000,        /* below every proxy's idle time we know of */
	JSON_PIECE = 64 * 1024, /* an answer up to there is sent with its length */
};

/* The one table from kinds to statuses. What is not here is our fault: 500. */
static const struct {
	const char *kind;
	int status;
} kinds[] = {
    {"bad_request", 400},        {"bad_json", 400},
    {"bad_path", 400},           {"bad_id", 400},
    {"bad_spec", 400},           {"parcel_invalid", 400},
    {"is_a_directory", 400},     {"not_a_directory", 400},
    {"template_unknown", 400},   {"unsupported_language", 400},
    {"unauthorized", 401},       {"forbidden", 403},
    {"not_found", 404},          {"sandbox_not_found", 404},
    {"snapshot_not_found", 404}, {"file_not_found", 404},
    {"exec_not_found", 404},     {"session_not_found", 404},
    {"volume_not_found", 404},   {"checkpoint_not_found", 404},
    {"template_not_found", 404}, {"build_not_found", 404},
    {"token_not_found", 404},    {"machine_not_found", 404},
    {"method_not_allowed", 405}, {"conflict", 409},
    {"sandbox_paused", 409},     {"sandbox_failed", 409},
    {"sandbox_busy", 409},       {"volume_busy", 409},
    {"volume_unclean", 409},     {"exists", 409},
    {"machine_exists", 409},     {"snapshot_exists", 409},
    {"snapshot_foreign", 409},   {"too_large", 413},
    {"bad_range", 416},          {"quota_exceeded", 429},
    {"rate_limited", 429},       {"too_many", 429},
    {"internal", 500},           {"not_implemented", 501},
    {"not_supported", 501},      {"guest_gone", 502},
    {"guest_silent", 502},       {"guest_io", 502},
    {"guest_unreachable", 502},  {"machine_gone", 502},
    {"upstream", 502},           {"diff_failed", 502},
    {"host_full", 503},          {"shutting_down", 503},
    {"no_memory", 503},          {"no_uid", 503},
    {"disk_full", 507},          {"archive_untrusted", 403},
    {"sandbox_hibernated", 409},
};

int api_status_of(const char *kind)
{
	for (size_t i = 0; kind && i < ARRAY_LEN(kinds); i++)
		if (strcmp(kinds[i].kind, kind) == 0)
			return kinds[i].status;
	return 500;
}

json_t *json_time(uint64_t ms)
{
	time_t s = (time_t)(ms / 1000);
	char date[32], text[40];
	struct tm tm;

	if (!gmtime_r(&s, &tm))
		return json_string("");
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(text, sizeof(text), "%s.%03uZ", date, (unsigned)(ms % 1000));
	return json_string(text);
}

/* ---- life ---- */

struct call *call_hold(struct call *c)
{
	c->refs++;
	return c;
}

void call_drop(struct call *c)
{
	if (--c->refs)
		return;
	for (size_t i = 0; i < API_PARAMS_MAX; i++)
		free(c->param[i]);
	json_decref(c->body);
	free(c);
}

void call_on_gone(struct call *c, void (*fn)(void *arg), void *arg)
{
	c->gone = fn;
	c->gone_arg = arg;
}

void call_leave(struct call *c)
{
	call_on_gone(c, NULL, NULL);
	call_on_room(c, NULL, NULL);
	call_drop(c);
}

static void unlink_endless(struct call *c)
{
	if (!c->prevp)
		return;
	*c->prevp = c->next;
	if (c->next)
		c->next->prevp = c->prevp;
	c->next = NULL;
	c->prevp = NULL;
}

void call_endless(struct call *c)
{
	struct call **head = &c->api->endless;

	if (c->prevp || !c->req)
		return;
	c->next = *head;
	if (c->next)
		c->next->prevp = &c->next;
	c->prevp = head;
	*head = c;
}

void api_drain(struct api *a)
{
	while (a->endless) {
		struct call *c = call_hold(a->endless);
		void (*gone)(void *) = c->gone;

		unlink_endless(c);
		c->gone = NULL;
		if (gone)
			gone(c->gone_arg);
		if (c->sse)
			call_sse_end(c);
		else
			call_fail(c, ESHUTDOWN, "shutting_down", "the server is about to end");
		call_drop(c);
	}
}

static void answer_free(struct call *c)
{
	json_out_free(take_ptr(c->answer));
	account_give(c->account, c->answer_held);
	c->answer_held = 0;
}

static void ended(void *arg, struct http_req *r, bool aborted)
{
	struct call *c = arg;
	void (*gone)(void *) = c->gone;

	(void)r;
	unlink_endless(c);
	c->req = NULL;
	c->sse = false;
	c->room = NULL;
	answer_free(c);
	loop_timer_clear(c->host->loop, &c->ping);
	c->gone = NULL;
	if (gone && (aborted || c->piped))
		gone(c->gone_arg);
	call_drop(c);
}

static bool id_char(char ch)
{
	return ch > ' ' && ch < 127 && ch != '"' && ch != '\\';
}

void call_fresh_id(char ret[REQUEST_ID_MAX + 1])
{
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = mono_ns();
	snprintf(ret, REQUEST_ID_MAX + 1, "%016" PRIx64, random);
}

/* The client's, when it is decent, else a fresh one. */
static void request_id(struct call *c)
{
	const char *sent = http_header(c->req, "X-Request-Id");
	size_t n = sent ? strlen(sent) : 0;

	for (size_t i = 0; i < n; i++)
		if (!id_char(sent[i]))
			n = 0;
	if (n >= 1 && n <= REQUEST_ID_MAX) {
		memcpy(c->request_id, sent, n);
		return;
	}
	call_fresh_id(c->request_id);
}

struct call *call_new(struct api *a, struct http_req *r)
{
	static const char text[] = "{\"error\":\"no memory\",\"code\":\"no_memory\"}";
	struct call *c = calloc(1, sizeof(*c));

	if (!c) {
		http_reply(r, 503, "application/json", text, sizeof(text) - 1);
		return NULL;
	}
	c->api = a;
	c->host = a->host;
	c->req = r;
	c->refs = 1; /* the request's, until ended() */
	request_id(c);
	http_set_data(r, c);
	http_on_end(r, ended, c);
	http_add_header(r, "X-Request-Id", c->request_id);
	return c;
}

/* ---- answers ---- */

static bool may_answer(const struct call *c)
{
	return c->req && !http_begun(c->req);
}

void call_text(struct call *c, int status, const char *type, const char *p, size_t n)
{
	if (may_answer(c))
		http_reply(c->req, status, type, p, n);
}

static char json_piece[JSON_PIECE]; /* loop thread only */

/* The next pieces of an answer that is longer than one: as many as the client takes now. */
static void answer_more(struct call *c)
{
	while (http_room(c->req)) {
		ssize_t n = json_out_next(c->answer, json_piece, sizeof(json_piece));

		if (n > 0) {
			http_send(c->req, json_piece, (size_t)n);
			continue;
		}
		answer_free(c);
		if (n < 0)
			http_cut(c->req);
		else
			http_finish(c->req);
		return;
	}
}

static void writable(void *arg, struct http_req *r);

/* n bytes of the answer stand in json_piece, and they are not all. */
static void answer_long(struct call *c, int status, struct json_out *w, ssize_t n, size_t held)
{
	c->answer = w;
	c->answer_held = held;
	account_add(c->account, held);
	http_on_writable(c->req, writable, c);
	http_begin(c->req, status, "application/json", -1);
	http_send(c->req, json_piece, (size_t)n);
	answer_more(c);
}

void call_json(struct call *c, int status, json_t *j)
{
	struct json_out *w;
	size_t held;
	ssize_t n;

	if (!may_answer(c)) {
		json_decref(j);
		return;
	}
	held = json_weight(j);
	w = json_out_new(j);
	n = w ? json_out_next(w, json_piece, sizeof(json_piece)) : -ENOMEM;
	if (n > (ssize_t)sizeof(json_piece) - JSON_OUT_MIN) {
		answer_long(c, status, w, n, held);
		return;
	}
	if (n < 0)
		call_fail(c, ENOMEM, "no_memory", "no memory for the answer");
	else
		http_reply(c->req, status, "application/json", json_piece, (size_t)n);
	json_out_free(w);
}

void call_empty(struct call *c, int status)
{
	if (may_answer(c))
		http_reply(c->req, status, NULL, NULL, 0);
}

/* Works without memory of its own: it tells that there was none. */
static void bare_error(struct call *c, int status, const char *kind)
{
	char text[160];
	int n =
	    snprintf(text, sizeof(text), "{\"error\":\"%s\",\"code\":\"%s\",\"request_id\":\"%s\"}",
	             kind, kind, c->request_id);

	http_reply(c->req, status, "application/json", text, (size_t)n);
}

void call_error(struct call *c, const struct err *e)
{
	call_error_as(c, api_status_of(e ? e->kind : NULL), e);
}

void call_error_as(struct call *c, int status, const struct err *e)
{
	const char *kind = e && e->kind ? e->kind : "internal";
	const char *words = e && *e->text ? e->text : "the server failed and cannot tell why";
	autofree char *text = NULL;
	json_t *j;

	if (!may_answer(c))
		return;
	if (status == 503) /* auth.c knows better for 429 */
		http_add_header(c->req, "Retry-After", "1");
	j = json_pack("{s:o, s:s, s:s}", "error", json_sentence(words), "code", kind, "request_id",
	              c->request_id);
	text = j ? json_dumps(j, JSON_COMPACT) : NULL;
	json_decref(j);
	if (text)
		http_reply(c->req, status, "application/json", text, strlen(text));
	else
		bare_error(c, status, kind);
}

void call_fail(struct call *c, int code, const char *kind, const char *fmt, ...)
{
	struct err e = {.code = code, .kind = kind};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e.text, sizeof(e.text), fmt, ap);
	va_end(ap);
	call_error(c, &e);
}

void call_nomem(struct call *c)
{
	struct err e;

	err_nomem(&e);
	call_error(c, &e);
}

/* ---- server-sent events ---- */

static void ping(void *arg)
{
	struct call *c = arg;

	if (!c->req || !c->sse)
		return;
	if (http_room(c->req))
		http_send(c->req, ": ping\n\n", 8);
	(void)loop_timer_set(c->host->loop, &c->ping, loop_now_ms(c->host->loop) + PING_MS);
}

void call_sse_begin(struct call *c)
{
	if (!may_answer(c))
		return;
	http_add_header(c->req, "Cache-Control", "no-cache");
	http_add_header(c->req, "X-Accel-Buffering", "no");
	http_begin(c->req, 200, "text/event-stream", -1);
	c->sse = true;
	c->ping.fn = ping;
	c->ping.arg = c;
	(void)loop_timer_set(c->host->loop, &c->ping, loop_now_ms(c->host->loop) + PING_MS);
}

void call_event(struct call *c, const char *name, json_t *data)
{
	autofree char *text = NULL, *whole = NULL;
	int n = -1;

	if (c->req && c->sse) {
		text = data ? json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		if (text) /* in one piece: each is a chunk of the reply */
			n = asprintf(&whole, "event: %s\ndata: %s\n\n", name, text);
		if (n < 0)
			whole = NULL;
		if (whole)
			http_send(c->req, whole, (size_t)n);
		else /* a stream with a hole would look whole: the client must see that it is not */
			http_cut(c->req);
	}
	json_decref(data);
}

void call_sse_end(struct call *c)
{
	if (!c->req || !c->sse)
		return;
	c->sse = false;
	loop_timer_clear(c->host->loop, &c->ping);
	http_finish(c->req);
}

bool call_room(struct call *c)
{
	return c->req && http_room(c->req) > 0;
}

static void writable(void *arg, struct http_req *r)
{
	struct call *c = arg;

	(void)r;
	call_hold(c);
	if (c->answer)
		answer_more(c);
	else if (c->room)
		c->room(c->room_arg);
	call_drop(c);
}

void call_on_room(struct call *c, void (*fn)(void *arg), void *arg)
{
	c->room = fn;
	c->room_arg = arg;
	if (c->req && fn)
		http_on_writable(c->req, writable, c);
}

/* ---- what was asked ---- */

char *call_query(struct call *c, const char *key)
{
	char *v = NULL;

	if (!c->req || url_query(http_query(c->req), key, &v) < 0)
		return NULL;
	return v;
}

bool call_query_int(struct call *c, const char *key, int64_t otherwise, int64_t min, int64_t max,
                    int64_t *ret)
{
	autofree char *v = call_query(c, key);
	char *end;
	int64_t n;

	if (!v || !*v) {
		*ret = otherwise;
		return true;
	}
	errno = 0;
	n = strtoll(v, &end, 10);
	if (errno || *end || n < min || n > max) {
		call_fail(c, EINVAL, "bad_request",
		          "query parameter '%s' must be a whole number from %" PRId64
		          " to %" PRId64,
		          key, min, max);
		return false;
	}
	*ret = n;
	return true;
}

bool call_query_flag(struct call *c, const char *key)
{
	autofree char *v = call_query(c, key);

	return v &&
	       (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0);
}

/* null is as good as absent: some clients send all fields they know. */
static json_t *field(struct call *c, const char *key)
{
	json_t *j = json_object_get(c->body, key);

	return json_is_null(j) ? NULL : j;
}

bool call_str(struct call *c, const char *key, const char *otherwise, const char **ret)
{
	json_t *j = field(c, key);

	if (j && !json_is_string(j)) {
		call_fail(c, EINVAL, "bad_request", "field '%s' must be a string", key);
		return false;
	}
	*ret = j ? json_string_value(j) : otherwise;
	return true;
}

bool call_int(struct call *c, const char *key, int64_t otherwise, int64_t min, int64_t max,
              int64_t *ret)
{
	json_t *j = field(c, key);
	double real = json_is_real(j) ? json_real_value(j) : 0.5;
	int64_t n = otherwise;

	if (json_is_integer(j)) {
		n = json_integer_value(j);
	} else if (real >= -9e15 && real <= 9e15 && (double)(int64_t)real == real) {
		n = (int64_t)real; /* JavaScript has one kind of number: 60.0 is 60 */
	} else if (j) {
		call_fail(c, EINVAL, "bad_request", "field '%s' must be a whole number", key);
		return false;
	}
	if (j && (n < min || n > max)) {
		call_fail(c, EINVAL, "bad_request",
		          "field '%s' must be from %" PRId64 " to %" PRId64, key, min, max);
		return false;
	}
	*ret = n;
	return true;
}

bool call_bool(struct call *c, const char *key, bool otherwise, bool *ret)
{
	json_t *j = field(c, key);

	if (j && !json_is_boolean(j)) {
		call_fail(c, EINVAL, "bad_request", "field '%s' must be true or false", key);
		return false;
	}
	*ret = j ? json_is_true(j) : otherwise;
	return true;
}
