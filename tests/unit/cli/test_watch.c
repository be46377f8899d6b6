/*
 * panda events, logs, top, mcp: what comes and comes.
 */
#include "base/cleanup.h"
#include "bed.h"

#include <signal.h>

/* ---- events ---- */

#define EVENT                                                                        \
	"{'time':'2026-01-01T00:00:00Z','type':'sandbox.created','sandbox_id':'" BOX \
	"','payload':{'template':'base'}}"

static void events_are_one_on_a_line(void **state)
{
	answer("GET /v1/events?tail=50&follow=0",
	       "{'events':[" EVENT ",{'type':'x\\u001b[2J','payload':{}}]}");
	panda("events");
	gives(0,
	      "2026-01-01T00:00:00Z     3f2a0000  sandbox.created      {\"template\":\"base\"}\n"
	      "                                   x?[2J                \n",
	      "");
}

static void events_can_be_those_of_one_sandbox(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	answer("GET /v1/sandboxes/" BOX "/events?tail=3&follow=0", "{'events':[{'type':'t'}]}");
	panda("events", "-n", "3", "web", "--json");
	prints("[{'type':'t'}]");
}

static void a_tail_is_a_number(void **state)
{
	panda("events", "-n", "-1");
	fails(125, "panda events: --tail wants a number from 0 to 100000, not '-1'\n");
	panda("events", "a", "b");
	fails(125, "panda events: unexpected argument 'b'");
	panda("logs", "-n", "0", BOX);
	fails(125, "panda logs: --tail wants a number from 1 to 1000000, not '0'\n");
}

static void events_that_are_followed_come_as_they_happen(void **state)
{
	reply(.request = "GET /v1/events?tail=50&follow=1",
	      .events = "event: event\ndata: " EVENT "\n\n", .hold = true);
	then(.act = SERVER_SAYS, .when = "sandbox.created",
	     .text = "event: ping\ndata: {}\n\nevent: ev\ndata: {'type':'second'}\n\n");
	then(.act = SERVER_ENDS, .when = "second");
	panda("events", "-f");
	gives(0,
	      "2026-01-01T00:00:00Z     3f2a0000  sandbox.created      {\"template\":\"base\"}\n"
	      "                                   second               \n",
	      "");
}

static void events_with_json_are_lines_of_json(void **state)
{
	reply(.request = "GET /v1/events?tail=0&follow=1",
	      .events = "event: event\ndata: {'type':'a'}\n\nevent: event\ndata: {'type':'b'}\n\n");
	panda("events", "-f", "-n", "0", "--json");
	gives(0, "{\"type\":\"a\"}\n{\"type\":\"b\"}\n", "");
}

static void a_stream_of_events_that_breaks_is_an_error(void **state)
{
	reply(.request = "GET /v1/events?tail=50&follow=1",
	      .raw = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	             "Transfer-Encoding: chunked\r\n\r\n5\r\ndat");
	panda("events", "-f");
	fails(125, "in the middle of a reply");
	bed_refuse("GET /v1/events?tail=50&follow=1", 403, "forbidden", "admins only");
	panda("events", "-f");
	fails(125, "panda: admins only\n");
	bed_refuse("GET /v1/events?tail=50&follow=0", 403, "forbidden", "admins only");
	panda("events");
	fails(125, "panda: admins only\n");
}

static void a_signal_ends_what_is_followed(void **state)
{
	reply(.request = "GET /v1/events?tail=50&follow=1",
	      .events = "event: event\ndata: {'type':'a'}\n\n", .hold = true);
	then(.act = SIGNAL, .n = SIGINT, .when = "a  ");
	panda("events", "-f");
	assert_int_equal(bed.code, 128 + SIGINT);
}

/* ---- logs ---- */

static void logs_are_passed_on_as_they_are(void **state)
{
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=0",
	      .bytes = "[    0.0] Linux\n\033[1mbold\033[0m\r\n");
	panda("logs", BOX);
	gives(0, "[    0.0] Linux\n\033[1mbold\033[0m\r\n", "");
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=0&tail=2", .bytes = "x\n");
	panda("logs", "-n", "2", BOX);
	gives(0, "x\n", "");
}

static void on_a_terminal_logs_are_harmless(void **state)
{
	bed.tty = true;
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=0",
	      .bytes = "\033[2Ja\xc3\xbc\r\n");
	panda("logs", BOX);
	assert_int_equal(bed.code, 0);
	assert_string_equal(bed.out, "?[2Ja\xc3\xbc \r\n"); /* \r of the terminal itself */
}

static void logs_that_are_followed_have_their_line_ends(void **state)
{
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=1",
	      .events =
	          "event: open\ndata: {}\n\ndata: {'line':'one'}\n\ndata: {'line':'two\\n'}\n\n"
	          "data: {'line':''}\n\ndata: {'line':'nul\\u0000!'}\n\n");
	panda("logs", "-f", BOX);
	assert_int_equal(bed.code, 0);
	assert_int_equal(bed.out_len, 8 + 1 + 6);
	assert_memory_equal(bed.out, "one\ntwo\n\nnul\0!\n", bed.out_len);
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=1&tail=1",
	      .events = "data: {'line':'one'}\n\n");
	panda("logs", "-f", "-n", "1", "--json", BOX);
	gives(0, "{\"line\":\"one\"}\n", "");
}

static void logs_of_nothing_are_an_error(void **state)
{
	bed_refuse("GET /v1/sandboxes/" BOX "/logs?follow=0", 404, "sandbox_not_found", "gone");
	panda("logs", BOX);
	gives(125, "", "panda: gone\n       `panda ls` shows what there is\n");
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=0", .bytes = "half", .cut = true);
	panda("logs", BOX);
	gives(125, "half", NULL);
	panda("logs");
	fails(125, "panda logs: it needs [OPTION]... ID\n");
}

/* ---- top ---- */

#define BOXES                                                                                  \
	"{'items':[{'id':'" BOX "','status':'running','template':'base','memory_mb':512,"      \
	"'created_at':'2025-12-31T23:59:50Z'},{'id':'" BOX2 "','status':'running','template':" \
	"'py','memory_mb':1024},{'id':'c0','status':'hibernated','template':'py'}]}"
#define METRICS  "GET /v1/sandboxes/" BOX "/metrics"
#define METRICS2 "GET /v1/sandboxes/" BOX2 "/metrics"
#define BUSY                                                                                 \
	"{'host_cpu_percent':12.34,'host_rss_bytes':104857600,'guest':{'mem_total':1000000," \
	"'mem_available':400000,'processes':7}}"

static void top_shows_the_busiest_first(void **state)
{
	answer("GET /v1/sandboxes", BOXES);
	answer(METRICS, "{'host_cpu_percent':1.0,'host_rss_bytes':1048576}");
	answer(METRICS2, BUSY);
	panda("top");
	gives(0,
	      "3 sandboxes, 2 running, cpu 13.3 %, memory of the host 101M\n\n"
	      "ID        STATUS      TEMPLATE  CPU%  HOST-MEM  GUEST-MEM   PROCS  AGE\n"
	      "77bc0000  running     py        12.3  100M      586K/1024M  7      -\n"
	      "3f2a0000  running     base      1.0   1.0M      -/512M      -      10s\n"
	      "c0        hibernated  py        -     -         -/0M        -      -\n",
	      "");
}

static void one_that_ended_a_moment_ago_has_no_numbers(void **state)
{
	answer("GET /v1/sandboxes", BOXES);
	bed_refuse(METRICS, 404, "sandbox_not_found", "gone");
	answer(METRICS2, BUSY);
	panda("top", "--json");
	gives(0, NULL, "");
	prints("[{'id':'" BOX "','status':'running','template':'base','memory_mb':512,"
	       "'created_at':'2025-12-31T23:59:50Z'},{'id':'" BOX2 "','status':'running',"
	       "'template':'py','memory_mb':1024,'created_at':'','metrics':" BUSY "},{'id':'c0',"
	       "'status':'hibernated','template':'py','memory_mb':0,'created_at':''}]");
}

static void top_can_be_repeated_without_a_terminal(void **state)
{
	answer("GET /v1/sandboxes", "[]");
	answer("GET /v1/sandboxes", "[]");
	panda("top", "-n", "2", "--interval", "1h");
	assert_int_equal(bed.code, 0);
	assert_non_null(strstr(strstr(bed.out, "0 sandboxes") + 1, "0 sandboxes"));
	bed_refuse("GET /v1/sandboxes", 500, "internal", "no");
	panda("top", "-n", "2");
	fails(125, "panda: no\n");
}

static void the_interval_of_top_is_up_to_an_hour(void **state)
{
	panda("top", "--interval", "0");
	fails(125, "panda top: --interval is 1s to 1h\n");
	panda("top", "--interval", "2h");
	fails(125, "panda top: --interval is 1s to 1h\n");
}

static void on_a_terminal_top_ends_with_q_and_leaves_the_screen_as_it_was(void **state)
{
	bed.tty = true;
	answer("GET /v1/sandboxes", "{'items':[{'id':'a','status':'paused'}]}");
	then(.act = TYPE, .text = "q", .when = "q quits");
	panda("top", "--interval", "1h");
	assert_int_equal(bed.code, 0);
	assert_memory_equal(bed.out, "\033[?1049h\033[?25l\033[H\033[J1 sandboxes", 29);
	assert_string_equal(bed.out + bed.out_len - 14, "\033[?25h\033[?1049l");
}

static void on_a_terminal_a_signal_ends_top_in_the_same_way(void **state)
{
	bed.tty = true;
	answer("GET /v1/sandboxes", "[]");
	answer("GET /v1/sandboxes", "[]");
	then(.act = RESIZE, .n = 10, .when = "q quits");
	then(.act = SIGNAL, .n = SIGTERM, .asked = 2);
	panda("top", "--interval", "1h");
	assert_int_equal(bed.code, 0);
	assert_string_equal(bed.out + bed.out_len - 14, "\033[?25h\033[?1049l");
}

static void top_shows_as_many_rows_as_the_terminal_has(void **state)
{
	char list[4096] = "[";

	for (int i = 0; i < 30; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s{'id':'id-%02d'}",
		         i ? "," : "", i);
	snprintf(list + strlen(list), sizeof(list) - strlen(list), "]");
	bed.tty = true;
	answer("GET /v1/sandboxes", list);
	panda("top", "-n", "1");
	assert_int_equal(bed.code, 0);
	assert_non_null(strstr(bed.out, "id-17 "));
	assert_null(strstr(bed.out, "id-18 "));
	assert_non_null(strstr(bed.out, "... and 12 more"));
}

/* ---- mcp ---- */

#define PING "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}"

static void each_line_is_a_message_and_gets_an_answer(void **state)
{
	bed.in = PING "\n\r\n{\"id\":\"b\",\"method\":\"x\"}\r\n";
	answer("POST /v1/mcp", "{'jsonrpc':'2.0','id':1,'result':{}}");
	answer("POST /v1/mcp", "{'id':'b','result':null}");
	panda("mcp");
	gives(0, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n{\"id\":\"b\",\"result\":null}\n",
	      "");
	sent(0, "{'jsonrpc':'2.0','id':1,'method':'ping'}");
}

static void mcp_of_one_sandbox_has_a_path_of_its_own(void **state)
{
	bed.in = PING;
	answer("GET /v1/sandboxes", LIST);
	answer("POST /v1/sandboxes/" BOX "/mcp", "{'id':1}");
	panda("mcp", "web");
	gives(0, "{\"id\":1}\n", "");
}

static void a_notification_has_no_answer(void **state)
{
	bed.in = "{\"method\":\"notifications/initialized\"}\n";
	reply(.request = "POST /v1/mcp", .status = 202);
	panda("mcp");
	gives(0, "", "");
}

static void what_is_no_message_is_refused_and_the_next_one_is_heard(void **state)
{
	bed.in = "nonsense\n[" PING "]\n" PING "\n";
	answer("POST /v1/mcp", "{'id':1}");
	panda("mcp");
	gives(0,
	      "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"the line "
	      "is not valid JSON\"}}\n"
	      "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"send one "
	      "message at a time, an object in a line\"}}\n"
	      "{\"id\":1}\n",
	      "");
}

static void a_message_that_is_too_long_is_refused_without_sending_it(void **state)
{
	size_t n = (1 << 20) + 100;
	autofree char *line = malloc(n + 2);

	memset(line, ' ', n);
	memcpy(line, PING, strlen(PING));
	line[n] = '\n';
	line[n + 1] = 0;
	bed.in = line;
	panda("mcp");
	gives(0,
	      "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"a message "
	      "may "
	      "have 1 MiB\"}}\n",
	      "");
}

static void a_server_that_fails_is_told_to_the_agent_and_to_us(void **state)
{
	bed.in = PING "\n{\"method\":\"notify\"}\n";
	bed_refuse("POST /v1/mcp", 401, "unauthorized", "wrong key");
	bed_refuse("POST /v1/mcp", 500, "internal", "broken");
	panda("mcp");
	assert_int_equal(bed.code, 0);
	assert_string_equal(bed.out, "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32603,"
	                             "\"message\":\"wrong key\"}}\n");
	assert_non_null(strstr(bed.err, "panda: wrong key\n       the server does not know"));
	assert_non_null(strstr(bed.err, "panda: broken\n"));
}

static void an_agent_that_does_not_read_ends_it(void **state)
{
	bed.in = PING "\n" PING "\n";
	bed.full = true;
	answer("POST /v1/mcp", "{'id':1}");
	panda("mcp");
	gives(125, NULL, "panda: cannot write an answer: No space left on device\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(events_are_one_on_a_line),
	    bed_test(events_can_be_those_of_one_sandbox),
	    bed_test(a_tail_is_a_number),
	    bed_test(events_that_are_followed_come_as_they_happen),
	    bed_test(events_with_json_are_lines_of_json),
	    bed_test(a_stream_of_events_that_breaks_is_an_error),
	    bed_test(a_signal_ends_what_is_followed),
	    bed_test(logs_are_passed_on_as_they_are),
	    bed_test(on_a_terminal_logs_are_harmless),
	    bed_test(logs_that_are_followed_have_their_line_ends),
	    bed_test(logs_of_nothing_are_an_error),
	    bed_test(top_shows_the_busiest_first),
	    bed_test(one_that_ended_a_moment_ago_has_no_numbers),
	    bed_test(top_can_be_repeated_without_a_terminal),
	    bed_test(the_interval_of_top_is_up_to_an_hour),
	    bed_test(on_a_terminal_top_ends_with_q_and_leaves_the_screen_as_it_was),
	    bed_test(on_a_terminal_a_signal_ends_top_in_the_same_way),
	    bed_test(top_shows_as_many_rows_as_the_terminal_has),
	    bed_test(each_line_is_a_message_and_gets_an_answer),
	    bed_test(mcp_of_one_sandbox_has_a_path_of_its_own),
	    bed_test(a_notification_has_no_answer),
	    bed_test(what_is_no_message_is_refused_and_the_next_one_is_heard),
	    bed_test(a_message_that_is_too_long_is_refused_without_sending_it),
	    bed_test(a_server_that_fails_is_told_to_the_agent_and_to_us),
	    bed_test(an_agent_that_does_not_read_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
