/*
 * api/routes/terminals.c, as clients see it: terminals and many commands over WebSockets
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

/* The next message is binary, and these bytes. */
static void hears_bytes(struct client *c, const char *text)
{
	assert_int_equal(ws_hear(c), WS_BINARY);
	assert_string_equal(c->message, text);
}

static void a_terminal_carries_bytes_and_ends_with_its_exit(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c =
	    websocket("GET /v1/sandboxes/%s/exec/pty?cmd=echo%%20hi;cat&rows=30&cols=100", id);

	hears_bytes(c, "hi\n");
	ws_say(c, WS_BINARY, "typed", 5);
	hears_bytes(c, "typed");
	ws_say_json(c, "{'stdin':'as text'}");
	hears_bytes(c, "as text");
	ws_say_json(c, "{'resize':{'rows':40,'cols':120}}");
	ws_say_json(c, "{'type':'resize','rows':1,'cols':1}");
	ws_say_json(c, "{'type':'resize','rows':0,'cols':-1}");
	ws_say_json(c, "{'resize':'large'}");
	ws_say(c, WS_TEXT, "no json", 7);
	ws_say(c, WS_BINARY, "still", 5);
	hears_bytes(c, "still");
	assert_int_equal(commands_of(id), 1);
	client_leave(c);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void the_exit_of_a_terminal_is_its_last_text(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/pty?cmd=echo%%20a;exit%%207", id);

	hears_bytes(c, "a\n");
	ws_hears(c, "{'type':'exit','exit':7,'code':7}");
	assert_int_equal(ws_hear(c), WS_CLOSE);
	assert_memory_equal(c->message, "\x03\xe8", 2); /* 1000 */
	ws_say(c, WS_CLOSE, "\x03\xe8", 2);
	client_end(c);
}

static void without_a_command_it_is_a_login_shell(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c, *d;

	bed_rule(&bed.on, "refuse", NULL);
	c = websocket("GET /v1/sandboxes/%s/ssh", id);
	/* The fake shell does not know the words of ours, and shows them in its complaints. */
	assert_int_equal(ws_hear(c), WS_BINARY);
	assert_non_null(strstr(c->message, "cd: not found"));
	d = websocket("GET /v1/sandboxes/%s/exec/pty?cmd=", id);
	assert_int_equal(ws_hear(d), WS_BINARY);
	assert_non_null(strstr(d->message, "cd: not found"));
}

static void what_is_asked_of_a_terminal_is_checked(void **state)
{
	const char *id = sandbox_made(NULL);

	bad(400, "bad_request", "WebSocket", NULL, "GET /v1/sandboxes/%s/exec/pty", id);
	bad(400, "bad_request", "WebSocket", NULL, "GET /v1/sandboxes/%s/ssh", id);
	bad(400, "bad_request", "WebSocket", NULL, "GET /v1/sandboxes/%s/exec/ws", id);
	static const char *const wrong[][2] = {{"rows=-1", "rows"},
	                                       {"rows=x", "rows"},
	                                       {"cols=4097", "cols"},
	                                       {"cwd=here", "cwd"},
	                                       {"cwd=/nowhere", "directory"}};

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		with("Connection: Upgrade");
		with("Upgrade: websocket");
		with("Sec-WebSocket-Version: 13");
		with("Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==");
		bad(400, "bad_request", wrong[i][1], NULL,
		    "GET /v1/sandboxes/%s/exec/pty?cmd=true&%s", id, wrong[i][0]);
	}
	/* A WebSocket of no version that we speak is refused, and its command does not stay. */
	with("Connection: Upgrade");
	with("Upgrade: websocket");
	with("Sec-WebSocket-Version: 8");
	ask(NULL, "GET /v1/sandboxes/%s/exec/pty?cmd=sleep", id);
	assert_in_range(bed.status, 400, 426);
	with("Connection: Upgrade");
	with("Upgrade: websocket");
	ask(NULL, "GET /v1/sandboxes/%s/exec/ws", id);
	assert_in_range(bed.status, 400, 426);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void a_terminal_whose_guest_dies_says_so_and_closes(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/pty?cmd=echo%%20a;sleep", id);

	hears_bytes(c, "a\n");
	bed_crash_machine(&bed.on, sandbox_of(id));
	ws_hears(c, "{}");
	assert_non_null(json_string_value(json_object_get(c->data, "error")));
	assert_non_null(json_string_value(json_object_get(c->data, "code")));
	assert_int_equal(ws_hear(c), WS_CLOSE);
	assert_memory_equal(c->message, "\x03\xf3", 2); /* 1011 */
}

static void a_terminal_with_much_output_waits_for_its_reader(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/pty?cmd=fill%%202000000", id);
	size_t n = 0;

	client_deaf(c, true);
	for (int i = 0; i < 20; i++)
		good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	assert_true(c->len < 1000000);
	client_deaf(c, false);
	while (ws_hear(c) == WS_BINARY)
		n += c->message_len;
	assert_int_equal(n, 2000000);
	assert_non_null(strstr(c->message, "\"exit\":0"));
}

static void much_input_goes_into_a_terminal_whole(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/pty?cmd=cat", id);
	static char big[60000];
	size_t n = 0;

	memset(big, 'i', sizeof(big));
	for (int i = 0; i < 20; i++)
		ws_say(c, WS_BINARY, big, sizeof(big));
	while (n < 20 * sizeof(big)) {
		assert_int_equal(ws_hear(c), WS_BINARY);
		n += c->message_len;
	}
	assert_int_equal(n, 20 * sizeof(big));
}

static void a_terminal_that_is_given_up_early_leaves_nothing(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "mood", "{\"*\":\"silent\"}");
	with("Connection: Upgrade");
	with("Upgrade: websocket");
	with("Sec-WebSocket-Version: 13");
	with("Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==");
	client_leave(begin(NULL, "GET /v1/sandboxes/%s/exec/pty?cmd=sleep", id));
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_rule(&bed.on, "mood", NULL);
	bed_until(&bed.on, commands_of(id) == 0);
}

/* ---- many commands ---- */

static void many_commands_share_one_socket(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);

	ws_say_json(c, "{'id':'a','cmd':'echo out; echo err >&2; exit 2'}");
	ws_hears(c, "{'id':'a','stream':'stdout','data':'out\\n'}");
	ws_hears(c, "{'id':'a','stream':'stderr','data':'err\\n'}");
	ws_hears(c, "{'id':'a','exit':2}");
	/* Two at once; the id of one that is over may be used again. */
	ws_say_json(c, "{'id':'b','cmd':'sleep'}");
	ws_say_json(c, "{'id':'a','argv':['echo','again']}");
	ws_hears(c, "{'id':'a','data':'again\\n'}");
	ws_hears(c, "{'id':'a','exit':0}");
	ws_say_json(c, "{'id':'b','cmd':'true'}");
	ws_hears(c, "{'id':'b','error':'a command with this id is running: send another id'}");
	ws_say_json(c, "{'id':'b','cancel':true}");
	ws_hears(c, "{'id':'b','error':'the command was cancelled'}");
	ws_say_json(c, "{'id':'b','cancel':true}");
	ws_hears(c, "{'id':'b','error':'no command with this id is running'}");
	ws_say_json(c, "{'id':'t','cmd':'sleep','timeout_seconds':0.01}");
	ws_hears(c, "{'id':'t'}");
	assert_int_equal(strncmp(json_string_value(json_object_get(c->data, "error")),
	                         "timeout: ", 9),
	                 0);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void messages_that_are_none_are_told(void **state)
{
	static const char *const wrong[][2] = {
	    {"nonsense", "bad json"},
	    {"[1]", "bad json: not an object"},
	    {"{'cmd':'true'}", "id"},
	    {"{'id':5,'cmd':'true'}", "id"},
	    {"{'id':'','cmd':'a'}", "id"},
	    {"{'id':'x'}", "cmd required"},
	    {"{'id':'x','cmd':5}", "cmd"},
	    {"{'id':'x','cmd':'a','cwd':'b'}", "cwd"},
	    {"{'id':'x','cmd':'a','argv':['b']}", "not both"},
	};
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		ws_say_json(c, "%s", wrong[i][0]);
		ws_hears(c, "{}");
		if (!strstr(json_string_value(json_object_get(c->data, "error")), wrong[i][1]))
			fail_msg("%s: %s", wrong[i][0], c->message);
	}
	ws_say_json(c, "{'id':'x','cmd':'true'}");
	ws_hears(c, "{'id':'x','exit':0}");
}

static void an_error_of_a_command_is_told_wherever_it_is_cut(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);
	char rule[600];

	for (int shift = 0; shift < 3; shift++) {
		size_t n = (size_t)snprintf(rule, sizeof(rule),
		                            "{\"exec\":{\"err\":5,\"text\":\"%.*s", shift, "aa");

		for (int i = 0; i < 100; i++, n += 3)
			memcpy(rule + n, "\xe2\x82\xac", 3);
		memcpy(rule + n, "\"}}", 4);
		bed_rule(&bed.on, "refuse", rule);
		ws_say_json(c, "{'id':'a','cmd':'true'}");
		ws_hears(c, "{'id':'a'}");
		assert_non_null(strstr(c->message, "cannot start"));
	}
}

static void a_socket_has_a_limit_of_commands(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);

	for (int i = 0; i < 64; i++)
		ws_say_json(c, "{'id':'%d','cmd':'sleep'}", i);
	ws_say_json(c, "{'id':'one','cmd':'true'}");
	ws_hears(c, "{'id':'one'}");
	assert_non_null(strstr(c->message, "64 commands"));
	client_leave(c);
	bed_until(&bed.on, commands_of(id) == 0);
}

static void a_socket_keeps_its_sandbox_busy_until_it_is_gone(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);

	bed_later(4000);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	has("{'idle_seconds':0}");
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	bed_later(4000);
	good(200, NULL, "GET /v1/sandboxes/%s/lifecycle", id);
	assert_true(number_of("idle_seconds") >= 3);
}

static void a_socket_without_its_sandbox_says_so(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);

	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	ws_say_json(c, "{'id':'a','cmd':'true'}");
	ws_hears(c, "{'id':'a','error':'sandbox not found'}");
}

static void output_in_a_socket_is_text_and_waits_for_its_reader(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = websocket("GET /v1/sandboxes/%s/exec/ws", id);
	size_t n = 0;

	assert_int_equal(ask_bytes("x\xff\xe2\x82", 4, "PUT /v1/sandboxes/%s/fs?path=/raw", id),
	                 200);
	ws_say_json(c, "{'id':'a','cmd':'cat /raw'}");
	ws_hears(c, "{'id':'a','data':'x\xef\xbf\xbd'}");
	ws_hears(c, "{'id':'a','data':'\xef\xbf\xbd'}");
	ws_hears(c, "{'id':'a','exit':0}");
	client_deaf(c, true);
	ws_say_json(c, "{'id':'b','cmd':'fill 2000000'}");
	for (int i = 0; i < 20; i++)
		good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	client_deaf(c, false);
	for (;;) {
		ws_hears(c, "{'id':'b'}");
		if (json_object_get(c->data, "exit"))
			break;
		n += json_string_length(json_object_get(c->data, "data"));
	}
	assert_int_equal(n, 2000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_terminal_carries_bytes_and_ends_with_its_exit),
	    api_test(the_exit_of_a_terminal_is_its_last_text),
	    api_test(without_a_command_it_is_a_login_shell),
	    api_test(what_is_asked_of_a_terminal_is_checked),
	    api_test(a_terminal_whose_guest_dies_says_so_and_closes),
	    api_test(a_terminal_with_much_output_waits_for_its_reader),
	    api_test(much_input_goes_into_a_terminal_whole),
	    api_test(a_terminal_that_is_given_up_early_leaves_nothing),
	    api_test(many_commands_share_one_socket),
	    api_test(messages_that_are_none_are_told),
	    api_test(an_error_of_a_command_is_told_wherever_it_is_cut),
	    api_test(a_socket_has_a_limit_of_commands),
	    api_test(a_socket_keeps_its_sandbox_busy_until_it_is_gone),
	    api_test(a_socket_without_its_sandbox_says_so),
	    api_test(output_in_a_socket_is_text_and_waits_for_its_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
