/*
 * api/routes/mcp.c and mcp_tools.c, as agents see them: JSON-RPC over POST
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"

/* The text of a tool's answer. */
static const char *said(void)
{
	return text_of("result.content.0.text");
}

/* Its JSON. */
static void said_has(const char *want)
{
	json_t *j = json_loads(said(), 0, NULL);

	json_has(j, "%s", want);
	json_decref(j);
}

/* Calls a tool; of the sandbox when id is one, else of all. */
static void tool(const char *id, const char *name, const char *args)
{
	char body[800];

	snprintf(body, sizeof(body),
	         "{'jsonrpc':'2.0','id':1,'method':'tools/call','params':{'name':'%s',"
	         "'arguments':%s}}",
	         name, args);
	if (id)
		good(200, body, "POST /v1/sandboxes/%s/mcp", id);
	else
		good(200, body, "POST /mcp");
	has("{'jsonrpc':'2.0','id':1,'result':{'content':[{'type':'text'}]}}");
}

static void tool_fails(const char *id, const char *name, const char *args, const char *code)
{
	char want[100];

	tool(id, name, args);
	has("{'result':{'isError':true}}");
	snprintf(want, sizeof(want), "{'code':'%s'}", code);
	said_has(want);
}

static void an_agent_introduces_itself(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200,
	     "{'jsonrpc':'2.0','id':'a','method':'initialize','params':{'protocolVersion':"
	     "'2025-06-18'}}",
	     "POST /v1/mcp");
	has("{'jsonrpc':'2.0','id':'a','result':{'protocolVersion':'2025-06-18','capabilities':"
	    "{'tools':{'listChanged':false}},'serverInfo':{'name':'pandastack'}}}");
	good(200, "{'jsonrpc':'2.0','id':0,'method':'initialize'}", "POST /mcp");
	has("{'id':0,'result':{'protocolVersion':'2025-03-26'}}");
	good(200, "{'jsonrpc':'2.0','id':1.5,'method':'initialize','params':{}}",
	     "POST /v1/sandboxes/%s/mcp", id);
	has("{'id':1.5,'result':{'protocolVersion':'2024-11-05','serverInfo':"
	    "{'name':'pandastack-sandbox'}}}");
	good(200, "{'id':2,'method':'ping'}", "POST /mcp");
	has("{'id':2,'result':{}}");
}

static void pages_of_other_origins_are_no_agents(void **state)
{
	static const char ping[] = "{'jsonrpc':'2.0','id':1,'method':'ping'}";
	const char *id = sandbox_made(NULL);

	with("Origin: https://evil.example");
	bad(403, "forbidden", "allowed_origins", ping, "POST /mcp");
	with("Origin: null");
	bad(403, "forbidden", "allowed_origins", ping, "POST /v1/sandboxes/%s/mcp", id);
	with("Host: localhost:8080");
	with("Origin: http://localhost:8080");
	good(200, ping, "POST /mcp");
	bed_api_close();
	bed.config.public_url = "https://panda.example";
	bed.config.allowed_origins = "http://localhost:6274 https://app.example";
	bed_api_open();
	with("Origin: https://app.example");
	good(200, ping, "POST /mcp");
	with("Origin: https://panda.example");
	good(200, ping, "POST /v1/sandboxes/%s/mcp", id);
}

static void messages_that_want_no_answer_get_none(void **state)
{
	static const char *const quiet[] = {"{'method':'notifications/initialized'}",
	                                    "{'method':'ping'}",
	                                    "{'id':1,'method':'notifications/cancelled'}",
	                                    "{'id':1,'result':{}}", "{'id':1,'error':{'code':1}}"};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(quiet); i++) {
		good(202, quiet[i], "POST /mcp");
		body_is("");
		good(204, quiet[i], "POST /v1/sandboxes/%s/mcp", id);
		body_is("");
	}
}

static void messages_that_are_none_are_errors_of_the_protocol(void **state)
{
	static const struct {
		const char *body;
		int status, code;
	} wrong[] = {
	    {"", 400, -32700},
	    {"{", 400, -32700},
	    {"[{'id':1,'method':'ping'}]", 400, -32600},
	    {"{}", 400, -32600},
	    {"{'id':1}", 400, -32600},
	    {"{'id':1,'method':5}", 400, -32600},
	    {"{'id':[],'method':'ping'}", 400, -32600},
	    {"{'id':null,'method':'ping'}", 400, -32600},
	    {"{'id':1,'method':'dance'}", 200, -32601},
	    {"{'id':1,'method':'tools/call'}", 200, -32602},
	    {"{'id':1,'method':'tools/call','params':{'name':5}}", 200, -32602},
	    {"{'id':1,'method':'tools/call','params':{'name':'x','arguments':[]}}", 200, -32602},
	    {"{'id':1,'method':'tools/call','params':{'name':'dance'}}", 200, -32602},
	};

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		good(wrong[i].status, wrong[i].body, "POST /mcp");
		has("{'jsonrpc':'2.0','error':{'code':%d}}", wrong[i].code);
		assert_true(strlen(text_of("error.message")) > 5);
		if (wrong[i].status == 200)
			has("{'id':1}");
		else if (!strstr(wrong[i].body, "'id':1"))
			has("{'id':null}");
	}
}

static void a_message_may_have_a_mebibyte(void **state)
{
	size_t n = (1 << 20) + 1;
	autofree char *big = malloc(n);

	memset(big, ' ', n);
	ask_bytes(big, n, "POST /mcp");
	refused(413, "too_large", "");
}

static void tools_are_listed_where_they_are_offered(void **state)
{
	const char *id = sandbox_made(NULL);

	good(200, "{'id':1,'method':'tools/list'}", "POST /mcp");
	has("{'result':{'tools':[{'name':'create_sandbox'},{'name':'list_sandboxes'},"
	    "{'name':'delete_sandbox','inputSchema':{'type':'object','required':['sandbox_id'],"
	    "'properties':{'sandbox_id':{'type':'string','description':'its id'}}}},"
	    "{'name':'run_command','inputSchema':{'required':['sandbox_id','command']}},"
	    "{'name':'read_file'},{'name':'write_file'},{'name':'list_dir'},"
	    "{'name':'list_templates','inputSchema':{'required':[]}}]}}");
	good(200, "{'id':1,'method':'tools/list'}", "POST /v1/sandboxes/%s/mcp", id);
	has("{'result':{'tools':[{'name':'shell'},"
	    "{'name':'read_file','inputSchema':{'required':['path']}},{'name':'write_file'},"
	    "{'name':'list_dir','inputSchema':{'required':[]}}]}}");
	/* One that is offered elsewhere is not there. */
	good(200, "{'id':1,'method':'tools/call','params':{'name':'list_sandboxes'}}",
	     "POST /v1/sandboxes/%s/mcp", id);
	has("{'error':{'code':-32602}}");
	good(200, "{'id':1,'method':'tools/call','params':{'name':'shell'}}", "POST /mcp");
	has("{'error':{'code':-32602}}");
}

static void an_agent_makes_uses_and_deletes_a_sandbox(void **state)
{
	char id[64], args[300];
	json_t *j;

	tool(NULL, "create_sandbox", "{'template':'base','metadata':{'by':'agent'}}");
	has("{'result':{'isError':false}}");
	said_has("{'status':'running','metadata':{'by':'agent'}}");
	j = json_loads(said(), 0, NULL);
	snprintf(id, sizeof(id), "%s", json_string_value(json_object_get(j, "id")));
	json_decref(j);
	tool(NULL, "list_sandboxes", "{}");
	said_has("[{'template':'base'}]");
	snprintf(args, sizeof(args),
	         "{'sandbox_id':'%s','command':'echo out; echo err >&2; exit 3'}", id);
	tool(NULL, "run_command", args);
	has("{'result':{'isError':false}}");
	said_has("{'stdout':'out\\n','stderr':'err\\n','exit_code':3}");
	snprintf(args, sizeof(args), "{'sandbox_id':'%s','path':'/a/b','content':'text'}", id);
	tool(NULL, "write_file", args);
	said_has("{'path':'/a/b','bytes':4}");
	tool(NULL, "read_file", args);
	assert_string_equal(said(), "text");
	snprintf(args, sizeof(args), "{'sandbox_id':'%s','path':'/a'}", id);
	tool(NULL, "list_dir", args);
	said_has("{'path':'/a','entries':[{'name':'b','path':'/a/b','size':4}]}");
	tool(NULL, "list_templates", "null");
	said_has("[{'name':'base'}]");
	snprintf(args, sizeof(args), "{'sandbox_id':'%s'}", id);
	tool(NULL, "delete_sandbox", args);
	assert_string_equal(said(), "deleted");
	tool_fails(NULL, "delete_sandbox", args, "sandbox_not_found");
}

static void an_agent_in_a_sandbox_has_a_shell(void **state)
{
	const char *id = sandbox_made(NULL);

	tool(id, "shell", "{'command':'echo out'}");
	has("{'result':{'isError':false}}");
	assert_string_equal(said(), "out\n");
	tool(id, "shell", "{'command':'echo out; echo err >&2; exit 3'}");
	has("{'result':{'isError':true}}");
	assert_string_equal(said(), "out\n\n[stderr]\nerr\n\n[exit code: 3]");
	tool(id, "shell", "{'command':'sleep','timeout_ms':10}");
	assert_string_equal(said(), "\n[exit code: 124, timed out]");
	tool(id, "write_file", "{'path':'/f','content':''}");
	said_has("{'bytes':0}");
	tool(id, "read_file", "{'path':'/f'}");
	assert_string_equal(said(), "");
	tool(id, "list_dir", "{}");
	said_has("{'path':'/workspace','entries':[]}");
	/* What is no text comes in another form. */
	assert_int_equal(ask_bytes("\xff\0", 2, "PUT /v1/sandboxes/%s/fs?path=/raw", id), 200);
	tool(id, "read_file", "{'path':'/raw'}");
	assert_string_equal(said(), "[binary file, 2 bytes, base64]\n/wA=");
	tool(id, "shell", "{'command':'cat /raw'}");
	has("{'result':{'isError':false}}");
}

static void what_a_tool_cannot_do_is_its_answer(void **state)
{
	const char *id = sandbox_made(NULL);

	tool_fails(id, "shell", "{}", "bad_request");
	tool_fails(id, "shell", "{'command':5}", "bad_request");
	tool_fails(id, "shell", "{'command':''}", "bad_request");
	tool_fails(id, "shell", "{'command':'a','timeout_ms':'soon'}", "bad_request");
	tool_fails(id, "read_file", "{}", "bad_path");
	tool_fails(id, "read_file", "{'path':'here'}", "bad_path");
	tool_fails(id, "read_file", "{'path':'/nowhere'}", "file_not_found");
	tool_fails(id, "read_file", "{'path':'/'}", "is_a_directory");
	tool_fails(id, "write_file", "{'path':'/x'}", "bad_request");
	tool_fails(id, "write_file", "{'path':'/x','content':5}", "bad_request");
	tool_fails(id, "list_dir", "{'path':'/nowhere'}", "file_not_found");
	tool_fails(NULL, "run_command", "{'command':'a'}", "bad_request");
	tool_fails(NULL, "run_command", "{'sandbox_id':'x','command':'a'}", "sandbox_not_found");
	tool_fails(NULL, "read_file", "{'sandbox_id':'x','path':'/'}", "sandbox_not_found");
	tool_fails(NULL, "create_sandbox", "{}", "template_not_found"); /* code-interpreter */
	tool_fails(NULL, "create_sandbox", "{'ttl_seconds':'x'}", "bad_request");
	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	tool(id, "shell", "{'command':'a'}");
	has("{'result':{'isError':true}}");
	tool(id, "write_file", "{'path':'/x','content':'x'}");
	has("{'result':{'isError':true}}");
}

static void sandboxes_of_others_are_not_there_for_agents(void **state)
{
	char body[300];
	const char *id = sandbox_made(NULL);

	snprintf(body, sizeof(body),
	         "{'id':1,'method':'tools/call','params':{'name':'delete_sandbox','arguments':"
	         "{'sandbox_id':'%s'}}}",
	         id);
	as(bed.other);
	good(200, body, "POST /mcp");
	has("{'result':{'isError':true}}");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
}

static void more_than_a_file_of_four_mebibytes_is_not_one_answer(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t n = 2 << 20;
	autofree char *big = calloc(1, n);

	bed_rule(&bed.on, "dir", "{\"/many\":10001}");
	good(201, "{'path':'/many'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	tool_fails(id, "list_dir", "{'path':'/many'}", "too_large");
	memset(big, 'x', n);
	assert_int_equal(ask_bytes(big, n, "PUT /v1/sandboxes/%s/fs?path=/dev/shm/big", id), 200);
	tool(id, "read_file", "{'path':'/dev/shm/big'}");
	assert_int_equal(strlen(said()), n);
}

static void errors_stay_text_wherever_they_are_cut(void **state)
{
	const char *id = sandbox_made(NULL);
	char args[400];

	for (int shift = 0; shift < 3; shift++) {
		size_t n = (size_t)snprintf(args, sizeof(args), "{'path':'/%.*s", shift, "aa");

		for (int i = 0; i < 60; i++, n += 3)
			memcpy(args + n, "\xe2\x82\xac", 3);
		memcpy(args + n, "'}", 3);
		tool_fails(id, "read_file", args, "file_not_found");
		assert_non_null(strstr(said(), "cannot read"));
	}
}

static void there_is_a_limit_to_calls_in_a_minute(void **state)
{
	const char *call = "{'id':1,'method':'tools/call','params':{'name':'list_sandboxes'}}";

	for (int i = 0; i < 60; i++) {
		good(200, call, "POST /mcp");
		has("{'result':{}}");
	}
	good(200, call, "POST /mcp");
	has("{'error':{'code':-32000}}");
	/* Others have their own, and other messages have none. */
	as(bed.other);
	good(200, call, "POST /mcp");
	has("{'result':{}}");
	good(200, "{'id':1,'method':'tools/list'}", "POST /mcp");
	has("{'result':{}}");
	bed_later(1001);
	good(200, call, "POST /mcp");
	has("{'result':{}}");
}

static void an_agent_that_goes_away_leaves_nothing(void **state)
{
	static const char *const calls[] = {
	    "'name':'shell','arguments':{'command':'sleep'}",
	    "'name':'read_file','arguments':{'path':'/f'}",
	    "'name':'write_file','arguments':{'path':'/f','content':'x'}",
	    "'name':'list_dir','arguments':{'path':'/'}",
	};
	const char *id = sandbox_made(NULL);
	struct client *c;
	char body[200];

	bed_rule(&bed.on, "mood", "{\"*\":\"silent\"}");
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		snprintf(body, sizeof(body), "{'id':1,'method':'tools/call','params':{%s}}",
		         calls[i]);
		c = begin(body, "POST /v1/sandboxes/%s/mcp", id);
		good(200, NULL, "GET /v1/sandboxes/%s", id);
		client_leave(c);
	}
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_rule(&bed.on, "mood", NULL);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void a_sandbox_that_an_agent_did_not_wait_for_is_killed(void **state)
{
	struct client *c;

	sandbox_made(NULL);
	fake_close(bed.on.fake, FAKE_CALL_START);
	c = begin("{'id':1,'method':'tools/call','params':{'name':'create_sandbox','arguments':"
	          "{'template':'base'}}}",
	          "POST /mcp");
	bed_until(&bed.on, bed.on.host->count == 2);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	fake_open(bed.on.fake, FAKE_CALL_START);
	bed_until(&bed.on, bed.on.host->count == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(an_agent_introduces_itself),
	    api_test(pages_of_other_origins_are_no_agents),
	    api_test(messages_that_want_no_answer_get_none),
	    api_test(messages_that_are_none_are_errors_of_the_protocol),
	    api_test(a_message_may_have_a_mebibyte),
	    api_test(tools_are_listed_where_they_are_offered),
	    api_test(an_agent_makes_uses_and_deletes_a_sandbox),
	    api_test(an_agent_in_a_sandbox_has_a_shell),
	    api_test(what_a_tool_cannot_do_is_its_answer),
	    api_test(sandboxes_of_others_are_not_there_for_agents),
	    api_test(more_than_a_file_of_four_mebibytes_is_not_one_answer),
	    api_test(errors_stay_text_wherever_they_are_cut),
	    api_test(there_is_a_limit_to_calls_in_a_minute),
	    api_test(an_agent_that_goes_away_leaves_nothing),
	    api_test(a_sandbox_that_an_agent_did_not_wait_for_is_killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
