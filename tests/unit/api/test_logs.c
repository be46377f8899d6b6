/*
 * api/routes/logs.c, boot_stats.c and server.c, as clients see them: what happened, and how it goes
 */
#include "bed.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/cleanup.h"
#include "base/macro.h"

/* ---- consoles ---- */

/* More on the console of its machine. */
static void console_says(const char *id, const char *text, size_t n)
{
	autoclose int fd = -1;
	char path[300];

	snprintf(path, sizeof(path), "%s/machines/%s/console.log", bed.on.run_dir,
	         sandbox_of(id)->machine);
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, n), n);
}

static void a_console_is_shown_all_or_its_last_lines(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, NULL, "GET /v1/sandboxes/%s/logs", id);
	assert_string_equal(header("Content-Type"), "text/plain; charset=utf-8");
	console_says(id, "one\ntwo\nthree\n", 14);
	good(200, NULL, "GET /v1/sandboxes/%s/logs?tail=2", id);
	body_is("two\nthree\n");
	good(200, NULL, "GET /v1/sandboxes/%s/logs?tail=0", id);
	body_is("");
	console_says(id, "half", 4);
	good(200, NULL, "GET /v1/sandboxes/%s/logs?tail=2&stream=stderr", id);
	body_is("three\nhalf");
	bad(400, "bad_request", "tail", NULL, "GET /v1/sandboxes/%s/logs?tail=-1", id);
	bad(400, "bad_request", "tail", NULL, "GET /v1/sandboxes/%s/logs?tail=10001", id);
	bad(400, "bad_request", "tail", NULL, "GET /v1/sandboxes/%s/logs?tail=all", id);
}

static void a_long_console_is_shown_from_a_whole_line_on(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = (1 << 20) + 5000;
	autofree char *text = malloc(n);

	for (size_t i = 0; i < n; i++)
		text[i] = i % 100 == 99 ? '\n' : 'c';
	console_says(id, text, n - n % 100);
	good(200, NULL, "GET /v1/sandboxes/%s/logs", id);
	assert_in_range(bed.len, (1 << 20) - 100, 1 << 20);
	assert_int_equal(bed.len % 100, 0);
}

static void a_console_is_followed_line_by_line(void **state)
{
	const char *id = sandbox_made("{'persistent':true}");
	struct client *c;
	char longest[5000];

	console_says(id, "a\nb\n", 4);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/logs?follow=1&tail=1", id);
	json_has(event(c, "line"), "{'line':'b\\n'}");
	console_says(id, "c\nhal", 5);
	bed_later(250);
	json_has(event(c, "line"), "{'line':'c\\n'}");
	console_says(id, "f\xff\n", 3);
	bed_later(250);
	json_has(event(c, "line"), "{'line':'half\xef\xbf\xbd\\n'}");
	/* A line without an end comes in pieces, and what is left when it is over. */
	memset(longest, 'x', sizeof(longest));
	console_says(id, longest, sizeof(longest));
	bed_later(250);
	assert_int_equal(json_string_length(json_object_get(event(c, "line"), "line")), 4096);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	bed_later(250);
	assert_int_equal(json_string_length(json_object_get(event(c, "line"), "line")), 904);
	assert_string_equal(event_any(c), "");
	assert_true(c->over);
}

static void a_follower_of_a_console_does_not_wake_it_nor_hold_up_an_end(void **state)
{
	const char *id = sandbox_made("{'persistent':true}");
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/logs?follow=1", id);

	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	bed_later(300);
	bed_later(300);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'hibernated'}");
	api_drain(bed.api);
	while (strcmp(event_any(c), "line") == 0)
		;
	assert_true(c->over);
	client_leave(c);
	/* One that goes away. */
	c = stream(200, NULL, "GET /v1/sandboxes/%s/logs?follow=1", id);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_later(300);
}

/* ---- events ---- */

static void events_are_listed_oldest_first(void **state)
{
	const char *id = sandbox_made(NULL), *other = sandbox_made(NULL);

	good(204, NULL, "POST /v1/sandboxes/%s/pause", id);
	good(200, NULL, "GET /v1/sandboxes/%s/events?tail=1", id);
	has("{'events':[{'sandbox_id':'%s','type':'sandbox.paused'}]}", id);
	good(200, NULL, "GET /v1/sandboxes/%s/events", id);
	assert_non_null(strstr(bed.body, "sandbox.running"));
	assert_null(strstr(bed.body, other));
	assert_true(strstr(bed.body, "sandbox.running") < strstr(bed.body, "sandbox.paused"));
	good(200, NULL, "GET /v1/events");
	assert_non_null(strstr(bed.body, other));
	good(200, NULL, "GET /v1/events?tail=0");
	has("{'events':[]}");
	as(bed.other);
	good(200, NULL, "GET /v1/events");
	has("{'events':[]}");
	bad(400, "bad_request", "tail", NULL, "GET /v1/events?tail=1001");
	bad(400, "bad_request", "tail", NULL, "GET /v1/sandboxes/%s/events?tail=x", id);
}

static void events_are_followed_up_to_the_last(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *one = stream(200, NULL, "GET /v1/sandboxes/%s/events?follow=1&tail=1", id);
	struct client *all = stream(200, NULL, "GET /v1/events?follow=1&tail=0");
	struct client *theirs;

	as(bed.other);
	theirs = stream(200, NULL, "GET /v1/events?follow=1&tail=0");
	json_has(event(one, "event"), "{'sandbox_id':'%s'}", id);
	good(204, NULL, "POST /v1/sandboxes/%s/pause", id);
	json_has(event(one, "event"), "{'type':'sandbox.paused'}");
	json_has(event(all, "event"), "{'type':'sandbox.paused','sandbox_id':'%s'}", id);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	do
		event(one, "event");
	while (strcmp(json_string_value(json_object_get(one->data, "type")), "sandbox.deleted") !=
	       0);
	assert_string_equal(event_any(one), "");
	assert_false(all->over);
	assert_int_equal(client_body_len(theirs), 0);
}

static void a_follower_who_does_not_read_is_told_what_it_missed(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, NULL, "GET /v1/events?follow=1&tail=0");
	json_int_t told = 0, missed = 0;
	char *padding = malloc(20001);

	memset(padding, 'p', 20000);
	padding[20000] = 0;
	client_deaf(c, true);
	for (int i = 0; i < 200; i++)
		event_emit(&bed.on.host->events, "t", id, "test.happened",
		           json_pack("{s:s}", "padding", padding));
	free(padding);
	client_deaf(c, false);
	while (!missed) {
		if (strcmp(event_any(c), "dropped") == 0)
			missed = json_integer_value(json_object_get(c->data, "count"));
		else
			told++;
	}
	assert_true(missed > 0);
	assert_int_equal(told + missed, 200);
	good(204, NULL, "POST /v1/sandboxes/%s/pause", id);
	json_has(event(c, "event"), "{'type':'sandbox.paused'}");
}

/* ---- the audit ---- */

static void who_changed_something_is_on_record(void **state)
{
	const char *id = sandbox_made(NULL);

	with("X-Request-Id: my-request");
	good(204, NULL, "POST /v1/sandboxes/%s/pause", id);
	bad(400, "bad_request", "", "{'port':0}", "POST /v1/sandboxes/%s/ports", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id); /* a look is not */
	as("");
	bad(401, "unauthorized", "", NULL, "DELETE /v1/sandboxes/%s", id);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'method':'POST','status':400},"
	    "{'method':'POST','path':'/v1/sandboxes/%s/pause','status':204,'workspace':'t',"
	    "'actor':'%.12s','request_id':'my-request'},"
	    "{'method':'POST','path':'/v1/sandboxes','status':201}]}",
	    id, bed.mine);
	good(200, NULL, "GET /v1/audit?limit=1");
	has("{'entries':[{'status':400}]}");
	as(bed.other);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[]}");
	as(bed.admin);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'method':'DELETE','status':401,'workspace':'','actor':''},{},{},{}]}");
}

static void who_has_no_valid_token_is_counted_and_not_listed(void **state)
{
	const char *id = sandbox_made(NULL);

	for (int i = 0; i < 5; i++) {
		as("");
		bad(401, "unauthorized", "", NULL, "DELETE /v1/sandboxes/%s", id);
	}
	as("pds_00000000000000000000000000000000");
	bad(401, "unauthorized", "", NULL, "GET /v1/me"); /* it tried one */
	as("");
	bad(404, "not_found", "", NULL, "POST /nothing");
	as(bed.admin);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/nothing','status':404,'count':1},"
	    "{'method':'DELETE','status':401,'workspace':'','address':'unix','count':6},"
	    "{'path':'/v1/sandboxes','workspace':'t','count':1}]}");
	/* What comes later is counted anew, and written after a minute. */
	as("");
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	bed_later(61000);
	assert_int_equal(bed.api->audit.nstrangers, 0);
	as(bed.admin);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'status':401,'count':1},{},{},{}]}");
}

static void a_page_of_a_sandbox_writes_nothing_in_the_name_of_its_tenant(void **state)
{
	const char *id;

	bed_api_close();
	bed.config.preview_suffix = "preview.example";
	bed_api_open();
	id = sandbox_made(NULL);
	for (int i = 0; i < 3; i++) {
		as("");
		with("Host: 80-%s.preview.example", id);
		ask("x", "POST /form");
	}
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/v1/sandboxes'}]}");
	as(bed.admin);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/form','workspace':'','count':3},{}]}");
}

static void one_tenant_pushes_out_no_entry_of_another(void **state)
{
	bed_api_close();
	bed.config.audit_kept_per_tenant = 16;
	bed_api_open();
	as(bed.other);
	bad(404, "sandbox_not_found", "", NULL, "POST /v1/sandboxes/x/pause");
	for (int i = 0; i < 40; i++)
		bad(404, "sandbox_not_found", "", NULL, "POST /v1/sandboxes/y/pause");
	good(200, NULL, "GET /v1/audit");
	assert_int_equal(json_array_size(json_object_get(bed.json, "entries")), 16);
	as(bed.other);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/v1/sandboxes/x/pause'}]}");
	/* The next pandad knows who has how many. */
	bed_api_close();
	bed_api_open();
	for (int i = 0; i < 40; i++)
		bad(404, "sandbox_not_found", "", NULL, "POST /v1/sandboxes/z/pause");
	good(200, NULL, "GET /v1/audit");
	assert_int_equal(json_array_size(json_object_get(bed.json, "entries")), 16);
	as(bed.other);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/v1/sandboxes/x/pause'}]}");
}

static void the_audit_is_asked_since_a_time(void **state)
{
	sandbox_made(NULL);
	good(200, NULL, "GET /v1/audit?since=0");
	has("{'entries':[{}],'since':'1970-01-01T00:00:00.000Z'}");
	good(200, NULL, "GET /v1/audit?since=2099-01-01T00:00:00Z");
	has("{'entries':[],'since':'2099-01-01T00:00:00.000Z'}");
	bad(400, "bad_request", "since", NULL, "GET /v1/audit?since=yesterday");
	bad(400, "bad_request", "limit", NULL, "GET /v1/audit?limit=0");
	bad(400, "bad_request", "limit", NULL, "GET /v1/audit?limit=1001");
	/* A day later it is not of the last day. */
	bed_later(25 * 3600 * 1000);
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[]}");
}

static void the_audit_is_there_in_the_next_pandad(void **state)
{
	sandbox_made(NULL);
	bed_api_close();
	bed_api_open();
	good(200, NULL, "GET /v1/audit");
	has("{'entries':[{'path':'/v1/sandboxes','status':201}]}");
}

static void a_signed_link_is_no_path_of_the_audit(void **state)
{
	const char *id = sandbox_made(NULL);
	char token[700];

	good(200, "{'port':80}", "POST /v1/sandboxes/%s/preview", id);
	snprintf(token, sizeof(token), "%s", text_of("token"));
	as("");
	bad(502, "upstream", "", "x", "POST /v1/p/%s/form", token);
	as(bed.admin);
	good(200, NULL, "GET /v1/audit");
	assert_null(strstr(bed.body, token));
	assert_non_null(strstr(bed.body, "/v1/p/{token}/{rest...}"));
}

/* ---- the server ---- */

static void how_long_creates_took_is_counted(void **state)
{
	const char *a, *b;

	good(200, NULL, "GET /v1/stats/boot");
	has("{'total_samples':0,'window_seconds':0,'overall':{'count':0},'by_mode':{},"
	    "'by_template':{},'recent':[]}");
	a = sandbox_made(NULL);
	b = sandbox_made(NULL);
	good(200, NULL, "GET /v1/stats/boot");
	has("{'total_samples':2,'overall':{'count':2},'by_template':{'base':{'count':2}},"
	    "'recent':[{'sandbox_id':'%s','template':'base'},{'sandbox_id':'%s'}]}",
	    b, a);
	assert_true(number_of("overall.min_ms") <= number_of("overall.max_ms"));
	good(200, NULL, "GET /v1/stats/boot?limit=1");
	has("{'total_samples':2,'recent':[{'sandbox_id':'%s'}]}", b);
	as(bed.other);
	good(200, NULL, "GET /v1/stats/boot");
	has("{'total_samples':0}");
	bad(400, "bad_request", "limit", NULL, "GET /v1/stats/boot?limit=501");
}

static void anybody_may_ask_whether_it_is_there(void **state)
{
	as("");
	good(200, NULL, "GET /healthz");
	has("{'status':'ok','sandboxes':0,'uptime_seconds':0}");
	sandbox_made(NULL);
	bed_later(5000);
	good(200, NULL, "GET /healthz");
	has("{'sandboxes':1,'uptime_seconds':5}");
	as("");
	good(200, NULL, "GET /version");
	has("{'service':'pandad','os':'Linux','engine':'fake','isolation':'a-process'}");
	good(200, NULL, "GET /v1/version");
	assert_true(strlen(text_of("semver")) > 2);
}

static void requests_and_sandboxes_are_counted(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, NULL, "GET /v1/sandboxes/%s", id);
	bad(404, "sandbox_not_found", "", NULL, "GET /v1/sandboxes/x");
	bad(404, "not_found", "", NULL, "GET /nowhere");
	as("");
	good(200, NULL, "GET /metrics");
	assert_string_equal(header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
	static const char *const lines[] = {
	    "pandastack_http_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status="
	    "\"200\"} 1\n",
	    "pandastack_http_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status="
	    "\"404\"} 1\n",
	    "pandastack_http_requests_total{method=\"POST\",route=\"/v1/"
	    "sandboxes\",status=\"201\"} "
	    "1\n",
	    "route=\"none\",status=\"404\"} 1\n",
	    "pandastack_http_request_duration_seconds_count{method=\"GET\",route="
	    "\"/v1/sandboxes/{id}\"} 2\n",
	    "le=\"+Inf\"} 2\n",
	    "pandastack_sandboxes{state=\"running\"} 1\n",
	    "pandastack_sandbox_memory_bytes 16777216\n",
	    "pandastack_sandbox_creates_total 1\n",
	    "pandastack_sandbox_kills_total 0\n",
	    "# TYPE pandastack_sandbox_boot_duration_seconds histogram\n",
	    "pandastack_uptime_seconds 0\n"};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		if (!strstr(bed.body, lines[i]))
			fail_msg("the metrics lack %s%s", lines[i], bed.body);
}

static void a_client_that_left_is_counted_as_one(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = begin("{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec", id);

	bed_until(&bed.on, commands_of(id) == 1);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	good(200, NULL, "GET /metrics");
	assert_non_null(strstr(bed.body, "/exec\",status=\"499\"} 1\n"));
}

static void the_api_describes_itself(void **state)
{
	as("");
	good(200, NULL, "GET /openapi.json");
	has("{'openapi':'3.1.0'}");
	assert_non_null(json_object_get(json_object_get(bed.json, "paths"), "/v1/sandboxes"));
	as("");
	good(200, NULL, "GET /docs");
	assert_string_equal(header("Content-Type"), "text/html; charset=utf-8");
	assert_non_null(strstr(bed.body, "/v1/sandboxes"));
}

static void a_server_that_ends_says_so_to_those_who_wait(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *events = stream(200, NULL, "GET /v1/events?follow=1&tail=0");
	struct client *watch = begin(NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", id);

	client_head(watch);
	api_drain(bed.api);
	assert_string_equal(event_any(events), "");
	assert_true(events->over);
	while (*event_any(watch))
		;
	assert_true(watch->over);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_console_is_shown_all_or_its_last_lines),
	    api_test(a_long_console_is_shown_from_a_whole_line_on),
	    api_test(a_console_is_followed_line_by_line),
	    api_test(a_follower_of_a_console_does_not_wake_it_nor_hold_up_an_end),
	    api_test(events_are_listed_oldest_first),
	    api_test(events_are_followed_up_to_the_last),
	    api_test(a_follower_who_does_not_read_is_told_what_it_missed),
	    api_test(who_changed_something_is_on_record),
	    api_test(who_has_no_valid_token_is_counted_and_not_listed),
	    api_test(a_page_of_a_sandbox_writes_nothing_in_the_name_of_its_tenant),
	    api_test(one_tenant_pushes_out_no_entry_of_another),
	    api_test(the_audit_is_asked_since_a_time),
	    api_test(the_audit_is_there_in_the_next_pandad),
	    api_test(a_signed_link_is_no_path_of_the_audit),
	    api_test(how_long_creates_took_is_counted),
	    api_test(anybody_may_ask_whether_it_is_there),
	    api_test(requests_and_sandboxes_are_counted),
	    api_test(a_client_that_left_is_counted_as_one),
	    api_test(the_api_describes_itself),
	    api_test(a_server_that_ends_says_so_to_those_who_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
