/*
 * template/dockerfile_expand.c - what a word of a Dockerfile means: its quotes and variables
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"
#include "template/dockerfile.h"
#include "template/dockerfile_internal.h"

enum {
	EXPAND_DEPTH = 8, /* ${A:-${B:-...}} */
};

struct expand {
	char escape;
	bool quotes;
	unsigned line;
	const char *(*get)(void *arg, const char *name);
	void *arg;
	char *out;
	size_t n;
	struct err *e;
};

static int put(struct expand *x, const char *p, size_t n)
{
	if (x->n + n > DOCKERFILE_EXPANDED_MAX)
		return docker_bad_at(x->e, x->line,
		                     "with its variables, a word is longer than %d KiB",
		                     DOCKERFILE_EXPANDED_MAX >> 10);
	memcpy(x->out + x->n, p, n);
	x->n += n;
	return 0;
}

static int expand(struct expand *x, const char **at, const char *stop, unsigned depth);

/* Behind "${". */
static int braces(struct expand *x, const char **at, unsigned depth)
{
	char name[DOCKER_NAME_MAX];
	const char *p = *at, *value;
	size_t n = 0, before;
	bool colon, set;
	char op;
	int r;

	while (isalnum((unsigned char)p[n]) || p[n] == '_')
		n++;
	if (n == 0 || n >= sizeof(name))
		return docker_bad_at(x->e, x->line, "'${%.20s' names no variable", p);
	snprintf(name, sizeof(name), "%.*s", (int)n, p);
	p += n;
	value = x->get(x->arg, name);
	if (*p == '}') {
		*at = p + 1;
		return value ? put(x, value, strlen(value)) : 0;
	}
	colon = *p == ':';
	p += colon;
	op = *p++;
	if (op != '-' && op != '+' && op != '?')
		return docker_bad_at(x->e, x->line,
		                     "'${%.20s...': only :-, :+ and :? are known here", name);
	if (depth == EXPAND_DEPTH)
		return docker_bad_at(x->e, x->line, "variables inside variables, %d deep",
		                     EXPAND_DEPTH);
	set = value && (!colon || *value);
	before = x->n;
	r = expand(x, &p, "}", depth + 1);
	if (r < 0)
		return r;
	if (*p != '}')
		return docker_bad_at(x->e, x->line, "'${%.20s' has no '}'", name);
	*at = p + 1;
	if (op == '?' && !set)
		return docker_bad_at(x->e, x->line, "%.60s is not set: %.*s", name,
		                     (int)MIN(x->n - before, 80u), x->out + before);
	if (op == '+' ? set : !set)
		return 0; /* the word it is */
	x->n = before;
	return op == '+' ? 0 : put(x, value, strlen(value));
}

static int dollar(struct expand *x, const char **at, unsigned depth)
{
	char name[DOCKER_NAME_MAX];
	const char *p = *at, *value; /* behind '$' */
	size_t n = 0;

	if (*p == '{') {
		*at = p + 1;
		return braces(x, at, depth);
	}
	if (isalpha((unsigned char)*p) || *p == '_')
		while ((isalnum((unsigned char)p[n]) || p[n] == '_') && n < sizeof(name) - 1)
			n++;
	if (n == 0)
		return put(x, "$", 1);
	snprintf(name, sizeof(name), "%.*s", (int)n, p);
	*at = p + n;
	value = x->get(x->arg, name);
	return value ? put(x, value, strlen(value)) : 0;
}

/* Until the end, or a character of stop that is not quoted. */
static int expand(struct expand *x, const char **at, const char *stop, unsigned depth)
{
	char quote = 0;
	int r = 0;

	while (r == 0 && **at) {
		char c = **at;

		if (!quote && strchr(stop, c))
			break;
		(*at)++;
		if (quote == '\'') {
			if (c == '\'')
				quote = 0;
			else
				r = put(x, &c, 1);
		} else if (c == x->escape && **at &&
		           (x->quotes || **at == '$' || **at == x->escape)) {
			/* in "..." it counts before $, " and itself only */
			if (quote && !strchr("$\"", **at) && **at != x->escape)
				r = put(x, &c, 1);
			if (r == 0)
				r = put(x, (*at)++, 1);
		} else if (c == '$') {
			r = dollar(x, at, depth);
		} else if (x->quotes && quote && c == quote) {
			quote = 0;
		} else if (x->quotes && !quote && (c == '"' || c == '\'')) {
			quote = c;
		} else {
			r = put(x, &c, 1);
		}
	}
	if (r == 0 && quote)
		return docker_bad_at(x->e, x->line, "a quote has no end");
	return r;
}

int dockerfile_expand(const char *word, char escape, bool quotes, unsigned line,
                      const char *(*get)(void *arg, const char *name), void *arg, char **ret,
                      struct err *e)
{
	struct expand x = {.escape = escape,
	                   .quotes = quotes,
	                   .line = line,
	                   .get = get,
	                   .arg = arg,
	                   .out = malloc(DOCKERFILE_EXPANDED_MAX + 1),
	                   .e = e};
	int r = x.out ? expand(&x, &word, "", 0) : docker_no_memory(e);
	char *fit;

	if (r < 0) {
		free(x.out);
		return r;
	}
	x.out[x.n] = 0;
	fit = realloc(x.out, x.n + 1);
	*ret = fit ? fit : x.out;
	return 0;
}
