/*
 * client/target.c - where a URL points
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "client/client_internal.h"

static int bad(struct panda_error *e, const char *url, const char *why)
{
	return perr_set(e, EINVAL, "bad_config",
	                "'%.100s' is no URL that we can use: %s (example: http://127.0.0.1:8080)",
	                url, why);
}

/* Nothing that could end a line of our request or start a second one. */
static bool printable(const char *s)
{
	for (; *s; s++)
		if (*s <= ' ' || *s == 0x7f)
			return false;
	return true;
}

static int port_of(const char *s, size_t n)
{
	int v = 0;

	if (!n || n > 5)
		return -1;
	for (size_t i = 0; i < n; i++) {
		if (!isdigit((unsigned char)s[i]))
			return -1;
		v = v * 10 + (s[i] - '0');
	}
	return v >= 1 && v <= 65535 ? v : -1;
}

static int parse_unix(const char *url, struct target *ret, struct panda_error *e)
{
	struct target t = {.unix_socket = true};

	if (url[5] != '/' || strlen(url + 5) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return bad(
		    e, url,
		    "behind unix: stands the whole path of a socket, of at most 107 letters");
	t.host = strdup(url + 5);
	t.prefix = strdup("");
	t.authority = strdup("localhost");
	t.url = strdup(url);
	if (!t.host || !t.prefix || !t.authority || !t.url) {
		target_fini(&t);
		return perr_nomem(e);
	}
	*ret = t;
	return 0;
}

int target_parse(const char *url, struct target *ret, struct panda_error *e)
{
	struct target t = {.port = 80};
	const char *host, *path, *port = NULL, *end;
	size_t nhost, nprefix;
	char shown[8] = "";
	bool v6;
	int r;

	if (!strncmp(url, "unix:", 5))
		return parse_unix(url, ret, e);
	if (!strncasecmp(url, "http://", 7)) {
		host = url + 7;
	} else if (!strncasecmp(url, "https://", 8)) {
		host = url + 8;
		t.tls = true;
		t.port = 443;
	} else {
		return bad(e, url, "it begins with neither http://, https:// nor unix:");
	}
	if (!printable(url))
		return bad(e, url, "there are spaces or control characters in it");
	path = host + strcspn(host, "/?#");
	if (strpbrk(path, "?#"))
		return bad(e, url, "it has a query");
	if (memchr(host, '@', (size_t)(path - host)))
		return bad(e, url, "keys go into PANDASTACK_API_KEY, not into the URL");
	v6 = *host == '[';
	if (v6) {
		end = memchr(host, ']', (size_t)(path - host));
		if (!end)
			return bad(e, url, "the ']' is missing");
		host++;
		nhost = (size_t)(end - host);
		if (end + 1 != path) {
			if (end[1] != ':')
				return bad(e, url, "there is something behind the ']'");
			port = end + 2;
		}
	} else {
		end = memchr(host, ':', (size_t)(path - host));
		nhost = (size_t)((end ? end : path) - host);
		port = end ? end + 1 : NULL;
	}
	if (!nhost)
		return bad(e, url, "the host is missing");
	if (port) {
		r = port_of(port, (size_t)(path - port));
		if (r < 0)
			return bad(e, url, "the port is not a number from 1 to 65535");
		if (r != t.port)
			snprintf(shown, sizeof(shown), ":%d", r);
		t.port = r;
	}
	nprefix = strlen(path);
	while (nprefix && path[nprefix - 1] == '/')
		nprefix--;
	/* Both ways of writing it are in use; our own paths say /v1 themselves. */
	if (nprefix >= 3 && !strncmp(path + nprefix - 3, "/v1", 3))
		nprefix -= 3;
	while (nprefix && path[nprefix - 1] == '/')
		nprefix--;

	t.host = strndup(host, nhost);
	t.prefix = strndup(path, nprefix);
	if (asprintf(&t.authority, "%s%.*s%s%s", v6 ? "[" : "", (int)nhost, host, v6 ? "]" : "",
	             shown) < 0)
		t.authority = NULL;
	if (!t.authority || asprintf(&t.url, "%s://%s%.*s", t.tls ? "https" : "http", t.authority,
	                             (int)nprefix, path) < 0)
		t.url = NULL;
	if (!t.host || !t.prefix || !t.authority || !t.url) {
		target_fini(&t);
		return perr_nomem(e);
	}
	*ret = t;
	return 0;
}

void target_fini(struct target *t)
{
	free(t->url);
	free(t->host);
	free(t->prefix);
	free(t->authority);
	*t = (struct target){0};
}
