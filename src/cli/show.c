/*
 * cli/show.c - how things look: tables, ages, sizes, and which id was meant
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "cli/show.h"

/* ---- tables ---- */

static bool grow(struct table *t)
{
	size_t cap = t->cap ? t->cap * 2 : 64;
	char **more;

	if (t->n < t->cap)
		return true;
	more = realloc(t->cells, cap * sizeof(*more));
	if (!more)
		return false;
	t->cells = more;
	t->cap = cap;
	return true;
}

static void add_text(struct table *t, char *text)
{
	if (text && grow(t)) {
		t->cells[t->n++] = text;
		return;
	}
	free(text);
	t->failed = true;
}

void table_init(struct table *t, const char *heads)
{
	*t = (struct table){0};
	while (*heads && t->cols < TABLE_COLS) {
		size_t n = strcspn(heads, " ");

		add_text(t, strndup(heads, n));
		t->cols++;
		heads += n + (heads[n] == ' ');
	}
}

void table_add(struct table *t, const char *fmt, ...)
{
	autofree char *raw = NULL;
	char *clean;
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	if (vasprintf(&raw, fmt, ap) < 0)
		raw = NULL;
	va_end(ap);
	n = raw ? strlen(raw) + 1 : 0;
	clean = raw ? malloc(n) : NULL;
	if (clean)
		show_clean(raw, clean, n);
	add_text(t, clean);
}

/* Characters, not bytes: what stands in one column is counted by its first byte. */
static size_t width(const char *s)
{
	size_t n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

bool table_print(const struct table *t, FILE *to)
{
	size_t wide[TABLE_COLS] = {0};

	if (t->failed)
		return false;
	for (size_t i = 0; i < t->n; i++)
		wide[i % t->cols] = MAX(wide[i % t->cols], width(t->cells[i]));
	for (size_t i = 0; i < t->n; i++) {
		bool last = i % t->cols == t->cols - 1;

		fputs(t->cells[i], to);
		if (last)
			fputc('\n', to);
		else
			fprintf(to, "%*s", (int)(wide[i % t->cols] - width(t->cells[i]) + 2), "");
	}
	return true;
}

void table_fini(struct table *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->cells[i]);
	free(t->cells);
	*t = (struct table){0};
}

/* ---- words ---- */

/* How many bytes a UTF-8 character that begins like this has, 0: none does. */
static size_t utf8_want(unsigned char first)
{
	return first < 0x80                    ? 1
	       : first >= 0xc2 && first < 0xe0 ? 2
	       : first >= 0xe0 && first < 0xf0 ? 3
	       : first >= 0xf0 && first < 0xf5 ? 4
	                                       : 0;
}

/* Length of the UTF-8 character at s, 0 when there is none. */
static size_t utf8_len(const unsigned char *s)
{
	size_t n = utf8_want(*s);

	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	/* C1 control characters are as bad as ESC to some terminals. */
	return n == 2 && *s == 0xc2 && s[1] < 0xa0 ? 0 : n;
}

void show_clean(const char *text, char *buf, size_t n)
{
	size_t at = 0;

	if (!n)
		return;
	while (*text) {
		size_t len = utf8_len((const unsigned char *)text);
		bool ok = len && (unsigned char)*text >= 0x20 && *text != 0x7f;

		if (at + (ok ? len : 1) >= n)
			break;
		if (ok) {
			memcpy(buf + at, text, len);
			at += len;
			text += len;
		} else {
			buf[at++] = '?';
			text++;
		}
	}
	buf[at] = 0;
}

void show_text(struct show_text *s, const char *p, size_t n, FILE *to)
{
	for (; n; p++, n--) {
		char one[sizeof(s->part) + 1] = "", clean[sizeof(one)];
		unsigned char c = (unsigned char)*p;

		if (s->n && (c & 0xc0) != 0x80) { /* what it began was none */
			fputc('?', to);
			s->n = 0;
		}
		if (!s->n && (c == '\n' || c == '\t' || c == '\r')) {
			fputc(c == '\r' ? ' ' : c, to);
			continue;
		}
		s->part[s->n++] = *p;
		if (s->n < utf8_want((unsigned char)s->part[0]))
			continue;
		memcpy(one, s->part, s->n);
		show_clean(one, clean, sizeof(clean));
		fputs(*one ? clean : "?", to);
		s->n = 0;
	}
}

void show_said(const char *text, FILE *to)
{
	struct show_text s = {0};

	if (isatty(fileno(to)))
		show_text(&s, text, strlen(text), to);
	else
		fputs(text, to);
}

time_t show_time(const char *text)
{
	struct tm tm = {0};
	const char *end = text && *text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;

	if (!end || (*end != '.' && *end != 'Z' && *end != '+'))
		return -1;
	return timegm(&tm);
}

void show_age(const char *time_text, time_t now, char *buf, size_t n)
{
	time_t then = show_time(time_text);
	long long s = then < 0 ? -1 : MAX((long long)(now - then), 0LL);

	if (s < 0)
		snprintf(buf, n, "-");
	else if (s < 120)
		snprintf(buf, n, "%llds", s);
	else if (s < 2 * 3600)
		snprintf(buf, n, "%lldm", s / 60);
	else if (s < 2 * 86400)
		snprintf(buf, n, "%lldh", s / 3600);
	else
		snprintf(buf, n, "%lldd", s / 86400);
}

void show_size(long long bytes, char *buf, size_t n)
{
	static const char units[] = "\0KMGTP";
	double v = (double)bytes;
	size_t i = 0;

	for (; v >= 1023.95 && i < 5; i++)
		v /= 1024;
	if (!i)
		snprintf(buf, n, "%lld", bytes);
	else
		snprintf(buf, n, v < 9.95 ? "%.1f%c" : "%.0f%c", v, units[i]);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int show_short(const json_t *list)
{
	size_t n = json_array_size(list), ids = 0;
	autofree const char **id = calloc(n + 1, sizeof(*id));
	int len = 8;

	for (size_t i = 0; id && i < n; i++) {
		id[ids] = json_string_value(json_object_get(json_array_get(list, i), "id"));
		ids += id[ids] != NULL;
	}
	/* Sorted, those that are most alike are neighbours. */
	if (ids)
		qsort(id, ids, sizeof(*id), by_text);
	for (size_t i = 1; i < ids; i++)
		while (len < 64 && strcmp(id[i - 1], id[i]) != 0 &&
		       !strncmp(id[i - 1], id[i], (size_t)len))
			len++;
	return len;
}

/* ---- ids ---- */

static const char *text_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

static const char *name_of(const json_t *j)
{
	const char *name = text_of(j, "name");

	return *name ? name : text_of(json_object_get(j, "metadata"), "name");
}

/* Forks have the name of their parent; while that is there, the name is its own. */
static bool inherited(const json_t *list, const json_t *j)
{
	const char *parent = text_of(j, "parent_id");

	for (size_t i = 0; *parent && i < json_array_size(list); i++) {
		const json_t *up = json_array_get(list, i);

		if (!strcmp(text_of(up, "id"), parent))
			return !strcmp(name_of(up), name_of(j));
	}
	return false;
}

enum match match_prefix(const json_t *list, const char *key, const char *text, const json_t **ret)
{
	const json_t *named = NULL, *begins = NULL;
	size_t len = strlen(text), names = 0, begin = 0;

	for (size_t i = 0; len && i < json_array_size(list); i++) {
		const json_t *j = json_array_get(list, i);
		const char *id = text_of(j, key);

		/* An id in full is never ambiguous, whatever others call themselves. */
		if (!strcmp(id, text)) {
			*ret = j;
			return MATCH_ONE;
		}
		if (*id && !strcmp(name_of(j), text) && !inherited(list, j)) {
			named = j;
			names++;
		}
		if (!strncmp(id, text, len)) {
			begins = j;
			begin++;
		}
	}
	if (names == 1 || (!names && begin == 1))
		*ret = names ? named : begins;
	return names + begin == 0                     ? MATCH_NONE
	       : names == 1 || (!names && begin == 1) ? MATCH_ONE
	                                              : MATCH_MANY;
}
