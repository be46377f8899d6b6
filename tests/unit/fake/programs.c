/*
 * fake/programs.c - what a fake guest can run: a few words, and lists of them with ';'
 *
 *   echo [-n] WORDS [> FILE | >&2]   cat [FILE...]   exit N   true   false   sleep (until killed)
 *   fill N (bytes)   env   pwd   hostname   whoami   signal N   rm FILE   mkdir DIR
 *   python3 -, bash -s (as cat)   python3 FILE --session ID (repl.c)
 *   poweroff   panic   crash (the machine ends, as each of them does)
 *   panda-upper list, panda-upper hash (guest/upper/upper.c), once that was put there
 *
 * One that waits (cat without a file, sleep) is the last of its list.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

enum { WORDS_MAX = 64 };

static void say(struct agent_exec *x, unsigned chan, const char *text)
{
	exec_output(x, chan, text, strlen(text));
}

static const char *in_dir(const struct agent_exec *x, const char *path)
{
	static char full[1024];

	if (path[0] == '/')
		return path;
	snprintf(full, sizeof(full), "%s/%s", strcmp(x->cwd, "/") ? x->cwd : "", path);
	return full;
}

/* Words apart, quotes away, in place. */
static int split(char *s, char *words[WORDS_MAX])
{
	int n = 0;

	for (;;) {
		char *out, quote = 0;

		s += strspn(s, " \t\n");
		if (!*s || n == WORDS_MAX - 1)
			break;
		words[n++] = out = s;
		for (; *s && (quote || !strchr(" \t\n", *s)); s++) {
			if (quote ? *s == quote : *s == '\'' || *s == '"')
				quote = quote ? 0 : *s;
			else
				*out++ = *s;
		}
		if (*s)
			s++;
		*out = 0;
	}
	words[n] = NULL;
	return n;
}

static int run_echo(struct fake_agent *a, struct agent_exec *x, char **words, int n)
{
	bool newline = true;
	unsigned chan = 0;
	const char *file = NULL;
	struct buf text = {0};
	int r = 0;

	for (int i = 1; i < n; i++) {
		if (i == 1 && !strcmp(words[i], "-n"))
			newline = false;
		else if (!strcmp(words[i], ">&2"))
			chan = 1;
		else if (!strcmp(words[i], ">") && i + 1 < n)
			file = in_dir(x, words[++i]);
		else {
			if (text.n)
				buf_add(&text, " ", 1);
			buf_add(&text, words[i], strlen(words[i]));
		}
	}
	if (newline)
		buf_add(&text, "\n", 1);
	if (file) {
		const char *rest;
		struct tree *t = agent_resolve(a, file, &rest);

		r = tree_put(t, rest, S_IFREG | 0644, text.p, text.n, false);
	} else {
		exec_output(x, chan, text.p, text.n);
	}
	buf_free(&text);
	return r < 0 ? 1 : 0;
}

static int run_cat(struct fake_agent *a, struct agent_exec *x, char **words, int n)
{
	for (int i = 1; i < n; i++) {
		const char *rest, *path = in_dir(x, words[i]);
		struct tree *t = agent_resolve(a, path, &rest);
		struct node *k = tree_find(t, rest);

		if (!k || !S_ISREG(k->mode)) {
			say(x, 1, "cat: No such file or directory\n");
			return 1;
		}
		exec_output(x, 0, k->data, k->n);
	}
	return 0;
}

static int run_fill(struct agent_exec *x, size_t n)
{
	static const char line[] =
	    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n";

	while (n) {
		size_t k = MIN(n, sizeof(line) - 1);

		exec_output(x, 0, line, k);
		n -= k;
	}
	return 0;
}

static int run_rm(struct fake_agent *a, const char *path)
{
	const char *rest;
	struct tree *t = agent_resolve(a, path, &rest);

	return tree_remove(t, rest, true) < 0;
}

static int run_mkdir(struct fake_agent *a, const char *path)
{
	const char *rest;
	struct tree *t = agent_resolve(a, path, &rest);

	return tree_put(t, rest, S_IFDIR | 0755, NULL, 0, true) < 0;
}

static bool of_its_template(const char *path)
{
	for (size_t i = 0; agent_dirs[i]; i++)
		if (!strcmp(path, agent_dirs[i]))
			return true;
	return !strncmp(path, "dev/", 4);
}

/* All else that is on its disk was written over the template. */
static int upper_list(struct fake_agent *a, struct agent_exec *x)
{
	for (struct node *n = a->root.nodes; n; n = n->next) {
		char line[1024];
		int len;

		if (!n->path[0] || of_its_template(n->path))
			continue;
		len = snprintf(line, sizeof(line), "%c %o 0 0 %zu %llu %llu - 0 0 0 /%s",
		               S_ISREG(n->mode)   ? 'f'
		               : S_ISLNK(n->mode) ? 'l'
		                                  : 'd',
		               n->mode & 07777, n->n, (unsigned long long)n->mtime_ns,
		               (unsigned long long)n->mtime_ns, n->path);
		exec_output(x, 0, line, (size_t)len + 1);
		exec_output(x, 0, n->data, S_ISLNK(n->mode) ? n->n : 0);
		exec_output(x, 0, "", 1);
	}
	return 0;
}

/* Not SHA-256, but of as many letters, and another for another content. */
static void upper_hash(struct fake_agent *a, struct agent_exec *x)
{
	const char *end = x->in.p + x->in.n;

	for (const char *name = x->in.p; name && name < end; name += strlen(name) + 1) {
		const char *rest;
		struct tree *t = agent_resolve(a, name, &rest);
		struct node *n = t ? tree_find(t, rest) : NULL;
		uint64_t h = 14695981039346656037u;
		char text[65];

		for (size_t i = 0; n && i < n->n; i++)
			h = (h ^ (unsigned char)n->data[i]) * 1099511628211u;
		for (int i = 0; i < 4; i++)
			snprintf(text + 16 * i, 17, "%016llx",
			         (unsigned long long)(h + (uint64_t)i));
		exec_output(x, 0, text, sizeof(text));
	}
}

/* It must be there: pandad puts it into guests. */
static int run_upper(struct fake_agent *a, struct agent_exec *x, const char *path, const char *verb)
{
	const char *rest;
	struct tree *t = agent_resolve(a, path, &rest);

	if (!t || !tree_find(t, rest) || !verb)
		return -ENOENT;
	if (!strcmp(verb, "list"))
		return upper_list(a, x);
	x->hashes = true;
	return -1;
}

_Noreturn void machine_exit(struct fake_agent *a, const char *words)
{
	int fd = openat(a->dirfd, "console.log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);

	io_write_full(fd, words, strlen(words));
	_exit(0);
}

/* Its exit code; -1: it waits; or -ENOENT, more than any of those. */
static int run_words(struct fake_agent *a, struct agent_exec *x, char **w, int n)
{
	const char *p = strrchr(w[0], '/') ? strrchr(w[0], '/') + 1 : w[0];
	long number = n > 1 ? strtol(w[1], NULL, 0) : 0;

	if (!strcmp(p, "true") || !strcmp(p, "sync") || !strcmp(p, ":"))
		return 0;
	if (!strcmp(p, "false"))
		return 1;
	if (!strcmp(p, "exit"))
		return (int)number & 255;
	if (!strcmp(p, "echo"))
		return run_echo(a, x, w, n);
	if (!strcmp(p, "cat"))
		return n > 1 ? run_cat(a, x, w, n) : ((x->wants_stdin = true), -1);
	if (!strcmp(p, "sleep"))
		return -1;
	if (n > 1 && (!strcmp(w[1], "-") || !strcmp(w[1], "-s"))) /* says its code, as cat does */
		return (x->wants_stdin = true), -1;
	if (n > 2 && (!strcmp(w[2], "--session") || !strcmp(w[1], "--session")))
		return (x->repl = true), -1;
	if (!strcmp(p, "fill"))
		return run_fill(x, (size_t)number);
	if (!strcmp(p, "env"))
		return say(x, 0, x->env ? x->env : ""), 0;
	if (!strcmp(p, "pwd"))
		return say(x, 0, x->cwd), say(x, 0, "\n"), 0;
	if (!strcmp(p, "hostname"))
		return say(x, 0, a->hostname), say(x, 0, "\n"), 0;
	if (!strcmp(p, "whoami"))
		return say(x, 0, x->user), say(x, 0, "\n"), 0;
	if (!strcmp(p, "rm") && n > 1)
		return run_rm(a, in_dir(x, w[n - 1]));
	if (!strcmp(p, "mkdir") && n > 1)
		return run_mkdir(a, in_dir(x, w[n - 1]));
	if (!strncmp(p, ".panda-upper", 12))
		return run_upper(a, x, w[0], w[1]);
	if (!strcmp(p, "signal"))
		return exec_end(x, WIRE_HOW_SIGNAL, (uint32_t)number), 0;
	if (!strcmp(p, "poweroff"))
		machine_exit(a, "reboot: Power down\n");
	if (!strcmp(p, "panic"))
		machine_exit(a, "Kernel panic - not syncing: the test asked for it\n");
	if (!strcmp(p, "crash"))
		kill(getpid(), SIGKILL);
	return -ENOENT;
}

static int run_list(struct fake_agent *a, struct agent_exec *x, char *script)
{
	char *words[WORDS_MAX], *next;
	int code = 0, n;

	for (char *s = script; s && x->running; s = next) {
		next = strpbrk(s, ";\n");
		if (next)
			*next++ = 0;
		n = split(s, words);
		if (!n)
			continue;
		code = run_words(a, x, words, n);
		if (code == -1)
			return 0; /* it waits */
		if (code < 0) {
			say(x, 1, words[0]);
			say(x, 1, ": not found\n");
			code = 127;
		}
		if (!strcmp(words[0], "exit"))
			break;
	}
	exec_end(x, WIRE_HOW_EXIT, (uint32_t)code);
	return 0;
}

int program_start(struct fake_agent *a, struct agent_exec *x, char *const *argv, bool shell)
{
	char *words[WORDS_MAX];
	const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	autofree char *script = NULL;
	int n = 0, r;

	if (!shell && !strcmp(name, "sh") && argv[1] && !strcmp(argv[1], "-c") && argv[2]) {
		argv += 2;
		shell = true;
	}
	if (shell) {
		script = strdup(argv[0]);
		return script ? run_list(a, x, script) : -ENOMEM;
	}
	while (n < WORDS_MAX - 1 && argv[n]) {
		words[n] = argv[n];
		n++;
	}
	words[n] = NULL;
	r = run_words(a, x, words, n);
	if (r >= 0)
		exec_end(x, WIRE_HOW_EXIT, (uint32_t)r);
	return r == -ENOENT ? r : 0;
}

void program_input(struct agent_exec *x, const void *p, size_t n)
{
	if (x->running && x->wants_stdin)
		exec_output(x, 0, p, n);
	else if (x->hashes)
		buf_add(&x->in, p, n);
	else if (x->running && x->repl)
		repl_input(x, p, n);
}

void program_eof(struct fake_agent *a, struct agent_exec *x)
{
	if (x->hashes)
		upper_hash(a, x);
	if (x->running && (x->wants_stdin || x->hashes))
		exec_end(x, WIRE_HOW_EXIT, 0);
}
