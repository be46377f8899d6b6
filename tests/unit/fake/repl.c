/*
 * fake/repl.c - the interpreter of a fake guest's code contexts (guest/repl: its lines of JSON)
 * A cell has one command a line; what it does not know it ignores:
 *
 *   print TEXT   warn TEXT   show TEXT (a result)   fill N (bytes)   raise NAME TEXT
 *   env NAME   late (ends as one whose time was over)   wait (until interrupted)
 *   raw TEXT (as its answer)   stray TEXT (output of another cell)
 *   exit N   die (the interpreter, with last words)
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/cleanup.h"
#include "base/macro.h"

static void answer(struct agent_exec *x, json_t *j)
{
	autofree char *text = json_dumps(j, JSON_COMPACT);

	exec_output(x, 0, text, strlen(text));
	exec_output(x, 0, "\n", 1);
	json_decref(j);
}

static void say(struct agent_exec *x, const char *id, const char *type, const char *text)
{
	answer(x, json_pack("{s:s, s:s, s:s++}", "id", id, "type", type, "text", text, "\n", ""));
}

static void done(struct agent_exec *x, const char *id, int code)
{
	answer(x, json_pack("{s:s, s:s, s:i}", "id", id, "type", "done", "exit", code));
}

static void failed(struct agent_exec *x, const char *id, const char *name, const char *value)
{
	answer(x, json_pack("{s:s, s:s, s:s, s:s, s:[s, s++]}", "id", id, "type", "error", "name",
	                    name, "value", value, "traceback", "Traceback:\n", name, ": ", value));
}

static void fill(struct agent_exec *x, const char *id, size_t n)
{
	char piece[1025];

	memset(piece, 'x', sizeof(piece));
	for (; n; n -= MIN(n, sizeof(piece) - 1)) {
		piece[MIN(n, sizeof(piece) - 1)] = 0;
		answer(x, json_pack("{s:s, s:s, s:s}", "id", id, "type", "stdout", "text", piece));
	}
}

static const char *variable(const struct agent_exec *x, const char *name)
{
	static char value[200];
	size_t n = strlen(name);

	for (const char *at = x->env; at && *at; at = strchr(at, '\n') + 1)
		if (!strncmp(at, name, n) && at[n] == '=') {
			snprintf(value, sizeof(value), "%.*s", (int)strcspn(at + n + 1, "\n"),
			         at + n + 1);
			return value;
		}
	return "";
}

/* False: the cell is over, or not to be ended here. */
static bool run_line(struct agent_exec *x, const char *id, const char *word, char *text)
{
	char *rest = strchr(text, ' ');

	if (!strcmp(word, "print")) {
		say(x, id, "stdout", text);
	} else if (!strcmp(word, "warn")) {
		say(x, id, "stderr", text);
	} else if (!strcmp(word, "env")) {
		say(x, id, "stdout", variable(x, text));
	} else if (!strcmp(word, "show")) {
		answer(x, json_pack("{s:s, s:s, s:{s:s}}", "id", id, "type", "result", "data",
		                    "text/plain", text));
	} else if (!strcmp(word, "fill")) {
		fill(x, id, (size_t)strtol(text, NULL, 10));
	} else if (!strcmp(word, "stray")) {
		say(x, "another", "stdout", text);
	} else if (!strcmp(word, "raw")) {
		exec_output(x, 0, text, strlen(text));
		exec_output(x, 0, "\n", 1);
	} else if (!strcmp(word, "raise")) {
		if (rest)
			*rest++ = 0;
		failed(x, id, text, rest ? rest : "");
		done(x, id, 1);
		return false;
	} else if (!strcmp(word, "late")) {
		done(x, id, 124);
		return false;
	} else if (!strcmp(word, "wait")) {
		snprintf(x->waiting, sizeof(x->waiting), "%s", id);
		return false;
	} else if (!strcmp(word, "exit")) {
		exec_end(x, WIRE_HOW_EXIT, (uint32_t)strtol(text, NULL, 10));
		return false;
	} else if (!strcmp(word, "die")) {
		exec_output(x, 1, "last words\n", 11);
		exec_end(x, WIRE_HOW_SIGNAL, SIGSEGV);
		return false;
	}
	return true;
}

static void run_cell(struct agent_exec *x, const json_t *request)
{
	const char *id = json_string_value(json_object_get(request, "id"));
	const char *code = json_string_value(json_object_get(request, "code"));
	autofree char *copy = strdup(code ? code : "");

	for (char *line = copy, *next; line; line = next) {
		char *text = line + strcspn(line, " \n");

		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		if (*text)
			*text++ = 0;
		if (!run_line(x, id, line, text))
			return;
	}
	done(x, id, 0);
}

void repl_input(struct agent_exec *x, const void *p, size_t n)
{
	char *end;

	buf_add(&x->cells, p, n);
	while (x->running && (end = memchr(x->cells.p, '\n', x->cells.n))) {
		size_t head = (size_t)(end + 1 - x->cells.p);
		size_t len = strtoul(x->cells.p, NULL, 10);
		json_t *j;

		if (x->cells.n < head + len)
			return;
		j = json_loadb(x->cells.p + head, len, 0, NULL);
		memmove(x->cells.p, x->cells.p + head + len, x->cells.n - head - len);
		x->cells.n -= head + len;
		run_cell(x, j);
		json_decref(j);
	}
}

void repl_interrupt(struct agent_exec *x)
{
	char id[sizeof(x->waiting)];

	if (!x->waiting[0])
		return;
	memcpy(id, x->waiting, sizeof(id));
	x->waiting[0] = 0;
	failed(x, id, "KeyboardInterrupt", "");
	done(x, id, 130);
}
