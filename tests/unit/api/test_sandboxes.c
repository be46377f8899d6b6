/*
 * api/routes/sandboxes.c and usage.c, as clients see them: create, list, and the steps of life
 */
#include "bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/macro.h"

static void a_sandbox_is_created_shown_and_deleted(void **state)
{
	const char *id = sandbox_made("{}");

	has("{'id':'%s','template':'base','status':'running','isolation':'a-process','runner':'"
	    "shell',"
	    "'persistent':false,'checkpoints':'off','ttl_seconds':null,'expires_at':null,"
	    "'parent_id':null,'fork_tree_id':null,'metadata':{},'volumes':[],'from_snapshot':'',"
	    "'egress_allowlist':null,'memory_mb':16,'cpu':1,'host_tap':'','vsock_cid':0}",
	    id);
	assert_string_equal(header("Content-Type"), "application/json");
	assert_string_equal(header("Access-Control-Allow-Origin"), "*");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'id':'%s','status':'running'}", id);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	body_is("");
	bad(404, "sandbox_not_found", id, NULL, "GET /v1/sandboxes/%s", id);
	bad(404, "sandbox_not_found", id, NULL, "DELETE /v1/sandboxes/%s", id);
}

static void what_was_asked_for_is_what_there_is(void **state)
{
	good(201,
	     "{'template':'base','name':'web','ttl_seconds':60,'persistent':true,"
	     "'checkpoints':'auto','metadata':{'team':'a','secret.key':'hush'},"
	     "'env':{'LANG':'C'},'cpu':8,'memory_mb':4096,'disk_gb':0,'volumes':[]}",
	     "POST /v1/sandboxes");
	has("{'ttl_seconds':60,'persistent':true,'checkpoints':'auto','cpu':1,'memory_mb':16}");
	/* Secrets come back in no answer. */
	has("{'metadata':{'team':'a','name':'web'}}");
	assert_int_equal(json_object_size(json_object_get(bed.json, "metadata")), 2);
	assert_null(strstr(bed.body, "hush"));
	assert_int_equal(strlen(text_of("expires_at")), strlen("2026-01-01T00:00:00.000Z"));
}

static void fields_of_a_create_are_refused_by_name(void **state)
{
	static const struct {
		const char *body, *field;
	} wrong[] = {
	    {"{'template':5}", "template"},
	    {"{'template':'%065d'}", "template"},
	    {"{'from_snapshot':[]}", "from_snapshot"},
	    {"{'ttl_seconds':-1}", "ttl_seconds"},
	    {"{'ttl_seconds':'60'}", "ttl_seconds"},
	    {"{'ttl_seconds':1.5}", "ttl_seconds"},
	    {"{'ttl_seconds':1e300}", "ttl_seconds"},
	    {"{'idle_seconds':true}", "idle_seconds"},
	    {"{'auto_hibernate_seconds':{}}", "auto_hibernate_seconds"},
	    {"{'snapshots_keep':-1}", "snapshots_keep"},
	    {"{'snapshots_keep':2.5}", "snapshots_keep"},
	    {"{'snapshots_max_age_seconds':'x'}", "snapshots_max_age_seconds"},
	    {"{'persistent':1}", "persistent"},
	    {"{'checkpoints':'sometimes'}", "checkpoints"},
	    {"{'checkpoints':true}", "checkpoints"},
	    {"{'cpu':'two'}", "cpu"},
	    {"{'memory_mb':-5}", "memory_mb"},
	    {"{'disk_gb':0.5}", "disk_gb"},
	    {"{'name':7}", "name"},
	    {"{'metadata':[]}", "metadata"},
	    {"{'metadata':{'a':1}}", "'a'"},
	    {"{'metadata':{'':'x'}}", "metadata"},
	    {"{'env':[]}", "env"},
	    {"{'env':{'A':1}}", "'A'"},
	    {"{'env':{'1A':'x'}}", "'1A'"},
	    {"{'env':{'A B':'x'}}", "'A B'"},
	    {"{'volumes':{}}", "volumes"},
	    {"{'volumes':[5]}", "element 0"},
	    {"{'volumes':['a',{'name':'b','path':'relative'}]}", "element 1"},
	    {"{'volumes':[{'name':'b','path':'/'}]}", "path"},
	    {"{'volumes':[{'name':'b','path':'/a/../b'}]}", "path"},
	    {"{'volumes':[{'name':'b','path':7}]}", "path"},
	    {"{'volumes':[{'name':'b','read_only':'yes'}]}", "read_only"},
	    {"{'egress':'maybe'}", "egress"},
	    {"{'egress':'off','egress_allowlist':['a.example']}", "egress"},
	    {"{'egress_allowlist':'a.example'}", "egress_allowlist"},
	    {"{'egress_allowlist':['a.example',5]}", "element 1"},
	    {"{'egress_allowlist':['no spaces']}", "element 0"},
	    {"{'egress_limits':[]}", "egress_limits"},
	    {"{'egress_limits':{'connections':0}}", "connections"},
	    {"{'egress_limits':{'up_kbit':'fast'}}", "up_kbit"},
	};
	char body[300];

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		snprintf(body, sizeof(body), wrong[i].body, 0); /* NOLINT */
		bad(400, "bad_request", wrong[i].field, body, "POST /v1/sandboxes");
	}
	good(200, NULL, "GET /v1/sandboxes");
	body_is("[]");
}

static void a_template_or_snapshot_that_is_not_there_is_named(void **state)
{
	bad(400, "template_not_found", "nowhere", "{'template':'nowhere'}", "POST /v1/sandboxes");
	bad(404, "snapshot_not_found", "", "{'from_snapshot':'nowhere'}", "POST /v1/sandboxes");
	bad(404, "volume_not_found", "data", "{'volumes':['data']}", "POST /v1/sandboxes");
	assert_int_equal(bed.on.host->count, 0);
}

static void a_machine_that_does_not_start_is_an_error_and_nothing_is_left(void **state)
{
	sandbox_made(NULL); /* now the template is baked */
	fake_fail(bed.on.fake, FAKE_CALL_START, 1, EIO);
	if (ask("{}", "POST /v1/sandboxes") < 500)
		status_is(500);
	assert_true(strlen(text_of("error")) > 10);
	assert_int_equal(bed.on.host->count, 1);
	sandbox_made(NULL);
}

static void a_list_shows_ones_own_newest_first_and_what_the_query_wants(void **state)
{
	const char *a = sandbox_made("{'metadata':{'team':'red','x y':'1&2'}}");
	const char *b = sandbox_made("{'metadata':{'team':'blue','secret.k':'v'}}");

	as(bed.other);
	good(201, "{}", "POST /v1/sandboxes");
	good(200, NULL, "GET /v1/sandboxes");
	has("[{'id':'%s'},{'id':'%s'}]", b, a);
	good(200, NULL, "GET /v1/sandboxes?metadata.team=red");
	has("[{'id':'%s'}]", a);
	good(200, NULL, "GET /v1/sandboxes?metadata.x%%20y=1%%262");
	has("[{'id':'%s'}]", a);
	good(200, NULL, "GET /v1/sandboxes?metadata.team=green");
	body_is("[]");
	/* Nobody finds out a secret by asking for it. */
	good(200, NULL, "GET /v1/sandboxes?metadata.secret.k=v");
	body_is("[]");
	good(200, NULL, "GET /v1/sandboxes?metadata.team");
	body_is("[]");
	good(204, NULL, "POST /v1/sandboxes/%s/pause", a);
	good(200, NULL, "GET /v1/sandboxes?status=paused");
	has("[{'id':'%s','status':'paused'}]", a);
	good(200, NULL, "GET /v1/sandboxes?status=running&template=base");
	has("[{'id':'%s'}]", b);
	good(200, NULL, "GET /v1/sandboxes?template=other");
	body_is("[]");
	good(200, NULL, "GET /v1/sandboxes?parent_id=%s", a);
	body_is("[]");
}

static void a_paused_one_waits_and_goes_on(void **state)
{
	const char *id = sandbox_made(NULL);

	good(204, NULL, "POST /v1/sandboxes/%s/pause", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'paused'}");
	bad(409, "sandbox_paused", "", "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	good(204, NULL, "POST /v1/sandboxes/%s/resume", id);
	good(200, "{'cmd':'echo again'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'again\\n','exit_code':0}");
	good(204, NULL, "POST /v1/sandboxes/%s/resume", id);
}

static void a_hibernated_one_wakes_when_asked_or_when_used(void **state)
{
	static const char *const words[2][2] = {{"hibernate", "wake"}, {"stop", "start"}};
	const char *id = sandbox_made(NULL);

	put_file(id, "/dev/shm/note", "kept");
	for (int i = 0; i < 2; i++) {
		good(200, NULL, "POST /v1/sandboxes/%s/%s", id, words[i][0]);
		body_is("{\"status\":\"hibernated\"}");
		good(200, NULL, "GET /v1/sandboxes/%s", id);
		has("{'status':'hibernated'}");
		good(200, NULL, "POST /v1/sandboxes/%s/%s", id, words[i][1]);
		body_is("{\"status\":\"running\"}");
		good(200, NULL, "POST /v1/sandboxes/%s/%s", id, words[i][1]);
		body_is("{\"status\":\"running\"}");
	}
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/note", id);
	body_is("kept");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'running'}");
}

static void a_hibernation_that_fails_leaves_it_running(void **state)
{
	const char *id = sandbox_made(NULL);

	fake_fail(bed.on.fake, FAKE_CALL_SNAPSHOT, 1, ENOSPC);
	assert_true(ask(NULL, "POST /v1/sandboxes/%s/hibernate", id) >= 500);
	assert_true(strlen(text_of("error")) > 10);
	good(200, "{'cmd':'echo here'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'here\\n'}");
}

static void one_whose_machine_ended_says_so(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_crash_machine(&bed.on, sandbox_of(id));
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'failed'}");
	assert_true(strlen(text_of("end_reason")) > 5);
	bad(409, "sandbox_failed", "", "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	bad(409, "sandbox_failed", "", NULL, "POST /v1/sandboxes/%s/pause", id);
	bad(409, "sandbox_failed", "", NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes?status=failed");
	has("[{'id':'%s'}]", id);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
}

static void a_lifecycle_is_shown_and_changed(void **state)
{
	const char *id = sandbox_made("{'ttl_seconds':600}");

	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':600,'persistent':false,'idle_seconds':0,'checkpoints':'off'}");
	good(200, "{'ttl_seconds':0,'persistent':true,'checkpoints':'auto'}",
	     "PATCH /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':0,'persistent':true,'expires_at':null,'checkpoints':'auto'}");
	/* What is absent or null stays. */
	good(200, "{'ttl_seconds':null}", "PATCH /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':0,'persistent':true,'expires_at':null,'checkpoints':'auto'}");
	good(200, "{'checkpoints':'off'}", "PATCH /v1/sandboxes/%s/lifecycle", id);
	has("{'persistent':true,'checkpoints':'off'}");
	good(200, "{'ttl_seconds':60.0}", "PATCH /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':60}");
	bad(400, "bad_request", "ttl_seconds", "{'ttl_seconds':-1}",
	    "PATCH /v1/sandboxes/%s/lifecycle", id);
	bad(400, "bad_request", "persistent", "{'persistent':'yes'}",
	    "PATCH /v1/sandboxes/%s/lifecycle", id);
	bad(400, "bad_request", "checkpoints", "{'checkpoints':'on'}",
	    "PATCH /v1/sandboxes/%s/lifecycle", id);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':60,'persistent':true,'checkpoints':'off'}");
}

static void a_change_that_is_refused_in_part_changes_nothing(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "ttl_seconds", "{'checkpoints':'auto','ttl_seconds':'x'}",
	    "PATCH /v1/sandboxes/%s/lifecycle", id);
	bad(400, "bad_request", "checkpoints", "{'checkpoints':5,'ttl_seconds':60}",
	    "PATCH /v1/sandboxes/%s/lifecycle", id);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	has("{'ttl_seconds':0,'checkpoints':'off','expires_at':null}");
}

static void its_time_is_over_when_it_was_said_to_be(void **state)
{
	const char *id = sandbox_made("{'ttl_seconds':5}");

	good(200, NULL, "GET /v1/sandboxes/%s", id);
	bed_later(6000);
	bed_until(&bed.on, bed.on.host->count == 0);
	bad(404, "sandbox_not_found", id, NULL, "GET /v1/sandboxes/%s", id);
}

static void being_looked_at_is_no_use_and_being_asked_is(void **state)
{
	const char *id = sandbox_made("{'idle_seconds':3600}");

	bed_later(5000);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	good(200, NULL, "GET /v1/sandboxes/%s/events", id);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	assert_true(number_of("idle_seconds") >= 5);
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	has("{'idle_seconds':0}");
}

static void what_it_may_reach_is_shown_and_checked(void **state)
{
	const char *id = sandbox_made("{'egress_allowlist':['example.com','93.184.0.0/16']}");

	has("{'egress_allowlist':['example.com','93.184.0.0/16']}");
	good(200, NULL, "GET /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':['example.com','93.184.0.0/16'],'mode':'list','up_bytes':0,"
	    "'down_bytes':0,'refused':0,'odd':0,'names':0,'names_refused':0,'names_limited':0,"
	    "'events_lost':0,'up_packets':0,'down_packets':0}");
	bad(400, "bad_request", "egress_allowlist", "{}", "PATCH /v1/sandboxes/%s/egress", id);
	bad(400, "bad_request", "element 0", "{'egress_allowlist':[5]}",
	    "PATCH /v1/sandboxes/%s/egress", id);
	bad(400, "bad_request", "down_kbit", "{'egress_limits':{'down_kbit':-1}}",
	    "PATCH /v1/sandboxes/%s/egress", id);
	good(200, NULL, "GET /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':['example.com','93.184.0.0/16'],'mode':'list'}");
}

static void what_it_may_reach_changes(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'egress_allowlist':['a.example:443'],'egress_limits':{'up_kbit':64}}",
	     "PATCH /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':['a.example:443'],'mode':'list','egress_limits':{'up_kbit':64}}");
	/* One of the two, and the other stays. */
	good(200, "{'egress':'off'}", "PATCH /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':[],'mode':'off','egress_limits':{'up_kbit':64}}");
	good(200, "{'egress_limits':{'connections':5}}", "PATCH /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':[],'mode':'off','egress_limits':{'connections':5}}");
	good(200, "{'egress_limits':null}", "PATCH /v1/sandboxes/%s/egress", id);
	assert_null(json_object_get(bed.json, "egress_limits"));
	good(200, "{'egress':'open'}", "PATCH /v1/sandboxes/%s/egress", id);
	has("{'egress_allowlist':null,'mode':'open'}");
}

/* It looks twice, with 200 ms between. */
static void measured(const char *id)
{
	struct client *c = begin(NULL, "GET /v1/sandboxes/%s/metrics", id);
	uint64_t asked = loop_now_ms(bed.on.loop);

	bed_until(&bed.on, c->over || sandbox_of(id)->ops || loop_now_ms(bed.on.loop) > asked + 5);
	bed_later(200);
	client_answer(c);
	client_leave(c);
	status_is(200);
}

static void its_use_of_the_host_is_measured(void **state)
{
	const char *id = sandbox_made(NULL);

	measured(id);
	assert_int_equal(number_of("pid"), sandbox_of(id)->pid);
	assert_true(number_of("host_rss_bytes") > 0);
	assert_true(number_of("threads") >= 1);
	has("{'guest':{'mem_total':16777216,'mem_free':8388608,'processes':1}}");
	/* A look wakes nobody up. */
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes/%s/metrics", id);
	has("{'pid':0,'guest':null,'host_rss_bytes':0,'threads':0}");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'hibernated'}");
}

static void a_guest_that_gives_no_numbers_hides_not_those_of_the_host(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "refuse", "{\"stats\":{\"err\":5,\"text\":\"no\"}}");
	measured(id);
	has("{'guest':null,'pid':%d}", (int)sandbox_of(id)->pid);
	bed_rule(&bed.on, "refuse", NULL);
	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	measured(id);
	has("{'guest':null,'pid':%d}", (int)sandbox_of(id)->pid);
}

static void a_sandbox_nobody_waited_for_is_killed(void **state)
{
	struct client *c;

	fake_close(bed.on.fake, FAKE_CALL_ADOPT);
	fake_close(bed.on.fake, FAKE_CALL_START);
	c = begin("{}", "POST /v1/sandboxes");
	bed_until(&bed.on, bed.on.host->count == 1);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	fake_open(bed.on.fake, FAKE_CALL_ADOPT);
	fake_open(bed.on.fake, FAKE_CALL_START);
	bed_until(&bed.on, bed.on.host->count == 0);
}

static void a_quota_of_its_token_stops_a_create(void **state)
{
	char token[64];

	as(bed.admin);
	good(200, "{'tenant':'q','quota':{'sandboxes':1,'memory_mb':64}}", "POST /v1/me/tokens");
	snprintf(token, sizeof(token), "%s", text_of("token"));
	as(token);
	good(201, "{}", "POST /v1/sandboxes");
	as(token);
	bad(429, "quota_exceeded", "1", "{}", "POST /v1/sandboxes");
	as(token);
	good(200, NULL, "GET /v1/sandboxes");
	assert_int_equal(json_array_size(bed.json), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_sandbox_is_created_shown_and_deleted),
	    api_test(what_was_asked_for_is_what_there_is),
	    api_test(fields_of_a_create_are_refused_by_name),
	    api_test(a_template_or_snapshot_that_is_not_there_is_named),
	    api_test(a_machine_that_does_not_start_is_an_error_and_nothing_is_left),
	    api_test(a_list_shows_ones_own_newest_first_and_what_the_query_wants),
	    api_test(a_paused_one_waits_and_goes_on),
	    api_test(a_hibernated_one_wakes_when_asked_or_when_used),
	    api_test(a_hibernation_that_fails_leaves_it_running),
	    api_test(one_whose_machine_ended_says_so),
	    api_test(a_lifecycle_is_shown_and_changed),
	    api_test(a_change_that_is_refused_in_part_changes_nothing),
	    api_test(its_time_is_over_when_it_was_said_to_be),
	    api_test(being_looked_at_is_no_use_and_being_asked_is),
	    api_test(what_it_may_reach_is_shown_and_checked),
	    api_test(what_it_may_reach_changes),
	    api_test(its_use_of_the_host_is_measured),
	    api_test(a_guest_that_gives_no_numbers_hides_not_those_of_the_host),
	    api_test(a_sandbox_nobody_waited_for_is_killed),
	    api_test(a_quota_of_its_token_stops_a_create),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
