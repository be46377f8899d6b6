/*
 * api/routes/forks.c - fork, fork-tree, promote
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "api/streams/sse.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/uuid.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"

struct forking {
	struct call *call;
	char parent[SANDBOX_ID + 1], tree[SANDBOX_ID + 1];
	bool is_tree;
};

static void nobody_waited(struct call *c, struct host_forked *f)
{
	for (size_t i = 0; i < f->count; i++)
		if (f->children[i])
			host_kill(c->host, f->children[i], "its client went away", NULL, NULL);
}

static void forked(void *arg, const struct err *e, struct host_forked *f)
{
	struct forking *k = arg;
	struct call *c = k->call;
	json_t *ids = json_array(), *objects = json_array(), *errors = json_array(), *j = NULL;

	if (e) {
		call_error(c, e);
		goto out;
	}
	if (!c->req) {
		nobody_waited(c, f);
		goto out;
	}
	for (size_t i = 0; i < f->count; i++) {
		if (f->children[i]) {
			json_array_append_new(ids, json_string(f->children[i]->id));
			json_array_append_new(objects, show_sandbox(c->host, f->children[i]));
		} else {
			json_array_append_new(errors,
			                      json_pack("{s:i, s:o, s:s}", "index", (int)i, "err",
			                                json_sentence(f->errors[i].text), "code",
			                                f->errors[i].kind));
		}
	}
	j = json_pack("{s:s, s:s, s:s, s:o}", "parent_id", k->parent, "snapshot_id", f->snapshot_id,
	              "tree_id", k->tree, "at", json_time(wall_ms()));
	if (k->is_tree) {
		json_object_set(j, "children", objects);
	} else {
		json_object_set(j, "children", ids);
		json_object_set(j, "sandbox", json_array_get(objects, 0));
		json_object_set(j, "sandboxes", objects);
	}
	if (json_array_size(errors))
		json_object_set(j, "errors", errors);
	call_json(c, 201, j);
out:
	json_decref(ids);
	json_decref(objects);
	json_decref(errors);
	call_drop(c);
	free(k);
}

static void fork_with(struct call *c, int64_t otherwise, bool is_tree)
{
	json_t *metadata = NULL;
	struct forking *k;
	int64_t count;
	struct err e;

	if (!call_int(c, "count", otherwise, 1, FORK_MAX, &count))
		return;
	if (metadata_parse(c->body, &metadata, &e) < 0) {
		call_error(c, &e);
		return;
	}
	k = calloc(1, sizeof(*k));
	if (!k) {
		call_nomem(c);
	} else {
		k->call = call_hold(c);
		k->is_tree = is_tree;
		memcpy(k->parent, c->sb->id, sizeof(k->parent));
		uuid_new(k->tree);
		host_fork(c->host, c->sb, (size_t)count, metadata, k->tree, &c->quota, forked, k);
	}
	json_decref(metadata);
}

void sandbox_fork(struct call *c)
{
	fork_with(c, 1, false);
}

void sandbox_fork_tree(struct call *c)
{
	fork_with(c, 2, true);
}

/* ---- promote ---- */

struct promoting {
	struct call *call;
	char winner[SANDBOX_ID + 1], tree[SANDBOX_ID + 1];
	json_t *deleted, *failures;
	size_t pending;
};

struct sibling {
	struct promoting *all;
	char id[SANDBOX_ID + 1];
};

static void promoted(struct promoting *p)
{
	struct call *c = p->call;
	json_t *j;

	if (--p->pending)
		return;
	j = json_pack("{s:s, s:s, s:O}", "winner", p->winner, "tree_id", p->tree, "deleted",
	              p->deleted);
	if (j && json_object_size(p->failures))
		json_object_set(j, "failures", p->failures);
	event_emit(&c->host->events, c->tenant, p->winner, "fork_tree.promoted",
	           json_pack("{s:s, s:O}", "tree_id", p->tree, "deleted", p->deleted));
	call_json(c, 200, j);
	json_decref(p->deleted);
	json_decref(p->failures);
	call_drop(c);
	free(p);
}

static void sibling_gone(void *arg, const struct err *e, struct sandbox *sb)
{
	struct sibling *s = arg;

	(void)sb;
	if (e)
		json_object_set_new(s->all->failures, s->id, json_sentence(e->text));
	else
		json_array_append_new(s->all->deleted, json_string(s->id));
	promoted(s->all);
	free(s);
}

static bool sibling(const struct sandbox *sb, const struct promoting *p)
{
	return strcmp(sb->tenant, p->call->tenant) == 0 && strcmp(sb->tree, p->tree) == 0 &&
	       strcmp(sb->id, p->winner) != 0 && sb->state != SANDBOX_KILLING;
}

static void kill_siblings(struct promoting *p)
{
	struct host *h = p->call->host;
	json_t *ids = json_array(), *v;
	size_t i;

	/* Names first: killing changes the list we would walk. */
	for (struct sandbox *sb = h->newest; sb; sb = sb->next)
		if (sibling(sb, p))
			json_array_append_new(ids, json_string(sb->id));
	json_array_foreach(ids, i, v) {
		struct sandbox *sb = host_find(h, p->call->tenant, json_string_value(v));
		struct sibling *s = sb ? calloc(1, sizeof(*s)) : NULL;

		if (!s) {
			if (sb)
				json_object_set_new(p->failures, sb->id, json_string("no memory"));
			continue;
		}
		s->all = p;
		memcpy(s->id, sb->id, sizeof(s->id));
		p->pending++;
		host_kill(h, sb, "a sibling was promoted", sibling_gone, s);
	}
	json_decref(ids);
}

void sandbox_promote(struct call *c)
{
	const char *tree;
	struct promoting *p;
	bool cleanup;

	if (!call_bool(c, "cleanup_siblings", false, &cleanup) ||
	    !call_str(c, "tree_id", c->sb->tree, &tree))
		return;
	if (cleanup && !*tree) {
		call_fail(c, EINVAL, "bad_request",
		          "sandbox %s belongs to no fork tree: it has no siblings to clean up",
		          c->sb->id);
		return;
	}
	if (*tree && strcmp(tree, c->sb->tree) != 0) {
		call_fail(c, EINVAL, "bad_request",
		          "field 'tree_id': sandbox %s is not of that tree", c->sb->id);
		return;
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		call_nomem(c);
		return;
	}
	p->call = call_hold(c);
	memcpy(p->winner, c->sb->id, sizeof(p->winner));
	snprintf(p->tree, sizeof(p->tree), "%s", tree);
	p->deleted = json_array();
	p->failures = json_object();
	p->pending = 1; /* ours */
	if (cleanup)
		kill_siblings(p);
	promoted(p);
}
