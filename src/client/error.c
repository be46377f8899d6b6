/*
 * client/error.c - what went wrong, for people and for programs
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/client_internal.h"
#include "client/panda.h"

int perr_set(struct panda_error *e, int errnum, const char *code, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return -errnum;
	e->status = 0;
	e->request_id[0] = 0;
	snprintf(e->code, sizeof(e->code), "%s", code);
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	return -errnum;
}

int perr_nomem(struct panda_error *e)
{
	return perr_set(e, ENOMEM, "no_memory", "out of memory");
}

static int errno_of(int status)
{
	switch (status) {
	case 401:
	case 403:
		return EACCES;
	case 404:
		return ENOENT;
	case 409:
		return EEXIST;
	case 413:
		return EFBIG;
	case 429:
	case 503:
		return EAGAIN;
	case 507:
		return ENOSPC;
	}
	return status >= 500 ? EIO : EINVAL;
}

/* Servers and proxies also send plain text or HTML: one line of it is enough. */
static void text_of(struct panda_error *e, int status, const char *body, size_t n)
{
	size_t len = strnlen(body ? body : "", n), out = 0;

	for (size_t i = 0; i < len && out + 1 < sizeof(e->text) && out < 200; i++) {
		unsigned char c = (unsigned char)body[i];

		if (c < 0x20 || c == 0x7f) {
			if (out && e->text[out - 1] != ' ')
				e->text[out++] = ' ';
			continue;
		}
		e->text[out++] = (char)c;
	}
	e->text[out] = 0;
	if (!out)
		snprintf(e->text, sizeof(e->text), "the server answered %d without a word", status);
}

int perr_reply(struct panda_error *e, int status, const char *body, size_t n)
{
	static const char *const keys[] = {"error", "message", "detail"};
	const char *text = NULL, *code, *id;
	json_t *j;

	if (!e)
		return -errno_of(status);
	j = body ? json_loadb(body, n, 0, NULL) : NULL;
	for (size_t i = 0; i < 3 && !(text && *text); i++)
		text = json_string_value(json_object_get(j, keys[i]));
	code = json_string_value(json_object_get(j, "code"));
	id = json_string_value(json_object_get(j, "request_id"));
	e->status = status;
	snprintf(e->code, sizeof(e->code), "%s", code ? code : status == 404 ? "not_found" : "");
	snprintf(e->request_id, sizeof(e->request_id), "%s", id ? id : "");
	if (text && *text)
		snprintf(e->text, sizeof(e->text), "%s", text);
	else
		text_of(e, status, body, n);
	json_decref(j);
	return -errno_of(status);
}
