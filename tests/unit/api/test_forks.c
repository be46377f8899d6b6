/*
 * api/routes/forks.c, race.c, snapshots.c, archives.c and checkpoints.c, as clients see them: one
 * moment of a sandbox, again
 */
#include "bed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"

static const char *keep_text(const char *path)
{
	static char kept[8][64];
	static unsigned turn;
	char *ret = kept[turn++ % 8];

	snprintf(ret, sizeof(kept[0]), "%s", text_of(path));
	return ret;
}

/* What its file says. */
static void file_is(const char *id, const char *path, const char *text)
{
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=%s", id, path);
	body_is(text);
}

/* ---- forks ---- */

static void a_fork_has_what_its_parent_had(void **state)
{
	const char *id = sandbox_made("{'metadata':{'team':'a'}}"), *child;

	put_file(id, "/dev/shm/note", "before");
	good(201, "{}", "POST /v1/sandboxes/%s/fork", id);
	child = keep_text("sandbox.id");
	has("{'parent_id':'%s','children':['%s'],'sandbox':{'parent_id':'%s','status':'running'},"
	    "'sandboxes':[{'id':'%s','boot_mode':'fork','metadata':{'team':'a'}}]}",
	    id, child, id, child);
	assert_string_equal(text_of("sandbox.fork_tree_id"), text_of("tree_id"));
	put_file(id, "/dev/shm/note", "after");
	file_is(child, "/dev/shm/note", "before");
	file_is(id, "/dev/shm/note", "after");
	good(200, NULL, "GET /v1/sandboxes?parent_id=%s", id);
	has("[{'id':'%s'}]", child);
}

static void a_fork_tree_is_several_that_belong_together(void **state)
{
	const char *id = sandbox_made(NULL), *tree;

	good(201, "{'count':3,'metadata':{'try':'x'}}", "POST /v1/sandboxes/%s/fork-tree", id);
	tree = keep_text("tree_id");
	has("{'children':[{'metadata':{'try':'x'},'fork_tree_id':'%s'},{'fork_tree_id':'%s'},"
	    "{'fork_tree_id':'%s'}]}",
	    tree, tree, tree);
	good(201, "{}", "POST /v1/sandboxes/%s/fork-tree", id);
	has("{'children':[{},{}]}");
}

static void what_is_asked_of_a_fork_is_checked(void **state)
{
	static const char *const where[] = {"fork", "fork-tree"};
	static const char *const wrong[][2] = {
	    {"{'count':0}", "count"},       {"{'count':17}", "count"},
	    {"{'count':'2'}", "count"},     {"{'count':1.5}", "count"},
	    {"{'metadata':5}", "metadata"}, {"{'metadata':{'a':5}}", "'a'"},
	};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(where); i++)
		for (size_t k = 0; k < ARRAY_LEN(wrong); k++)
			bad(400, "bad_request", wrong[k][1], wrong[k][0],
			    "POST /v1/sandboxes/%s/%s", id, where[i]);
	assert_int_equal(bed.on.host->count, 1);
}

static void a_fork_that_is_refused_leaves_its_parent_as_it_was(void **state)
{
	const char *id = sandbox_made(NULL);

	fake_fail(bed.on.fake, FAKE_CALL_SNAPSHOT, 1, ENOSPC);
	if (ask("{'count':2}", "POST /v1/sandboxes/%s/fork", id) < 500)
		status_is(507);
	assert_int_equal(bed.on.host->count, 1);
	good(200, "{'cmd':'echo here'}", "POST /v1/sandboxes/%s/exec", id);
	bed_crash_machine(&bed.on, sandbox_of(id));
	bad(409, "sandbox_failed", "", "{}", "POST /v1/sandboxes/%s/fork", id);
}

static void a_child_that_does_not_come_is_told_beside_those_that_do(void **state)
{
	const char *id = sandbox_made(NULL);

	fake_fail(bed.on.fake, FAKE_CALL_START, 1, EIO);
	good(201, "{'count':3}", "POST /v1/sandboxes/%s/fork", id);
	if (json_object_get(bed.json, "errors")) {
		assert_true(number_of("errors.0.index") < 3);
		assert_true(strlen(text_of("errors.0.err")) > 5);
		assert_true(strlen(text_of("errors.0.code")) > 2);
	}
	assert_int_equal(json_array_size(json_object_get(bed.json, "children")) +
	                     json_array_size(json_object_get(bed.json, "errors")),
	                 3);
	assert_int_equal(bed.on.host->count,
	                 1 + json_array_size(json_object_get(bed.json, "children")));
}

static void children_nobody_waited_for_are_killed(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	fake_close(bed.on.fake, FAKE_CALL_SNAPSHOT);
	c = begin("{'count':2}", "POST /v1/sandboxes/%s/fork", id);
	bed_until(&bed.on, fake_waiting(bed.on.fake, FAKE_CALL_SNAPSHOT) == 1);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	fake_open(bed.on.fake, FAKE_CALL_SNAPSHOT);
	bed_until(&bed.on, bed.on.host->stats.forks >= 1 || !sandbox_of(id)->ops);
	bed_until(&bed.on, bed.on.host->count == 1);
}

static void one_child_is_promoted_and_its_siblings_go(void **state)
{
	const char *id = sandbox_made(NULL), *a, *b, *tree;
	struct client *c;

	good(201, "{'count':3}", "POST /v1/sandboxes/%s/fork-tree", id);
	a = keep_text("children.0.id");
	b = keep_text("children.1.id");
	tree = keep_text("tree_id");
	good(200, "{}", "POST /v1/sandboxes/%s/promote", a);
	has("{'winner':'%s','tree_id':'%s','deleted':[]}", a, tree);
	assert_int_equal(bed.on.host->count, 4);
	bad(400, "bad_request", "tree_id", "{'tree_id':'another'}", "POST /v1/sandboxes/%s/promote",
	    a);
	bad(400, "bad_request", "no fork tree", "{'cleanup_siblings':true}",
	    "POST /v1/sandboxes/%s/promote", id);
	bad(400, "bad_request", "cleanup_siblings", "{'cleanup_siblings':1}",
	    "POST /v1/sandboxes/%s/promote", a);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/events?follow=1&tail=0", a);
	good(200, "{'cleanup_siblings':true}", "POST /v1/sandboxes/%s/promote", a);
	assert_int_equal(json_array_size(json_object_get(bed.json, "deleted")), 2);
	assert_null(json_object_get(bed.json, "failures"));
	json_has(event(c, "event"), "{'type':'fork_tree.promoted','payload':{'tree_id':'%s'}}",
	         tree);
	bad(404, "sandbox_not_found", "", NULL, "GET /v1/sandboxes/%s", b);
	assert_int_equal(bed.on.host->count, 2);
	good(200, "{'cleanup_siblings':true}", "POST /v1/sandboxes/%s/promote", a);
	has("{'deleted':[]}");
}

/* ---- races ---- */

static void the_first_that_passes_wins_a_race(void **state)
{
	const char *id = sandbox_made(NULL), *winner;

	good(200, "{'commands':['exit 1','echo second',{'argv':['sleep']}]}",
	     "POST /v1/sandboxes/%s/race", id);
	has("{'winner_index':1,'result':{'stdout':'second\\n','exit_code':0},"
	    "'outcomes':[{'index':0},{'index':1,'state':'won'},{'index':2,'state':'killed'}]}");
	winner = keep_text("winner.id");
	assert_string_equal(text_of("outcomes.1.sandbox_id"), winner);
	bed_until(&bed.on, bed.on.host->count == 2);
	good(200, NULL, "GET /v1/sandboxes/%s", winner);
	has("{'status':'running','parent_id':'%s'}", id);
	good(200, NULL, "GET /v1/sandboxes/%s/events", winner);
	assert_non_null(strstr(bed.body, "race.won"));
}

static void a_race_that_nobody_wins_keeps_nobody(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'commands':['exit 1',{'argv':['nowhere']}]}", "POST /v1/sandboxes/%s/race", id);
	has("{'winner':null,'winner_index':null,'result':null,'outcomes':["
	    "{'state':'lost','result':{'exit_code':1}},{'state':'lost','result':{'exit_code':127}}]"
	    "}");
	bed_until(&bed.on, bed.on.host->count == 1);
	good(200, "{'commands':[{'cmd':'true','cwd':'/nowhere'}]}", "POST /v1/sandboxes/%s/race",
	     id);
	has("{'winner':null,'outcomes':[{'state':'failed','code':'bad_request'}]}");
	assert_non_null(strstr(text_of("outcomes.0.error"), "directory"));
	bed_until(&bed.on, bed.on.host->count == 1);
}

static void what_passes_is_said_by_accept(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200,
	     "{'commands':['echo no','echo yes; exit 3'],'accept':'stdout contains \\\"yes\\\" && "
	     "exit_code == 3'}",
	     "POST /v1/sandboxes/%s/race", id);
	has("{'winner_index':1,'result':{'exit_code':3}}");
	bad(400, "bad_request", "", "{'commands':['true'],'accept':'fast'}",
	    "POST /v1/sandboxes/%s/race", id);
	bad(400, "bad_request", "accept", "{'commands':['true'],'accept':5}",
	    "POST /v1/sandboxes/%s/race", id);
}

static void a_race_ends_when_its_time_does(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	c = begin("{'commands':['sleep','sleep'],'timeout_seconds':30}",
	          "POST /v1/sandboxes/%s/race", id);
	bed_until(&bed.on, bed.on.host->count == 3 && !sandbox_of(id)->ops);
	bed_until(&bed.on, bed.on.host->newest->busy > 0);
	bed_later(30001);
	client_answer(c);
	status_is(200);
	has("{'winner':null,'outcomes':[{'state':'killed'},{'state':'killed'}]}");
	bed_until(&bed.on, bed.on.host->count == 1);
}

static void what_is_asked_of_a_race_is_checked(void **state)
{
	static const char *const wrong[][2] = {
	    {"{}", "commands"},
	    {"{'commands':[]}", "commands"},
	    {"{'commands':'true'}", "commands"},
	    {"{'commands':['']}", "commands"},
	    {"{'commands':['a',5]}", "commands"},
	    {"{'commands':[{}]}", "cmd required"},
	    {"{'commands':[{'cmd':'a','cwd':'b'}]}", "cwd"},
	    {"{'commands':['a','a','a','a','a','a','a','a','a','a','a','a','a','a','a','a','a']}",
	     "16"},
	    {"{'commands':['a'],'timeout_seconds':-1}", "timeout_seconds"},
	    {"{'commands':['a'],'timeout_seconds':'1'}", "timeout_seconds"},
	    {"{'commands':['a'],'timeout_seconds':1e9}", "timeout_seconds"},
	};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", wrong[i][1], wrong[i][0], "POST /v1/sandboxes/%s/race", id);
	assert_int_equal(bed.on.host->count, 1);
}

static void a_race_nobody_waits_for_any_more_is_over(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c =
	    begin("{'commands':['sleep','sleep']}", "POST /v1/sandboxes/%s/race", id);

	bed_until(&bed.on, bed.on.host->count == 3 && bed.on.host->newest->busy > 0);
	client_leave(c);
	bed_until(&bed.on, bed.on.host->count == 1);
	/* Also when it has not begun. */
	fake_close(bed.on.fake, FAKE_CALL_SNAPSHOT);
	c = begin("{'commands':['true']}", "POST /v1/sandboxes/%s/race", id);
	bed_until(&bed.on, fake_waiting(bed.on.fake, FAKE_CALL_SNAPSHOT) == 1);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	fake_open(bed.on.fake, FAKE_CALL_SNAPSHOT);
	bed_until(&bed.on, !sandbox_of(id)->ops && bed.on.host->count == 1);
}

static void a_race_that_cannot_fork_is_an_error(void **state)
{
	const char *id = sandbox_made(NULL);

	fake_fail(bed.on.fake, FAKE_CALL_SNAPSHOT, 1, ENOSPC);
	assert_true(ask("{'commands':['true']}", "POST /v1/sandboxes/%s/race", id) >= 500);
	assert_true(strlen(text_of("error")) > 5);
	assert_int_equal(bed.on.host->count, 1);
}

/* ---- snapshots ---- */

static void a_snapshot_is_kept_and_sandboxes_are_made_from_it(void **state)
{
	const char *id = sandbox_made(NULL), *snap, *again;

	put_file(id, "/note", "then");
	good(201, "{'name':'first'}", "POST /v1/sandboxes/%s/snapshots", id);
	snap = keep_text("id");
	has("{'sandbox_id':'%s','name':'first','template':'base','workspace':'t','expires_at':"
	    "null}",
	    id);
	assert_true(number_of("size_bytes") > 0);
	put_file(id, "/note", "now");
	good(200, NULL, "GET /v1/snapshots/%s", snap);
	has("{'id':'%s','name':'first'}", snap);
	good(200, NULL, "GET /v1/snapshots");
	has("{'snapshots':[{'id':'%s'}]}", snap);
	good(200, NULL, "GET /v1/snapshots?sandbox_id=%s", id);
	has("{'snapshots':[{'id':'%s'}]}", snap);
	good(200, NULL, "GET /v1/snapshots?sandbox_id=other");
	has("{'snapshots':[]}");
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	{
		char body[100];

		snprintf(body, sizeof(body), "{'from_snapshot':'%s'}", snap);
		good(201, body, "POST /v1/sandboxes");
		has("{'from_snapshot':'%s'}", snap);
		again = keep_text("id");
	}
	file_is(again, "/note", "then");
	good(204, NULL, "DELETE /v1/snapshots/%s", snap);
	file_is(again, "/note", "then");
}

static void snapshots_of_others_are_not_there(void **state)
{
	const char *id = sandbox_made(NULL), *snap;

	good(201, "{}", "POST /v1/sandboxes/%s/snapshots", id);
	snap = keep_text("id");
	for (int i = 0; i < 2; i++) {
		as(i ? bed.admin : bed.other);
		bad(404, "snapshot_not_found", "", NULL, "GET /v1/snapshots/%s", snap);
		as(i ? bed.admin : bed.other);
		bad(404, "snapshot_not_found", "", NULL, "DELETE /v1/snapshots/%s", snap);
		as(i ? bed.admin : bed.other);
		bad(404, "snapshot_not_found", "", NULL, "GET /v1/snapshots/%s/export", snap);
	}
	bad(404, "snapshot_not_found", "", NULL, "GET /v1/snapshots/nothing");
	bad(404, "snapshot_not_found", "", NULL, "DELETE /v1/snapshots/nothing");
	bad(404, "snapshot_not_found", "", NULL, "GET /v1/snapshots/nothing/export");
}

static void the_name_of_a_snapshot_is_checked(void **state)
{
	const char *id = sandbox_made(NULL);
	char body[600];

	bad(400, "bad_request", "name", "{'name':5}", "POST /v1/sandboxes/%s/snapshots", id);
	snprintf(body, sizeof(body), "{'name':'%0500d'}", 0);
	bad(400, "bad_request", "name", body, "POST /v1/sandboxes/%s/snapshots", id);
	good(200, NULL, "GET /v1/snapshots");
	has("{'snapshots':[]}");
}

static void an_exported_snapshot_can_be_taken_in(void **state)
{
	const char *id = sandbox_made(NULL), *snap, *taken;
	autofree char *tar = NULL;
	char body[100], *at;
	size_t n;

	put_file(id, "/note", "carried");
	good(201, "{'name':'far'}", "POST /v1/sandboxes/%s/snapshots", id);
	snap = keep_text("id");
	good(200, NULL, "GET /v1/snapshots/%s/export", snap);
	assert_string_equal(header("Content-Type"), "application/x-tar");
	assert_non_null(strstr(header("Content-Disposition"), snap));
	n = bed.len;
	tar = malloc(n);
	memcpy(tar, bed.body, n);
	good(204, NULL, "DELETE /v1/snapshots/%s", snap);
	assert_int_equal(ask_bytes(tar, n, "POST /v1/snapshots/import"), 201);
	taken = keep_text("id");
	assert_string_not_equal(taken, snap);
	has("{'name':'far','template':'base','workspace':'t'}");
	snprintf(body, sizeof(body), "{'from_snapshot':'%s'}", taken);
	good(201, body, "POST /v1/sandboxes");
	file_is(keep_text("id"), "/note", "carried");
	/* What was changed or cut on the way is taken in by nobody. */
	at = memmem(tar, n, "carried", 7);
	assert_non_null(at);
	*at ^= 1;
	ask_bytes(tar, n, "POST /v1/snapshots/import");
	refused(400, "parcel_invalid", "");
	*at ^= 1;
	ask_bytes(tar, n / 2, "POST /v1/snapshots/import");
	refused(400, "parcel_invalid", "");
	ask_bytes("nonsense", 8, "POST /v1/snapshots/import");
	refused(400, "parcel_invalid", "");
	ask(NULL, "POST /v1/snapshots/import");
	refused(400, "parcel_invalid", "");
	good(200, NULL, "GET /v1/snapshots");
	has("{'snapshots':[{'id':'%s'}]}", taken);
}

static void an_export_or_import_that_is_given_up_leaves_nothing(void **state)
{
	const char *id = sandbox_made(NULL), *snap;
	autofree char *tar = NULL;
	struct client *c;
	size_t n;

	good(201, "{}", "POST /v1/sandboxes/%s/snapshots", id);
	snap = keep_text("id");
	good(200, NULL, "GET /v1/snapshots/%s/export", snap);
	n = bed.len;
	tar = malloc(n);
	memcpy(tar, bed.body, n);
	client_leave(begin(NULL, "GET /v1/snapshots/%s/export", snap));
	c = begin(NULL, "GET /v1/snapshots/%s/export", snap);
	client_deaf(c, true);
	for (int i = 0; i < 20; i++)
		good(200, NULL, "GET /v1/snapshots");
	client_leave(c);
	with("Content-Length: %zu", n);
	c = begin(NULL, "POST /v1/snapshots/import");
	client_send(c, tar, n / 2);
	good(200, NULL, "GET /v1/snapshots");
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0 && !pool_busy(bed.on.host->pool));
	good(200, NULL, "GET /v1/snapshots");
	has("{'snapshots':[{'id':'%s'}]}", snap);
	bed_until(&bed.on, bed_snapshots(&bed.on, "") == bed_snapshots(&bed.on, "tpl-") + 1u);
}

static void a_quota_of_snapshots_stops_a_snapshot_and_an_import(void **state)
{
	char token[64];

	as(bed.admin);
	good(200, "{'tenant':'q','quota':{'snapshots':1}}", "POST /v1/me/tokens");
	snprintf(token, sizeof(token), "%s", text_of("token"));
	as(token);
	good(201, "{}", "POST /v1/sandboxes");
	{
		const char *id = keep_text("id");

		as(token);
		good(201, "{}", "POST /v1/sandboxes/%s/snapshots", id);
		as(token);
		bad(429, "quota_exceeded", "", "{}", "POST /v1/sandboxes/%s/snapshots", id);
		as(token);
		bad(429, "quota_exceeded", "", "x", "POST /v1/snapshots/import");
	}
}

/* ---- checkpoints ---- */

static void a_sandbox_goes_back_to_a_checkpoint(void **state)
{
	const char *id = sandbox_made(NULL), *first, *second;

	put_file(id, "/n", "1");
	good(201, "{'name':'one'}", "POST /v1/sandboxes/%s/checkpoints", id);
	first = keep_text("id");
	has("{'name':'one','automatic':false}");
	put_file(id, "/n", "2");
	good(201, "{}", "POST /v1/sandboxes/%s/checkpoints", id);
	second = keep_text("id");
	has("{'name':''}");
	put_file(id, "/n", "3");
	good(200, NULL, "GET /v1/sandboxes/%s/checkpoints", id);
	has("{'policy':'off','dropped_when':null,'checkpoints':[{'id':'%s'},{'id':'%s'}]}", second,
	    first);
	good(200, "{}", "POST /v1/sandboxes/%s/rewind", id);
	has("{'id':'%s','checkpoint_id':'%s','status':'running'}", id, second);
	file_is(id, "/n", "2");
	good(200, "{'to':'one'}", "POST /v1/sandboxes/%s/rewind", id);
	has("{'checkpoint_id':'%s'}", first);
	file_is(id, "/n", "1");
	bed_until(&bed.on, !sandbox_of(id)->ops); /* the life before is being put away */
	good(204, NULL, "DELETE /v1/sandboxes/%s/checkpoints/%s", id, first);
	bad(404, "checkpoint_not_found", "", NULL, "DELETE /v1/sandboxes/%s/checkpoints/%s", id,
	    first);
}

static void what_is_asked_of_a_rewind_is_checked(void **state)
{
	const char *id = sandbox_made(NULL);
	char body[200];

	bad(404, "checkpoint_not_found", "", "{}", "POST /v1/sandboxes/%s/rewind", id);
	bad(404, "checkpoint_not_found", "", "{'to':'nowhere'}", "POST /v1/sandboxes/%s/rewind",
	    id);
	bad(400, "bad_request", "not both", "{'to':'a','steps':1}", "POST /v1/sandboxes/%s/rewind",
	    id);
	bad(400, "bad_request", "steps", "{'steps':0}", "POST /v1/sandboxes/%s/rewind", id);
	bad(400, "bad_request", "steps", "{'steps':33}", "POST /v1/sandboxes/%s/rewind", id);
	bad(400, "bad_request", "to", "{'to':5}", "POST /v1/sandboxes/%s/rewind", id);
	bad(400, "bad_request", "name", "{'name':5}", "POST /v1/sandboxes/%s/checkpoints", id);
	snprintf(body, sizeof(body), "{'name':'%065d'}", 0);
	bad(400, "bad_request", "64", body, "POST /v1/sandboxes/%s/checkpoints", id);
	good(200, NULL, "GET /v1/sandboxes/%s/checkpoints", id);
	has("{'checkpoints':[]}");
}

static void checkpoints_that_a_hibernation_took_are_told(void **state)
{
	const char *id = sandbox_made(NULL);

	good(201, "{}", "POST /v1/sandboxes/%s/checkpoints", id);
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes/%s/checkpoints", id);
	has("{'checkpoints':[]}");
	assert_true(strlen(text_of("dropped_when")) > 3);
}

/* ---- differences ---- */

static void what_is_asked_of_a_diff_or_a_merge_is_checked(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "not both", NULL, "GET /v1/sandboxes/%s/diff?to=a&from=b", id);
	bad(400, "bad_request", "'to'", NULL, "GET /v1/sandboxes/%s/diff?to=", id);
	bad(400, "bad_request", "'from'", NULL, "GET /v1/sandboxes/%s/diff?from=%0300d", id, 0);
	ask(NULL, "GET /v1/sandboxes/%s/diff?to=nowhere", id);
	refused(404, text_of("code"), "");
	bad(400, "bad_request", "child", "{}", "POST /v1/sandboxes/%s/merge", id);
	bad(400, "bad_request", "child", "{'child':5}", "POST /v1/sandboxes/%s/merge", id);
	bad(400, "bad_request", "conflicts", "{'child':'x','conflicts':'ours'}",
	    "POST /v1/sandboxes/%s/merge", id);
	bad(400, "bad_request", "dry_run", "{'child':'x','dry_run':'yes'}",
	    "POST /v1/sandboxes/%s/merge", id);
	ask("{'child':'nowhere'}", "POST /v1/sandboxes/%s/merge", id);
	refused(404, text_of("code"), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_fork_has_what_its_parent_had),
	    api_test(a_fork_tree_is_several_that_belong_together),
	    api_test(what_is_asked_of_a_fork_is_checked),
	    api_test(a_fork_that_is_refused_leaves_its_parent_as_it_was),
	    api_test(a_child_that_does_not_come_is_told_beside_those_that_do),
	    api_test(children_nobody_waited_for_are_killed),
	    api_test(one_child_is_promoted_and_its_siblings_go),
	    api_test(the_first_that_passes_wins_a_race),
	    api_test(a_race_that_nobody_wins_keeps_nobody),
	    api_test(what_passes_is_said_by_accept),
	    api_test(a_race_ends_when_its_time_does),
	    api_test(what_is_asked_of_a_race_is_checked),
	    api_test(a_race_nobody_waits_for_any_more_is_over),
	    api_test(a_race_that_cannot_fork_is_an_error),
	    api_test(a_snapshot_is_kept_and_sandboxes_are_made_from_it),
	    api_test(snapshots_of_others_are_not_there),
	    api_test(the_name_of_a_snapshot_is_checked),
	    api_test(an_exported_snapshot_can_be_taken_in),
	    api_test(an_export_or_import_that_is_given_up_leaves_nothing),
	    api_test(a_quota_of_snapshots_stops_a_snapshot_and_an_import),
	    api_test(a_sandbox_goes_back_to_a_checkpoint),
	    api_test(what_is_asked_of_a_rewind_is_checked),
	    api_test(checkpoints_that_a_hibernation_took_are_told),
	    api_test(what_is_asked_of_a_diff_or_a_merge_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
