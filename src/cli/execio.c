/*
 * cli/execio.c - a command in a sandbox, with our stdin, stdout and stderr
 */
#include "cli/execio.h"

#include <errno.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "client/panda.h"

enum {
	STDIN_INLINE = 256 * 1024, /* as much goes along with the request */
	STDIN_PIECE = 1 << 20,     /* and as much in a request of its own */
	STDIN_PATIENCE_MS = 30,    /* how long a pipe may take to be short */
	REATTACH_MS = 30 * 1000,   /* how long pandad may be away */
	STEADY_MS = 1000,          /* a stream that lasted so long was one: pandad was there */
	PIPE_GONE = 128 + SIGPIPE,
};

/* ---- what to run ---- */

char *execio_quote(int argc, char **argv)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-_./=:,+@%";
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	for (int i = 0; i < argc; i++) {
		const char *s = argv[i];

		if (i)
			fputc(' ', f);
		if (*s && !s[strspn(s, plain)]) {
			fputs(s, f);
			continue;
		}
		fputc('\'', f);
		for (; *s; s++)
			if (*s == '\'')
				fputs("'\\''", f);
			else
				fputc(*s, f);
		fputc('\'', f);
	}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

const char *execio_cwd(const struct cli *c)
{
	return cli_str(c, 'C', cli_str(c, 'w', NULL));
}

int execio_body(struct cli *c, int argc, char **argv, json_t **ret)
{
	const char *cwd = execio_cwd(c), *user = cli_str(c, 'u', NULL);
	autojson json_t *body = json_object(), *env = json_object();
	json_t *list;
	long timeout = 0;

	if (argc && !strcmp(argv[0], "--")) {
		argc--;
		argv++;
	}
	if (argc < 1)
		return cli_bad(c, "which command? Put it behind --");
	/* One word may be a line for the shell; several are a program and its arguments. */
	if (argc == 1) {
		if (json_object_set_new(body, "cmd", json_string(argv[0])) < 0)
			return cli_bad(c, "the command is not UTF-8");
	} else {
		json_object_set_new(body, "argv", list = json_array());
		for (int i = 0; i < argc; i++)
			if (json_array_append_new(list, json_string(argv[i])) < 0)
				return cli_bad(c, "argument %d is not UTF-8", i);
	}
	if (cli_seconds(c, KEY_TIMEOUT, &timeout) || cli_env(c, env))
		return CLI_PANDA;
	json_object_set_new(body, "timeout_seconds", json_integer(timeout)); /* 0: none */
	if ((cwd && json_object_set_new(body, "cwd", json_string(cwd)) < 0) ||
	    (user && json_object_set_new(body, "user", json_string(user)) < 0))
		return cli_bad(c, "names must be UTF-8");
	/* What is in there of create's -e is for every command, and harmless here. */
	if (json_object_size(env))
		json_object_set(body, "env", env);
	*ret = take_ptr(body);
	return 0;
}

/* ---- signals ---- */

int execio_signals(void)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

static int taken_signal(int fd)
{
	struct signalfd_siginfo si;

	return read(fd, &si, sizeof(si)) == sizeof(si) ? (int)si.ssi_signo : 0;
}

/* An event, or 0, or a negative errno; -EINTR and *signal when one came. */
static int next_event(struct panda_stream *s, int sigfd, struct panda_event *ev, int *sig,
                      struct panda_error *e)
{
	int r;

	while ((r = panda_stream_next(s, 0, ev, e)) == -EAGAIN) {
		struct pollfd p[] = {{.fd = panda_stream_fd(s), .events = POLLIN},
		                     {.fd = sigfd, .events = POLLIN}};

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return -errno;
		if (p[1].revents && (*sig = taken_signal(sigfd)))
			return -EINTR;
	}
	return r;
}

/* ---- output ---- */

struct exec_output {
	bool ended, lost;
	int code; /* once ended, or PIPE_GONE */
	char text[256];
	long long at[2]; /* offsets behind what we have written (attach) */
};

/* Raw bytes of a chunk. *ret is borrowed from the JSON or must be freed: *owned. */
static int chunk_of(const json_t *j, const char **ret, size_t *len, char **owned)
{
	const json_t *b64 = json_object_get(j, "chunk_b64"), *text = json_object_get(j, "chunk");
	const char *s = json_string_value(b64);
	size_t n = json_string_length(b64);
	int out;

	if (!s) {
		*ret = json_string_value(text);
		*len = json_string_length(text);
		return *ret ? 0 : -EPROTO;
	}
	*owned = malloc(n / 4 * 3 + 4);
	if (!*owned)
		return -ENOMEM;
	out = EVP_DecodeBlock((unsigned char *)*owned, (const unsigned char *)s, (int)n);
	if (out < 0)
		return -EPROTO;
	for (size_t i = n; i && s[i - 1] == '=' && n - i < 2; i--)
		out--;
	*ret = *owned;
	*len = (size_t)out;
	return 0;
}

static void take_event(struct exec_output *o, const struct panda_event *ev)
{
	autojson json_t *j = json_loadb(ev->data, ev->len, JSON_ALLOW_NUL, NULL);
	autofree char *owned = NULL;
	int err = !strcmp(ev->name, "stderr");
	const char *p;
	size_t n;

	if (err || !strcmp(ev->name, "stdout")) {
		if (chunk_of(j, &p, &n, &owned) < 0) {
			o->ended = true;
			o->code = CLI_PANDA;
			snprintf(o->text, sizeof(o->text),
			         "the server sent output that cannot be read");
			return;
		}
		if (json_is_integer(json_object_get(j, "offset")))
			o->at[err] = ji(j, "offset") + (long long)n;
		if (io_write_full(err ? 2 : 1, p, n) < 0)
			o->code = PIPE_GONE;
	} else if (!strcmp(ev->name, "start")) {
		o->lost |= ji(j, "stdout_offset") > o->at[0] || ji(j, "stderr_offset") > o->at[1];
	} else if (!strcmp(ev->name, "gap")) {
		o->lost = true;
	} else if (!strcmp(ev->name, "exit")) {
		o->ended = true;
		o->code = json_is_true(json_object_get(j, "timed_out")) ? CLI_TIMEOUT
		                                                        : (int)ji(j, "exit_code");
	} else if (!strcmp(ev->name, "error")) {
		o->ended = true;
		o->code = CLI_PANDA;
		show_clean(js(j, "error"), o->text, sizeof(o->text));
	}
}

static int finish(struct exec_output *o)
{
	if (o->text[0])
		return cli_die("%s", o->text);
	if (o->lost)
		return cli_die(
		    "some output is missing: the command wrote it faster than it was read\n"
		    "       (its exit code was %d)",
		    o->code);
	return o->code;
}

/* ---- a stream at our pace; the command ends when we do ---- */

static int run_stream(struct cli *c, const char *id, json_t *body, int sigfd)
{
	autofree char *path = panda_path("/v1/sandboxes/%s/exec/stream", id);
	struct panda_stream *s = NULL;
	struct panda_event ev;
	struct panda_error e;
	struct exec_output o = {0};
	int r, sig = 0;

	json_object_set_new(body, "encoding", json_string("base64"));
	if (!path)
		return cli_die("out of memory");
	if (panda_stream_open(c->panda, "POST", path, body, &s, &e) < 0)
		return cli_say(c, &e);
	/* What ends it is looked at before we wait again: nothing more may come for a long time. */
	do {
		r = next_event(s, sigfd, &ev, &sig, &e);
		if (r > 0)
			take_event(&o, &ev);
	} while (r > 0 && !o.code && !o.ended);
	panda_stream_close(s);
	if (sig)
		return 128 + sig;
	if (o.ended || o.code)
		return finish(&o);
	return r < 0 ? cli_say(c, &e) : cli_die("the server ended the stream before the command");
}

/* ---- a detached command that is fed ---- */

struct feeder {
	struct panda *panda;
	char *path, *eof_path;
	char *head; /* of stdin, already read */
	size_t nhead;
};

struct exec_piece {
	const char *p;
	size_t n;
};

static ssize_t from_piece(void *arg, void *buf, size_t n)
{
	struct exec_piece *t = arg;

	n = MIN(n, t->n);
	memcpy(buf, t->p, n);
	t->p += n;
	t->n -= n;
	return (ssize_t)n;
}

static int feed(struct feeder *f, const char *path, const char *p, size_t n)
{
	uint64_t until = mono_ms() + REATTACH_MS;
	struct panda_error e;
	int r;

	for (;;) {
		struct exec_piece t = {.p = p, .n = n};

		e.status = 0;
		r = panda_upload(f->panda, "POST", path, (int64_t)n, from_piece, &t, NULL, &e);
		/* No pandad was there, so nothing of it was taken: it is restarted, perhaps. */
		if (r < 0 && (r == -ECONNREFUSED || e.status == 503) && mono_ms() < until) {
			poll(NULL, 0, 200);
			continue;
		}
		break;
	}
	/* 404, 409: the command reads it no more. How the command ends is told elsewhere. */
	if (r < 0 && e.status != 404 && e.status != 409)
		fprintf(stderr, "panda: the rest of stdin is lost: %s\n", e.text);
	return r;
}

static void feeder_free(struct feeder *f)
{
	panda_free(f->panda);
	free(f->path);
	free(f->eof_path);
	free(f->head);
	free(f);
}

/* As much as is there, but at least something. 0: the end. */
static size_t read_some(char *buf, size_t size)
{
	struct pollfd p = {.fd = 0, .events = POLLIN};
	size_t at = 0;
	ssize_t n;

	while (at < size && (!at || poll(&p, 1, 0) > 0)) {
		n = read(0, buf + at, size - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	return at;
}

static bool feed_all(struct feeder *f)
{
	autofree char *buf = malloc(STDIN_PIECE);
	size_t n;

	if (!buf || (f->nhead && feed(f, f->path, f->head, f->nhead) < 0))
		return false;
	while ((n = read_some(buf, STDIN_PIECE)))
		if (feed(f, f->path, buf, n) < 0)
			return false;
	return feed(f, f->eof_path, "", 0) == 0;
}

/*
 * A thread of its own: a command that does not read now must not keep us from its output. It may
 * be inside read(0) when the process ends.
 */
static void *feed_stdin(void *arg)
{
	feed_all(arg);
	feeder_free(arg);
	return NULL;
}

/* head is taken, also when this fails. */
static int start_feeder(struct cli *c, const char *id, const char *exec, char *head, size_t nhead)
{
	struct panda_config cfg = {.url = panda_url(c->panda),
	                           .ca_file = cli_str(c, KEY_CA_FILE, NULL),
	                           .timeout_ms = -1};
	struct feeder *f = calloc(1, sizeof(*f));
	struct panda_error e;
	pthread_t t;
	int r = 0;

	if (!f) {
		free(head);
		return cli_die("out of memory");
	}
	f->path = panda_path("/v1/sandboxes/%s/execs/%s/stdin", id, exec);
	f->eof_path = panda_path("/v1/sandboxes/%s/execs/%s/stdin?eof=1", id, exec);
	f->head = head;
	f->nhead = nhead;
	if (panda_new(&cfg, &f->panda, &e) < 0)
		r = cli_say(c, &e);
	else if (!f->path || !f->eof_path || pthread_create(&t, NULL, feed_stdin, f) != 0)
		r = cli_die("cannot start a thread that reads stdin");
	if (r)
		feeder_free(f);
	else
		pthread_detach(t);
	return r;
}

static void send_signal(struct cli *c, const char *id, const char *exec, int sig)
{
	autojson json_t *body = json_pack("{s:i, s:b}", "signal", sig, "tree", 1);
	autofree char *path = panda_path("/v1/sandboxes/%s/execs/%s/signal", id, exec);
	struct panda_error e;

	if (path)
		(void)panda_call(c->panda, "POST", path, body, NULL, &e);
}

/*
 * Reads one connection's worth. 1: it broke, try again; 0: o has the end of it; else an exit code.
 * *up_since: when the connection was there (mono ms); 0: it never was.
 */
static int read_output(struct cli *c, const char *id, const char *exec, int sigfd, bool ours,
                       struct exec_output *o, int *signals, uint64_t *up_since,
                       struct panda_error *e)
{
	autofree char *path = NULL;
	struct panda_stream *s = NULL;
	struct panda_event ev;
	char from[2][24];
	int r, sig;

	for (int i = 0; i < 2; i++)
		snprintf(from[i], sizeof(from[i]), "%lld", o->at[i]);
	path = panda_path("/v1/sandboxes/%s/execs/%s/output"
	                  "?follow=1&encoding=base64&stdout_offset=%s&stderr_offset=%s",
	                  id, exec, from[0], from[1]);
	if (!path)
		return cli_die("out of memory");
	r = panda_stream_open(c->panda, "GET", path, NULL, &s, e);
	if (r < 0)
		return e->status && e->status != 503 ? cli_say(c, e) : 1;
	*up_since = mono_ms();
	for (;;) {
		sig = 0;
		r = next_event(s, sigfd, &ev, &sig, e);
		if (sig && (!ours || ++*signals > 1)) {
			r = 128 + sig;
			if (ours)
				send_signal(c, id, exec, SIGKILL);
			break;
		}
		if (sig) { /* the first one is for the command, which may want to clean up */
			send_signal(c, id, exec, sig);
			continue;
		}
		if (r == 0)
			snprintf(e->text, sizeof(e->text),
			         "the server ended the stream before the command");
		if (r <= 0) {
			r = 1;
			break;
		}
		take_event(o, &ev);
		if (o->ended || o->code) {
			r = 0;
			break;
		}
	}
	panda_stream_close(s);
	return r;
}

static int follow(struct cli *c, const char *id, const char *exec, int sigfd, bool ours)
{
	uint64_t broken_since = 0;
	struct exec_output o = {0};
	struct panda_error e = {0};
	int r, signals = 0;

	for (;;) {
		long long before = o.at[0] + o.at[1];
		uint64_t up_since = 0;

		r = read_output(c, id, exec, sigfd, ours, &o, &signals, &up_since, &e);
		if (r == 0)
			return finish(&o);
		if (r != 1)
			return r;
		/* pandad is restarted, perhaps: the command goes on, and so do we. */
		if (!broken_since || o.at[0] + o.at[1] != before ||
		    (up_since && mono_ms() - up_since > STEADY_MS))
			broken_since = mono_ms();
		if (mono_ms() - broken_since > REATTACH_MS)
			return cli_say(c, &e);
		poll(&(struct pollfd){.fd = sigfd, .events = POLLIN}, 1, 200);
		if ((r = taken_signal(sigfd)))
			return 128 + r;
	}
}

static int run_fed(struct cli *c, const char *id, json_t *body, int sigfd, char *head, size_t nhead)
{
	autofree char *path = panda_path("/v1/sandboxes/%s/execs", id);
	autojson json_t *started = NULL;
	struct panda_error e;
	char exec[32];

	json_object_set_new(body, "stdin", json_true());
	json_object_set_new(body, "hold", json_true()); /* we read all of it, at our pace */
	if (!path || panda_call(c->panda, "POST", path, body, &started, &e) < 0) {
		free(head);
		return path ? cli_say(c, &e) : cli_die("out of memory");
	}
	snprintf(exec, sizeof(exec), "%s", js(started, "id"));
	if (start_feeder(c, id, exec, head, nhead)) {
		send_signal(c, id, exec, SIGKILL);
		return CLI_PANDA;
	}
	return follow(c, id, exec, sigfd, true);
}

int execio_attach(struct cli *c, const char *id, const char *exec, bool feed_it)
{
	autoclose int sigfd = execio_signals();

	if (sigfd < 0)
		return cli_die("no signalfd: %s", strerror(-sigfd));
	if (feed_it && start_feeder(c, id, exec, NULL, 0))
		return CLI_PANDA;
	return follow(c, id, exec, sigfd, false);
}

/* ---- which way ---- */

/*
 * Reads ahead what of stdin comes at once. *whole: that was all of it. What is not short text is
 * fed to a detached command instead, behind what has been read here.
 */
static char *read_ahead(size_t *len, bool *whole)
{
	autofree char *buf = malloc(STDIN_INLINE + 1);
	uint64_t until = mono_ms() + STDIN_PATIENCE_MS;
	size_t at = 0;
	ssize_t n;

	*whole = false;
	if (!buf)
		return NULL;
	while (at < STDIN_INLINE) {
		struct pollfd p = {.fd = 0, .events = POLLIN};
		uint64_t now = mono_ms();

		if (poll(&p, 1, now < until ? (int)(until - now) : 0) <= 0)
			break;
		n = read(0, buf + at, STDIN_INLINE - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			*whole = true;
			break;
		}
		at += (size_t)n;
	}
	buf[at] = 0;
	*len = at;
	return take_ptr(buf);
}

static int run_json(struct cli *c, const char *id, json_t *body)
{
	autofree char *path = panda_path("/v1/sandboxes/%s/exec", id);
	autojson json_t *reply = NULL;
	struct panda_error e;

	if (!path)
		return cli_die("out of memory");
	panda_set_timeout(c->panda, -1);
	if (panda_call(c->panda, "POST", path, body, &reply, &e) < 0)
		return cli_say(c, &e);
	cli_json(reply);
	return json_is_true(json_object_get(reply, "timed_out")) ? CLI_TIMEOUT
	                                                         : (int)ji(reply, "exit_code");
}

int execio_run(struct cli *c, const char *id, json_t *body, int flags)
{
	autoclose int sigfd = execio_signals();
	bool whole = true;
	char *head = NULL; /* the feeder's thread keeps it */
	size_t n = 0;
	json_t *text;
	int r;

	if (sigfd < 0)
		return cli_die("no signalfd: %s", strerror(-sigfd));
	if (flags & EXECIO_STDIN || !(flags & EXECIO_NONE || isatty(0)))
		head = read_ahead(&n, &whole);
	text = head && n && whole ? json_stringn(head, n) : NULL; /* NULL when it is not UTF-8 */
	if (text)
		json_object_set_new(body, "stdin", text);
	if (c->json && n && !text) {
		free(head);
		return cli_bad(c, "--json takes only short text on stdin (up to %d KiB at once)",
		               STDIN_INLINE / 1024);
	}
	if (!c->json && head && !(whole && (text || !n)))
		return run_fed(c, id, body, sigfd, head, n);
	r = c->json ? run_json(c, id, body) : run_stream(c, id, body, sigfd);
	free(head);
	return r;
}
