/*
 * api/routes/code.c and streams/{cell,session}.c, as clients see them: code contexts and cells
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"

/* A new context; its id is good until the next but one. */
static const char *context(const char *id, const char *json)
{
	static char ids[2][40];
	static unsigned turn;
	char *ret = ids[turn++ % 2];

	good(201, json, "POST /v1/sandboxes/%s/repl/sessions", id);
	snprintf(ret, sizeof(ids[0]), "%s", text_of("id"));
	return ret;
}

static void code_runs_in_a_fresh_interpreter(void **state)
{
	static const char *const words[][2] = {{"python", "python"},   {"PY", "python"},
	                                       {"node", "javascript"}, {"bash", "bash"},
	                                       {"sh", "sh"},           {"rb", "ruby"}};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		char body[80];

		snprintf(body, sizeof(body), "{'language':'%s','code':'1+1'}", words[i][0]);
		good(200, body, "POST /v1/sandboxes/%s/repl", id);
		has("{'language':'%s','stdout':'1+1','exit_code':0,'timed_out':false}",
		    words[i][1]);
	}
	good(200, "{'code':''}", "POST /v1/sandboxes/%s/repl", id);
	has("{'language':'python','stdout':''}");
	bad(400, "unsupported_language", "cobol", "{'language':'cobol','code':'x'}",
	    "POST /v1/sandboxes/%s/repl", id);
	bad(400, "bad_request", "language", "{'language':3,'code':'x'}",
	    "POST /v1/sandboxes/%s/repl", id);
	bad(400, "bad_request", "code", "{}", "POST /v1/sandboxes/%s/repl", id);
	bad(400, "bad_request", "code", "{'code':1}", "POST /v1/sandboxes/%s/repl", id);
	bad(400, "bad_request", "timeout_seconds", "{'code':'x','timeout_seconds':-1}",
	    "POST /v1/sandboxes/%s/repl", id);
}

static void the_languages_are_listed(void **state)
{
	good(200, NULL, "GET /v1/repl/languages");
	has("['python','py','python3','javascript','node','js','nodejs','bash','sh','shell','ruby',"
	    "'rb']");
}

static void a_context_is_made_listed_and_deleted(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *a = context(id, "{}"), *b = context(id, "{'language':'js'}");

	has("{'id':'%s','session_id':'%s','sandbox_id':'%s','language':'javascript'}", b, b, id);
	good(200, NULL, "GET /v1/sandboxes/%s/repl/sessions", id);
	has("[{'id':'%s','language':'javascript'},{'id':'%s','language':'python'}]", b, a);
	good(204, NULL, "DELETE /v1/sandboxes/%s/repl/sessions/%s", id, a);
	good(200, NULL, "GET /v1/sandboxes/%s/repl/sessions", id);
	has("[{'id':'%s'}]", b);
	bad(404, "session_not_found", "POST", NULL, "DELETE /v1/sandboxes/%s/repl/sessions/%s", id,
	    a);
	bad(404, "session_not_found", "POST", "{'code':'x'}",
	    "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, a);
	bad(404, "session_not_found", "POST", "{'code':'x'}",
	    "POST /v1/sandboxes/%s/repl/sessions/default/run", id);
	bad(404, "session_not_found", "POST", NULL,
	    "POST /v1/sandboxes/%s/repl/sessions/%s/interrupt", id, a);
	bad(400, "unsupported_language", "python and javascript", "{'language':'bash'}",
	    "POST /v1/sandboxes/%s/repl/sessions", id);
	bad(400, "bad_request", "language", "{'language':[]}",
	    "POST /v1/sandboxes/%s/repl/sessions", id);
}

static void there_is_a_limit_to_contexts(void **state)
{
	const char *id = sandbox_made(NULL);
	int made = 0;

	while (made < 200 && ask("{}", "POST /v1/sandboxes/%s/repl/sessions", id) == 201)
		made++;
	refused(429, "too_many", "delete one");
	good(200, NULL, "GET /v1/sandboxes/%s/repl/sessions", id);
	assert_int_equal(json_array_size(bed.json), made);
}

static void a_cell_has_output_results_and_an_exit(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");

	good(200, "{'code':'print a\\nwarn b\\nshow 42\\nprint c'}",
	     "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'a\\nc\\n','stderr':'b\\n','exit':0,'results':[{'text/plain':'42'}]}");
	assert_null(json_object_get(bed.json, "error"));
	good(200, "{'code':''}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'','stderr':'','exit':0,'results':[]}");
	/* What another cell still says is not of this one, and what is no answer is no trouble. */
	good(200, "{'code':'stray x\\nraw nonsense\\nraw {}\\nraw [1]\\nprint mine'}",
	     "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'mine\\n','exit':0}");
}

static void a_cell_that_fails_has_an_error_and_a_traceback(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");

	good(200, "{'code':'print a\\nraise ValueError too bad\\nprint never'}",
	     "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'a\\n','exit':1,'error':'ValueError: too bad',"
	    "'stderr':'Traceback:\\nValueError: too bad\\n',"
	    "'traceback':['Traceback:\\n','ValueError: too bad']}");
	good(200, "{'code':'raise Plain'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'error':'Plain'}");
}

static void a_cell_comes_as_events(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c = stream(200, "{'code':'print a\\nwarn b\\nshow 1\\nraise E v'}",
	                          "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);

	json_has(event(c, "stdout"), "{'chunk':'a\\n'}");
	json_has(event(c, "stderr"), "{'chunk':'b\\n'}");
	json_has(event(c, "result"), "{'text/plain':'1'}");
	json_has(event(c, "error"),
	         "{'name':'E','value':'v','traceback':['Traceback:\\n','E: v']}");
	json_has(event(c, "exit"), "{'exit':1,'timed_out':false}");
	assert_string_equal(event_any(c), "");
	client_leave(c);
	c = stream(200, "{'code':''}", "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);
	json_has(event(c, "exit"), "{'exit':0}");
}

static void fields_of_a_cell_are_refused_by_name(void **state)
{
	static const char *const where[] = {"run", "run/stream"};
	const char *id = sandbox_made(NULL), *x = context(id, "{}");

	for (size_t i = 0; i < ARRAY_LEN(where); i++) {
		bad(400, "bad_request", "code required", "{}",
		    "POST /v1/sandboxes/%s/repl/sessions/%s/%s", id, x, where[i]);
		bad(400, "bad_request", "code required", "{'code':null}",
		    "POST /v1/sandboxes/%s/repl/sessions/%s/%s", id, x, where[i]);
		bad(400, "bad_request", "timeout_ms", "{'code':'','timeout_ms':-1}",
		    "POST /v1/sandboxes/%s/repl/sessions/%s/%s", id, x, where[i]);
		bad(400, "bad_request", "timeout_ms", "{'code':'','timeout_ms':'x'}",
		    "POST /v1/sandboxes/%s/repl/sessions/%s/%s", id, x, where[i]);
	}
}

static void a_cell_whose_time_is_over_leaves_the_context_alive(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c;

	ask("{'code':'print a\\nlate','timeout_ms':50}",
	    "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	refused(500, "cell_timeout", "cell timeout after 50ms");
	c = stream(200, "{'code':'print a\\nlate','timeout_ms':50}",
	           "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);
	event(c, "stdout");
	json_has(event(c, "exit"), "{'exit':124,'timed_out':true}");
	/* Without a limit 124 is an exit like others. */
	good(200, "{'code':'late','timeout_ms':0}", "POST /v1/sandboxes/%s/repl/sessions/%s/run",
	     id, x);
	has("{'exit':124}");
	good(200, "{'code':'print b'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'b\\n'}");
}

static void an_interpreter_that_does_not_stop_in_time_is_not_waited_for(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c = stream(200, "{'code':'print a\\nwait','timeout_ms':1000}",
	                          "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);

	event(c, "stdout");
	bed_later(6001);
	json_has(event(c, "exit"), "{'exit':124,'timed_out':true}");
	good(200, "{'code':'print b'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'b\\n'}");
}

static void a_cell_is_interrupted(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c = stream(200, "{'code':'print a\\nwait'}",
	                          "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);

	event(c, "stdout");
	good(204, NULL, "POST /v1/sandboxes/%s/repl/sessions/%s/interrupt", id, x);
	json_has(event(c, "error"), "{'name':'KeyboardInterrupt'}");
	json_has(event(c, "exit"), "{'exit':130,'timed_out':false}");
	/* When no cell runs there is nothing to interrupt. */
	good(204, NULL, "POST /v1/sandboxes/%s/repl/sessions/%s/interrupt", id, x);
}

static void a_client_that_goes_away_interrupts_its_cell(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c = stream(200, "{'code':'print a\\nwait'}",
	                          "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);
	struct client *look = stream(200, NULL, "GET /v1/sandboxes/%s/execs/1/output?follow=1", id);
	json_t *chunk;

	event(c, "stdout");
	client_leave(c);
	event(look, "start");
	do
		chunk = json_object_get(event(look, "stdout"), "chunk");
	while (!strstr(json_string_value(chunk), "\"exit\":130"));
	good(200, "{'code':'print b'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stdout':'b\\n'}");
}

static void an_interpreter_that_ends_says_so_in_its_cell(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");

	good(200, "{'code':'print a\\nexit 0'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id,
	     x);
	has("{'stdout':'a\\n','stderr':'the interpreter has ended (exit code 0)\\n','exit':1}");
	bad(404, "session_not_found", "", "{'code':''}",
	    "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	x = context(id, "{}");
	good(200, "{'code':'die'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	has("{'stderr':'last words\\nthe interpreter has ended (signal 11)\\n','exit':139}");
}

static void more_output_than_any_window_is_all_there(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c;
	autofree char *text = NULL;

	good(200, "{'code':'fill 1500000'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	assert_int_equal(strlen(text_of("stdout")), 1500000);
	c = stream(200, "{'code':'fill 1500000'}",
	           "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);
	client_deaf(c, true);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	client_deaf(c, false);
	text = events_text(c, "stdout", "chunk");
	assert_int_equal(strlen(text), 1500000);
	assert_string_equal(c->name, "exit");
}

static void a_context_that_is_busy_is_waited_for(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *first, *second, *third;

	first = begin("{'code':'wait'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	second = begin("{'code':'print a'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	third = begin("{'code':'print b'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	assert_int_equal(second->head, 0);
	client_leave(third); /* one that goes away while it waits is forgotten */
	good(204, NULL, "POST /v1/sandboxes/%s/repl/sessions/%s/interrupt", id, x);
	client_answer(first);
	client_answer(second);
	has("{'stdout':'a\\n'}");
	/* But not for ever. */
	begin("{'code':'wait'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	second = begin("{'code':'print a'}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	bed_later(60001);
	client_answer(second);
	refused(409, "sandbox_busy", "another cell");
}

static void a_template_without_an_interpreter_says_so(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "refuse", "{\"exec\":{\"err\":2,\"text\":\"cannot start program\"}}");
	bad(400, "unsupported_language", "no interpreter for python", "{}",
	    "POST /v1/sandboxes/%s/repl/sessions", id);
	bed_rule(&bed.on, "refuse", NULL);
	bed_rule(&bed.on, "exec", "{\"python3\":{\"err\":\"no module named os\\n\",\"code\":1}}");
	ask("{}", "POST /v1/sandboxes/%s/repl/sessions", id);
	if (bed.status != 500 && bed.status != 404)
		status_is(500);
	good(200, NULL, "GET /v1/sandboxes/%s/repl/sessions", id);
	body_is("[]");
}

static void a_guest_that_hangs_up_is_an_error_of_each_call(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");

	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	ask("{'code':''}", "POST /v1/sandboxes/%s/repl/sessions/%s/run", id, x);
	refused(502, text_of("code"), "");
	ask("{'code':''}", "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);
	refused(502, text_of("code"), "");
	ask("{}", "POST /v1/sandboxes/%s/repl/sessions", id);
	refused(502, text_of("code"), "");
	ask(NULL, "GET /v1/sandboxes/%s/repl/sessions", id);
	refused(502, text_of("code"), "");
	ask(NULL, "DELETE /v1/sandboxes/%s/repl/sessions/%s", id, x);
	refused(502, text_of("code"), "");
}

static void a_guest_that_dies_in_a_cell_ends_it(void **state)
{
	const char *id = sandbox_made(NULL), *x = context(id, "{}");
	struct client *c = stream(200, "{'code':'print a\\nwait'}",
	                          "POST /v1/sandboxes/%s/repl/sessions/%s/run/stream", id, x);

	event(c, "stdout");
	bed_crash_machine(&bed.on, sandbox_of(id));
	event(c, "error");
	assert_non_null(json_object_get(c->data, "code"));
	assert_string_equal(event_any(c), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(code_runs_in_a_fresh_interpreter),
	    api_test(the_languages_are_listed),
	    api_test(a_context_is_made_listed_and_deleted),
	    api_test(there_is_a_limit_to_contexts),
	    api_test(a_cell_has_output_results_and_an_exit),
	    api_test(a_cell_that_fails_has_an_error_and_a_traceback),
	    api_test(a_cell_comes_as_events),
	    api_test(fields_of_a_cell_are_refused_by_name),
	    api_test(a_cell_whose_time_is_over_leaves_the_context_alive),
	    api_test(an_interpreter_that_does_not_stop_in_time_is_not_waited_for),
	    api_test(a_cell_is_interrupted),
	    api_test(a_client_that_goes_away_interrupts_its_cell),
	    api_test(an_interpreter_that_ends_says_so_in_its_cell),
	    api_test(more_output_than_any_window_is_all_there),
	    api_test(a_context_that_is_busy_is_waited_for),
	    api_test(a_template_without_an_interpreter_says_so),
	    api_test(a_guest_that_hangs_up_is_an_error_of_each_call),
	    api_test(a_guest_that_dies_in_a_cell_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
