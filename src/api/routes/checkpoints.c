/*
 * api/routes/checkpoints.c - checkpoints, and going back to them
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/clock.h"
#include "base/err.h"
#include "host/checkpoint.h"
#include "host/rewind.h"
#include "host/sandbox.h"

static json_t *show(const struct checkpoint *c)
{
	return json_pack("{s:s, s:s, s:b, s:o, s:I, s:f, s:I}", "id", c->id, "name", c->name,
	                 "automatic", c->automatic, "created_at", json_time(c->created_ms),
	                 "size_bytes", (json_int_t)c->bytes, "stop_ms", (double)c->stop_ns / 1e6,
	                 "generation", (json_int_t)c->generation);
}

bool checkpoints_parse(const json_t *body, bool *ret, struct err *e)
{
	const json_t *j = json_object_get(body, "checkpoints");
	const char *s = json_string_value(j);

	if (!j || json_is_null(j))
		return true;
	if (!s || (strcmp(s, "auto") != 0 && strcmp(s, "off") != 0)) {
		err_set(e, EINVAL, "bad_request",
		        "field 'checkpoints' must be \"auto\" (one before every command) or "
		        "\"off\"");
		return false;
	}
	*ret = strcmp(s, "auto") == 0;
	return true;
}

static void taken(void *arg, const struct err *e, const struct checkpoint *k)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 201, show(k));
	call_drop(c);
}

void checkpoint_create(struct call *c)
{
	const char *name;

	if (!call_str(c, "name", "", &name))
		return;
	if (strlen(name) > CHECKPOINT_NAME_MAX) {
		call_fail(c, EINVAL, "bad_request", "field 'name' is longer than %d bytes",
		          CHECKPOINT_NAME_MAX);
		return;
	}
	host_checkpoint(c->host, c->sb, name, taken, call_hold(c));
}

void checkpoint_list(struct call *c)
{
	const struct sandbox *sb = c->sb;
	json_t *list = json_array();

	for (const struct checkpoint *k = sb->history ? sb->history->newest : NULL; k; k = k->older)
		json_array_append_new(list, show(k));
	call_json(c, 200,
	          json_pack("{s:o, s:s, s:s?}", "checkpoints", list, "policy",
	                    sb->spec.checkpoints ? "auto" : "off", "dropped_when",
	                    sb->history_lost));
}

void checkpoint_remove(struct call *c)
{
	struct err e;

	if (host_checkpoint_delete(c->host, c->sb, c->param[1], &e) < 0)
		call_error(c, &e);
	else
		call_empty(c, 204);
}

struct rewinding {
	struct call *call;
	uint64_t since_ns;
};

static void rewound(void *arg, const struct err *e, struct sandbox *sb)
{
	struct rewinding *w = arg;
	struct call *c = w->call;

	if (e)
		call_error(c, e);
	else
		call_json(c, 200,
		          json_pack("{s:s, s:s, s:s, s:I, s:f}", "id", sb->id, "checkpoint_id",
		                    sb->history->newest->id, "status",
		                    sandbox_state_name(sb->state), "generation",
		                    (json_int_t)sb->generation, "took_ms",
		                    (double)(mono_ns() - w->since_ns) / 1e6));
	call_drop(c);
	free(w);
}

void sandbox_rewind(struct call *c)
{
	struct rewinding *w;
	const char *to;
	int64_t steps;

	if (!call_str(c, "to", NULL, &to) ||
	    !call_int(c, "steps", to ? 0 : 1, to ? 0 : 1, CHECKPOINTS_MAX, &steps))
		return;
	if (to && steps) {
		call_fail(c, EINVAL, "bad_request",
		          "give 'steps' or 'to' (the id or name of a checkpoint), not both");
		return;
	}
	w = malloc(sizeof(*w));
	if (!w) {
		call_nomem(c);
		return;
	}
	*w = (struct rewinding){.call = call_hold(c), .since_ns = mono_ns()};
	host_rewind(c->host, c->sb, to, (unsigned)steps, rewound, w);
}
