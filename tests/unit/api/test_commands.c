/*
 * api/routes/commands.c, as clients see it: a command in one answer, or as events
 */
#include "bed.h"

#include "api/api_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/streams/exec.h"
#include "base/cleanup.h"
#include "base/macro.h"

static void a_command_runs_and_its_result_is_one_answer(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'cmd':'echo out; echo err >&2; exit 3'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'out\\n','stderr':'err\\n','exit_code':3,'timed_out':false}");
	assert_true(number_of("duration_ms") >= 0);
	assert_null(json_object_get(bed.json, "signal"));
	assert_null(json_object_get(bed.json, "truncated"));
	good(200, "{'argv':['echo','two  words','']}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'two  words \\n','stderr':'','exit_code':0}");
}

static void what_it_finds_around_it_is_what_was_asked(void **state)
{
	const char *id = sandbox_made("{'env':{'A':'box','B':'box'}}");

	good(200, "{'cmd':'env','env':{'B':'call','C':'call'}}", "POST /v1/sandboxes/%s/exec", id);
	assert_non_null(strstr(text_of("stdout"), "A=box\n"));
	assert_non_null(strstr(text_of("stdout"), "B=call\n"));
	assert_non_null(strstr(text_of("stdout"), "C=call\n"));
	assert_null(strstr(text_of("stdout"), "B=box"));
	good(200, "{'cmd':'mkdir /srv; pwd; whoami'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'/\\nroot\\n'}");
	good(200, "{'cmd':'pwd; whoami','cwd':'/srv','user':'nobody'}",
	     "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'/srv\\nnobody\\n'}");
	good(200, "{'cmd':'cat','stdin':'typed'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'typed'}");
	good(200, "{'cmd':'cat'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'','exit_code':0}");
}

static void fields_of_a_command_are_refused_by_name(void **state)
{
	static const struct {
		const char *body, *field;
	} wrong[] = {
	    {"{}", "cmd required"},
	    {"{'cmd':''}", "cmd required"},
	    {"{'cmd':5}", "cmd"},
	    {"{'cmd':null,'argv':null}", "cmd required"},
	    {"{'cmd':'a','argv':['b']}", "not both"},
	    {"{'argv':[]}", "argv"},
	    {"{'argv':'echo'}", "argv"},
	    {"{'argv':['a',5]}", "argv[1]"},
	    {"{'cmd':'a','cwd':'here'}", "cwd"},
	    {"{'cmd':'a','cwd':5}", "cwd"},
	    {"{'cmd':'a','user':5}", "user"},
	    {"{'cmd':'a','env':[]}", "env"},
	    {"{'cmd':'a','env':{'A':1}}", "'A'"},
	    {"{'cmd':'a','env':{'A=B':'1'}}", "'A=B'"},
	    {"{'cmd':'a','env':{'':'1'}}", "env"},
	    {"{'cmd':'a','timeout_seconds':-1}", "timeout_seconds"},
	    {"{'cmd':'a','timeout_seconds':'1'}", "timeout_seconds"},
	    {"{'cmd':'a','timeout_seconds':1e12}", "timeout_seconds"},
	    {"{'cmd':'a','max_output_bytes':0}", "max_output_bytes"},
	    {"{'cmd':'a','max_output_bytes':'1'}", "max_output_bytes"},
	};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		bad(400, "bad_request", wrong[i].field, wrong[i].body, "POST /v1/sandboxes/%s/exec",
		    id);
		bad(400, "bad_request", wrong[i].field, wrong[i].body,
		    "POST /v1/sandboxes/%s/exec/stream", id);
		bad(400, "bad_request", wrong[i].field, wrong[i].body,
		    "POST /v1/sandboxes/%s/execs", id);
	}
	assert_int_equal(commands_of(id), 0);
}

static void a_text_to_read_must_be_a_text(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "stdin", "{'cmd':'cat','stdin':5}", "POST /v1/sandboxes/%s/exec",
	    id);
	bad(400, "bad_request", "stdin", "{'cmd':'cat','stdin':['a']}",
	    "POST /v1/sandboxes/%s/exec/stream", id);
	good(200, "{'cmd':'cat','stdin':null}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':''}");
}

static void one_that_a_signal_ended_has_its_number(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'cmd':'echo dying; signal 11'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'dying\\n','exit_code':139,'signal':11,'timed_out':false}");
}

static void one_whose_time_is_over_is_killed_and_that_is_an_answer(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'cmd':'echo begun; sleep','timeout_seconds':0.02}",
	     "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'begun\\n','exit_code':124,'timed_out':true}");
	assert_null(json_object_get(bed.json, "signal"));
	assert_int_equal(commands_of(id), 0);
}

static void a_program_that_is_not_there_is_127_with_a_shells_words(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	good(200, "{'argv':['nothing-of-that-name']}", "POST /v1/sandboxes/%s/exec", id);
	has("{'exit_code':127,'stdout':''}");
	assert_non_null(strstr(text_of("stderr"), "No such file"));
	good(200, "{'cmd':'nothing-of-that-name'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'exit_code':127,'stderr':'nothing-of-that-name: not found\\n'}");
	c = stream(200, "{'argv':['nothing-of-that-name']}", "POST /v1/sandboxes/%s/exec/stream",
	           id);
	event(c, "stderr");
	json_has(event(c, "exit"), "{'exit_code':127}");
}

static void a_directory_that_is_not_there_is_an_error(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "directory", "{'cmd':'pwd','cwd':'/nowhere'}",
	    "POST /v1/sandboxes/%s/exec", id);
	bad(400, "bad_request", "directory", "{'cmd':'pwd','cwd':'/nowhere'}",
	    "POST /v1/sandboxes/%s/exec/stream", id);
	bad(400, "bad_request", "directory", "{'cmd':'pwd','cwd':'/nowhere'}",
	    "POST /v1/sandboxes/%s/execs", id);
}

static void a_guest_that_has_no_room_for_a_command_is_busy(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "refuse", "{\"exec\":{\"err\":11,\"text\":\"too many\"}}");
	bad(409, "sandbox_busy", "", "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	bed_rule(&bed.on, "refuse", "{\"exec\":{\"err\":12,\"text\":\"memory\"}}");
	bad(409, "sandbox_busy", "", "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec/stream", id);
	bed_rule(&bed.on, "refuse", NULL);
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
}

static void output_beyond_the_limit_is_thrown_away_and_told(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'cmd':'fill 100000','max_output_bytes':1000}", "POST /v1/sandboxes/%s/exec",
	     id);
	has("{'truncated':true,'exit_code':0}");
	assert_int_equal(strlen(text_of("stdout")), 1000);
	good(200, "{'cmd':'fill 1000','max_output_bytes':1000}", "POST /v1/sandboxes/%s/exec", id);
	assert_null(json_object_get(bed.json, "truncated"));
	assert_int_equal(strlen(text_of("stdout")), 1000);
	/* More than any window: the guest gets credit as it is read. */
	good(200, "{'cmd':'fill 2000000'}", "POST /v1/sandboxes/%s/exec", id);
	has("{'truncated':true}");
	assert_int_equal(strlen(text_of("stdout")), EXEC_OUTPUT);
	good(200, "{'cmd':'fill 2000000','max_output_bytes':5000000}", "POST /v1/sandboxes/%s/exec",
	     id);
	assert_null(json_object_get(bed.json, "truncated"));
	assert_int_equal(strlen(text_of("stdout")), 2000000);
	/* A long answer is sent as it is written, a short one with its length. */
	assert_string_equal(header("Transfer-Encoding"), "chunked");
	good(200, "{'cmd':'fill 1000'}", "POST /v1/sandboxes/%s/exec", id);
	assert_string_equal(header("Transfer-Encoding"), "");
}

static void output_that_finds_no_room_in_the_account_is_cut_off(void **state)
{
	const char *id;
	struct account *held;

	bed_api_close();
	bed.config.held = 8 << 20;
	bed.config.held_per_tenant = 1 << 20;
	bed_api_open();
	id = sandbox_made(NULL);
	held = &tenant_of(bed.api, "t")->held;
	good(200, "{'cmd':'fill 2000000','max_output_bytes':5000000}", "POST /v1/sandboxes/%s/exec",
	     id);
	has("{'truncated':true,'exit_code':0}");
	assert_in_range(strlen(text_of("stdout")), 500000, 1500000);
	assert_int_equal(held->refused, 1);
	assert_int_equal(held->held, 0);
	/* A small one finds room when all is taken. */
	account_add(held, 100 << 20);
	good(200, "{'cmd':'fill 1000'}", "POST /v1/sandboxes/%s/exec", id);
	assert_int_equal(strlen(text_of("stdout")), 1000);
	assert_null(json_object_get(bed.json, "truncated"));
	good(200, NULL, "GET /v1/me");
	has("{'usage':{'held_bytes':%d},'limits':{'held_bytes':1048576}}", 100 << 20);
	account_give(held, 100 << 20);
	assert_int_equal(api_account(bed.api)->held, 0);
}

static void output_that_is_no_text_becomes_one(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;
	json_t *j;

	good(200, "{'cmd':'mkdir /d'}", "POST /v1/sandboxes/%s/exec", id);
	assert_int_equal(ask_bytes("a\xff\xc3\xa4\0b", 6, "PUT /v1/sandboxes/%s/fs?path=/d/raw",
	                           id),
	                 200);
	good(200, "{'cmd':'cat /d/raw'}", "POST /v1/sandboxes/%s/exec", id);
	j = json_object_get(bed.json, "stdout");
	assert_int_equal(json_string_length(j), 1 + 3 + 2 + 2);
	assert_memory_equal(json_string_value(j), "a\xef\xbf\xbd\xc3\xa4\0b", 8);
	/* A limit inside a character takes less, not half of it. */
	good(200, "{'cmd':'cat','stdin':'ab\u00e4','max_output_bytes':3}",
	     "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'ab','truncated':true}");
	/* Byte for byte, for those who want it so. */
	c = stream(200, "{'cmd':'cat /d/raw','encoding':'base64'}",
	           "POST /v1/sandboxes/%s/exec/stream", id);
	json_has(event(c, "stdout"), "{'chunk_b64':'Yf/DpABi'}");
	json_has(event(c, "exit"), "{'exit_code':0}");
	bad(400, "bad_request", "encoding", "{'cmd':'a','encoding':'utf-7'}",
	    "POST /v1/sandboxes/%s/exec/stream", id);
	bad(400, "bad_request", "encoding", "{'cmd':'a','encoding':64}",
	    "POST /v1/sandboxes/%s/exec/stream", id);
}

static void half_a_character_at_the_end_is_told_before_the_exit(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	assert_int_equal(ask_bytes("x\xe2\x82", 3, "PUT /v1/sandboxes/%s/fs?path=/half", id), 200);
	c = stream(200, "{'cmd':'cat /half'}", "POST /v1/sandboxes/%s/exec/stream", id);
	json_has(event(c, "stdout"), "{'chunk':'x'}");
	json_has(event(c, "stdout"), "{'chunk':'\xef\xbf\xbd'}");
	event(c, "exit");
}

static void a_long_script_and_its_text_are_read_by_the_shell(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = 40000;
	autofree char *body = malloc(n + 100);

	/* The fake shell answers to the eval that reads so many bytes; what comes after is its. */
	bed_rule(&bed.on, "exec", "{\"eval \\\"$(head -c 40004)\\\"\":{\"out\":\"read\"}}");
	memcpy(body, "{\"cmd\":\"true", 12);
	memset(body + 12, ' ', n);
	memcpy(body + 12 + n, "\"}", 3);
	good(200, body, "POST /v1/sandboxes/%s/exec", id);
	has("{'stdout':'read','exit_code':0}");
}

static void more_than_a_message_holds_is_413(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = 70000;
	autofree char *body = malloc(n + 100);

	memcpy(body, "{\"argv\":[\"", 10);
	memset(body + 10, 'a', n);
	memcpy(body + 10 + n, "\"]}", 4);
	bad(413, "too_large", "stdin or a file", body, "POST /v1/sandboxes/%s/exec", id);
	memcpy(body, "{\"cmd\":\"env\",\"env\":{\"A\":\"", 25);
	memcpy(body + 10 + n, "\"}}", 4);
	bad(413, "too_large", "", body, "POST /v1/sandboxes/%s/exec", id);
}

/* ---- as events ---- */

static void output_comes_as_events_and_the_exit_is_the_last(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, "{'cmd':'echo one; echo two >&2; exit 4'}",
	                          "POST /v1/sandboxes/%s/exec/stream", id);

	client_answer(c);
	assert_string_equal(header("Content-Type"), "text/event-stream");
	assert_string_equal(header("Cache-Control"), "no-cache");
	json_has(event(c, "stdout"), "{'chunk':'one\\n'}");
	json_has(event(c, "stderr"), "{'chunk':'two\\n'}");
	json_has(event(c, "exit"), "{'exit_code':4,'timed_out':false}");
	assert_non_null(json_object_get(c->data, "duration_ms"));
	assert_string_equal(event_any(c), "");
	assert_true(c->over);
}

static void a_stream_begins_when_the_command_does(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, "{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec/stream", id);

	assert_int_equal(commands_of(id), 1);
	has("[{'running':true,'detached':false,'command':'sleep'}]");
	assert_false(c->over);
}

static void a_stream_whose_time_is_over_says_so(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, "{'cmd':'echo a; sleep','timeout_seconds':0.02}",
	                          "POST /v1/sandboxes/%s/exec/stream", id);

	event(c, "stdout");
	json_has(event(c, "exit"), "{'exit_code':124,'timed_out':true}");
}

static void a_quiet_stream_is_kept_open_with_comments(void **state)
{
	const char *id = sandbox_made("{'persistent':true}");
	struct client *c = stream(200, "{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec/stream", id);

	bed_later(15001);
	client_wait(c, strlen(": ping\n\n"));
	assert_string_equal(client_body(c), ": ping\n\n");
	bed_later(15001);
	client_wait(c, 2 * strlen(": ping\n\n"));
}

static void a_client_that_goes_away_takes_its_command_with_it(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c =
	    stream(200, "{'cmd':'echo a; sleep'}", "POST /v1/sandboxes/%s/exec/stream", id);

	event(c, "stdout");
	client_leave(c);
	bed_until(&bed.on, commands_of(id) == 0);
	/* And one that waits for all of it, too. */
	c = begin("{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec", id);
	bed_until(&bed.on, commands_of(id) == 1);
	client_leave(c);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void a_client_that_went_away_early_is_no_trouble(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "mood", "{\"*\":\"silent\"}");
	client_leave(begin("{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec", id));
	client_leave(begin("{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec/stream", id));
	client_leave(begin("{'cmd':'slee", "POST /v1/sandboxes/%s/exec", id));
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_rule(&bed.on, "mood", NULL);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void a_slow_client_holds_back_the_guest(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t all = 4 << 20, n = 0;
	struct client *c;
	autofree char *text = NULL;

	c = stream(200, "{'cmd':'fill 4194304'}", "POST /v1/sandboxes/%s/exec/stream", id);
	client_deaf(c, true);
	/* Others are served meanwhile, and the command cannot come to its end. */
	for (int i = 0; i < 50; i++)
		good(200, "{'cmd':'echo quick'}", "POST /v1/sandboxes/%s/exec", id);
	assert_true(client_body_len(c) < all / 2);
	assert_false(c->over);
	client_deaf(c, false);
	while (strcmp(event_any(c), "stdout") == 0)
		n += json_string_length(json_object_get(c->data, "chunk"));
	assert_int_equal(n, all);
	assert_string_equal(c->name, "exit");
}

static void a_guest_that_dies_in_the_middle_ends_the_stream_with_an_error(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c =
	    stream(200, "{'cmd':'echo a; sleep'}", "POST /v1/sandboxes/%s/exec/stream", id);

	event(c, "stdout");
	bed_crash_machine(&bed.on, sandbox_of(id));
	event(c, "error");
	assert_non_null(json_string_value(json_object_get(c->data, "code")));
	assert_non_null(json_string_value(json_object_get(c->data, "error")));
	assert_string_equal(event_any(c), "");
	assert_true(c->over);
}

static void guests_that_lie_are_an_error_and_no_more(void **state)
{
	static const char *const moods[] = {"garbage", "length", "hangup"};
	char rule[60];

	for (size_t i = 0; i < ARRAY_LEN(moods); i++) {
		const char *id = sandbox_made(NULL);

		snprintf(rule, sizeof(rule), "{\"*\":\"%s\"}", moods[i]);
		bed_rule(&bed.on, "mood", rule);
		ask("{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
		refused(502, text_of("code"), "");
		good(204, NULL, "DELETE /v1/sandboxes/%s", id);
		bed_rule(&bed.on, "mood", NULL);
	}
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", sandbox_made(NULL));
}

static void a_guest_that_sends_more_than_it_may_is_cut_off(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	bed_rule(&bed.on, "mood", "{\"*\":\"flood\"}");
	c = stream(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec/stream", id);
	while (strcmp(event_any(c), "stdout") == 0)
		;
	assert_string_equal(c->name, "error");
	assert_true(client_body_len(c) < 1 << 20);
}

static void what_the_guest_says_of_an_error_is_told_as_text(void **state)
{
	const char *id = sandbox_made(NULL);

	/* The fake's rules are JSON, so what is not UTF-8 is cut inside a character by us. */
	bed_rule(&bed.on, "refuse", "{\"exec\":{\"err\":5,\"text\":\"\\u0007\\u00e4\\u20ac\"}}");
	bad(400, "bad_request", "\xc3\xa4\xe2\x82\xac", "{'cmd':'a'}", "POST /v1/sandboxes/%s/exec",
	    id);
}

static void a_command_wakes_what_is_hibernated(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, "{'cmd':'hostname'}", "POST /v1/sandboxes/%s/exec", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'running'}");
}

static void a_sandbox_with_checkpoints_has_one_before_each_command(void **state)
{
	const char *id = sandbox_made("{'checkpoints':'auto'}");

	good(200, "{'cmd':'echo one > /f'}", "POST /v1/sandboxes/%s/exec", id);
	good(200, "{'cmd':'echo two > /f'}", "POST /v1/sandboxes/%s/exec", id);
	good(200, NULL, "GET /v1/sandboxes/%s/checkpoints", id);
	has("{'policy':'auto','checkpoints':[{'automatic':true},{'automatic':true}]}");
	good(200, "{}", "POST /v1/sandboxes/%s/rewind", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("one\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_command_runs_and_its_result_is_one_answer),
	    api_test(what_it_finds_around_it_is_what_was_asked),
	    api_test(fields_of_a_command_are_refused_by_name),
	    api_test(a_text_to_read_must_be_a_text),
	    api_test(one_that_a_signal_ended_has_its_number),
	    api_test(one_whose_time_is_over_is_killed_and_that_is_an_answer),
	    api_test(a_program_that_is_not_there_is_127_with_a_shells_words),
	    api_test(a_directory_that_is_not_there_is_an_error),
	    api_test(a_guest_that_has_no_room_for_a_command_is_busy),
	    api_test(output_beyond_the_limit_is_thrown_away_and_told),
	    api_test(output_that_finds_no_room_in_the_account_is_cut_off),
	    api_test(output_that_is_no_text_becomes_one),
	    api_test(half_a_character_at_the_end_is_told_before_the_exit),
	    api_test(a_long_script_and_its_text_are_read_by_the_shell),
	    api_test(more_than_a_message_holds_is_413),
	    api_test(output_comes_as_events_and_the_exit_is_the_last),
	    api_test(a_stream_begins_when_the_command_does),
	    api_test(a_stream_whose_time_is_over_says_so),
	    api_test(a_quiet_stream_is_kept_open_with_comments),
	    api_test(a_client_that_goes_away_takes_its_command_with_it),
	    api_test(a_client_that_went_away_early_is_no_trouble),
	    api_test(a_slow_client_holds_back_the_guest),
	    api_test(a_guest_that_dies_in_the_middle_ends_the_stream_with_an_error),
	    api_test(guests_that_lie_are_an_error_and_no_more),
	    api_test(a_guest_that_sends_more_than_it_may_is_cut_off),
	    api_test(what_the_guest_says_of_an_error_is_told_as_text),
	    api_test(a_command_wakes_what_is_hibernated),
	    api_test(a_sandbox_with_checkpoints_has_one_before_each_command),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
