/*
 * "METHOD path" against the table. The promise: a path made again from the pattern and the
 * parameters that were found leads to the same route with the same parameters.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/cleanup.h"
#include "http/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *path_of(const struct route_match *m)
{
	char *text = NULL;
	size_t n, k = 0;
	FILE *f = open_memstream(&text, &n);

	assert(f);
	for (const char *p = m->route->path; *p;) {
		autofree char *encoded = NULL;
		const char *end = strchr(p, '}');

		if (*p != '{') {
			fputc(*p++, f);
			continue;
		}
		if (end[-1] == '.') {
			fputs(m->param[k++], f);
		} else {
			assert(url_encode(m->param[k++], &encoded) == 0);
			for (const char *c = encoded; *c; c++)
				*c == '/' ? fputs("%2F", f) : fputc(*c, f);
		}
		p = end + 1;
	}
	fclose(f);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	autofree char *text = strndup((const char *)data, size), *again = NULL;
	char *path = text ? strchr(text, ' ') : NULL;
	struct route_match m, other;

	if (!path)
		return 0;
	*path++ = 0;
	if (route_find(text, path, &m) < 0)
		return 0;
	again = path_of(&m);
	assert(route_find(text, again, &other) == 0 && other.route == m.route);
	for (size_t i = 0; i < API_PARAMS_MAX; i++)
		assert(!m.param[i] == !other.param[i] &&
		       (!m.param[i] || !strcmp(m.param[i], other.param[i])));
	match_fini(&m);
	match_fini(&other);
	return 0;
}
