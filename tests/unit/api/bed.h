/*
 * api/bed.h - the API as its clients see it: a real HTTP server, a real host, fake machines
 * The host is fake/bed.h's. Server and clients are in one thread and one loop: a helper that waits
 * for an answer runs that loop, and fails the test aloud after BED_PATIENCE_MS. After each test no
 * call, no connection, no command and no sandbox may be left.
 *
 * In JSON, ' stands for ", in what is sent and in what is expected. Requests are "METHOD /path",
 * with arguments as of printf(). A test that asks twice at once uses struct client.
 */
#pragma once
#include <jansson.h>

#include "api/api.h"
#include "fake/bed.h"
#include "http/server.h"

struct client;

struct api_bed {
	struct bed on;            /* what the API runs on */
	struct api_config config; /* of bed_api_open() */
	struct http_config http;  /* likewise */
	struct api *api;          /* NULL: pandad is not there */
	struct http_server *server;
	int listener;
	char admin[64], mine[64], other[64]; /* tokens: an admin's, of tenant "t", of tenant "u" */

	/* Of the next request only. */
	const char *token;  /* NULL: mine; "": none */
	char headers[1024]; /* more of its head, each line with its CR LF */

	/* The newest answer; good until the next request. */
	int status;
	char *head, *body; /* NUL behind them */
	size_t len;
	json_t *json; /* NULL: the body is none */

	struct client *clients;
};

extern struct api_bed bed;

int api_setup(void **state);
int api_teardown(void **state);
#define api_test(f) cmocka_unit_test_setup_teardown(f, api_setup, api_teardown)

/* For tests that change the config: bed_make() has been called on bed.on. */
void bed_api_prepare(void);
void bed_api_open(void);
/* pandad ends; its machines live, and bed_api_open() is the next one. */
void bed_api_close(void);

/* All clocks of this process go on by so much: timers that are due then run. */
void bed_later(uint64_t ms);

/* ---- one request, one answer ---- */

/* As this token, or with this line in its head (without CR LF): the next request. */
void as(const char *token);
void with(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Its status. json NULL: no body. */
int ask(const char *json, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same with any bytes. */
int ask_bytes(const void *p, size_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The answer must be so, or the test fails and shows what came. */
#define good(code, json, ...)                              \
	do {                                               \
		ask(json, __VA_ARGS__);                    \
		bed_status_is(__FILE__, __LINE__, (code)); \
	} while (0)
/* An error of this status and code, as every one looks; part stands in its sentence. */
#define bad(code, kind, part, json, ...)                                 \
	do {                                                             \
		ask(json, __VA_ARGS__);                                  \
		bed_refused(__FILE__, __LINE__, (code), (kind), (part)); \
	} while (0)
#define status_is(code)           bed_status_is(__FILE__, __LINE__, (code))
#define refused(code, kind, part) bed_refused(__FILE__, __LINE__, (code), (kind), (part))
/* The answer's JSON has all that this has: objects may have more keys, lists may not be longer. */
#define has(...)         bed_has(__FILE__, __LINE__, bed.json, __VA_ARGS__)
#define json_has(j, ...) bed_has(__FILE__, __LINE__, (j), __VA_ARGS__)
#define body_is(text)    bed_body_is(__FILE__, __LINE__, (text))

void bed_status_is(const char *file, int line, int status);
void bed_refused(const char *file, int line, int status, const char *kind, const char *part);
void bed_has(const char *file, int line, const json_t *j, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void bed_body_is(const char *file, int line, const char *text);

/* Of the newest answer: a line of its head ("" when there is none), a text or number of its JSON
 * ("a.b" is b of a). A text must be there. */
const char *header(const char *name);
const char *text_of(const char *path);
json_int_t number_of(const char *path);

/* ---- what tests need often ---- */

/* A sandbox; its id is good until the test ends. json NULL: a plain one. */
const char *sandbox_made(const char *json);
struct sandbox *sandbox_of(const char *id);
/* A file in it, past the API. */
void put_file(const char *id, const char *path, const char *text);
/* How many commands its guest has, detached ones too. */
size_t commands_of(const char *id);

/* ---- connections ---- */

struct client {
	struct loop_io io;
	int fd;
	char *in;                   /* all that came, undone of its chunks behind the head */
	size_t len, head, raw, cap; /* head: bytes of it, 0: not whole; raw: where chunks begin */
	size_t at;                  /* events and messages before this have been looked at */
	bool chunked, over, closed; /* over: the body is whole; closed: by the server */
	bool deaf;                  /* it does not read */
	int status;
	char *name; /* of the newest event */
	json_t *data;
	char *message; /* newest one of a WebSocket */
	size_t message_len;
	struct client *next;
};

/* A connection; client_leave() by the test, or at its end. */
struct client *client_new(void);
void client_send(struct client *c, const void *p, size_t n);
void client_leave(struct client *c);
/* Sends a request like ask(), and waits for nothing. */
struct client *begin(const char *json, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, and the head of its answer is here and has this status. */
struct client *stream(int status, const char *json, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void client_head(struct client *c);
/* Makes c's answer, which must become whole, the newest one. */
void client_answer(struct client *c);
/* So many bytes of its body are there. */
void client_wait(struct client *c, size_t n);
const char *client_body(const struct client *c);
size_t client_body_len(const struct client *c);
/* The server's side has ended. */
void client_end(struct client *c);
void client_deaf(struct client *c, bool deaf);

/* The next event, which must be called so; its data. Comments are no events. */
json_t *event(struct client *c, const char *name);
/* All of one field of the events of this name up to one of another; caller frees. */
char *events_text(struct client *c, const char *name, const char *field);
/* The name of the next event; "" when the stream has ended. c->data is its data. */
const char *event_any(struct client *c);

/* A WebSocket that was accepted. */
struct client *websocket(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
enum { WS_TEXT = 1, WS_BINARY = 2, WS_CLOSE = 8, WS_PING = 9, WS_PONG = 10 };
void ws_say(struct client *c, int opcode, const void *p, size_t n);
void ws_say_json(struct client *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The next message; its opcode. c->message has its bytes and a NUL. */
int ws_hear(struct client *c);
/* It must be a text, and JSON with this. c->data is all of it. */
void ws_hears_json(const char *file, int line, struct client *c, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define ws_hears(c, ...) ws_hears_json(__FILE__, __LINE__, (c), __VA_ARGS__)
