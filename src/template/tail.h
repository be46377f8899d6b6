/*
 * template/tail.h - the end of what a command said, for an error
 */
#pragma once
#include <ctype.h>
#include <string.h>

#include "base/macro.h"

struct tail {
	char text[200];
	size_t n;
};

static inline void tail_keep(struct tail *t, const void *p, size_t n)
{
	size_t take = MIN(n, sizeof(t->text) - 1);

	if (t->n + take > sizeof(t->text) - 1) {
		size_t drop = t->n + take - (sizeof(t->text) - 1);

		memmove(t->text, t->text + drop, t->n - drop);
		t->n -= drop;
	}
	memcpy(t->text + t->n, (const char *)p + n - take, take);
	t->n += take;
	t->text[t->n] = 0;
}

/* Fit to print, without the white space around it. */
static inline const char *tail_text(struct tail *t)
{
	char *p = t->text;

	while (t->n && isspace((unsigned char)t->text[t->n - 1]))
		t->text[--t->n] = 0;
	for (char *c = p; *c; c++)
		if (!isprint((unsigned char)*c))
			*c = ' ';
	return p + strspn(p, " ");
}

/* Its last line only. */
static inline const char *tail_line(struct tail *t)
{
	char *nl;

	while (t->n && isspace((unsigned char)t->text[t->n - 1]))
		t->text[--t->n] = 0;
	nl = strrchr(t->text, '\n');
	if (nl) {
		t->n -= (size_t)(nl + 1 - t->text);
		memmove(t->text, nl + 1, t->n + 1);
	}
	return tail_text(t);
}
