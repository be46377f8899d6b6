/*
 * client/calls.c - the common calls, typed
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "client/client_internal.h"
#include "client/panda.h"

static void drop_json(json_t **j)
{
	json_decref(*j);
}

#define autojson AUTO(drop_json)

static int call(struct panda *p, const char *method, char *path, json_t *body, json_t **ret,
                struct panda_error *e)
{
	int r = path ? panda_call(p, method, path, body, ret, e) : perr_nomem(e);

	free(path);
	return r;
}

int panda_create(struct panda *p, const char *template_name, json_t *options, json_t **ret,
                 struct panda_error *e)
{
	autojson json_t *body = options ? json_copy(options) : json_object();

	if (!body)
		return perr_nomem(e);
	if (template_name && json_object_set_new(body, "template", json_string(template_name)) < 0)
		return perr_set(e, EINVAL, "bad_argument", "the template's name is not UTF-8");
	return panda_call(p, "POST", "/v1/sandboxes", body, ret, e);
}

int panda_list(struct panda *p, json_t **ret, struct panda_error *e)
{
	return panda_call(p, "GET", "/v1/sandboxes", NULL, ret, e);
}

int panda_get(struct panda *p, const char *id, json_t **ret, struct panda_error *e)
{
	return call(p, "GET", panda_path("/v1/sandboxes/%s", id), NULL, ret, e);
}

int panda_kill(struct panda *p, const char *id, struct panda_error *e)
{
	return call(p, "DELETE", panda_path("/v1/sandboxes/%s", id), NULL, NULL, e);
}

int panda_pause(struct panda *p, const char *id, struct panda_error *e)
{
	return call(p, "POST", panda_path("/v1/sandboxes/%s/pause", id), NULL, NULL, e);
}

int panda_resume(struct panda *p, const char *id, struct panda_error *e)
{
	return call(p, "POST", panda_path("/v1/sandboxes/%s/resume", id), NULL, NULL, e);
}

int panda_hibernate(struct panda *p, const char *id, struct panda_error *e)
{
	return call(p, "POST", panda_path("/v1/sandboxes/%s/hibernate", id), NULL, NULL, e);
}

int panda_wake(struct panda *p, const char *id, struct panda_error *e)
{
	return call(p, "POST", panda_path("/v1/sandboxes/%s/wake", id), NULL, NULL, e);
}

int panda_fork(struct panda *p, const char *id, int count, json_t **ret, struct panda_error *e)
{
	autojson json_t *body = json_pack("{s:i}", "count", count);
	autojson json_t *reply = NULL;
	json_t *kids;
	int r;

	if (!body)
		return perr_nomem(e);
	r = call(p, "POST", panda_path("/v1/sandboxes/%s/fork", id), body, &reply, e);
	if (r < 0)
		return r;
	kids = json_object_get(reply, "sandboxes");
	if (!json_is_array(kids))
		return perr_set(e, EPROTO, "protocol", "the server told no children of the fork");
	if (ret)
		*ret = json_incref(kids);
	return 0;
}

int panda_snapshot(struct panda *p, const char *id, const char *name, json_t **ret,
                   struct panda_error *e)
{
	autojson json_t *body = name ? json_pack("{s:s}", "name", name) : json_object();

	if (!body)
		return perr_set(e, EINVAL, "bad_argument", "the snapshot's name is not UTF-8");
	return call(p, "POST", panda_path("/v1/sandboxes/%s/snapshots", id), body, ret, e);
}

static int copy_text(json_t *j, const char *key, char **ret, size_t *ret_len)
{
	json_t *v = json_object_get(j, key);
	size_t n = json_string_length(v);
	char *s = malloc(n + 1);

	if (!s)
		return -ENOMEM;
	if (n)
		memcpy(s, json_string_value(v), n);
	s[n] = 0;
	*ret = s;
	*ret_len = n;
	return 0;
}

int panda_exec(struct panda *p, const char *id, const char *cmd, int timeout_s,
               struct panda_exec *ret, struct panda_error *e)
{
	autojson json_t *body = json_pack("{s:s}", "cmd", cmd);
	autojson json_t *reply = NULL;
	struct panda_exec x = {0};
	int r, kept = p->timeout_ms;

	if (!body)
		return perr_set(e, EINVAL, "bad_argument", "the command is not UTF-8");
	if (timeout_s > 0 && json_object_set_new(body, "timeout_seconds", json_integer(timeout_s)))
		return perr_nomem(e);
	/* The server ends the command in time; we only must not give up before it. */
	if (kept > 0 && timeout_s > 0 && kept / 1000 < timeout_s + 30)
		p->timeout_ms = timeout_s < 1 << 20 ? (timeout_s + 30) * 1000 : -1;
	r = call(p, "POST", panda_path("/v1/sandboxes/%s/exec", id), body, &reply, e);
	p->timeout_ms = kept;
	if (r < 0)
		return r;
	if (!json_is_integer(json_object_get(reply, "exit_code")))
		return perr_set(e, EPROTO, "protocol", "the server told no exit code");
	x.exit_code = (int)json_integer_value(json_object_get(reply, "exit_code"));
	x.duration_ms = (int)json_integer_value(json_object_get(reply, "duration_ms"));
	x.timed_out = json_is_true(json_object_get(reply, "timed_out"));
	x.truncated = json_is_true(json_object_get(reply, "truncated"));
	if (copy_text(reply, "stdout", &x.out, &x.out_len) < 0 ||
	    copy_text(reply, "stderr", &x.err, &x.err_len) < 0) {
		panda_exec_fini(&x);
		return perr_nomem(e);
	}
	*ret = x;
	return 0;
}

void panda_exec_fini(struct panda_exec *x)
{
	free(x->out);
	free(x->err);
	*x = (struct panda_exec){0};
}

struct piece {
	char *p;
	size_t len, cap, max;
};

static int to_piece(void *arg, const void *data, size_t n)
{
	struct piece *t = arg;
	size_t cap = t->cap ? t->cap : 4096;
	char *more;

	if (n > t->max - t->len)
		return -EFBIG;
	while (cap < t->len + n + 1)
		cap *= 2;
	if (cap != t->cap) {
		more = realloc(t->p, cap);
		if (!more)
			return -ENOMEM;
		t->p = more;
		t->cap = cap;
	}
	memcpy(t->p + t->len, data, n);
	t->len += n;
	return 0;
}

int panda_file_read(struct panda *p, const char *id, const char *path, size_t max, char **ret,
                    size_t *ret_len, struct panda_error *e)
{
	autofree char *at = panda_path("/v1/sandboxes/%s/fs?path=%s", id, path);
	struct piece t = {.max = max};
	int r = at ? panda_download(p, at, to_piece, &t, e) : perr_nomem(e);

	if (r == 0 && !t.p && !(t.p = malloc(1)))
		r = perr_nomem(e);
	if (r == -EFBIG && e && !strcmp(e->code, "stopped"))
		perr_set(e, EFBIG, "too_large", "%.200s is larger than %zu bytes", path, max);
	if (r < 0) {
		free(t.p);
		return r;
	}
	t.p[t.len] = 0;
	*ret = t.p;
	if (ret_len)
		*ret_len = t.len;
	return 0;
}

struct bytes {
	const char *p;
	size_t n;
};

static ssize_t from_bytes(void *arg, void *buf, size_t n)
{
	struct bytes *b = arg;

	n = MIN(n, b->n);
	memcpy(buf, b->p, n);
	b->p += n;
	b->n -= n;
	return (ssize_t)n;
}

int panda_file_write(struct panda *p, const char *id, const char *path, const void *data, size_t n,
                     unsigned mode, struct panda_error *e)
{
	struct bytes b = {.p = data, .n = n};
	char octal[16];
	autofree char *at = NULL;

	snprintf(octal, sizeof(octal), "%04o", mode);
	at = mode ? panda_path("/v1/sandboxes/%s/fs?path=%s&mode=%s", id, path, octal)
	          : panda_path("/v1/sandboxes/%s/fs?path=%s", id, path);
	return at ? panda_upload(p, "PUT", at, (int64_t)n, from_bytes, &b, NULL, e) : perr_nomem(e);
}
