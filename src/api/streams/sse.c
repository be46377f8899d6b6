#include "api/streams/sse.h"

#include <openssl/evp.h>
#include <string.h>

#include "api/api.h"
#include "api/streams/credit.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/utf8.h"
#include "wire/guest.h"

enum { EVENT_BYTES = WIRE_PAYLOAD_MAX };

static const char *const names[2] = {"stdout", "stderr"};

int sse_encoding(const char *name, bool *base64, struct err *e)
{
	if (name && strcmp(name, "base64") != 0 && strcmp(name, "text") != 0)
		return err_set(e, EINVAL, "bad_request", "encoding must be text or base64");
	*base64 = name && *name == 'b';
	return 0;
}

json_t *json_base64(const void *p, size_t n)
{
	autofree char *text = malloc((n + 2) / 3 * 4 + 1);

	if (!text)
		return NULL;
	EVP_EncodeBlock((unsigned char *)text, p, (int)n);
	return json_string_nocheck(text);
}

json_t *json_text(const void *p, size_t n)
{
	autofree char *text = NULL;
	struct utf8 u = {0};
	size_t len;

	if (utf8_is_good(p, n))
		return json_stringn_nocheck(p, n);
	text = malloc(UTF8_ROOM(n) + UTF8_ROOM(0));
	if (!text)
		return NULL;
	len = utf8_add(&u, p, n, text);
	len += utf8_end(&u, text + len);
	return json_stringn_nocheck(text, len);
}

json_t *json_sentence(const char *text)
{
	return json_text(text, strlen(text));
}

static void sse_room(void *arg);

void sse_init(struct sse *s, struct call *c, bool base64,
              void (*give)(void *arg, int chan, size_t n), void *arg)
{
	*s =
	    (struct sse){.c = call_hold(c), .base64 = base64, .credit = {.give = give, .arg = arg}};
	call_on_room(c, sse_room, s);
}

void sse_fini(struct sse *s)
{
	call_leave(s->c);
	for (int k = 0; k < 2; k++)
		free(s->waits[k].p);
}

void sse_begin(struct sse *s)
{
	if (!s->begun)
		call_sse_begin(s->c);
	s->begun = true;
}

static void sse_put(struct sse *s, int chan, json_t *text, const char *key, const uint64_t *offset)
{
	json_t *j = json_object();

	json_object_set_new(j, key, text);
	if (offset)
		json_object_set_new(j, "offset", json_integer((json_int_t)*offset));
	call_event(s->c, names[chan], j);
}

static void sse_tell(struct sse *s, int chan, const void *p, size_t n, const uint64_t *offset)
{
	if (s->base64) {
		sse_put(s, chan, json_base64(p, n), "chunk_b64", offset);
	} else {
		static char text[UTF8_ROOM(EVENT_BYTES)]; /* loop thread only */
		uint64_t at = offset ? *offset - s->text[chan].n : 0;
		size_t len = utf8_add(&s->text[chan], p, n, text);

		if (len)
			sse_put(s, chan, json_stringn_nocheck(text, len), "chunk",
			        offset ? &at : NULL);
	}
	credit_owe(&s->credit, chan, n, call_room(s->c));
}

static void tell_waiting(struct sse *s, int k)
{
	size_t n = s->waits[k].n;

	s->waits[k].n = 0;
	if (n)
		sse_tell(s, k, s->waits[k].p, n, s->waits[k].has_at ? &s->waits[k].at : NULL);
}

void sse_catch_up(struct sse *s)
{
	for (int k = 0; k < 2; k++)
		tell_waiting(s, k);
}

static void sse_room(void *arg)
{
	struct sse *s = arg;

	for (int k = 0; k < 2 && call_room(s->c); k++)
		tell_waiting(s, k);
	if (call_room(s->c))
		credit_pay(&s->credit);
}

/* No more than one event has: its rest becomes another one. False: no memory. */
static bool wait_for_room(struct sse *s, int k, const void *p, size_t n, const uint64_t *offset)
{
	if (s->waits[k].n + n > EVENT_BYTES)
		tell_waiting(s, k);
	if (!s->waits[k].p && !(s->waits[k].p = malloc(EVENT_BYTES)))
		return false;
	if (!s->waits[k].n) {
		s->waits[k].has_at = offset;
		s->waits[k].at = offset ? *offset : 0;
	}
	memcpy(s->waits[k].p + s->waits[k].n, p, n);
	s->waits[k].n += n;
	return true;
}

void sse_output(struct sse *s, int chan, const void *p, size_t n, const uint64_t *offset)
{
	if ((!s->waits[chan].n && call_room(s->c)) || !wait_for_room(s, chan, p, n, offset))
		sse_tell(s, chan, p, n, offset);
}

static void sse_flush(struct sse *s)
{
	char text[UTF8_ROOM(0)];

	sse_catch_up(s);
	for (int k = 0; k < 2; k++) {
		size_t n = utf8_end(&s->text[k], text);

		if (n)
			sse_put(s, k, json_stringn_nocheck(text, n), "chunk", NULL);
	}
}

void sse_event(struct sse *s, const char *name, json_t *data)
{
	sse_flush(s);
	call_event(s->c, name, data);
}

void sse_finish(struct sse *s, const char *name, json_t *data)
{
	sse_event(s, name, data);
	call_sse_end(s->c);
}

void sse_fail(struct sse *s, const struct err *e)
{
	if (!s->begun) {
		call_error(s->c, e);
		return;
	}
	sse_finish(s, "error",
	           json_pack("{s:o, s:s}", "error", json_sentence(e->text), "code", e->kind));
}
