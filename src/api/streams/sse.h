/*
 * api/streams/sse.h - output of a program as events, at the pace of the client that reads them
 * Bytes are owed to their producer (credit.h) until the client's queue has room. An event is fifty
 * times as long as a single byte that it tells of. So what comes while there is no room waits as
 * bytes, and becomes one event, however many frames it came in.
 */
#pragma once
#include "api/api.h"
#include "api/streams/credit.h"
#include "base/utf8.h"

struct sse {
	struct call *c; /* held */
	bool begun, base64;
	struct {
		uint8_t *p;
		size_t n;
		uint64_t at; /* the offset of the first byte, */
		bool has_at; /* if that is told */
	} waits[2];          /* for room */
	struct utf8 text[2];
	struct credit credit;
};

/* "base64", "text" or NULL. bad_request. */
int sse_encoding(const char *name, bool *base64, struct err *e);

/* Holds c. give and arg as in struct credit. */
void sse_init(struct sse *s, struct call *c, bool base64,
              void (*give)(void *arg, int chan, size_t n), void *arg);
/* Also takes back c->gone. */
void sse_fini(struct sse *s);

void sse_begin(struct sse *s); /* once; more often is fine */
/* An event stdout or stderr. offset: where these bytes begin, NULL: not told. */
void sse_output(struct sse *s, int chan, const void *p, size_t n, const uint64_t *offset);
/* What waits for room is told now: s->text is the beginning of a character that is not whole. */
void sse_catch_up(struct sse *s);
/* An event that is not output. All output is told before, also half a character. */
void sse_event(struct sse *s, const char *name, json_t *data);
/* The last event. */
void sse_finish(struct sse *s, const char *name, json_t *data);
/* An ordinary error, or the event "error" when the stream has begun. */
void sse_fail(struct sse *s, const struct err *e);

/* n bytes as a JSON string in base64. NULL: no memory. */
json_t *json_base64(const void *p, size_t n);
/* Bytes of a guest as a JSON string, whatever they are. NULL: no memory. */
json_t *json_text(const void *p, size_t n);
/* The same for an error's sentence, which may name such bytes and may be cut inside a character. */
json_t *json_sentence(const char *text);
