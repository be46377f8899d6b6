#include "api/json_in.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Behind the string that begins at p, or end. */
static const char *past_string(const char *p, const char *end)
{
	const char *quote, *from = ++p;

	for (; (quote = memchr(p, '"', (size_t)(end - p))); p = quote + 1) {
		const char *slash = quote;

		while (slash > from && slash[-1] == '\\')
			slash--;
		if ((quote - slash) % 2 == 0)
			return quote + 1;
		from = quote + 1;
	}
	return end;
}

size_t json_values(const char *p, size_t n)
{
	const char *end = p + n;
	size_t values = 1;

	while (p < end) {
		if (*p == '"') {
			p = past_string(p, end);
			continue;
		}
		values += *p == ',' || *p == '[' || *p == '{';
		p++;
	}
	return values;
}

json_t *json_in(const char *p, size_t n, json_error_t *why)
{
	if (json_values(p, n) <= JSON_VALUES_MAX)
		return json_loadb(p, n, 0, why);
	if (why) {
		*why = (json_error_t){.line = 1};
		snprintf(why->text, sizeof(why->text), "it has more than %d values",
		         JSON_VALUES_MAX);
	}
	return NULL;
}
