/*
 * api/routes/diff.c - what is different between two machines, and merging a child into its parent
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "base/cleanup.h"
#include "host/diff.h"
#include "host/sandbox.h"

static void told(void *arg, const struct err *e, json_t *result)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 200, result);
	call_drop(c);
}

void sandbox_diff(struct call *c)
{
	autofree char *to = call_query(c, "to"), *from = call_query(c, "from");
	struct diff_options o = {.other = to ? to : from,
	                         .to_other = to,
	                         .unified = call_query_flag(c, "unified")};

	if (*c->only && (to || from))
		call_fail(c, EPERM, "forbidden",
		          "a token of one sandbox does not name others: without 'to' and 'from' "
		          "it is compared with its template");
	else if (to && from)
		call_fail(c, EINVAL, "bad_request",
		          "give 'to' or 'from' (a sandbox, snapshot or checkpoint), not both: the "
		          "other end is this sandbox");
	else if (o.other && (!*o.other || strlen(o.other) > SNAPSHOT_NAME_MAX))
		call_fail(c, EINVAL, "bad_request",
		          "'%s' must be the id of a sandbox, snapshot or checkpoint",
		          to ? "to" : "from");
	else
		host_diff(c->host, c->sb, &o, told, call_hold(c));
}

void sandbox_merge(struct call *c)
{
	const char *child, *conflicts;
	bool dry;

	if (!call_str(c, "child", NULL, &child) || !call_str(c, "conflicts", "stop", &conflicts) ||
	    !call_bool(c, "dry_run", false, &dry))
		return;
	if (!child || (strcmp(conflicts, "stop") != 0 && strcmp(conflicts, "theirs") != 0)) {
		call_fail(c, EINVAL, "bad_request",
		          !child ? "field 'child' is required: the id of a fork of this sandbox"
		                 : "field 'conflicts' must be \"stop\" or \"theirs\"");
		return;
	}
	host_merge(c->host, c->sb, child, !strcmp(conflicts, "theirs"), dry, told, call_hold(c));
}
