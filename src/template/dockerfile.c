#include "template/dockerfile.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "template/dockerfile_internal.h"

/* --- instructions ----------------------------------------------------------------------------- */

/* By its name, or by its number among those that stand in the Dockerfile. */
static int stage_called(const struct dockerfile *d, const char *name, size_t before)
{
	char *end;
	long n = strtol(name, &end, 10);

	for (size_t i = before; i-- > 0;)
		if (d->stages[i].name && !strcasecmp(d->stages[i].name, name))
			return (int)i;
	for (size_t i = 0; *name && !*end && n >= 0 && i < before; i++)
		if (!d->stages[i].implied && n-- == 0)
			return (int)i;
	return -1;
}

/* COPY --from=image: a stage without instructions, in front of the one at hand. */
static int imply_stage(struct dockerfile_reader *r, char *image)
{
	struct dockerfile *d = r->d;
	struct docker_stage *at = &d->stages[d->nstages - 1];

	for (size_t i = 0; i + 1 < d->nstages; i++)
		if (d->stages[i].implied && !strcmp(d->stages[i].base, image))
			return (int)i;
	if (!*image || strspn(image, "0123456789") == strlen(image) || !strcmp(image, "scratch"))
		return docker_bad(r, "--from=%.50s: no earlier stage is called so, and no image",
		                  image);
	if (d->nstages == DOCKERFILE_STAGES_MAX)
		return docker_bad(r, "more than %d stages", DOCKERFILE_STAGES_MAX);
	at[1] = at[0];
	*at = (struct docker_stage){.line = r->begun,
	                            .base = image,
	                            .implied = true,
	                            .from = -1,
	                            .first = at[1].first,
	                            .end = at[1].first};
	return (int)(d->nstages++ - 1);
}

static bool one_of(const char *key, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(key, *list))
			return true;
	return false;
}

static int stage_or_image(struct dockerfile_reader *r, char *name)
{
	int i = stage_called(r->d, name, r->d->nstages - 1);

	return i < 0 ? imply_stage(r, name) : i;
}

/* --mount=type=bind,source=a,target=b; text is cut into its pieces. */
static int add_mount(struct dockerfile_reader *r, struct docker_step *s, char *text)
{
	/* what makes caches faster or says whose they are */
	static const char *const others[] = {"id",   "sharing", "mode",     "uid", "gid",
	                                     "size", "ro",      "readonly", NULL};
	struct docker_mount m = {.from = -1, .source = "."};
	char *save = NULL;

	if (!s->mounts)
		s->mounts = docker_keep(r->d, DOCKERFILE_MOUNTS_MAX * sizeof(*s->mounts));
	if (!s->mounts)
		return docker_no_memory(r->e);
	if (s->nmounts == DOCKERFILE_MOUNTS_MAX)
		return docker_bad(r, "more than %d mounts", DOCKERFILE_MOUNTS_MAX);
	for (char *k = strtok_r(text, ",", &save); k; k = strtok_r(NULL, ",", &save)) {
		char *v = strchr(k, '=');

		if (v)
			*v++ = 0;
		if (!strcmp(k, "rw") || !strcmp(k, "readwrite")) {
			m.writable = !v || !strcasecmp(v, "true");
		} else if (!v && !one_of(k, others)) {
			return docker_bad(r, "RUN --mount: '%.60s' needs a value", k);
		} else if (!strcmp(k, "type")) {
			if (strcmp(v, "bind") != 0 && strcmp(v, "cache") != 0 &&
			    strcmp(v, "tmpfs") != 0)
				return docker_bad(r,
				                  "RUN --mount=type=%.20s is not known here: bind, "
				                  "cache and tmpfs are; give secrets as variables "
				                  "of a sandbox, and save that",
				                  v);
			m.kind = !strcmp(v, "bind")    ? DOCKER_BIND
			         : !strcmp(v, "cache") ? DOCKER_CACHE
			                               : DOCKER_TMPFS;
		} else if (!strcmp(k, "source") || !strcmp(k, "src")) {
			m.source = v;
		} else if (!strcmp(k, "target") || !strcmp(k, "dst") || !strcmp(k, "destination")) {
			m.target = v;
		} else if (!strcmp(k, "from")) {
			m.from = stage_or_image(r, v);
			if (m.from < 0)
				return m.from;
		} else if (!one_of(k, others)) {
			return docker_bad(r, "RUN --mount does not know '%.60s'", k);
		}
	}
	if (!m.target || !*m.target)
		return docker_bad(r, "RUN --mount needs a target");
	if (m.from >= 0 && !strcmp(m.source, "."))
		m.source = "/";
	s->mounts[s->nmounts++] = m;
	return 0;
}

/* "--chown=a:b --link" in front of the words. */
static int flags(struct dockerfile_reader *r, struct docker_step *s, const char *instruction,
                 const char **rest)
{
	static const char *const copied[] = {"link", NULL};
	static const char *const mounts[] = {"network", "security", NULL};
	bool copies = s->op == DOCKER_COPY || s->op == DOCKER_ADD;
	const char *p = docker_skip(*rest);

	while (!strncmp(p, "--", 2) && s->op != DOCKER_NOTED && s->op != DOCKER_HEALTHCHECK) {
		ssize_t n = docker_word_len(p, r->d->escape);
		char *word = n > 0 ? docker_keep_text(r->d, p + 2, (size_t)n - 2) : NULL, *value;

		if (n < 0)
			return docker_bad(r, "a quote has no end");
		if (!word)
			return docker_no_memory(r->e);
		value = strchr(word, '=');
		if (value)
			*value++ = 0;
		if (copies && value && !strcmp(word, "chown")) {
			s->chown = value;
		} else if (copies && value && !strcmp(word, "chmod")) {
			s->chmod = value;
		} else if (s->op == DOCKER_COPY && !strcmp(word, "parents")) {
			s->parents = !value || !strcasecmp(value, "true");
		} else if (s->op == DOCKER_COPY && value && !strcmp(word, "from")) {
			s->from = stage_or_image(r, value);
			if (s->from < 0)
				return s->from;
		} else if (s->op == DOCKER_RUN && value && !strcmp(word, "mount")) {
			int k = add_mount(r, s, value);

			if (k < 0)
				return k;
		} else if (!(copies && one_of(word, copied)) &&
		           !(s->op == DOCKER_RUN && one_of(word, mounts))) {
			return docker_bad(r, "%s does not know the option --%.60s", instruction,
			                  word);
		}
		p = docker_skip(p + n);
	}
	if (s->parents && s->from >= 0)
		return docker_bad(r, "COPY --parents does not work with --from here");
	*rest = p;
	return 0;
}

static int pairs(struct dockerfile_reader *r, struct docker_step *s, const char *rest)
{
	struct docker_step raw = {0};
	const char *eq;
	int k;

	if (s->op == DOCKER_ENV) { /* "ENV NAME all the rest", the old way */
		size_t n = strcspn(rest, " \t=");

		if (rest[n] && rest[n] != '=') {
			k = docker_add_word(r, s, rest, n);
			rest = docker_skip(rest + n);
			return k < 0 ? k : docker_add_word(r, s, rest, strlen(rest));
		}
	}
	k = docker_split(r, &raw, rest);
	for (size_t i = 0; k == 0 && i < raw.nwords; i++) {
		const char *w = raw.words[i];

		eq = strchr(w, '=');
		if (w[0] == '=' || (!eq && s->op == DOCKER_ENV))
			return docker_bad(r, "'%.60s' is not NAME=value", w);
		k = docker_add_word(r, s, w, eq ? (size_t)(eq - w) : strlen(w));
		if (k == 0)
			k = docker_add_word(r, s, eq ? eq + 1 : NULL, eq ? strlen(eq + 1) : 0);
	}
	for (size_t i = 0; k == 0 && i < s->nwords; i += 2)
		for (const char *c = s->words[i]; *c; c++)
			if (!isalnum((unsigned char)*c) && *c != '_' && *c != '.' && *c != '-')
				return docker_bad(r, "'%.60s' is no name of a variable",
				                  s->words[i]);
	return k;
}

/* RUN <<EOF is a script; RUN cat <<EOF is the shell's business, which gets all of it. */
static int run_words(struct dockerfile_reader *r, struct docker_step *s, const char *rest)
{
	size_t len = strlen(rest), n = len + 1;
	const char *name;
	bool tabs, quoted;
	size_t k;
	char *all;
	int j = docker_json_words(r, s, rest);

	if (j)
		return j < 0 ? j : 0;
	j = docker_heredocs(r, s, rest);
	if (j < 0)
		return j;
	if (s->nheredocs == 1 && docker_heredoc_at(rest, &tabs, &quoted, &name, &k) == len) {
		s->script = !strncmp(s->heredocs[0].text, "#!", 2);
		return docker_add_word(r, s, s->heredocs[0].text, strlen(s->heredocs[0].text));
	}
	for (size_t i = 0; i < s->nheredocs; i++)
		n += strlen(s->heredocs[i].text) + strlen(s->heredocs[i].name) + 2;
	all = malloc(n + 1);
	if (!all)
		return docker_no_memory(r->e);
	memcpy(all, rest, len + 1);
	for (size_t i = 0; i < s->nheredocs; i++)
		len += (size_t)snprintf(all + len, n - len, "\n%s%s", s->heredocs[i].text,
		                        s->heredocs[i].name);
	j = docker_add_word(r, s, all, len);
	free(all);
	return j;
}

/* HEALTHCHECK [OPTIONS] CMD command, or NONE. How often and how long is our business. */
static int check_words(struct dockerfile_reader *r, struct docker_step *s, const char *rest)
{
	static const char *const known[] = {"interval",       "timeout", "start-period",
	                                    "start-interval", "retries", NULL};
	char option[32];
	int k;

	while (!strncmp(rest, "--", 2)) {
		size_t n = strcspn(rest, " \t"), name = strcspn(rest + 2, "= \t");

		snprintf(option, sizeof(option), "%.*s", (int)MIN(name, 31u), rest + 2);
		if (!one_of(option, known) || name + 3 >= n)
			return docker_bad(r, "HEALTHCHECK does not know the option %.*s",
			                  (int)MIN(n, 60u), rest);
		rest = docker_skip(rest + n);
	}
	if (!strcasecmp(rest, "NONE"))
		return 0;
	if (strncasecmp(rest, "CMD", 3) != 0 || !isspace((unsigned char)rest[3]))
		return docker_bad(r, "HEALTHCHECK takes CMD and a command, or NONE");
	rest = docker_skip(rest + 3);
	k = docker_json_words(r, s, rest);
	if (k == 0 && *rest)
		k = docker_add_word(r, s, rest, strlen(rest));
	return k < 0 ? k : s->nwords ? 0 : docker_bad(r, "HEALTHCHECK CMD needs a command");
}

/* Those that mean nothing here are wrong where they are wrong elsewhere. */
static int noted(struct dockerfile_reader *r, const char *instruction, const char *rest)
{
	struct docker_step words = {0};
	int k;

	if (!*rest)
		return docker_bad(r, "%s needs a value", instruction);
	if (strcmp(instruction, "EXPOSE") != 0)
		return 0;
	k = docker_split(r, &words, rest);
	for (size_t i = 0; k == 0 && i < words.nwords; i++) {
		const char *w = words.words[i];
		size_t n = strspn(w, "0123456789-");

		if (!strchr(w, '$') &&
		    (n == 0 || (w[n] && strcasecmp(w + n, "/tcp") != 0 &&
		                strcasecmp(w + n, "/udp") != 0 && strcasecmp(w + n, "/sctp") != 0)))
			return docker_bad(
			    r, "EXPOSE takes ports such as 80 or 53/udp, and not '%.60s'", w);
	}
	return k;
}

static int words_of(struct dockerfile_reader *r, struct docker_step *s, const char *instruction,
                    const char *rest)
{
	int k;

	switch (s->op) {
	case DOCKER_RUN:
		k = run_words(r, s, rest);
		if (k == 0 && (s->nwords == 0 || !s->words[0][0]))
			return docker_bad(r, "RUN needs a command");
		return k;
	case DOCKER_ENTRYPOINT:
	case DOCKER_CMD:
		k = docker_json_words(r, s, rest);
		if (k == 0 && *rest)
			k = docker_add_word(r, s, rest, strlen(rest));
		return k < 0 ? k : 0;
	case DOCKER_HEALTHCHECK:
		return check_words(r, s, rest);
	case DOCKER_SHELL:
		k = docker_json_words(r, s, rest);
		if (k == 0 || (k > 0 && s->nwords == 0))
			return docker_bad(r, "SHELL needs a list: SHELL [\"/bin/bash\", \"-c\"]");
		return k < 0 ? k : 0;
	case DOCKER_COPY:
	case DOCKER_ADD:
		k = docker_json_words(r, s, rest);
		if (k == 0)
			k = docker_heredocs(r, s, rest);
		if (k == 0 && s->nwords == 0)
			k = docker_split(r, s, rest);
		if (k >= 0 && s->nwords < 2)
			return docker_bad(r, "%s needs a source and a destination", instruction);
		return k < 0 ? k : 0;
	case DOCKER_ENV:
	case DOCKER_ARG:
		k = pairs(r, s, rest);
		if (k == 0 && s->nwords == 0)
			return docker_bad(r, "%s needs a name", instruction);
		return k;
	case DOCKER_WORKDIR:
	case DOCKER_USER:
		if (!*rest)
			return docker_bad(r, "%s needs %s", instruction,
			                  s->op == DOCKER_USER ? "a user" : "a directory");
		return docker_add_word(r, s, rest, strlen(rest));
	case DOCKER_NOTED:
		return noted(r, instruction, rest);
	default:
		return 0;
	}
}

static bool ours(const char *platform, size_t n)
{
	static const char *const all[] = {"linux/amd64", "linux/x86_64", "amd64", "linux"};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (strlen(all[i]) == n && !strncasecmp(platform, all[i], n))
			return true;
	return false;
}

/* FROM image [AS name] */
static int from(struct dockerfile_reader *r, const char *rest)
{
	struct dockerfile *d = r->d;
	struct docker_stage *st;
	struct docker_step w = {0};
	int k;

	rest = docker_skip(rest);
	while (!strncmp(rest, "--", 2)) {
		size_t n = strcspn(rest, " \t");

		if (strncmp(rest, "--platform=", 11) != 0)
			return docker_bad(r, "FROM does not know the option %.*s", (int)MIN(n, 60u),
			                  rest);
		if (!strchr("$\"", rest[11]) && !ours(rest + 11, n - 11))
			return docker_bad(r, "machines here are linux/amd64, and not %.*s",
			                  (int)MIN(n - 11, 60u), rest + 11);
		rest = docker_skip(rest + n);
	}
	k = docker_split(r, &w, rest);
	if (k < 0)
		return k;
	if (w.nwords != 1 && (w.nwords != 3 || strcasecmp(w.words[1], "as") != 0))
		return docker_bad(r, "FROM takes a template, and maybe AS and a name");
	if (d->nstages == DOCKERFILE_STAGES_MAX)
		return docker_bad(r, "more than %d stages", DOCKERFILE_STAGES_MAX);
	st = &d->stages[d->nstages];
	*st = (struct docker_stage){.line = r->begun,
	                            .base = w.words[0],
	                            .first = d->nsteps,
	                            .end = d->nsteps};
	st->from = stage_called(d, st->base, d->nstages);
	if (st->from >= 0 && isdigit((unsigned char)st->base[0]))
		st->from = -1; /* numbers are for COPY only */
	if (w.nwords == 3) {
		st->name = w.words[2];
		if (!isalpha((unsigned char)st->name[0]) || strlen(st->name) >= DOCKER_NAME_MAX ||
		    strspn(st->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
		                     "0123456789_.-") != strlen(st->name))
			return docker_bad(r, "'%.60s' is no name for a stage", st->name);
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
    {"ONBUILD", DOCKER_NOTED},    {"HEALTHCHECK", DOCKER_HEALTHCHECK},
    {"STOPSIGNAL", DOCKER_NOTED},
};

/* What is said of it in logs, and what makes it another step for the cache. */
static int say(struct dockerfile_reader *r, struct docker_step *s, const char *p)
{
	size_t n = strlen(p) + 1;
	char *to;

	for (size_t i = 0; i < s->nheredocs; i++)
		n += strlen(s->heredocs[i].text) + 1;
	to = s->text = docker_keep(r->d, n);
	if (!to)
		return docker_no_memory(r->e);
	to += snprintf(to, n, "%s", p);
	for (size_t i = 0; i < s->nheredocs; i++)
		to += snprintf(to, n - (size_t)(to - s->text), "\n%s", s->heredocs[i].text);
	return 0;
}

static int instruction(struct dockerfile_reader *r)
{
	struct dockerfile *d = r->d;
	const char *p = docker_skip(r->text), *rest;
	size_t n = strcspn(p, " \t");
	struct docker_step s = {.line = r->begun, .from = -1}, *to;
	const char *name = NULL;
	int k;

	rest = docker_skip(p + n);
	if (n == 4 && !strncasecmp(p, "FROM", 4))
		return from(r, rest);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (strlen(known[i].name) == n && !strncasecmp(p, known[i].name, n)) {
			name = known[i].name;
			s.op = known[i].op;
		}
	if (!name)
		return docker_bad(r, "there is no instruction '%.*s'", (int)MIN(n, 40u), p);
	if (d->nstages == 0 && s.op != DOCKER_ARG)
		return docker_bad(r, "%s before FROM: a Dockerfile begins with FROM", name);
	if (d->nsteps + d->nglobals == DOCKERFILE_STEPS_MAX)
		return docker_bad(r, "more than %d instructions", DOCKERFILE_STEPS_MAX);
	k = flags(r, &s, name, &rest);
	if (k == 0)
		k = words_of(r, &s, name, rest);
	if (k == 0)
		k = docker_fit_words(r, &s);
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
	struct dockerfile_reader r = {
	    .d = d, .p = text, .end = text + n, .begun = 1, .text = line, .e = e};
	int k;

	if (!d || !line)
		return docker_no_memory(e);
	if (n > DOCKERFILE_MAX)
		return err_set(e, EFBIG, "bad_request", "the Dockerfile is longer than %d KiB",
		               DOCKERFILE_MAX >> 10);
	if (memchr(text, 0, n))
		return docker_bad_at(e, 1, "this is no text: it has zero bytes");
	if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
		r.p += 3;
	d->escape = '\\';
	d->steps = docker_keep(d, DOCKERFILE_STEPS_MAX * sizeof(*d->steps));
	d->globals = docker_keep(d, DOCKERFILE_STEPS_MAX * sizeof(*d->globals));
	d->stages = docker_keep(d, DOCKERFILE_STAGES_MAX * sizeof(*d->stages));
	if (!d->steps || !d->globals || !d->stages)
		return docker_no_memory(e);
	k = docker_directives(&r);
	while (k == 0 && (k = docker_next(&r)) > 0)
		k = instruction(&r);
	if (k < 0)
		return k;
	if (d->nstages == 0)
		return docker_bad_at(e, r.line ? r.line : 1,
		                     "there is no FROM: say what to build on, "
		                     "as in 'FROM base'");
	*ret = take_ptr(d);
	return 0;
}
