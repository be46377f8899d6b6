/*
 * panda exec, run, ps: arguments, the three ways stdin can go, output and exit codes, signals, and
 * a pandad that goes away in the middle.
 */
#include "base/macro.h"
#include "bed.h"

#include <signal.h>

#define STREAM "POST /v1/sandboxes/" BOX "/exec/stream"
#define EXECS  "POST /v1/sandboxes/" BOX "/execs"
#define OUT(at)                                                                                \
	"GET /v1/sandboxes/" BOX "/execs/7/output?follow=1&encoding=base64&stdout_offset=" #at \
	"&stderr_offset=0"
#define IN     "POST /v1/sandboxes/" BOX "/execs/7/stdin"
#define EOF_IN IN "?eof=1"
#define SIG    "POST /v1/sandboxes/" BOX "/execs/7/signal"

#define HI      "event: stdout\ndata: {'chunk_b64':'aGkK','offset':0}\n\n"
#define OH      "event: stderr\ndata: {'chunk_b64':'b2gK'}\n\n"
#define EXIT(n) "event: exit\ndata: {'exit_code':" #n "}\n\n"

/* ---- what to run ---- */

static void one_word_is_a_line_for_the_shell(void **state)
{
	reply(.request = STREAM, .events = HI OH EXIT(0));
	panda("exec", BOX, "ls /etc | wc -l");
	gives(0, "hi\n", "oh\n");
	sent(0, "{'cmd':'ls /etc | wc -l','timeout_seconds':0,'encoding':'base64'}");
	assert_string_equal(bed_field(0, "accept"), "text/event-stream");
}

static void several_words_are_a_program_and_its_arguments(void **state)
{
	static const char want[] =
	    "{'argv':['ls','-l','--color','a b'],'timeout_seconds':0,'encoding':'base64'}";

	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", BOX, "ls", "-l", "--color", "a b");
	sent(0, want);
	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", BOX, "--", "ls", "-l", "--color", "a b");
	sent(0, want);
}

static void the_environment_directory_user_and_time_are_said(void **state)
{
	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", "-e", "A=1", "-e", "B=", "-C", "/srv", "-u", "web", "--timeout", "2m", BOX,
	      "true");
	sent(0, "{'cmd':'true','timeout_seconds':120,'cwd':'/srv','user':'web',"
	        "'env':{'A':'1','B':''},'encoding':'base64'}");
}

static void a_sandbox_is_found_by_its_name(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", "web", "true");
	gives(0, "", "");
}

static void a_command_is_wanted(void **state)
{
	panda("exec", BOX);
	fails(125, "panda exec: which command? Put it behind --\n");
	panda("exec", BOX, "--");
	fails(125, "which command?");
	panda("exec");
	fails(125, "panda exec: it needs [OPTION]... ID [--] COMMAND...\n");
}

static void words_that_are_not_utf8_are_refused(void **state)
{
	panda("exec", BOX, "\xff");
	fails(125, "the command is not UTF-8");
	panda("exec", BOX, "a", "\xff");
	fails(125, "argument 1 is not UTF-8");
	panda("exec", "-u", "\xff", BOX, "a");
	fails(125, "names must be UTF-8");
	panda("exec", "--signal", "TE\xff:3", BOX);
	fails(125, "is not UTF-8");
}

/* ---- output and exit codes ---- */

static void the_exit_code_of_the_command_is_ours(void **state)
{
	reply(.request = STREAM, .events = EXIT(42));
	panda("exec", BOX, "exit 42");
	gives(42, "", "");
	reply(.request = STREAM, .events = EXIT(137));
	panda("exec", BOX, "kill -9 $$");
	gives(137, "", "");
}

static void a_timeout_is_124(void **state)
{
	reply(.request = STREAM,
	      .events = HI "event: exit\ndata: {'exit_code':137,'timed_out':true}\n\n");
	panda("exec", "--timeout", "1", BOX, "sleep 9");
	gives(124, "hi\n", "");
}

static void output_is_passed_on_byte_for_byte(void **state)
{
	static const char want[] = {0, 1, (char)0xfe, (char)0xff, '\n', 'x', 'y'};

	reply(.request = STREAM, .events = "event: stdout\ndata: {'chunk_b64':'AAH+/wo='}\n\n"
	                                   "event: stdout\ndata: {'chunk_b64':'eA=='}\n\n"
	                                   "event: stdout\ndata: {'chunk_b64':''}\n\n"
	                                   "event: stdout\ndata: {'chunk':'y'}\n\n"
	                                   "event: news\ndata: {'later':'version'}\n\n" EXIT(0));
	panda("exec", BOX, "cat x");
	assert_int_equal(bed.code, 0);
	assert_int_equal(bed.out_len, sizeof(want));
	assert_memory_equal(bed.out, want, sizeof(want));
}

static void output_that_cannot_be_decoded_is_not_left_out_in_silence(void **state)
{
	reply(.request = STREAM, .events = "event: stdout\ndata: {'chunk_b64':'!!!!'}\n\n" EXIT(0));
	panda("exec", BOX, "cat x");
	fails(125, "panda: ");
}

static void an_error_in_the_stream_is_told(void **state)
{
	reply(.request = STREAM,
	      .events = "event: error\ndata: {'error':'the guest is gone'}\n\n" EXIT(0));
	panda("exec", BOX, "true");
	gives(125, "", "panda: the guest is gone\n");
}

static void an_error_instead_of_a_stream_tells_the_next_step(void **state)
{
	bed_refuse(STREAM, 409, "sandbox_paused", "it is paused");
	panda("exec", BOX, "true");
	gives(125, "", "panda: it is paused\n       `panda resume ID` lets it go on\n");
	answer(STREAM, "{}");
	panda("exec", BOX, "true");
	fails(125, "answered 'application/json', not a stream of events\n");
}

static void a_stream_that_ends_before_the_command_is_a_failure(void **state)
{
	reply(.request = STREAM, .events = HI);
	panda("exec", BOX, "true");
	gives(125, "hi\n", "panda: the server ended the stream before the command\n");
}

static void the_exit_is_the_end_even_when_the_stream_stays_open(void **state)
{
	reply(.request = STREAM, .events = HI EXIT(3), .hold = true);
	panda("exec", BOX, "exit 3");
	gives(3, "hi\n", "");
}

static void a_reader_that_left_ends_it_at_once(void **state)
{
	/* As in `panda exec ID 'echo; sleep 1000' | true`: nothing more comes for a long time. */
	reply(.request = STREAM, .events = ": hello\n\n", .hold = true);
	then(.act = STOP_READING, .asked = 1);
	then(.act = SERVER_SAYS, .text = HI);
	panda("exec", BOX, "echo hi; sleep 1000");
	gives(141, "", "");
}

static void a_full_disk_ends_it_too(void **state)
{
	bed.full = true;
	reply(.request = STREAM, .events = HI, .hold = true);
	panda("exec", BOX, "echo hi; sleep 1000");
	assert_int_not_equal(bed.code, 0);
}

static void a_signal_ends_us_and_thereby_the_command(void **state)
{
	reply(.request = STREAM, .events = HI, .hold = true);
	then(.act = SIGNAL, .n = SIGTERM, .when = "hi");
	panda("exec", BOX, "sleep 1000");
	gives(128 + SIGTERM, "hi\n", "");
	reply(.request = STREAM, .events = HI, .hold = true);
	then(.act = SIGNAL, .n = SIGINT, .when = "hi");
	panda("exec", BOX, "sleep 1000");
	gives(128 + SIGINT, "hi\n", "");
}

/* ---- stdin ---- */

static void short_text_goes_along_with_the_request(void **state)
{
	bed.in = "some\ntext";
	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", BOX, "cat");
	sent(0, "{'cmd':'cat','timeout_seconds':0,'stdin':'some\\ntext','encoding':'base64'}");
}

static void with_n_stdin_is_left_alone(void **state)
{
	bed.in = "text";
	bed.in_open = true;
	reply(.request = STREAM, .events = EXIT(0));
	panda("exec", "-n", BOX, "cat");
	sent(0, "{'cmd':'cat','timeout_seconds':0,'encoding':'base64'}");
}

static void bytes_that_are_no_text_are_fed_to_a_detached_command(void **state)
{
	bed.in = "\xff\0x";
	bed.in_len = 3;
	answer(EXECS, "{'id':'7'}");
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .json = "{}");
	reply(.request = EOF_IN, .any_time = true, .json = "{}");
	then(.act = SERVER_SAYS, .text = EXIT(5), .asked = 4, .when = "hi");
	panda("exec", BOX, "wc -c");
	gives(5, "hi\n", "");
	sent(0, "{'cmd':'wc -c','timeout_seconds':0,'stdin':true,'hold':true}");
	for (size_t i = 1; i < bed.nasked; i++)
		if (!strcmp(bed.asked[i].line, IN)) {
			assert_int_equal(bed.asked[i].len, 3);
			assert_memory_equal(bed.asked[i].body, "\xff\0x", 3);
		}
}

static void stdin_that_goes_on_is_passed_on_as_it_comes(void **state)
{
	bed.in = "first ";
	bed.in_open = true;
	answer(EXECS, "{'id':'7'}");
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .json = "{}");
	reply(.request = IN, .any_time = true, .json = "{}");
	reply(.request = EOF_IN, .any_time = true, .json = "{}");
	then(.act = TYPE, .text = "second", .asked = 3);
	then(.act = TYPE_END, .asked = 4);
	then(.act = SERVER_SAYS, .text = EXIT(0), .asked = 5);
	panda("exec", BOX, "cat");
	gives(0, "hi\n", "");
	assert_string_equal(bed.asked[bed.nasked - 2].body, "second");
}

static void a_command_that_reads_no_more_is_no_failure(void **state)
{
	bed.in = "\xff";
	answer(EXECS, "{'id':'7'}");
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .status = 409, .json = "{'error':'closed'}");
	then(.act = SERVER_SAYS, .text = EXIT(0), .asked = 3);
	panda("exec", BOX, "true");
	gives(0, "hi\n", "");
}

static void stdin_that_is_lost_is_told(void **state)
{
	bed.in = "\xff";
	answer(EXECS, "{'id':'7'}");
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .status = 500, .json = "{'error':'broke'}");
	then(.act = SERVER_SAYS, .text = EXIT(0), .when = "broke");
	panda("exec", BOX, "true");
	gives(0, "hi\n", "panda: the rest of stdin is lost: broke\n");
}

static void a_fed_command_that_cannot_start_is_told(void **state)
{
	bed.in = "\xff";
	bed_refuse(EXECS, 404, "sandbox_not_found", "gone");
	panda("exec", BOX, "true");
	fails(125, "panda: gone\n");
}

static void the_first_signal_is_for_the_command_and_the_second_for_us(void **state)
{
	bed.in = "\xff";
	bed.in_open = true;
	answer(EXECS, "{'id':'7'}");
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .json = "{}");
	answer(SIG, "{}");
	answer(SIG, "{}");
	then(.act = SIGNAL, .n = SIGINT, .when = "hi", .asked = 3);
	then(.act = SIGNAL, .n = SIGTERM, .asked = 4);
	panda("exec", BOX, "trap '' INT; sleep 1000");
	gives(128 + SIGTERM, "hi\n", "");
	sent(3, "{'signal':2,'tree':true}");
	sent(4, "{'signal':9,'tree':true}");
}

/* ---- --json, --detach, --signal ---- */

static void with_json_there_is_one_answer_with_everything(void **state)
{
	bed.in = "text";
	answer("POST /v1/sandboxes/" BOX "/exec", "{'stdout':'a','stderr':'','exit_code':3}");
	panda("exec", "--json", BOX, "cat");
	assert_int_equal(bed.code, 3);
	assert_non_null(strstr(bed.out, "\"stdout\": \"a\""));
	sent(0, "{'cmd':'cat','timeout_seconds':0,'stdin':'text'}");
	answer("POST /v1/sandboxes/" BOX "/exec", "{'exit_code':137,'timed_out':true}");
	panda("exec", "--json", BOX, "cat");
	assert_int_equal(bed.code, 124);
}

static void json_takes_only_text(void **state)
{
	bed.in = "\xff";
	panda("exec", "--json", BOX, "cat");
	fails(125, "panda exec: --json takes only short text on stdin (up to 256 KiB at once)\n");
}

static void detach_prints_the_number_of_the_exec(void **state)
{
	bed.in = "never read";
	answer(EXECS, "{'id':'7','pid':12}");
	panda("exec", "-d", BOX, "sleep 60");
	gives(0, "7\n", "");
	sent(0, "{'cmd':'sleep 60','timeout_seconds':0}");
	answer(EXECS, "{'id':'7','pid':12}");
	panda("exec", "--json", "-d", BOX, "sleep", "60");
	prints("{'id':'7','pid':12}");
}

static void a_signal_is_sent_by_its_name(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/execs/3/signal", "{}");
	panda("exec", "--signal", "TERM:3", BOX);
	gives(0, "", "");
	sent(0, "{'signal':'TERM','tree':true}");
	bed_refuse("POST /v1/sandboxes/" BOX "/execs/4/signal", 404, "exec_not_found", "no exec 4");
	panda("exec", "--signal", "9:4", BOX);
	gives(125, "", "panda: no exec 4\n       `panda ps ID` shows what there is\n");
}

static void a_signal_has_a_name_and_an_exec(void **state)
{
	static const char *const bad[] = {"TERM", ":3", "TERM:", ""};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("exec", "--signal", bad[i], BOX);
		fails(125, "panda exec: --signal wants SIG:EXEC, like TERM:3, not '");
	}
	panda("exec", "--signal", "TERM:3", BOX, "ls");
	fails(125, "--attach and --signal are for a command that runs already");
	panda("exec", "--attach", "3", BOX, "ls");
	fails(125, "--attach and --signal are for a command that runs already");
}

/* ---- --attach ---- */

static void attach_prints_from_the_start_to_the_end(void **state)
{
	reply(.request = OUT(0),
	      .events = "event: start\ndata: {'stdout_offset':0}\n\n" HI OH EXIT(9));
	panda("exec", "--attach", "7", BOX);
	gives(9, "hi\n", "oh\n");
}

static void what_was_overwritten_before_we_came_is_missed(void **state)
{
	reply(.request = OUT(0),
	      .events = "event: start\ndata: {'stdout_offset':100}\n\n" HI EXIT(9));
	panda("exec", "--attach", "7", BOX);
	gives(125, "hi\n",
	      "panda: some output is missing: the command wrote it faster than it was read\n"
	      "       (its exit code was 9)\n");
	reply(.request = OUT(0), .events = HI "event: gap\ndata: {}\n\n" EXIT(0));
	panda("exec", "--attach", "7", BOX);
	assert_int_equal(bed.code, 125);
	assert_string_equal(bed.out, "hi\n");
}

static void a_stream_that_breaks_goes_on_where_it_was(void **state)
{
	reply(.request = OUT(0), .events = HI);
	reply(.request = OUT(3),
	      .events = "event: start\ndata: {'stdout_offset':3}\n\n"
	                "event: stdout\ndata: {'chunk_b64':'aGkK','offset':3}\n\n" EXIT(0));
	panda("exec", "--attach", "7", BOX);
	gives(0, "hi\nhi\n", "");
}

static void a_pandad_that_is_restarted_is_waited_for(void **state)
{
	reply(.request = OUT(0), .events = HI, .hold = true);
	reply(.request = OUT(3), .status = 503, .json = "{'error':'starting'}");
	reply(.request = OUT(3), .events = EXIT(0));
	then(.act = SERVER_LEAVES, .when = "hi");
	then(.act = SERVER_BACK);
	panda("exec", "--attach", "7", BOX);
	gives(0, "hi\n", "");
}

static void a_pandad_that_does_not_come_back_is_given_up(void **state)
{
	reply(.request = OUT(0), .events = HI);
	reply(.request = OUT(3), .status = 503, .json = "{'error':'starting'}");
	then(.act = LATER, .n = 60, .asked = 2);
	then(.act = SERVER_LEAVES);
	panda("exec", "--attach", "7", BOX);
	gives(125, "hi\n", NULL);
}

static void patience_begins_anew_with_every_restart(void **state)
{
	/* The command says little for an hour, and pandad is restarted before and after it. */
	reply(.request = OUT(0), .events = "");
	reply(.request = OUT(0), .events = OH, .hold = true);
	reply(.request = OUT(0), .events = HI EXIT(0));
	then(.act = LATER, .n = 3600, .when = "oh");
	then(.act = SERVER_ENDS);
	panda("exec", "--attach", "7", BOX);
	gives(0, "hi\n", "oh\n");
}

static void an_exec_that_is_not_there_is_told_at_once(void **state)
{
	bed_refuse(OUT(0), 404, "exec_not_found", "there is no exec 7");
	panda("exec", "--attach", "7", BOX);
	gives(125, "", "panda: there is no exec 7\n       `panda ps ID` shows what there is\n");
}

static void a_signal_ends_only_the_looking_on(void **state)
{
	reply(.request = OUT(0), .events = HI, .hold = true);
	then(.act = SIGNAL, .n = SIGINT, .when = "hi");
	panda("exec", "--attach", "7", BOX);
	gives(130, "hi\n", "");
}

static void attach_with_i_feeds_it(void **state)
{
	bed.in = "answer\n";
	reply(.request = OUT(0), .any_time = true, .events = HI, .hold = true);
	reply(.request = IN, .any_time = true, .json = "{}");
	reply(.request = EOF_IN, .any_time = true, .json = "{}");
	then(.act = SERVER_SAYS, .text = EXIT(0), .asked = 3);
	panda("exec", "-i", "--attach", "7", BOX);
	gives(0, "hi\n", "");
}

/* ---- run ---- */

static void run_makes_a_sandbox_for_one_command_and_kills_it(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = HI EXIT(4));
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "-t", "python", "--ttl", "60", "-m", "a=b", "-v", "data:/d", "--egress", "off",
	      "--", "python3", "-c", "print()");
	gives(4, "hi\n", "");
	sent(0, "{'template':'python','ttl_seconds':60,'metadata':{'a':'b'},'egress':'off',"
	        "'volumes':[{'name':'data','read_only':false,'path':'/d'}]}");
	sent(1, "{'argv':['python3','-c','print()'],'timeout_seconds':0,'encoding':'base64'}");
}

static void run_with_keep_tells_the_id_on_stderr(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = HI EXIT(0));
	panda("run", "--keep", "true");
	gives(0, "hi\n", BOX "\n");
}

static void run_kills_the_sandbox_when_the_command_fails(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	bed_refuse(STREAM, 500, "guest_silent", "no answer");
	bed_refuse("DELETE /v1/sandboxes/" BOX, 404, "sandbox_not_found", "gone already");
	panda("run", "true");
	gives(125, "", "panda: no answer\n");
}

static void run_kills_the_sandbox_when_a_signal_comes(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = HI, .hold = true);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	then(.act = SIGNAL, .n = SIGHUP, .when = "hi");
	panda("run", "sleep 1000");
	gives(128 + SIGHUP, "hi\n", "");
}

static void run_kills_the_sandbox_when_the_reader_left(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = ": hello\n\n", .hold = true);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	then(.act = STOP_READING, .asked = 2);
	then(.act = SERVER_SAYS, .text = HI);
	panda("run", "yes");
	gives(141, "", "");
}

static void a_sandbox_that_run_could_not_kill_is_named(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = EXIT(0));
	bed_refuse("DELETE /v1/sandboxes/" BOX, 500, "internal", "cannot");
	panda("run", "true");
	gives(125, "",
	      "panda: cannot\npanda: sandbox " BOX " is still there: panda kill 3f2a0000\n");
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = EXIT(3));
	bed_refuse("DELETE /v1/sandboxes/" BOX, 500, "internal", "cannot");
	panda("run", "exit 3");
	gives(3, "", NULL);
}

static void run_that_gets_no_sandbox_runs_nothing(void **state)
{
	bed_refuse("POST /v1/sandboxes", 503, "host_full", "no room");
	panda("run", "true");
	fails(125, "panda: no room\n       `panda top` shows who uses the host;");
	panda("run");
	fails(125, "panda run: which command?");
	panda("run", "--egress");
	fails(125, "panda run: --egress wants a value");
}

static void run_takes_a_template_before_the_command(void **state)
{
	answer("GET /v1/templates", "{'items':[{'name':'agent'},{'name':'base'}]}");
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = EXIT(0));
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "--rm", "agent", "--", "echo", "hi");
	gives(0, "", "");
	sent(1, "{'template':'agent'}");
	sent(2, "{'argv':['echo','hi'],'timeout_seconds':0,'encoding':'base64'}");
}

static void run_takes_a_command_for_what_it_is(void **state)
{
	answer("GET /v1/templates", "{'items':[{'name':'agent'},{'name':'base'}]}");
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = EXIT(0));
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "echo", "hi");
	gives(0, "", "");
	sent(1, "{'template':'base'}");
	/* Behind -- nobody asks; neither with a template, nor for a line of the shell. */
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = STREAM, .events = EXIT(0));
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "--", "agent", "x");
	gives(0, "", "");
	sent(0, "{'template':'base'}");
	sent(1, "{'argv':['agent','x'],'timeout_seconds':0,'encoding':'base64'}");
}

static void run_detached_leaves_both_there(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	answer("POST /v1/sandboxes/" BOX "/ports", "{'port':80,'proxy_url':'/v1/x/'}");
	answer("POST /v1/sandboxes/" BOX "/execs", "{'id':'1'}");
	panda("run", "-d", "-p", "80", "--", "serve", "80");
	gives(0, BOX "\n", "port 80: http://SERVER/v1/x/\n");
	sent(2, "{'argv':['serve','80'],'timeout_seconds':0}");
	panda("run", "-d", "--rm", "true");
	fails(125, "--rm kills the sandbox at the end, --keep and --detach do not");
}

static void run_that_cannot_detach_kills_the_sandbox(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	bed_refuse("POST /v1/sandboxes/" BOX "/execs", 400, "bad_request", "no such program");
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "-d", "nothing");
	fails(125, "panda: no such program\n");
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("run", "-p", "80:80", "true");
	fails(125, "panda run: --port is a number of the sandbox, not '80:80'");
}

static void variables_come_from_files_and_options_in_this_order(void **state)
{
	bed_file("env", "# a comment\n\n  A=1\nB=x y=z\r\nHOME\nNOT_HERE\nC=3\n", 0, 0644);
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	panda("create", "--env-file", "env", "-e", "C=4");
	gives(0, BOX "\n", "");
	assert_non_null(strstr(bed.asked[0].body, "\"A\":\"1\""));
	assert_non_null(strstr(bed.asked[0].body, "\"B\":\"x y=z\""));
	assert_non_null(strstr(bed.asked[0].body, "\"C\":\"4\""));
	assert_non_null(strstr(bed.asked[0].body, "\"HOME\":\"/"));
	assert_null(strstr(bed.asked[0].body, "NOT_HERE"));
	bed_file("bad", "A=1\n=2\n", 0, 0644);
	panda("create", "--env-file", "bad");
	fails(125, "bad:2: there is no name before the =");
	panda("create", "--env-file", "none");
	fails(125, "cannot open none: No such file or directory");
}

/* ---- ps ---- */

static void ps_says_how_each_command_is_doing(void **state)
{
	answer("GET /v1/sandboxes/" BOX "/execs",
	       "{'items':[{'id':'1','pid':10,'running':true,'stdout_to':1024,'stderr_to':512,"
	       "'command':'sleep 60'},{'id':'2','pid':11,'exit_code':3,'command':'false'},"
	       "{'id':'3','pid':12,'signal':9,'exit_code':137,'command':'a\\nb'},"
	       "{'id':'4','pid':13,'timed_out':true,'signal':9,'command':'x'}]}");
	panda("ps", BOX);
	gives(0,
	      "EXEC  PID  STATE      OUTPUT  COMMAND\n"
	      "1     10   running    1.5K    sleep 60\n"
	      "2     11   exit 3     0       false\n"
	      "3     12   signal 9   0       a?b\n"
	      "4     13   timed out  0       x\n",
	      "");
	answer("GET /v1/sandboxes/" BOX "/execs", "{'items':[{'id':'1'}]}");
	panda("ps", "--json", BOX);
	prints("[{'id':'1'}]");
}

static void a_long_command_is_cut_between_characters(void **state)
{
	char x[100], list[512];

	memset(x, 'x', 99);
	x[99] = 0;
	snprintf(list, sizeof(list), "[{'id':'1','command':'%s\xc3\xbcyz'}]", x);
	answer("GET /v1/sandboxes/" BOX "/execs", list);
	panda("ps", BOX);
	assert_non_null(strstr(bed.out, x));
	assert_null(strchr(bed.out, '?'));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(one_word_is_a_line_for_the_shell),
	    bed_test(several_words_are_a_program_and_its_arguments),
	    bed_test(the_environment_directory_user_and_time_are_said),
	    bed_test(a_sandbox_is_found_by_its_name),
	    bed_test(a_command_is_wanted),
	    bed_test(words_that_are_not_utf8_are_refused),
	    bed_test(the_exit_code_of_the_command_is_ours),
	    bed_test(a_timeout_is_124),
	    bed_test(output_is_passed_on_byte_for_byte),
	    bed_test(output_that_cannot_be_decoded_is_not_left_out_in_silence),
	    bed_test(an_error_in_the_stream_is_told),
	    bed_test(an_error_instead_of_a_stream_tells_the_next_step),
	    bed_test(a_stream_that_ends_before_the_command_is_a_failure),
	    bed_test(the_exit_is_the_end_even_when_the_stream_stays_open),
	    bed_test(a_reader_that_left_ends_it_at_once),
	    bed_test(a_full_disk_ends_it_too),
	    bed_test(a_signal_ends_us_and_thereby_the_command),
	    bed_test(short_text_goes_along_with_the_request),
	    bed_test(with_n_stdin_is_left_alone),
	    bed_test(bytes_that_are_no_text_are_fed_to_a_detached_command),
	    bed_test(stdin_that_goes_on_is_passed_on_as_it_comes),
	    bed_test(a_command_that_reads_no_more_is_no_failure),
	    bed_test(stdin_that_is_lost_is_told),
	    bed_test(a_fed_command_that_cannot_start_is_told),
	    bed_test(the_first_signal_is_for_the_command_and_the_second_for_us),
	    bed_test(with_json_there_is_one_answer_with_everything),
	    bed_test(json_takes_only_text),
	    bed_test(detach_prints_the_number_of_the_exec),
	    bed_test(a_signal_is_sent_by_its_name),
	    bed_test(a_signal_has_a_name_and_an_exec),
	    bed_test(attach_prints_from_the_start_to_the_end),
	    bed_test(what_was_overwritten_before_we_came_is_missed),
	    bed_test(a_stream_that_breaks_goes_on_where_it_was),
	    bed_test(a_pandad_that_is_restarted_is_waited_for),
	    bed_test(a_pandad_that_does_not_come_back_is_given_up),
	    bed_test(patience_begins_anew_with_every_restart),
	    bed_test(an_exec_that_is_not_there_is_told_at_once),
	    bed_test(a_signal_ends_only_the_looking_on),
	    bed_test(attach_with_i_feeds_it),
	    bed_test(run_makes_a_sandbox_for_one_command_and_kills_it),
	    bed_test(run_with_keep_tells_the_id_on_stderr),
	    bed_test(run_kills_the_sandbox_when_the_command_fails),
	    bed_test(run_kills_the_sandbox_when_a_signal_comes),
	    bed_test(run_kills_the_sandbox_when_the_reader_left),
	    bed_test(a_sandbox_that_run_could_not_kill_is_named),
	    bed_test(run_that_gets_no_sandbox_runs_nothing),
	    bed_test(run_takes_a_template_before_the_command),
	    bed_test(run_takes_a_command_for_what_it_is),
	    bed_test(run_detached_leaves_both_there),
	    bed_test(run_that_cannot_detach_kills_the_sandbox),
	    bed_test(variables_come_from_files_and_options_in_this_order),
	    bed_test(ps_says_how_each_command_is_doing),
	    bed_test(a_long_command_is_cut_between_characters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
