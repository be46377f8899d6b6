#include "api/json_out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

enum {
	VALUE_BYTES = 64, /* what a value costs beside its text */
	ESCAPE_MAX = 6,   /* \u001f */
	TOKEN_MAX = 100,  /* a number, or two signs and a quote */
	LEVELS_AT_ONCE = 16,
};

_Static_assert((int)TOKEN_MAX <= (int)JSON_OUT_MIN, "any step fits into the smallest piece");

/* An array or an object that is being written. */
struct level {
	json_t *v;
	void *at;    /* of an object: the next member */
	size_t i;    /* how many have begun */
	bool valued; /* of an object: the member's name is written, its value comes */
};

struct json_out {
	json_t *root;
	bool begun;
	const char *text; /* a string of which a part is written; NULL: none */
	size_t text_n;
	struct level *levels;
	size_t n, cap;
};

struct json_out *json_out_new(json_t *j)
{
	struct json_out *w = j ? calloc(1, sizeof(*w)) : NULL;

	if (w)
		w->root = j;
	else
		json_decref(j);
	return w;
}

void json_out_free(struct json_out *w)
{
	if (!w)
		return;
	json_decref(w->root);
	free(w->levels);
	free(w);
}

static size_t put(char *p, const char *text)
{
	size_t n;

	for (n = 0; text[n]; n++)
		p[n] = text[n];
	return n;
}

/* The sign that stands for this one behind a backslash; 0: it has none. */
static char short_escape(char ch)
{
	static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
	const char *at = ch ? strchr(from, ch) : NULL;

	return at ? to[at - from] : 0;
}

static bool plain(char ch)
{
	return (unsigned char)ch >= ' ' && ch != '"' && ch != '\\';
}

/* As much of the string as fits, and the quote behind it. */
static size_t put_text(struct json_out *w, char *p, size_t n)
{
	size_t at = 0;

	while (w->text_n && at + ESCAPE_MAX <= n) {
		size_t run = 0, most = MIN(w->text_n, n - at);
		char sign;

		while (run < most && plain(w->text[run]))
			run++;
		memcpy(p + at, w->text, run);
		at += run;
		w->text += run;
		w->text_n -= run;
		if (!w->text_n || plain(*w->text) || at + ESCAPE_MAX > n)
			continue;
		sign = short_escape(*w->text);
		p[at++] = '\\';
		if (sign) {
			p[at++] = sign;
		} else {
			static const char hex[] = "0123456789ABCDEF";

			p[at] = 'u';
			p[at + 1] = p[at + 2] = '0';
			p[at + 3] = hex[(unsigned char)*w->text >> 4];
			p[at + 4] = hex[*w->text & 15];
			at += 5;
		}
		w->text++;
		w->text_n--;
	}
	if (!w->text_n && at < n) {
		p[at++] = '"';
		w->text = NULL;
	}
	return at;
}

static size_t begin_text(struct json_out *w, const char *text, size_t n, char *p)
{
	w->text = text;
	w->text_n = n;
	return put(p, "\"");
}

/* A value begins: a scalar is written, a string or a list is opened. */
static ssize_t enter(struct json_out *w, json_t *v, char *p)
{
	if (json_is_string(v))
		return (ssize_t)begin_text(w, json_string_value(v), json_string_length(v), p);
	if (!json_is_array(v) && !json_is_object(v))
		return (ssize_t)json_dumpb(v, p, TOKEN_MAX - 2, JSON_ENCODE_ANY);
	if (w->n == w->cap) {
		size_t cap = w->cap + LEVELS_AT_ONCE;
		struct level *more = realloc(w->levels, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		w->levels = more;
		w->cap = cap;
	}
	w->levels[w->n++] = (struct level){.v = v, .at = json_object_iter(v)};
	return (ssize_t)put(p, json_is_array(v) ? "[" : "{");
}

/* One step in the innermost list: a member's name, a value, or its end. */
static ssize_t go_on(struct json_out *w, char *p)
{
	struct level *l = &w->levels[w->n - 1];
	bool array = json_is_array(l->v);
	ssize_t r;
	size_t n;

	if (array ? l->i == json_array_size(l->v) : !l->at) {
		w->n--;
		return (ssize_t)put(p, array ? "]" : "}");
	}
	if (!array && l->valued) {
		json_t *v = json_object_iter_value(l->at);

		l->at = json_object_iter_next(l->v, l->at);
		l->valued = false;
		n = put(p, ":");
		r = enter(w, v, p + n);
		return r < 0 ? r : r + (ssize_t)n;
	}
	n = l->i++ ? put(p, ",") : 0;
	if (!array) {
		const char *name = json_object_iter_key(l->at);

		l->valued = true;
		return (ssize_t)(n + begin_text(w, name, strlen(name), p + n));
	}
	r = enter(w, json_array_get(l->v, l->i - 1), p + n);
	return r < 0 ? r : r + (ssize_t)n;
}

ssize_t json_out_next(struct json_out *w, char *p, size_t n)
{
	size_t at = 0;

	while (n - at >= TOKEN_MAX) {
		ssize_t r;

		if (w->text) {
			at += put_text(w, p + at, n - at);
			continue;
		}
		if (w->begun && !w->n)
			break;
		r = w->begun ? go_on(w, p + at) : enter(w, w->root, p + at);
		w->begun = true;
		if (r < 0)
			return r;
		at += (size_t)r;
	}
	return (ssize_t)at;
}

size_t json_weight(const json_t *j)
{
	size_t n = VALUE_BYTES, i;
	const char *name;
	json_t *v;

	if (json_is_string(j))
		return n + json_string_length(j);
	json_array_foreach(j, i, v)
		n += json_weight(v);
	json_object_foreach((json_t *)j, name, v)
		n += strlen(name) + json_weight(v);
	return n;
}
