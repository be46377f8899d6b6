/*
 * api/json_out.h - JSON that is written as its reader takes it
 * A value becomes text piece by piece, so an answer of any size needs one small buffer. The bytes
 * are those of json_dumps() with JSON_COMPACT and JSON_ENCODE_ANY. Loop thread only.
 */
#pragma once
#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

enum {
	JSON_OUT_MIN = 128, /* a piece has room for any number, and for the signs around it */
};

struct json_out;

/* Takes the reference, also when it fails. NULL: no memory, or j is NULL. */
struct json_out *json_out_new(json_t *j);
/* The next bytes, up to n, which is at least JSON_OUT_MIN. 0: that was all. -ENOMEM. */
ssize_t json_out_next(struct json_out *w, char *p, size_t n);
void json_out_free(struct json_out *w); /* NULL is fine */

/* About how many bytes of memory a value takes. */
size_t json_weight(const json_t *j);
