#include "api/streams/exec_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/streams/exec.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "template/depot.h"
#include "template/template.h"
#include "wire/guest.h"

enum {
	COLLECT_WINDOW = GUEST_WINDOW,
};

static uint8_t lists[WIRE_PAYLOAD_MAX]; /* argv, and env behind it; loop thread only */

void exec_message_freep(struct exec_message **p)
{
	struct exec_message *b = *p;

	if (!b)
		return;
	for (size_t i = 0; i < b->n_owned; i++)
		free(b->owned[i]);
	free(b->owned);
	free(b->strv);
	free(b);
}

static int too_large(struct err *e)
{
	return err_set(e, E2BIG, "too_large",
	               "command, arguments and environment together may have %d bytes; "
	               "put more into stdin or a file",
	               WIRE_PAYLOAD_MAX);
}

static int lay_out_argv(struct exec_message *b, const struct exec_spec *s, const char *cmd,
                        struct err *e)
{
	size_t n = s->argv ? json_array_size(s->argv) : 1;

	b->strv = calloc(n + 1, sizeof(*b->strv));
	if (!b->strv)
		return err_nomem(e);
	if (s->argv) {
		for (size_t i = 0; i < n; i++)
			b->strv[i] = json_string_value(json_array_get(s->argv, i));
	} else {
		b->strv[0] = cmd;
		b->m.flags |= WIRE_EXEC_SHELL;
	}
	if (wire_list_build((char *const *)b->strv, lists, sizeof(lists), &b->m.argv) < 0)
		return too_large(e);
	return 0;
}

static int lay_out_env(struct exec_message *b, const json_t *lowest, const json_t *under,
                       const json_t *over, struct err *e)
{
	json_t *all = json_object();
	const json_t *v;
	const char *key;
	int r = 0;

	/* The later ones win: the template's, the sandbox's, the command's. */
	if (!all || (json_is_object(lowest) && json_object_update(all, (json_t *)lowest) < 0) ||
	    (json_is_object(under) && json_object_update(all, (json_t *)under) < 0) ||
	    (over && json_object_update(all, (json_t *)over) < 0))
		r = err_nomem(e);
	if (r == 0) {
		b->owned = calloc(json_object_size(all) + 1, sizeof(*b->owned));
		if (!b->owned)
			r = err_nomem(e);
	}
	if (r == 0) {
		json_object_foreach(all, key, v) {
			if (!json_is_string(v))
				continue;
			if (asprintf(&b->owned[b->n_owned], "%s=%s", key, json_string_value(v)) <
			    0) {
				b->owned[b->n_owned] = NULL;
				r = err_nomem(e);
				break;
			}
			b->n_owned++;
		}
	}
	json_decref(all);
	if (r == 0 && wire_list_build(b->owned, lists + b->m.argv.len,
	                              sizeof(lists) - b->m.argv.len, &b->m.env) < 0)
		r = too_large(e);
	return r;
}

/* What the template says about every command. Returns its variables, borrowed, or NULL. */
static const json_t *use_template(struct exec_message *b, const struct exec_spec *s, struct host *h,
                                  const struct sandbox *sb)
{
	struct template *t = template_find(h->depot.templates, sb->tenant, sb->spec.template, NULL);
	const char *dir = t ? json_string_value(json_object_get(t->doc, "workdir")) : NULL;
	const char *user = t ? json_string_value(json_object_get(t->doc, "user")) : NULL;

	if (!s->user && user)
		b->m.user = wire_str(user);
	if (!s->cwd && dir && *dir == '/' && strcmp(dir, "/") != 0) {
		b->m.cwd = wire_str(dir);
		b->own_cwd = true;
	}
	return t ? json_object_get(t->doc, "env") : NULL;
}

static uint32_t flags_of(const struct exec_spec *s)
{
	return WIRE_EXEC_STARTED | (s->pty ? WIRE_EXEC_PTY : 0) |
	       (s->detach ? WIRE_EXEC_DETACH : 0) | (s->hangup ? WIRE_EXEC_HANGUP : 0) |
	       (s->hold ? WIRE_EXEC_HOLD : 0);
}

struct exec_message *exec_message_new(struct host *h, const struct sandbox *sb,
                                      const struct exec_spec *s, const char *cmd, bool reads,
                                      struct err *e)
{
	struct exec_message *b AUTO(exec_message_freep) = calloc(1, sizeof(*b));
	const json_t *env;

	if (!b) {
		err_nomem(e);
		return NULL;
	}
	b->m = (struct wire_exec){.flags = flags_of(s) | (reads ? WIRE_EXEC_STDIN : 0),
	                          .window = s->output_max ? COLLECT_WINDOW : EXEC_WINDOW,
	                          .timeout_ms = s->timeout_ms,
	                          .rows = s->rows,
	                          .cols = s->cols,
	                          .cwd = wire_str(s->cwd ? s->cwd : ""),
	                          .user = wire_str(s->user ? s->user : "")};
	env = use_template(b, s, h, sb);
	if (lay_out_argv(b, s, cmd, e) < 0 || lay_out_env(b, env, sb->spec.env, s->env, e) < 0)
		return NULL;
	return take_ptr(b);
}
