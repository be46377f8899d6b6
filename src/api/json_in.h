/*
 * api/json_in.h - JSON that a stranger wrote
 * A parsed value costs us up to 200 bytes and a part of a microsecond on the loop, and takes its
 * writer two characters: so they are counted before anything is parsed. Pure.
 */
#pragma once
#include <jansson.h>
#include <stddef.h>

enum {
	JSON_VALUES_MAX = 1 << 17, /* a figure with all the points it may have has half of them */
};

/* At most as many values as this are in a text of JSON. Linear, and quick within strings. */
size_t json_values(const char *p, size_t n);

/* As json_loadb(), but NULL for a text with more than JSON_VALUES_MAX values. why may be NULL. */
json_t *json_in(const char *p, size_t n, json_error_t *why);
