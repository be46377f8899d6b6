/*
 * api/routes/sessions.c - interpreters that stay: the list, a new one, interrupting and ending them
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "api/streams/cell.h"
#include "api/streams/job.h"
#include "api/streams/session.h"
#include "base/err.h"
#include "wire/guest.h"

static void list_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < n; i++)
		if (!session_spare(&list[i]))
			json_array_append_new(rows, session_json(sb, &list[i]));
	call_json(c, 200, rows);
}

void repl_list(struct call *c)
{
	session_find(c, NULL, false, list_found);
}

static void create_found(struct call *c, struct sandbox *sb, struct session *list, size_t have)
{
	const struct language *l = language_of(c, true);
	const struct session *left = NULL;

	if (!l)
		return;
	for (size_t i = 0; i < have; i++)
		if (session_spare(&list[i]))
			left = &list[i];
	if (have - (left != NULL) >= SESSIONS_MAX) {
		call_fail(c, EAGAIN, "too_many",
		          "a sandbox may have %d sessions: delete one that is not needed",
		          SESSIONS_MAX);
		return;
	}
	if (!left || strcmp(l->names[0], left->language) != 0 || !session_take(c, sb, left, NULL))
		session_make(c, sb, l);
}

void repl_create(struct call *c)
{
	if (language_of(c, true))
		session_find(c, NULL, false, create_found);
}

/* ---- signals ---- */

static void signal_end(void *arg, struct job *j, const struct job_end *end)
{
	struct call *c = arg;

	if (!end->e && (!end->guest || end->guest == ESRCH))
		call_empty(c, 204);
	else
		job_fail(c, end, "cannot reach the interpreter");
	call_drop(c);
}

static void signal_session(struct call *c, struct sandbox *sb, uint64_t exec, int signo,
                           uint32_t flags)
{
	static const struct job_ops ops = {.end = signal_end};
	struct err e;

	if (job_start(c->host, sb, WIRE_SIGNAL,
	              &(struct wire_signal){.id = exec, .signo = (uint32_t)signo, .flags = flags},
	              &ops, c, &e))
		call_hold(c);
	else
		call_error(c, &e);
}

static void interrupt_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	signal_session(c, sb, list[0].exec, SIGINT, WIRE_SIGNAL_LEADER);
}

static void delete_found(struct call *c, struct sandbox *sb, struct session *list, size_t n)
{
	signal_session(c, sb, list[0].exec, SIGKILL, WIRE_SIGNAL_TREE);
}

void repl_interrupt(struct call *c)
{
	session_find(c, c->param[1], false, interrupt_found);
}

void repl_delete(struct call *c)
{
	session_find(c, c->param[1], false, delete_found);
}
