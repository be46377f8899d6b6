/*
 * template/warm.c - what runs in a machine before it is frozen
 * Warming up, the resident interpreter, the start command, and the checks that they are ready.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/tail.h"
#include "template/template.h"
#include "template/template_internal.h"
#include "wire/guest.h"

enum {
	WARM_MS = 10 * 60 * 1000, /* one command of a warm-up */
	READY_MS = 60 * 1000,
	MARGIN_MS = 30 * 1000,   /* a guest has this long to say that time is up for its command */
	PRELUDE_MAX = 32 * 1024, /* fits into a pipe */
	START_WORDS_MAX = 1024,
	SETTLE_MS = 1000, /* a start command without a check has this long to get going */
	LOOK_MS = 50,
};

static void keep_tail(void *arg, uint8_t chan, const void *p, size_t n)
{
	(void)chan;
	tail_keep(arg, p, n);
}

static int run_in(struct guest *g, const char *script, const char *cwd, uint64_t timeout_ms,
                  struct err *e)
{
	struct tail tail = {.n = 0};
	struct guest_exec x = {.script = script,
	                       .cwd = cwd,
	                       .timeout_ms = timeout_ms,
	                       .output = keep_tail,
	                       .arg = &tail};
	struct guest_exit end;
	int r;

	guest_set_deadline(g, timeout_ms + MARGIN_MS);
	r = guest_exec_wait(g, &x, &end, e);
	if (r < 0 || (!end.signaled && !end.timed_out && end.code == 0))
		return r;
	return err_set(e, EIO, "template_unusable", "'%.60s' %s %d: %s", script,
	               end.timed_out  ? "took too long, signal"
	               : end.signaled ? "was ended by signal"
	                              : "failed with",
	               end.code, tail_text(&tail));
}

/* Watches for the end of a cell. */
struct warm_cell {
	int said; /* eventfd */
	char line[256];
	size_t n;
};

static void watch_cell(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct warm_cell *c = arg;

	for (const char *s = p; chan == WIRE_OUT && n; s++, n--) {
		if (*s != '\n') {
			if (c->n < sizeof(c->line) - 1)
				c->line[c->n++] = *s;
			continue;
		}
		c->line[c->n] = 0;
		c->n = 0;
		if (strstr(c->line, "\"done\""))
			eventfd_write(c->said, 1);
	}
}

static void leave_cell(void *arg, struct guest_call *call)
{
	guest_cancel(call); /* only our attachment: it runs on */
}

/*
 * A resident interpreter: it has run the prelude when the machine is frozen, so every sandbox
 * begins with it. Its stdin stays open. Where commands are cells it is the one they go to,
 * elsewhere a spare for the first client that wants one.
 */
static int start_session(struct guest *g, const json_t *doc, const char *id, struct err *e)
{
	AUTO(json_decrefp)
	json_t *cell = json_pack("{s:s, s:s, s:b}", "id", "prelude", "code",
	                         text_of(doc, "prelude", ""), "bake", 1);
	autofree char *text = cell ? json_dumps(cell, JSON_COMPACT) : NULL, *frame = NULL;
	char *argv[] = {"python3", "/usr/lib/panda/repl.py", "--session", (char *)id, NULL};
	autoclose int said = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), in = -1, out = -1;
	struct warm_cell watch = {.said = said};
	struct guest_exec x = {.argv = argv,
	                       .cwd = text_of(doc, "workdir", "/"),
	                       .feed_stdin = true,
	                       .output = watch_cell,
	                       .wakeable = true,
	                       .wake = leave_cell,
	                       .wake_fd = said,
	                       .arg = &watch};
	struct guest_attach at = {0};
	struct guest_exit end;
	int pipe_fds[2], r;

	if (!text || said < 0 || asprintf(&frame, "%zu\n%s", strlen(text), text) < 0 ||
	    pipe2(pipe_fds, O_CLOEXEC) < 0)
		return err_nomem(e);
	in = pipe_fds[0];
	out = pipe_fds[1]; /* open until we are done: its end would be the interpreter's */
	if (strlen(frame) > PRELUDE_MAX)
		return err_set(e, E2BIG, "template_unusable", "its prelude is longer than %d bytes",
		               PRELUDE_MAX);
	r = io_write_full(out, frame, strlen(frame));
	if (r < 0)
		return err_set(e, -r, "no_memory", "cannot write to a pipe");
	x.stdin_fd = in;
	guest_set_deadline(g, READY_MS);
	r = guest_exec_start(g, &x, &at.id, e);
	if (r < 0)
		return r;
	guest_set_deadline(g, WARM_MS);
	r = guest_exec_attach(g, &at, &x, &end, e);
	if (r == -ECANCELED)
		return 0;
	return r < 0 ? r
	             : err_set(e, EIO, "template_unusable", "its interpreter ended with %d",
	                       end.code);
}

/*
 * A kernel that can (um) notes which memory is used while a command runs, and by the cells that a
 * resident interpreter rehearses: what starts from here gets that by the batch. Others know no such
 * file, and do without.
 */
#define NOTES(word) "{ echo " word " >/proc/panda-learn; } 2>/dev/null || :"

static int note_first(struct guest *g, bool begun, struct err *e)
{
	int r = begun ? 0 : run_in(g, NOTES("begin"), "/", READY_MS, e);

	if (r == 0)
		r = run_in(g, "true", "/", READY_MS, e);
	return r < 0 ? r : run_in(g, NOTES("first"), "/", READY_MS, e);
}

int template_warm(struct depot *depot, const char *machine, const json_t *doc, int stop_fd,
                  uint64_t until_ms, struct err *e)
{
	struct guest *g = NULL;
	const json_t *warm;
	const char *cwd = text_of(doc, "workdir", "/"), *ready = text_of(doc, "ready", NULL);
	const char *session = !strcmp(text_of(doc, "runner", "shell"), "python") ? "default"
	                      : *text_of(doc, "prelude", "") ? TEMPLATE_SPARE_SESSION
	                                                     : NULL;
	struct wire_file f;
	bool shell;
	size_t i;
	int r = machine_guest(depot->machines, machine, &g, e);

	if (r < 0)
		return r;
	guest_set_stop(g, stop_fd, until_ms);
	guest_set_deadline(g, READY_MS);
	r = guest_mkdir(g, "/workspace", 0755, true, e);
	/* A shell that has run once is in memory for all that come after. An image may have
	 * none. */
	shell = r == 0 && guest_stat(g, "/bin/sh", true, &f, NULL) == 0;
	if (shell)
		r = run_in(g, "true", "/", READY_MS, e);
	json_array_foreach(json_object_get(doc, "warm"), i, warm)
		if (r == 0 && json_is_string(warm))
			r = run_in(g, json_string_value(warm), cwd, WARM_MS, e);
	if (r == 0 && session)
		r = start_session(g, doc, session, e);
	if (r == 0 && ready && ready[0])
		r = run_in(g, ready, cwd, READY_MS, e);
	if (r == 0 && shell)
		r = note_first(g, session != NULL, e);
	guest_set_deadline(g, WARM_MS);
	if (r == 0)
		r = guest_sync(g, e);
	guest_free(g);
	return r;
}

/* --- the start command ------------------------------------------------------------------------ */

struct start {
	struct guest *g;
	const json_t *doc;
	char *argv[START_WORDS_MAX + 1];
	char **env;
	uint64_t id;
	/* what has become of it */
	bool found, running, signaled;
	int code;
};

static size_t add_words(char **to, size_t n, const json_t *list)
{
	const json_t *v;
	size_t i;

	json_array_foreach(list, i, v)
		if (json_is_string(v) && n < START_WORDS_MAX)
			to[n++] = (char *)json_string_value(v);
	to[n] = NULL;
	return n;
}

static void free_env(struct start *s)
{
	for (char **p = s->env; p && *p; p++)
		free(*p);
	free(s->env);
}

static int make_env(struct start *s)
{
	const json_t *env = json_object_get(s->doc, "env"), *v;
	const char *k;
	size_t n = 0;

	s->env = calloc(json_object_size(env) + 1, sizeof(*s->env));
	if (!s->env)
		return -ENOMEM;
	json_object_foreach((json_t *)env, k, v) {
		if (!json_is_string(v))
			continue;
		if (asprintf(&s->env[n], "%s=%s", k, json_string_value(v)) < 0) {
			s->env[n] = NULL;
			return -ENOMEM;
		}
		n++;
	}
	return 0;
}

static void found(void *arg, const struct wire_exec_info *m)
{
	struct start *s = arg;

	if (m->id != s->id)
		return;
	s->found = true;
	s->running = m->flags & WIRE_INFO_RUNNING;
	s->signaled = m->how == WIRE_HOW_SIGNAL;
	s->code = (int)m->code;
}

static void fill_exec(const struct start *s, char *const *argv, struct guest_exec *x)
{
	const char *user = text_of(s->doc, "user", "");

	*x = (struct guest_exec){.argv = argv,
	                         .env = s->env,
	                         .cwd = text_of(s->doc, "workdir", "/"),
	                         .user = *user ? user : NULL,
	                         .timeout_ms = READY_MS};
}

static bool check_passes(const struct start *s, char *const *check)
{
	struct guest_exec x;
	struct guest_exit end;

	fill_exec(s, check, &x);
	return guest_exec_wait(s->g, &x, &end, NULL) == 0 && !end.signaled && !end.timed_out &&
	       end.code == 0;
}

/* Until its check says that it is ready, it is over, or there was time enough. */
static int wait_started(struct start *s, struct build *b, char *note, size_t note_n, struct err *e)
{
	const json_t *ready = json_object_get(json_object_get(s->doc, "start"), "ready");
	uint64_t until = mono_ms() + (json_array_size(ready) ? READY_MS : SETTLE_MS);
	char *check[START_WORDS_MAX + 1];
	int r;

	add_words(check, 0, ready);
	for (;;) {
		guest_set_deadline(s->g, 2 * READY_MS);
		s->found = false;
		r = b ? build_stopped(b, e) : 0;
		if (r == 0)
			r = guest_exec_list(s->g, found, s, e);
		if (r < 0)
			return r;
		if (!s->found || !s->running) {
			snprintf(note, note_n,
			         "the start command has ended (%s %d): sandboxes begin without it",
			         s->signaled ? "signal" : "exit code", s->code);
			return 0;
		}
		if (check[0] && check_passes(s, check))
			return 0;
		if (mono_ms() >= until)
			break;
		usleep(LOOK_MS * 1000);
	}
	return check[0] ? err_set(e, ETIME, "build_failed",
	                          "the start command runs, but its HEALTHCHECK did not succeed "
	                          "within %d seconds",
	                          READY_MS / 1000)
	                : 0;
}

void template_quiet(struct guest *g, const json_t *doc)
{
	json_int_t id = json_integer_value(json_object_get(json_object_get(doc, "start"), "exec"));

	guest_set_deadline(g, READY_MS);
	if (id > 0)
		(void)guest_exec_signal(g, (uint64_t)id, SIGKILL, WIRE_SIGNAL_TREE, NULL);
}

int template_start(struct guest *g, json_t *doc, struct build *b, char *note, size_t note_n,
                   struct err *e)
{
	json_t *start = json_object_get(doc, "start");
	struct start s = {.g = g, .doc = doc};
	struct guest_exec x;
	struct err why;
	size_t n;
	int r;

	note[0] = 0;
	n = add_words(s.argv, 0, json_object_get(start, "entrypoint"));
	if (add_words(s.argv, n, json_object_get(start, "cmd")) == 0)
		return 0;
	r = make_env(&s) < 0 ? err_nomem(e) : 0;
	fill_exec(&s, s.argv, &x);
	x.timeout_ms = 0;
	guest_set_deadline(g, READY_MS);
	if (r == 0 && guest_exec_start(g, &x, &s.id, &why) < 0) {
		snprintf(note, note_n, "the start command does not start: %s", why.text);
	} else if (r == 0) {
		json_object_set_new(start, "exec", json_integer((json_int_t)s.id));
		r = wait_started(&s, b, note, note_n, e);
	}
	guest_set_deadline(g, WARM_MS);
	if (r == 0)
		r = guest_sync(g, e);
	free_env(&s);
	return r;
}
