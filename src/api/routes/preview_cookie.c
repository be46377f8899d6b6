#include "api/routes/preview_cookie.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct cookie_part {
	const char *p, *value; /* value: behind the '=', or NULL */
	size_t n, name, len;   /* of all of it, of the name, of the value */
};

/* The next one between semicolons, without blanks around it. */
static bool next_part(const char **at, struct cookie_part *ret)
{
	const char *p = *at, *end, *equals;

	if (!*p)
		return false;
	p += strspn(p, " \t");
	end = p + strcspn(p, ";");
	*at = end + (*end == ';');
	while (end > p && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	*ret = (struct cookie_part){.p = p, .n = (size_t)(end - p)};
	equals = memchr(p, '=', ret->n);
	ret->name = equals ? (size_t)(equals - p) : ret->n;
	ret->value = equals ? equals + 1 : NULL;
	ret->len = equals ? (size_t)(end - equals - 1) : 0;
	while (ret->name && (p[ret->name - 1] == ' ' || p[ret->name - 1] == '\t'))
		ret->name--;
	return true;
}

static bool named(const struct cookie_part *c, const char *name)
{
	return c->name == strlen(name) && strncasecmp(c->p, name, c->name) == 0;
}

char *cookie_narrow(const char *set_cookie, const char *prefix)
{
	struct cookie_part c, path = {.value = "/", .len = 1};
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	for (bool first = true; next_part(&set_cookie, &c); first = false) {
		if (!first && prefix && named(&c, "Path"))
			path = c.value && *c.value == '/' ? c : path;
		else if (first || (c.n && !named(&c, "Domain")))
			fprintf(f, "%s%.*s", first ? "" : "; ", (int)c.n, c.p);
	}
	if (prefix)
		fprintf(f, "; Path=%s%.*s", prefix, (int)path.len, path.value);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* Names of cookies, unlike those of attributes, differ by case. */
static bool is(const struct cookie_part *c, const char *name)
{
	return c->value && c->name == strlen(name) && memcmp(c->p, name, c->name) == 0;
}

char *cookie_without(const char *cookies, const char *name)
{
	struct cookie_part c;
	char *text = NULL;
	bool first = true;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	while (next_part(&cookies, &c))
		if (c.n && !is(&c, name)) {
			fprintf(f, "%s%.*s", first ? "" : "; ", (int)c.n, c.p);
			first = false;
		}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

bool cookie_get(const char *cookies, const char *name, char *ret, size_t n)
{
	struct cookie_part c;

	while (next_part(&cookies, &c))
		if (is(&c, name) && c.len < n) {
			memcpy(ret, c.value, c.len);
			ret[c.len] = 0;
			return true;
		}
	return false;
}
