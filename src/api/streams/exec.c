#include "api/streams/exec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/streams/exec_message.h"
#include "api/streams/job.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "wire/guest.h"

struct exec_job {
	struct job *job;
	const struct exec_ops *ops;
	void *arg;
	uint64_t began_ns;
	char *in; /* what it reads, from in_at on */
	size_t in_len, in_at;
	bool keep_open, argv, fed;
	bool exited;
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

static void exec_feed(struct exec_job *x)
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

	if (type == WIRE_STARTED) {
		const struct wire_started *m = msg;

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
		exec_feed(x);
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
	exec_feed(x);
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
	if (end->guest != EPROTO &&
	    (x->exited || (!end->e && (!end->guest || as_shell_says(x, end))))) {
		x->ops->end(x->arg, NULL, &x->exit);
		exec_free(x);
		return;
	}
	if (end->e)
		e = *end->e;
	else if (end->guest == ECANCELED)
		err_set(&e, ECANCELED, "cancelled", "the command was cancelled");
	else if (end->guest == EPROTO)
		err_set(&e, EPROTO, "upstream", "it is not known how the command ended: %s",
		        end->text);
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

/*
 * What it reads. A script longer than a frame is read by the shell from stdin, in front of that:
 * then *cmd becomes the line that does so, written into line.
 */
static int exec_take_input(struct exec_job *x, const struct exec_spec *s, char line[64],
                           const char **cmd)
{
	size_t n = s->cmd ? strlen(s->cmd) : 0;
	bool through_stdin = n > EXEC_SCRIPT_INLINE && !s->detach && !s->pty && !s->keep_open;

	*cmd = s->cmd;
	if (!through_stdin && !s->in)
		return 0;
	x->in_len = (through_stdin ? n : 0) + (s->in ? s->in_len : 0);
	x->in = malloc(x->in_len + 1);
	if (!x->in)
		return -ENOMEM;
	if (through_stdin) {
		memcpy(x->in, s->cmd, n);
		snprintf(line, 64, "eval \"$(head -c %zu)\"", n);
		*cmd = line;
	}
	if (s->in)
		memcpy(x->in + (through_stdin ? n : 0), s->in, s->in_len);
	return 0;
}

/* Begins it, and keeps the message where from_the_root() may need it. */
static struct job *exec_start(struct exec_job *x, struct sandbox *sb, const struct exec_message *b,
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
	                         &(struct guest_request){.type = WIRE_EXEC, .p = x->again, .n = n},
	                         &job_ops, x, e);
}

struct exec_job *exec_begin(struct host *h, struct sandbox *sb, const struct exec_spec *s,
                            const struct exec_ops *ops, void *arg, struct err *e)
{
	struct exec_message *b AUTO(exec_message_freep) = NULL;
	struct exec_job *x = calloc(1, sizeof(*x));
	const char *cmd;
	char line[64];

	if (!x || exec_take_input(x, s, line, &cmd) < 0) {
		err_nomem(e);
		goto fail;
	}
	b = exec_message_new(h, sb, s, cmd, x->in || s->keep_open, e);
	if (!b)
		goto fail;
	x->host = h;
	memcpy(x->sandbox, sb->id, sizeof(x->sandbox));
	x->ops = ops;
	x->arg = arg;
	x->argv = s->argv;
	x->keep_open = s->keep_open;
	x->began_ns = mono_ns();
	x->job = exec_start(x, sb, b, e);
	if (!x->job)
		goto fail;
	exec_feed(x);
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

void exec_send_signal(struct exec_job *x, int signo)
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
