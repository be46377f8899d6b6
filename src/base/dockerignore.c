#include "base/dockerignore.h"

#include <stdio.h>
#include <string.h>

#include "base/glob.h"

/* The next line that says something, as a pattern of all that is below it, too. NULL: no more. */
static const char *next(const char *p, char pattern[IGNORE_LINE_MAX + 4], bool *ret_except)
{
	while (p && *p) {
		size_t n = strcspn(p, "\r\n");
		const char *line = p;

		p += n + (p[n] != 0);
		while (n && strchr(" \t", *line))
			line++, n--;
		if (n == 0 || *line == '#')
			continue;
		*ret_except = *line == '!';
		while (n && strchr(" \t!/", *line))
			line++, n--;
		if (n > 1 && !strncmp(line, "./", 2))
			line += 2, n -= 2;
		while (n && strchr(" \t/", line[n - 1]))
			n--;
		if (n == 0 || n > IGNORE_LINE_MAX)
			continue;
		if (n == 1 && *line == '.')
			snprintf(pattern, IGNORE_LINE_MAX + 4, "**");
		else
			snprintf(pattern, IGNORE_LINE_MAX + 4, "%.*s/**", (int)n, line);
		return p;
	}
	return NULL;
}

bool ignore_leaves_out(const char *text, const char *path)
{
	char pattern[IGNORE_LINE_MAX + 4];
	bool out = false, except = false;

	while ((text = next(text, pattern, &except)))
		if (out == except && glob_match(pattern, path))
			out = !except;
	return out;
}

bool ignore_has_exceptions(const char *text)
{
	char pattern[IGNORE_LINE_MAX + 4];
	bool except = false;

	while (!except && (text = next(text, pattern, &except)))
		;
	return except;
}
