#include "core/dockerfile.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

enum {
	EXPAND_DEPTH = 8, /* ${A:-${B:-...}} */
	NAME_MAX_ = 128,
	HEREDOCS_MAX = 16, /* of one instruction */
};

struct docker_chunk {
	struct docker_chunk *next;
};

/* Zeroed; lives as long as d. */
static void *keep(struct dockerfile *d, size_t n)
{
	struct docker_chunk *c = calloc(1, sizeof(*c) + n + 1);

	if (!c)
		return NULL;
	c->next = d->chunks;
	d->chunks = c;
	return c + 1;
}

static char *keep_text(struct dockerfile *d, const char *p, size_t n)
{
	char *s = keep(d, n);

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

struct reader {
	struct dockerfile *d;
	const char *p, *end;
	unsigned line;  /* of p */
	unsigned begun; /* line on which the instruction at hand began */
	char *text;     /* the instruction, continuations joined */
	size_t n;
	struct err *e;
};

#define bad(r, ...) bad_at((r)->e, (r)->begun, __VA_ARGS__)

static int __attribute__((format(printf, 3, 4)))
bad_at(struct err *e, unsigned line, const char *fmt, ...)
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

static int no_memory(struct err *e)
{
	return err_set(e, ENOMEM, "no_memory", "no memory");
}

/* The next physical line without its end; false when there is none. */
static bool next_line(struct reader *r, const char **p, size_t *n)
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

/* "# escape=`" and the like, before anything else. */
static int directives(struct reader *r)
{
	for (;;) {
		const char *at = r->p, *p;
		unsigned line = r->line;
		const char *eq;
		size_t n;

		if (!next_line(r, &p, &n))
			return 0;
		trim(&p, &n);
		eq = n && *p == '#' ? memchr(p, '=', n) : NULL;
		if (!eq) {
			r->p = at;
			r->line = line;
			return 0;
		}
		p++;
		n--;
		trim(&p, &n);
		if (n < 6 || strncasecmp(p, "escape", 6) != 0)
			continue;
		n -= (size_t)(eq + 1 - p);
		p = eq + 1;
		trim(&p, &n);
		if (n != 1 || (*p != '\\' && *p != '`'))
			return bad_at(r->e, r->line, "the escape directive takes \\ or `");
		r->d->escape = *p;
	}
}

/* Puts one instruction together: 1, or 0 at the end. */
static int next_instruction(struct reader *r)
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
		if (q[k - 1] == r->d->escape) {
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
static ssize_t word_len(const char *p, char escape)
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

static const char *skip(const char *p)
{
	while (isspace((unsigned char)*p))
		p++;
	return p;
}

static int add_word(struct reader *r, struct docker_step *s, const char *p, size_t n)
{
	if (s->nwords == DOCKERFILE_WORDS_MAX)
		return bad(r, "more than %d words", DOCKERFILE_WORDS_MAX);
	if (!s->words) {
		s->words = keep(r->d, DOCKERFILE_WORDS_MAX * sizeof(*s->words));
		if (!s->words)
			return no_memory(r->e);
	}
	s->words[s->nwords] = p ? keep_text(r->d, p, n) : NULL;
	if (p && !s->words[s->nwords])
		return no_memory(r->e);
	s->nwords++;
	return 0;
}

/* Gives back what the list does not need. */
static int fit_words(struct reader *r, struct docker_step *s)
{
	char **fit = keep(r->d, (s->nwords + 1) * sizeof(*fit));

	if (!fit)
		return no_memory(r->e);
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

static int split(struct reader *r, struct docker_step *s, const char *p)
{
	int k = 0;

	for (p = skip(p); k == 0 && *p; p = skip(p)) {
		ssize_t n = word_len(p, r->d->escape);

		if (n < 0)
			return bad(r, "a quote has no end");
		k = add_word(r, s, p, (size_t)n);
		p += n;
	}
	return k;
}

/* A JSON list of strings: 1. Something else: 0. */
static int json_words(struct reader *r, struct docker_step *s, const char *p)
{
	AUTO(json_decrefp) json_t *list = NULL;
	json_t *v;
	size_t i;
	int k = 0;

	p = skip(p);
	if (*p != '[')
		return 0;
	list = json_loads(p, 0, NULL);
	if (!json_is_array(list))
		return 0;
	json_array_foreach(list, i, v) if (!json_is_string(v)) return 0;
	json_array_foreach(list, i, v)
	{
		k = add_word(r, s, json_string_value(v), json_string_length(v));
		if (k < 0)
			return k;
	}
	s->exec = true;
	return 1;
}

/* --- heredocs --------------------------------------------------------------------------------- */

/* "<<EOF", "<<-EOF", "<<'EOF'" at the beginning of p: its length, or 0. */
static size_t heredoc_at(const char *p, bool *tabs, bool *quoted, const char **name, size_t *n)
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
	return *n < NAME_MAX_ ? (size_t)(q - p) : 0;
}

/* A line of a heredoc, without the tabs that "<<-" takes away. */
static bool heredoc_line(struct reader *r, bool tabs, const char **p, size_t *n)
{
	if (!next_line(r, p, n))
		return false;
	while (tabs && *n && **p == '\t') {
		(*p)++;
		(*n)--;
	}
	return true;
}

static int read_heredoc(struct reader *r, struct docker_step *s, bool tabs, bool quoted,
                        const char *name, size_t n)
{
	struct docker_heredoc *h;
	struct reader again = *r;
	const char *p;
	size_t k, len = 0;
	char *to;
	bool end = false;

	if (s->nheredocs == HEREDOCS_MAX)
		return bad(r, "more than %d heredocs in one instruction", HEREDOCS_MAX);
	if (!s->heredocs)
		s->heredocs = keep(r->d, HEREDOCS_MAX * sizeof(*h));
	if (!s->heredocs)
		return no_memory(r->e);
	while (!end && heredoc_line(r, tabs, &p, &k)) {
		end = k == n && memcmp(p, name, n) == 0;
		len += end ? 0 : k + 1;
	}
	if (!end)
		return bad(r, "the end '%.*s' of what begins with << is missing", (int)n, name);
	h = &s->heredocs[s->nheredocs];
	h->expand = !quoted;
	h->name = keep_text(r->d, name, n);
	to = h->text = keep(r->d, len);
	if (!h->name || !to)
		return no_memory(r->e);
	for (char *stop = to + len; to < stop && heredoc_line(&again, tabs, &p, &k);) {
		memcpy(to, p, k);
		to += k;
		*to++ = '\n';
	}
	s->nheredocs++;
	return 0;
}

/* All heredocs that an instruction announces; their text follows it. */
static int heredocs(struct reader *r, struct docker_step *s, const char *rest)
{
	char quote = 0;
	bool fresh = true;
	int k = 0;

	for (const char *p = rest; k == 0 && *p; p++) {
		const char *name;
		bool tabs, quoted;
		size_t n, len;

		if (!quote && fresh && (len = heredoc_at(p, &tabs, &quoted, &name, &n))) {
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

/* --- instructions ----------------------------------------------------------------------------- */

static int stage_called(const struct dockerfile *d, const char *name, size_t before)
{
	char *end;
	long n = strtol(name, &end, 10);

	for (size_t i = before; i-- > 0;)
		if (d->stages[i].name && !strcasecmp(d->stages[i].name, name))
			return (int)i;
	return *name && !*end && n >= 0 && (size_t)n < before ? (int)n : -1;
}

static bool one_of(const char *key, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(key, *list))
			return true;
	return false;
}

/* "--chown=a:b --link" in front of the words. */
static int flags(struct reader *r, struct docker_step *s, const char *instruction,
                 const char **rest)
{
	static const char *const copied[] = {"link", "parents", NULL};
	static const char *const mounts[] = {"network", "security", NULL};
	bool copies = s->op == DOCKER_COPY || s->op == DOCKER_ADD;
	const char *p = skip(*rest);

	while (!strncmp(p, "--", 2) && s->op != DOCKER_NOTED) {
		ssize_t n = word_len(p, r->d->escape);
		char *word = n > 0 ? keep_text(r->d, p + 2, (size_t)n - 2) : NULL, *value;

		if (n < 0)
			return bad(r, "a quote has no end");
		if (!word)
			return no_memory(r->e);
		value = strchr(word, '=');
		if (value)
			*value++ = 0;
		if (copies && value && !strcmp(word, "chown")) {
			s->chown = value;
		} else if (copies && value && !strcmp(word, "chmod")) {
			s->chmod = value;
		} else if (s->op == DOCKER_COPY && value && !strcmp(word, "from")) {
			s->from = stage_called(r->d, value, r->d->nstages - 1);
			if (s->from < 0)
				return bad(r,
				           "COPY --from=%.60s: no earlier stage is called so, and "
				           "other images cannot be copied from",
				           value);
		} else if (s->op == DOCKER_RUN && value && !strcmp(word, "mount") &&
		           (strstr(value, "type=cache") || strstr(value, "type=tmpfs"))) {
			; /* only about speed: what is mounted there is a directory here */
		} else if (!(copies && one_of(word, copied)) &&
		           !(s->op == DOCKER_RUN && one_of(word, mounts))) {
			return bad(r, "%s does not know the option --%.60s", instruction, word);
		}
		p = skip(p + n);
	}
	*rest = p;
	return 0;
}

static int pairs(struct reader *r, struct docker_step *s, const char *rest)
{
	struct docker_step raw = {0};
	const char *eq;
	int k;

	if (s->op == DOCKER_ENV) { /* "ENV NAME all the rest", the old way */
		size_t n = strcspn(rest, " \t=");

		if (rest[n] && rest[n] != '=') {
			k = add_word(r, s, rest, n);
			rest = skip(rest + n);
			return k < 0 ? k : add_word(r, s, rest, strlen(rest));
		}
	}
	k = split(r, &raw, rest);
	for (size_t i = 0; k == 0 && i < raw.nwords; i++) {
		const char *w = raw.words[i];

		eq = strchr(w, '=');
		if (w[0] == '=' || (!eq && s->op == DOCKER_ENV))
			return bad(r, "'%.60s' is not NAME=value", w);
		k = add_word(r, s, w, eq ? (size_t)(eq - w) : strlen(w));
		if (k == 0)
			k = add_word(r, s, eq ? eq + 1 : NULL, eq ? strlen(eq + 1) : 0);
	}
	for (size_t i = 0; k == 0 && i < s->nwords; i += 2)
		for (const char *c = s->words[i]; *c; c++)
			if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.' && *c != '-')
				return bad(r, "'%.60s' is no name of a variable", s->words[i]);
	return k;
}

/* RUN <<EOF is a script; RUN cat <<EOF is the shell's business, which gets all of it. */
static int run_words(struct reader *r, struct docker_step *s, const char *rest)
{
	size_t len = strlen(rest), n = len + 1;
	const char *name;
	bool tabs, quoted;
	size_t k;
	char *all;
	int j = json_words(r, s, rest);

	if (j)
		return j < 0 ? j : 0;
	j = heredocs(r, s, rest);
	if (j < 0)
		return j;
	if (s->nheredocs == 1 && heredoc_at(rest, &tabs, &quoted, &name, &k) == len)
		return add_word(r, s, s->heredocs[0].text, strlen(s->heredocs[0].text));
	for (size_t i = 0; i < s->nheredocs; i++)
		n += strlen(s->heredocs[i].text) + strlen(s->heredocs[i].name) + 2;
	all = malloc(n + 1);
	if (!all)
		return no_memory(r->e);
	memcpy(all, rest, len + 1);
	for (size_t i = 0; i < s->nheredocs; i++)
		len += (size_t)snprintf(all + len, n - len, "\n%s%s", s->heredocs[i].text,
		                        s->heredocs[i].name);
	j = add_word(r, s, all, len);
	free(all);
	return j;
}

static int words_of(struct reader *r, struct docker_step *s, const char *instruction,
                    const char *rest)
{
	int k;

	switch (s->op) {
	case DOCKER_RUN:
		k = run_words(r, s, rest);
		if (k == 0 && (s->nwords == 0 || !s->words[0][0]))
			return bad(r, "RUN needs a command");
		return k;
	case DOCKER_ENTRYPOINT:
	case DOCKER_CMD:
		k = json_words(r, s, rest);
		if (k == 0 && *rest)
			k = add_word(r, s, rest, strlen(rest));
		return k < 0 ? k : 0;
	case DOCKER_SHELL:
		k = json_words(r, s, rest);
		if (k == 0 || (k > 0 && s->nwords == 0))
			return bad(r, "SHELL needs a list: SHELL [\"/bin/bash\", \"-c\"]");
		return k < 0 ? k : 0;
	case DOCKER_COPY:
	case DOCKER_ADD:
		k = json_words(r, s, rest);
		if (k == 0)
			k = heredocs(r, s, rest);
		if (k == 0 && s->nwords == 0)
			k = split(r, s, rest);
		if (k >= 0 && s->nwords < 2)
			return bad(r, "%s needs a source and a destination", instruction);
		return k < 0 ? k : 0;
	case DOCKER_ENV:
	case DOCKER_ARG:
		k = pairs(r, s, rest);
		if (k == 0 && s->nwords == 0)
			return bad(r, "%s needs a name", instruction);
		return k;
	case DOCKER_WORKDIR:
	case DOCKER_USER:
		if (!*rest)
			return bad(r, "%s needs %s", instruction,
			           s->op == DOCKER_USER ? "a user" : "a directory");
		return add_word(r, s, rest, strlen(rest));
	default:
		return 0;
	}
}

/* FROM image [AS name] */
static int from(struct reader *r, const char *rest)
{
	struct dockerfile *d = r->d;
	struct docker_stage *st;
	struct docker_step w = {0};
	int k;

	rest = skip(rest);
	while (!strncmp(rest, "--", 2)) {
		size_t n = strcspn(rest, " \t");

		if (strncmp(rest, "--platform=", 11) != 0)
			return bad(r, "FROM does not know the option %.*s", (int)MIN(n, 60u), rest);
		rest = skip(rest + n);
	}
	k = split(r, &w, rest);
	if (k < 0)
		return k;
	if (w.nwords != 1 && (w.nwords != 3 || strcasecmp(w.words[1], "as") != 0))
		return bad(r, "FROM takes a template, and maybe AS and a name");
	if (d->nstages == DOCKERFILE_STAGES_MAX)
		return bad(r, "more than %d stages", DOCKERFILE_STAGES_MAX);
	st = &d->stages[d->nstages];
	*st = (struct docker_stage){
	    .line = r->begun, .base = w.words[0], .first = d->nsteps, .end = d->nsteps};
	st->from = stage_called(d, st->base, d->nstages);
	if (st->from >= 0 && isdigit((unsigned char)st->base[0]))
		st->from = -1; /* numbers are for COPY only */
	if (w.nwords == 3) {
		st->name = w.words[2];
		if (!isalpha((unsigned char)st->name[0]) || strlen(st->name) >= NAME_MAX_ ||
		    strspn(st->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		                     "0123456789_.-") != strlen(st->name))
			return bad(r, "'%.60s' is no name for a stage", st->name);
	}
	d->nstages++;
	return 0;
}

static const struct {
	const char *name;
	enum docker_op op;
} known[] = {
    {"RUN", DOCKER_RUN},          {"COPY", DOCKER_COPY},
    {"ADD", DOCKER_ADD},          {"ENV", DOCKER_ENV},
    {"ARG", DOCKER_ARG},          {"WORKDIR", DOCKER_WORKDIR},
    {"USER", DOCKER_USER},        {"SHELL", DOCKER_SHELL},
    {"CMD", DOCKER_CMD},          {"ENTRYPOINT", DOCKER_ENTRYPOINT},
    {"LABEL", DOCKER_NOTED},      {"EXPOSE", DOCKER_NOTED},
    {"VOLUME", DOCKER_NOTED},     {"MAINTAINER", DOCKER_NOTED},
    {"ONBUILD", DOCKER_NOTED},    {"HEALTHCHECK", DOCKER_NOTED},
    {"STOPSIGNAL", DOCKER_NOTED},
};

/* What is said of it in logs, and what makes it another step for the cache. */
static int say(struct reader *r, struct docker_step *s, const char *p)
{
	size_t n = strlen(p) + 1;
	char *to;

	for (size_t i = 0; i < s->nheredocs; i++)
		n += strlen(s->heredocs[i].text) + 1;
	to = s->text = keep(r->d, n);
	if (!to)
		return no_memory(r->e);
	to += snprintf(to, n, "%s", p);
	for (size_t i = 0; i < s->nheredocs; i++)
		to += snprintf(to, n - (size_t)(to - s->text), "\n%s", s->heredocs[i].text);
	return 0;
}

static int instruction(struct reader *r)
{
	struct dockerfile *d = r->d;
	const char *p = skip(r->text), *rest;
	size_t n = strcspn(p, " \t");
	struct docker_step s = {.line = r->begun, .from = -1}, *to;
	const char *name = NULL;
	int k;

	rest = skip(p + n);
	if (n == 4 && !strncasecmp(p, "FROM", 4))
		return from(r, rest);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strlen(known[i].name) == n && !strncasecmp(p, known[i].name, n)) {
			name = known[i].name;
			s.op = known[i].op;
		}
	if (!name)
		return bad(r, "there is no instruction '%.*s'", (int)MIN(n, 40u), p);
	if (d->nstages == 0 && s.op != DOCKER_ARG)
		return bad(r, "%s before FROM: a Dockerfile begins with FROM", name);
	if (d->nsteps + d->nglobals == DOCKERFILE_STEPS_MAX)
		return bad(r, "more than %d instructions", DOCKERFILE_STEPS_MAX);
	k = flags(r, &s, name, &rest);
	if (k == 0)
		k = words_of(r, &s, name, rest);
	if (k == 0)
		k = fit_words(r, &s);
	if (k == 0)
		k = say(r, &s, p);
	if (k < 0)
		return k;
	to = d->nstages ? &d->steps[d->nsteps++] : &d->globals[d->nglobals++];
	*to = s;
	if (d->nstages)
		d->stages[d->nstages - 1].end = d->nsteps;
	return 0;
}

int dockerfile_parse(const char *text, size_t n, struct dockerfile **ret, struct err *e)
{
	AUTO(dockerfile_freep) struct dockerfile *d = calloc(1, sizeof(*d));
	autofree char *line = malloc(n + 1);
	struct reader r = {.d = d, .p = text, .end = text + n, .begun = 1, .text = line, .e = e};
	int k;

	if (!d || !line)
		return no_memory(e);
	if (n > DOCKERFILE_MAX)
		return err_set(e, EFBIG, "bad_request", "the Dockerfile is longer than %d KiB",
		               DOCKERFILE_MAX >> 10);
	if (memchr(text, 0, n))
		return bad_at(e, 1, "this is no text: it has zero bytes");
	if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
		r.p += 3;
	d->escape = '\\';
	d->steps = keep(d, DOCKERFILE_STEPS_MAX * sizeof(*d->steps));
	d->globals = keep(d, DOCKERFILE_STEPS_MAX * sizeof(*d->globals));
	d->stages = keep(d, DOCKERFILE_STAGES_MAX * sizeof(*d->stages));
	if (!d->steps || !d->globals || !d->stages)
		return no_memory(e);
	k = directives(&r);
	while (k == 0 && (k = next_instruction(&r)) > 0)
		k = instruction(&r);
	if (k < 0)
		return k;
	if (d->nstages == 0)
		return bad_at(e, r.line ? r.line : 1,
		              "there is no FROM: say what to build on, "
		              "as in 'FROM base'");
	*ret = take_ptr(d);
	return 0;
}

/* --- variables -------------------------------------------------------------------------------- */

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
		return bad_at(x->e, x->line, "with its variables, a word is longer than %d KiB",
		              DOCKERFILE_EXPANDED_MAX >> 10);
	memcpy(x->out + x->n, p, n);
	x->n += n;
	return 0;
}

static int expand(struct expand *x, const char **at, const char *stop, unsigned depth);

/* Behind "${". */
static int braces(struct expand *x, const char **at, unsigned depth)
{
	char name[NAME_MAX_];
	const char *p = *at, *value;
	size_t n = 0, before;
	bool colon, set;
	char op;
	int r;

	while (isalnum((unsigned char)p[n]) || p[n] == '_')
		n++;
	if (n == 0 || n >= sizeof(name))
		return bad_at(x->e, x->line, "'${%.20s' names no variable", p);
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
		return bad_at(x->e, x->line, "'${%.20s...': only :-, :+ and :? are known here",
		              name);
	if (depth == EXPAND_DEPTH)
		return bad_at(x->e, x->line, "variables inside variables, %d deep", EXPAND_DEPTH);
	set = value && (!colon || *value);
	before = x->n;
	r = expand(x, &p, "}", depth + 1);
	if (r < 0)
		return r;
	if (*p != '}')
		return bad_at(x->e, x->line, "'${%.20s' has no '}'", name);
	*at = p + 1;
	if (op == '?' && !set)
		return bad_at(x->e, x->line, "%.60s is not set: %.*s", name,
		              (int)MIN(x->n - before, 80u), x->out + before);
	if (op == '+' ? set : !set)
		return 0; /* the word it is */
	x->n = before;
	return op == '+' ? 0 : put(x, value, strlen(value));
}

static int dollar(struct expand *x, const char **at, unsigned depth)
{
	char name[NAME_MAX_];
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
		return bad_at(x->e, x->line, "a quote has no end");
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
	int r = x.out ? expand(&x, &word, "", 0) : no_memory(e);
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
