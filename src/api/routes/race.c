/*
 * api/routes/race.c - one moment, several attempts: the first that passes is kept
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "api/streams/exec.h"
#include "api/streams/sse.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/uuid.h"
#include "host/accept.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"

enum {
	RACE_OUTPUT_MAX = 1 << 20, /* of each stream of each command */
	RACE_TIMEOUT_S = 60,
	RACE_TIMEOUT_MAX_S = 24 * 3600,
};

struct racer {
	struct race *race;
	char id[SANDBOX_ID + 1];  /* "": there is no child */
	struct exec_collect *run; /* NULL: not begun, or over */
	const char *state;        /* running, won, lost, killed, failed */
	json_t *result;
	struct err err; /* failed: why */
};

struct race {
	struct call *call;
	struct host *host;
	char tree[SANDBOX_ID + 1];
	struct accept accept;
	json_t *commands; /* of the body */
	uint64_t timeout_ms, began_ns;
	struct loop_timer timer;
	struct racer racer[FORK_MAX];
	size_t n, running;
	bool forking, over;
};

static void race_free(struct race *r)
{
	loop_timer_clear(r->host->loop, &r->timer);
	for (size_t i = 0; i < r->n; i++)
		json_decref(r->racer[i].result);
	json_decref(r->commands);
	call_drop(r->call);
	free(r);
}

/* Ends a child and what runs in it. */
static void drop(struct racer *x, const char *why)
{
	struct sandbox *sb = x->id[0] ? host_find(x->race->host, NULL, x->id) : NULL;

	exec_collect_abandon(x->run);
	x->run = NULL;
	if (sb)
		host_kill(x->race->host, sb, why, NULL, NULL);
}

static json_t *outcome_json(const struct racer *x, size_t i)
{
	json_t *j = json_pack("{s:I, s:s, s:s}", "index", (json_int_t)i, "sandbox_id", x->id,
	                      "state", x->state);

	if (x->result)
		json_object_set(j, "result", x->result);
	if (x->err.code) {
		json_object_set_new(j, "error", json_sentence(x->err.text));
		json_object_set_new(j, "code", json_string(x->err.kind));
	}
	return j;
}

/* It is decided: winner NULL when no child passed. All others go. */
static void finish(struct race *r, struct racer *winner)
{
	struct sandbox *sb = winner ? host_find(r->host, NULL, winner->id) : NULL;
	size_t won = winner ? (size_t)(winner - r->racer) : r->n;
	json_t *outcomes = json_array(), *j;

	r->over = true;
	call_on_gone(r->call, NULL, NULL);
	for (size_t i = 0; i < r->n; i++) {
		struct racer *x = &r->racer[i];

		if (i == won)
			x->state = "won";
		else if (x->run)
			x->state = "killed";
		if (i != won)
			drop(x, "it lost a race");
		json_array_append_new(outcomes, outcome_json(x, i));
	}
	j = json_pack("{s:o, s:o, s:O?, s:s, s:o, s:f}", "winner",
	              sb ? show_sandbox(r->host, sb) : json_null(), "winner_index",
	              winner ? json_integer(winner - r->racer) : json_null(), "result",
	              winner ? winner->result : NULL, "tree_id", r->tree, "outcomes", outcomes,
	              "took_ms", (double)(mono_ns() - r->began_ns) / 1e6);
	if (winner)
		event_emit(&r->host->events, r->call->tenant, winner->id, "race.won",
		           json_pack("{s:s, s:I}", "tree_id", r->tree, "racers", (json_int_t)r->n));
	call_json(r->call, 200, j);
	race_free(r);
}

static void ran(void *arg, const struct err *e, const struct exec_result *res)
{
	struct racer *x = arg;
	struct race *r = x->race;
	bool passed = false;

	x->run = NULL;
	r->running--;
	if (e) {
		x->err = *e;
		x->state = "failed";
	} else {
		struct outcome o = {.exit_code = res->exit.exit_code,
		                    .duration_ms = (int64_t)res->exit.duration_ms,
		                    .out = res->out,
		                    .out_len = res->out_len,
		                    .err = res->err,
		                    .err_len = res->err_len};

		x->result = exec_result_json(res);
		x->state = "lost";
		passed = !res->exit.timed_out && accept_holds(&r->accept, &o);
	}
	if (passed && host_find(r->host, NULL, x->id)) {
		finish(r, x);
		return;
	}
	drop(x, "it lost a race"); /* at once: its memory may help the others */
	if (r->running == 0)
		finish(r, NULL);
}

static void on_time(void *arg)
{
	finish(arg, NULL);
}

static void on_gone(void *arg)
{
	struct race *r = arg;

	if (r->forking) /* forked() sees to it */
		return;
	r->over = true;
	for (size_t i = 0; i < r->n; i++)
		drop(&r->racer[i], "its client went away");
	race_free(r);
}

/* A command is a script, or an object as for exec. */
static int command_of(const json_t *j, struct exec_spec *ret, struct err *e)
{
	struct exec_spec s = {.cmd = json_string_value(j)};
	int r = 0;

	if (json_is_object(j))
		r = exec_spec_parse(j, &s, e);
	else if (!s.cmd || !*s.cmd)
		r = err_set(e, EINVAL, "bad_request",
		            "each of 'commands' must be a shell command, or an object as for exec");
	if (r == 0)
		*ret = s;
	return r;
}

static void forked(void *arg, const struct err *e, struct host_forked *f)
{
	struct race *r = arg;

	r->forking = false;
	if (e)
		call_error(r->call, e);
	if (e || !r->call->req) {
		for (size_t i = 0; f && !e && i < f->count; i++)
			if (f->children[i])
				host_kill(r->host, f->children[i], "its client went away", NULL,
				          NULL);
		call_on_gone(r->call, NULL, NULL);
		race_free(r);
		return;
	}
	for (size_t i = 0; i < r->n; i++) {
		struct racer *x = &r->racer[i];
		struct exec_spec s;

		x->state = "failed";
		if (!f->children[i]) {
			x->err = f->errors[i];
			continue;
		}
		memcpy(x->id, f->children[i]->id, sizeof(x->id));
		if (command_of(json_array_get(r->commands, i), &s, &x->err) < 0)
			continue;
		s.timeout_ms = r->timeout_ms;
		s.output_max = RACE_OUTPUT_MAX;
		s.account = r->call->account;
		x->run = exec_collect(r->host, f->children[i], &s, ran, x, &x->err);
		if (x->run) {
			x->state = "running";
			r->running++;
		}
	}
	if (r->running == 0) {
		finish(r, NULL);
		return;
	}
	if (r->timeout_ms)
		loop_timer_set(r->host->loop, &r->timer,
		               loop_now_ms(r->host->loop) + r->timeout_ms);
}

static bool race_parse(struct call *c, struct race *r, struct err *e)
{
	const json_t *list = json_object_get(c->body, "commands"), *v;
	const json_t *t = json_object_get(c->body, "timeout_seconds");
	double seconds = json_is_number(t) ? json_number_value(t) : RACE_TIMEOUT_S;
	struct exec_spec s;
	const char *accept;
	size_t i;

	if (!call_str(c, "accept", "exit_code == 0", &accept)) {
		e->code = 0; /* it was answered */
		return false;
	}
	if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > FORK_MAX) {
		err_set(e, EINVAL, "bad_request",
		        "field 'commands' must be a list of 1 to %d commands", FORK_MAX);
		return false;
	}
	if ((t && !json_is_null(t) && !json_is_number(t)) || !(seconds >= 0) ||
	    seconds > RACE_TIMEOUT_MAX_S) {
		err_set(e, EINVAL, "bad_request",
		        "field 'timeout_seconds' must be a number from 0 (none) to %d",
		        RACE_TIMEOUT_MAX_S);
		return false;
	}
	json_array_foreach(list, i, v) {
		if (command_of(v, &s, e) < 0)
			return false;
	}
	r->n = json_array_size(list);
	r->commands = json_incref((json_t *)list);
	r->timeout_ms = (uint64_t)ceil(seconds * 1000);
	return accept_parse(accept, &r->accept, e) == 0;
}

void sandbox_race(struct call *c)
{
	struct race *r = calloc(1, sizeof(*r));
	struct err e = {0};

	if (!r) {
		call_nomem(c);
		return;
	}
	if (!race_parse(c, r, &e)) {
		if (e.code)
			call_error(c, &e);
		json_decref(r->commands);
		free(r);
		return;
	}
	for (size_t i = 0; i < r->n; i++)
		r->racer[i].race = r;
	r->call = call_hold(c);
	r->host = c->host;
	r->began_ns = mono_ns();
	r->forking = true;
	r->timer = (struct loop_timer){.fn = on_time, .arg = r};
	uuid_new(r->tree);
	call_on_gone(c, on_gone, r);
	host_fork(c->host, c->sb, r->n, NULL, r->tree, &c->quota, forked, r);
}
