/*
 * api/router.c - which route is responsible for a request
 * The table is short and a segment is compared in a few cycles: it is walked from the top, and the
 * first pattern that fits wins.
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "http/url.h"

struct span {
	const char *p;
	size_t n;
};

void match_fini(struct route_match *m)
{
	for (size_t i = 0; i < API_PARAMS_MAX; i++)
		free(m->param[i]);
	memset(m, 0, sizeof(*m));
}

/* Does the path fit? What stands for the parameters comes back as sent. */
static bool fits(const char *pattern, const char *path, struct span args[API_PARAMS_MAX],
                 size_t *ret_n)
{
	size_t n = 0;

	while (*pattern) {
		size_t want = strcspn(++pattern, "/"), have;

		if (*path != '/')
			return false;
		path++;
		if (want > 5 && pattern[0] == '{' && memcmp(pattern + want - 4, "...}", 4) == 0) {
			args[n++] = (struct span){path, strlen(path)};
			*ret_n = n;
			return true;
		}
		have = strcspn(path, "/");
		if (pattern[0] == '{') {
			if (have == 0)
				return false;
			args[n++] = (struct span){path, have};
		} else if (have != want || memcmp(path, pattern, want) != 0) {
			return false;
		}
		pattern += want;
		path += have;
		/* "/proxy/80" is "/proxy/80/" */
		if (*path == 0 && strncmp(pattern, "/{", 2) == 0 && strstr(pattern, "...}"))
			path = "/";
	}
	*ret_n = n;
	return *path == 0 || strcmp(path, "/") == 0;
}

static bool rest(const struct route *r)
{
	size_t n = strlen(r->path);

	return n > 4 && strcmp(r->path + n - 4, "...}") == 0;
}

static bool method_fits(const struct route *r, const char *method)
{
	if (strcmp(r->method, "*") == 0 || strcmp(r->method, method) == 0)
		return true;
	/* Streams have no end, so HEAD is only for what load balancers and browsers look at. */
	return r->scope == SCOPE_NONE && strcmp(method, "HEAD") == 0 &&
	       strcmp(r->method, "GET") == 0;
}

int route_find(const char *method, const char *path, struct route_match *ret)
{
	struct route_match m = {0};
	struct span args[API_PARAMS_MAX];
	size_t nargs = 0, used = 0;

	for (size_t i = 0; i < nroutes && !m.route; i++) {
		int k;

		if (!fits(routes[i].path, path, args, &nargs))
			continue;
		if (method_fits(&routes[i], method)) {
			m.route = &routes[i];
			break;
		}
		if (strstr(m.allow, routes[i].method))
			continue;
		k = snprintf(m.allow + used, sizeof(m.allow) - used, "%s%s", used ? ", " : "",
		             routes[i].method);
		if (k > 0 && (size_t)k < sizeof(m.allow) - used)
			used += (size_t)k;
	}
	if (!m.route) {
		memset(ret, 0, sizeof(*ret));
		memcpy(ret->allow, m.allow, sizeof(m.allow));
		return used ? -EPERM : -ENOENT;
	}
	for (size_t i = 0; i < nargs; i++) {
		int r = 0;

		/* What follows a proxy's port is for the guest to understand. */
		if (rest(m.route) && i == nargs - 1)
			m.param[i] = strndup(args[i].p, args[i].n);
		else
			r = url_decode(args[i].p, args[i].n, 0, &m.param[i]);
		if (r == 0 && !m.param[i])
			r = -ENOMEM;
		if (r < 0) {
			match_fini(&m);
			return r;
		}
	}
	*ret = m;
	return 0;
}

const char *route_scope(const struct route *r)
{
	static const char *const words[] = {
	    [SCOPE_SANDBOX] = "sandbox", [SCOPE_NONE] = "none",        [SCOPE_READ] = "read",
	    [SCOPE_EXEC] = "exec",       [SCOPE_OWN] = "sandbox:<id>", [SCOPE_ADMIN] = "admin"};

	return words[r->scope];
}
