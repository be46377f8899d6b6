/*
 * template/dockerfile_read.c - a Dockerfile as lines, words and heredocs
 */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "template/dockerfile.h"
#include "template/dockerfile_internal.h"

enum {
	HEREDOCS_MAX = 16, /* of one instruction */
};

struct docker_chunk {
	struct docker_chunk *next;
};

/* Zeroed; lives as long as d. */
void *docker_keep(struct dockerfile *d, size_t n)
{
	struct docker_chunk *c = calloc(1, sizeof(*c) + n + 1);

	if (!c)
		return NULL;
	c->next = d->chunks;
	d->chunks = c;
	return c + 1;
}

char *docker_keep_text(struct dockerfile *d, const char *p, size_t n)
{
	char *s = docker_keep(d, n);

	return s ? memcpy(s, p, n) : NULL;
}

void dockerfile_free(struct dockerfile *d)
{
	while (d && d->chunks) {
		struct docker_chunk *c = d->chunks;

		d->chunks = c->next;
		free(c);
	}
	free(d);
}

void dockerfile_freep(struct dockerfile **d)
{
	dockerfile_free(*d);
}

/* --- lines ------------------------------------------------------------------------------------ */

int docker_bad_at(struct err *e, unsigned line, const char *fmt, ...)
{
	char why[180];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	for (char *c = why; *c; c++)
		if (!isprint((unsigned char)*c))
			*c = '?';
	return err_set(e, EINVAL, "bad_request", "Dockerfile:%u: %s", line, why);
}

int docker_no_memory(struct err *e)
{
	return err_nomem(e);
}

/* The next physical line without its end; false when there is none. */
static bool next_line(struct dockerfile_reader *r, const char **p, size_t *n)
{
	const char *nl;

	if (r->p >= r->end)
		return false;
	nl = memchr(r->p, '\n', (size_t)(r->end - r->p));
	*p = r->p;
	*n = (size_t)((nl ? nl : r->end) - r->p);
	r->p = nl ? nl + 1 : r->end;
	r->line++;
	if (*n && (*p)[*n - 1] == '\r')
		(*n)--;
	return true;
}

static void trim(const char **p, size_t *n)
{
	while (*n && isspace((unsigned char)**p)) {
		(*p)++;
		(*n)--;
	}
	while (*n && isspace((unsigned char)(*p)[*n - 1]))
		(*n)--;
}

/* The '=' of "# name = value"; NULL: it is a comment. */
static const char *directive(const char *p, size_t n)
{
	size_t i = 1;

	while (i < n && isspace((unsigned char)p[i]))
		i++;
	while (i < n && isalnum((unsigned char)p[i]))
		i++;
	while (i < n && isspace((unsigned char)p[i]))
		i++;
	return i < n && p[i] == '=' ? p + i : NULL;
}

/* "# escape=`" and the like, before anything else. */
int docker_directives(struct dockerfile_reader *r)
{
	for (;;) {
		const char *at = r->p, *p;
		unsigned line = r->line;
		const char *eq;
		size_t n;

		if (!next_line(r, &p, &n))
			return 0;
		trim(&p, &n);
		eq = n && *p == '#' ? directive(p, n) : NULL;
		if (!eq) {
			r->p = at;
			r->line = line;
			return 0;
		}
		p++;
		n--;
		trim(&p, &n);
		if (strncasecmp(p, "escape", 6) != 0 || isalnum((unsigned char)p[6]))
			continue;
		n -= (size_t)(eq + 1 - p);
		p = eq + 1;
		trim(&p, &n);
		if (n != 1 || (*p != '\\' && *p != '`'))
			return docker_bad_at(r->e, r->line, "the escape directive takes \\ or `");
		r->d->escape = *p;
	}
}

/* Puts one instruction together: 1, or 0 at the end. */
int docker_next(struct dockerfile_reader *r)
{
	const char *p;
	size_t n;
	bool more = true, any = false;

	r->n = 0;
	while (more && next_line(r, &p, &n)) {
		const char *q = p;
		size_t k = n;

		trim(&q, &k);
		if (!k || *q == '#') /* also in the middle of one */
			continue;
		if (!any)
			r->begun = r->line;
		any = true;
		/* one at the end, not two: that is an escaped one */
		if (q[k - 1] == r->d->escape && (k < 2 || q[k - 2] != r->d->escape)) {
			k = (size_t)(q - p) + k - 1;
		} else {
			k = (size_t)(q - p) + k;
			more = false;
		}
		memcpy(r->text + r->n, p, k); /* it is never longer than the whole */
		r->n += k;
	}
	if (!any)
		return 0;
	r->text[r->n] = 0;
	return 1;
}

/* --- words ------------------------------------------------------------------------------------ */

/* Up to white space that is not quoted. 0: no more words; negative: a quote without its end. */
ssize_t docker_word_len(const char *p, char escape)
{
	char quote = 0;
	size_t i;

	for (i = 0; p[i]; i++) {
		if (quote != '\'' && p[i] == escape && p[i + 1]) {
			i++;
		} else if (quote) {
			if (p[i] == quote)
				quote = 0;
		} else if (p[i] == '"' || p[i] == '\'') {
			quote = p[i];
		} else if (isspace((unsigned char)p[i])) {
			break;
		}
	}
	return quote ? -EINVAL : (ssize_t)i;
}

const char *docker_skip(const char *p)
{
	while (isspace((unsigned char)*p))
		p++;
	return p;
}

int docker_add_word(struct dockerfile_reader *r, struct docker_step *s, const char *p, size_t n)
{
	if (s->nwords == DOCKERFILE_WORDS_MAX)
		return docker_bad(r, "more than %d words", DOCKERFILE_WORDS_MAX);
	if (!s->words) {
		s->words = docker_keep(r->d, DOCKERFILE_WORDS_MAX * sizeof(*s->words));
		if (!s->words)
			return docker_no_memory(r->e);
	}
	s->words[s->nwords] = p ? docker_keep_text(r->d, p, n) : NULL;
	if (p && !s->words[s->nwords])
		return docker_no_memory(r->e);
	s->nwords++;
	return 0;
}

/* Gives back what the list does not need. */
int docker_fit_words(struct dockerfile_reader *r, struct docker_step *s)
{
	char **fit = docker_keep(r->d, (s->nwords + 1) * sizeof(*fit));

	if (!fit)
		return docker_no_memory(r->e);
	if (s->nwords)
		memcpy(fit, s->words, s->nwords * sizeof(*fit));
	if (s->words) { /* it is the newest but for its own words: find and free it */
		for (struct docker_chunk **c = &r->d->chunks; *c; c = &(*c)->next)
			if ((void *)(*c + 1) == (void *)s->words) {
				struct docker_chunk *old = *c;

				*c = old->next;
				free(old);
				break;
			}
	}
	s->words = fit;
	return 0;
}

int docker_split(struct dockerfile_reader *r, struct docker_step *s, const char *p)
{
	int k = 0;

	for (p = docker_skip(p); k == 0 && *p; p = docker_skip(p)) {
		ssize_t n = docker_word_len(p, r->d->escape);

		if (n < 0)
			return docker_bad(r, "a quote has no end");
		k = docker_add_word(r, s, p, (size_t)n);
		p += n;
	}
	return k;
}

/* A JSON list of strings: 1. Something else: 0. */
int docker_json_words(struct dockerfile_reader *r, struct docker_step *s, const char *p)
{
	AUTO(json_decrefp) json_t *list = NULL;
	json_t *v;
	size_t i;
	int k = 0;

	p = docker_skip(p);
	if (*p != '[')
		return 0;
	list = json_loads(p, 0, NULL);
	if (!json_is_array(list))
		return 0;
	json_array_foreach(list, i, v)
		if (!json_is_string(v))
			return 0;
	json_array_foreach(list, i, v) {
		k = docker_add_word(r, s, json_string_value(v), json_string_length(v));
		if (k < 0)
			return k;
	}
	s->exec = true;
	return 1;
}

/* --- heredocs --------------------------------------------------------------------------------- */

/* "<<EOF", "<<-EOF", "<<'EOF'" at the beginning of p: its length, or 0. */
size_t docker_heredoc_at(const char *p, bool *tabs, bool *quoted, const char **name, size_t *n)
{
	const char *q = p;
	char quote = 0;

	if (strncmp(q, "<<", 2) != 0)
		return 0;
	q += 2;
	*tabs = *q == '-';
	q += *tabs;
	if (*q == '"' || *q == '\'')
		quote = *q++;
	*quoted = quote;
	*name = q;
	if (!isalpha((unsigned char)*q) && *q != '_')
		return 0;
	while (isalnum((unsigned char)*q) || *q == '_' || *q == '.')
		q++;
	*n = (size_t)(q - *name);
	if (quote && *q++ != quote)
		return 0;
	return *n < DOCKER_NAME_MAX ? (size_t)(q - p) : 0;
}

/* A line of a heredoc, without the tabs that "<<-" takes away. */
static bool heredoc_line(struct dockerfile_reader *r, bool tabs, const char **p, size_t *n)
{
	if (!next_line(r, p, n))
		return false;
	while (tabs && *n && **p == '\t') {
		(*p)++;
		(*n)--;
	}
	return true;
}

static int read_heredoc(struct dockerfile_reader *r, struct docker_step *s, bool tabs, bool quoted,
                        const char *name, size_t n)
{
	struct docker_heredoc *h;
	struct dockerfile_reader again = *r;
	const char *p;
	size_t k, len = 0;
	char *to;
	bool end = false;

	if (s->nheredocs == HEREDOCS_MAX)
		return docker_bad(r, "more than %d heredocs in one instruction", HEREDOCS_MAX);
	if (!s->heredocs)
		s->heredocs = docker_keep(r->d, HEREDOCS_MAX * sizeof(*h));
	if (!s->heredocs)
		return docker_no_memory(r->e);
	while (!end && heredoc_line(r, tabs, &p, &k)) {
		end = k == n && memcmp(p, name, n) == 0;
		len += end ? 0 : k + 1;
	}
	if (!end)
		return docker_bad(r, "the end '%.*s' of what begins with << is missing", (int)n,
		                  name);
	h = &s->heredocs[s->nheredocs];
	h->expand = !quoted;
	h->name = docker_keep_text(r->d, name, n);
	to = h->text = docker_keep(r->d, len);
	if (!h->name || !to)
		return docker_no_memory(r->e);
	for (char *stop = to + len; to < stop && heredoc_line(&again, tabs, &p, &k);) {
		memcpy(to, p, k);
		to += k;
		*to++ = '\n';
	}
	s->nheredocs++;
	return 0;
}

/* All heredocs that an instruction announces; their text follows it. */
int docker_heredocs(struct dockerfile_reader *r, struct docker_step *s, const char *rest)
{
	char quote = 0;
	bool fresh = true;
	int k = 0;

	for (const char *p = rest; k == 0 && *p; p++) {
		const char *name;
		bool tabs, quoted;
		size_t n, len;

		if (!quote && fresh && (len = docker_heredoc_at(p, &tabs, &quoted, &name, &n))) {
			k = read_heredoc(r, s, tabs, quoted, name, n);
			p += len - 1;
			continue;
		}
		if (quote != '\'' && *p == r->d->escape && p[1]) {
			p++;
			fresh = false;
		} else if (quote) {
			quote = *p == quote ? 0 : quote;
		} else if (*p == '"' || *p == '\'') {
			quote = *p;
			fresh = false;
		} else {
			/* "3<<EOF" is one, "a<<b" is arithmetic */
			fresh = isspace((unsigned char)*p) || (fresh && isdigit((unsigned char)*p));
		}
	}
	return k;
}
