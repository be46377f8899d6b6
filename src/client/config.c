/*
 * client/config.c - which server, and with which key: what was said, then the environment, then the
 * file
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "client/client_internal.h"
#include "client/panda.h"

static const char *first_of(env_fn env, const char *a, const char *b)
{
	const char *v = env(a);

	if (v && *v)
		return v;
	v = b ? env(b) : NULL;
	return v && *v ? v : NULL;
}

static int config_path(env_fn env, char **ret)
{
	const char *xdg = first_of(env, "XDG_CONFIG_HOME", NULL);
	const char *home = first_of(env, "HOME", NULL);
	int r;

	if (xdg)
		r = asprintf(ret, "%s/pandastack/config.json", xdg);
	else if (home)
		r = asprintf(ret, "%s/.config/pandastack/config.json", home);
	else
		return -ENOENT;
	return r < 0 ? -ENOMEM : 0;
}

/* *ret stays NULL when there is no file; one that cannot be read as JSON is an error: its
 * author wants to know. */
static int read_config(env_fn env, json_t **ret, struct panda_error *e)
{
	autofree char *path = NULL, *text = NULL;
	json_error_t why;
	size_t n;
	int r = config_path(env, &path);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return perr_nomem(e);
	r = io_read_file(AT_FDCWD, path, CLIENT_CONFIG_MAX, &text, &n);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	if (r < 0)
		return perr_set(e, -r, "bad_config", "cannot read %.200s: %s", path, strerror(-r));
	*ret = json_loadb(text, n, 0, &why);
	if (!*ret)
		return perr_set(e, EINVAL, "bad_config", "%.200s is not JSON, line %d: %s", path,
		                why.line, why.text);
	return 0;
}

static const char *text_in(json_t *j, const char *const *keys)
{
	for (; *keys; keys++) {
		const char *v = json_string_value(json_object_get(j, *keys));

		if (v && *v)
			return v;
	}
	return NULL;
}

static bool this_host(const struct target *t)
{
	return t->unix_socket || strcasecmp(t->host, "localhost") == 0 ||
	       strcmp(t->host, "127.0.0.1") == 0 || strcmp(t->host, "::1") == 0;
}

/* Is the server at url on the host of the one at named? No, if either says nothing that we read. */
static bool same_host(const char *url, const char *named)
{
	struct target a = {0}, b = {0};
	bool same = target_parse(url, &a, NULL) == 0 && target_parse(named, &b, NULL) == 0 &&
	            (strcasecmp(a.host, b.host) == 0 || (this_host(&a) && this_host(&b)));

	target_fini(&a);
	target_fini(&b);
	return same;
}

int settings_load(const struct panda_config *c, env_fn env, struct settings *ret,
                  struct panda_error *e)
{
	static const char *const key_names[] = {"token", "apiKey", "api_key", NULL};
	static const char *const url_names[] = {"apiUrl", "api_url", NULL};
	const char *url = c && c->url && *c->url ? c->url : NULL;
	const char *key = c ? c->key : NULL, *named;
	struct settings s = {0};
	json_t *file = NULL;
	int r = 0;

	if (!url)
		url = first_of(env, "PANDASTACK_API", NULL);
	if (!key)
		key = first_of(env, "PANDASTACK_API_KEY", "PANDASTACK_TOKEN");
	if (!url || !key) {
		r = read_config(env, &file, e);
		if (r < 0)
			goto out;
		named = text_in(file, url_names);
		if (!url)
			url = named;
		/* A key in a file belongs to the server named beside it, and to no other host. */
		if (!key && (!named || same_host(url, named)))
			key = text_in(file, key_names);
	}
	for (const char *p = key; p && *p; p++)
		if (*p <= ' ' || *p >= 0x7f) {
			r = perr_set(e, EINVAL, "bad_config",
			             "the API key has a space or control character in it: look "
			             "for a line end in PANDASTACK_API_KEY or the file");
			goto out;
		}
	s.url = strdup(url ? url : "http://127.0.0.1:8080");
	s.key = key && *key ? strdup(key) : NULL;
	if (!s.url || (key && *key && !s.key)) {
		settings_fini(&s);
		r = perr_nomem(e);
		goto out;
	}
	*ret = s;
out:
	json_decref(file);
	return r;
}

void settings_fini(struct settings *s)
{
	free(s->url);
	free(s->key);
	*s = (struct settings){0};
}
