/*
 * api/routes/detached.c, as clients see it: commands that outlive the connection they came on
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

/* Its id; good until the next but one. */
static const char *started(const char *id, const char *json)
{
	static char ids[4][24];
	static unsigned turn;
	char *ret = ids[turn++ % 4];

	good(201, json, "POST /v1/sandboxes/%s/execs", id);
	assert_true(number_of("pid") > 0);
	snprintf(ret, sizeof(ids[0]), "%s", text_of("id"));
	return ret;
}

static void a_command_is_started_listed_and_looked_at(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *runs = started(id, "{'cmd':'echo hello; sleep'}");
	const char *over = started(id, "{'argv':['sh','-c','echo bye >&2; exit 7']}");

	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, runs);
	has("{'id':'%s','running':true,'detached':true,'exit_code':null,'signal':null,"
	    "'timed_out':false,'command':'echo hello; sleep','stdout_from':0,'stdout_to':6,"
	    "'stderr_to':0}",
	    runs);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, over);
	has("{'id':'%s','running':false,'exit_code':7,'signal':null,'stderr_to':4}", over);
	assert_int_equal(commands_of(id), 2);
}

static void fields_of_a_start_are_refused_by_name(void **state)
{
	static const char *const wrong[][2] = {
	    {"{'cmd':'a','stdin':'text'}", "stdin"}, {"{'cmd':'a','stdin':1}", "stdin"},
	    {"{'cmd':'a','pty':1}", "pty"},          {"{'cmd':'a','hold':'x'}", "hold"},
	    {"{'cmd':'a','rows':0}", "rows"},        {"{'cmd':'a','cols':4097}", "cols"},
	    {"{'cmd':'a','cols':'80'}", "cols"},
	};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", wrong[i][1], wrong[i][0], "POST /v1/sandboxes/%s/execs",
		    id);
	assert_int_equal(commands_of(id), 0);
	started(id, "{'cmd':'sleep','stdin':null}");
}

static void a_program_that_is_not_there_does_not_start(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "cannot start the program", "{'argv':['nowhere']}",
	    "POST /v1/sandboxes/%s/execs", id);
	assert_int_equal(commands_of(id), 0);
}

static void one_that_is_not_there_is_404(void **state)
{
	static const char *const none[] = {"99", "0", "-1", "01x", "18446744073709551616", "abc"};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(none); i++) {
		bad(404, "exec_not_found", "", NULL, "GET /v1/sandboxes/%s/execs/%s", id, none[i]);
		bad(404, "exec_not_found", "", NULL, "GET /v1/sandboxes/%s/execs/%s/output", id,
		    none[i]);
		bad(404, "exec_not_found", "", NULL,
		    "GET /v1/sandboxes/%s/execs/%s/output?follow=1", id, none[i]);
		bad(404, "exec_not_found", "", "{'signal':9}",
		    "POST /v1/sandboxes/%s/execs/%s/signal", id, none[i]);
		bad(404, "exec_not_found", "", "x", "POST /v1/sandboxes/%s/execs/%s/stdin", id,
		    none[i]);
	}
}

static void an_agent_that_ends_without_an_answer_is_502(void **state)
{
	const char *id = sandbox_made(NULL), *other = sandbox_made(NULL);

	bed_rule(&bed.on, "refuse", "{\"attach\":{\"err\":0},\"watch\":{\"err\":0}}");
	bad(502, "upstream", "", NULL, "GET /v1/sandboxes/%s/execs/1/output?follow=1", id);
	bad(502, "upstream", "", NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", other);
	/* The second one on a connection ends that, and so all other calls that are on it. */
	bad(502, "guest_gone", "", NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", id);
}

static void its_output_can_be_had_from_any_offset(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'echo 0123456789; echo err >&2; sleep'}");
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output", id, x);

	json_has(event(c, "start"), "{'stdout_offset':0,'stderr_offset':0}");
	json_has(event(c, "stdout"), "{'chunk':'0123456789\\n','offset':0}");
	json_has(event(c, "stderr"), "{'chunk':'err\\n','offset':0}");
	json_has(event(c, "end"), "{'stdout_offset':11,'stderr_offset':4}");
	assert_string_equal(event_any(c), "");
	client_leave(c);
	c = stream(200, NULL,
	           "GET /v1/sandboxes/%s/execs/%s/output?stdout_offset=7&stderr_offset=4"
	           "&encoding=base64",
	           id, x);
	json_has(event(c, "start"), "{'stdout_offset':7,'stderr_offset':4}");
	json_has(event(c, "stdout"), "{'chunk_b64':'Nzg5Cg==','offset':7}");
	json_has(event(c, "end"), "{'stdout_offset':11,'stderr_offset':4}");
	client_leave(c);
	/* Behind all there is: where it is says the start. */
	c = stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?stdout_offset=500", id, x);
	json_has(event(c, "start"), "{'stdout_offset':11}");
	bad(400, "bad_request", "stdout_offset", NULL,
	    "GET /v1/sandboxes/%s/execs/%s/output?stdout_offset=-1", id, x);
	bad(400, "bad_request", "stderr_offset", NULL,
	    "GET /v1/sandboxes/%s/execs/%s/output?stderr_offset=x", id, x);
	bad(400, "bad_request", "encoding", NULL,
	    "GET /v1/sandboxes/%s/execs/%s/output?encoding=hex", id, x);
}

static void output_of_one_that_is_over_ends_with_its_exit(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'echo all; signal 9'}");
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output", id, x);

	event(c, "start");
	json_has(event(c, "stdout"), "{'chunk':'all\\n'}");
	json_has(event(c, "exit"), "{'exit_code':137,'signal':9,'timed_out':false}");
	assert_string_equal(event_any(c), "");
}

static void a_follower_hears_all_up_to_the_exit(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'echo begin; cat','stdin':true}");
	struct client *c =
	    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?follow=true", id, x);

	event(c, "start");
	json_has(event(c, "stdout"), "{'chunk':'begin\\n','offset':0}");
	assert_int_equal(ask_bytes("more\n", 5, "POST /v1/sandboxes/%s/execs/%s/stdin", id, x),
	                 204);
	json_has(event(c, "stdout"), "{'chunk':'more\\n','offset':6}");
	assert_int_equal(ask_bytes("last\n", 5, "POST /v1/sandboxes/%s/execs/%s/stdin?eof=1", id,
	                           x),
	                 204);
	json_has(event(c, "stdout"), "{'chunk':'last\\n','offset':11}");
	json_has(event(c, "exit"), "{'exit_code':0}");
	assert_string_equal(event_any(c), "");
}

static void a_character_in_two_pieces_is_one_with_the_offset_of_its_beginning(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'cat','stdin':true}");
	struct client *c =
	    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?follow=1", id, x);

	event(c, "start");
	assert_int_equal(ask_bytes("a\xc3", 2, "POST /v1/sandboxes/%s/execs/%s/stdin", id, x), 204);
	json_has(event(c, "stdout"), "{'chunk':'a','offset':0}");
	/* Who only looks now leaves the half for the next look. */
	{
		struct client *look =
		    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output", id, x);

		event(look, "start");
		json_has(event(look, "stdout"), "{'chunk':'a','offset':0}");
		json_has(event(look, "end"), "{'stdout_offset':1}");
	}
	assert_int_equal(ask_bytes("\xa4z", 2, "POST /v1/sandboxes/%s/execs/%s/stdin", id, x), 204);
	json_has(event(c, "stdout"), "{'chunk':'\xc3\xa4z','offset':1}");
}

static void it_goes_on_when_its_readers_go_away(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'echo a; cat','stdin':true}");
	struct client *c =
	    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?follow=1", id, x);

	event(c, "start");
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':true}");
	/* Also over a hibernation, and in the next pandad. */
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':true,'command':'echo a; cat'}");
}

static void it_goes_on_when_pandad_ends(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'echo a; sleep'}");

	bed_api_close();
	bed_api_open();
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':true,'stdout_to':2}");
}

static void a_follower_is_told_when_pandad_ends(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'sleep'}");
	struct client *c =
	    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?follow=1", id, x);

	event(c, "start");
	bed_api_close(); /* c goes with it */
	bed_api_open();
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
}

static void it_is_signalled_by_name_or_number(void **state)
{
	static const struct {
		const char *body;
		int signal;
	} good_ones[] = {{"{'signal':'TERM'}", 15},
	                 {"{'signal':'sigint'}", 2},
	                 {"{'signal':9}", 9},
	                 {"{}", 15},
	                 {"{'signal':'HUP','tree':true}", 1}};
	static const char *const wrong[] = {"{'signal':0}",      "{'signal':-9}", "{'signal':99}",
	                                    "{'signal':'NOPE'}", "{'signal':''}", "{'signal':[9]}",
	                                    "{'signal':true}"};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(good_ones); i++) {
		const char *x = started(id, "{'cmd':'sleep'}");

		good(204, good_ones[i].body, "POST /v1/sandboxes/%s/execs/%s/signal", id, x);
		good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
		has("{'running':false,'signal':%d,'exit_code':%d}", good_ones[i].signal,
		    128 + good_ones[i].signal);
		bad(404, "exec_not_found", "running", "{'signal':9}",
		    "POST /v1/sandboxes/%s/execs/%s/signal", id, x);
	}
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", "signal", wrong[i], "POST /v1/sandboxes/%s/execs/1/signal",
		    id);
	bad(400, "bad_request", "tree", "{'signal':9,'tree':'all'}",
	    "POST /v1/sandboxes/%s/execs/1/signal", id);
}

static void one_whose_time_is_over_shows_it(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'sleep','timeout_seconds':0.01}");
	struct client *c =
	    stream(200, NULL, "GET /v1/sandboxes/%s/execs/%s/output?follow=1", id, x);

	event(c, "start");
	json_has(event(c, "exit"), "{'exit_code':124,'timed_out':true}");
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':false,'exit_code':124,'signal':null,'timed_out':true}");
}

static void output_of_one_that_is_not_detached_is_its_starters(void **state)
{
	const char *id = sandbox_made(NULL);

	stream(200, "{'cmd':'sleep'}", "POST /v1/sandboxes/%s/exec/stream", id);
	bed_rule(&bed.on, "refuse", "{\"attach\":{\"err\":16,\"text\":\"busy\"}}");
	bad(409, "conflict", "not detached", NULL, "GET /v1/sandboxes/%s/execs/1/output?follow=1",
	    id);
}

/* A client that sends n of the bytes of a stdin, and says that there are more. */
static struct client *feeder(const char *id, const char *x, const char *bytes, size_t more)
{
	struct client *c = client_new();
	char head[512];
	int n = snprintf(head, sizeof(head),
	                 "POST /v1/sandboxes/%s/execs/%s/stdin HTTP/1.1\r\nHost: x\r\n"
	                 "Authorization: Bearer %s\r\nContent-Length: %zu\r\n\r\n%s",
	                 id, x, bed.mine, strlen(bytes) + more, bytes);

	client_send(c, head, (size_t)n);
	return c;
}

static bool has_read(const char *id, const char *x, json_int_t n)
{
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	return number_of("stdout_to") == n;
}

static void a_stdin_that_is_taken_is_waited_for(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'cat','stdin':true}");
	struct client *first = feeder(id, x, "one", 1), *second, *third;

	while (!has_read(id, x, 3))
		;
	second = feeder(id, x, "two", 0);
	third = feeder(id, x, "three", 0);
	assert_true(has_read(id, x, 3));
	assert_int_equal(second->head, 0);
	client_leave(third); /* one that goes away while it waits is forgotten */
	client_send(first, "!", 1);
	client_answer(first);
	status_is(204);
	client_answer(second);
	status_is(204);
	assert_true(has_read(id, x, 7));
	/* But not for ever. */
	first = feeder(id, x, "one", 1);
	while (!has_read(id, x, 10))
		;
	second = feeder(id, x, "late", 0);
	assert_true(has_read(id, x, 10));
	bed_later(10001);
	client_answer(second);
	refused(409, "sandbox_busy", "feeds this command");
	/* A guest that was saved by 0.1.0 lets no stream wait. */
	bed_rule(&bed.on, "refuse", "{\"attach\":{\"err\":16,\"text\":\"busy\"}}");
	client_answer(feeder(id, x, "old", 0));
	refused(409, "sandbox_busy", "feeds this command");
}

static void a_stdin_larger_than_any_window_goes_in(void **state)
{
	static char big[1 << 20];
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'cat','stdin':true,'hold':true}");

	memset(big, 'x', sizeof(big));
	assert_int_equal(ask_bytes(big, sizeof(big), "POST /v1/sandboxes/%s/execs/%s/stdin?eof=1",
	                           id, x),
	                 204);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':false,'stdout_to':%d}", (int)sizeof(big));
}

static void a_feeder_that_goes_away_lets_go_of_it(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *x = started(id, "{'cmd':'cat','stdin':true}");
	struct client *c;

	with("Content-Length: 1000");
	c = begin(NULL, "POST /v1/sandboxes/%s/execs/%s/stdin", id, x);
	client_send(c, "half", 4);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	assert_int_equal(ask_bytes("!", 1, "POST /v1/sandboxes/%s/execs/%s/stdin", id, x), 204);
	good(200, NULL, "GET /v1/sandboxes/%s/execs/%s", id, x);
	has("{'running':true}");
	assert_true(number_of("stdout_to") >= 1);
}

static void a_list_that_makes_no_sense_is_the_guests_fault(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "refuse", "{\"list\":{\"err\":5,\"text\":\"broken\"}}");
	ask(NULL, "GET /v1/sandboxes/%s/execs", id);
	refused(502, text_of("code"), "list");
	ask(NULL, "GET /v1/sandboxes/%s/execs/1/output", id);
	refused(502, text_of("code"), "list");
	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	ask(NULL, "GET /v1/sandboxes/%s/execs", id);
	refused(502, text_of("code"), "");
	ask("{'signal':1}", "POST /v1/sandboxes/%s/execs/1/signal", id);
	refused(502, text_of("code"), "");
	ask("x", "POST /v1/sandboxes/%s/execs/1/stdin", id);
	refused(502, text_of("code"), "");
}

static void who_leaves_while_the_list_is_on_its_way_is_forgotten(void **state)
{
	const char *id = sandbox_made(NULL);

	started(id, "{'cmd':'sleep'}");
	bed_rule(&bed.on, "mood", "{\"*\":\"silent\"}");
	client_leave(begin(NULL, "GET /v1/sandboxes/%s/execs", id));
	client_leave(begin(NULL, "GET /v1/sandboxes/%s/execs/1/output", id));
	client_leave(begin(NULL, "GET /v1/sandboxes/%s/execs/1/output?follow=1", id));
	client_leave(begin("{'signal':15}", "POST /v1/sandboxes/%s/execs/1/signal", id));
	client_leave(begin("x", "POST /v1/sandboxes/%s/execs/1/stdin", id));
	client_leave(begin("{'cmd':'sleep'}", "POST /v1/sandboxes/%s/execs", id));
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_rule(&bed.on, "mood", NULL);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_command_is_started_listed_and_looked_at),
	    api_test(fields_of_a_start_are_refused_by_name),
	    api_test(a_program_that_is_not_there_does_not_start),
	    api_test(one_that_is_not_there_is_404),
	    api_test(an_agent_that_ends_without_an_answer_is_502),
	    api_test(its_output_can_be_had_from_any_offset),
	    api_test(output_of_one_that_is_over_ends_with_its_exit),
	    api_test(a_follower_hears_all_up_to_the_exit),
	    api_test(a_character_in_two_pieces_is_one_with_the_offset_of_its_beginning),
	    api_test(it_goes_on_when_its_readers_go_away),
	    api_test(it_goes_on_when_pandad_ends),
	    api_test(a_follower_is_told_when_pandad_ends),
	    api_test(it_is_signalled_by_name_or_number),
	    api_test(one_whose_time_is_over_shows_it),
	    api_test(output_of_one_that_is_not_detached_is_its_starters),
	    api_test(a_stdin_that_is_taken_is_waited_for),
	    api_test(a_stdin_larger_than_any_window_goes_in),
	    api_test(a_feeder_that_goes_away_lets_go_of_it),
	    api_test(a_list_that_makes_no_sense_is_the_guests_fault),
	    api_test(who_leaves_while_the_list_is_on_its_way_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
