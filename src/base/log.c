#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/macro.h"

static const char *const level_names[] = {"error", "warn", "info", "debug"};
/* All there are: src/meson.build says it. */
static const char *const room_names[] = {LOG_ROOMS};

enum log_level log_most = LOG_INFO;
static struct log_filter filter = {.level = LOG_INFO};

/* --- what is logged -------------------------------------------------------------------------- */

static int level_of(const char *word, size_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(level_names); i++)
		if (strlen(level_names[i]) == n && !memcmp(level_names[i], word, n))
			return (int)i;
	return -1;
}

static bool room_known(const char *word, size_t n)
{
	for (size_t i = 0; i < ARRAY_LEN(room_names); i++)
		if (strlen(room_names[i]) == n && !memcmp(room_names[i], word, n))
			return true;
	return false;
}

static int bad_level(const char *word, size_t n, struct err *e)
{
	return err_set(e, EINVAL, "bad_config",
	               "log: '%.*s' is no level, which is error, warn, info or debug",
	               (int)MIN(n, (size_t)40), word);
}

static int add_room(struct log_filter *f, const char *room, size_t n, enum log_level level,
                    struct err *e)
{
	unsigned i = 0;

	if (!room_known(room, n))
		return err_set(e, EINVAL, "bad_config",
		               "log: there is no room '%.*s'; a room is a directory of src/, as "
		               "host, api or daemon",
		               (int)MIN(n, (size_t)40), room);
	while (i < f->nrooms &&
	       (strlen(f->rooms[i].name) != n || memcmp(f->rooms[i].name, room, n) != 0))
		i++;
	if (i == LOG_ROOMS_MAX)
		return err_set(e, E2BIG, "bad_config", "log: at most %d rooms", LOG_ROOMS_MAX);
	snprintf(f->rooms[i].name, sizeof(f->rooms[i].name), "%.*s", (int)n, room);
	f->rooms[i].level = level;
	f->nrooms = MAX(f->nrooms, i + 1);
	return 0;
}

static int add_word(struct log_filter *f, const char *word, size_t n, struct err *e)
{
	const char *equals = memchr(word, '=', n), *value = equals ? equals + 1 : word;
	size_t key = equals ? (size_t)(equals - word) : 0, nvalue = n - (size_t)(value - word);
	int level;

	if (key == 7 && !memcmp(word, "sandbox", 7)) {
		if (!nvalue || nvalue > LOG_SANDBOX_MAX)
			return err_set(e, EINVAL, "bad_config",
			               "log: sandbox= takes an id or its beginning");
		snprintf(f->sandbox, sizeof(f->sandbox), "%.*s", (int)nvalue, value);
		return 0;
	}
	level = level_of(value, nvalue);
	if (level < 0)
		return bad_level(value, nvalue, e);
	if (equals)
		return add_room(f, word, key, (enum log_level)level, e);
	f->level = (enum log_level)level;
	return 0;
}

int log_filter_parse(const char *text, struct log_filter *ret, struct err *e)
{
	struct log_filter f = {.level = LOG_INFO};

	for (const char *p = text; *p;) {
		size_t n = strcspn(p, ", ");
		int r = n ? add_word(&f, p, n, e) : 0;

		if (r < 0)
			return r;
		p += n + (p[n] != 0);
	}
	*ret = f;
	return 0;
}

void log_filter_set(const struct log_filter *f)
{
	filter = *f;
	log_most = f->level;
	for (unsigned i = 0; i < f->nrooms; i++)
		log_most = MAX(log_most, f->rooms[i].level);
}

/* --- a line ---------------------------------------------------------------------------------- */

/* "../src/api/routes/forks.c" is of the room api, and "tests/unit/base/test_log.c" of base. */
static const char *room_of(const char *file, int *ret_len)
{
	const char *start = NULL, *slash, *p;

	for (p = file; (p = strstr(p, "src/")); p++)
		if (p == file || p[-1] == '/')
			start = p + 4;
	if (start && (slash = strchr(start, '/'))) {
		*ret_len = (int)(slash - start);
		return start;
	}
	slash = strrchr(file, '/');
	for (start = slash ? slash : file; start > file && start[-1] != '/';)
		start--;
	*ret_len = slash ? (int)(slash - start) : 0;
	return start;
}

static bool room_says(const char *room, int n, enum log_level level)
{
	for (unsigned i = 0; i < filter.nrooms; i++)
		if ((int)strlen(filter.rooms[i].name) == n &&
		    !memcmp(filter.rooms[i].name, room, (size_t)n))
			return level <= filter.rooms[i].level;
	return level <= filter.level;
}

/* The first one counts: what guests say stands behind it. */
static bool is_about(const char *line, enum log_level level)
{
	const char *id = strstr(line, " sandbox=");

	if (!filter.sandbox[0])
		return true;
	id = id ? id + strlen(" sandbox=") : NULL;
	if (!id || *id == '-')
		return level <= LOG_WARN;
	return !strncmp(id, filter.sandbox, strlen(filter.sandbox));
}

void log_line(enum log_level level, const char *file, const char *fmt, ...)
{
	char line[1024];
	const char *room;
	va_list ap;
	int n, len;

	room = room_of(file, &len);
	if (!room_says(room, len, level))
		return;
	n = snprintf(line, sizeof(line), "%s %.*s: ", level_names[level], len, room);
	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
	va_end(ap);
	if (!is_about(line, level))
		return;
	for (char *p = line; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?'; /* some of it may be a guest's, who would like to write a line */
	fprintf(stderr, "%s\n", line);
}
