#include "api/streams/exec.h"

#include <math.h>
#include <string.h>

#include "api/streams/job.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "template/template.h"

enum {
	ARGS_MAX = 4096,
	TIMEOUT_MAX_S = 365 * 24 * 3600,
	COLLECT_WINDOW = GUEST_WINDOW,
};

/* ---- the wish ---- */

static int want_text(const json_t *body, const char *key, const char **ret, struct err *e)
{
	const json_t *v = json_object_get(body, key);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return err_set(e, EINVAL, "bad_request", "%s must be a string", key);
	*ret = json_string_value(v);
	return 0;
}

static int want_lists(const json_t *body, struct exec_spec *s, struct err *e)
{
	const json_t *v, *argv = json_object_get(body, "argv"), *env = json_object_get(body, "env");
	const char *key;
	size_t i;

	if (argv && !json_is_null(argv)) {
		if (!json_is_array(argv) || !json_array_size(argv) ||
		    json_array_size(argv) > ARGS_MAX)
			return err_set(e, EINVAL, "bad_request",
			               "argv must be a list of 1 to %d strings", ARGS_MAX);
		json_array_foreach(argv, i, v)
			if (!json_is_string(v))
				return err_set(e, EINVAL, "bad_request",
				               "argv[%zu] must be a string", i);
		s->argv = argv;
	}
	if (env && !json_is_null(env)) {
		if (!json_is_object(env) || json_object_size(env) > ARGS_MAX)
			return err_set(e, EINVAL, "bad_request",
			               "env must be an object of up to %d strings", ARGS_MAX);
		json_object_foreach((json_t *)env, key, v)
			if (!*key || strchr(key, '=') || !json_is_string(v))
				return err_set(e, EINVAL, "bad_request",
				               "env: '%.60s' must be a name without '=', "
				               "and its value a string",
				               key);
		s->env = env;
	}
	return 0;
}

int exec_spec_parse(const json_t *body, struct exec_spec *ret, struct err *e)
{
	const json_t *t = json_object_get(body, "timeout_seconds");
	const json_t *max = json_object_get(body, "max_output_bytes");
	struct exec_spec s = {.timeout_ms = EXEC_TIMEOUT_MS, .output_max = EXEC_OUTPUT_MAX};
	int r;

	if ((r = want_text(body, "cmd", &s.cmd, e)) < 0 ||
	    (r = want_text(body, "cwd", &s.cwd, e)) < 0 ||
	    (r = want_text(body, "user", &s.user, e)) < 0 ||
	    (r = want_text(body, "stdin", &s.in, e)) < 0 || (r = want_lists(body, &s, e)) < 0)
		return r;
	s.in_len = json_string_length(json_object_get(body, "stdin"));
	if (!s.argv && (!s.cmd || !*s.cmd))
		return err_set(e, EINVAL, "bad_request",
		               "cmd required: a shell command, or argv, a list of words");
	if (s.argv && s.cmd)
		return err_set(e, EINVAL, "bad_request", "give cmd or argv, not both");
	if (s.cwd && *s.cwd != '/')
		return err_set(e, EINVAL, "bad_request", "cwd must be an absolute path");
	if (t && !json_is_null(t)) {
		double seconds = json_number_value(t);

		if (!json_is_number(t) || !(seconds >= 0) || seconds > TIMEOUT_MAX_S)
			return err_set(e, EINVAL, "bad_request",
			               "timeout_seconds must be a number from 0 (none) to %d",
			               TIMEOUT_MAX_S);
		s.timeout_ms = (uint64_t)ceil(seconds * 1000);
	}
	if (max && !json_is_null(max)) {
		if (!json_is_integer(max) || json_integer_value(max) < 1)
			return err_set(e, EINVAL, "bad_request",
			               "max_output_bytes must be a number from 1 on");
		s.output_max = (size_t)MIN(json_integer_value(max), (json_int_t)EXEC_OUTPUT_MAX);
	}
	*ret = s;
	return 0;
}

/* ---- as a message ---- */

struct message {
	struct wire_exec m;
	const char **strv;
	char **owned; /* "KEY=value" */
	size_t n_owned;
	char script[64];
	const char *cmd;
	const json_t *env; /* of the template */
	bool own_cwd;      /* the template's, not the caller's */
};

static uint8_t lists[WIRE_PAYLOAD_MAX]; /* argv, and env behind it; loop thread only */

static void message_freep(struct message **p)
{
	struct message *b = *p;

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

static int lay_out_argv(struct message *b, const struct exec_spec *s, struct err *e)
{
	size_t n = s->argv ? json_array_size(s->argv) : 1;

	b->strv = calloc(n + 1, sizeof(*b->strv));
	if (!b->strv)
		return err_nomem(e);
	if (s->argv) {
		for (size_t i = 0; i < n; i++)
			b->strv[i] = json_string_value(json_array_get(s->argv, i));
	} else {
		b->strv[0] = b->cmd;
		b->m.flags |= WIRE_EXEC_SHELL;
	}
	if (wire_list_build((char *const *)b->strv, lists, sizeof(lists), &b->m.argv) < 0)
		return too_large(e);
	return 0;
}

static int lay_out_env(struct message *b, const json_t *under, const json_t *over, struct err *e)
{
	json_t *all = json_object();
	const json_t *v;
	const char *key;
	int r = 0;

	/* The later ones win: the template's, the sandbox's, the command's. */
	if (!all || (json_is_object(b->env) && json_object_update(all, (json_t *)b->env) < 0) ||
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

/* ---- a command ---- */

struct exec_job {
	struct job *job;
	const struct exec_ops *ops;
	void *arg;
	uint64_t began_ns;
	char *in; /* what it reads, from in_at on */
	size_t in_len, in_at;
	bool keep_open, argv, fed;
	bool started, exited;
	/* The template's directory may be gone: then the same again, from the root. */
	struct host *host;
	char sandbox[SANDBOX_ID + 1];
	uint8_t *again;
	size_t again_len;
	struct exec_exit exit;
};

static void exec_free(struct exec_job *x)
{
	free(x->in);
	free(x->again);
	free(x);
}

static void feed(struct exec_job *x)
{
	if (!x->job || !x->in || x->fed)
		return;
	x->in_at += job_send(x->job, x->in + x->in_at, x->in_len - x->in_at);
	if (x->in_at < x->in_len)
		return;
	x->fed = true;
	if (!x->keep_open)
		job_send_eof(x->job);
}

void exec_exit_of(const struct wire_exited *m, struct exec_exit *ret)
{
	bool killed = m->how == WIRE_HOW_SIGNAL;

	ret->timed_out = m->flags & WIRE_EXITED_TIMEOUT;
	ret->oom_killed = m->flags & WIRE_EXITED_OOM;
	ret->signal = killed && !ret->timed_out ? (int)m->code : 0;
	ret->exit_code = ret->timed_out ? EXEC_TIMED_OUT : (int)m->code + (killed ? 128 : 0);
}

json_t *exec_exit_json(const struct exec_exit *x)
{
	json_t *j = json_pack("{s:i, s:b}", "exit_code", x->exit_code, "timed_out", x->timed_out);

	if (x->signal)
		json_object_set_new(j, "signal", json_integer(x->signal));
	if (x->oom_killed)
		json_object_set_new(j, "oom_killed", json_true());
	return j;
}

static void tell_oom(const struct exec_job *x, uint64_t id)
{
	struct sandbox *sb = host_find(x->host, NULL, x->sandbox);

	if (sb)
		event_emit(&x->host->events, sb->tenant, sb->id, "exec.oom_killed",
		           json_pack("{s:o, s:i}", "exec_id",
		                     json_sprintf("%llu", (unsigned long long)id), "exit_code",
		                     x->exit.exit_code));
}

static void on_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct exec_job *x = arg;

	x->ops->data(x->arg, chan == WIRE_ERR, p, n);
}

static void on_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	struct exec_job *x = arg;

	if (type == WIRE_STARTED && !x->started) {
		const struct wire_started *m = msg;

		x->started = true; /* a guest that says it twice is heard once */
		if (x->ops->started)
			x->ops->started(x->arg, m->id, m->pid);
	} else if (type == WIRE_EXITED) {
		x->exited = true;
		exec_exit_of(msg, &x->exit);
		if (x->exit.oom_killed)
			tell_oom(x, ((const struct wire_exited *)msg)->id);
	}
}

static void on_writable(void *arg, struct job *j)
{
	struct exec_job *x = arg;

	if (x->in && !x->fed)
		feed(x);
	else if (x->ops->writable)
		x->ops->writable(x->arg);
}

/* It did not start. What a shell would have said, where there is no shell. */
static bool as_shell_says(struct exec_job *x, const struct job_end *end)
{
	char text[160];
	bool missing = end->guest == ENOENT || end->guest == ENOTDIR;

	if (!x->argv || end->e || end->reason != WIRE_REASON_PROGRAM ||
	    (!missing && end->guest != EACCES && end->guest != ENOEXEC))
		return false;
	snprintf(text, sizeof(text), "panda: cannot start the program: %s\n", strerror(end->guest));
	x->ops->data(x->arg, true, text, strlen(text));
	x->exit.exit_code = missing ? 127 : 126;
	return true;
}

static const struct job_ops job_ops;

static bool from_the_root(struct exec_job *x, const struct job_end *end)
{
	struct sandbox *sb = host_find(x->host, NULL, x->sandbox);
	struct wire_exec m;

	if (!x->again || end->e || !sb || end->reason != WIRE_REASON_DIRECTORY ||
	    wire_exec_decode(x->again, x->again_len, &m) < 0)
		return false;
	m.cwd = wire_str("/");
	x->fed = false;
	x->in_at = 0;
	x->job = job_start(x->host, sb, WIRE_EXEC, &m, &job_ops, x, NULL);
	free(x->again);
	x->again = NULL;
	feed(x);
	return x->job;
}

static void on_end(void *arg, struct job *j, const struct job_end *end)
{
	struct exec_job *x = arg;
	struct err e = {0};

	x->job = NULL;
	if (end->guest && from_the_root(x, end))
		return;
	x->exit.duration_ms = (mono_ns() - x->began_ns) / 1000000u;
	if (x->exited || (!end->e && (!end->guest || as_shell_says(x, end)))) {
		x->ops->end(x->arg, NULL, &x->exit);
		exec_free(x);
		return;
	}
	if (end->e)
		e = *end->e;
	else if (end->guest == ECANCELED)
		err_set(&e, ECANCELED, "cancelled", "the command was cancelled");
	else if (end->guest == EAGAIN || end->guest == EMFILE || end->guest == ENOMEM)
		err_set(&e, end->guest, "sandbox_busy", "cannot start the command: %s: %s",
		        end->text, strerror(end->guest));
	else
		err_set(&e, end->guest, "bad_request", "cannot start the command: %s: %s",
		        end->text, strerror(end->guest));
	x->ops->end(x->arg, &e, NULL);
	exec_free(x);
}

static const struct job_ops job_ops = {.data = on_data,
                                       .reply = on_reply,
                                       .writable = on_writable,
                                       .end = on_end};

/* A script longer than a frame is read by the shell from stdin, in front of what it may read. */
static int put_script(struct exec_job *x, struct message *b, const struct exec_spec *s)
{
	size_t n = s->cmd ? strlen(s->cmd) : 0;
	bool through_stdin = n > EXEC_SCRIPT_INLINE && !s->detach && !s->pty && !s->keep_open;

	b->cmd = s->cmd;
	if (!through_stdin && !s->in)
		return 0;
	x->in_len = (through_stdin ? n : 0) + (s->in ? s->in_len : 0);
	x->in = malloc(x->in_len + 1);
	if (!x->in)
		return -ENOMEM;
	if (through_stdin) {
		memcpy(x->in, s->cmd, n);
		snprintf(b->script, sizeof(b->script), "eval \"$(head -c %zu)\"", n);
		b->cmd = b->script;
	}
	if (s->in)
		memcpy(x->in + (through_stdin ? n : 0), s->in, s->in_len);
	return 0;
}

/* What the template says about every command. */
static void use_template(struct exec_job *x, struct message *b, const struct exec_spec *s,
                         const struct sandbox *sb)
{
	struct template *t =
	    template_find(x->host->depot.templates, sb->tenant, sb->spec.template, NULL);
	const char *dir = t ? json_string_value(json_object_get(t->doc, "workdir")) : NULL;
	const char *user = t ? json_string_value(json_object_get(t->doc, "user")) : NULL;

	if (!s->user && user)
		b->m.user = wire_str(user);
	b->env = t ? json_object_get(t->doc, "env") : NULL;
	if (!s->cwd && dir && *dir == '/' && strcmp(dir, "/") != 0) {
		b->m.cwd = wire_str(dir);
		b->own_cwd = true;
	}
}

/* Begins it, and keeps the message where from_the_root() may need it. */
static struct job *start_job(struct exec_job *x, struct sandbox *sb, const struct message *b,
                             struct err *e)
{
	size_t n = b->own_cwd ? wire_length(&wire_exec_desc, &b->m) : 0;

	if (n && n <= WIRE_PAYLOAD_MAX)
		x->again = malloc(n);
	if (!x->again) /* without memory for it, a missing directory is an error */
		return job_start_marked(x->host, sb, WIRE_EXEC, &b->m, &job_ops, x, e);
	wire_exec_encode(&b->m, x->again, n);
	x->again_len = n;
	return job_start_encoded(x->host, sb,
	                         &(struct guest_request){.type = WIRE_EXEC,
	                                                 .window = b->m.window,
	                                                 .p = x->again,
	                                                 .n = n},
	                         &job_ops, x, e);
}

struct exec_job *exec_begin(struct host *h, struct sandbox *sb, const struct exec_spec *s,
                            const struct exec_ops *ops, void *arg, struct err *e)
{
	struct message *b AUTO(message_freep) = calloc(1, sizeof(*b));
	struct exec_job *x = calloc(1, sizeof(*x));

	if (!b || !x || put_script(x, b, s) < 0) {
		err_nomem(e);
		goto fail;
	}
	b->m.flags = WIRE_EXEC_STARTED;
	if (x->in || s->keep_open)
		b->m.flags |= WIRE_EXEC_STDIN;
	if (s->pty)
		b->m.flags |= WIRE_EXEC_PTY;
	if (s->detach)
		b->m.flags |= WIRE_EXEC_DETACH;
	if (s->hangup)
		b->m.flags |= WIRE_EXEC_HANGUP;
	if (s->hold)
		b->m.flags |= WIRE_EXEC_HOLD;
	b->m.window = s->output_max ? COLLECT_WINDOW : EXEC_WINDOW;
	b->m.timeout_ms = s->timeout_ms;
	b->m.rows = s->rows;
	b->m.cols = s->cols;
	b->m.cwd = wire_str(s->cwd ? s->cwd : "");
	b->m.user = wire_str(s->user ? s->user : "");
	x->host = h;
	memcpy(x->sandbox, sb->id, sizeof(x->sandbox));
	use_template(x, b, s, sb);
	if (lay_out_argv(b, s, e) < 0 || lay_out_env(b, sb->spec.env, s->env, e) < 0)
		goto fail;
	x->ops = ops;
	x->arg = arg;
	x->argv = s->argv;
	x->keep_open = s->keep_open;
	x->began_ns = mono_ns();
	x->job = start_job(x, sb, b, e);
	if (!x->job)
		goto fail;
	feed(x);
	return x;
fail:
	if (x)
		exec_free(x);
	return NULL;
}

void exec_credit(struct exec_job *x, bool err, size_t n)
{
	if (x->job)
		job_credit(x->job, err ? WIRE_ERR : WIRE_OUT, n);
}

size_t exec_send(struct exec_job *x, const void *p, size_t n)
{
	return x->job ? job_send(x->job, p, n) : 0;
}

void exec_send_eof(struct exec_job *x)
{
	if (x->job)
		job_send_eof(x->job);
}

void exec_resize(struct exec_job *x, unsigned rows, unsigned cols)
{
	if (x->job)
		job_resize(x->job, rows, cols);
}

void exec_signal(struct exec_job *x, int signo)
{
	if (x->job)
		job_signal(x->job, signo, 0);
}

void exec_cancel(struct exec_job *x)
{
	if (x->job)
		job_cancel(x->job);
}

void exec_abandon(struct exec_job *x)
{
	if (!x)
		return;
	job_abandon(x->job);
	exec_free(x);
}
