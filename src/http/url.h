/*
 * http/url.h - paths, queries and forms as clients send them
 * Pure functions: bytes in, text out. Nothing decodes to a NUL byte: that is -EBADMSG.
 */
#pragma once
#include <stddef.h>

/* Percent-decoding of n bytes (plus: '+' is a space, as in queries). -EBADMSG: bad triplet, NUL or
 * no UTF-8. Caller frees *ret. */
int url_decode(const char *p, size_t n, int plus, char **ret);

/* The value of a key in a raw query, decoded. -ENOENT when it is not there. Caller frees. */
int url_query(const char *query, const char *key, char **ret);

/* What must not be in a path or query value is written as %XX; '/' stays. Caller frees *ret. */
int url_encode(const char *p, char **ret);
